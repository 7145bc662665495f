//! Child processes that end with their parent, however that ends.
#![expect(unsafe_code, reason = "code that runs between fork and exec is installed by an unsafe call")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a running child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long it has to end after SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Has the kernel kill the child when the thread that starts it ends, also by SIGKILL (`PR_SET_PDEATHSIG`, prctl(2)).
fn dies_with_this_thread(command: &mut Command) {
    // SAFETY: the closure makes one system call and touches no memory of the parent's other threads.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
}

/// A child that does not outlive its owner: when this is dropped it is asked to end, then killed, and reaped.
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
    /// # Errors
    /// As of [`Command::spawn`].
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        dies_with_this_thread(command);
        command.spawn().map(Self)
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
        let over = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if over(&mut self.0) {
            return;
        }
        // A child that has not been waited for keeps its number, so the signal reaches nobody else.
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX));
        kill(pid, Signal::SIGTERM).unwrap_or_default();
        let begin = Instant::now();
        while !over(&mut self.0) && begin.elapsed() < GRACE {
            sleep(LOOK_EVERY);
        }
        // It may have ended by now.
        drop((self.0.kill(), self.0.wait()));
    }
}
