//! A userspace [page_pool]: buffers of packets recycled with the semantics of the kernel's.
//!
//! One thread owns a pool and allocates from it without a lock; frames may be returned from any thread. The handles:
//!
//! | | can leave the thread | its return |
//! |---|---|---|
//! | [`LocalFrame`] | no | to the owner's cache; nothing is checked at run time |
//! | [`Frame`] | yes | to the cache on the owner's thread, else to the return ring |
//! | [`Frag`] | yes | the last fragment returns the frame |
//! | [`Hold`] | yes | the frame is not recycled but goes back to the system |
//! | [`Returner`] | yes | frames in batches of 16, by a lane of its own or the ring |
//! | [`UmemAddr`] | | the kernel has the frame |
//!
//! A pool is described by a [`Builder`], made as a [`Seed`], and owned by binding that to a thread ([`Owner`]).
//!
//! # How soundness is kept
//!
//! - The cache is reached by the owner's thread only: through [`Owner`] and [`LocalFrame`], which are not `Send`, or after the
//!   pool's owner id was found equal to this thread's. Ids are never used twice, so a forgotten owner whose thread has ended
//!   leaves a pool that merely nobody owns.
//! - Handles point to the pool without counting references. The pool's state lives until it is closed *and* everything that
//!   points to it (frames outstanding, live returners) is gone; forgetting a handle therefore leaks, and nothing else.
//! - No code of the user runs while the cache is borrowed or the lock is held.
//!
//! # Cargo features
//!
//! `bench`: the measured paths as functions, for benchmarks. `peers`: other pools and allocators beside them.
//!
//! [page_pool]: https://docs.kernel.org/networking/page_pool.html

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
mod numa;
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

/// The README's examples, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
