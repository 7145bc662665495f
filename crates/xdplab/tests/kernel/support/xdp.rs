//! The smallest XDP programs, loaded and attached by bpf(2) alone, so that tests of the topology need nothing else.

#![expect(unsafe_code, reason = "bpf(2) takes pointers")]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::errno::Errno;

/// The actions of `enum xdp_action`.
pub(crate) const XDP_DROP: u32 = 1;
pub(crate) const XDP_PASS: u32 = 2;

const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// `BPF_F_XDP_HAS_FRAGS`
pub(crate) const HAS_FRAGS: u32 = 1 << 5;

/// Loads a program that answers `action` to every frame.
pub(crate) fn load(action: u32, prog_flags: u32) -> Result<OwnedFd, Errno> {
    // r0 = action; exit
    let instructions: [u64; 2] = [0xb7 | u64::from(action) << 32, 0x95];
    let license = c"GPL";
    let mut load = [0_u64; 16];
    load[0] = u64::from(BPF_PROG_TYPE_XDP) | (instructions.len() as u64) << 32;
    load[1] = instructions.as_ptr() as u64;
    load[2] = license.as_ptr() as u64;
    load[5] = u64::from(prog_flags) << 32;
    bpf(BPF_PROG_LOAD, &load)
}

/// Attaches such a program natively; the returned link detaches it when it is closed. To be called in the interface's
/// network namespace.
pub(crate) fn attach(ifindex: u32, action: u32, prog_flags: u32) -> Result<OwnedFd, Errno> {
    let program = load(action, prog_flags)?;
    let link = [
        u64::from(program.as_raw_fd().cast_unsigned()) | u64::from(ifindex) << 32,
        u64::from(BPF_XDP) | u64::from(XDP_FLAGS_DRV_MODE) << 32,
    ];
    bpf(BPF_LINK_CREATE, &link)
}

fn bpf(command: i32, attributes: &[u64]) -> Result<OwnedFd, Errno> {
    // SAFETY: `attributes` is a union bpf_attr of this size, and what it points to outlives the call; both commands used
    // here answer with a new file descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    let fd = Errno::result(fd)?;
    // SAFETY: the kernel just made it for this process alone.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) })
}
