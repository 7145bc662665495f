//! One error type: what was tried, on which ring, interface and queue, the call and errno by name, and the remedy.

use std::fmt;
use std::io;
use std::time::Duration;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// One of the four rings of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Frames the application gives to the kernel to receive into.
    Fill,
    /// Received packets.
    Rx,
    /// Packets to send.
    Tx,
    /// Sent frames the kernel gives back.
    Completion,
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fill => "fill ring",
            Self::Rx => "Rx ring",
            Self::Tx => "Tx ring",
            Self::Completion => "completion ring",
        })
    }
}

/// What failed, where, why, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value the kernel would refuse, caught before asking it.
    #[error("{subject}: {problem}; {remedy}")]
    Config {
        /// The setting at fault, such as `umem frame_size`.
        subject: &'static str,
        /// What is wrong with it.
        problem: String,
        /// What to set instead.
        remedy: String,
    },
    /// A system call failed.
    #[error("{subject}: {call}: {}: {remedy}", errno_name(source))]
    Call {
        /// The ring, umem, or interface and queue the call was for.
        subject: String,
        /// The call and its option.
        call: &'static str,
        /// What to do about it.
        remedy: String,
        /// The errno.
        source: io::Error,
    },
    /// The queue stayed taken until the deadline of the bind.
    #[error(
        "ifindex {ifindex} queue {queue}: bind(AF_XDP): EBUSY for {waited:?}: another AF_XDP socket holds the queue; \
         close it, or take another queue, or allow a longer bind_timeout"
    )]
    QueueBusy {
        /// The interface.
        ifindex: u32,
        /// The queue.
        queue: u32,
        /// How long the bind was retried.
        waited: Duration,
    },
    /// A frame was given to a ring of another umem.
    #[error(
        "{ring}, ifindex {ifindex} queue {queue}: the frame belongs to another umem; give it to a socket of its own"
    )]
    ForeignFrame {
        /// The ring.
        ring: Ring,
        /// The interface.
        ifindex: u32,
        /// The queue.
        queue: u32,
    },
    /// A segment the kernel would drop without ever giving the frame back.
    #[error("segment: {problem}; {remedy}")]
    Segment {
        /// What is wrong with it.
        problem: String,
        /// What to do instead.
        remedy: &'static str,
    },
}

impl Error {
    /// The errno of a failed system call.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } => source.raw_os_error(),
            Self::QueueBusy { .. } => Some(libc::EBUSY),
            _ => None,
        }
    }

    pub(crate) fn config(subject: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Config { subject, problem: problem.into(), remedy: remedy.into() }
    }
}

/// The kernel's name of an errno, such as `EBUSY`; its number where this crate has no name for it.
fn errno_name(error: &io::Error) -> String {
    let Some(errno) = error.raw_os_error() else { return error.to_string() };
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::ENOSPC => "ENOSPC",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::ENETDOWN => "ENETDOWN",
        libc::ENOBUFS => "ENOBUFS",
        libc::EOVERFLOW => "EOVERFLOW",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_names_subject_call_errno_and_remedy_in_one_line() {
        let error = Error::Call {
            subject: "ifindex 3 queue 9".into(),
            call: "bind(AF_XDP)",
            remedy: "choose a queue below 1".into(),
            source: io::Error::from_raw_os_error(libc::EINVAL),
        };
        assert_eq!(error.to_string(), "ifindex 3 queue 9: bind(AF_XDP): EINVAL: choose a queue below 1");
        assert_eq!(error.errno(), Some(libc::EINVAL));
    }

    #[test]
    fn an_errno_without_a_name_shows_its_number() {
        assert_eq!(errno_name(&io::Error::from_raw_os_error(524)), "errno 524");
    }
}
