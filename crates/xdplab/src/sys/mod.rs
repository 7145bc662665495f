//! System calls that no crate wraps, and the unsafe code they need.

pub(crate) mod affinity;
pub(crate) mod bpf;
pub mod ethtool;
pub mod interrupt;
pub mod link;
pub mod sched;
pub mod socket;
