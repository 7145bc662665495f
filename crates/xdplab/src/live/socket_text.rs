//! The lines of `trafficgen socket` and of its sink.

use std::net::SocketAddr;

use indicatif::HumanCount;

use super::event::End;
use super::interval::Interval;
use super::sent_text::gaps_text;
use super::text::{Lines, column, entry, rate};
use crate::generator::socket::{EndReport, Ledger, MachineTime, Outcome, Protocol, StreamReport, TcpReport};
use crate::reading::Reading;

/// What the lines look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketLayout {
    label: String,
    protocol: Protocol,
}

impl SocketLayout {
    /// Lines of streams to this address.
    #[must_use]
    pub fn new(protocol: Protocol, to: SocketAddr) -> Self {
        let name = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
        Self { label: format!("{name}->{to}"), protocol }
    }
}

impl Lines for SocketLayout {
    fn interval(&self, interval: &Interval, _extended: bool) -> String {
        let Some(counted) = &interval.socket else { return String::new() };
        let mbits = |bps: Option<f64>| bps.map_or_else(|| "n/a".into(), mbits);
        let mut line = format!("{:<23} ", self.label);
        line += &column(mbits(counted.sent_bps), "Mbit/s sent");
        line += &column(mbits(counted.goodput_bps), "Mbit/s got");
        match self.protocol {
            Protocol::Tcp => line += &column(rate(counted.counts.retransmits, counted.period_s), "retrans/s"),
            Protocol::Udp => line += &column(rate(counted.counts.sent_datagrams, counted.period_s), "pkt/s"),
        }
        if interval.partial {
            line += &column(format!("{:.3}", interval.period_s), "s, partial");
        }
        line.trim_end().to_owned() + "\n"
    }

    fn end(&self, end: &End, extended: bool) -> String {
        let mut text = entry("Duration", format!("{:.1}s", end.total.period_s));
        if let Some(outcome) = &end.socket {
            text += &outcome_text(outcome, extended);
        }
        text
    }
}

fn outcome_text(outcome: &Outcome, extended: bool) -> String {
    let mut text = end_text("sent", &outcome.sent, extended);
    match &outcome.received {
        Reading::Known(received) => text += &end_text("received", received, extended),
        Reading::NotAvailable { why } => text += &entry("Bytes received", format!("not available ({why})")),
    }
    text += &entry(
        "Goodput",
        match &outcome.goodput_bps {
            Reading::Known(bps) => format!("{} Mbit/s of payload", mbits(*bps)),
            Reading::NotAvailable { why } => format!("not available ({why})"),
        },
    );
    if let Some(retransmits) = outcome.retransmits {
        let tcp = outcome.sent.streams.iter().filter_map(|stream| stream.tcp);
        let (segments, bytes) = tcp.fold((0, 0), |(segments, bytes), tcp| {
            (segments + u64::from(tcp.segments), bytes + tcp.retransmitted_bytes)
        });
        let (segments, bytes) = (HumanCount(segments), HumanCount(bytes));
        text += &entry("Retransmits", format!("{} of {segments} segments, {bytes} bytes", HumanCount(retransmits)));
    }
    text + &entry("Ledger", ledger_text(&outcome.ledger))
}

/// What one end did, also that of a sink alone.
#[must_use]
pub fn end_text(verb: &str, end: &EndReport, extended: bool) -> String {
    let mut text = entry(&format!("Bytes {verb}"), format!("{} in {:.3} s", HumanCount(end.bytes), end.period_s));
    if end.datagrams > 0 {
        text += &entry(&format!("Datagrams {verb}"), HumanCount(end.datagrams).to_string());
    }
    if let Some(ns) = end.cpu_ns_per_byte {
        let softirq = match &end.machine {
            Reading::Known(MachineTime { softirq_ns_per_byte: Some(ns), .. }) => format!("{ns:.4}"),
            Reading::Known(_) => "none".into(),
            Reading::NotAvailable { why } => format!("not available: {why}"),
        };
        text += &entry("  CPU ns per byte", format!("{ns:<10.4} (its threads; softirqs of all CPUs there: {softirq})"));
    }
    if end.streams.len() > 1 || extended {
        text.extend(end.streams.iter().map(|stream| stream_text(stream, end.period_s)));
    }
    for (stream, gaps) in end.streams.iter().enumerate().filter_map(|(index, stream)| Some((index, stream.gaps?))) {
        let of = if end.streams.len() > 1 { format!("stream {stream}: ") } else { String::new() };
        text += &entry("  gaps", format!("{of}{} (calls)", gaps_text(&gaps)));
    }
    for (errno, count) in end.errors() {
        text += &entry("  errors", format!("{} {errno}", HumanCount(count)));
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "a rate to show")]
fn stream_text(stream: &StreamReport, period_s: f64) -> String {
    let cpu = stream.cpu.map_or_else(|| "on any CPU".into(), |cpu| format!("on CPU {cpu}"));
    let bps = if period_s > 0.0 { mbits(stream.bytes as f64 * 8.0 / period_s) } else { "-".into() };
    let tcp = stream.tcp.map_or_else(String::new, |tcp| {
        let TcpReport { rtt_us, min_rtt_us, snd_cwnd, snd_mss, retransmits, .. } = tcp;
        format!("; {retransmits} retransmits, rtt {rtt_us} us (least {min_rtt_us}), cwnd {snd_cwnd} of {snd_mss} bytes")
    });
    entry("  stream", format!("{bps:<10} Mbit/s {cpu}, {} calls{tcp}", HumanCount(stream.calls)))
}

