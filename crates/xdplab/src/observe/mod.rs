//! Observers: counter sets fed by the kernel's tracepoints (`bpf/observe.bpf.c`), loaded and attached one by one.
//!
//! A tracepoint that this kernel does not have makes its own figures unavailable, with the reason, and nothing else.

mod attach_message;
mod counters;
mod cpumap;
mod flows;
mod pool_paths;

pub use attach_message::AttachMessage;
pub use counters::{
    Figure, Interface, NapiPolls, Observers, PagePools, Pages, Softirqs, Verdicts, Watch, Xmit, action_name, errno_name,
};
pub use cpumap::{CpumapObserver, Enqueued, Kthread};
pub use flows::{Flow, FlowXmit};
pub use pool_paths::PoolPaths;

use aya::Ebpf;
use aya::programs::{BtfTracePoint, ProgramError};

use crate::bpf;
use crate::error::{Error, Result};

/// Attaches the program that bears the tracepoint's name. It stays attached as long as the object lives.
fn attach(object: &mut Ebpf, tracepoint: &'static str) -> Result<()> {
    attach_program(object, tracepoint, tracepoint)
}

/// The same for a program of another name, where there are several for one tracepoint.
fn attach_program(object: &mut Ebpf, program: &str, tracepoint: &'static str) -> Result<()> {
    let what = format!("observe the tracepoint {tracepoint}");
    let btf = bpf::kernel_btf()?;
    let program = object.program_mut(program).ok_or_else(|| Error::invalid(&what, "no program is made for it"))?;
    let program: &mut BtfTracePoint =
        program.try_into().map_err(|error: ProgramError| Error::invalid(&what, error.to_string()))?;
    match program.load(tracepoint, btf) {
        Ok(()) => {}
        Err(ProgramError::Btf(_)) => return Err(Error::unsupported(&what, "this kernel does not have it")),
        Err(error) => return Err(bpf::describe_load_error(what, &error)),
    }
    program.attach().map(|_link| ()).map_err(|error| bpf::describe_load_error(what, &error))
}
