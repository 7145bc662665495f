//! The lines of commands that send: those that `xdp-trafficgen` has established, then what each thread did.

use indicatif::HumanCount;

use super::event::End;
use super::interval::Interval;
use super::sent::{Scaling, SendingEnd, SendingThread, Sent, by_queue};
use super::text::{Layout, Lines, column, costs, entry, rate};
use super::xsk_text::XskLayout;
use crate::generator::{Gaps, Lateness};
use crate::packet::FCS_LEN;
use crate::reading::Reading;
use crate::units::{Nanos, PacketsPerSec};

/// What the lines of a command that redirects frames out of an interface look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentLayout {
    layout: Layout,
    threads: Vec<SendingThread>,
}

impl SentLayout {
    /// Lines of frames that are redirected from the loopback interface, the one that live frames come in by.
    #[must_use]
    pub fn new(interface: &str, threads: Vec<SendingThread>) -> Self {
        let layout = Layout { label: format!("lo->{interface}"), drops: true, ..Layout::default() };
        Self { layout, threads }
    }
}

impl Lines for SentLayout {
    fn interval(&self, interval: &Interval, extended: bool) -> String {
        let text = self.layout.interval(interval, extended);
        let Some(sent) = interval.sent.as_ref().filter(|_| extended) else { return text };
        text.trim_end_matches('\n').to_owned() + "\n" + &threads_text(&self.threads, sent) + "\n"
    }

    fn end(&self, end: &End, _extended: bool) -> String {
        let sent = end.total.sent.as_ref().zip(end.sending.as_ref());
        self.layout.totals(end) + &sent.map_or_else(String::new, |(sent, end)| sent_text(sent, end)) + &costs(end)
    }
}

/// What the lines of a command that sends from AF_XDP sockets look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentXskLayout {
    layout: XskLayout,
    threads: Vec<SendingThread>,
}

impl SentXskLayout {
    /// Lines of these threads.
    #[must_use]
    pub fn new(layout: XskLayout, threads: Vec<SendingThread>) -> Self {
        Self { layout, threads }
    }
}

impl Lines for SentXskLayout {
    fn interval(&self, interval: &Interval, extended: bool) -> String {
        let mut text = self.layout.interval(interval, extended);
        let Some(sent) = interval.sent.as_ref().filter(|_| !text.is_empty()) else { return text };
        if extended {
            text += &threads_text(&self.threads, sent);
        }
        if self.layout.calls {
            text += &sent.late.as_ref().map_or_else(String::new, cycles_text);
        }
        text
    }

    fn end(&self, end: &End, extended: bool) -> String {
        let Some(xsk) = &end.total.xsk else { return String::new() };
        let sent = end.total.sent.as_ref().zip(end.sending.as_ref());
        self.layout.totals_text(xsk, extended)
            + "\n"
            + &sent.map_or_else(String::new, |(sent, end)| sent_text(sent, end))
            + &costs(end)
    }
}

/// How late bursts left since the beginning, in nanoseconds.
fn cycles_text(Lateness { period_ns, count, min_ns, mean_ns, max_ns }: &Lateness) -> String {
    format!(
        " {:<18} period:{period_ns:<10} min:{min_ns:<10} ave:{mean_ns:<10} max:{max_ns:<10} cycle:{count:<10}\n",
        "Cyclic TX"
    )
}

/// A line for each thread and each queue, and one for the gaps between departures.
pub(super) fn threads_text(threads: &[SendingThread], sent: &Sent) -> String {
    let row = |label: String, packets| format!("    {label:<18} {}\n", column(rate(packets, sent.period_s), "sent/s"));
    let label = |index: usize, thread: &SendingThread| format!("thread:{index} cpu:{}", thread.cpu);
    let senders = threads.iter().zip(&sent.senders).enumerate();
    let mut text: String = senders.map(|(index, (thread, sender))| row(label(index, thread), sender.packets)).collect();
    let queues = by_queue(threads, &sent.senders);
    text.extend(queues.into_iter().map(|(queue, packets)| row(format!("txq:{queue}"), packets)));
    if let Some(gaps) = &sent.gaps {
        text += &format!("    {:<18} {}\n", "gap", gaps_text(gaps));
    }
    text
}

/// What is told of the sender at the end.
pub(super) fn sent_text(sent: &Sent, end: &SendingEnd) -> String {
    let mut text = entry("Packets sent", format!("{:<10} (counted by the sender)", HumanCount(sent.packets)));
    let frames = HumanCount(sent.bytes);
    text += &entry("Bytes sent", format!("{frames:<10} (FCS not counted), {}", bits_on_the_wire(sent)));
    if let Some(Nanos(ns)) = sent.ns_per_packet {
        text += &entry("ns per packet", format!("{ns:<10.2} (period / packets)"));
    }
    text += &rate_text(sent, end);
    let several = end.threads.len() > 1;
    if several {
        for (thread, sender) in end.threads.iter().zip(&sent.senders) {
            let of = thread.queue.map_or_else(String::new, |queue| format!(", queue {queue}"));
            let value = format!("{:<10} sent/s (CPU {}{of})", rate(sender.packets, sent.period_s), thread.cpu);
            text += &entry("  thread", value);
        }
    }
    if let Some(scaling) = &end.scaling {
        text += &entry("Threads", scaling_text(scaling, end.threads.len()));
    }
    text
}

