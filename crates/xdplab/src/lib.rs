//! xdplab: a laboratory for the Linux XDP data path.
//!
//! `docs/architecture.md` tells the run stage by stage and which module may know which.

pub mod error;
pub mod host;
pub mod packet;
pub mod reading;
pub mod stats;
pub mod units;
pub mod verdict;

pub use error::{Error, ErrorKind, Result};
