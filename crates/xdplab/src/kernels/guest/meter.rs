//! What a call takes: CPU time in virtual nanoseconds, which with instruction counting are instructions.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::kernels::protocol::{Call, ROUNDS, Round};
use crate::sys::guest::{mark_begin, mark_end};

/// How long packets may be under way after the call that sent them.
const DEADLINE: Duration = Duration::from_secs(5);

/// The kernel thread that runs softirqs where they would take too long otherwise.
pub(super) const KSOFTIRQD: &str = "ksoftirqd/0";

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// The calling thread, in a system call.
    Caller,
    /// A kernel thread of pktgen. Each network namespace has one for each CPU, and they all have one name; it is the one whose
    /// CPU time grows most.
    Pktgen,
}

/// Counts the rounds of a case: each sends few packets, then many. `send` gives the kernel's own mean time of a packet where
/// there is one, `received` how many arrived so far.
pub(super) fn rounds(
    sender: Sender,
    [short, long]: [u64; 2],
    send: impl Fn(u64) -> Result<Option<Duration>>,
    received: impl Fn() -> Result<u64>,
) -> Result<Vec<Round>> {
    let call = |packets| call(sender, packets, &send, &received);
    (0..ROUNDS).map(|_| Ok(Round { short: call(short)?, long: call(long)? })).collect()
}

fn call(
    sender: Sender,
    packets: u64,
    send: &impl Fn(u64) -> Result<Option<Duration>>,
    received: &impl Fn() -> Result<u64>,
) -> Result<Call> {
    let softirq = Clocks::of(KSOFTIRQD)?;
    let pktgen = if sender == Sender::Pktgen { Some(Clocks::of("kpktgend_")?) } else { None };
    let received_before = received()?;
    let interrupts_before = timer_interrupts()?;
    let before = time(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    mark_begin();
    let mean = send(packets)?;
    mark_end();
    let own = time(ClockId::CLOCK_THREAD_CPUTIME_ID)? - before;
    await_packets(packets, || Ok(received()? - received_before))?;
    let ksoftirqd = softirq.grown().sum();
    let sent = pktgen.map_or(Some(own), |pktgen| pktgen.grown().max());
    let sent = sent.ok_or_else(|| Error::invalid("read the CPU time of pktgen", "its thread is gone"))?;
    Ok(Call {
        packets,
        instructions: sent + ksoftirqd,
        ksoftirqd,
        kernel_ns: mean.map(|mean| mean.as_nanos() as u64),
        timer_interrupts: timer_interrupts()? - interrupts_before,
    })
}

/// CPU clocks of kernel threads, and what they showed at first.
struct Clocks(Vec<(ClockId, u64)>);

impl Clocks {
    /// Of those whose names begin so.
    fn of(name: &str) -> Result<Self> {
        let clock = |pid| {
            let clock = clock_getcpuclockid(Pid::from_raw(pid)).ok()?;
            Some((clock, time(clock).ok()?))
        };
        // Threads of pktgen end with their network namespaces, some time after these were closed.
        Ok(Self(threads(name)?.into_iter().filter_map(clock).collect()))
    }

    /// By how much each has grown; those of threads that have ended are left out.
    fn grown(&self) -> impl Iterator<Item = u64> {
        self.0.iter().filter_map(|(clock, before)| Some(time(*clock).ok()? - before))
    }
}

/// Waits until the last packets have arrived, and no more of them than were sent.
pub(super) fn await_packets(packets: u64, arrived: impl Fn() -> Result<u64>) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match arrived()? {
            all if all == packets => return Ok(()),
            some if some > packets || Instant::now() > deadline => {
                return Err(Error::invalid("account for every packet", format!("{packets} were sent, {some} arrived")));
            }
            _ => sleep(Duration::from_millis(1)),
        }
    }
}

/// The kernel threads whose names begin so.
pub(super) fn threads(name: &str) -> Result<Vec<i32>> {
    let what = format!("find the kernel thread {name}");
    let processes = fs::read_dir("/proc").map_err(|error| Error::io(&what, "readdir", &error))?;
    let mut pids: Vec<i32> = processes
        .flatten()
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(name)))
        .collect();
    pids.sort_unstable();
    if pids.is_empty() { Err(Error::unsupported(what, "there is none")) } else { Ok(pids) }
}

fn time(clock: ClockId) -> Result<u64> {
    let time = clock_gettime(clock).map_err(|errno| Error::syscall("read a CPU time", "clock_gettime", errno))?;
    Ok(time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs())
}

/// Interrupts of the local timer since boot.
fn timer_interrupts() -> Result<u64> {
    let what = "count timer interrupts";
    let text = fs::read_to_string("/proc/interrupts").map_err(|error| Error::io(what, "read", &error))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("LOC:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| Error::unsupported(what, "/proc/interrupts has no line LOC"))
}
