//! The system calls, each as thin as it can be, and the mappings they make.
#![expect(unsafe_code, reason = "this module is the crate's only way to the kernel")]

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use crate::uapi;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A type without padding-sensitive or invalid bit patterns, so that the kernel may read and write its bytes.
///
/// # Safety
///
/// Every bit pattern must be a valid value of the type.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers, and repr(C) structures of integers only.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for uapi::xdp_mmap_offsets {}
// SAFETY: as above.
unsafe impl Plain for uapi::xdp_umem_reg {}
// SAFETY: as above.
unsafe impl Plain for uapi::xdp_statistics {}
// SAFETY: as above.
unsafe impl Plain for uapi::xdp_options {}

pub(crate) fn socket() -> io::Result<OwnedFd> {
    new_socket(uapi::AF_XDP, libc::SOCK_RAW, 0)
}

fn new_socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn setsockopt<T: Plain>(fd: RawFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer is valid for the length given, for the time of the call.
    check(unsafe {
        libc::setsockopt(fd, level, option, std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t)
    })
    .map(drop)
}

/// Reads a SOL_XDP option into `value`, and returns how many of its bytes the kernel wrote.
pub(crate) fn getsockopt<T: Plain>(fd: RawFd, option: i32, value: &mut T) -> io::Result<usize> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers are valid for the call, `len` bounds what is written, and T takes any bit pattern.
    check(unsafe { libc::getsockopt(fd, uapi::SOL_XDP, option, std::ptr::from_mut(value).cast(), &mut len) })?;
    Ok(len as usize)
}

pub(crate) fn bind(fd: RawFd, address: &uapi::sockaddr_xdp) -> io::Result<()> {
    let len = size_of::<uapi::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the pointer is valid for the length given, for the time of the call.
    check(unsafe { libc::bind(fd, std::ptr::from_ref(address).cast(), len) }).map(drop)
}

/// An empty non-blocking send: makes the kernel look at the Tx ring.
pub(crate) fn wake_tx(fd: RawFd) -> io::Result<()> {
    // SAFETY: a null buffer of length zero is never read.
    let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An empty non-blocking receive: makes the kernel look at the fill ring, and busy-poll where that is set.
pub(crate) fn wake_rx(fd: RawFd) -> io::Result<()> {
    let (buffer, address, len) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a null buffer of length zero is never written, and no address is asked for.
    let got = unsafe { libc::recvfrom(fd, buffer, 0, libc::MSG_DONTWAIT, address, len) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits for any of the entries' events at most `timeout_ms`, and fills in those that came.
pub(crate) fn poll(entries: &mut [libc::pollfd], timeout_ms: i32) -> io::Result<()> {
    // SAFETY: as many valid entries as said, for the time of the call.
    match check(unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout_ms) }) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(error),
    }
}

pub(crate) fn page_size() -> usize {
    // SAFETY: no pointers are passed.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

pub(crate) fn if_nametoindex(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a NUL-terminated string, valid for the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        ifindex => Ok(ifindex),
    }
}

/// How many queues the driver says an interface has now: the larger of its Rx and Tx channels.
pub(crate) fn queue_count(ifindex: u32) -> io::Result<u32> {
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has IF_NAMESIZE bytes, which is what the call writes at most.
    if unsafe { libc::if_indextoname(ifindex, request.ifr_name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut channels = uapi::ethtool_channels { cmd: uapi::ETHTOOL_GCHANNELS, ..uapi::ethtool_channels::default() };
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut channels).cast();
    let fd = new_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: request and channels are valid for the call, and the kernel writes no more than they hold.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) })?;
    Ok(channels.combined_count + channels.rx_count.max(channels.tx_count))
}

/// Sends one generic netlink request and returns the first message of the answer.
pub(crate) fn generic_netlink(request: &[u8]) -> io::Result<Vec<u8>> {
    let fd = new_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC)?;
    // SAFETY: the buffer is valid for its length, for the time of the call.
    if unsafe { libc::send(fd.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = vec![0; 8192];
    // SAFETY: the buffer is valid for its length, for the time of the call.
    let len = unsafe { libc::recv(fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    let len = usize::try_from(len).map_err(|_negative| io::Error::last_os_error())?;
    answer.truncate(len);
    Ok(answer)
}

/// Memory mapped into the process, unmapped when dropped. Zeroed, or the kernel's: initialised in any case.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; those who hand out parts of it say to whom.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping itself gives out its address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a ring of an AF_XDP socket.
    pub(crate) fn ring(fd: RawFd, len: usize, offset: i64) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd, offset)
    }

    /// Maps zeroed memory; `flags` adds those of huge pages.
    pub(crate) fn anonymous(len: usize, flags: i32) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | flags, -1, 0)
    }

    fn map(len: usize, flags: i32, fd: RawFd, offset: i64) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(|start| Self { start, len }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and nothing refers to it any more.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0, "munmap of a whole mapping cannot fail");
    }
}
