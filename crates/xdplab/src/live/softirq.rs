//! How long the CPUs that received were busy in softirq: what the packets cost, where their rate was set by the sender.
//!
//! The time is the kernel's own account (`/proc/stat`), which costs nothing. A tracepoint at each end of the softirq would
//! be exact, and on veth adds some nanoseconds to each packet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::cpu_cost::CpuCost;
use super::interval::Received;
use crate::error::Result;
use crate::host::{CpuShares, CpuTimes, ThreadClock};
use crate::netlink::{Netdev, Rtnl};
use crate::reading::Reading;
use crate::remote::SATURATED;
use crate::topology::Sysfs;
use crate::units::{Nanos, PacketsPerSec, percent_text, whole_nanos};

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
    fn limiter(&self) -> Reading<String> {
        self.as_ref().map(|SoftirqTime { cpus, .. }| {
            let busiest = cpus.iter().max_by(|(_, one), (_, other)| one.softirq.total_cmp(&other.softirq));
            match busiest {
                Some((cpu, busy)) if busy.softirq >= SATURATED => {
                    format!("RX CPU {cpu}: {} of its time in softirq", percent_text(busy.softirq))
                }
                Some((cpu, busy)) if busy.idle <= 1.0 - SATURATED => {
                    format!(
                        "RX CPU {cpu}: no idle time, {} in softirq and the rest in other work",
                        percent_text(busy.softirq)
                    )
                }
                Some((cpu, busy)) => {
                    format!("the sender: RX CPU {cpu} was idle for {} of its time", percent_text(busy.idle))
                }
                None => "the sender: no packet came".into(),
            }
        })
    }
}

/// What receiving took.
#[derive(Clone, Debug)]
pub(super) struct RxCost {
    pub(super) softirq: Reading<SoftirqTime>,
    /// The threads that poll NAPI, where softirqs do not.
    pub(super) threads: Option<Reading<CpuCost>>,
}

impl RxCost {
    /// What limited the rate where nothing beside receiving did: the CPUs or threads that did it, or the sender.
    pub(super) fn limiter(&self) -> Reading<String> {
        let Some(threads) = &self.threads else { return self.softirq.limiter() };
        threads.as_ref().map(|cost| {
            let to_spare =
                || format!("the sender: {} of its time the {} slept", percent_text(1.0 - cost.share), cost.role);
            cost.saturated().unwrap_or_else(to_spare)
        })
    }
}

/// The account at the start.
#[derive(Debug)]
pub(super) struct SoftirqAccount {
    times: Reading<CpuTimes>,
    threads: Vec<(ThreadClock, Reading<Duration>)>,
    opened: Instant,
}

impl SoftirqAccount {
    /// Opens it for the packets of these interfaces.
    pub(super) fn open(ifindexes: &[u32]) -> Self {
        let (times, pids) = match napi_threads(ifindexes) {
            Ok(pids) if pids.is_empty() => (CpuTimes::read().into(), pids),
            Ok(pids) => (Reading::not_available("NAPI runs in threads of its own, outside softirq"), pids),
            Err(error) => (Reading::not_available(format!("where NAPI runs is unknown: {error}")), Vec::new()),
        };
        let clocks = pids.into_iter().map(ThreadClock::of_process);
        let threads = clocks.map(|clock| (clock.clone(), clock.run_time().into())).collect();
        Self { times, threads, opened: Instant::now() }
    }

    /// The time since then.
    pub(super) fn close(&self, received: &Received) -> RxCost {
        let since = |earlier: &CpuTimes| {
            let later = CpuTimes::read().map_err(|error| error.to_string())?;
            of_shares(&later.since(earlier), later.period_since(earlier), received)
        };
        let softirq = self.times.as_ref().into_result().and_then(since).into();
        let threads = (!self.threads.is_empty()).then(|| self.close_threads(received.packets));
        RxCost { softirq, threads }
    }

