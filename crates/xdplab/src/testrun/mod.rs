//! The programs alone: the dispatcher is run by `BPF_PROG_TEST_RUN` in place of traffic. No driver, no NAPI, no page pool.
//!
//! A call has a fixed cost of tens of milliseconds, so variants can't be interleaved call by call. The dispatcher
//! interleaves them within a call, with the schedule, the slices and the statistics of a run on live traffic.
//!
//! What is timed: the kernel's loop, the dispatcher and the program. An empty program (`drop:uncounted`) is a further
//! variant of the schedule, and what a program costs more than it is the program alone; differences between programs are
//! free of loop and dispatcher by themselves.
//!
//! **Warm**: the kernel copies the frame once for each call, so all runs find the same packet in the first level cache.
//! **Cold**: a program in front of the dispatcher pushes the packet's first 64 bytes out of the first level cache before
//! each run, by walking other lines of the same cache set (`bpf/cold.bpf.c`); they come from the second level then. On an
//! AMD EPYC (Zen 4) a program that waits for the packet took 2.5 ns longer. The packet's further lines, the maps and the
//! code stay warm. Walking takes some hundred nanoseconds a packet, the same for all programs but for its scatter. A packet
//! that comes from memory, as from a NIC without direct cache access, costs more than a test run can show: walking enough
//! to empty a second level cache of 1 MiB would take tens of microseconds a packet.
//!
//! Limits: a program finds the packet as its run before left it (a `bpf_xdp_adjust_head` adds up), nothing acts on
//! what it returns, there is one frame, and it seems to come in on RX queue 0 of the loopback device. Programs that redirect
//! find that device in their devmap, and look it up in vain.

mod cold;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::device::SlicedDevice;
use crate::error::{Error, Result};
use crate::host::{CpuShares, CpuTimes};
use crate::observed::{Ledger, Observed, Trial};
use crate::packet::build_udp_frame;
use crate::reading::Reading;
use crate::reference::{Beside, Reference};
use crate::rig::{self, Counted, Looks};
use crate::run::{Engine, PROGRAM_ONLY, Plan, Progress, Rig};
use crate::sample::SliceReader;
use crate::stats::Slice;
use crate::sys::affinity::Pinned;
use crate::sys::bpf::run_alone;
use crate::topology::PlacementState;

use cold::Cold;

/// What errors say was tried.
const WHAT: &str = "run the programs alone";
/// How long the runs of a call are made to take: its fixed cost becomes a small part, and a run still ends soon after it is
/// told to.
const CALL: Duration = Duration::from_millis(100);
/// Repetitions of the first call.
const FIRST_REPEAT: u32 = 4096;

/// Runs a plan's programs by `BPF_PROG_TEST_RUN` on the CPU of the plan's device; for plans with [`Engine::TestRun`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TestRunRig;

impl Rig for TestRunRig {
    fn measure(&mut self, plan: &Plan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Observed> {
        let Engine::TestRun { cold } = plan.engine else {
            return Err(Error::usage(WHAT, "the plan is for live traffic"));
        };
        if plan.flows != 1 {
            return Err(Error::usage(WHAT, format!("{} flows are asked for", plan.flows))
                .remedy("a test run has one frame: ask for one flow"));
        }
        let frame = build_udp_frame(&plan.flow, plan.size)?;
        let cpu = plan.placement.dut_cpu().ok_or_else(|| Error::usage(WHAT, "no CPU is planned for them"))?;
        let (tried, _) = rig::try_objects(plan, &frame)?;
        progress.stage("running the programs alone");
        let reference = Beside::begin(Some(cpu));
        let mut taken = Taken::default();
        let mut repeat = FIRST_REPEAT;
        let times = CpuTimes::read();
        let mut looks = Looks::at(plan.rounds);
        for round in 0..plan.most_rounds() {
            if looks.is_over(plan, taken.seconds, &taken.slices, &taken.rounds) {
                break;
            }
            let mut bench = Bench::load(plan, round, cold, &frame)?;
            let pinned = Pinned::to(cpu)?;
            repeat = bench.warm_up(repeat)?;
            bench.round(plan, &mut taken, progress, stop)?;
            drop(pinned);
            bench.retire(&mut taken)?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let beside = Surroundings {
            tried,
            interrupted: stop.load(Ordering::Relaxed),
            cpu_shares: times.and_then(|before| Ok(CpuTimes::read()?.since(&before).into_iter().collect())).into(),
            reference: reference.and_then(Beside::end).into(),
        };
        Ok(taken.observed(plan, beside))
    }
}

/// What the rounds gave.
#[derive(Default)]
struct Taken {
    slices: Vec<Slice>,
    /// Slices of each round.
    rounds: Vec<usize>,
    seconds: f64,
    /// Runs that the kernel was asked for.
    asked: u64,
    counted: Counted,
}

/// What was observed beside the slices.
struct Surroundings {
    tried: Vec<Trial>,
    interrupted: bool,
    cpu_shares: Reading<Vec<(u32, Reading<CpuShares>)>>,
    reference: Reading<Reference>,
}

/// What a round is taken with.
struct Bench<'a> {
    device: SlicedDevice,
    cold: Option<Cold>,
    reader: SliceReader,
    frame: &'a [u8],
    repeat: u32,
    asked: u64,
}

impl<'a> Bench<'a> {
    fn load(plan: &Plan, round: u16, cold: bool, frame: &'a [u8]) -> Result<Self> {
        let (device, reader) = rig::load(plan, round, None)?;
        let cold = if cold { Some(Cold::load(&device)?) } else { None };
        Ok(Self { device, cold, reader, frame, repeat: FIRST_REPEAT, asked: 0 })
    }

