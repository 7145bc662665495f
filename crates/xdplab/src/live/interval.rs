//! What was counted between two readings, with the rates that follow from it: plain data, for lines, JSON and record.

use std::collections::BTreeMap;
use std::ops::Sub;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::counters::{Counters, Delta, Group, Hop, Place, XmitCounts, delta_of};
use super::cpumap::CpumapInterval;
use super::sent::Sent;
use super::socket::SocketInterval;
use super::tcp::TcpInterval;
use super::xsk::XskInterval;
use crate::device::Counts;
use crate::reading::Reading;
use crate::units::{Nanos, PacketsPerSec};

/// The wall clock, read once: stamps are the start plus monotonic time, so that a clock that is set meanwhile bends
/// neither an interval nor its rate.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    origin: Instant,
    started: Timestamp,
}

/// What was counted between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Wall clock of the first reading, RFC 3339.
    pub start: String,
    /// Wall clock of the second.
    pub stop: String,
    /// Seconds between the two by the monotonic clock.
    pub period_s: f64,
    /// Whether it was ended before its time.
    pub partial: bool,
    /// Packets that the program saw; absent where the command counts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<Received>,
    /// Verdicts that the driver could not carry out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exceptions: Option<Reading<Exceptions>>,
    /// Redirects whose frame a queue took; absent where they are not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirects: Option<Reading<Redirects>>,
    /// Redirects that failed before a queue took the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect_errors: Option<Reading<RedirectErrors>>,
    /// Frames that redirects gave to drivers; absent in skb mode, in which none is given to a driver in this way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xmit: Option<Reading<Transmitted>>,
    /// What the program gave to other CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpumap: Option<CpumapInterval>,
    /// What AF_XDP sockets received and sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xsk: Option<XskInterval>,
    /// What a sender has sent by its own count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
    /// What both ends of plain sockets have counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<SocketInterval>,
    /// What the programs of a TCP flow have counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpInterval>,
}

/// Packets that a program saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// All, the aborted ones among them.
    pub packets: u64,
    /// Those that the operation could not handle; they got `XDP_ABORTED`.
    pub aborted: u64,
    /// `packets / period_s`; absent where the period is 0.
    pub pps: Option<PacketsPerSec>,
    /// `period_s / packets` in nanoseconds; absent where no packet came.
    pub ns_per_packet: Option<Nanos>,
    /// By RX queue.
    pub rx_queues: BTreeMap<u32, Counts>,
    /// By CPU.
    pub cpus: BTreeMap<u32, Counts>,
}

/// Verdicts that the driver could not carry out (tracepoint `xdp_exception`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exceptions {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// Packets in all.
    pub packets: u64,
    /// Packets by verdict and CPU.
    pub verdicts: BTreeMap<String, BTreeMap<u32, u64>>,
}

/// Redirects whose frame a queue took (tracepoint `xdp_redirect`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Redirects {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// Packets in all.
    pub packets: u64,
    /// Packets by CPU.
    pub cpus: BTreeMap<u32, u64>,
}

/// Redirects that failed before a queue took the frame (tracepoint `xdp_redirect_err`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RedirectErrors {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// Packets in all.
    pub packets: u64,
    /// Packets by errno and CPU.
    pub errnos: BTreeMap<String, BTreeMap<u32, u64>>,
}

/// Frames that redirects gave to drivers (tracepoint `xdp_devmap_xmit`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transmitted {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// All frames.
    #[serde(flatten)]
    pub total: XmitCounts,
    /// By CPU.
    pub cpus: BTreeMap<u32, XmitCounts>,
    /// By flow, e.g. `veth0->veth1`; the name of an interface in another network namespace tells that one.
    pub flows: BTreeMap<String, FlowTransmitted>,
}

/// Frames of one flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowTransmitted {
    /// All frames.
    #[serde(flatten)]
    pub total: XmitCounts,
    /// By CPU.
    pub cpus: BTreeMap<u32, XmitCounts>,
    /// Those of bulks that the driver answered with an error, by errno.
    pub driver_errors: BTreeMap<String, XmitCounts>,
}

impl WallClock {
    /// The wall clock of a run whose first reading was at `origin`, a moment ago.
    #[must_use]
    pub fn start(origin: Instant) -> Self {
        let since = SignedDuration::try_from(origin.elapsed()).unwrap_or_default();
        Self { origin, started: Timestamp::now() - since }
    }

    /// The time at `instant`, RFC 3339 with microseconds.
    #[must_use]
    pub fn at(&self, instant: Instant) -> String {
        let since = SignedDuration::try_from(instant.saturating_duration_since(self.origin)).unwrap_or_default();
        format!("{:.6}", self.started.saturating_add(since).unwrap_or(self.started))
    }
}

