//! Packets on their way through a cpumap: what the program gave to it, and what the other CPUs made of that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::counters::{Group, delta_of};
use super::ledger::Account;
use crate::device::Verdicts;
use crate::observe::{Enqueued, Kthread, Xmit};
use crate::reading::Reading;

/// One reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpumapCounters {
    /// What the program did with packets, by CPU.
    pub verdicts: Group<u32, Verdicts>,
    /// Packets given to the queue of a CPU, by the CPU that they came from and the one they went to.
    pub enqueued: Reading<Group<(u32, u32), Enqueued>>,
    /// Packets taken out of the queues, by CPU.
    pub kthreads: Reading<Group<u32, Kthread>>,
    /// Redirects of both programs that failed, by errno name.
    pub redirect_errors: Reading<Group<String, u64>>,
    /// Redirects of the program in the map that failed, by errno name.
    pub remote_errors: Reading<Group<String, u64>>,
}

/// What went through a cpumap between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpumapInterval {
    /// What the program did with packets, by CPU.
    pub verdicts: BTreeMap<u32, Verdicts>,
    /// Packets given to queues.
    pub enqueued: Reading<Enqueues>,
    /// Packets taken out of queues.
    pub kthreads: Reading<Kthreads>,
    /// Redirects of both programs that failed, by errno name.
    pub redirect_errors: Reading<BTreeMap<String, u64>>,
    /// Redirects of the program in the map that failed, by errno name.
    pub remote_errors: Reading<BTreeMap<String, u64>>,
}

/// Packets given to the queues of CPUs (tracepoint `xdp_cpumap_enqueue`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Enqueues {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// By the CPU that they went to, and the CPU that they came from.
    pub to: BTreeMap<u32, BTreeMap<u32, Enqueued>>,
}

/// Packets taken out of queues (tracepoint `xdp_cpumap_kthread`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kthreads {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// By CPU.
    pub cpus: BTreeMap<u32, Kthread>,
}

impl CpumapInterval {
    pub(super) fn between(earlier: &CpumapCounters, later: &CpumapCounters) -> Self {
        let enqueued = delta_of(&earlier.enqueued, &later.enqueued).map(|delta| {
            let mut to: BTreeMap<u32, BTreeMap<u32, Enqueued>> = BTreeMap::new();
            for (&(from, cpu), counts) in delta.rows.iter().filter(|(_, counts)| counts.bulks > 0) {
                to.entry(cpu).or_default().insert(from, *counts);
            }
            Enqueues { period_s: delta.period.as_secs_f64(), to }
        });
        let kthreads = delta_of(&earlier.kthreads, &later.kthreads).map(|delta| Kthreads {
            period_s: delta.period.as_secs_f64(),
            cpus: delta.rows.into_iter().filter(|(_, counts)| counts.batches > 0).collect(),
        });
        let verdicts = later.verdicts.since(&earlier.verdicts).rows;
        Self {
            verdicts: verdicts.into_iter().filter(|(_, verdicts)| *verdicts != Verdicts::default()).collect(),
            enqueued,
            kthreads,
            redirect_errors: errors(&earlier.redirect_errors, &later.redirect_errors),
            remote_errors: errors(&earlier.remote_errors, &later.remote_errors),
        }
    }

    /// What the program did with packets, over all CPUs.
    #[must_use]
    pub fn verdicts(&self) -> Verdicts {
        sum(self.verdicts.values().copied())
    }

