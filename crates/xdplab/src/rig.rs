//! What carries out a plan: a lab that is built, measured and taken down again, or an interface that is there already.

mod attached;
mod interface;
mod objects;
mod remote;
mod sender;
mod witnesses;

use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use attached::SETTLE_DEADLINE;
pub(crate) use attached::{Attached, Counted, Looks, Sampled, Traffic, shares_since};
pub use interface::InterfaceRig;
use nix::errno::Errno;
pub(crate) use objects::try_objects;
use sender::{Sender, Sent};
pub(crate) use witnesses::Witnesses;

use crate::device::{Attachment, Counts, SlicedDevice, VariantSpec, XskSockets, XskVariant};
use crate::error::{Error, Result};
use crate::generator::{LiveFrames, LiveFramesSpec, Rewrite, Sink};
use crate::netlink::{LinkStats, Netdev, Rtnl, XdpFeature, XdpMode};
use crate::observe::{Interface, Observers, PagePools, PoolPaths, Watch};
use crate::observed::{Ledger, Observed, Onwards};
use crate::packet::{UDP_HEADER_LEN, build_udp_frame};
use crate::reading::Reading;
use crate::reference::{Beside, Reference};
use crate::remote::RemoteTime;
use crate::run::{Engine, Plan, Progress, Rig};
use crate::sample::{Schedule, SliceReader};
use crate::topology::{Lab, LabDescription, LabSpec, NetNs, PlacementState, Port, REDIRECT_TARGET};

/// How often slices are fetched; the ring holds seconds of them.
const DRAIN_EVERY: Duration = Duration::from_millis(20);
/// How long page pools may take to give their pages back after teardown; the kernel looks again every second
/// (`DEFER_TIME`, net/core/page_pool.c), and later where many others want the CPU.
const RELEASE_DEADLINE: Duration = Duration::from_secs(10);

/// A throw-away veth lab, made for each plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct LabRig;

impl Rig for LabRig {
    fn measure(&mut self, plan: &Plan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Observed> {
        progress.stage("building the lab");
        let frame = build_udp_frame(&plan.flow, plan.size)?;
        let (tried, restored) = try_objects(plan, &frame)?;
        let mut bench = Bench::set_up(plan)?;
        let mut witnesses = Witnesses::attach(plan, bench.watch())?;
        let reference = Beside::begin(plan.placement.dut_cpu());
        progress.stage("sending");
        let generator = Sender::start(plan, &bench, frame, restored)?;
        let sampled = bench.attached.rounds(plan, &mut witnesses, &generator, progress, stop);
        let Sent { generated, xmit } = generator.stop(&bench.lab)?;
        let sampled = sampled?;
        let reference = reference.and_then(Beside::end).into();
        progress.stage("taking the lab down");
        let mut observed = bench.observe(&mut witnesses, sampled, generated, reference)?;
        if let Some(xmit) = xmit {
            observed.ledger.xmit = Reading::Known(xmit);
        }
        drop(bench);
        observed.page_pools = released(&witnesses.observers);
        observed.tried = tried;
        observed.restored_bytes = restored;
        Ok(observed)
    }
}

/// A lab with a device attached. Fields are dropped in this order: first what is attached, last the lab.
pub(crate) struct Bench {
    pub(crate) attached: Attached,
    sink: Option<(Attachment, Sink)>,
    /// At the end of the pair that programs redirect to.
    behind: Option<(Attachment, Sink)>,
    interface_before: LinkStats,
    pool_paths_before: Reading<PoolPaths>,
    placement: PlacementState,
    described: LabDescription,
    pub(crate) lab: Lab,
}

impl Bench {
    pub(crate) fn set_up(plan: &Plan) -> Result<Self> {
        // Before the lab: what can be refused by itself is refused with nothing set up.
        check(plan)?;
        let lab = Lab::build(&lab_spec(plan))?;
        let sink = if plan.may_return_packets() { Some(attach_sink(&lab.generator)?) } else { None };
        let behind = lab.exit.as_ref().map(|exit| attach_sink(&exit.sink)).transpose()?;
        if let Some(exit) = lab.exit.as_ref().filter(|_| plan.xdp_mode == XdpMode::Native) {
            must_take_redirected(&exit.out)?;
        }
        let attached = Attached::attach(plan, &lab.dut.netns, lab.dut.ifindex)?;
        let placement = lab.apply_placement()?;
        must_take_redirected(&lab.generator)?;
        Ok(Self {
            interface_before: attached.interface_stats()?,
            pool_paths_before: attached.pool_paths(),
            described: lab.describe()?,
            attached,
            sink,
            behind,
            placement,
            lab,
        })
    }

