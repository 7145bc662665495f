//! What sockets can do that no crate wraps: `TCP_INFO`, `SO_MEMINFO`, and datagrams in batches without a call for each.

#![expect(unsafe_code, reason = "the calls read and write memory through pointers in their arguments")]

use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;

use crate::error::{Error, Result};

/// `SK_MEMINFO_DROPS` and the length of the array, include/uapi/linux/sock_diag.h.
const SK_MEMINFO_DROPS: usize = 8;
const SK_MEMINFO_VARS: usize = 9;

/// include/uapi/linux/tcp.h.
const TCPI_OPT_TIMESTAMPS: u8 = 1;

/// `struct tcp_info` of include/uapi/linux/tcp.h up to the member that Linux 5.4 added.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawTcpInfo {
    bytes: [u8; 8],
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
    rcv_ooopack: u32,
    snd_wnd: u32,
}

/// The kernel's account of a TCP connection (`TCP_INFO`, tcp(7); Linux 5.4 and later).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Both sides put timestamps into their segments (RFC 7323).
    pub timestamps: bool,
    /// Bits that the windows announced by the peer are shifted by.
    pub snd_wscale: u8,
    /// Bytes of a segment's payload and options.
    pub snd_mss: u32,
    /// The path's MTU in bytes.
    pub pmtu: u32,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// The least one.
    pub min_rtt_us: u32,
    /// The congestion window in segments.
    pub snd_cwnd: u32,
    /// Segments sent again.
    pub total_retrans: u32,
    /// Bytes sent again.
    pub bytes_retrans: u64,
    /// Bytes that the peer's kernel has acknowledged, its answer to the SYN among them.
    pub bytes_acked: u64,
    /// Segments with payload that were sent, those sent again among them; a segment for the device to split counts as
    /// those that it makes of it.
    pub data_segs_out: u32,
    /// The window announced by the peer in bytes, shifted.
    pub snd_wnd: u32,
}

/// Reads it.
///
/// # Errors
/// The socket is no TCP socket, or the kernel is older than 5.4.
pub fn tcp_info(socket: BorrowedFd<'_>) -> Result<TcpInfo> {
    let what = "read the kernel's account of a TCP connection";
    let mut raw = RawTcpInfo::default();
    // SAFETY: `RawTcpInfo` holds nothing but numbers, and is as large as said.
    let length = unsafe { option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &raw mut raw) }
        .map_err(|errno| Error::syscall(what, "getsockopt(TCP_INFO)", errno))?;
    if length < mem::size_of::<RawTcpInfo>() {
        return Err(Error::unsupported(what, "TCP_INFO tells too little").remedy("use Linux 5.4 or later"));
    }
    // Two members of four bits each; which of them comes first follows the byte order.
    let scales = raw.bytes[6];
    let snd_wscale = if cfg!(target_endian = "little") { scales & 0xf } else { scales >> 4 };
    Ok(TcpInfo {
        timestamps: raw.bytes[5] & TCPI_OPT_TIMESTAMPS != 0,
        snd_wscale,
        snd_mss: raw.words[2],
        pmtu: raw.words[13],
        rtt_us: raw.words[15],
        min_rtt_us: raw.min_rtt,
        snd_cwnd: raw.words[18],
        total_retrans: raw.words[23],
        bytes_retrans: raw.bytes_retrans,
        bytes_acked: raw.bytes_acked,
        data_segs_out: raw.data_segs_out,
        snd_wnd: raw.snd_wnd,
    })
}

/// Datagrams that the kernel dropped because the socket's receive buffer was full (`SO_MEMINFO`, Linux 4.12 and later).
///
/// # Errors
/// The kernel does not tell.
pub fn dropped(socket: BorrowedFd<'_>) -> Result<u32> {
    let mut values = [0_u32; SK_MEMINFO_VARS];
    // SAFETY: the kernel writes no more numbers than there is room for.
    unsafe { option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &raw mut values) }
        .map_err(|errno| Error::syscall("read how many datagrams a socket dropped", "getsockopt(SO_MEMINFO)", errno))?;
    Ok(values[SK_MEMINFO_DROPS])
}

/// Wakes whoever waits in recv(2) only once so many bytes are there, or the end of the stream (`SO_RCVLOWAT`, socket(7)).
///
/// # Errors
/// The socket knows no such limit.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: i32) -> Result<()> {
    let length = mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads a number of the length that it is told.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), length)
    };
    Errno::result(set)
        .map(drop)
        .map_err(|errno| Error::syscall(format!("wait for {bytes} bytes"), "setsockopt(SO_RCVLOWAT)", errno))
}

/// Reads a socket option into `value`, and returns its length.
///
/// # Safety
/// Every sequence of bytes must be a value of `T`.
unsafe fn option<T>(socket: BorrowedFd<'_>, level: i32, name: i32, value: *mut T) -> nix::Result<usize> {
    let mut length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which is of that size, and the length that it wrote.
    Errno::result(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value.cast(), &raw mut length) })?;
    Ok(length as usize)
}

