//! Who watches a run: observers on the device, and where programs hand packets on, on what takes those.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::thread::sleep;
use std::time::Instant;

use super::{DRAIN_EVERY, SETTLE_DEADLINE};
use crate::device::HandedOn;
use crate::error::Result;
use crate::netlink::XdpMode;
use crate::observe::{CpumapObserver, Enqueued, Figure, Observers, Watch};
use crate::observed::{Onwards, Sockets};
use crate::reading::Reading;
use crate::run::Plan;

/// The observers of a run; they outlive what is attached.
pub(crate) struct Witnesses {
    pub(crate) observers: Observers,
    /// Where a variant redirects to CPUs. It sees every cpumap of the machine, and what others do shows as a residual.
    cpumaps: Option<CpumapObserver>,
    /// A variant of ours hands packets on.
    hands_on: bool,
    mode: XdpMode,
}

impl Witnesses {
    /// Attaches every observer that this kernel has and the plan needs.
    ///
    /// # Errors
    /// The observers could not be loaded at all; a missing tracepoint is no error.
    pub(crate) fn attach(plan: &Plan, watch: Watch) -> Result<Self> {
        let redirects = plan.needs_target() || plan.needs_cpus();
        let mut figures = Figure::ALL.to_vec();
        figures.extend(redirects.then_some(Figure::Flows));
        let hands_on = redirects || plan.needs_sockets();
        let cpumaps = plan.needs_cpus().then(|| CpumapObserver::attach(None, None)).transpose()?;
        Ok(Self { observers: Observers::attach_only(watch, &figures)?, cpumaps, hands_on, mode: plan.xdp_mode })
    }

    /// Packets that found the queue of a CPU full since this was last asked, by the id of the cpumap.
    pub(super) fn take_queue_drops(&mut self) -> Reading<BTreeMap<u32, u64>> {
        self.cpumaps.as_mut().map_or_else(|| Reading::Known(BTreeMap::new()), CpumapObserver::take_drops)
    }

    /// What became of packets that were handed on, once none is under way any more; `received` counts behind the target, and
    /// `sockets` what AF_XDP sockets did.
    pub(super) fn onwards(
        &self,
        handed_on: &Reading<HandedOn>,
        received: impl Fn() -> Reading<u64>,
        sockets: impl Fn() -> Option<Reading<Sockets>>,
    ) -> Option<Onwards> {
        if !self.hands_on {
            return None;
        }
        let deadline = Instant::now() + SETTLE_DEADLINE;
        loop {
            let onwards = self.read(handed_on.clone(), received(), sockets());
            if onwards.residuals().iter().all(|(_, residual)| *residual == 0) || Instant::now() > deadline {
                return Some(onwards);
            }
            sleep(DRAIN_EVERY);
        }
    }

    fn read(&self, handed_on: Reading<HandedOn>, received: Reading<u64>, sockets: Option<Reading<Sockets>>) -> Onwards {
        let xmit = match self.mode {
            XdpMode::Generic => Reading::not_available("in skb mode frames pass the tracepoint by, as sk_buffs"),
            _ => self.observers.transmitted(),
        };
        let kthreads = self.cpumaps.as_ref().map(|cpumaps| cpumaps.kthreads().map(|cpus| sum(cpus.into_values())));
        let failed = self.redirect_errors(sockets.as_ref()).map(|errors| errors.values().sum());
        Onwards { handed_on, failed, xmit, received, enqueued: self.enqueued(), kthreads, sockets }
    }

    /// Packets given to the queues of CPUs, those that found it full among them.
    fn enqueued(&self) -> Option<Reading<Enqueued>> {
        let enqueued = |cpumaps: &CpumapObserver| {
            cpumaps.enqueued().map(|pairs| {
                let sum: Enqueued = sum(pairs.into_values());
                // See `Enqueued::processed`.
                let full = if self.mode == XdpMode::Generic { sum.drops } else { 0 };
                Enqueued { processed: sum.processed + full, ..sum }
            })
        };
        self.cpumaps.as_ref().map(enqueued)
    }

    /// Redirects that failed, by errno, without those that are counted where they failed: in skb mode a full queue of a CPU
    /// (`cpu_map_generic_redirect`, kernel/bpf/cpumap.c), and what a socket had no room for (`xsk_rcv`, net/xdp/xsk.c).
    pub(super) fn redirect_errors(&self, sockets: Option<&Reading<Sockets>>) -> Reading<BTreeMap<String, u64>> {
        let full = match (self.mode, self.enqueued()) {
            (XdpMode::Generic, Some(Reading::Known(enqueued))) => enqueued.drops,
            _ => 0,
        };
        self.observers.redirect_errors().map(|mut errors| {
            let sockets = sockets.and_then(Reading::known);
            take_off(&mut errors, &["ENOSPC"], full);
            take_off(
                &mut errors,
                &["ENOBUFS", "ENOMEM", "ENOSPC"],
                sockets.map_or(0, |sockets| sockets.ring_full() + sockets.dropped()),
            );
            errors.retain(|_, packets| *packets > 0);
            errors
        })
    }
}

/// Takes so many packets off the counts of these errors, one after the other.
fn take_off(errors: &mut BTreeMap<String, u64>, errnos: &[&str], mut packets: u64) {
    for errno in errnos {
        if let Some(count) = errors.get_mut(*errno) {
            let taken = packets.min(*count);
            *count -= taken;
            packets -= taken;
        }
    }
}

fn sum<T: Default + AddAssign>(counts: impl Iterator<Item = T>) -> T {
    counts.fold(T::default(), |mut sum, counts| {
        sum += counts;
        sum
    })
}