impl Interval {
    /// What was counted from `earlier` to `later`.
    #[must_use]
    pub fn between(earlier: &Counters, later: &Counters, partial: bool, wall: &WallClock) -> Self {
        let received = earlier.received.as_ref().zip(later.received.as_ref());
        let received = received.map(|(earlier, later)| Received::of(&later.since(earlier)));
        let xsk = earlier.xsk.as_ref().zip(later.xsk.as_ref());
        let cpumap = earlier.cpumap.as_ref().zip(later.cpumap.as_ref());
        let sent = earlier.sent.as_ref().zip(later.sent.as_ref());
        let socket = earlier.socket.as_ref().zip(later.socket.as_ref());
        let tcp = earlier.tcp.as_ref().zip(later.tcp.as_ref());
        Self {
            start: wall.at(earlier.at),
            stop: wall.at(later.at),
            period_s: later.at.saturating_duration_since(earlier.at).as_secs_f64(),
            partial,
            received,
            exceptions: part(&earlier.exceptions, &later.exceptions, Exceptions::of),
            redirects: part(&earlier.redirects, &later.redirects, Redirects::of),
            redirect_errors: part(&earlier.redirect_errors, &later.redirect_errors, RedirectErrors::of),
            xmit: part(&earlier.xmit, &later.xmit, Transmitted::of),
            cpumap: cpumap.map(|(earlier, later)| CpumapInterval::between(earlier, later)),
            xsk: xsk.map(|(earlier, later)| XskInterval::between(earlier, later)),
            sent: sent.map(|(earlier, later)| Sent::between(earlier, later)),
            socket: socket.map(|(earlier, later)| SocketInterval::between(earlier, later)),
            tcp: tcp.map(|(earlier, later)| TcpInterval::between(earlier, later)),
        }
    }
}

/// What was counted of one kind, where both readings have it.
fn part<K: Ord + Clone, V: Copy + Default + Sub<Output = V>, T>(
    earlier: &Option<Reading<Group<K, V>>>,
    later: &Option<Reading<Group<K, V>>>,
    of: fn(&Delta<K, V>) -> T,
) -> Option<Reading<T>> {
    let (earlier, later) = earlier.as_ref().zip(later.as_ref())?;
    Some(delta_of(earlier, later).map(|delta| of(&delta)))
}

impl Received {
    fn of(delta: &Delta<Place, Counts>) -> Self {
        let Counts { packets, aborted } = delta.total();
        let pps = PacketsPerSec::of(packets, delta.period);
        let some = |sums: BTreeMap<u32, Counts>| sums.into_iter().filter(|(_, counts)| counts.packets > 0).collect();
        Self {
            period_s: delta.period.as_secs_f64(),
            packets,
            aborted,
            pps,
            ns_per_packet: pps.and_then(PacketsPerSec::to_nanos),
            rx_queues: some(delta.by(|place| place.queue)),
            cpus: some(delta.by(|place| place.cpu)),
        }
    }
}

impl Exceptions {
    fn of(delta: &Delta<(String, u32), u64>) -> Self {
        Self { period_s: delta.period.as_secs_f64(), packets: delta.total(), verdicts: by_name(delta) }
    }
}

impl Redirects {
    fn of(delta: &Delta<u32, u64>) -> Self {
        let cpus = delta.rows.iter().filter(|(_, packets)| **packets > 0).map(|(cpu, packets)| (*cpu, *packets));
        Self { period_s: delta.period.as_secs_f64(), packets: delta.total(), cpus: cpus.collect() }
    }
}

impl RedirectErrors {
    fn of(delta: &Delta<(String, u32), u64>) -> Self {
        Self { period_s: delta.period.as_secs_f64(), packets: delta.total(), errnos: by_name(delta) }
    }
}

impl Transmitted {
    fn of(delta: &Delta<Hop, XmitCounts>) -> Self {
        let mut flows: BTreeMap<String, FlowTransmitted> = BTreeMap::new();
        let mut cpus: BTreeMap<u32, XmitCounts> = BTreeMap::new();
        for (hop, counts) in delta.rows.iter().filter(|(_, counts)| counts.bulks > 0) {
            let flow = flows.entry(hop.flow.clone()).or_default();
            flow.total += *counts;
            *flow.cpus.entry(hop.cpu).or_default() += *counts;
            *cpus.entry(hop.cpu).or_default() += *counts;
            if let Some(errno) = &hop.errno {
                *flow.driver_errors.entry(errno.clone()).or_default() += *counts;
            }
        }
        Self { period_s: delta.period.as_secs_f64(), total: delta.total(), cpus, flows }
    }
}

