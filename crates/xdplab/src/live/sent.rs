//! What a sender sent between two readings, and what is told of it at both ends of a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::cpu_cost::CpuCost;
use super::event::{End, EndedBy, Start};
use super::interval::Interval;
use super::session::Source;
use crate::error::Result;
use crate::generator::{GapCounts, Gaps, Lateness, Pace, Rate};
use crate::packet::FrameLengths;
use crate::reading::Reading;
use crate::units::{Nanos, PacketsPerSec};

/// A command that sends: prepared, begun, and ended.
pub trait Sender: Source {
    /// Begins to send. Returns the reading from just before the first packet.
    ///
    /// # Errors
    /// It could not begin.
    fn begin(&mut self) -> Result<Counters>;

    /// What sends where, once it has begun.
    fn start(&self, started: String) -> Start;

    /// Ends it, waits for the packets on their way, and tells where all went. The end is [`EndedBy::Failed`] where two
    /// counters disagree about that.
    ///
    /// # Errors
    /// A counter could not be read.
    fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End>;
}

/// One reading of a sender's own counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentCounters {
    /// When it was made.
    pub at: Instant,
    /// Each thread or stream.
    pub senders: Vec<SentBy>,
    /// Gaps between departures that follow a schedule.
    pub gaps: Option<GapCounts>,
    /// How late departures were since the beginning, where that is known.
    pub late: Option<Lateness>,
}

/// What one thread or stream sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentBy {
    /// Packets.
    pub packets: u64,
    /// Their bytes: whole frames without FCS, or of a socket the payload.
    pub bytes: u64,
}

/// What was sent between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// All packets.
    pub packets: u64,
    /// All bytes; see [`SentBy::bytes`].
    pub bytes: u64,
    /// `packets / period_s`; absent where the period is 0.
    pub pps: Option<PacketsPerSec>,
    /// `period_s / packets` in nanoseconds; absent where no packet was sent.
    pub ns_per_packet: Option<Nanos>,
    /// Each thread or stream.
    pub senders: Vec<SentBy>,
    /// Gaps between departures that follow a schedule; absent without one, or without a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Gaps>,
    /// How late departures were since the beginning of the run, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Lateness>,
}

/// How a sender was set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sending {
    /// Its threads.
    pub threads: Vec<SendingThread>,
    /// The shortest frame.
    pub shortest: FrameLengths,
    /// The longest frame.
    pub longest: FrameLengths,
    /// Frames of different sizes or contents in turn.
    pub frames: usize,
    /// Flows.
    pub flows: u64,
    /// Packets made at once.
    pub batch: u32,
    /// The rate asked for.
    pub rate: Option<Rate>,
    /// The schedule that it came to.
    pub pace: Option<Pace>,
    /// What became of the frame that was sent before the clock started.
    pub trial: Reading<String>,
    /// What the first thread sent alone, before the clock started; absent with one thread, a count or a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<PacketsPerSec>,
}

/// Where a thread sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingThread {
    /// The CPU that it stays on.
    pub cpu: usize,
    /// The queue that it sends to; absent where the driver chooses it by the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
}

/// What can be said of a sender when it has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendingEnd {
    /// Its threads.
    pub threads: Vec<SendingThread>,
    /// The rate that was asked for, all threads together.
    pub asked: Option<PacketsPerSec>,
    /// Packets of a departure.
    pub burst: u32,
    /// What several threads sent in comparison with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// What several threads sent in comparison with one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// The first thread alone.
    pub alone: PacketsPerSec,
    /// All together.
    pub together: PacketsPerSec,
    /// Why that is less, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_because: Option<String>,
}

/// What the first of several threads sent before the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub(super) pps: PacketsPerSec,
    /// Its CPU time for each packet, its beginning included.
    pub(super) cpu_ns: Option<Nanos>,
}

/// A packet that takes so many times the CPU time of before is dearer.
const DEARER: f64 = 1.1;

impl Scaling {
    /// Compares; `costs` are the CPU times of all threads, and `contended` says what they may wait for each other at.
    pub(super) fn of(
        alone: Alone,
        together: PacketsPerSec,
        costs: &[Reading<CpuCost>],
        contended: impl FnOnce() -> String,
    ) -> Self {
        let slower_because = (together < alone.pps).then(|| why_slower(alone.cpu_ns, costs, contended));
        Self { alone: alone.pps, together, slower_because }
    }
}

/// By CPU time, which tells a thread that waits at a lock from one that others keep from its CPU.
fn why_slower(alone: Option<Nanos>, costs: &[Reading<CpuCost>], contended: impl FnOnce() -> String) -> String {
    let costs: Vec<&CpuCost> = costs.iter().filter_map(Reading::known).collect();
    let (busy_ns, packets) =
        costs.iter().fold((0, 0), |(ns, packets), cost| (ns + cost.busy_ns, packets + cost.packets));
    let share = costs.iter().map(|cost| cost.share).sum::<f64>() / costs.len().max(1) as f64;
    let now = PacketsPerSec::of(packets, Duration::from_nanos(busy_ns)).and_then(PacketsPerSec::to_nanos);
    match alone.zip(now) {
        Some((Nanos(alone), Nanos(now))) if now > alone * DEARER => {
            format!("a packet takes {now:.0} ns of CPU time instead of {alone:.0}: {}", contended())
        }
        Some((Nanos(alone), Nanos(now))) => format!(
            "a packet takes {now:.0} ns of CPU time, as one before took {alone:.0}, but the threads had their CPUs for {:.0} % of the \
             time: others ran there",
            share * 100.0
        ),
        None => contended(),
    }
}

