//! Child processes that end with their parent, however that ends.
#![expect(unsafe_code, reason = "code that runs between fork and exec is installed by an unsafe call")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// How often a running child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long it has to end after SIGTERM before it gets SIGKILL. A make(1) first takes away what its compilers left half done.
const GRACE: Duration = Duration::from_secs(5);

/// Has the kernel kill the child when the thread that starts it ends, also by SIGKILL (`PR_SET_PDEATHSIG`, prctl(2)).
fn dies_with_this_thread(command: &mut Command) {
    // SAFETY: the closure makes one system call and touches no memory of the parent's other threads.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
}

/// A child that does not outlive its owner: when this is dropped, it and its own children are asked to end, then killed, and it is
/// reaped.
#[derive(Debug)]
pub(crate) struct Running(Child);

/// Why waiting for a child was over.
#[derive(Debug)]
pub(crate) enum Waited {
    Ended(ExitStatus),
    TimeIsOver,
    Stopped,
}

impl Running {
    /// Starts it as the first of a process group of its own.
    ///
    /// # Errors
    /// As of [`Command::spawn`].
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        dies_with_this_thread(command);
        command.process_group(0).spawn().map(Self)
    }

    /// Waits for its end, for the end of its time, or until `stop` is set.
    ///
    /// # Errors
    /// wait4(2) failed.
    pub(crate) fn wait(&mut self, timeout: Duration, stop: &AtomicBool) -> io::Result<Waited> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Waited::Ended(status));
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(Waited::Stopped);
            }
            if begin.elapsed() > timeout {
                return Ok(Waited::TimeIsOver);
            }
            sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        // A child that has not been waited for keeps its number, so signals reach nobody else. WNOWAIT leaves it so.
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX));
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        killpg(pid, Signal::SIGTERM).unwrap_or_default();
        let begin = Instant::now();
        while matches!(waitid(Id::Pid(pid), look), Ok(WaitStatus::StillAlive)) && begin.elapsed() < GRACE {
            sleep(LOOK_EVERY);
        }
        killpg(pid, Signal::SIGKILL).unwrap_or_default();
        // There is nothing to be done about a child that can't be reaped.
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn what_a_child_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        shell.current_dir(folder.path()).args(["-c", "sleep 1000 & echo $! > tmp; mv tmp pid; wait"]);
        let mut running = Running::start(&mut shell).unwrap();
        let pid = loop {
            match std::fs::read_to_string(folder.path().join("pid")) {
                Ok(pid) => break pid,
                Err(_) => sleep(LOOK_EVERY),
            }
        };
        let waited = running.wait(Duration::ZERO, &AtomicBool::new(false)).unwrap();
        assert!(matches!(waited, Waited::TimeIsOver), "{waited:?}");
        drop(running);
        let state =
            || std::fs::read_to_string(PathBuf::from("/proc").join(pid.trim()).join("stat")).unwrap_or_default();
        let begin = Instant::now();
        // Who reaps it is the first process, which takes its time.
        while !state().is_empty() && !state().contains(") Z ") {
            assert!(begin.elapsed() < Duration::from_secs(10), "{}", state());
            sleep(LOOK_EVERY);
        }
    }
}
