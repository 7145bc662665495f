//! What a signal does that this process was started to ignore.
#![expect(unsafe_code, reason = "a handler of one's own could do what no handler may; the default one is none")]

use nix::sys::signal::{SigHandler, Signal, signal};

use crate::error::{Error, Result};

/// Lets a signal arrive that the caller ignores, as a shell without job control does with SIGINT and SIGQUIT for what it starts in
/// the background: an ignored signal is thrown away even where it is blocked, and a `signalfd` never sees it.
///
/// # Errors
/// The signal can't be caught.
pub(crate) fn restore(which: Signal) -> Result<()> {
    // SAFETY: no handler is installed: SIG_DFL runs no code of this process.
    unsafe { signal(which, SigHandler::SigDfl) }
        .map(|_| ())
        .map_err(|errno| Error::syscall(format!("let {which} arrive"), "rt_sigaction", errno))
}
