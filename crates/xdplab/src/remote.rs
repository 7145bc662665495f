//! What packets cost the CPUs that took them from the device's, and what limited a run. Pure: it sees what was observed.

use serde::{Deserialize, Serialize};

use crate::guard::REFUSED_WARN;
use crate::host::CpuShares;
use crate::observed::{Observed, Onwards};
use crate::reading::Reading;
use crate::stats::{self, Interval, Level};
use crate::topology::Placement;
use crate::units::percent_text;

/// From this share of its time on a CPU or a thread counts as saturated.
pub(crate) const SATURATED: f64 = 0.95;
/// What limits where packets find the Rx ring of a socket full.
pub(crate) const RX_RING_FULL: &str = "the AF_XDP thread, whose Rx ring was full at times";
/// What limits where sockets drop packets for want of a frame to put them into.
pub(crate) const FILL_RING_EMPTY: &str =
    "the AF_XDP thread, which left the fill ring empty at times, or packets too long for a frame";

/// What the packets of a variant took of another CPU's time, round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteTime {
    /// Index of the variant in [`crate::run::Plan::variants`].
    pub variant: u16,
    /// What took the packets.
    pub by: RemoteBy,
    /// Each round; or why there is none.
    pub rounds: Reading<Vec<RemoteRound>>,
}

/// What takes packets on another CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteBy {
    /// Kernel threads of cpumaps, on these CPUs.
    Kthreads(Vec<u32>),
    /// The thread of AF_XDP sockets.
    AfXdp {
        /// Its CPU.
        cpu: Option<u32>,
        /// The share of the run in which it was busy, with the packets of all variants.
        share: Option<f64>,
    },
}

/// A round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRound {
    /// Nanoseconds that the threads ran for the variant's packets, softirqs that interrupted them included.
    pub busy_ns: u64,
    /// Packets that they took.
    pub packets: u64,
}

/// What a packet of a variant costs another CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteCost {
    /// What took it, e.g. `kthread on CPU 0`.
    pub by: String,
    /// Run time by packet, in ns: the mean of the rounds.
    pub ns_per_packet: f64,
    /// Student's interval over the rounds; or why there is none.
    pub interval: Reading<Interval>,
    /// Nanoseconds that the threads ran for it, over all rounds.
    pub busy_ns: u64,
    /// Packets that they took.
    pub packets: u64,
}

impl RemoteBy {
    fn name(&self) -> String {
        match self {
            Self::Kthreads(cpus) => match cpus.as_slice() {
                [cpu] => format!("kthread on CPU {cpu}"),
                cpus => {
                    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
                    format!("kthreads on CPUs {}", cpus.join(", "))
                }
            },
            Self::AfXdp { cpu: Some(cpu), .. } => format!("AF_XDP thread on CPU {cpu}"),
            Self::AfXdp { cpu: None, .. } => "AF_XDP thread".into(),
        }
    }
}

impl RemoteTime {
    /// What a packet costs.
    #[must_use]
    pub fn cost(&self, level: Level) -> Reading<RemoteCost> {
        self.rounds.as_ref().and_then(|rounds| {
            let rounds: Vec<RemoteRound> = rounds.iter().copied().filter(|round| round.packets > 0).collect();
            let costs: Vec<f64> = rounds.iter().map(|round| round.busy_ns as f64 / round.packets as f64).collect();
            let Some(ns_per_packet) = stats::mean(&costs) else {
                return Reading::not_available("no packet was taken there");
            };
            let interval = stats::mean_interval(&costs, level).map_err(|_reason| {
                format!("{} round with packets, and it takes two to see what they scatter", costs.len())
            });
            Reading::Known(RemoteCost {
                by: self.by.name(),
                ns_per_packet,
                interval: interval.into(),
                busy_ns: rounds.iter().map(|round| round.busy_ns).sum(),
                packets: rounds.iter().map(|round| round.packets).sum(),
            })
        })
    }
}

/// What limited the rate of a run whose variants hand packets to other CPUs: the first that holds of a queue or ring that more
/// than 1 % of the packets found full, a thread or CPU without time left, the device's CPU, and the generator. `None` where no variant does.
#[must_use]
pub fn limiter(observed: &Observed) -> Option<Reading<String>> {
    if observed.remote.is_empty() {
        return None;
    }
    let overflowed = observed.ledger.onwards.as_ref().and_then(overflowed);
    let limiter = overflowed.or_else(|| saturated(observed));
    Some(limiter.map_or_else(|| device(observed), Reading::Known))
}

