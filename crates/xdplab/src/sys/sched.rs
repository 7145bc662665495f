//! The scheduling policy of a thread.
#![expect(unsafe_code, reason = "sched_setscheduler(2) is called by its number")]

use nix::errno::Errno;
use nix::libc::{SCHED_FIFO, SYS_sched_setscheduler, c_int, syscall};

use crate::error::{Error, Result};

/// Runs the calling thread as SCHED_FIFO with this priority, 1 to 99 (sched(7)).
///
/// # Errors
/// The process lacks the right to it, or there is no such priority.
pub fn set_fifo(priority: u32) -> Result<()> {
    set_fifo_of(0, priority)
}

/// Runs the thread with this number, 0 for the calling one, as SCHED_FIFO.
///
/// # Errors
/// There is no such thread, the process lacks the right to it, or there is no such priority.
pub(crate) fn set_fifo_of(thread: i32, priority: u32) -> Result<()> {
    let what = format!("run as SCHED_FIFO with priority {priority}");
    let priority = c_int::try_from(priority).unwrap_or(c_int::MAX);
    // SAFETY: the kernel's struct sched_param (include/uapi/linux/sched/types.h) is the priority alone, which is valid for the
    // time of the call. musl's own function refuses to change one thread of a process.
    let result = unsafe { syscall(SYS_sched_setscheduler, thread, SCHED_FIFO, &raw const priority) };
    Errno::result(result).map(drop).map_err(|errno| {
        let error = Error::syscall(what, "sched_setscheduler", errno);
        match errno {
            Errno::EPERM => error.remedy("run as root, or with CAP_SYS_NICE; some container limits forbid it"),
            _ => error.remedy("choose a priority from 1 to 99"),
        }
    })
}
