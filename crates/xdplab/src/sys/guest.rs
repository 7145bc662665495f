//! What only the first process of a guest does: it ends the machine, and marks what a profile counts.
#![expect(unsafe_code, reason = "port output and the marks are machine instructions that Rust has no words for")]

use core::arch::asm;

use nix::errno::Errno;
use nix::libc::ioperm;

/// Writes a byte to an I/O port; QEMU's `isa-debug-exit` ends the machine on that.
///
/// # Errors
/// The kernel has no ioperm(2) (`CONFIG_X86_IOPL_IOPERM`), or this process no right to ports.
pub(crate) fn write_port(port: u16, value: u8) -> Result<(), Errno> {
    // SAFETY: it takes numbers only, and changes nothing but this thread's right to the port.
    Errno::result(unsafe { ioperm(port.into(), 1, 1) })?;
    // SAFETY: the right was just given; the instruction touches no memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
    Ok(())
}

/// Marks the begin of what a profile counts: a NOP of 8 bytes whose last four the profiling plugin looks for
/// (crates/tcg-profile). Without a plugin it does nothing.
#[inline(never)]
pub(crate) fn mark_begin() {
    // SAFETY: it does nothing. That it might touch memory keeps the compiler from moving code across it.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x42, 0x45, 0x58, 0x4c", options(nostack, preserves_flags)) };
}

/// Marks the end.
#[inline(never)]
pub(crate) fn mark_end() {
    // SAFETY: as in `mark_begin`.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x45, 0x4e, 0x58, 0x4c", options(nostack, preserves_flags)) };
}