/// Messages with the same bytes, sent many at a time over a connected socket (sendmmsg(2), Linux 3.0 and later).
#[derive(Debug)]
pub(crate) struct Outgoing {
    headers: Vec<libc::mmsghdr>,
    /// What the headers point to, and what that points to in turn.
    _parts: Box<libc::iovec>,
    _bytes: Box<[u8]>,
}

impl Outgoing {
    /// `batch` messages of `bytes`.
    pub(crate) fn new(bytes: Vec<u8>, batch: usize) -> Self {
        let mut bytes = bytes.into_boxed_slice();
        let mut parts = Box::new(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
        let mut header = empty_header();
        header.msg_hdr.msg_iov = &raw mut *parts;
        header.msg_hdr.msg_iovlen = 1;
        Self { headers: vec![header; batch], _parts: parts, _bytes: bytes }
    }

    /// Sends up to `messages` of them, and returns how many the kernel took.
    ///
    /// # Errors
    /// The kernel took none.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, messages: usize) -> nix::Result<usize> {
        let messages = messages.min(self.headers.len()) as libc::c_uint;
        // SAFETY: that many headers are valid, point to bytes that live as long as `self`, and the kernel writes to nothing
        // but their lengths.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), messages, 0) };
        Errno::result(sent).map(|sent| sent as usize)
    }
}

/// Room for messages that are received many at a time (recvmmsg(2), Linux 2.6.33 and later).
#[derive(Debug)]
pub(crate) struct Incoming {
    headers: Vec<libc::mmsghdr>,
    _parts: Box<[libc::iovec]>,
    _bytes: Box<[u8]>,
}

impl Incoming {
    /// Room for `batch` messages of up to `length` bytes; what is longer is cut.
    pub(crate) fn new(length: usize, batch: usize) -> Self {
        let mut bytes = vec![0; length * batch].into_boxed_slice();
        let part = |chunk: &mut [u8]| libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() };
        let mut parts: Box<[libc::iovec]> = bytes.chunks_mut(length).map(part).collect();
        let header = |part: &mut libc::iovec| {
            let mut header = empty_header();
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header
        };
        Self { headers: parts.iter_mut().map(header).collect(), _parts: parts, _bytes: bytes }
    }

    /// Waits for a message as long as the socket's timeout says, takes what else is there, and returns the length of each.
    ///
    /// # Errors
    /// None came.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> nix::Result<impl Iterator<Item = usize>> {
        let room = self.headers.len() as libc::c_uint;
        // C libraries differ in the type of the flags.
        let flags = libc::MSG_WAITFORONE as _;
        // SAFETY: all headers are valid and point to memory of the length that they say, which lives as long as `self`; the
        // timeout is none.
        let received =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), room, flags, ptr::null_mut()) };
        let received = Errno::result(received)? as usize;
        Ok(self.headers[..received].iter().map(|header| header.msg_len as usize))
    }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: a header of nothing but zeros and null pointers is one without an address, parts and control messages.
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_kernel_s_account_of_a_connection_counts_the_bytes_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        let before = tcp_info(client.as_fd()).unwrap();
        client.write_all(&[7; 12_345]).unwrap();
        server.read_exact(&mut [0; 12_345]).unwrap();
        let acked = || tcp_info(client.as_fd()).unwrap().bytes_acked - before.bytes_acked;
        let acked = (0..200).map(|_| (std::thread::sleep(Duration::from_millis(5)), acked()).1);
        assert!(acked.into_iter().any(|acked| acked == 12_345));
        let info = tcp_info(client.as_fd()).unwrap();
        assert!(
            info.snd_mss > 0 && info.pmtu >= info.snd_mss && info.snd_wnd > 0 && info.data_segs_out > 0,
            "{info:?}"
        );
        assert!(info.rtt_us > 0 && info.snd_cwnd > 0 && info.snd_wscale <= 14, "{info:?}");
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_info(udp.as_fd()).is_err());
    }

    #[test]
    fn batches_arrive_whole_and_those_without_room_are_told_as_dropped() {
        let (to, from) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        to.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let mut outgoing = Outgoing::new(vec![1; 100], 8);
        assert_eq!(outgoing.send(from.as_fd(), 5).unwrap(), 5);
        assert_eq!(outgoing.send(from.as_fd(), 99).unwrap(), 8, "no more than there are");
        let mut incoming = Incoming::new(60, 4);
        let mut lengths = Vec::new();
        while lengths.len() < 13 {
            let taken: Vec<usize> = incoming.receive(to.as_fd()).unwrap().collect();
            assert!(taken.len() <= 4);
            lengths.extend(taken);
        }
        assert_eq!(lengths, [60; 13], "longer messages are cut");
        assert_eq!(dropped(to.as_fd()).unwrap(), 0);
        let mut large = Outgoing::new(vec![1; 60_000], 8);
        for _ in 0..10 {
            large.send(from.as_fd(), 8).unwrap();
        }
        let dropped = dropped(to.as_fd()).unwrap();
        assert!((1..80).contains(&dropped), "{dropped}");
    }
}
