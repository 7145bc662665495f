//! Errors: a kind to act on and the context to read.

use std::fmt;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done: a kind, and on what it was tried.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A size, count or address that does not fit.
    Config,
    /// A system call failed.
    Syscall {
        /// The call as the manual spells it.
        call: &'static str,
        /// The number it left in `errno`.
        errno: i32,
    },
    /// Every returner the pool was built for is in use.
    NoReturner,
    /// The address is not in the kernel's hands: it was given back twice or never handed out.
    NotInKernel,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into() }
    }

    /// The last failed call's errno.
    pub(crate) fn syscall(call: &'static str, context: impl Into<String>) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::new(ErrorKind::Syscall { call, errno }, context)
    }

    /// What kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ErrorKind::Syscall { call, errno } => {
                write!(f, "{}: {call}: {}", self.context, std::io::Error::from_raw_os_error(errno))
            }
            ErrorKind::Config | ErrorKind::NoReturner | ErrorKind::NotInKernel => f.write_str(&self.context),
        }
    }
}

impl std::error::Error for Error {}
