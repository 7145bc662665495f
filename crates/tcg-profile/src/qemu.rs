//! QEMU's plugin interface, version 1 (include/qemu/qemu-plugin.h of QEMU 7.2), and the plugin's entry.

#![expect(unsafe_code, reason = "QEMU calls plugins, and is called by them, through C")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::counts::{Counts, mark};

/// The version this plugin is written for.
const VERSION: c_int = 1;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD_U64: c_int = 0;
/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;
/// The upper half of addresses is the kernel's.
const KERNEL_HALF: u64 = 1 << 63;

#[repr(C)]
struct Version {
    min: c_int,
    cur: c_int,
}

/// The beginning of `qemu_info_t`.
#[repr(C)]
struct Info {
    target_name: *const c_char,
    version: Version,
    system_emulation: bool,
}

#[repr(C)]
struct Block {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Instruction {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, callback: extern "C" fn(u64, *mut Block));
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    fn qemu_plugin_register_vcpu_tb_exec_inline(block: *mut Block, operation: c_int, to: *mut c_void, value: u64);
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
}

/// Read by QEMU before it calls anything.
// SAFETY: QEMU looks for a symbol of this name and type, and nothing else has it.
#[unsafe(no_mangle)]
static qemu_plugin_version: c_int = VERSION;

struct State {
    counts: Counts,
    output: Option<File>,
}

static STATE: Mutex<State> = Mutex::new(State { counts: Counts::new(), output: None });

fn with_state<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn complain(why: &str) -> c_int {
    // There is nobody to tell when that fails.
    writeln!(std::io::stderr().lock(), "xdplab-tcg-profile: {why}").unwrap_or_default();
    -1
}

/// Called by QEMU once, when it loads the plugin.
///
/// # Safety
/// As QEMU calls it: `info` and the `argc` texts of `argv` are valid.
// SAFETY: QEMU looks for a symbol of this name and type, and nothing else has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn qemu_plugin_install(id: u64, info: *const Info, argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: valid by the contract of this function.
    let info = unsafe { &*info };
    if info.version.cur != VERSION {
        return complain(&format!(
            "QEMU's plugin interface has version {}, and this is for {VERSION}",
            info.version.cur
        ));
    }
    // SAFETY: QEMU gives the name of its target.
    let target = unsafe { CStr::from_ptr(info.target_name) };
    if !info.system_emulation || target != c"x86_64" {
        return complain("it is for whole x86_64 machines");
    }
    let arguments = (0..usize::try_from(argc).unwrap_or(0)).map(|index| {
        // SAFETY: `argv` has `argc` texts by the contract of this function.
        unsafe { CStr::from_ptr(*argv.add(index)) }.to_string_lossy()
    });
    let Some(path) = arguments.into_iter().find_map(|argument| argument.strip_prefix("out=").map(str::to_owned)) else {
        return complain("say out=FILE");
    };
    match File::create(&path) {
        Ok(file) => with_state(|state| state.output = Some(file)),
        Err(error) => return complain(&format!("can't write {path}: {error}")),
    }
    // SAFETY: `id` is this plugin's, and the callback lives as long as the process.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, translated) };
    0
}

/// A block was translated: have its instructions counted whenever it runs, and its marks heard.
extern "C" fn translated(_id: u64, block: *mut Block) {
    // SAFETY: QEMU's block is valid during this callback.
    let (address, length) = unsafe { (qemu_plugin_tb_vaddr(block), qemu_plugin_tb_n_insns(block)) };
    let counter = with_state(|state| state.counts.of(address, length));
    // SAFETY: the counter lives as long as the process, and is a u64 that nobody else writes while the one CPU runs.
    unsafe {
        qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, counter.instructions.as_ptr().cast(), length as u64);
    }
    if address >= KERNEL_HALF {
        return;
    }
    for index in 0..length {
        // SAFETY: `index` is below the block's length; the instruction and its bytes are valid during this callback.
        let (instruction, bytes) = unsafe {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            let (data, size) = (qemu_plugin_insn_data(instruction), qemu_plugin_insn_size(instruction));
            (instruction, std::slice::from_raw_parts(data.cast::<u8>(), size))
        };
        let callback = match mark(bytes) {
            Some(0) => begin,
            Some(_) => end,
            None => continue,
        };
        // SAFETY: as above; the callbacks live as long as the process and take no data.
        unsafe {
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, callback, NO_REGISTERS, std::ptr::null_mut());
        }
    }
}

extern "C" fn begin(_cpu: c_uint, _data: *mut c_void) {
    with_state(|state| state.counts.begin());
}

extern "C" fn end(_cpu: c_uint, _data: *mut c_void) {
    with_state(|state| {
        let section = state.counts.section();
        if let Some(output) = &mut state.output
            && let Err(error) = output.write_all(section.as_bytes())
        {
            complain(&format!("can't write what was counted: {error}"));
        }
    });
}
