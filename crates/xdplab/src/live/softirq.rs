//! How long the CPUs that received were busy in softirq: what the packets cost, where their rate was set by the sender.
//!
//! The time is the kernel's own account (`/proc/stat`), which costs nothing. A tracepoint at each end of the softirq would
//! be exact, and on veth adds some nanoseconds to each packet.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::interval::Received;
use super::receiver::SATURATED;
use crate::host::{CpuShares, CpuTimes};
use crate::netlink::Netdev;
use crate::reading::Reading;
use crate::units::{Nanos, PacketsPerSec};

/// The account is in steps of 10 ms (`USER_HZ`) and usually sampled at the timer tick: less than this is too coarse.
const LEAST_BUSY: Duration = Duration::from_millis(200);

/// Time in softirq, every kind and every device's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftirqTime {
    /// Nanoseconds by CPU, of those that received.
    pub busy_ns: BTreeMap<u32, u64>,
    /// Their sum divided by the packets received.
    pub busy_ns_per_packet: Nanos,
    /// How each of these CPUs spent its time.
    #[serde(default)]
    pub cpus: BTreeMap<u32, BusyCpu>,
}

/// A CPU that received packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyCpu {
    /// Its time in softirq divided by the packets that it received; absent where the time is too little for an account in
    /// ticks.
    pub ns_per_packet: Option<Nanos>,
    /// The share of its time in softirq, 0 to 1.
    pub softirq: f64,
    /// The share of its time without work, 0 to 1.
    pub idle: f64,
}

impl Reading<SoftirqTime> {
    /// What limited the rate where nothing beside the CPUs that received did: one of them, or the sender.
    pub(super) fn limiter(&self, received: &Received) -> Reading<String> {
        let share = |ns: u64| Duration::from_nanos(ns).as_secs_f64() / received.period_s;
        self.as_ref().map(|SoftirqTime { busy_ns, .. }| match busy_ns.iter().find(|(_, ns)| share(**ns) >= SATURATED) {
            Some((cpu, ns)) => format!("RX CPU {cpu}, {:.0} % busy", share(*ns) * 100.0),
            None => "the sender: no queue was full and no CPU saturated".into(),
        })
    }
}

/// The account at the start.
#[derive(Debug)]
pub(super) struct SoftirqAccount(Reading<CpuTimes>);

impl SoftirqAccount {
    /// Opens it for the packets of these interfaces.
    pub(super) fn open(ifindexes: &[u32]) -> Self {
        let napis = Netdev::open().and_then(|mut netdev| {
            ifindexes.iter().map(|ifindex| netdev.napis(*ifindex)).collect::<crate::error::Result<Vec<_>>>()
        });
        Self(match napis.map(|napis| napis.concat()) {
            Ok(napis) if napis.iter().any(|napi| napi.pid.is_some()) => {
                Reading::not_available("NAPI runs in threads of its own, outside softirq")
            }
            Ok(_) => CpuTimes::read().into(),
            Err(error) => Reading::not_available(format!("where NAPI runs is unknown: {error}")),
        })
    }

    /// The time since then.
    pub(super) fn close(&self, received: &Received) -> Reading<SoftirqTime> {
        let since = |earlier: &CpuTimes| {
            let later = CpuTimes::read().map_err(|error| error.to_string())?;
            of_shares(&later.since(earlier), later.period_since(earlier), received)
        };
        self.0.as_ref().into_result().and_then(since).into()
    }
}