/// What had no room, where that met more than a few packets.
fn overflowed(onwards: &Onwards) -> Option<String> {
    onwards.refused().filter(|(refused, handed_on)| *refused as f64 > REFUSED_WARN * *handed_on as f64)?;
    let sockets = onwards.sockets.as_ref().and_then(Reading::known);
    let queues = onwards.enqueued.as_ref().and_then(Reading::known);
    if sockets.is_some_and(|sockets| sockets.ring_full() > 0) {
        return Some(RX_RING_FULL.into());
    }
    if sockets.is_some_and(|sockets| sockets.dropped() > 0) {
        return Some(FILL_RING_EMPTY.into());
    }
    queues.filter(|queues| queues.drops > 0).map(|_| "the remote CPU, whose queue was full at times".into())
}

/// A thread or CPU that took packets and had no time left.
fn saturated(observed: &Observed) -> Option<String> {
    let shares = observed.cpu_shares.known()?;
    let no_idle_time = |cpu: &u32| {
        let shares = of_cpu(shares, *cpu).filter(|shares| shares.idle <= 1.0 - SATURATED)?;
        Some(format!("remote CPU {cpu}, which had no idle time: {}", spent(&shares)))
    };
    observed.remote.iter().find_map(|time| match &time.by {
        RemoteBy::Kthreads(cpus) => cpus.iter().find_map(no_idle_time),
        // It looks for packets even when there are none, so that its CPU may never be idle.
        RemoteBy::AfXdp { share, .. } => share
            .filter(|share| *share >= SATURATED)
            .map(|share| format!("the AF_XDP thread, {} busy", percent_text(share))),
    })
}

/// The device's CPU, or whoever sends.
fn device(observed: &Observed) -> Reading<String> {
    if let Placement::Same { cpu } = observed.placement.placement {
        return Reading::Known(format!("CPU {cpu}, which the generator and the device share"));
    }
    let packets = observed.cpu_packets.iter().enumerate().max_by_key(|(_, packets)| **packets);
    let cpu = packets.and_then(|(cpu, _)| u32::try_from(cpu).ok()).unwrap_or(0);
    observed.cpu_shares.as_ref().and_then(|shares| match of_cpu(shares, cpu) {
        Some(shares) if shares.idle <= 1.0 - SATURATED => {
            Reading::Known(format!("RX CPU {cpu}, which had no idle time: {}", spent(&shares)))
        }
        Some(shares) => {
            Reading::Known(format!("the sender: RX CPU {cpu} was idle for {} of its time", percent_text(shares.idle)))
        }
        None => Reading::not_available(format!("where the time of CPU {cpu} went is not known")),
    })
}

fn of_cpu(shares: &[(u32, Reading<CpuShares>)], cpu: u32) -> Option<CpuShares> {
    shares.iter().find(|(of, _)| *of == cpu)?.1.known().copied()
}

fn spent(shares: &CpuShares) -> String {
    let CpuShares { user, system, softirq, steal, .. } = shares;
    format!(
        "{} in threads, {} in softirq, {} stolen",
        percent_text(user + system),
        percent_text(*softirq),
        percent_text(*steal)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(rounds: &[(u64, u64)]) -> RemoteTime {
        let rounds = rounds.iter().map(|&(busy_ns, packets)| RemoteRound { busy_ns, packets });
        RemoteTime { variant: 0, by: RemoteBy::Kthreads(vec![0]), rounds: Reading::Known(rounds.collect()) }
    }

    #[test]
    fn the_cost_is_the_mean_of_the_rounds_with_their_scatter() {
        let cost = time(&[(1_000, 10), (2_400, 20), (0, 0), (1_100, 10)]).cost(Level::default());
        let cost = cost.known().unwrap();
        assert_eq!((cost.by.as_str(), cost.busy_ns, cost.packets), ("kthread on CPU 0", 4_500, 40));
        assert!((cost.ns_per_packet - 110.0).abs() < 1e-9, "{cost:?}");
        let interval = cost.interval.known().unwrap();
        // t with 2 degrees of freedom, 4.303, times 10 / sqrt(3).
        assert!((interval.high - 134.84).abs() < 0.01 && (interval.low - 85.16).abs() < 0.01, "{interval:?}");
    }

    #[test]
    fn one_round_has_no_interval_and_none_has_no_cost() {
        let one = time(&[(1_000, 10)]).cost(Level::default());
        let one = one.known().unwrap();
        assert_eq!(one.ns_per_packet, 100.0);
        let why = one.interval.clone().into_result().unwrap_err();
        assert!(why.contains("it takes two"), "{why}");
        assert_eq!(time(&[(5, 0)]).cost(Level::default()), Reading::not_available("no packet was taken there"));
        let unknown = RemoteTime { rounds: Reading::not_available("no such thread"), ..time(&[]) };
        assert_eq!(unknown.cost(Level::default()), Reading::not_available("no such thread"));
    }

    #[test]
    fn a_name_says_what_takes_packets_where() {
        assert_eq!(RemoteBy::Kthreads(vec![2, 5]).name(), "kthreads on CPUs 2, 5");
        assert_eq!(RemoteBy::AfXdp { cpu: Some(1), share: None }.name(), "AF_XDP thread on CPU 1");
    }
}