/// The rows that are not zero.
fn by_name(delta: &Delta<(String, u32), u64>) -> BTreeMap<String, BTreeMap<u32, u64>> {
    let mut names: BTreeMap<String, BTreeMap<u32, u64>> = BTreeMap::new();
    for ((name, cpu), packets) in delta.rows.iter().filter(|(_, packets)| **packets > 0) {
        names.entry(name.clone()).or_default().insert(*cpu, *packets);
    }
    names
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    /// A row of received packets: queue, CPU, packets, aborted packets.
    pub(in super::super) type Row = (u32, u32, u64, u64);

    /// A reading at `start` plus `seconds`, with exceptions by verdict and CPU.
    pub(in super::super) fn counters(
        start: Instant,
        seconds: f64,
        received: &[Row],
        exceptions: &[(&str, u32, u64)],
    ) -> Counters {
        let at = start + Duration::from_secs_f64(seconds);
        let received =
            received.iter().map(|&(queue, cpu, packets, aborted)| (Place { queue, cpu }, Counts { packets, aborted }));
        let exceptions = exceptions.iter().map(|&(verdict, cpu, packets)| ((verdict.to_owned(), cpu), packets));
        Counters {
            received: Some(Group { at, rows: received.collect() }),
            exceptions: Some(Reading::Known(Group { at, rows: exceptions.collect() })),
            ..Counters::empty(at)
        }
    }

    #[test]
    fn rates_and_nanoseconds_follow_from_the_difference_and_its_own_period() {
        let start = Instant::now();
        let first = counters(start, 0.0, &[(0, 0, 1_000, 0)], &[("XDP_TX", 0, 5)]);
        let last = counters(
            start,
            2.5,
            &[(0, 0, 1_001_000, 2), (1, 0, 250_000, 0)],
            &[("XDP_TX", 0, 5), ("XDP_ABORTED", 0, 2)],
        );
        let wall = WallClock { origin: start, started: "2026-01-02T03:04:05Z".parse().unwrap() };
        let interval = Interval::between(&first, &last, false, &wall);
        assert_eq!(interval.start, "2026-01-02T03:04:05.000000Z");
        assert_eq!(interval.stop, "2026-01-02T03:04:07.500000Z");
        let received = interval.received.unwrap();
        assert_eq!((received.packets, received.aborted, received.period_s), (1_250_000, 2, 2.5));
        assert_eq!(received.pps, Some(PacketsPerSec(500_000.0)));
        assert_eq!(received.ns_per_packet, Some(Nanos(2_000.0)));
        assert_eq!(received.rx_queues[&0], Counts { packets: 1_000_000, aborted: 2 });
        assert_eq!(received.rx_queues[&1], Counts { packets: 250_000, aborted: 0 });
        assert_eq!(received.cpus, BTreeMap::from([(0, Counts { packets: 1_250_000, aborted: 2 })]));
        let exceptions = interval.exceptions.unwrap().into_result().unwrap();
        assert_eq!(exceptions.packets, 2);
        assert_eq!(exceptions.verdicts, BTreeMap::from([("XDP_ABORTED".into(), BTreeMap::from([(0, 2)]))]));
    }

    #[test]
    fn nothing_received_gives_no_time_per_packet_and_no_infinity() {
        let start = Instant::now();
        let wall = WallClock::start(start);
        let (first, last) = (counters(start, 0.0, &[], &[]), counters(start, 1.0, &[], &[]));
        let interval = Interval::between(&first, &last, false, &wall);
        let received = interval.received.as_ref().unwrap();
        assert_eq!((received.pps, received.ns_per_packet), (Some(PacketsPerSec(0.0)), None));
        let empty = Interval::between(&last, &last, true, &wall);
        assert_eq!(empty.received.as_ref().unwrap().pps, None);
        for interval in [interval, empty] {
            let json = serde_json::to_string(&interval).unwrap();
            assert_eq!(serde_json::from_str::<Interval>(&json).unwrap(), interval);
        }
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_available_instead_of_zero() {
        let start = Instant::now();
        let mut last = counters(start, 1.0, &[], &[]);
        let first = last.clone();
        last.exceptions = Some(Reading::not_available("no tracepoint"));
        let interval = Interval::between(&first, &last, false, &WallClock::start(start));
        assert_eq!(interval.exceptions, Some(Reading::not_available("no tracepoint")));
        last.exceptions = None;
        let interval = Interval::between(&first, &last, false, &WallClock::start(start));
        assert_eq!(interval.exceptions, None);
    }
}
