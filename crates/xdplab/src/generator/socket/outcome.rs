//! What streams did: at either end, and whether the two ends agree.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Errors, Protocol, SocketSpec};
use crate::generator::Gaps;
use crate::host::{CpuShares, CpuTimes};
use crate::netlink::LinkStats;
use crate::reading::Reading;
use crate::sys::socket::TcpInfo;
use crate::units::whole_nanos;

/// What was counted so far, over all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Payload bytes that the kernel took from the senders.
    pub sent_bytes: u64,
    /// Datagrams that the kernel took (UDP).
    pub sent_datagrams: u64,
    /// Payload bytes that the receiving application has read; those that its kernel has acknowledged where there is no sink
    /// (TCP). `None` where nobody tells (UDP without a sink).
    pub received_bytes: Option<u64>,
    /// Datagrams that the receiving application has read (UDP).
    pub received_datagrams: Option<u64>,
    /// Segments sent again (TCP).
    pub retransmits: u64,
}

/// The kernel's account of a TCP connection at the sender's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpReport {
    /// Segments with payload, those sent again among them; a segment that the device splits counts as its parts.
    pub segments: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// Bytes sent again.
    pub retransmitted_bytes: u64,
    /// Payload bytes that the receiver's kernel has acknowledged.
    pub acked_bytes: u64,
    /// Bytes of a segment's payload.
    pub snd_mss: u32,
    /// The path's MTU in bytes.
    pub pmtu: u32,
    /// The smoothed round-trip time at the end, in microseconds.
    pub rtt_us: u32,
    /// The least one.
    pub min_rtt_us: u32,
    /// The congestion window at the end, in segments.
    pub snd_cwnd: u32,
}

/// One stream at one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// The CPU that its thread was kept on.
    pub cpu: Option<usize>,
    /// Payload bytes given to the kernel, or read from it.
    pub bytes: u64,
    /// Datagrams (UDP).
    pub datagrams: u64,
    /// Calls that moved something.
    pub calls: u64,
    /// CPU time of the thread in user mode, in nanoseconds (`getrusage(RUSAGE_THREAD)`).
    pub user_ns: u64,
    /// The same in the kernel: system calls, and softirqs that ran on top of the thread, unless the kernel keeps apart what
    /// those took (`CONFIG_IRQ_TIME_ACCOUNTING`).
    pub system_ns: u64,
    /// The connection (TCP, sender).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpReport>,
    /// Datagrams that the kernel dropped because the socket's buffer was full (UDP, receiver).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_drops: Option<Reading<u64>>,
    /// Gaps between the calls of a stream with a rate (sender).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Gaps>,
    /// Calls that failed, by errno name.
    #[serde(default, skip_serializing_if = "Errors::is_empty")]
    pub errors: Errors,
    /// The receiver has read to the end of the stream (TCP), or the sender has ended it in order.
    pub complete: bool,
}

/// All streams at one end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndReport {
    /// Seconds from the first byte to the end: sent, or read.
    pub period_s: f64,
    /// Payload bytes.
    pub bytes: u64,
    /// Datagrams (UDP).
    pub datagrams: u64,
    /// CPU time of the threads divided by the bytes, in nanoseconds; absent where there were none.
    pub cpu_ns_per_byte: Option<f64>,
    /// What the CPUs of this end's machine did meanwhile, whoever's work it was.
    pub machine: Reading<MachineTime>,
    /// Each stream.
    pub streams: Vec<StreamReport>,
}

/// The time of all CPUs of a machine (`/proc/stat`, in ticks of usually 10 ms).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineTime {
    /// In softirq, in nanoseconds: what the network stack does outside the threads, among others.
    pub softirq_ns: u64,
    /// Not idle, in nanoseconds; softirqs among it.
    pub busy_ns: u64,
    /// `softirq_ns` divided by the bytes; absent where there were none.
    pub softirq_ns_per_byte: Option<f64>,
}

/// What became of what was sent, by two counters that know nothing of each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// `bytes` or `datagrams`.
    pub unit: String,
    /// Sent, by the sender's count.
    pub sent: u64,
    /// Where they went, by the receiver's count and the kernel's.
    pub parts: Vec<(String, u64)>,
    /// `sent` less the parts: lost, or counted wrong.
    pub residual: i64,
}