/// How a rate was kept.
pub(super) fn rate_text(sent: &Sent, end: &SendingEnd) -> String {
    let Some((PacketsPerSec(asked), gaps)) = end.asked.zip(sent.gaps) else { return String::new() };
    let pps = gaps.departures_per_s * f64::from(end.burst);
    let off = (pps / asked - 1.0) * 100.0;
    let between = "from the first departure to the last";
    entry("Rate", format!("{pps:.1} of {asked:.1} packets/s asked for, {off:+.3} %, {between}"))
        + &entry("Gaps", gaps_text(&gaps))
}

fn bits_on_the_wire(sent: &Sent) -> String {
    let bits = (sent.bytes + sent.packets * FCS_LEN as u64) * 8;
    let rate = PacketsPerSec::of(bits, std::time::Duration::from_secs_f64(sent.period_s));
    rate.map_or_else(|| "-".into(), |PacketsPerSec(bits)| format!("{:.3} Mbit/s on the wire with FCS", bits / 1e6))
}

pub(super) fn gaps_text(gaps: &Gaps) -> String {
    let us = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
    format!(
        "p50 {} us, p99 {} us, p99.9 {} us, longest {} us between {} departures",
        us(gaps.p50_ns),
        us(gaps.p99_ns),
        us(gaps.p999_ns),
        us(gaps.max_ns),
        HumanCount(gaps.count + 1)
    )
}

fn scaling_text(scaling: &Scaling, threads: usize) -> String {
    let Scaling { alone: PacketsPerSec(alone), together: PacketsPerSec(together), slower_because } = scaling;
    let text = format!("{threads} together send {:.2} times what the first sends alone", together / alone);
    slower_because.as_ref().map_or_else(|| text.clone(), |why| format!("{text}: {why}"))
}

/// The sizes of frames by every count, in words.
#[must_use]
pub fn sizes_text(sending: &super::sent::Sending) -> String {
    let (short, long) = (sending.shortest, sending.longest);
    let range = |from: usize, to: usize| if from == to { from.to_string() } else { format!("{from} to {to}") };
    let payload = match (short.payload, long.payload) {
        (0, 0) => String::new(),
        (from, to) => format!(", {} of payload", range(from, to)),
    };
    format!(
        "{} bytes on the wire with FCS, {} without{payload}",
        range(short.wire, long.wire),
        range(short.l2, long.l2)
    )
}

/// What became of the trial frame, in words.
#[must_use]
pub fn trial_text(trial: &Reading<String>) -> String {
    match trial {
        Reading::Known(told) => format!("a trial frame {told}"),
        Reading::NotAvailable { why } => format!("no trial frame was sent: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::event::EndedBy;
    use super::super::interval::WallClock;
    use super::super::interval::tests::counters;
    use super::super::sent::{SentBy, SentCounters};
    use super::*;
    use crate::generator::{Departures, GapCounts};

    fn total() -> Interval {
        let start = Instant::now();
        let (first, last) = (counters(start, 0.0, &[], &[]), counters(start, 2.0, &[], &[]));
        let sent = |packets| SentBy { packets, bytes: packets * 60 };
        let later = SentCounters {
            senders: vec![sent(3_000_000), sent(1_000_000)],
            gaps: Some(GapCounts::new(
                [vec![0; GapCounts::bucket(1_000)], vec![7]].concat(),
                Departures { bursts: 8, first_ns: 1_000, last_ns: 8_000 },
            )),
            ..SentCounters::zero(start + Duration::from_secs(2), 2)
        };
        let interval = Interval::between(&first, &last, false, &WallClock::start(start));
        let sent = Sent::between(&SentCounters::zero(start, 2), &later);
        Interval { sent: Some(sent), received: None, exceptions: None, ..interval }
    }

    fn threads() -> Vec<SendingThread> {
        vec![SendingThread { cpu: 0, queue: Some(4) }, SendingThread { cpu: 1, queue: Some(5) }]
    }

    #[test]
    fn threads_queues_and_gaps_have_lines_in_extended_mode_alone() {
        let layout = SentLayout::new("gen0", threads());
        let terse = layout.interval(&total(), false);
        assert!(terse.starts_with("lo->gen0               ") && terse.lines().count() == 1, "{terse}");
        let text = layout.interval(&total(), true);
        for line in ["    thread:1 cpu:1        500,000 sent/s", "    txq:4               1,500,000 sent/s", "gap"] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn the_end_tells_rates_in_all_their_meanings() {
        let sending = SendingEnd {
            threads: threads(),
            asked: Some(PacketsPerSec(2e6)),
            burst: 2,
            scaling: Some(Scaling {
                alone: PacketsPerSec(2.5e6),
                together: PacketsPerSec(2e6),
                slower_because: Some("they share a ring".into()),
            }),
        };
        let end = End { sending: Some(sending), ..End::new(total(), EndedBy::Duration) };
        let text = SentLayout::new("gen0", threads()).end(&end, false);
        insta::assert_snapshot!(text.replace('\n', "|\n"), @r"
        Duration            : 2.0s|
        Packets sent        : 4,000,000 (counted by the sender)|
        Bytes sent          : 240,000,000 (FCS not counted), 1024.000 Mbit/s on the wire with FCS|
        ns per packet       : 500.00     (period / packets)|
        Rate                : 2000000.0 of 2000000.0 packets/s asked for, +0.000 %, from the first departure to the last|
        Gaps                : p50 1.00 us, p99 1.00 us, p99.9 1.00 us, longest 1.00 us between 8 departures|
          thread            : 1,500,000  sent/s (CPU 0, queue 4)|
          thread            : 500,000    sent/s (CPU 1, queue 5)|
        Threads             : 2 together send 0.80 times what the first sends alone: they share a ring|
        ");
    }
}
