//! Cold packet data (`bpf/cold.bpf.c`).

use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::{ProgramFd, Xdp};

use crate::bpf;
use crate::device::SlicedDevice;
use crate::error::{Error, Result};

/// The program in front of the dispatcher.
pub(super) struct Cold {
    program: ProgramFd,
    _next: ProgramArray<MapData>,
    _object: Ebpf,
}

impl Cold {
    /// Loads it for a device.
    ///
    /// # Errors
    /// The kernel refused it.
    pub(super) fn load(device: &SlicedDevice) -> Result<Self> {
        let mut object = bpf::load(bpf::COLD, &bpf::Object::default())?;
        let mut next: ProgramArray<MapData> = bpf::take_map(&mut object, "next")?;
        next.set(0, device.program_fd()?, 0)
            .map_err(|error| bpf::map_error("put the dispatcher behind the program that makes data cold", &error))?;
        let program: &Xdp = bpf::program(&mut object, "cold")?;
        let program = program
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(|error| Error::invalid("keep the program that makes data cold", error.to_string()))?;
        Ok(Self { program, _next: next, _object: object })
    }

    /// The program's descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