    pub(crate) fn watch(&self) -> Watch {
        let Port { ifindex, netns, .. } = &self.lab.generator;
        Watch { device: self.attached.watched(), xmit_to: Interface { ifindex: *ifindex, netns: netns.inode() } }
    }

    pub(crate) fn traffic(&self, plan: &Plan, frame: Vec<u8>, restored: usize) -> LiveFramesSpec {
        let udp_offset = plan.flow.headers_len() - UDP_HEADER_LEN;
        LiveFramesSpec {
            rewrite: Rewrite { restored, flows: plan.flows, udp_offset },
            frame,
            ifindex: self.lab.generator.ifindex,
            cpus: plan.placement.generator_cpu().into_iter().collect(),
            batch: LiveFramesSpec::DEFAULT_BATCH,
            count: None,
        }
    }

    /// Reads every counter once no packet is under way any more.
    pub(crate) fn observe(
        &mut self,
        witnesses: &mut Witnesses,
        sampled: Sampled,
        generated: u64,
        reference: Reading<Reference>,
    ) -> Result<Observed> {
        let (counted, remote) = self.attached.settle(witnesses)?;
        let interface_received = self.attached.interface_stats()?.rx_packets - self.interface_before.rx_packets;
        let pool_paths = since(self.attached.pool_paths(), &self.pool_paths_before);
        let behind = self.behind.as_ref().map(|(_, sink)| sink);
        let around = Around {
            // Without a target nothing can arrive behind it.
            onwards: witnesses.onwards(
                &counted.handed_on,
                || behind.map_or(Reading::Known(0), |sink| sink.packets().into()),
                || self.attached.sockets(),
            ),
            generated: Reading::Known(generated),
            interface_received: Reading::Known(interface_received),
            returned: self.sink.as_ref().map(|(_, sink)| sink.packets()).transpose()?,
            reference,
            pool_paths,
            remote,
            xdp_mode: self.attached.xdp_mode()?,
            placement: self.placement.clone(),
            described: [self.described.clone(), self.lab.describe()?],
        };
        Ok(observed(witnesses, sampled, counted, around))
    }
}

impl Traffic for LiveFrames {
    fn check(&self, _seconds: f64, _packets: u64) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        Err(Error::invalid("keep the generator running", "its threads ended before their time"))
    }
}

/// What was observed around the device.
struct Around {
    generated: Reading<u64>,
    interface_received: Reading<u64>,
    returned: Option<u64>,
    onwards: Option<Onwards>,
    reference: Reading<Reference>,
    pool_paths: Reading<PoolPaths>,
    remote: Vec<RemoteTime>,
    xdp_mode: Option<XdpMode>,
    placement: PlacementState,
    /// Before and after.
    described: [LabDescription; 2],
}

fn observed(witnesses: &Witnesses, sampled: Sampled, counted: Counted, around: Around) -> Observed {
    let observers = &witnesses.observers;
    let Counted { dispatcher: counts, programs, .. } = counted;
    let total = programs.clone().map(|queues| sum(queues.iter().flatten()));
    let [lab_before, lab_after] = around.described;
    let sockets = around.onwards.as_ref().and_then(|onwards| onwards.sockets.as_ref());
    let redirect_errors = witnesses.redirect_errors(sockets);
    Observed {
        slices: sampled.slices,
        rounds: sampled.rounds,
        slices_lost: counts.lost,
        packets_without_program: counts.misses,
        seconds: sampled.seconds,
        interrupted: sampled.interrupted,
        tried: Vec::new(),
        restored_bytes: 0,
        ledger: Ledger {
            generated: around.generated,
            xmit: observers.xmit(),
            received: counts.cpu_packets.iter().sum(),
            handled: total.clone().map(|total| total.packets + counts.misses),
            aborted: total.map(|total| total.aborted),
            interface_received: around.interface_received,
            returned: around.returned,
            onwards: around.onwards,
        },
        rx_queue_packets: programs.map(|queues| queues.iter().map(|queue| sum(queue).packets).collect()),
        cpu_packets: counts.cpu_packets,
        exceptions: observers.exceptions(),
        redirect_errors,
        napi: observers.napi(),
        softirqs: observers.softirqs_per_cpu(),
        page_pools: Reading::not_available("the lab is still up"),
        pool_paths: Some(around.pool_paths),
        cpu_shares: sampled.cpu_shares,
        remote: around.remote,
        reference: around.reference,
        xdp_mode: around.xdp_mode,
        lab_before: Some(lab_before),
        lab_after: Some(lab_after),
        placement: around.placement,
    }
}

/// What was counted between two readings.
fn since(after: Reading<PoolPaths>, before: &Reading<PoolPaths>) -> Reading<PoolPaths> {
    after.and_then(|after| before.clone().map(|before| after.since(before)))
}

