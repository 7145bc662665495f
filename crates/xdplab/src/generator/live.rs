//! Live frames: `BPF_PROG_TEST_RUN` makes frames in the kernel and a redirect sends them out of an interface, with no socket
//! and no system call per packet. Kernel 5.18.
//!
//! A call builds a page_pool of its own, a fixed cost of milliseconds, so calls must be long; the kernel ends one early
//! with `EINTR` on a signal, so threads still stop at once. What was sent is told by the program's own counter.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, PerCpuValues};
use aya::programs::{ProgramError, TestRun, TestRunAttrs, TestRunOptions, Xdp};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::trafficgen::{GapMap, StateMap, TrafficSpec};
use super::{GapCounts, Pace};
use crate::bpf;
use crate::error::{Error, Result};
use crate::sys::affinity::Pinned;
use crate::sys::bpf::run_live_frames;
use crate::sys::interrupt;
use crate::topology::NetNs;
use crate::units::whole_nanos;

/// What to send and from where.
#[derive(Clone, Debug)]
pub struct LiveFramesSpec {
    /// The frame without FCS; each packet is a copy.
    pub frame: Vec<u8>,
    /// The interface that frames leave by, in the namespace given at the start.
    pub ifindex: u32,
    /// One thread on each of these CPUs.
    pub cpus: Vec<usize>,
    /// Frames that the kernel makes before it sends them, 1 to 256.
    pub batch: u32,
    /// How many packets in all over the threads; `None`: until stopped.
    pub count: Option<u64>,
    /// What is written into each frame before it is sent.
    pub rewrite: Rewrite,
}

/// What the generator writes into each frame. It costs time in the generator, the same for every variant of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Bytes from the frame's start that get their first values back: pages are recycled, and with them whatever the
    /// device's programs wrote; see [`Rewrite::restorable`].
    pub restored: usize,
    /// UDP source ports in turn, upwards from the frame's own (after 65535 comes 0); at least 1.
    pub flows: u16,
    /// Where the frame's UDP header begins; used with several flows.
    pub udp_offset: usize,
}

impl Rewrite {
    /// The most bytes that are restored: headers, with tunnels around them.
    pub const MAX_RESTORED: usize = 128;

    /// How many bytes are restored where `bytes` are asked for, of a frame with `frame_len`: words of 8 bytes that are whole
    /// in the frame, up to [`Rewrite::MAX_RESTORED`].
    #[must_use]
    pub fn restorable(bytes: usize, frame_len: usize) -> usize {
        bytes.next_multiple_of(8).min(frame_len / 8 * 8).min(Self::MAX_RESTORED)
    }

    fn words(self, frame: &[u8]) -> Vec<u64> {
        let words = Self::restorable(self.restored, frame.len()) / 8;
        frame.as_chunks().0.iter().take(words).map(|word| u64::from_ne_bytes(*word)).collect()
    }
}

/// Nothing is written.
impl Default for Rewrite {
    fn default() -> Self {
        Self { restored: 0, flows: 1, udp_offset: 0 }
    }
}

impl LiveFramesSpec {
    /// The batch that the kernel takes by default is 64 (`TEST_XDP_BATCH`, net/bpf/test_run.c), a NAPI budget.
    pub const DEFAULT_BATCH: u32 = 64;
    /// Packets of one call: at 60 to 200 ns each some hundred milliseconds, so that the call's fixed cost does not show.
    const PACKETS_PER_CALL: u64 = 2_000_000;

    fn object(&self) -> bpf::Object {
        let Rewrite { flows, udp_offset, .. } = self.rewrite;
        let mut original = self.rewrite.words(&self.frame);
        let words = original.len() as u32; // At most 16.
        original.resize(Rewrite::MAX_RESTORED / 8, 0);
        let port = self.frame.get(udp_offset..udp_offset + 2).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
        bpf::Object {
            globals: [
                ("target_ifindex", self.ifindex),
                ("restore_words", words),
                ("flows", flows.into()),
                ("first_port", port.into()),
                ("port_offset", udp_offset as u32),
            ]
            .into(),
            arrays: [("original", original)].into(),
            ..bpf::Object::default()
        }
    }
}

