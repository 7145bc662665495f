//! The program that gives packets to sockets, and the counts it keeps.

use std::os::fd::{AsFd as _, BorrowedFd, RawFd};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, XskMap};
use aya::programs::ProgramFd;

use crate::bpf;
use crate::device::HandedOn;
use crate::error::{Error, Result};

/// What the program counted, per RX queue and CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskCounts {
    /// Packets of the queue that were given to a socket.
    pub redirected: u64,
    /// Packets of the queue for which there was none.
    pub aborted: u64,
    /// Packets of other queues, passed to the network stack.
    pub passed: u64,
}

/// A loaded program with sockets in its map.
pub struct XskProgram {
    fd: ProgramFd,
    counts: PerCpuArray<MapData, [u64; 4]>,
    rx_queues: u32,
    _object: Ebpf,
}

impl XskProgram {
    /// Loads the program for a device with `rx_queues` RX queues, of which `queue` is the one that the sockets are bound to;
    /// they get its packets in turn.
    ///
    /// # Errors
    /// The kernel refused the object, the program or a socket.
    pub fn load(queue: u32, sockets: &[RawFd], rx_queues: u32) -> Result<Self> {
        Self::load_as(queue, sockets, rx_queues, false)
    }

    /// Loads the program as one that takes no packets in fragments, to stand beside such programs.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn load_without_frags(queue: u32, sockets: &[RawFd], rx_queues: u32) -> Result<Self> {
        Self::load_as(queue, sockets, rx_queues, true)
    }

    fn load_as(queue: u32, sockets: &[RawFd], rx_queues: u32, without_frags: bool) -> Result<Self> {
        let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
        let mut object = bpf::load(
            bpf::XSK,
            &bpf::Object {
                globals: [("queue", queue), ("socket_count", count)].into(),
                map_entries: [("sockets", count), ("rx_counts", rx_queues)].into(),
                without_frags,
                ..bpf::Object::default()
            },
        )?;
        let fd = bpf::program(&mut object, "to_socket")?
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(|error| Error::invalid("keep the program to_socket open", error.to_string()))?;
        let mut map: XskMap<MapData> = bpf::take_map(&mut object, "sockets")?;
        for (index, socket) in (0..).zip(sockets) {
            map.set(index, *socket, 0).map_err(|error| bpf::map_error("put an AF_XDP socket into the map", &error))?;
        }
        Ok(Self { fd, counts: bpf::take_map(&mut object, "rx_counts")?, rx_queues, _object: object })
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(in crate::device) fn program_fd(&self) -> &ProgramFd {
        &self.fd
    }

    /// What was counted so far: for each RX queue, each possible CPU.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn counts(&self) -> Result<Vec<Vec<XskCounts>>> {
        let of_cpu = |&[redirected, aborted, passed, _next]: &[u64; 4]| XskCounts { redirected, aborted, passed };
        let of_queue = |queue| {
            let cpus = self.counts.get(&queue, 0);
            let cpus = cpus.map_err(|error| bpf::map_error("read the counts of to_socket", &error))?;
            Ok(cpus.iter().map(of_cpu).collect())
        };
        (0..self.rx_queues).map(of_queue).collect()
    }

    /// What was handed on so far.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn handed_on(&self) -> Result<HandedOn> {
        let to_sockets = self.counts()?.iter().flatten().map(|counts| counts.redirected).sum();
        Ok(HandedOn { to_sockets, ..HandedOn::default() })
    }
}
