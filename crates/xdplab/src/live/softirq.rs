//! How long the CPUs that received were busy in softirq: what the packets cost, where their rate was set by the sender.
//!
//! The time is the kernel's own account (`/proc/stat`), which costs nothing. A tracepoint at each end of the softirq would
//! be exact, and on veth adds some nanoseconds to each packet.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::interval::Received;
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
}

/// The account at the start.
#[derive(Debug)]
pub(super) struct SoftirqAccount(Reading<CpuTimes>);

impl SoftirqAccount {
    /// Opens it for the packets of an interface.
    pub(super) fn open(ifindex: u32) -> Self {
        Self(match Netdev::open().and_then(|mut netdev| netdev.napis(ifindex)) {
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
    let busy_of = |cpu: &u32| {
        let shares = shares.get(cpu).ok_or("a CPU that received is offline")?;
        let shares = shares.as_ref().into_result()?;
        Ok::<_, String>((*cpu, period.mul_f64(shares.softirq)))
    };
    let busy: BTreeMap<u32, Duration> = received.cpus.keys().map(busy_of).collect::<Result<_, _>>()?;
    let sum: Duration = busy.values().sum();
    if sum < LEAST_BUSY {
        return Err(format!("{:.2} s in softirq are too few for an account in ticks", sum.as_secs_f64()));
    }
    let per_packet = PacketsPerSec::of(received.packets, sum).and_then(PacketsPerSec::to_nanos);
    Ok(SoftirqTime {
        busy_ns: busy
            .into_iter()
            .map(|(cpu, busy)| (cpu, u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX)))
            .collect(),
        busy_ns_per_packet: per_packet.ok_or("no packet was received")?,
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