fn ledger_text(ledger: &Reading<Ledger>) -> String {
    match ledger {
        Reading::NotAvailable { why } => format!("not available ({why})"),
        Reading::Known(Ledger { unit, sent, parts, residual }) => {
            let parts: Vec<String> =
                parts.iter().map(|(name, count)| format!("{} {name}", HumanCount(*count))).collect();
            format!("{} {unit} sent = {}, residual {residual}", HumanCount(*sent), parts.join(" + "))
        }
    }
}

fn mbits(bps: f64) -> String {
    format!("{:.1}", bps / 1e6)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::event::EndedBy;
    use super::super::interval::WallClock;
    use super::super::interval::tests::counters;
    use super::super::socket::{SocketInterval, StreamsReading};
    use super::*;
    use crate::generator::socket::Counts;

    fn total() -> Interval {
        let start = Instant::now();
        let (first, last) = (counters(start, 0.0, &[], &[]), counters(start, 2.0, &[], &[]));
        let interval = Interval::between(&first, &last, false, &WallClock::start(start));
        let counts = Counts {
            sent_bytes: 2_500_000_000,
            received_bytes: Some(2_499_000_000),
            retransmits: 14,
            ..Counts::default()
        };
        let zero = StreamsReading { at: first.at, counts: Counts::default() };
        let socket = SocketInterval::between(&zero, &StreamsReading { at: last.at, counts });
        Interval { socket: Some(socket), ..interval }
    }

    #[test]
    fn a_line_tells_what_was_sent_and_what_arrived() {
        let layout = SocketLayout::new(Protocol::Tcp, "198.18.0.2:10000".parse().unwrap());
        let line = layout.interval(&total(), false);
        assert_eq!(
            line,
            "tcp->198.18.0.2:10000      10000.0 Mbit/s sent      9996.0 Mbit/s got            7 retrans/s\n"
        );
    }

    #[test]
    fn the_end_tells_both_ends_and_whether_they_agree() {
        let tcp = TcpReport {
            segments: 1_000,
            retransmits: 14,
            retransmitted_bytes: 20_272,
            acked_bytes: 2_500_000_000,
            snd_mss: 1_448,
            pmtu: 1_500,
            rtt_us: 40,
            min_rtt_us: 12,
            snd_cwnd: 10,
        };
        let end = |cpu, tcp| EndReport {
            period_s: 2.0,
            bytes: 2_500_000_000,
            datagrams: 0,
            cpu_ns_per_byte: Some(0.25),
            machine: Reading::Known(MachineTime { softirq_ns: 1, busy_ns: 2, softirq_ns_per_byte: Some(0.125) }),
            streams: vec![StreamReport {
                cpu: Some(cpu),
                bytes: 2_500_000_000,
                calls: 19_074,
                tcp,
                complete: true,
                ..StreamReport::default()
            }],
        };
        let outcome = Outcome {
            spec: crate::generator::socket::SocketSpec::new(Protocol::Tcp),
            to: "198.18.0.2:10000".parse().unwrap(),
            size: 131_072,
            sent: end(0, Some(tcp)),
            received: Reading::Known(end(1, None)),
            goodput_bps: Reading::Known(1e10),
            retransmits: Some(14),
            ledger: Reading::Known(Ledger {
                unit: "bytes".into(),
                sent: 2_500_000_000,
                parts: vec![("read".into(), 2_500_000_000)],
                residual: 0,
            }),
        };
        let layout = SocketLayout::new(Protocol::Tcp, outcome.to);
        let end = End { socket: Some(outcome), ..End::new(total(), EndedBy::Duration) };
        insta::assert_snapshot!(layout.end(&end, true), @r"
          Duration            : 2.0s
          Bytes sent          : 2,500,000,000 in 2.000 s
            CPU ns per byte   : 0.2500     (its threads; softirqs of all CPUs there: 0.1250)
            stream            : 10000.0    Mbit/s on CPU 0, 19,074 calls; 14 retransmits, rtt 40 us (least 12), cwnd 10 of 1448 bytes
          Bytes received      : 2,500,000,000 in 2.000 s
            CPU ns per byte   : 0.2500     (its threads; softirqs of all CPUs there: 0.1250)
            stream            : 10000.0    Mbit/s on CPU 1, 19,074 calls
          Goodput             : 10000.0 Mbit/s of payload
          Retransmits         : 14 of 1,000 segments, 20,272 bytes
          Ledger              : 2,500,000,000 bytes sent = 2,500,000,000 read, residual 0
        ");
    }
}
