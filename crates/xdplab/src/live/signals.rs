//! The clock of a live command: monotonic time, and the signals that end it or toggle what it shows.

use std::fs;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;

use super::session::{Clock, Woken};
use crate::error::{Error, Result};
use crate::sys::disposition;

/// Signals as something to read: SIGINT, SIGTERM and SIGHUP end, SIGQUIT toggles.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Keeps the signals for reading from now on; one that comes while the command is still set up waits until it is read.
    ///
    /// To be called before any thread is started, since a signal goes to any thread that does not block it. A SIGHUP that
    /// the caller ignores (`nohup`) stays ignored; the others are heeded also where a shell ignores them for a background job.
    ///
    /// # Errors
    /// The kernel gives no descriptor.
    pub fn keep() -> Result<Self> {
        let what = "keep signals for reading";
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT] {
            mask.add(signal);
        }
        if !is_ignored(Signal::SIGHUP) {
            mask.add(Signal::SIGHUP);
        }
        mask.thread_block().map_err(|errno| Error::syscall(what, "pthread_sigmask", errno))?;
        for signal in mask.iter() {
            disposition::restore(signal)?;
        }
        let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(|errno| Error::syscall(what, "signalfd", errno))?;
        Ok(Self { fd })
    }

    /// Whether a signal that ends commands waits to be read.
    #[must_use]
    pub fn pending() -> bool {
        const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        ENDING.iter().any(|signal| is_in("ShdPnd:", *signal) || is_in("SigPnd:", *signal))
    }

    /// Sleeps, but not on once a signal that ends commands is pending; whether none is.
    pub(super) fn sleep(time: Duration) -> bool {
        let end = Instant::now() + time;
        Self::await_that(|| Instant::now() >= end)
    }

    /// Waits for `condition`, or for a signal that ends commands; whether it was not a signal.
    pub(super) fn await_that(mut condition: impl FnMut() -> bool) -> bool {
        const STEP: Duration = Duration::from_millis(2);
        while !Self::pending() {
            if condition() {
                return true;
            }
            thread::sleep(STEP);
        }
        false
    }

    fn read(&self) -> Result<Option<Woken>> {
        let read = self.fd.read_signal().map_err(|errno| Error::syscall("read a signal", "read(signalfd)", errno))?;
        let signal = read.and_then(|info| Signal::try_from(info.ssi_signo.cast_signed()).ok());
        Ok(signal.map(|signal| if signal == Signal::SIGQUIT { Woken::Toggle } else { Woken::End(signal.as_str()) }))
    }
}

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: Signal) -> bool {
    is_in("SigIgn:", signal)
}

/// Whether the signal is in one of the sets of proc_pid_status(5).
fn is_in(set: &str, signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(set));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}

impl Clock for Signals {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wait(&mut self, deadline: Instant) -> Result<Woken> {
        loop {
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            let left = deadline.saturating_duration_since(Instant::now());
            match ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None) {
                Ok(0) => return Ok(Woken::Deadline),
                Ok(_) => {
                    if let Some(woken) = self.read()? {
                        return Ok(woken);
                    }
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::syscall("wait for the next reading", "ppoll", errno)),
            }
        }
    }
}
