//! A QEMU TCG plugin: how many instructions each translated block executed between two marks of the guest.
//!
//! The marks are NOPs of 8 bytes that no compiler makes (`0f 1f 84 00`, then four bytes of `MARKS`), in user space. From a
//! begin to an end every block's instructions are counted, those of the kernel too. For each pair the output file
//! (`-plugin FILE,out=OUTPUT`) gets a line `mark` and a line for each block that was executed: the address where it starts, in
//! hexadecimal, and its instructions.
//!
//! A block that is left in its middle, by a page fault say, counts whole.
//!
//! The plugin interface of QEMU has versions; this plugin is for version 1 (QEMU 7.2, include/qemu/qemu-plugin.h) and refuses
//! others: a later one counts by another call.

mod counts;
// Without QEMU there is nothing to link these to.
#[cfg(not(test))]
mod qemu;

/// What stands behind `0f 1f 84 00` at the begin and at the end of what is counted.
pub(crate) const MARKS: [[u8; 4]; 2] = [*b"BEXL", *b"ENXL"];
