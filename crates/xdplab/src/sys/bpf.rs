//! bpf(2) for programs of two instructions that only exist to be tried: no loader takes a program that has no object file.

#![expect(unsafe_code, reason = "bpf(2) reads memory through pointers in its argument")]

use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use aya_obj::generated::{BPF_F_TEST_XDP_LIVE_FRAMES, bpf_attach_type, bpf_attr, bpf_cmd, bpf_map_type, bpf_prog_type};
use nix::errno::Errno;

use crate::error::{Error, Result};

/// The GPL, so that no kernel function is out of reach.
const LICENSE: &std::ffi::CStr = c"GPL";

/// A program that does nothing but return a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) prog_type: bpf_prog_type,
    pub(crate) attach_type: bpf_attach_type,
    /// `BPF_F_…` flags of `BPF_PROG_LOAD`.
    pub(crate) flags: u32,
    /// The kernel function or tracepoint, by its number in the kernel's BTF; 0 for none.
    pub(crate) attach_btf_id: u32,
    /// What it returns.
    pub(crate) returns: i32,
}

impl Program {
    /// Loads it; `what` goes into the error.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn load(&self, what: &str) -> Result<OwnedFd> {
        self.load_long(1, what)
    }

    /// Loads it with its first instruction `times` times, at least once, which makes its machine code that much longer.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn load_long(&self, times: usize, what: &str) -> Result<OwnedFd> {
        // `r0 = imm` and `exit` (Documentation/bpf/standardization/instruction-set.rst); neither uses the register byte's
        // halves, which change places with the byte order.
        let [a, b, c, d] = self.returns.to_ne_bytes();
        let mut instructions: Vec<[u8; 8]> = vec![[0xb7, 0, 0, 0, a, b, c, d]; times.max(1)];
        instructions.push([0x95, 0, 0, 0, 0, 0, 0, 0]);
        let mut attr = zeroed();
        attr.__bindgen_anon_3.prog_type = self.prog_type as u32;
        attr.__bindgen_anon_3.expected_attach_type = self.attach_type as u32;
        attr.__bindgen_anon_3.prog_flags = self.flags;
        attr.__bindgen_anon_3.attach_btf_id = self.attach_btf_id;
        attr.__bindgen_anon_3.insns = instructions.as_ptr().expose_provenance() as u64;
        attr.__bindgen_anon_3.insn_cnt = instructions.len() as u32;
        attr.__bindgen_anon_3.license = LICENSE.as_ptr().expose_provenance() as u64;
        // SAFETY: `insns` and `license` point to memory that outlives the call.
        unsafe { new_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr) }
            .map_err(|errno| Error::syscall(what, "bpf(BPF_PROG_LOAD)", errno))
    }
}

/// Makes a map of one element with a key of 4 bytes; `what` goes into the error.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn create_map(map_type: bpf_map_type, value_size: u32, what: &str) -> Result<OwnedFd> {
    let mut attr = zeroed();
    attr.__bindgen_anon_1.map_type = map_type as u32;
    attr.__bindgen_anon_1.key_size = 4;
    attr.__bindgen_anon_1.value_size = value_size;
    attr.__bindgen_anon_1.max_entries = 1;
    // SAFETY: no member points to memory.
    unsafe { new_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr) }
        .map_err(|errno| Error::syscall(what, "bpf(BPF_MAP_CREATE)", errno))
}

/// Attaches a tracing program to what it was loaded for, until the link is closed; `what` goes into the error.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn attach_tracing(program: BorrowedFd<'_>, what: &str) -> Result<OwnedFd> {
    let mut attr = zeroed();
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    // SAFETY: the name is null, which stands for the program's own target.
    unsafe { new_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }
        .map_err(|errno| Error::syscall(what, "bpf(BPF_RAW_TRACEPOINT_OPEN)", errno))
}

/// Runs an XDP program on `repeat` copies of `frame` as live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18 and later):
/// the kernel acts on what the program returns. `what` goes into the error.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn run_live_frames(program: BorrowedFd<'_>, frame: &[u8], repeat: u32, what: &str) -> Result<TestRun> {
    test_run(program, frame, repeat, BPF_F_TEST_XDP_LIVE_FRAMES, what)
}

/// What a program's runs gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestRun {
    /// What the last run returned.
    pub(crate) return_value: u32,
    /// The mean time of a run, in nanoseconds rounded down, without what the call takes to set up.
    pub(crate) duration_ns: u32,
}

/// Runs an XDP program `repeat` times on one copy of `frame`, which each run finds as the run before left it; the kernel
/// does not act on what the program returns (Linux 4.12 and later). `what` goes into the error.
///
/// With more than one repetition a call costs tens of milliseconds beside the runs: the kernel puts the program into its
/// XDP dispatcher, takes it out again, and waits for a grace period each time (`bpf_prog_change_xdp`, net/bpf/test_run.c).
///
/// # Errors
/// The kernel's refusal; `EINTR` if a signal came.
pub(crate) fn run_alone(program: BorrowedFd<'_>, frame: &[u8], repeat: u32, what: &str) -> Result<TestRun> {
    test_run(program, frame, repeat, 0, what)
}

fn test_run(program: BorrowedFd<'_>, frame: &[u8], repeat: u32, flags: u32, what: &str) -> Result<TestRun> {
    let mut attr = zeroed();
    attr.test.prog_fd = program.as_raw_fd() as u32;
    attr.test.data_in = frame.as_ptr().expose_provenance() as u64;
    attr.test.data_size_in = frame.len() as u32;
    attr.test.repeat = repeat;
    attr.test.flags = flags;
    // SAFETY: `data_in` points to `data_size_in` bytes, which the kernel copies; it is given no other memory to write to
    // than `attr`.
    unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr) }
        .map_err(|errno| Error::syscall(what, "bpf(BPF_PROG_TEST_RUN)", errno))?;
    // SAFETY: the kernel has filled in the member that the command is for.
    let test = unsafe { attr.test };
    Ok(TestRun { return_value: test.retval, duration_ns: test.duration })
}

fn zeroed() -> bpf_attr {
    // SAFETY: the union holds nothing but numbers, for which zero is a value; the kernel wants unused bytes to be zero.
    unsafe { mem::zeroed() }
}

/// # Safety
/// As for [`bpf`]; `command` must answer with a file descriptor.
unsafe fn new_fd(command: bpf_cmd, attr: &mut bpf_attr) -> nix::Result<OwnedFd> {
    // SAFETY: by the contract of this function.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// # Safety
/// The pointers in `attr` must be valid for what `command` reads or writes through them.
unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> nix::Result<libc::c_long> {
    // SAFETY: `attr` is a whole `union bpf_attr` of the size given; what it points to is valid by contract.
    Errno::result(unsafe { libc::syscall(libc::SYS_bpf, command as u32, attr, mem::size_of::<bpf_attr>()) })
}