    /// All threads together, with the share of the busiest.
    fn close_threads(&self, packets: u64) -> Reading<CpuCost> {
        let period = self.opened.elapsed();
        let busy = |(clock, begin): &(ThreadClock, Reading<Duration>)| {
            let now: Reading<Duration> = clock.run_time().into();
            now.and_then(|now| begin.clone().map(|begin| now.saturating_sub(begin))).into_result()
        };
        let busy: Reading<Vec<Duration>> = self.threads.iter().map(busy).collect::<Result<_, _>>().into();
        busy.map(|busy| {
            let role =
                if busy.len() == 1 { "NAPI thread".into() } else { format!("busiest of {} NAPI threads", busy.len()) };
            let busiest = busy.iter().max().copied().unwrap_or_default();
            let share = CpuCost::of(String::new(), busiest, period, packets).share;
            CpuCost { share, ..CpuCost::of(role, busy.iter().sum(), period, packets) }
        })
    }
}

/// The threads that poll NAPI of these interfaces; none where softirqs do.
fn napi_threads(ifindexes: &[u32]) -> Result<Vec<u32>> {
    let napis = Netdev::open()
        .and_then(|mut netdev| ifindexes.iter().map(|ifindex| netdev.napis(*ifindex)).collect::<Result<Vec<_>>>());
    match napis {
        Ok(napis) => Ok(napis.concat().iter().filter_map(|napi| napi.pid).collect()),
        // Before Linux 6.8 the kernel does not tell which threads, but whether there are any.
        Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EOPNOTSUPP)) => {
            if any_threaded(ifindexes)? {
                Err(error)
            } else {
                Ok(Vec::new())
            }
        }
        Err(error) => Err(error),
    }
}

/// Whether NAPI of any of these interfaces runs in threads (`threaded`, Linux 5.12 and later).
fn any_threaded(ifindexes: &[u32]) -> Result<bool> {
    let (sysfs, mut rtnl) = (Sysfs::mount()?, Rtnl::open()?);
    let threaded = ifindexes.iter().map(|ifindex| {
        let name = rtnl.link_by_index(*ifindex)?.name;
        Ok(sysfs.read(&format!("class/net/{name}/threaded"))? != "0")
    });
    Ok(threaded.collect::<Result<Vec<_>>>()?.contains(&true))
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
    let cpu = |(cpu, shares): (&u32, &CpuShares)| {
        let packets = received.cpus.get(cpu).map_or(0, |counts| counts.packets);
        let ns_per_packet = Some(busy(shares)).filter(|busy| *busy >= LEAST_BUSY);
        let ns_per_packet = ns_per_packet.and_then(|busy| per_packet(packets, busy));
        (*cpu, BusyCpu { ns_per_packet, softirq: shares.softirq, idle: shares.idle })
    };
    Ok(SoftirqTime {
        busy_ns: shares.iter().map(|(cpu, shares)| (*cpu, whole_nanos(busy(shares)))).collect(),
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
        let limiter = |busy: &[(u32, f64, f64)]| {
            let cpu = |&(cpu, softirq, idle)| (cpu, BusyCpu { ns_per_packet: None, softirq, idle });
            let time = SoftirqTime {
                busy_ns: BTreeMap::new(),
                busy_ns_per_packet: Nanos(1.0),
                cpus: busy.iter().map(cpu).collect(),
            };
            Reading::Known(time).limiter().into_result().unwrap()
        };
        assert_eq!(limiter(&[(0, 0.3, 0.7), (3, 0.97, 0.03)]), "RX CPU 3: 97 % of its time in softirq");
        assert_eq!(limiter(&[(3, 0.5, 0.01)]), "RX CPU 3: no idle time, 50 % in softirq and the rest in other work");
        assert_eq!(limiter(&[(3, 0.3, 0.7)]), "the sender: RX CPU 3 was idle for 70 % of its time");
        assert_eq!(limiter(&[]), "the sender: no packet came");
    }

    #[test]
    fn threads_that_poll_limit_if_the_busiest_has_no_time_left() {
        let softirq = Reading::not_available("NAPI runs in threads of its own, outside softirq");
        let limiter = |busy| {
            let cost = CpuCost::of("NAPI thread".into(), Duration::from_millis(busy), Duration::from_secs(1), 1_000);
            let rx = RxCost { softirq: softirq.clone(), threads: Some(Reading::Known(cost)) };
            rx.limiter().into_result().unwrap()
        };
        assert_eq!(limiter(970), "NAPI thread, 97 % busy");
        assert_eq!(limiter(400), "the sender: 60 % of its time the NAPI thread slept");
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
