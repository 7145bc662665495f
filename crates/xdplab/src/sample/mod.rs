//! Slices: the schedule that says whose turn it is, and the reader that brings the timed slices out of the kernel.

mod reader;
mod schedule;

pub use reader::{DispatcherCounts, SliceReader};
pub use schedule::{Entry, Schedule};