/// A run from its first byte to the sink's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was asked for.
    pub spec: SocketSpec,
    /// Where it went.
    pub to: SocketAddr,
    /// Bytes of a call (TCP), or of a datagram's payload (UDP).
    pub size: usize,
    /// The sender's end.
    pub sent: EndReport,
    /// The receiver's.
    pub received: Reading<EndReport>,
    /// Payload bits per second that reached the receiving application, over the receiver's own period. Without a sink: that
    /// its kernel acknowledged, over the sender's period (TCP).
    pub goodput_bps: Reading<f64>,
    /// Segments sent again, over all streams (TCP).
    pub retransmits: Option<u64>,
    /// What became of what was sent.
    pub ledger: Reading<Ledger>,
}

impl TcpReport {
    /// What happened since `before` was read.
    pub(super) fn since(before: &TcpInfo, now: &TcpInfo) -> Self {
        Self {
            segments: now.data_segs_out.wrapping_sub(before.data_segs_out),
            retransmits: now.total_retrans.wrapping_sub(before.total_retrans),
            retransmitted_bytes: now.bytes_retrans - before.bytes_retrans,
            acked_bytes: now.bytes_acked - before.bytes_acked,
            snd_mss: now.snd_mss,
            pmtu: now.pmtu,
            rtt_us: now.rtt_us,
            min_rtt_us: now.min_rtt_us,
            snd_cwnd: now.snd_cwnd,
        }
    }
}

impl StreamReport {
    fn cpu_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }
}

impl EndReport {
    /// The report of streams, each with the moments of its first and its last byte, if there were any.
    pub(super) fn new(streams: Vec<(StreamReport, Option<(Instant, Instant)>)>, machine: &MachineClock) -> Self {
        let first = streams.iter().filter_map(|(_, moments)| moments.map(|(first, _)| first)).min();
        let last = streams.iter().filter_map(|(_, moments)| moments.map(|(_, last)| last)).max();
        let period = first.zip(last).map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first));
        let streams: Vec<StreamReport> = streams.into_iter().map(|(report, _)| report).collect();
        let bytes = streams.iter().map(|stream| stream.bytes).sum();
        Self {
            period_s: period.as_secs_f64(),
            bytes,
            datagrams: streams.iter().map(|stream| stream.datagrams).sum(),
            cpu_ns_per_byte: per_byte(streams.iter().map(StreamReport::cpu_ns).sum(), bytes),
            machine: machine.time(bytes),
            streams,
        }
    }

    fn sum(&self, of: impl Fn(&StreamReport) -> u64) -> u64 {
        self.streams.iter().map(of).sum()
    }

    /// Bytes that the receiver's kernel has acknowledged, over all streams (TCP, sender).
    fn acked(&self) -> u64 {
        self.sum(|stream| stream.tcp.map_or(0, |tcp| tcp.acked_bytes))
    }

    /// Calls that failed, by errno name, over all streams.
    #[must_use]
    pub fn errors(&self) -> Errors {
        let mut sum = Errors::new();
        for (errno, count) in self.streams.iter().flat_map(|stream| &stream.errors) {
            *sum.entry(errno.clone()).or_default() += count;
        }
        sum
    }
}

/// The machine's CPU times at the beginning.
#[derive(Debug)]
pub(super) struct MachineClock(Reading<CpuTimes>);

impl MachineClock {
    pub(super) fn start() -> Self {
        Self(CpuTimes::read().into())
    }

    fn time(&self, bytes: u64) -> Reading<MachineTime> {
        let since = |earlier: &CpuTimes| -> Result<MachineTime, String> {
            let now = CpuTimes::read().map_err(|error| error.to_string())?;
            let (period, shares) = (now.period_since(earlier), now.since(earlier));
            let shares: Vec<CpuShares> = shares.into_values().map(Reading::into_result).collect::<Result<_, _>>()?;
            let time = |share: fn(&CpuShares) -> f64| whole_nanos(period.mul_f64(shares.iter().map(share).sum()));
            let softirq_ns = time(|cpu| cpu.softirq);
            let busy_ns = time(|cpu| (1.0 - cpu.idle).max(0.0));
            Ok(MachineTime { softirq_ns, busy_ns, softirq_ns_per_byte: per_byte(softirq_ns, bytes) })
        };
        self.0.as_ref().into_result().and_then(since).into()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio to show")]
fn per_byte(ns: u64, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| ns as f64 / bytes as f64)
}

impl Ledger {
    fn new(unit: &str, sent: u64, parts: Vec<(String, u64)>) -> Self {
        let accounted: i128 = parts.iter().map(|(_, count)| i128::from(*count)).sum();
        let residual = i64::try_from(i128::from(sent) - accounted).unwrap_or(i64::MAX);
        Self { unit: unit.into(), sent, parts, residual }
    }

