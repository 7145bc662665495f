//! What the interface has: its index, its queues, and whether one of them is taken.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::sys::{self, Mapping};
use crate::uapi;

/// The index of an interface in the caller's network namespace.
///
/// # Errors
///
/// There is none of that name.
pub fn ifindex(name: &str) -> Result<u32> {
    sys::if_nametoindex(name).map_err(|source| Error::Call {
        subject: format!("interface {name}"),
        call: "if_nametoindex",
        remedy: "check the name, and the network namespace of the calling thread".into(),
        source,
    })
}

/// How many queues an interface has now, by its driver (`ETHTOOL_GCHANNELS`): the larger of receive and transmit.
///
/// # Errors
///
/// There is no such interface, or its driver does not say.
pub fn queue_count(ifindex: u32) -> Result<u32> {
    sys::queue_count(ifindex).map_err(|source| Error::Call {
        subject: format!("ifindex {ifindex}"),
        call: "ioctl(ETHTOOL_GCHANNELS)",
        remedy: "look at /sys/class/net/<interface>/queues".into(),
        source,
    })
}

/// Whether no AF_XDP socket holds a queue, found by binding one for a moment in copy mode. The kernel lets go of a
/// queue some milliseconds after the last socket on it was closed, this one included.
///
/// # Errors
///
/// There is no such queue, or AF_XDP is not available.
pub fn queue_is_free(ifindex: u32, queue: u32) -> Result<bool> {
    Probe::new().and_then(|probe| probe.queue_is_free(ifindex, queue)).map_err(|source| Error::Call {
        subject: format!("ifindex {ifindex} queue {queue}"),
        call: "bind(AF_XDP) of a probe",
        remedy: "check the interface, the number of its queues, and CAP_NET_RAW".into(),
        source,
    })
}

/// A socket all set but for the bind, whose success tells that the queue is free.
#[derive(Debug)]
pub(crate) struct Probe {
    fd: OwnedFd,
    _umem: Mapping,
}

impl Probe {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = sys::socket()?;
        let umem = Mapping::anonymous(sys::page_size(), 0)?;
        let registration = uapi::xdp_umem_reg {
            addr: umem.start().as_ptr().expose_provenance() as u64,
            len: umem.len() as u64,
            chunk_size: uapi::XDP_UMEM_MIN_CHUNK_SIZE,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        sys::setsockopt(fd.as_raw_fd(), uapi::SOL_XDP, uapi::XDP_UMEM_REG, &registration)?;
        for ring in [uapi::XDP_UMEM_FILL_RING, uapi::XDP_UMEM_COMPLETION_RING, uapi::XDP_RX_RING] {
            sys::setsockopt(fd.as_raw_fd(), uapi::SOL_XDP, ring, &2)?;
        }
        Ok(Self { fd, _umem: umem })
    }

    pub(crate) fn queue_is_free(&self, ifindex: u32, queue: u32) -> io::Result<bool> {
        let address = uapi::sockaddr_xdp {
            sxdp_family: uapi::AF_XDP as u16,
            sxdp_flags: uapi::XDP_COPY,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        match sys::bind(self.fd.as_raw_fd(), &address) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
