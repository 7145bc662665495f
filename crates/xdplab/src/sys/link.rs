//! `bpf_link` for XDP.
//!
//! aya falls back to netlink when the kernel answers `EINVAL`, and a program attached by netlink outlives a killed
//! process; this module attaches by link or not at all.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper")]

use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc::{SYS_bpf, syscall};

/// `BPF_LINK_CREATE` of enum bpf_cmd, include/uapi/linux/bpf.h.
const BPF_LINK_CREATE: i32 = 28;
/// `BPF_XDP` of enum bpf_attach_type.
const BPF_XDP: u32 = 37;

/// `BPF_LINK_UPDATE`.
const BPF_LINK_UPDATE: i32 = 29;

/// The part of union bpf_attr that `BPF_LINK_UPDATE` reads.
#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// Puts another program in the place of the attached one, without a packet between them seeing none. Kernel 5.9.
///
/// # Errors
/// The errno of `bpf(BPF_LINK_UPDATE)`.
pub fn update_xdp(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<(), Errno> {
    let attr = LinkUpdate {
        link_fd: link.as_raw_fd().cast_unsigned(),
        new_prog_fd: program.as_raw_fd().cast_unsigned(),
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: the kernel reads `size` bytes of `attr`, which lives through the call, and writes none.
    Errno::result(unsafe { syscall(SYS_bpf, BPF_LINK_UPDATE, &raw const attr, size_of::<LinkUpdate>()) })?;
    Ok(())
}

/// The part of union bpf_attr that `BPF_LINK_CREATE` reads for XDP.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    padding: [u64; 6],
}

/// Attaches the program to the interface of the calling thread's network namespace; closing the descriptor detaches, and so
/// does the end of the process, however it ends.
///
/// `flags` are `XDP_FLAGS_*` of include/uapi/linux/if_link.h. Kernel 5.9.
///
/// # Errors
/// The errno of `bpf(BPF_LINK_CREATE)`: `EBUSY` where a program is there already, `EOPNOTSUPP` where the driver has no native
/// mode, `ERANGE`/`EINVAL` where the MTU is too large for it.
pub fn create_xdp(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut attr: LinkCreate = unsafe { zeroed() };
    attr.prog_fd = program.as_raw_fd().cast_unsigned();
    attr.target_ifindex = ifindex;
    attr.attach_type = BPF_XDP;
    attr.flags = flags;
    // SAFETY: the kernel reads `size` bytes of `attr`, which lives through the call, and writes none.
    let fd = Errno::result(unsafe { syscall(SYS_bpf, BPF_LINK_CREATE, &raw const attr, size_of::<LinkCreate>()) })?;
    let fd = i32::try_from(fd).map_err(|_out_of_range| Errno::EBADF)?;
    // SAFETY: the kernel has just given us this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
