//! Buffer recycling with the semantics of the kernel's page_pool.

#[cfg(feature = "bench")]
pub mod bench;
mod builder;
mod cache;
mod close;
mod error;
mod frag;
mod frag_cache;
mod frame;
mod ledger;
mod owner;
mod pool;
mod region;
mod returner;
mod ring;
mod stats;
mod sync;
mod umem;

pub use builder::Builder;
pub use close::{Closed, Holder, Outstanding};
pub use error::{Error, ErrorKind, Result};
pub use frag::{Frag, MAX_FRAGS};
pub use frag_cache::{CacheFrag, FragAlloc, FragBuf, FragCache};
pub use frame::{Frame, Hold, LocalFrame};
pub use ledger::Ledger;
pub use owner::{Owner, Seed};
pub use region::HugePages;
pub use returner::{ReturnPath, Returner};
pub use stats::{AllocStats, RecycleStats, Stats};
pub use umem::UmemAddr;
