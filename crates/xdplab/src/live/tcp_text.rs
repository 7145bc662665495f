//! The lines of `trafficgen tcp`: those that `xdp-trafficgen` has established, with goodput beside the raw rate.

use indicatif::HumanCount;

use super::event::{End, EndedBy};
use super::interval::Interval;
use super::sent_text::{gaps_text, rate_text};
use super::tcp::TcpInterval;
use super::text::{Layout, Lines, column, costs, entry, rate};
use crate::generator::Gaps;
use crate::generator::tcp::TcpFlowCounts;

/// What the lines look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpLayout(Layout);

impl TcpLayout {
    /// Lines of segments that are redirected from the loopback interface, the one that live frames come in by.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self(Layout { label: format!("lo->{interface}"), drops: true, ..Layout::default() })
    }
}

impl Lines for TcpLayout {
    fn interval(&self, interval: &Interval, extended: bool) -> String {
        let text = self.0.interval(interval, extended);
        let Some(tcp) = &interval.tcp else { return text };
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let columns = column(mbits(tcp.goodput_bps), "Mbit/s acked")
            + &column(rate(tcp.counts.retransmits, tcp.period_s), "retrans/s");
        let gaps = interval.sent.as_ref().and_then(|sent| sent.gaps);
        let more = if extended { details(tcp, gaps.as_ref()) } else { String::new() };
        format!("{first}{}\n{rest}{more}", columns.trim_end())
    }

    fn end(&self, end: &End, _extended: bool) -> String {
        let mut text = self.0.totals(end);
        if let Some(tcp) = &end.total.tcp {
            let TcpFlowCounts { segments, retransmits, timeouts, losses, acked_bytes, .. } = tcp.counts;
            text += &entry("Segments sent", format!("{} (counted by the sender)", HumanCount(segments)));
            text += &entry("Raw rate", format!("{} Mbit/s of payload", mbits(tcp.raw_bps)));
            text += &entry(
                "Goodput",
                format!("{} Mbit/s, {} bytes acknowledged", mbits(tcp.goodput_bps), HumanCount(acked_bytes)),
            );
            let causes = format!("{losses} losses by duplicate acknowledgements, {timeouts} timeouts");
            text += &entry("Retransmits", format!("{} ({causes})", HumanCount(retransmits)));
        }
        let paced = end.total.sent.as_ref().zip(end.sending.as_ref());
        text += &paced.map_or_else(String::new, |(sent, sending)| rate_text(sent, sending));
        match end.ended_by {
            EndedBy::PeerClosed => text += &entry("Ended by", "the peer, who closed the connection (FIN)".into()),
            EndedBy::PeerReset => text += &entry("Ended by", "the peer, who reset the connection (RST)".into()),
            _ => {}
        }
        text + &costs(end)
    }
}

fn details(tcp: &TcpInterval, gaps: Option<&Gaps>) -> String {
    let row = |label: &str, value: String| format!("    {label:<18} {value}\n");
    let TcpFlowCounts { from_peer, duplicate_acks, blocked, window, congestion_window, .. } = tcp.counts;
    let per_second = |events, unit| column(rate(events, tcp.period_s), unit);
    row("raw", column(mbits(tcp.raw_bps), "Mbit/s"))
        + &row("from the peer", per_second(from_peer, "pkt/s") + &per_second(duplicate_acks, "dup-ack/s"))
        + &row("not sent", per_second(blocked, "frame/s"))
        + &row("windows", format!("{} announced, {} congestion", HumanCount(window), HumanCount(congestion_window)))
        + &gaps.map_or_else(String::new, |gaps| row("gap", gaps_text(gaps)))
        + "\n"
}

fn mbits(bps: Option<f64>) -> String {
    bps.map_or_else(|| "-".into(), |bps| format!("{:.1}", bps / 1e6))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::interval::WallClock;
    use super::super::interval::tests::counters;
    use super::super::tcp::TcpReading;
    use super::*;

    fn total() -> Interval {
        let start = Instant::now();
        let (first, last) = (counters(start, 0.0, &[], &[]), counters(start, 2.0, &[], &[]));
        let interval = Interval::between(&first, &last, false, &WallClock::start(start));
        let counts = TcpFlowCounts {
            segments: 2_000_000,
            bytes: 2_880_000_000,
            fresh_bytes: 2_865_600_000,
            retransmits: 10_000,
            timeouts: 1,
            losses: 3,
            acked_bytes: 2_865_600_000,
            from_peer: 100_000,
            duplicate_acks: 12,
            blocked: 6_000_000,
            window: 3_145_728,
            congestion_window: 1_440_000,
            closed: None,
        };
        let zero = TcpReading { at: start, counts: TcpFlowCounts::default() };
        let tcp = TcpInterval::between(&zero, &TcpReading { at: start + Duration::from_secs(2), counts });
        Interval { tcp: Some(tcp), received: None, exceptions: None, ..interval }
    }

    #[test]
    fn the_known_columns_come_first_and_goodput_after_them() {
        let line = TcpLayout::new("gen0").interval(&total(), false);
        assert_eq!(
            line,
            "lo->gen0                        0 err/s           11462.4 Mbit/s acked      5,000 retrans/s\n"
        );
        let text = TcpLayout::new("gen0").interval(&total(), true);
        assert!(text.contains("    raw                   11520.0 Mbit/s"), "{text}");
        assert!(text.contains("    windows            3,145,728 announced, 1,440,000 congestion"), "{text}");
    }

    #[test]
    fn the_end_tells_the_raw_rate_goodput_and_who_ended_it() {
        let end = End::new(total(), EndedBy::PeerReset);
        insta::assert_snapshot!(TcpLayout::new("gen0").end(&end, false), @r"
          Duration            : 2.0s
          Segments sent       : 2,000,000 (counted by the sender)
          Raw rate            : 11520.0 Mbit/s of payload
          Goodput             : 11462.4 Mbit/s, 2,865,600,000 bytes acknowledged
          Retransmits         : 10,000 (3 losses by duplicate acknowledgements, 1 timeouts)
          Ended by            : the peer, who reset the connection (RST)
        ");
    }
}