/// What was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Packets that the generator's program handed to the redirect, over all CPUs.
    pub packets: u64,
    /// The same for each possible CPU.
    pub per_cpu: Vec<u64>,
}

/// Threads that send until they are stopped or have sent their count. Dropping stops them.
pub struct LiveFrames {
    threads: Vec<JoinHandle<Result<()>>>,
    cpu_times: Vec<Arc<AtomicU64>>,
    go: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// Each thread's own.
    counters: Vec<Arc<Counter>>,
    /// Of each thread that departs by a schedule.
    gaps: Vec<GapMap>,
    count: Option<u64>,
}

/// What the threads of a generator do, each with an object of its own.
pub(super) struct Job<'a> {
    /// The program that sends.
    pub(super) program: &'static str,
    pub(super) frame: &'a [u8],
    pub(super) cpus: &'a [usize],
    pub(super) batch: u32,
    pub(super) count: Option<u64>,
    /// Most packets of one call.
    pub(super) packets_per_call: u64,
    /// The program sends the count and no more, though it is run more often.
    pub(super) paced: bool,
}

/// What a program counted.
pub(super) enum Counter {
    /// For each possible CPU.
    PerCpu(PerCpuArray<MapData, u64>),
    /// On this CPU.
    On(usize, StateMap),
}

impl Counter {
    /// For each CPU up to the last that counted.
    fn read(&self) -> Result<Vec<u64>> {
        let what = "read the generator's counter";
        match self {
            Self::PerCpu(map) => {
                let values: PerCpuValues<u64> = map.get(&0, 0).map_err(|error| bpf::map_error(what, &error))?;
                Ok(values.to_vec())
            }
            Self::On(cpu, map) => {
                let mut values = vec![0; cpu + 1];
                values[*cpu] = map.packets()?;
                Ok(values)
            }
        }
    }
}

impl LiveFrames {
    /// Loads a program for each thread and starts the threads in `netns`.
    ///
    /// # Errors
    /// The kernel refused the program, or a thread could not be started, pinned or moved.
    pub fn start(spec: &LiveFramesSpec, netns: &NetNs) -> Result<Self> {
        let job = Job {
            program: "send",
            frame: &spec.frame,
            cpus: &spec.cpus,
            batch: spec.batch,
            count: spec.count,
            packets_per_call: LiveFramesSpec::PACKETS_PER_CALL,
            paced: false,
        };
        let mut generator = Self::launch(&job, netns, |_thread| {
            let mut object = bpf::load(bpf::GENERATOR, &spec.object())?;
            bpf::program(&mut object, job.program)?;
            let counter = bpf::take_map(&mut object, "packets").map(Counter::PerCpu)?;
            Ok((object, counter))
        })?;
        generator.go();
        Ok(generator)
    }

    /// The same for frames that differ, as fast as can be or as scheduled. A scheduled thread is busy all the time, and the
    /// kernel runs nothing else on its CPU for up to 50 us.
    ///
    /// # Errors
    /// As [`LiveFrames::start`].
    pub fn send(spec: &TrafficSpec, netns: &NetNs) -> Result<Self> {
        let mut generator = Self::prepare(spec, netns)?;
        generator.go();
        Ok(generator)
    }

