//! The lab carries out a plan: it is built, measured and taken down again.

use std::mem::{replace, take};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::device::{Attachment, Counts, SlicedDevice, Tried, UserObject, VariantSpec};
use crate::error::{Error, Result};
use crate::generator::{LiveFrames, LiveFramesSpec, Rewrite, Sink};
use crate::host::{CpuShares, CpuTimes};
use crate::netlink::{LinkStats, Netdev, XdpFeature, XdpMode};
use crate::observe::{Interface, Observers, PagePools, Watch, action_name};
use crate::observed::{Ledger, Observed, Trial, by_round};
use crate::packet::{UDP_HEADER_LEN, build_udp_frame};
use crate::reading::Reading;
use crate::reference::{Beside, Reference};
use crate::run::{self, Plan, Progress, Rig};
use crate::sample::{DispatcherCounts, Schedule, SliceReader};
use crate::stats::Slice;
use crate::topology::{Lab, LabDescription, LabSpec, PlacementState, Port};

/// Traffic before the first slice that counts: frequency, caches and rings settle.
const RAMP: Duration = Duration::from_millis(300);
/// Traffic before the first slice of a round that counts: caches and branch predictors settle.
const SETTLE: Duration = Duration::from_millis(40);
/// How often slices are fetched; the ring holds seconds of them.
const DRAIN_EVERY: Duration = Duration::from_millis(20);
/// By which factor there are more rounds when the interval's width is looked at again: each look takes longer than the one
/// before, and steals time from the run.
const NEXT_LOOK: f64 = 1.25;
/// How long packets may be under way after the generator has stopped.
const SETTLE_DEADLINE: Duration = Duration::from_secs(2);
/// How long page pools may take to give their pages back after teardown; the kernel looks again every second
/// (`DEFER_TIME`, net/core/page_pool.c).
const RELEASE_DEADLINE: Duration = Duration::from_secs(3);

/// A throw-away veth lab, made for each plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct LabRig;

impl Rig for LabRig {
    fn measure(&mut self, plan: &Plan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Observed> {
        progress.stage("building the lab");
        let frame = build_udp_frame(&plan.flow, plan.size)?;
        let (tried, restored) = try_objects(plan, &frame)?;
        let mut bench = Bench::set_up(plan)?;
        let observers = Observers::attach(bench.watch())?;
        let reference = Beside::begin(plan.placement.dut_cpu());
        progress.stage("sending");
        let generator = LiveFrames::start(&bench.traffic(plan, frame, restored), &bench.lab.generator.netns)?;
        let sampled = bench.rounds(plan, &generator, progress, stop);
        let generated = generator.stop()?.packets;
        let sampled = sampled?;
        let reference = reference.and_then(Beside::end).into();
        progress.stage("taking the lab down");
        let mut observed = bench.observe(&observers, sampled, generated, reference)?;
        drop(bench);
        observed.page_pools = released(&observers);
        observed.tried = tried;
        observed.restored_bytes = restored;
        Ok(observed)
    }
}

/// Everything set up for one measurement. Fields are dropped in this order: first what is attached, last the lab.
pub(crate) struct Bench {
    attachment: Attachment,
    sink: Option<(Attachment, Sink)>,
    device: SlicedDevice,
    reader: SliceReader,
    retired: Counted,
    interface_before: LinkStats,
    placement: PlacementState,
    described: LabDescription,
    pub(crate) lab: Lab,
}

/// What the devices of earlier rounds counted.
pub(crate) struct Counted {
    pub(crate) dispatcher: DispatcherCounts,
    /// For each RX queue, each possible CPU.
    pub(crate) programs: Reading<Vec<Vec<Counts>>>,
}

impl Default for Counted {
    fn default() -> Self {
        Self { dispatcher: DispatcherCounts::default(), programs: Reading::Known(Vec::new()) }
    }
}

impl Counted {
    pub(crate) fn add(&mut self, dispatcher: &DispatcherCounts, programs: Reading<Vec<Vec<Counts>>>) {
        self.dispatcher += dispatcher;
        let before = replace(&mut self.programs, Reading::Known(Vec::new()));
        self.programs = before.and_then(|mut sum| {
            programs.map(|counts| {
                sum.resize_with(counts.len().max(sum.len()), Vec::new);
                for (sum, counts) in sum.iter_mut().zip(counts) {
                    sum.resize_with(counts.len().max(sum.len()), Counts::default);
                    sum.iter_mut().zip(counts).for_each(|(sum, counts)| *sum += counts);
                }
                sum
            })
        });
    }
}

/// What was taken while the generator ran.
pub(crate) struct Sampled {
    pub(crate) slices: Vec<Slice>,
    /// Slices of each round.
    rounds: Vec<usize>,
    seconds: f64,
    pub(crate) interrupted: bool,
    pub(crate) cpu_shares: Reading<Vec<(u32, Reading<CpuShares>)>>,
}

impl Default for Sampled {
    fn default() -> Self {
        let cpu_shares = Reading::not_available("CPU times were not read");
        Self { slices: Vec::new(), rounds: Vec::new(), seconds: 0.0, interrupted: false, cpu_shares }
    }
}

impl Bench {
    pub(crate) fn set_up(plan: &Plan) -> Result<Self> {
        // Before the lab: a plan that can't be loaded is refused with nothing set up.
        let (device, reader) = load(plan, 0)?;
        let lab = Lab::build(&lab_spec(plan))?;
        let sink = if plan.may_return_packets() { Some(attach_sink(&lab.generator)?) } else { None };
        let attachment = lab.dut.netns.run(|| Attachment::attach(device.fd()?, lab.dut.ifindex, plan.xdp_mode))?;
        let placement = lab.apply_placement()?;
        must_take_redirected(&lab.generator)?;
        Ok(Self {
            attachment,
            sink,
            device,
            reader,
            retired: Counted::default(),
            interface_before: interface_stats(&lab.dut)?,
            placement,
            described: lab.describe()?,
            lab,
        })
    }