/// Opens the AF_XDP sockets that the plan's variants give packets to, if there are any, on an interface of the calling
/// thread's network namespace.
fn open_sockets(plan: &Plan, ifindex: u32) -> Result<Option<XskSockets>> {
    let Some(spec) = XskVariant::sockets(&plan.variants(), plan.xdp_mode)? else { return Ok(None) };
    let name = Rtnl::open()?.link_by_index(ifindex)?.name;
    XskSockets::open(spec, &name, ifindex).map(Some)
}

/// Loads the device of a round; its programs, their places in memory and the schedule are drawn from the plan's seed. The
/// interfaces to redirect to are those of the calling thread's network namespace.
pub(crate) fn load(plan: &Plan, round: u16, sockets: Option<&XskSockets>) -> Result<(SlicedDevice, SliceReader)> {
    let seed = plan.seed.wrapping_add(u64::from(round));
    let schedule = schedule(plan, seed)?;
    let cut = (plan.slice_packets, plan.warmup_packets);
    SlicedDevice::load(&variants(plan), &schedule, cut, u32::from(plan.queues), sockets, seed)
}

/// Refuses a plan for what is told without loading it.
fn check(plan: &Plan) -> Result<()> {
    schedule(plan, plan.seed)?;
    XskVariant::sockets(&plan.variants(), plan.xdp_mode)?;
    SlicedDevice::check(&variants(plan))
}

fn schedule(plan: &Plan, seed: u64) -> Result<Schedule> {
    Schedule::draw(u16::try_from(plan.loaded().len()).unwrap_or(u16::MAX), plan.copies, seed)
}

/// What is loaded, with the interface that programs redirect to where they name none.
fn variants(plan: &Plan) -> Vec<VariantSpec> {
    let target = match plan.engine {
        Engine::Slices => REDIRECT_TARGET,
        // Nothing acts on the verdict; the loopback interface is in every network namespace.
        Engine::TestRun { .. } => "lo",
    };
    plan.loaded().into_iter().map(|variant| variant.or_target(target)).collect()
}

/// Without a native program a veth end takes redirected frames only if GRO gives it NAPI.
fn lab_spec(plan: &Plan) -> LabSpec {
    let mut spec =
        LabSpec { queues: plan.queues, mtu: plan.mtu, exit: plan.needs_target(), ..LabSpec::new(plan.placement) };
    for (offload, on) in &mut spec.offloads {
        *on = offload == "gro" && plan.xdp_mode == XdpMode::Generic;
    }
    spec
}

/// Where each CPU's time went since the earlier reading.
pub(crate) fn sum<'a>(counts: impl IntoIterator<Item = &'a Counts>) -> Counts {
    counts.into_iter().fold(Counts::default(), |mut sum, counts| {
        sum += *counts;
        sum
    })
}

fn attach_sink(port: &Port) -> Result<(Attachment, Sink)> {
    let sink = Sink::load()?;
    let attachment = port.netns.run(|| Attachment::attach(sink.fd()?, port.ifindex, XdpMode::Native))?;
    Ok((attachment, sink))
}

/// Refuses to send where frames would vanish: the kernel says of each interface whether it takes redirected frames. Before Linux
/// 6.3 it does not say; there the driver refuses each frame, which the ledger shows as a drop.
///
/// # Errors
/// It does not take them now.
pub fn must_take_redirected(port: &Port) -> Result<()> {
    takes_redirected(&port.netns, &port.name, port.ifindex)
}

fn takes_redirected(netns: &NetNs, name: &str, ifindex: u32) -> Result<()> {
    let mut netdev = match netns.run(Netdev::open) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(()),
        opened => opened?,
    };
    let features = netdev.xdp(ifindex)?.features;
    if features.contains(&XdpFeature::NdoXmit) {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("redirect frames to {name} (ifindex {ifindex})"),
        "the kernel's XDP features of the interface lack NETDEV_XDP_ACT_NDO_XMIT; a veth has it only while its peer has \
         NAPI",
    )
    .remedy(
        "attach an XDP program to the peer of a veth in native mode, or turn its GRO on; to another interface attach one itself",
    ))
}

/// Waits until every page is back, or the deadline, and says what page pools held and released.
pub(crate) fn released(observers: &Observers) -> Reading<PagePools> {
    let deadline = Instant::now() + RELEASE_DEADLINE;
    loop {
        let pools = observers.page_pools();
        let balanced = pools.known().is_none_or(|pools| {
            pools.device.held == pools.device.released && pools.generator.held == pools.generator.released
        });
        if balanced || Instant::now() > deadline {
            return pools;
        }
        sleep(DRAIN_EVERY);
    }
}