    /// Calls until one takes about as long as it should, forgets the slices, and gives the repetitions of such a call.
    fn warm_up(&mut self, repeat: u32) -> Result<u32> {
        self.repeat = repeat;
        while self.call()? < CALL / 2 {}
        self.reader.drain(&mut Vec::new());
        Ok(self.repeat)
    }

    /// The slices of a round.
    fn round(&mut self, plan: &Plan, taken: &mut Taken, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<()> {
        let before = taken.slices.len();
        let begin = Instant::now();
        let done = |taken: &Taken| plan.is_round_done(begin.elapsed().as_secs_f64(), &taken.slices[before..]);
        while !done(taken) && !stop.load(Ordering::Relaxed) {
            self.call()?;
            self.reader.drain(&mut taken.slices);
            progress.sampling(taken.seconds + begin.elapsed().as_secs_f64(), plan.seconds, taken.slices.len());
        }
        taken.seconds += begin.elapsed().as_secs_f64();
        taken.rounds.push(taken.slices.len() - before);
        Ok(())
    }

    fn retire(self, taken: &mut Taken) -> Result<()> {
        taken.asked += self.asked;
        taken.counted.add(&self.reader.counts()?, &self.device);
        Ok(())
    }

    /// One call; gives the time of its runs, and makes the next one's take about as long as it should.
    fn call(&mut self) -> Result<Duration> {
        let program = match &self.cold {
            Some(cold) => cold.fd(),
            None => self.device.fd()?,
        };
        let mask = |mask: SigSet| {
            mask.thread_swap_mask(SigmaskHow::SIG_SETMASK)
                .map_err(|errno| Error::syscall(WHAT, "pthread_sigmask", errno))
        };
        // A signal would end the call early, with nobody knowing how many packets it had run. It waits for the end instead.
        let before = mask(SigSet::all())?;
        let called = run_alone(program, self.frame, self.repeat, WHAT);
        mask(before)?;
        let took = Duration::from_nanos(u64::from(self.repeat) * u64::from(called?.duration_ns.max(1)));
        self.asked += u64::from(self.repeat);
        let scale = (CALL.as_secs_f64() / took.as_secs_f64()).clamp(0.25, 4.0);
        self.repeat = (f64::from(self.repeat) * scale) as u32;
        Ok(took)
    }
}

impl Taken {
    fn observed(self, plan: &Plan, surroundings: Surroundings) -> Observed {
        let Counted { dispatcher, programs, .. } = self.counted;
        Observed {
            slices: self.slices,
            rounds: self.rounds,
            slices_lost: dispatcher.lost,
            packets_without_program: dispatcher.misses,
            seconds: self.seconds,
            interrupted: surroundings.interrupted,
            tried: surroundings.tried,
            restored_bytes: 0,
            ledger: Ledger {
                generated: Reading::Known(self.asked),
                xmit: no_driver(),
                received: dispatcher.cpu_packets.iter().sum(),
                handled: Reading::not_available("the empty program does not count"),
                aborted: programs.map(|queues| rig::sum(queues.iter().flatten()).aborted),
                interface_received: no_driver(),
                returned: None,
                onwards: None,
            },
            rx_queue_packets: no_driver(),
            cpu_packets: dispatcher.cpu_packets,
            exceptions: no_driver(),
            redirect_errors: no_driver(),
            napi: no_driver(),
            softirqs: no_driver(),
            page_pools: no_driver(),
            pool_paths: None,
            cpu_shares: surroundings.cpu_shares,
            remote: Vec::new(),
            reference: surroundings.reference,
            xdp_mode: None,
            lab_before: None,
            lab_after: None,
            placement: PlacementState { placement: plan.placement, napi_ids: no_driver(), threads: Vec::new() },
        }
    }
}

fn no_driver<T>() -> Reading<T> {
    Reading::not_available(PROGRAM_ONLY)
}