    pub(crate) fn watch(&self) -> Watch {
        let interface = |port: &Port| Interface { ifindex: port.ifindex, netns: port.netns.inode() };
        Watch { device: interface(&self.lab.dut), xmit_to: interface(&self.lab.generator) }
    }

    pub(crate) fn traffic(&self, plan: &Plan, frame: Vec<u8>, restored: usize) -> LiveFramesSpec {
        let udp_offset = plan.flow.headers_len() - UDP_HEADER_LEN;
        LiveFramesSpec {
            rewrite: Rewrite { restored, flows: plan.flows, udp_offset },
            frame,
            ifindex: self.lab.generator.ifindex,
            cpus: vec![plan.placement.generator_cpu()],
            batch: LiveFramesSpec::DEFAULT_BATCH,
            count: None,
        }
    }

    /// Takes slices in rounds; for each, everything that slices depend on is loaded anew while packets go on.
    fn rounds(
        &mut self,
        plan: &Plan,
        generator: &LiveFrames,
        progress: &mut dyn Progress,
        stop: &AtomicBool,
    ) -> Result<Sampled> {
        let times = CpuTimes::read();
        let mut sampled = Sampled::default();
        sleep(RAMP);
        let mut looks = Looks::at(plan.rounds);
        for round in 0..plan.most_rounds() {
            if looks.is_resolved(plan, round, &sampled.slices, &sampled.rounds) {
                break;
            }
            if round > 0 {
                self.load_anew(plan, round)?;
            }
            let before = sampled.slices.len();
            sleep(SETTLE);
            self.skip();
            self.sample((plan.round_seconds(), plan.seconds), generator, &mut sampled, progress, stop)?;
            sampled.rounds.push(sampled.slices.len() - before);
            sampled.interrupted = stop.load(Ordering::Relaxed);
            if sampled.interrupted {
                break;
            }
        }
        sampled.cpu_shares = shares_since(times);
        Ok(sampled)
    }

    /// Puts a newly loaded device in the place of the present one, whose counts are kept.
    fn load_anew(&mut self, plan: &Plan, round: u16) -> Result<()> {
        let (device, reader) = load(plan, round)?;
        self.attachment.replace(device.fd()?)?;
        let (old_device, old_reader) = (replace(&mut self.device, device), replace(&mut self.reader, reader));
        // A poll that began before the change goes on with the old program to its end.
        sleep(DRAIN_EVERY);
        self.retired.add(&old_reader.counts()?, old_device.counts());
        Ok(())
    }

