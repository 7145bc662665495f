//! How many packets a second pass each stage of one program, told by who counts them there.
//!
//! On a throw-away lab: frames are made at one end of a veth pair (live frames), the program runs on the other, and a sink takes
//! what it redirects to the second pair.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::device::{Attachment, VariantSpec};
use crate::error::{Error, Result};
use crate::generator::{LiveFrames, LiveFramesSpec, Rewrite, Sink};
use crate::live::{
    BasicDevice, Clock, CpumapDevice, End, EndedBy, Interval, Limits, LiveRun, RedirectDevice, RedirectSpec, Session,
    Source, Start, Told, View, Woken, XskDevice,
};
use crate::netlink::XdpMode;
use crate::observe::{Figure, Interface, Observers, PagePools, Watch};
use crate::packet::{FlowSpec, FrameSize, UDP_HEADER_LEN, build_udp_frame};
use crate::reading::Reading;
use crate::rig::{must_take_redirected, released};
use crate::run::Progress;
use crate::topology::{Lab, LabSpec, Placement, PlacementState, Port, REDIRECT_TARGET};

/// Traffic before the first reading.
const RAMP: Duration = Duration::from_millis(300);
/// How often a wait looks whether to end.
const STEP: Duration = Duration::from_millis(20);

/// What to measure, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatesPlan {
    /// The program.
    pub program: VariantSpec,
    /// How it is attached.
    pub xdp_mode: XdpMode,
    /// Seconds of counting.
    pub seconds: f64,
    /// Which CPU runs what.
    pub placement: Placement,
    /// Threads that make frames, each on a CPU of its own, the generator's first.
    pub threads: usize,
    /// RX and TX queues of every end.
    pub queues: u16,
    /// MTU of every link in bytes.
    pub mtu: u32,
    /// The frame's fields.
    pub flow: FlowSpec,
    /// The frame's size.
    pub size: FrameSize,
    /// UDP flows: source ports in turn.
    pub flows: u16,
}

/// What was counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatesCase {
    /// What was planned.
    pub plan: RatesPlan,
    /// What the program and the kernel counted.
    pub live: LiveRun,
    /// Frames that the generator handed on, for each possible CPU, from its start to its end.
    pub generated: Vec<u64>,
    /// Frames that a sink received behind the interface that the program redirects to, from start to end; absent where there is
    /// no such interface.
    pub sink: Option<u64>,
    /// NAPI threads and their CPUs.
    pub placement: PlacementState,
    /// Page pools, read after teardown.
    pub page_pools: Reading<PagePools>,
}

/// Measures.
///
/// # Errors
/// The lab can't be built, the program can't be attached, or the generator failed.
pub fn measure(plan: &RatesPlan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<RatesCase> {
    progress.stage("building the lab");
    let frame = build_udp_frame(&plan.flow, plan.size)?;
    let lab = Lab::build(&plan.lab_spec())?;
    let sink = lab.exit.as_ref().map(|exit| attach_sink(&exit.sink)).transpose()?;
    let interface = |port: &Port| Interface { ifindex: port.ifindex, netns: port.netns.inode() };
    let watch = Watch { device: interface(&lab.dut), xmit_to: interface(&lab.generator) };
    let observers = Observers::attach_only(watch, &[Figure::PagePools])?;
    let counted = lab.dut.netns.run(|| Bench { plan, lab: &lab, frame }.count(progress, stop))?;
    let sink = sink.as_ref().map(|(_, sink)| sink.packets()).transpose()?;
    drop(lab);
    let page_pools = released(&observers);
    let Counted { live, generated, placement } = counted;
    Ok(RatesCase { plan: plan.clone(), live, generated, sink, placement, page_pools })
}

/// What counting needs.
struct Bench<'a> {
    plan: &'a RatesPlan,
    lab: &'a Lab,
    frame: Vec<u8>,
}

/// What counting gives.
struct Counted {
    live: LiveRun,
    generated: Vec<u64>,
    placement: PlacementState,
}

impl Bench<'_> {
    /// Counts; to be called in the network namespace of the device.
    fn count(&self, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Counted> {
        let Self { plan, lab, .. } = self;
        let mut device = Device::attach(plan, &lab.dut.name)?;
        let placement = lab.apply_placement()?;
        must_take_redirected(&lab.generator)?;
        progress.stage("sending");
        let generator = LiveFrames::start(&self.traffic(), &lab.generator.netns)?;
        sleep(RAMP);
        let time = Duration::from_secs_f64(plan.seconds);
        let limits = Limits { interval: time, duration: Some(time), count: None };
        let session = Session::begin(device.source().read()?, limits)?;
        let start = device.start(session.started());
        let mut intervals = Intervals::default();
        let mut timer = Timer { stop, progress, begin: Instant::now(), seconds: plan.seconds };
        let (total, ended_by) = session.run(device.source(), &mut timer, &mut intervals)?;
        if !generator.is_running() {
            generator.stop()?;
            return Err(Error::invalid("keep the generator running", "its threads ended before their time"));
        }
        let end = device.end(total, ended_by)?;
        let generated = generator.stop()?.per_cpu;
        Ok(Counted {
            live: LiveRun { start, intervals: intervals.0, sessions: Vec::new(), end: Some(end) },
            generated,
            placement,
        })
    }

    fn traffic(&self) -> LiveFramesSpec {
        let Self { plan, lab, frame } = self;
        let udp_offset = plan.flow.headers_len() - UDP_HEADER_LEN;
        LiveFramesSpec {
            rewrite: Rewrite { flows: plan.flows, udp_offset, ..Rewrite::default() },
            frame: frame.clone(),
            ifindex: lab.generator.ifindex,
            cpus: plan.generator_cpus(),
            batch: LiveFramesSpec::DEFAULT_BATCH,
            count: None,
        }
    }
}

