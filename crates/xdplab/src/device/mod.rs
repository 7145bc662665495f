//! The device under test: XDP programs, how they are attached, and what they counted.

mod attach;
mod cpumap;
mod mode;
mod object;
mod program;
mod redirect;
mod sliced;
mod spec;
mod variant;
mod xsk;

pub use attach::Attachment;
pub use cpumap::{CpumapProgram, CpumapSpec, Remote, Selection, Verdicts};
pub use mode::{CpumapVariant, HandedOn, RedirectVariant, RemoteAction};
pub use object::{ObjectProgram, Tried, UserObject};
pub use program::{Counts, DutProgram};
pub use redirect::{EgressAction, RedirectBy, RedirectProgram, RedirectTarget};
pub use sliced::{Occupant, SlicedDevice};
pub use spec::{Action, LoadMode, Operation, Planted, ProgramSpec};
pub use variant::{Integer, ObjectSpec, VariantSpec};
pub use xsk::{
    CopyMode, Handling, KernelCounts, SocketCounts, SocketReading, XskAction, XskCounts, XskProgram, XskSockets,
    XskSpec, XskVariant,
};