    /// Throws away the slices that are there.
    pub(crate) fn skip(&mut self) {
        self.reader.drain(&mut Vec::new());
    }

    /// Takes slices for some seconds of those of the whole run.
    pub(crate) fn sample(
        &mut self,
        (seconds, of): (f64, f64),
        generator: &LiveFrames,
        sampled: &mut Sampled,
        progress: &mut dyn Progress,
        stop: &AtomicBool,
    ) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < seconds && !stop.load(Ordering::Relaxed) {
            if !generator.is_running() {
                return Err(Error::invalid("keep the generator running", "its threads ended before their time"));
            }
            sleep(DRAIN_EVERY);
            self.reader.drain(&mut sampled.slices);
            progress.sampling(sampled.seconds + begin.elapsed().as_secs_f64(), of, sampled.slices.len());
        }
        sampled.seconds += begin.elapsed().as_secs_f64();
        Ok(())
    }

    /// Reads every counter once no packet is under way any more.
    pub(crate) fn observe(
        &mut self,
        observers: &Observers,
        sampled: Sampled,
        generated: u64,
        reference: Reading<Reference>,
    ) -> Result<Observed> {
        let mut counted = take(&mut self.retired);
        counted.add(&self.settle()?, self.device.counts());
        let Counted { dispatcher: counts, programs } = counted;
        let total = programs.clone().map(|queues| sum(queues.iter().flatten()));
        let interface = interface_stats(&self.lab.dut)?;
        let sink = self.sink.as_ref().map(|(_, sink)| sink.packets()).transpose()?;
        let xdp = self.lab.dut.netns.rtnl()?.link_by_index(self.lab.dut.ifindex)?.xdp;
        Ok(Observed {
            slices: sampled.slices,
            rounds: sampled.rounds,
            slices_lost: counts.lost,
            packets_without_program: counts.misses,
            seconds: sampled.seconds,
            interrupted: sampled.interrupted,
            tried: Vec::new(),
            restored_bytes: 0,
            ledger: Ledger {
                generated,
                xmit: observers.xmit(),
                received: counts.cpu_packets.iter().sum(),
                handled: total.clone().map(|total| total.packets + counts.misses),
                aborted: total.map(|total| total.aborted),
                interface_received: Reading::Known(interface.rx_packets - self.interface_before.rx_packets),
                returned: sink,
            },
            rx_queue_packets: programs.map(|queues| queues.iter().map(|queue| sum(queue).packets).collect()),
            cpu_packets: counts.cpu_packets,
            exceptions: observers.exceptions(),
            redirect_errors: observers.redirect_errors(),
            napi: observers.napi(),
            softirqs: observers.softirqs_per_cpu(),
            page_pools: Reading::not_available("the lab is still up"),
            cpu_shares: sampled.cpu_shares,
            reference,
            xdp_mode: xdp.first().map(|attached| attached.mode).filter(|_| xdp.len() == 1),
            lab_before: Some(self.described.clone()),
            lab_after: Some(self.lab.describe()?),
            placement: self.placement.clone(),
        })
    }

    /// Waits until the device has seen nothing new for a while, and says what it saw.
    fn settle(&self) -> Result<DispatcherCounts> {
        let deadline = Instant::now() + SETTLE_DEADLINE;
        let mut before = self.reader.counts()?;
        loop {
            sleep(DRAIN_EVERY);
            let now = self.reader.counts()?;
            if now == before || Instant::now() > deadline {
                return Ok(now);
            }
            before = now;
        }
    }
}

/// When a run that goes on until a difference is resolved looks whether it is.
pub(crate) struct Looks {
    next: u16,
}

impl Looks {
    /// The first look is after so many rounds.
    pub(crate) fn at(rounds: u16) -> Self {
        Self { next: rounds }
    }

    /// Whether it is time to look before `round`, and what is there is enough.
    pub(crate) fn is_resolved(&mut self, plan: &Plan, round: u16, slices: &[Slice], rounds: &[usize]) -> bool {
        if round != self.next {
            return false;
        }
        self.next = (f64::from(self.next) * NEXT_LOOK).ceil() as u16;
        run::is_resolved(plan, &by_round(slices, rounds))
    }
}

