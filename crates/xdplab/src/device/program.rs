//! One of our programs, loaded, and the counts it keeps.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::ProgramFd;
use serde::{Deserialize, Serialize};

use super::{Planted, ProgramSpec};
use crate::bpf;
use crate::error::{Error, Result};

/// What a program counted, per CPU and RX queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets the program saw; each got the program's verdict except the aborted ones.
    pub packets: u64,
    /// Packets the operation could not handle; they got `XDP_ABORTED`.
    pub aborted: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.aborted += other.aborted;
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { packets: self.packets - earlier.packets, aborted: self.aborted - earlier.aborted }
    }
}

/// A loaded program with a counter map of its own.
pub struct DutProgram {
    spec: ProgramSpec,
    fd: ProgramFd,
    counts: PerCpuArray<MapData, [u64; 3]>,
    rx_queues: u32,
    _object: Ebpf,
}

impl DutProgram {
    /// Loads the program for a device with `rx_queues` RX queues.
    ///
    /// # Errors
    /// The kernel refused the object or the program.
    pub fn load(spec: ProgramSpec, rx_queues: u32) -> Result<Self> {
        Self::load_as(spec, rx_queues, false)
    }

    /// Loads the program as one that takes no packets in fragments, to stand beside such programs.
    ///
    /// # Errors
    /// The kernel refused the object or the program.
    pub fn load_without_frags(spec: ProgramSpec, rx_queues: u32) -> Result<Self> {
        Self::load_as(spec, rx_queues, true)
    }

    fn load_as(spec: ProgramSpec, rx_queues: u32, without_frags: bool) -> Result<Self> {
        let mut map_entries = BTreeMap::from([("rx_counts", rx_queues)]);
        if spec.planted != Some(Planted::Touch) {
            map_entries.insert("touched", 1);
        }
        let mut globals = BTreeMap::from(Planted::globals(spec.planted));
        globals.insert("action", spec.action.code());
        let mut object =
            bpf::load(bpf::DUT, &bpf::Object { globals, map_entries, without_frags, ..bpf::Object::default() })?;
        let fd = bpf::program(&mut object, spec.function())?
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(|error| Error::invalid(format!("keep the program {spec} open"), error.to_string()))?;
        let counts = bpf::take_map(&mut object, "rx_counts")?;
        Ok(Self { spec, fd, counts, rx_queues, _object: object })
    }

    /// Which program it is.
    #[must_use]
    pub fn spec(&self) -> ProgramSpec {
        self.spec
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn program_fd(&self) -> &ProgramFd {
        &self.fd
    }

    /// What was counted so far: for each RX queue, each possible CPU.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn counts(&self) -> Result<Vec<Vec<Counts>>> {
        (0..self.rx_queues).map(|queue| read_counts(&self.counts, queue)).collect()
    }

    /// What was counted so far, over all queues and CPUs.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn total(&self) -> Result<Counts> {
        Ok(self.counts()?.into_iter().flatten().fold(Counts::default(), |mut sum, cpu| {
            sum += cpu;
            sum
        }))
    }
}

/// What the entry of a counter map holds for each possible CPU: packets, then the aborted ones among them.
pub(super) fn read_counts<const N: usize>(counts: &PerCpuArray<MapData, [u64; N]>, index: u32) -> Result<Vec<Counts>> {
    let per_cpu = counts.get(&index, 0).map_err(|error| bpf::map_error("read what a program counted", &error))?;
    Ok(per_cpu.iter().map(|cpu| Counts { packets: cpu[0], aborted: cpu[1] }).collect())
}
