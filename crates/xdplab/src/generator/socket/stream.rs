//! What the threads of both ends have in common: the counters that others read, the CPU time, and the way to stop.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::outcome::StreamReport;
use crate::error::{Error, Result};
use crate::units::whole_nanos;

/// How long a call of a stream waits before its thread looks whether to end.
const PATIENCE: Duration = Duration::from_millis(20);

/// What a thread has done so far; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Progress {
    bytes: AtomicU64,
    datagrams: AtomicU64,
    calls: AtomicU64,
}

impl Progress {
    /// A call that moved something. Only the thread itself writes.
    pub(super) fn add(&self, bytes: u64, datagrams: u64) {
        let add = |to: &AtomicU64, number| to.store(to.load(Ordering::Relaxed) + number, Ordering::Relaxed);
        add(&self.bytes, bytes);
        add(&self.datagrams, datagrams);
        add(&self.calls, 1);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    pub(super) fn report(&self, cpu: Option<usize>, time: CpuTime) -> StreamReport {
        StreamReport {
            cpu,
            bytes: self.bytes(),
            datagrams: self.datagrams(),
            calls: self.calls.load(Ordering::Relaxed),
            user_ns: whole_nanos(time.user),
            system_ns: whole_nanos(time.system),
            ..StreamReport::default()
        }
    }
}

/// CPU time of the calling thread, which the kernel tells in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTime {
    user: Duration,
    system: Duration,
}

impl CpuTime {
    pub(super) fn now() -> Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_THREAD)
            .map_err(|errno| Error::syscall("read the CPU time of a thread", "getrusage(RUSAGE_THREAD)", errno))?;
        let duration = |time: TimeVal| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0));
        Ok(Self { user: duration(usage.user_time()), system: duration(usage.system_time()) })
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        Self { user: self.user.saturating_sub(earlier.user), system: self.system.saturating_sub(earlier.system) }
    }
}

/// How a thread ended: its report, and when its first and last byte were moved.
pub(super) type Ended = (StreamReport, Option<(Instant, Instant)>);

/// The thread of a stream.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) progress: Arc<Progress>,
    pub(super) thread: Option<JoinHandle<Result<Ended>>>,
}

impl Worker {
    pub(super) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub(super) fn join(&mut self) -> Result<Ended> {
        let panicked = || Error::invalid("run a stream", "its thread panicked");
        let thread = self.thread.take().ok_or_else(panicked)?;
        thread.join().unwrap_or_else(|_panic| Err(panicked()))
    }
}

/// The threads of one end; dropping them ends them.
#[derive(Debug, Default)]
pub(super) struct Workers {
    pub(super) workers: Vec<Worker>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Workers {
    pub(super) fn bytes(&self) -> u64 {
        self.workers.iter().map(|worker| worker.progress.bytes()).sum()
    }

    pub(super) fn datagrams(&self) -> u64 {
        self.workers.iter().map(|worker| worker.progress.datagrams()).sum()
    }

    pub(super) fn are_running(&self) -> bool {
        self.workers.iter().any(Worker::is_running)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn join(&mut self) -> Result<Vec<Ended>> {
        let ended: Vec<Result<Ended>> = self.workers.iter_mut().map(Worker::join).collect();
        ended.into_iter().collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
        for thread in self.workers.iter_mut().filter_map(|worker| worker.thread.take()) {
            // Whoever drops a run does not ask how it ended.
            drop(thread.join());
        }
    }
}

/// Makes every call on the socket come back after a short while.
pub(super) fn limit_waits(socket: &OwnedFd) -> Result<()> {
    let patience = TimeVal::microseconds(PATIENCE.as_micros().try_into().unwrap_or(i64::MAX));
    let set = || -> nix::Result<()> {
        setsockopt(&socket.as_fd(), sockopt::SendTimeout, &patience)?;
        setsockopt(&socket.as_fd(), sockopt::ReceiveTimeout, &patience)
    };
    set().map_err(|errno| Error::syscall("limit how long a stream's calls wait", "setsockopt(SO_SNDTIMEO)", errno))
}

/// Whether a call has only to be made again.
pub(super) fn again(errno: Errno) -> bool {
    matches!(errno, Errno::EAGAIN | Errno::EINTR)
}

/// The CPU of the `index`th stream.
pub(super) fn cpu_of(cpus: &[usize], index: usize) -> Option<usize> {
    cpus.get(index % cpus.len().max(1)).copied()
}
