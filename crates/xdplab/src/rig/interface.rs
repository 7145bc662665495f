//! Measuring on an interface that is there already.

use std::sync::atomic::AtomicBool;

use super::attached::{Attached, Traffic};
use super::{Around, Witnesses, observed, since, takes_redirected};
use crate::device::VariantSpec;
use crate::error::{Error, Result};
use crate::netlink::XdpMode;
use crate::observe::{Interface, Watch};
use crate::observed::Observed;
use crate::reading::Reading;
use crate::reference::Beside;
use crate::run::{Plan, Progress, Rig};
use crate::stats;
use crate::topology::{LabDescription, NetNs, Placement, PlacementState, PortDescription};

/// An interface that is there already, in the calling thread's network namespace; what comes in on it is measured.
#[derive(Debug)]
pub struct InterfaceRig {
    netns: NetNs,
    ifindex: u32,
}

impl InterfaceRig {
    /// Finds the interface called `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<Self> {
        let netns = NetNs::current()?;
        let ifindex = netns.rtnl()?.link_by_name(name)?.ifindex;
        Ok(Self { netns, ifindex })
    }

    /// The interface as it is now.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn describe(&self) -> Result<PortDescription> {
        PortDescription::read(&self.netns, self.ifindex)
    }

    fn described(&self, targets: &[u32]) -> Result<LabDescription> {
        let exit = targets.iter().map(|ifindex| PortDescription::read(&self.netns, *ifindex)).collect::<Result<_>>()?;
        Ok(LabDescription { placement: Placement::Outside, generator: None, dut: self.describe()?, exit })
    }

    /// The interfaces that the plan's variants redirect to, which must be able to take what they get.
    fn targets(&self, plan: &Plan) -> Result<Vec<u32>> {
        let mut rtnl = self.netns.rtnl()?;
        let mut targets = Vec::new();
        for name in plan.variants().iter().flat_map(VariantSpec::named_targets) {
            let ifindex = rtnl.link_by_name(name)?.ifindex;
            if ifindex == self.ifindex {
                let what = format!("redirect packets of {name} to it");
                return Err(Error::usage(what, "it is the interface that is measured").remedy("take tx:swap-macs"));
            }
            if plan.xdp_mode == XdpMode::Native {
                takes_redirected(&self.netns, name, ifindex)?;
            }
            if !targets.contains(&ifindex) {
                targets.push(ifindex);
            }
        }
        Ok(targets)
    }
}

impl Rig for InterfaceRig {
    fn measure(&mut self, plan: &Plan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Observed> {
        progress.stage("attaching");
        let targets = self.targets(plan)?;
        let before = self.described(&targets)?;
        // Before the first packet, so that what they count belongs to what the programs count.
        let device = Interface { ifindex: self.ifindex, netns: self.netns.inode() };
        let mut witnesses = Witnesses::attach(plan, Watch { device, ..Watch::default() })?;
        let mut attached = Attached::attach(plan, &self.netns, self.ifindex)?;
        let pool_paths_before = attached.pool_paths();
        let reference = Beside::begin(plan.placement.dut_cpu());
        let outside = Outside { plan, name: before.dut.name.clone() };
        let sampled = attached.rounds(plan, &mut witnesses, &outside, progress, stop)?;
        let reference = reference.and_then(Beside::end).into();
        let xdp_mode = attached.xdp_mode()?;
        let pool_paths = since(attached.pool_paths(), &pool_paths_before);
        // Packets go on coming: only a device that is detached has counters that stand still.
        attached.detach();
        let (counted, remote) = attached.settle(&mut witnesses)?;
        let received = || match targets.as_slice() {
            [] => Reading::Known(0),
            _ => Reading::not_available("who receives behind the target is not known here"),
        };
        let around = Around {
            onwards: witnesses.onwards(&counted.handed_on, received, || attached.sockets()),
            generated: Reading::not_available("traffic comes from outside"),
            interface_received: Reading::not_available("packets came in before and after too"),
            returned: None,
            reference,
            pool_paths,
            remote,
            xdp_mode,
            placement: PlacementState::outside(&self.netns, self.ifindex),
            described: [before, self.described(&targets)?],
        };
        let mut observed = observed(&witnesses, sampled, counted, around);
        observed.page_pools = Reading::not_available("the interface keeps its pages while it is up");
        observed.ledger.xmit = Reading::not_available("traffic comes from outside");
        Ok(observed)
    }
}

/// Traffic that somebody else sends.
struct Outside<'a> {
    plan: &'a Plan,
    name: String,
}

impl Outside<'_> {
    /// How long packets may let wait in a round.
    const PATIENCE_SECONDS: f64 = 3.0;
}

impl Traffic for Outside<'_> {
    fn check(&self, seconds: f64, packets: u64) -> Result<()> {
        let round = self.plan.longest_round_seconds();
        if seconds < round.min(Self::PATIENCE_SECONDS) {
            return Ok(());
        }
        let slots = self.plan.variants().len() as u64 * u64::from(self.plan.copies);
        let slice = u64::from(self.plan.slice_packets) + u64::from(self.plan.warmup_packets);
        let needed = stats::BLOCKS_NEEDED as u64 * slots * slice;
        let rate = packets as f64 / seconds;
        if rate * round >= needed as f64 {
            return Ok(());
        }
        let why = format!(
            "{packets} packets came in {seconds:.1} s, and a round of {round:.2} s needs {needed} ({} slices of each of {slots} \
             programs)",
            stats::BLOCKS_NEEDED,
        );
        Err(Error::invalid(format!("measure on {}", self.name), why)
            .remedy("send faster, or run longer with fewer rounds, fewer copies or shorter slices"))
    }
}