    /// The same, but nothing is sent before [`LiveFrames::go`].
    ///
    /// # Errors
    /// As [`LiveFrames::start`].
    pub fn prepare(spec: &TrafficSpec, netns: &NetNs) -> Result<Self> {
        let job = Job {
            program: TrafficSpec::PROGRAM,
            frame: spec.traffic.longest(),
            cpus: &spec.cpus,
            batch: spec.pace.map_or(spec.batch, |Pace { burst, .. }| burst.min(TrafficSpec::MAX_BATCH)),
            count: spec.count,
            packets_per_call: u32::MAX.into(),
            paced: spec.pace.is_some(),
        };
        let mut gaps = Vec::new();
        let mut generator = Self::launch(&job, netns, |thread| {
            let count = spec.count.map(|count| share(count, spec.cpus.len(), thread));
            let (object, state, gap_map) = spec.load(thread, count, netns)?;
            gaps.extend(gap_map);
            Ok((object, Counter::On(spec.cpus[thread], state)))
        })?;
        generator.gaps = gaps;
        Ok(generator)
    }

    pub(super) fn launch(
        job: &Job<'_>,
        netns: &NetNs,
        mut load: impl FnMut(usize) -> Result<(Ebpf, Counter)>,
    ) -> Result<Self> {
        interrupt::prepare()?;
        let mut generator = Self {
            threads: Vec::new(),
            cpu_times: Vec::new(),
            go: Arc::new(AtomicBool::new(false)),
            stop: Arc::new(AtomicBool::new(false)),
            counters: Vec::new(),
            gaps: Vec::new(),
            count: job.count,
        };
        let mut workers = Vec::new();
        for (index, &cpu) in job.cpus.iter().enumerate() {
            let (object, counter) = load(index)?;
            let counter = Arc::new(counter);
            generator.counters.push(Arc::clone(&counter));
            workers.push(Worker {
                object,
                program: job.program,
                counter,
                netns: netns.try_clone()?,
                frame: job.frame.to_vec(),
                batch: job.batch,
                cpu,
                count: job.count.map(|count| share(count, job.cpus.len(), index)),
                packets_per_call: job.packets_per_call,
                paced: job.paced,
                cpu_time: Arc::default(),
                go: Arc::clone(&generator.go),
                stop: Arc::clone(&generator.stop),
            });
        }
        // All at once, so that none sends while the others are still loaded.
        workers.into_iter().try_for_each(|worker| generator.spawn(worker)).map(|()| generator)
    }

    fn spawn(&mut self, worker: Worker) -> Result<()> {
        self.cpu_times.push(Arc::clone(&worker.cpu_time));
        let thread = std::thread::Builder::new()
            .name(format!("generator/{}", worker.cpu))
            .spawn(move || {
                let ended = worker.run();
                worker.tell_cpu_time();
                ended
            })
            .map_err(|error| Error::io("start a generator thread", "clone", &error))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Lets the threads begin.
    pub fn go(&mut self) {
        self.go.store(true, Ordering::Relaxed);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    /// How long each thread ran on its CPU, once it has ended, with all that the kernel did in its name.
    #[must_use]
    pub fn cpu_times(&self) -> Vec<Duration> {
        self.cpu_times.iter().map(|time| Duration::from_nanos(time.load(Ordering::Relaxed))).collect()
    }

    /// What each thread has sent so far.
    ///
    /// # Errors
    /// A counter could not be read.
    pub fn sent_by_thread(&self) -> Result<Vec<u64>> {
        self.counters.iter().map(|counter| Ok(counter.read()?.iter().sum())).collect()
    }

    /// Gaps between the scheduled departures of each thread, over all threads; `None` without a schedule.
    ///
    /// # Errors
    /// A map could not be read.
    pub fn gaps(&self) -> Result<Option<GapCounts>> {
        let mut sum: Option<GapCounts> = None;
        for map in &self.gaps {
            let counts = map.read()?;
            sum.get_or_insert_default().add(&counts);
        }
        Ok(sum)
    }

    /// What was sent so far.
    ///
    /// # Errors
    /// The counter could not be read.
    pub fn sent(&self) -> Result<Sent> {
        let mut per_cpu = Vec::new();
        for counter in &self.counters {
            let of_thread = counter.read()?;
            per_cpu.resize(of_thread.len().max(per_cpu.len()), 0);
            per_cpu.iter_mut().zip(&of_thread).for_each(|(sum, packets)| *sum += packets);
        }
        Ok(Sent { packets: per_cpu.iter().sum(), per_cpu })
    }

    /// Whether a thread is still sending.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.threads.iter().any(|thread| !thread.is_finished())
    }

    /// Whether all that was asked for has been sent, or the threads have ended.
    ///
    /// # Errors
    /// A counter could not be read.
    pub fn is_done(&self) -> Result<bool> {
        let reached = |count| self.sent().map(|sent| sent.packets >= count);
        Ok(!self.is_running() || self.count.map_or(Ok(false), reached)?)
    }

    /// Waits until the counted packets are sent.
    ///
    /// # Errors
    /// A thread failed, or the counter could not be read.
    pub fn wait(mut self) -> Result<Sent> {
        while !self.is_done()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A scheduled thread goes on without sending.
        self.halt();
        self.join()?;
        self.sent()
    }

    /// Ends the threads; what was sent can still be read.
    ///
    /// # Errors
    /// Why a thread failed.
    pub fn end(&mut self) -> Result<()> {
        self.halt();
        self.join()
    }

    /// Stops the threads and says what was sent in all.
    ///
    /// # Errors
    /// A thread failed, or the counter could not be read.
    pub fn stop(mut self) -> Result<Sent> {
        self.halt();
        self.join()?;
        self.sent()
    }

    fn halt(&self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(thread) = self.threads.iter().find(|thread| !thread.is_finished()) {
            interrupt::interrupt(thread);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn join(&mut self) -> Result<()> {
        self.threads.drain(..).try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_panic| Err(Error::invalid("generate packets", "a generator thread panicked")))
        })
    }
}

