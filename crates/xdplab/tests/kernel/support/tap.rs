//! A tap interface: what is sent out of it waits in its ring until somebody reads, and nobody does.

#![expect(unsafe_code, reason = "ioctl(2) takes a pointer")]

use std::fs::File;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;

/// include/uapi/linux/if_tun.h.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const IFF_TAP: i16 = 0x0002;
const IFF_NO_PI: i16 = 0x1000;

/// Makes one of this name in the calling thread's network namespace; it goes with the file.
pub(crate) fn tap(name: &str) -> File {
    let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: a request of nothing but zeros is one without a name and flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI;
    // SAFETY: the kernel reads and writes a request, which outlives the call.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    Errno::result(made).unwrap();
    file
}
