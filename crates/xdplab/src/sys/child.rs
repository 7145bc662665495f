//! Child processes that end with their parent, however that ends.
#![expect(unsafe_code, reason = "code that runs between fork and exec is installed by an unsafe call")]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// Has the kernel kill the child when the thread that starts it ends, also by SIGKILL (`PR_SET_PDEATHSIG`, prctl(2)).
pub(crate) fn dies_with_this_thread(command: &mut Command) {
    // SAFETY: the closure makes one system call and touches no memory of the parent's other threads.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
}
