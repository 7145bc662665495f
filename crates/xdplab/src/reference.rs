//! The reference workload: a chain of multiplications timed beside every run (`bpf/reference.bpf.c`).
//!
//! It takes part in no memory, so its time tells the clock frequency and the share of its core that the CPU got. Where it
//! differs between two runs, so does everything that waits for the core; what waits for memory does not follow it.

use aya::Ebpf;
use aya::programs::Xdp;
use serde::{Deserialize, Serialize};

use crate::bpf;
use crate::error::{Error, Result};
use crate::stats::{mad, median};
use crate::sys::affinity::Pinned;
use crate::sys::bpf::run_alone;

/// Timed executions of the program, about 5 ms in all: long enough for a clock that was low to rise.
const RUNS: usize = 256;
/// `MULTIPLICATIONS` of `bpf/reference.bpf.c`, in thousands.
const THOUSANDS: f64 = 16.0;
/// `XDP_DROP`, which the program returns.
const EXPECTED: u32 = 1;

/// The reference workload's time before and after a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Before the run.
    pub before: Timing,
    /// After the run.
    pub after: Timing,
}

/// The time of 1000 dependent 64-bit multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The median, in nanoseconds.
    pub median_ns: f64,
    /// The median absolute deviation, times 1.4826, in nanoseconds.
    pub mad_ns: f64,
}

impl Reference {
    /// The time of 1000 dependent multiplications, in nanoseconds: the middle of before and after.
    #[must_use]
    pub fn ns(&self) -> f64 {
        f64::midpoint(self.before.median_ns, self.after.median_ns)
    }

    /// How far the time may be off, in nanoseconds: it moved so much during the run, and the runs scatter so much.
    #[must_use]
    pub fn spread_ns(&self) -> f64 {
        (self.before.median_ns - self.after.median_ns).abs() / 2.0 + self.before.mad_ns.max(self.after.mad_ns)
    }
}

/// A run that the reference workload is timed beside.
pub(crate) struct Beside {
    object: Ebpf,
    cpu: usize,
    before: Timing,
}

impl Beside {
    /// Loads the program and times it on `cpu`.
    ///
    /// # Errors
    /// The kernel refused the program, or the thread can't be pinned.
    pub(crate) fn begin(cpu: Option<usize>) -> Result<Self> {
        let cpu = cpu.ok_or_else(|| {
            Error::unsupported("time the reference workload", "which CPU takes the packets is not decided here")
        })?;
        let mut object = bpf::load(bpf::REFERENCE, &bpf::Object::default())?;
        let before = time(bpf::program(&mut object, "reference")?, cpu)?;
        Ok(Self { object, cpu, before })
    }

    /// Times it again.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub(crate) fn end(mut self) -> Result<Reference> {
        let after = time(bpf::program(&mut self.object, "reference")?, self.cpu)?;
        Ok(Reference { before: self.before, after })
    }
}

fn time(program: &Xdp, cpu: usize) -> Result<Timing> {
    use std::os::fd::AsFd;
    const WHAT: &str = "time the reference workload";
    let fd = program.fd().map_err(|error| Error::invalid(WHAT, error.to_string()))?.as_fd();
    let _pinned = Pinned::to(cpu)?;
    let mut times = Vec::with_capacity(RUNS);
    while times.len() < RUNS {
        // A single repetition: see `run_alone`. An Ethernet header is the shortest that the kernel takes.
        let run = run_alone(fd, &[0; 14], 1, WHAT)?;
        if run.return_value != EXPECTED {
            return Err(Error::invalid(WHAT, format!("it returned {}", run.return_value)));
        }
        times.push(f64::from(run.duration_ns) / THOUSANDS);
    }
    let median_ns = median(&mut times).unwrap_or_default();
    Ok(Timing { median_ns, mad_ns: mad(&mut times).unwrap_or_default() })
}