impl SentCounters {
    /// Nothing sent yet by so many threads.
    #[must_use]
    pub fn zero(at: Instant, senders: usize) -> Self {
        Self { at, senders: vec![SentBy::default(); senders], gaps: None, late: None }
    }
}

impl Sent {
    pub(super) fn between(earlier: &SentCounters, later: &SentCounters) -> Self {
        let period = later.at.saturating_duration_since(earlier.at);
        let before = |index: usize| earlier.senders.get(index).copied().unwrap_or_default();
        let senders: Vec<SentBy> = later
            .senders
            .iter()
            .enumerate()
            .map(|(index, now)| SentBy {
                packets: now.packets - before(index).packets,
                bytes: now.bytes - before(index).bytes,
            })
            .collect();
        let packets = senders.iter().map(|sender| sender.packets).sum();
        let pps = PacketsPerSec::of(packets, period);
        let none = GapCounts::default();
        let gaps = later.gaps.as_ref().map(|gaps| gaps.since(earlier.gaps.as_ref().unwrap_or(&none)));
        Self {
            period_s: period.as_secs_f64(),
            packets,
            bytes: senders.iter().map(|sender| sender.bytes).sum(),
            pps,
            ns_per_packet: pps.and_then(PacketsPerSec::to_nanos),
            senders,
            gaps: gaps.and_then(|gaps| gaps.percentiles()),
            late: later.late,
        }
    }
}

/// The queues that threads send to, with the packets of each; empty where the driver chooses.
#[must_use]
pub(super) fn by_queue(threads: &[SendingThread], senders: &[SentBy]) -> BTreeMap<u32, u64> {
    let mut queues = BTreeMap::new();
    for (thread, sender) in threads.iter().zip(senders) {
        if let Some(queue) = thread.queue {
            *queues.entry(queue).or_default() += sender.packets;
        }
    }
    queues
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Departures;

    #[test]
    fn what_was_sent_is_the_difference_for_each_thread_and_in_all() {
        let start = Instant::now();
        let sent = |packets| SentBy { packets, bytes: packets * 60 };
        let first = SentCounters { senders: vec![sent(1), sent(2)], ..SentCounters::zero(start, 2) };
        let last = SentCounters {
            senders: vec![sent(101), sent(302)],
            gaps: Some(GapCounts::new(vec![0, 0, 3], Departures::default())),
            ..SentCounters::zero(start + Duration::from_secs(2), 2)
        };
        let between = Sent::between(&first, &last);
        assert_eq!((between.packets, between.bytes, between.period_s), (400, 24_000, 2.0));
        assert_eq!(between.senders, [sent(100), sent(300)]);
        assert_eq!((between.pps, between.ns_per_packet), (Some(PacketsPerSec(200.0)), Some(Nanos(5e6))));
        assert_eq!(between.gaps.map(|gaps| (gaps.count, gaps.p50_ns)), Some((3, 2)));
        let json = serde_json::to_string(&between).unwrap();
        assert_eq!(serde_json::from_str::<Sent>(&json).unwrap(), between);
    }

    #[test]
    fn threads_that_wait_for_each_other_are_told_from_those_that_others_keep_waiting() {
        let second = Duration::from_secs(1);
        let scaling = |busy_ms, packets, together| {
            let cost = CpuCost::of("thread".into(), Duration::from_millis(busy_ms), second, packets);
            let alone = Alone { pps: PacketsPerSec(10e6), cpu_ns: Some(Nanos(100.0)) };
            let costs = vec![Reading::Known(cost); 2];
            Scaling::of(alone, PacketsPerSec(together), &costs, || "they share a ring".into()).slower_because
        };
        assert_eq!(scaling(1_000, 10_000_000, 20e6), None);
        let waiting = scaling(1_000, 4_000_000, 8e6).unwrap();
        assert_eq!(waiting, "a packet takes 250 ns of CPU time instead of 100: they share a ring");
        let kept = scaling(400, 4_000_000, 8e6).unwrap();
        assert!(kept.contains("had their CPUs for 40 % of the time") && !kept.contains("ring"), "{kept}");
    }

    #[test]
    fn queues_are_told_where_threads_have_them() {
        let thread = |queue| SendingThread { cpu: 0, queue };
        let sent = [SentBy { packets: 3, bytes: 0 }, SentBy { packets: 4, bytes: 0 }];
        assert_eq!(by_queue(&[thread(Some(1)), thread(Some(1))], &sent), [(1, 7)].into());
        assert!(by_queue(&[thread(None), thread(None)], &sent).is_empty());
    }
}
