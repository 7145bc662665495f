//! Ends a long system call of another thread by a signal.
//!
//! A live-frames test run is fast only if it is long; the kernel ends one early with `EINTR` when a signal is pending for the
//! thread (`bpf_test_timer_continue()` in net/bpf/test_run.c).
#![expect(unsafe_code, reason = "a signal handler is installed by an unsafe call")]

use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::pthread::{Pthread, pthread_kill};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::error::{Error, Result};

/// The signal used: nobody else's, its default would end the process, hence the handler.
const SIGNAL: Signal = Signal::SIGUSR2;

extern "C" fn nothing(_: nix::libc::c_int) {}

/// Installs the empty handler once in the process; without `SA_RESTART`, so that calls do end.
///
/// # Errors
/// `sigaction` failed.
pub fn prepare() -> Result<()> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing, which is async-signal-safe, and replaces nobody's: this process sets no other
        // handler for the signal.
        unsafe { sigaction(SIGNAL, &action) }.map(|_| ())
    });
    installed.map_err(|errno| Error::syscall("install the handler that ends long calls", "sigaction", errno))
}

/// Interrupts the system call that `thread` is in, if it is in one.
///
/// The caller repeats it until the thread has seen that it shall stop, since a signal that comes just before the call is
/// lost.
pub fn interrupt<T>(thread: &std::thread::JoinHandle<T>) {
    use std::os::unix::thread::JoinHandleExt;
    // The standard library has it as a number, which the type of some C libraries is not.
    let id = thread.as_pthread_t() as Pthread;
    // ESRCH: the thread ended already, and need not be signalled; its handle keeps the id from being used anew.
    pthread_kill(id, SIGNAL).unwrap_or_default();
}
