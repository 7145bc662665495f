//! The machine the measurement runs on: what it is, what it lets this process do, and where its CPUs spend their time.

mod caps;
mod cpu_times;
mod cpus;
mod doctor;
mod fingerprint;
mod interface;
mod probe;
mod root;
mod thread_clock;

pub use caps::{Capability, EffectiveCaps, require_privileges};
pub use cpu_times::{CpuShares, CpuTimes};
pub use cpus::require_online;
pub use doctor::{Line, examine, render_text};
pub use fingerprint::{ConfigFile, Cpu, Environment, Frequency, Kernel};
pub use interface::{examine_interface, require_unused};
pub use probe::Answer;
pub(crate) use thread_clock::ThreadClock;
