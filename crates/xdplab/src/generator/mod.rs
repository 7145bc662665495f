//! What sends: it knows the interface that packets leave by, and nothing of the device under test.

mod live;
mod pace;
pub mod pktgen;
pub mod socket;
pub mod tcp;
mod trafficgen;
mod xsk;

pub use live::{FrameSource, LiveFrames, LiveFramesSpec, Rewrite, Sent, Sink};
pub use pace::{Departures, GAP_BUCKETS, Gap, GapCounts, Gaps, Pace, Rate};
pub use trafficgen::TrafficSpec;
pub use xsk::{Lateness, XskTx, XskTxCounts, XskTxSpec};