impl Drop for LiveFrames {
    fn drop(&mut self) {
        self.halt();
        // Whoever drops a generator does not ask how it ended.
        self.join().unwrap_or_default();
    }
}

/// The part of `count` that the `index`th of `threads` sends; the parts add up to `count`.
pub(super) fn share(count: u64, threads: usize, index: usize) -> u64 {
    let (threads, index) = (threads as u64, index as u64);
    count / threads + u64::from(index < count % threads)
}

struct Worker {
    object: Ebpf,
    program: &'static str,
    counter: Arc<Counter>,
    netns: NetNs,
    frame: Vec<u8>,
    batch: u32,
    cpu: usize,
    count: Option<u64>,
    packets_per_call: u64,
    paced: bool,
    /// Written at the end.
    cpu_time: Arc<AtomicU64>,
    go: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn run(&self) -> Result<()> {
        self.netns.enter()?;
        let _pinned = Pinned::to(self.cpu)?;
        let program: &Xdp = self
            .object
            .program(self.program)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| Error::invalid("generate packets", "the generator's program is not in its object"))?;
        while !self.go.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        while !self.stop.load(Ordering::Relaxed) {
            match self.left()? {
                0 => break,
                // Of a scheduled program's runs only some send.
                _ if self.paced => self.call(program, self.packets_per_call)?,
                left => self.call(program, left.min(self.packets_per_call))?,
            }
        }
        Ok(())
    }

    fn tell_cpu_time(&self) {
        // The clock is there on every kernel that has live frames.
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
        self.cpu_time.store(whole_nanos(time), Ordering::Relaxed);
    }

    /// How many packets are still to be sent. The program's own count says it, since anybody's signal ends a call early.
    fn left(&self) -> Result<u64> {
        let Some(count) = self.count else { return Ok(u64::MAX) };
        Ok(count.saturating_sub(self.counter.read()?.iter().sum()))
    }

    fn call(&self, program: &Xdp, packets: u64) -> Result<()> {
        let mut options = TestRunOptions::new();
        options.data_in = Some(&self.frame);
        options.repeat = u32::try_from(packets).unwrap_or(u32::MAX);
        options.attrs = TestRunAttrs::new().xdp_live_frames(self.batch);
        match program.test_run(options) {
            Ok(_) => Ok(()),
            Err(ProgramError::SyscallError(call)) if call.io_error.raw_os_error() == Some(Errno::EINTR as i32) => {
                Ok(())
            }
            Err(ProgramError::SyscallError(call)) => {
                let error = Error::io("send live frames", "bpf(BPF_PROG_TEST_RUN)", &call.io_error);
                Err(match error.errno() {
                    Some(Errno::EINVAL) => error.remedy(
                        "live frames need kernel 5.18, and frames that leave some hundred bytes of a page; xdplab doctor \
                         says what is there",
                    ),
                    Some(Errno::EPERM) => error.remedy("run as root, or with CAP_BPF and CAP_NET_ADMIN"),
                    _ => error,
                })
            }
            Err(other) => Err(Error::invalid("send live frames", other.to_string())),
        }
    }
}