fn of_shares(
    shares: &BTreeMap<u32, Reading<CpuShares>>,
    period: Duration,
    received: &Received,
) -> Result<SoftirqTime, String> {
    let shares_of = |cpu: &u32| {
        let shares = shares.get(cpu).ok_or("a CPU that received is offline")?;
        Ok::<_, String>((*cpu, *shares.as_ref().into_result()?))
    };
    let shares: BTreeMap<u32, CpuShares> = received.cpus.keys().map(shares_of).collect::<Result<_, _>>()?;
    let busy = |shares: &CpuShares| period.mul_f64(shares.softirq);
    let sum: Duration = shares.values().map(busy).sum();
    if sum < LEAST_BUSY {
        return Err(format!("{:.2} s in softirq are too few for an account in ticks", sum.as_secs_f64()));
    }
    let per_packet = |packets, busy| PacketsPerSec::of(packets, busy).and_then(PacketsPerSec::to_nanos);
    let nanos = |busy: Duration| u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX);
    let cpu = |(cpu, shares): (&u32, &CpuShares)| {
        let packets = received.cpus.get(cpu).map_or(0, |counts| counts.packets);
        let ns_per_packet = Some(busy(shares)).filter(|busy| *busy >= LEAST_BUSY);
        let ns_per_packet = ns_per_packet.and_then(|busy| per_packet(packets, busy));
        (*cpu, BusyCpu { ns_per_packet, softirq: shares.softirq, idle: shares.idle })
    };
    Ok(SoftirqTime {
        busy_ns: shares.iter().map(|(cpu, shares)| (*cpu, nanos(busy(shares)))).collect(),
        busy_ns_per_packet: per_packet(received.packets, sum).ok_or("no packet was received")?,
        cpus: shares.iter().map(cpu).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Counts;

    fn received(packets: u64, cpus: &[u32]) -> Received {
        let counts = Counts { packets, aborted: 0 };
        Received {
            period_s: 10.0,
            packets,
            aborted: 0,
            pps: None,
            ns_per_packet: None,
            rx_queues: BTreeMap::new(),
            cpus: cpus.iter().map(|cpu| (*cpu, counts)).collect(),
        }
    }

    fn shares(softirq: &[f64]) -> BTreeMap<u32, Reading<CpuShares>> {
        let shares = |softirq| CpuShares { user: 0.0, system: 0.0, idle: 1.0 - softirq, irq: 0.0, softirq, steal: 0.0 };
        (0..).zip(softirq.iter().map(|softirq| Reading::Known(shares(*softirq)))).collect()
    }

    #[test]
    fn only_the_cpus_that_received_count() {
        let period = Duration::from_secs(10);
        let time = of_shares(&shares(&[0.25, 0.75, 0.5]), period, &received(50_000_000, &[0, 2])).unwrap();
        assert_eq!(time.busy_ns, BTreeMap::from([(0, 2_500_000_000), (2, 5_000_000_000)]));
        assert_eq!(time.busy_ns_per_packet, Nanos(150.0));
        let of_its_own = |ns| BusyCpu { ns_per_packet: Some(Nanos(ns)), softirq: ns / 200.0, idle: 1.0 - ns / 200.0 };
        assert_eq!(time.cpus, BTreeMap::from([(0, of_its_own(50.0)), (2, of_its_own(100.0))]));
    }

    #[test]
    fn a_cpu_that_had_no_time_left_is_the_limiter_and_else_the_sender() {
        let limiter = |busy: &[(u32, u64)]| {
            let time = SoftirqTime {
                busy_ns: busy.iter().copied().collect(),
                busy_ns_per_packet: Nanos(1.0),
                cpus: [].into(),
            };
            Reading::Known(time).limiter(&received(1, &[])).into_result().unwrap()
        };
        assert_eq!(limiter(&[(0, 3_000_000_000), (2, 9_900_000_000)]), "RX CPU 2, 99 % busy");
        assert_eq!(limiter(&[(0, 9_000_000_000)]), "the sender: no queue was full and no CPU saturated");
    }

    #[test]
    fn an_account_that_is_too_coarse_or_incomplete_is_none() {
        let why = |softirq: &[f64], packets, cpus: &[u32]| {
            of_shares(&shares(softirq), Duration::from_secs(10), &received(packets, cpus)).unwrap_err()
        };
        assert!(why(&[0.01], 1_000_000, &[0]).contains("0.10 s in softirq are too few"));
        assert!(why(&[0.5], 0, &[]).contains("too few"));
        assert!(why(&[0.5], 10, &[0, 1]).contains("offline"));
    }
}
