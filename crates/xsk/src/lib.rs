#![doc = include_str!("../README.md")]

mod bind;
mod config;
mod device;
mod error;
mod frame;
mod netdev;
#[cfg(feature = "page-pool")]
mod page_pool_source;
mod pool;
mod ring;
mod rings;
mod socket;
mod sys;
mod uapi;
mod umem;

pub use config::{BindMode, BusyPoll, Config, Mode};
pub use device::{ifindex, queue_count, queue_is_free};
pub use error::{Error, Result, Ring};
pub use frame::{Completed, Frame, Segment, TxRequest};
pub use netdev::DeviceFeatures;
#[cfg(feature = "page-pool")]
pub use page_pool_source::PagePool;
pub use pool::{FramePool, FrameSource};
pub use rings::{CompletionDrain, CompletionRing, FillRing, Recycled, RxDrain, RxRing, TxRing};
pub use socket::{QueueSharer, Socket, Statistics, StatisticsReader};
pub use umem::{Ledger, Pages, TxMetadata, Umem, UmemConfig};