/// A loaded program that sends when the calling thread runs it, in that thread's network namespace.
pub struct FrameSource {
    object: Ebpf,
    frame: Vec<u8>,
}

impl FrameSource {
    /// Loads the program. CPUs, batch and count of `spec` are for [`LiveFrames`]: here every call says how many it sends, from
    /// the calling thread, in batches of [`LiveFramesSpec::DEFAULT_BATCH`].
    ///
    /// # Errors
    /// The kernel refused the program.
    pub fn load(spec: &LiveFramesSpec) -> Result<Self> {
        let mut object = bpf::load(bpf::GENERATOR, &spec.object())?;
        bpf::program(&mut object, "send")?;
        Ok(Self { object, frame: spec.frame.clone() })
    }

    /// Sends in one call. Gives the mean time of a packet, rounded down, as the kernel took it without what the call needs to
    /// set up.
    ///
    /// # Errors
    /// The kernel refused the call, or a signal ended it before all were sent.
    pub fn send(&self, packets: u32) -> Result<Duration> {
        let program = loaded(&self.object, "send")?;
        let run = run_live_frames(program, &self.frame, packets, "send live frames")?;
        Ok(Duration::from_nanos(run.duration_ns.into()))
    }
}

/// Takes what comes back to the generator's interface (`XDP_TX`), counts and drops it.
pub struct Sink {
    object: Ebpf,
    packets: PerCpuArray<MapData, u64>,
}

impl Sink {
    /// Loads the program; the caller attaches it.
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn load() -> Result<Self> {
        let mut object = bpf::load(bpf::GENERATOR, &bpf::Object::default())?;
        bpf::program(&mut object, "sink")?;
        let packets = bpf::take_map(&mut object, "packets")?;
        Ok(Self { object, packets })
    }

    /// The program's descriptor, to attach it.
    ///
    /// # Errors
    /// Never after a successful load.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        loaded(&self.object, "sink")
    }

    /// Packets that came.
    ///
    /// # Errors
    /// The counter could not be read.
    pub fn packets(&self) -> Result<u64> {
        let per_cpu = self.packets.get(&0, 0).map_err(|error| bpf::map_error("read the sink's counter", &error))?;
        Ok(per_cpu.iter().sum())
    }
}

/// The descriptor of an object's program that is loaded.
fn loaded<'a>(object: &'a Ebpf, name: &str) -> Result<BorrowedFd<'a>> {
    let program: Option<&Xdp> = object.program(name).and_then(|program| program.try_into().ok());
    program
        .and_then(|program| program.fd().ok())
        .map(AsFd::as_fd)
        .ok_or_else(|| Error::invalid(format!("open the program {name}"), "it is not loaded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_count_add_up_to_it() {
        for (count, threads) in [(10, 3), (2, 4), (0, 2), (u64::MAX, 7)] {
            let sum: u64 = (0..threads).map(|index| share(count, threads, index)).sum();
            assert_eq!(sum, count);
        }
    }
}