/// Loads the device of a round; its programs, their places in memory and the schedule are drawn from the plan's seed.
pub(crate) fn load(plan: &Plan, round: u16) -> Result<(SlicedDevice, SliceReader)> {
    let variants = plan.loaded();
    let count = u16::try_from(variants.len()).unwrap_or(u16::MAX);
    let seed = plan.seed.wrapping_add(u64::from(round));
    let schedule = Schedule::draw(count, plan.copies, seed)?;
    let cut = (plan.slice_packets, plan.warmup_packets);
    SlicedDevice::load(&variants, &schedule, cut, u32::from(plan.queues), seed)
}

/// Without a native program a veth end takes redirected frames only if GRO gives it NAPI.
fn lab_spec(plan: &Plan) -> LabSpec {
    let mut spec = LabSpec { queues: plan.queues, mtu: plan.mtu, ..LabSpec::new(plan.placement) };
    for (offload, on) in &mut spec.offloads {
        *on = offload == "gro" && plan.xdp_mode == XdpMode::Generic;
    }
    spec
}

/// Where each CPU's time went since the earlier reading.
pub(crate) fn shares_since(earlier: Result<CpuTimes>) -> Reading<Vec<(u32, Reading<CpuShares>)>> {
    earlier.and_then(|earlier| Ok(CpuTimes::read()?.since(&earlier).into_iter().collect())).into()
}

pub(crate) fn sum<'a>(counts: impl IntoIterator<Item = &'a Counts>) -> Counts {
    counts.into_iter().fold(Counts::default(), |mut sum, counts| {
        sum += *counts;
        sum
    })
}

/// Tries each user's program on the frame, and says how many bytes of the frame have to be restored for each packet.
pub(crate) fn try_objects(plan: &Plan, frame: &[u8]) -> Result<(Vec<Trial>, usize)> {
    let mut trials: Vec<Trial> = Vec::new();
    for variant in plan.variants() {
        let VariantSpec::Object(spec) = &variant else { continue };
        let name = variant.to_string();
        if trials.iter().any(|trial| trial.variant == name) {
            continue;
        }
        let tried: Reading<Tried> = UserObject::open(spec)?.load()?.try_on(frame).into();
        trials.push(Trial {
            variant: name,
            returns: tried.clone().map(|tried| action_name(tried.action as usize)),
            changes_until: tried.map(|tried| changes_until(frame, &tried.frame)),
        });
    }
    // What could not be tried may change anything.
    let restored = trials.iter().map(|trial| *trial.changes_until.known().unwrap_or(&Rewrite::MAX_RESTORED)).max();
    Ok((trials, Rewrite::restorable(restored.unwrap_or(0), frame.len())))
}

/// Where the last change is, counted from the start; the length where that changed.
fn changes_until(before: &[u8], after: &[u8]) -> usize {
    if before.len() != after.len() {
        return before.len();
    }
    before.iter().zip(after).rposition(|(before, after)| before != after).map_or(0, |last| last + 1)
}

fn attach_sink(port: &Port) -> Result<(Attachment, Sink)> {
    let sink = Sink::load()?;
    let attachment = port.netns.run(|| Attachment::attach(sink.fd()?, port.ifindex, XdpMode::Native))?;
    Ok((attachment, sink))
}

/// Refuses to send where frames would vanish: the kernel says of each interface whether it takes redirected frames.
///
/// # Errors
/// It does not take them now.
pub fn must_take_redirected(port: &Port) -> Result<()> {
    let mut netdev = port.netns.run(Netdev::open)?;
    let features = netdev.xdp(port.ifindex)?.features;
    if features.contains(&XdpFeature::NdoXmit) {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("redirect frames to {} (ifindex {})", port.name, port.ifindex),
        "the kernel's XDP features of the interface lack NETDEV_XDP_ACT_NDO_XMIT; a veth has it only while its peer has \
         NAPI",
    )
    .remedy("attach an XDP program to the peer in native mode, or turn its GRO on"))
}

fn interface_stats(port: &Port) -> Result<LinkStats> {
    port.netns.rtnl()?.link_by_index(port.ifindex)?.stats.ok_or_else(|| {
        Error::unsupported(format!("read the statistics of {}", port.name), "the kernel left IFLA_STATS64 out")
    })
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
