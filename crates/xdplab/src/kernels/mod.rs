//! Kernel against kernel: guest instructions per packet, counted exactly and never timed.
//!
//! Each kernel boots in QEMU's TCG with one CPU and instruction-counted virtual time (`-icount shift=0`): one nanosecond of the
//! guest's clock is one guest instruction. The guest is xdplab itself, statically linked, as the first process
//! (`guest`). It runs cases of a fixed number of packets and writes what was counted to a serial port. The same boot gives
//! the same number, to the instruction; the analysis ([`compare`]) refuses a case where it does not.
//!
//! Instructions are not time: TCG has no caches, no branch predictor and no memory latency. docs/kernels.md tells what the
//! numbers are good for.

pub mod build;
pub mod compare;
#[cfg(target_arch = "x86_64")]
pub(crate) mod guest;
mod initramfs;
mod instrument;
mod machine;
mod module;
mod package;
mod profile;
mod protocol;
mod run;
mod source;

/// What everything that is counted in guests is counted in.
pub const UNIT: &str = "guest instructions per packet (TCG)";

pub use instrument::{GuestBinary, Instrument, Qemu};
pub use machine::Outcome;
pub use profile::{Change as FunctionChange, Function, Part, Profile, changes};
pub use protocol::{Call, CaseName, CheckName, Round};
pub use run::{Boot, Checks, CountedCase, Execution, KernelRuns, KernelsCase, KernelsPlan, execute, measure};
pub use source::{Image, KernelSource};
