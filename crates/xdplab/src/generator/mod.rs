//! What sends: it knows the interface that packets leave by, and nothing of the device under test.

mod live;
pub mod pktgen;
pub mod socket;

pub use live::{LiveFrames, LiveFramesSpec, Rewrite, Sent, Sink};