    /// TCP: everything was read, or what was under way when the time was over is told by the kernel's count.
    fn of_tcp(sent: &EndReport, received: Option<&EndReport>) -> Self {
        let acked = sent.acked();
        let mut parts = match received {
            Some(received) => vec![("read".to_owned(), received.bytes)],
            None => vec![("acknowledged".to_owned(), acked)],
        };
        if let Some(received) = received.filter(|received| !received.streams.iter().all(|stream| stream.complete)) {
            parts.push(("acknowledged and not read".into(), acked.saturating_sub(received.bytes)));
            parts.push(("not acknowledged".into(), sent.bytes.saturating_sub(acked.max(received.bytes))));
        }
        Self::new("bytes", sent.bytes, parts)
    }

    /// UDP: what is lost between the ends is the residual.
    fn of_udp(sent: &EndReport, received: &EndReport) -> Self {
        let drops =
            received.sum(|stream| stream.socket_drops.as_ref().and_then(|drops| drops.known().copied()).unwrap_or(0));
        let parts = vec![("read".into(), received.datagrams), ("dropped by full sockets".into(), drops)];
        Self::new("datagrams", sent.datagrams, parts)
    }

    /// What the interface counts, whose bytes have headers and others' packets among them, can't be less than what was sent.
    fn of_interface(sent: &EndReport, counted: &LinkStats) -> Self {
        let of_these = sent.bytes.min(counted.tx_bytes);
        Self::new("bytes", sent.bytes, vec![("transmitted by the interface, headers left out".into(), of_these)])
    }
}

impl Outcome {
    /// Of both ends' reports; `interface` is what the interface counted meanwhile, where nobody else counted.
    pub(super) fn new(
        spec: SocketSpec,
        to: SocketAddr,
        size: usize,
        sent: EndReport,
        received: Reading<EndReport>,
        interface: Option<Reading<LinkStats>>,
    ) -> Self {
        let tcp = spec.protocol == Protocol::Tcp;
        let ledger = match (&received, interface) {
            (Reading::Known(received), _) if tcp => Reading::Known(Ledger::of_tcp(&sent, Some(received))),
            (Reading::Known(received), _) => Reading::Known(Ledger::of_udp(&sent, received)),
            (Reading::NotAvailable { .. }, _) if tcp && !spec.sink => Reading::Known(Ledger::of_tcp(&sent, None)),
            (Reading::NotAvailable { .. }, Some(interface)) => {
                interface.map(|counted| Ledger::of_interface(&sent, &counted))
            }
            (Reading::NotAvailable { why }, None) => Reading::not_available(why),
        };
        let goodput_bps = match &received {
            Reading::Known(received) => bits_per_second(received.bytes, received.period_s),
            Reading::NotAvailable { .. } if tcp && !spec.sink => bits_per_second(sent.acked(), sent.period_s),
            Reading::NotAvailable { why } => Reading::not_available(why),
        };
        let retransmits = tcp.then(|| sent.sum(|stream| stream.tcp.map_or(0, |tcp| tcp.retransmits.into())));
        Self { spec, to, size, sent, received, goodput_bps, retransmits, ledger }
    }

