//! System calls that no crate wraps, and the unsafe code they need.

pub(crate) mod affinity;
pub(crate) mod bpf;
pub(crate) mod child;
pub(crate) mod disposition;
pub mod ethtool;
#[cfg(target_arch = "x86_64")]
pub(crate) mod guest;
pub mod interrupt;
pub mod link;
pub mod sched;
pub mod socket;
