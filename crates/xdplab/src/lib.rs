//! xdplab: a laboratory for the Linux XDP data path.
//!
//! `docs/architecture.md` tells the run stage by stage and which module may know which.

pub mod error;
pub mod host;
pub mod netlink;
pub mod packet;
pub mod reading;
pub mod stats;
pub mod topology;
pub mod units;
pub mod verdict;

/// System calls that no crate wraps, and the unsafe code they need.
pub mod sys {
    pub mod ethtool;
}

pub use error::{Error, ErrorKind, Result};