    /// Packets lost on their way to a kthread and in it: those that a queue or the memory had no room for.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let queues = self.enqueued.known().map_or(0, |enqueued| enqueued.total().drops);
        queues + self.kthreads.known().map_or(0, |kthreads| kthreads.total().drops)
    }

    /// Redirects to CPUs that failed, by errno name.
    fn own_errors(&self) -> Reading<BTreeMap<String, u64>> {
        self.redirect_errors.clone().and_then(|mut errors| {
            self.remote_errors.as_ref().map(|remote| {
                for (errno, packets) in remote {
                    errors.entry(errno.clone()).and_modify(|all| *all = all.saturating_sub(*packets));
                }
                errors
            })
        })
    }

    /// What became of the packets that the program redirected. `generic` says how the kernel counted (see
    /// [`Enqueued::processed`]); `remote` is whether the map has a program, and what that program redirected.
    #[must_use]
    pub fn accounts(&self, generic: bool, remote: RemoteProgram<'_>) -> Vec<Reading<Account>> {
        let redirected = self.verdicts().redirected;
        let enqueued = self.enqueued.as_ref().map(Enqueues::total);
        let queued = enqueued.clone().map(
            |Enqueued { processed, drops, .. }| {
                if generic { processed } else { processed - drops }
            },
        );
        let to_queues = enqueued.and_then(|enqueued| {
            let queued = if generic { enqueued.processed } else { enqueued.processed - enqueued.drops };
            self.own_errors().map(|errors| {
                // In generic mode a full queue is a failed redirect too.
                let full = if generic { enqueued.drops } else { 0 };
                let parts = [("queued", queued), ("queue full", enqueued.drops)];
                let errors = errors.iter().map(|(errno, packets)| {
                    (errno.as_str(), if errno == "ENOSPC" { packets.saturating_sub(full) } else { *packets })
                });
                Account::new("redirected", redirected, parts.into_iter().chain(errors))
            })
        });
        let kthreads = self.kthreads.as_ref().map(Kthreads::total);
        let taken = queued.and_then(|queued| {
            kthreads.clone().map(|kthreads| Account::new("queued", queued, [("taken by kthreads", kthreads.processed)]))
        });
        let handled = kthreads.clone().and_then(|kthreads| {
            let uncounted = kthreads.processed.saturating_sub(kthreads.pass + kthreads.drop + kthreads.redirect);
            if generic && remote != RemoteProgram::None && uncounted > 0 {
                return Reading::not_available(format!(
                    "before Linux 6.15 the kernel counts no packet that a CPU's program passes in skb mode, and passes those of \
                     a batch behind one that it drops or redirects: {uncounted} of {} are not counted",
                    kthreads.processed
                ));
            }
            let passed = if remote == RemoteProgram::None { kthreads.processed } else { kthreads.pass };
            self.remote_errors.as_ref().map(|errors| {
                // The kernel counts a failed redirect as dropped.
                let failed: u64 = errors.values().sum();
                let parts = [
                    ("passed", passed.saturating_sub(kthreads.drops)),
                    ("without memory", kthreads.drops),
                    ("dropped", kthreads.drop.saturating_sub(failed)),
                    ("redirected", kthreads.redirect),
                ];
                let errors = errors.iter().map(|(errno, packets)| (errno.as_str(), *packets));
                Account::new("taken by kthreads", kthreads.processed, parts.into_iter().chain(errors))
            })
        });
        let mut accounts = vec![to_queues, taken, handled];
        if let RemoteProgram::Redirects(xmit) = remote {
            accounts.push(xmit.clone().and_then(|xmit| {
                let parts = [("transmitted", xmit.sent), ("not taken by the driver", xmit.drops)];
                kthreads.map(|kthreads| Account::new("redirected by kthreads", kthreads.redirect, parts))
            }));
        }
        accounts
    }
}

fn errors(
    earlier: &Reading<Group<String, u64>>,
    later: &Reading<Group<String, u64>>,
) -> Reading<BTreeMap<String, u64>> {
    delta_of(earlier, later).map(|delta| delta.rows.into_iter().filter(|(_, packets)| *packets > 0).collect())
}

/// The program that the map has for the CPUs that packets go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteProgram<'a> {
    /// There is none.
    None,
    /// It drops or passes, or where it redirects to is not counted.
    Some,
    /// It redirects, and this is what was transmitted.
    Redirects(&'a Reading<Xmit>),
}

impl Enqueues {
    /// Over all CPUs.
    #[must_use]
    pub fn total(&self) -> Enqueued {
        sum(self.to.values().flat_map(BTreeMap::values).copied())
    }
}

impl Kthreads {
    /// Over all CPUs.
    #[must_use]
    pub fn total(&self) -> Kthread {
        sum(self.cpus.values().copied())
    }
}

