//! The other CPUs: how long they are busy with the packets of each variant, round by round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::device::{Handling, SlicedDevice, VariantSpec, XskSockets};
use crate::host::ThreadClock;
use crate::reading::Reading;
use crate::remote::{RemoteBy, RemoteRound, RemoteTime};
use crate::run::Plan;
use crate::units::whole_nanos;

/// What a round needs to be told of it.
pub(super) struct Round<'a> {
    pub(super) device: &'a SlicedDevice,
    pub(super) sockets: Option<&'a XskSockets>,
    /// Packets that found the queue of a cpumap full, by the map's id.
    pub(super) queue_drops: Reading<BTreeMap<u32, u64>>,
}

/// The variants that hand packets to other CPUs; the baseline's control is none of them.
pub(super) struct Remotes(Vec<Remote>);

struct Remote {
    time: RemoteTime,
    source: Source,
}

enum Source {
    /// The kthreads of a cpumap live as long as a round.
    Kthreads,
    /// The thread of sockets lives on: its run time for these and the packets that it took before the round.
    Socket(Handling, Duration, u64),
}

impl Remotes {
    pub(super) fn of(plan: &Plan) -> Self {
        const CONTROL: u16 = 1;
        let variants = (0u16..).zip(plan.variants()).filter(|(index, _)| *index != CONTROL);
        Self(variants.filter_map(|(index, variant)| Remote::of(index, &variant)).collect())
    }

    /// Reads what threads did in a round that is over, and whose packets have all been taken.
    pub(super) fn close(&mut self, round: &Round<'_>) {
        if self.0.is_empty() {
            return;
        }
        let kthreads = ThreadClock::of_cpumaps();
        for Remote { time, source } in &mut self.0 {
            let this = match source {
                Source::Kthreads => of_kthreads(time.variant, round, &kthreads),
                Source::Socket(handling, busy, packets) => {
                    of_socket(handling, round.sockets).map(|(busy_now, packets_now)| {
                        let of_round = RemoteRound {
                            busy_ns: whole_nanos(busy_now.saturating_sub(*busy)),
                            packets: packets_now - *packets,
                        };
                        (*busy, *packets) = (busy_now, packets_now);
                        of_round
                    })
                }
            };
            let before = std::mem::replace(&mut time.rounds, Reading::Known(Vec::new()));
            time.rounds = before.and_then(|mut rounds| {
                this.map(|this| {
                    rounds.push(this);
                    rounds
                })
            });
        }
    }

    /// Puts down the share of the run in which the thread of sockets was busy.
    pub(super) fn thread_was_busy(&mut self, of_run: f64) {
        for Remote { time, .. } in &mut self.0 {
            if let RemoteBy::AfXdp { share, .. } = &mut time.by {
                *share = Some(of_run);
            }
        }
    }

    pub(super) fn times(&self) -> Vec<RemoteTime> {
        self.0.iter().map(|remote| remote.time.clone()).collect()
    }
}

impl Remote {
    fn of(variant: u16, spec: &VariantSpec) -> Option<Self> {
        let (by, source) = match spec {
            VariantSpec::Cpumap(spec) => {
                let cpus: BTreeSet<u32> = spec.cpus.iter().copied().collect();
                (RemoteBy::Kthreads(cpus.into_iter().collect()), Source::Kthreads)
            }
            VariantSpec::Xsk(spec) => {
                let by = RemoteBy::AfXdp { cpu: spec.cpu, share: None };
                (by, Source::Socket(spec.handling(), Duration::ZERO, 0))
            }
            VariantSpec::Builtin(_) | VariantSpec::Redirect(_) | VariantSpec::Object(_) => return None,
        };
        Some(Self { time: RemoteTime { variant, by, rounds: Reading::Known(Vec::new()) }, source })
    }
}

/// The kthreads of all copies of a variant, for all of their lives.
fn of_kthreads(
    variant: u16,
    round: &Round<'_>,
    kthreads: &Reading<BTreeMap<(u32, u32), ThreadClock>>,
) -> Reading<RemoteRound> {
    let mut sum = RemoteRound { busy_ns: 0, packets: 0 };
    for copy in round.device.copies(variant) {
        let Some(map_id) = copy.cpumap_id() else { continue };
        let threads = kthreads.as_ref().and_then(|kthreads| {
            let threads: Vec<_> = kthreads.range((map_id, 0)..=(map_id, u32::MAX)).map(|(_, thread)| thread).collect();
            if threads.is_empty() {
                return Reading::not_available(format!("there is no kthread of the cpumap with id {map_id}"));
            }
            threads.into_iter().map(ThreadClock::run_time).sum::<crate::error::Result<Duration>>().into()
        });
        let packets = copy.handed_on().and_then(|handed_on| {
            let full = round.queue_drops.as_ref().map(|drops| drops.get(&map_id).copied().unwrap_or(0));
            full.map(|full| handed_on.to_cpus.saturating_sub(full))
        });
        match threads.and_then(|busy| packets.map(|packets| (busy, packets))) {
            Reading::Known((busy, packets)) => {
                sum.busy_ns += whole_nanos(busy);
                sum.packets += packets;
            }
            Reading::NotAvailable { why } => return Reading::NotAvailable { why },
        }
    }
    Reading::Known(sum)
}

/// The run time for the sockets that are handled so, and the packets that they received.
fn of_socket(handling: &Handling, sockets: Option<&XskSockets>) -> Reading<(Duration, u64)> {
    let Some(sockets) = sockets else { return Reading::not_available("there is no socket") };
    let busy = sockets.busy(handling);
    Reading::from(sockets.readings()).map(|readings| {
        let handled = sockets.spec().sockets.iter().zip(readings).filter(|(socket, _)| *socket == handling);
        (busy, handled.map(|(_, reading)| reading.counts.rx_packets).sum())
    })
}