    /// Bytes that arrived for certain: read by the sink, or acknowledged by the peer (TCP without one).
    #[must_use]
    pub fn arrived(&self) -> Reading<u64> {
        match &self.received {
            Reading::Known(received) => Reading::Known(received.bytes),
            Reading::NotAvailable { .. } if self.spec.protocol == Protocol::Tcp && !self.spec.sink => {
                Reading::Known(self.sent.acked())
            }
            Reading::NotAvailable { why } => Reading::not_available(why),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate to show")]
fn bits_per_second(bytes: u64, period_s: f64) -> Reading<f64> {
    if period_s > 0.0 {
        Reading::Known(bytes as f64 * 8.0 / period_s)
    } else {
        Reading::not_available("it arrived in one piece, and took no time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(bytes: u64, streams: Vec<StreamReport>) -> EndReport {
        EndReport {
            period_s: 2.0,
            bytes,
            datagrams: streams.iter().map(|stream| stream.datagrams).sum(),
            cpu_ns_per_byte: None,
            machine: Reading::not_available("planted"),
            streams,
        }
    }

    fn sender(bytes: u64, acked_bytes: u64) -> EndReport {
        let info = TcpInfo { bytes_acked: acked_bytes + 1, total_retrans: 3, ..TcpInfo::default() };
        let tcp = TcpReport::since(&TcpInfo { bytes_acked: 1, ..TcpInfo::default() }, &info);
        end(bytes, vec![StreamReport { bytes, tcp: Some(tcp), complete: true, ..StreamReport::default() }])
    }

    fn receiver(bytes: u64, complete: bool) -> Reading<EndReport> {
        Reading::Known(end(bytes, vec![StreamReport { bytes, complete, ..StreamReport::default() }]))
    }

    fn outcome(spec: SocketSpec, sent: EndReport, received: Reading<EndReport>) -> Outcome {
        Outcome::new(spec, "127.0.0.1:1".parse().unwrap(), 1, sent, received, None)
    }

    fn tcp() -> SocketSpec {
        SocketSpec::new(Protocol::Tcp)
    }

    fn residual(outcome: &Outcome) -> i64 {
        outcome.ledger.known().unwrap().residual
    }

    #[test]
    fn goodput_is_what_was_read_over_the_reader_s_own_time() {
        let outcome = outcome(tcp(), sender(1000, 1000), receiver(1000, true));
        assert_eq!(outcome.goodput_bps, Reading::Known(4000.0));
        assert_eq!((outcome.retransmits, residual(&outcome)), (Some(3), 0));
        let json = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), outcome);
    }

    #[test]
    fn a_byte_that_only_one_end_counted_is_a_residual() {
        assert_eq!(residual(&outcome(tcp(), sender(1000, 1000), receiver(999, true))), 1);
        assert_eq!(residual(&outcome(tcp(), sender(1000, 1000), receiver(1001, true))), -1);
        // Cut off while bytes were under way: the kernel's count fills the gap, but not more than the gap.
        assert_eq!(residual(&outcome(tcp(), sender(1000, 900), receiver(600, false))), 0);
        assert_eq!(residual(&outcome(tcp(), sender(1000, 900), receiver(1100, false))), -100);
        let without =
            outcome(SocketSpec { sink: false, ..tcp() }, sender(1000, 990), Reading::not_available("no sink"));
        assert_eq!((residual(&without), without.arrived()), (10, Reading::Known(990)));
        assert_eq!(without.goodput_bps, Reading::Known(990.0 * 4.0));
    }

    #[test]
    fn datagrams_dropped_by_a_full_socket_are_told_apart_from_those_lost_on_the_way() {
        let datagrams = |datagrams, drops| StreamReport {
            datagrams,
            bytes: datagrams * 10,
            socket_drops: Some(Reading::Known(drops)),
            ..StreamReport::default()
        };
        let (sent, read) = (end(1000, vec![datagrams(100, 0)]), end(700, vec![datagrams(70, 20)]));
        let outcome = outcome(SocketSpec::new(Protocol::Udp), sent, Reading::Known(read));
        let ledger = outcome.ledger.known().unwrap();
        assert_eq!((ledger.sent, ledger.residual), (100, 10));
        assert_eq!(ledger.parts[1], ("dropped by full sockets".to_owned(), 20));
        assert_eq!(outcome.retransmits, None);
    }

    #[test]
    fn without_a_sink_an_interface_that_counted_less_than_was_sent_is_a_residual() {
        let counted = |tx_bytes| LinkStats { tx_bytes, ..LinkStats::default() };
        let sent = end(1000, vec![]);
        assert_eq!(Ledger::of_interface(&sent, &counted(1280)).residual, 0);
        assert_eq!(Ledger::of_interface(&sent, &counted(400)).residual, 600);
    }

    #[test]
    fn the_period_of_an_end_is_from_its_first_byte_to_its_last() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let report = |bytes, user_ns| StreamReport { bytes, user_ns, ..StreamReport::default() };
        let streams = vec![
            (report(100, 50), Some((at(10), at(500)))),
            (report(0, 0), None),
            (report(300, 150), Some((at(5), at(400)))),
        ];
        let end = EndReport::new(streams, &MachineClock::start());
        assert_eq!((end.period_s, end.bytes, end.cpu_ns_per_byte), (0.495, 400, Some(0.5)));
        assert_eq!(EndReport::new(Vec::new(), &MachineClock::start()).cpu_ns_per_byte, None);
    }
}