pub(super) fn sum<T: Default + std::ops::AddAssign>(values: impl IntoIterator<Item = T>) -> T {
    values.into_iter().fold(T::default(), |mut sum, value| {
        sum += value;
        sum
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An interval of two seconds with planted counts: CPU 0 received and gave to CPU 1.
    pub(in super::super) fn interval(verdicts: Verdicts, enqueued: Enqueued, kthread: Kthread) -> CpumapInterval {
        let to = [(1, [(0, enqueued)].into())].into();
        CpumapInterval {
            verdicts: [(0, verdicts)].into(),
            enqueued: Reading::Known(Enqueues { period_s: 2.0, to }),
            kthreads: Reading::Known(Kthreads { period_s: 2.0, cpus: [(1, kthread)].into() }),
            redirect_errors: Reading::Known(BTreeMap::new()),
            remote_errors: Reading::Known(BTreeMap::new()),
        }
    }

    fn told(accounts: &[Reading<Account>]) -> Vec<String> {
        let told = accounts.iter().map(|account| {
            let account = account.known().unwrap();
            let parts: Vec<_> = account.parts.iter().map(|part| format!("{} {}", part.packets, part.to)).collect();
            format!("{} {} = {}; {}", account.packets, account.of, parts.join(" + "), account.residual)
        });
        told.collect()
    }

    const VERDICTS: Verdicts = Verdicts { dropped: 7, passed: 3, redirected: 100 };

    #[test]
    fn in_native_mode_a_bulk_has_the_packets_that_the_queue_did_not_take() {
        let enqueued = Enqueued { processed: 98, drops: 8, bulks: 13 };
        let kthread = Kthread { processed: 89, drops: 4, ..Kthread::default() };
        let mut interval = interval(VERDICTS, enqueued, kthread);
        interval.redirect_errors = Reading::Known([("EOVERFLOW".into(), 2)].into());
        assert_eq!(
            told(&interval.accounts(false, RemoteProgram::None)),
            [
                "100 redirected = 90 queued + 8 queue full + 2 EOVERFLOW; 0",
                "90 queued = 89 taken by kthreads; 1",
                "89 taken by kthreads = 85 passed + 4 without memory; 0",
            ]
        );
        assert_eq!(interval.lost(), 12);
    }

    #[test]
    fn in_generic_mode_a_full_queue_is_a_failed_redirect_too() {
        let enqueued = Enqueued { processed: 90, drops: 8, bulks: 98 };
        let kthread = Kthread { processed: 90, pass: 90, ..Kthread::default() };
        let mut interval = interval(VERDICTS, enqueued, kthread);
        interval.redirect_errors = Reading::Known([("ENOSPC".into(), 9), ("EINVAL".into(), 1)].into());
        assert_eq!(
            told(&interval.accounts(true, RemoteProgram::Some))[0],
            "100 redirected = 90 queued + 8 queue full + 1 EINVAL + 1 ENOSPC; 0"
        );
    }

    #[test]
    fn what_older_kernels_do_not_count_in_generic_mode_is_no_loss() {
        let enqueued = Enqueued { processed: 16, drops: 0, bulks: 16 };
        let kthread = Kthread { processed: 16, drop: 2, ..Kthread::default() };
        let interval = interval(VERDICTS, enqueued, kthread);
        let Reading::NotAvailable { why } = &interval.accounts(true, RemoteProgram::Some)[2] else { panic!("counted") };
        assert!(why.contains("14 of 16 are not counted"), "{why}");
        assert_eq!(
            told(&interval.accounts(false, RemoteProgram::Some))[2],
            "16 taken by kthreads = 0 passed + 2 dropped; 14"
        );
    }

    #[test]
    fn a_failed_redirect_of_the_remote_program_is_none_of_the_first_s_and_no_drop() {
        let enqueued = Enqueued { processed: 100, drops: 0, bulks: 13 };
        let kthread = Kthread { processed: 100, drop: 30, redirect: 70, ..Kthread::default() };
        let mut interval = interval(VERDICTS, enqueued, kthread);
        interval.redirect_errors = Reading::Known([("ENETDOWN".into(), 20)].into());
        interval.remote_errors = Reading::Known([("ENETDOWN".into(), 20)].into());
        let xmit = Reading::Known(Xmit { sent: 60, drops: 9, ..Xmit::default() });
        assert_eq!(
            told(&interval.accounts(false, RemoteProgram::Redirects(&xmit))),
            [
                "100 redirected = 100 queued; 0",
                "100 queued = 100 taken by kthreads; 0",
                "100 taken by kthreads = 0 passed + 10 dropped + 70 redirected + 20 ENETDOWN; 0",
                "70 redirected by kthreads = 60 transmitted + 9 not taken by the driver; 1",
            ]
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_leaves_its_account_out_and_no_other() {
        let mut interval = interval(VERDICTS, Enqueued::default(), Kthread::default());
        interval.kthreads = Reading::not_available("no tracepoint");
        let accounts = interval.accounts(false, RemoteProgram::None);
        assert_eq!(accounts[0].known().unwrap().residual, 100);
        assert_eq!(accounts[1..], [(); 2].map(|()| Reading::not_available("no tracepoint")));
        let json = serde_json::to_string(&interval).unwrap();
        assert_eq!(serde_json::from_str::<CpumapInterval>(&json).unwrap(), interval);
    }
}
