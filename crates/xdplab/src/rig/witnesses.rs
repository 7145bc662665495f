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
use crate::observed::Onwards;
use crate::reading::Reading;
use crate::run::Plan;

/// The observers of a run; they outlive what is attached.
pub(crate) struct Witnesses {
    pub(crate) observers: Observers,
    /// Where a variant redirects to CPUs. It sees every cpumap of the machine, and what others do shows as a residual.
    cpumaps: Option<CpumapObserver>,
    /// A variant hands packets on.
    redirects: bool,
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
        let cpumaps = plan.needs_cpus().then(|| CpumapObserver::attach(None, None)).transpose()?;
        Ok(Self { observers: Observers::attach_only(watch, &figures)?, cpumaps, redirects, mode: plan.xdp_mode })
    }

    /// What became of packets that were handed on, once none is under way any more; `received` counts behind the target.
    pub(super) fn onwards(
        &self,
        handed_on: &Reading<HandedOn>,
        received: impl Fn() -> Reading<u64>,
    ) -> Option<Onwards> {
        if !self.redirects {
            return None;
        }
        let deadline = Instant::now() + SETTLE_DEADLINE;
        loop {
            let onwards = self.read(handed_on.clone(), received());
            if onwards.residuals().iter().all(|(_, residual)| *residual == 0) || Instant::now() > deadline {
                return Some(onwards);
            }
            sleep(DRAIN_EVERY);
        }
    }

    fn read(&self, handed_on: Reading<HandedOn>, received: Reading<u64>) -> Onwards {
        let xmit = match self.mode {
            XdpMode::Generic => Reading::not_available("in skb mode frames pass the tracepoint by, as sk_buffs"),
            _ => self.observers.transmitted(),
        };
        let kthreads = self.cpumaps.as_ref().map(|cpumaps| cpumaps.kthreads().map(|cpus| sum(cpus.into_values())));
        let failed = self.redirect_errors().map(|errors| errors.values().sum());
        Onwards { handed_on, failed, xmit, received, enqueued: self.enqueued(), kthreads }
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

    /// Redirects that failed, by errno. In skb mode a full queue of a CPU is one too (`cpu_map_generic_redirect`,
    /// kernel/bpf/cpumap.c); here it is not, since the queue counts it.
    pub(super) fn redirect_errors(&self) -> Reading<BTreeMap<String, u64>> {
        let full = match (self.mode, self.enqueued()) {
            (XdpMode::Generic, Some(Reading::Known(enqueued))) => enqueued.drops,
            _ => 0,
        };
        self.observers.redirect_errors().map(|mut errors| {
            errors.entry("ENOSPC".into()).and_modify(|packets| *packets = packets.saturating_sub(full));
            errors.retain(|_, packets| *packets > 0);
            errors
        })
    }
}

fn sum<T: Default + AddAssign>(counts: impl Iterator<Item = T>) -> T {
    counts.fold(T::default(), |mut sum, counts| {
        sum += counts;
        sum
    })
}
