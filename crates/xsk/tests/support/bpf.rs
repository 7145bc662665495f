//! The XSKMAP and the program that redirects each packet to the socket of its queue, assembled by hand:
//! `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_DROP)`.
#![allow(unsafe_code, reason = "raw bpf(2), so that the tests need no loader")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The attributes of each command, as far as used here, in one block of zeroes.
struct Attributes([u8; 128]);

impl Attributes {
    fn new() -> Self {
        Self([0; 128])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: &impl AsRawFd) -> Self {
        self.u32(at, fd.as_raw_fd().cast_unsigned())
    }

    fn address<T: ?Sized>(mut self, at: usize, of: &T) -> Self {
        let address = std::ptr::from_ref(of).cast::<u8>().expose_provenance() as u64;
        self.0[at..at + 8].copy_from_slice(&address.to_ne_bytes());
        self
    }

    fn call(self, command: i32) -> io::Result<RawFd> {
        // SAFETY: the block is valid for its length, and what it points to outlives the call (see the callers).
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), self.0.len()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
    }

    fn call_for_fd(self, command: i32) -> io::Result<OwnedFd> {
        // SAFETY: the descriptor is new and nobody else's.
        self.call(command).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// The program, attached in native mode while this lives.
pub struct Redirect {
    map: OwnedFd,
    _link: OwnedFd,
}

impl Redirect {
    pub fn attach(ifindex: u32) -> io::Result<Self> {
        let map = Attributes::new().u32(0, BPF_MAP_TYPE_XSKMAP).u32(4, 4).u32(8, 4).u32(12, 64);
        let map = map.call_for_fd(BPF_MAP_CREATE)?;
        let program = load(&map)?;
        let link = Attributes::new().fd(0, &program).u32(4, ifindex).u32(8, BPF_XDP).u32(12, XDP_FLAGS_DRV_MODE);
        let link = link.call_for_fd(BPF_LINK_CREATE)?;
        Ok(Self { map, _link: link })
    }

    /// Puts a socket into the map at its queue.
    pub fn insert(&self, socket: &xsk::Socket) -> io::Result<()> {
        self.insert_at(socket.queue(), socket)
    }

    /// Puts a socket into the map at a queue.
    pub fn insert_at(&self, key: u32, socket: &impl AsRawFd) -> io::Result<()> {
        let value = socket.as_raw_fd();
        Attributes::new().fd(0, &self.map).address(8, &key).address(16, &value).call(BPF_MAP_UPDATE_ELEM).map(drop)
    }
}

/// One instruction: code, registers (source high, destination low), offset, immediate.
fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    [code, registers, o0, o1, i0, i1, i2, i3]
}

fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
    let program = [
        instruction(0x61, 0x12, 16, 0),              // r2 = ctx->rx_queue_index
        instruction(0x18, 0x11, 0, map.as_raw_fd()), // r1 = map (BPF_PSEUDO_MAP_FD) ...
        instruction(0, 0, 0, 0),                     // ... upper half
        instruction(0xb7, 0x03, 0, 1),               // r3 = XDP_DROP
        instruction(0x85, 0, 0, 51),                 // call bpf_redirect_map
        instruction(0x95, 0, 0, 0),                  // exit
    ];
    Attributes::new()
        .u32(0, BPF_PROG_TYPE_XDP)
        .u32(4, program.len() as u32)
        .address(8, &program)
        .address(16, c"GPL".to_bytes_with_nul())
        .u32(44, BPF_F_XDP_HAS_FRAGS)
        .u32(68, BPF_XDP)
        .call_for_fd(BPF_PROG_LOAD)
}