impl RatesPlan {
    fn lab_spec(&self) -> LabSpec {
        let mut spec = LabSpec {
            queues: self.queues,
            mtu: self.mtu,
            exit: self.program.needs_target(),
            ..LabSpec::new(self.placement)
        };
        // A veth end without native XDP takes redirected frames only if GRO gives it NAPI.
        for (_, on) in spec.offloads.iter_mut().filter(|(offload, _)| offload == "gro") {
            *on = self.xdp_mode == XdpMode::Generic;
        }
        spec
    }

    /// The generator's CPU for the first thread, and the others in turn for more.
    fn generator_cpus(&self) -> Vec<usize> {
        let first = self.placement.generator_cpu().unwrap_or(0);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (0..self.threads).map(|thread| (first + thread) % cpus).collect()
    }
}

/// A program on the near end, and what is counted of it.
enum Device {
    Basic(Box<BasicDevice>),
    Redirect(Box<RedirectDevice>),
    Cpumap(Box<CpumapDevice>),
    Xsk(Box<XskDevice>),
}

impl Device {
    fn attach(plan: &RatesPlan, name: &str) -> Result<Self> {
        let mode = plan.xdp_mode;
        match &plan.program {
            VariantSpec::Builtin(spec) => BasicDevice::attach(name, *spec, mode, false).map(Box::new).map(Self::Basic),
            VariantSpec::Redirect(variant) => {
                let spec = RedirectSpec {
                    by: variant.redirect,
                    inputs: vec![name.to_owned()],
                    targets: vec![REDIRECT_TARGET.to_owned()],
                    egress: variant.egress,
                    mode,
                    stats: false,
                    force: false,
                };
                RedirectDevice::attach(spec).map(Box::new).map(Self::Redirect)
            }
            VariantSpec::Cpumap(_) => {
                let VariantSpec::Cpumap(variant) = plan.program.clone().or_target(REDIRECT_TARGET) else {
                    return Err(Error::invalid("name the interface to redirect to", "it changed the program"));
                };
                CpumapDevice::attach(name, variant.resolve()?, mode, None, false).map(Box::new).map(Self::Cpumap)
            }
            VariantSpec::Xsk(variant) => {
                let spec = variant.spec(vec![variant.handling()], mode)?;
                XskDevice::attach(name, spec, mode, None, false).map(Box::new).map(Self::Xsk)
            }
            VariantSpec::Object(spec) => {
                Err(Error::usage(format!("count what {spec} does"), "a user's program counts nothing for this tool"))
            }
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Basic(device) => device.as_mut(),
            Self::Redirect(device) => device.as_mut(),
            Self::Cpumap(device) => device.as_mut(),
            Self::Xsk(device) => device.as_mut(),
        }
    }

    fn start(&self, started: String) -> Start {
        match self {
            Self::Basic(device) => device.start(started),
            Self::Redirect(device) => device.start("redirect", started),
            Self::Cpumap(device) => device.start(started),
            Self::Xsk(device) => device.start(started),
        }
    }

    fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        match self {
            Self::Basic(device) => Ok(device.end(total, ended_by)),
            Self::Redirect(device) => device.end(total, ended_by),
            Self::Cpumap(device) => device.end(total, ended_by),
            Self::Xsk(device) => device.end(total, ended_by),
        }
    }
}

fn attach_sink(port: &Port) -> Result<(Attachment, Sink)> {
    let sink = Sink::load()?;
    let attachment = port.netns.run(|| Attachment::attach(sink.fd()?, port.ifindex, XdpMode::Native))?;
    Ok((attachment, sink))
}

/// Waits that end when `stop` is set.
struct Timer<'a> {
    stop: &'a AtomicBool,
    progress: &'a mut dyn Progress,
    begin: Instant,
    seconds: f64,
}

impl Clock for Timer<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wait(&mut self, deadline: Instant) -> Result<Woken> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Woken::End("SIGINT"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Woken::Deadline);
            }
            sleep(left.min(STEP));
            self.progress.sampling(self.begin.elapsed().as_secs_f64(), self.seconds, 0);
        }
    }
}

/// What is told, kept.
#[derive(Default)]
struct Intervals(Vec<Interval>);

impl View for Intervals {
    fn tell(&mut self, told: Told<'_>) -> Result<ControlFlow<()>> {
        if let Told::Interval(interval) | Told::Last(interval) = told {
            self.0.push(interval.clone());
        }
        Ok(ControlFlow::Continue(()))
    }
}
