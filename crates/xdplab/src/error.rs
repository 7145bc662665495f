//! The one error type of the library: what was tried, on what, the call and errno by name, and the remedy.

use std::fmt;

use nix::errno::Errno;

/// A result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done, in one line.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    /// What was tried and on what, e.g. `attach native XDP to veth0 (ifindex 4)`.
    what: String,
    /// What the user can do about it.
    remedy: Option<String>,
    /// Everything the verifier said.
    log: Option<Box<str>>,
}

/// The kinds of failure; a caller can act on them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A system call failed.
    Syscall {
        /// The call as the manual spells it, e.g. `bpf(BPF_LINK_CREATE)`.
        call: &'static str,
        /// What it answered.
        errno: Errno,
        /// The kernel's own words (netlink extack, verifier), where it gave any.
        kernel_says: Option<String>,
    },
    /// The user's input does not fit: an argument, a file, a record.
    Usage(String),
    /// This machine or this interface can't do what was asked.
    Unsupported(String),
    /// A run was refused or given up because its result would mean nothing.
    Invalid(String),
    /// The user interrupted (SIGINT, SIGTERM).
    Interrupted,
}

impl Error {
    fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), remedy: None, log: None }
    }

    /// A failed system call.
    #[must_use]
    pub fn syscall(what: impl Into<String>, call: &'static str, errno: Errno) -> Self {
        Self::new(ErrorKind::Syscall { call, errno, kernel_says: None }, what)
    }

    /// A failed system call whose error is an [`std::io::Error`].
    #[must_use]
    pub fn io(what: impl Into<String>, call: &'static str, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) => Self::syscall(what, call, Errno::from_raw(code)),
            None => Self::invalid(what, format!("{call}: {error}")),
        }
    }

    /// Input that does not fit.
    #[must_use]
    pub fn usage(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage(why.into()), what)
    }

    /// Something this machine can't do.
    #[must_use]
    pub fn unsupported(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported(why.into()), what)
    }

    /// A result that would mean nothing.
    #[must_use]
    pub fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid(why.into()), what)
    }

    /// The user interrupted while `what` was under way.
    #[must_use]
    pub fn interrupted(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Interrupted, what)
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds the kernel's own words to a failed system call; an empty text adds nothing.
    #[must_use]
    pub fn kernel_says(mut self, text: impl Into<String>) -> Self {
        if let ErrorKind::Syscall { kernel_says, .. } = &mut self.kind {
            *kernel_says = Some(text.into()).filter(|text| !text.trim().is_empty());
        }
        self
    }

    /// Adds everything the verifier said; it is no part of the one line.
    #[must_use]
    pub fn with_log(mut self, log: impl Into<Box<str>>) -> Self {
        self.log = Some(log.into());
        self
    }

    /// Leaves out what [`with_log`](Self::with_log) added, where it was told already.
    #[must_use]
    pub fn without_log(mut self) -> Self {
        self.log = None;
        self
    }

    /// Says anew what was tried and on what, where the caller knows more.
    #[must_use]
    pub fn concerning(mut self, what: impl Into<String>) -> Self {
        self.what = what.into();
        self
    }

    /// Everything the verifier said, where it refused a program.
    #[must_use]
    pub fn log(&self) -> Option<&str> {
        self.log.as_deref()
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The errno of a failed system call.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self.kind {
            ErrorKind::Syscall { errno, .. } => Some(errno),
            _ => None,
        }
    }
}

/// One line, whatever file names, records and the kernel put into it: control characters become blanks.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        let mut text = match &self.kind {
            ErrorKind::Syscall { call, errno, .. } => format!("can't {what}: {call}: {errno:?} ({})", errno.desc()),
            ErrorKind::Usage(why) | ErrorKind::Unsupported(why) | ErrorKind::Invalid(why) => {
                format!("can't {what}: {why}")
            }
            ErrorKind::Interrupted => format!("interrupted: {what}"),
        };
        if let ErrorKind::Syscall { kernel_says: Some(words), .. } = &self.kind {
            text += &format!(": kernel says: {}", words.trim());
        }
        if let Some(remedy) = &self.remedy {
            text += &format!("; {remedy}");
        }
        f.write_str(&text.replace(char::is_control, " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_is_one_line_with_the_errno_by_name_and_the_remedy() {
        let error = Error::syscall("attach native XDP to veth0 (ifindex 4)", "bpf(BPF_LINK_CREATE)", Errno::ERANGE)
            .kernel_says("MTU too large\nfor XDP\n")
            .remedy("set its MTU to 3498 or less");
        assert_eq!(
            error.to_string(),
            "can't attach native XDP to veth0 (ifindex 4): bpf(BPF_LINK_CREATE): ERANGE (Math result not \
             representable): kernel says: MTU too large for XDP; set its MTU to 3498 or less"
        );
    }

    #[test]
    fn control_characters_of_others_do_not_reach_the_terminal() {
        let error = Error::usage("read the record a\nb", "its schema is `\u{1b}[2J`").remedy("write\tanother");
        assert_eq!(error.to_string(), "can't read the record a b: its schema is ` [2J`; write another");
    }
}
