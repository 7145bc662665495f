//! The device under test: XDP programs, how they are attached, and what they counted.

mod attach;
mod program;
mod sliced;
mod spec;

pub use attach::Attachment;
pub use program::{Counts, DutProgram};
pub use sliced::{Occupant, SlicedDevice};
pub use spec::{Action, LoadMode, Operation, ProgramSpec};
