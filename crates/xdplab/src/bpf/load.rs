//! Loading: constants set, map sizes set, frags where the kernel takes it.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use aya::maps::{Map, MapData};
use aya::programs::{ProgramError, Xdp};
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use aya_obj::generated::{BPF_F_XDP_HAS_FRAGS, bpf_attach_type, bpf_prog_type};
use nix::errno::Errno;

use super::{Committed, loader};
use crate::error::{Error, Result};
use crate::sys::bpf::Program;

/// What the loader sets in an object before it goes into the kernel.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// `const volatile __u32` globals by name.
    pub globals: BTreeMap<&'static str, u32>,
    /// `const volatile __u64` arrays by name, of their whole length.
    pub arrays: BTreeMap<&'static str, Vec<u64>>,
    /// `max_entries` of maps by name.
    pub map_entries: BTreeMap<&'static str, u32>,
    /// The object has CO-RE relocations against this kernel's types.
    pub needs_kernel_types: bool,
    /// The programs take no packets in fragments: the sections `xdp.frags` become `xdp`.
    pub without_frags: bool,
}

static BTF: OnceLock<std::result::Result<Btf, String>> = OnceLock::new();

/// This kernel's types, read once in a process: parsing them takes a tenth of a second.
///
/// # Errors
/// `/sys/kernel/btf/vmlinux` is not there (kernel built without `CONFIG_DEBUG_INFO_BTF`) or can't be read.
pub fn kernel_btf() -> Result<&'static Btf> {
    BTF.get_or_init(|| Btf::from_sys_fs().map_err(|error| error.to_string())).as_ref().map_err(|error| {
        Error::unsupported("read this kernel's types from /sys/kernel/btf/vmlinux", error.clone())
            .remedy("use a kernel with CONFIG_DEBUG_INFO_BTF=y")
    })
}

/// Begins to read this kernel's types on a thread of its own, for a command that needs them soon: the loader reads them once
/// more by itself, and both take most of the time in which a command starts.
pub(crate) fn read_types_ahead() {
    if types_are_read() {
        return;
    }
    if thread::Builder::new().spawn(|| kernel_btf().is_ok()).is_err() {
        // Then here; whoever needs them hears what went wrong.
        drop(kernel_btf());
    }
}

/// Whether they have been read, or can't be: whoever needs them waits no longer.
pub(crate) fn types_are_read() -> bool {
    BTF.get().is_some()
}

/// Whether this kernel takes XDP programs with frags (`BPF_F_XDP_HAS_FRAGS`, kernel 5.18): tried once in a process.
/// Without them a program is refused on an interface whose frames span several buffers.
#[must_use]
pub fn takes_frags() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    *TAKES.get_or_init(|| {
        let program = Program {
            prog_type: bpf_prog_type::BPF_PROG_TYPE_XDP,
            attach_type: bpf_attach_type::BPF_XDP,
            flags: BPF_F_XDP_HAS_FRAGS,
            attach_btf_id: 0,
            returns: 0,
        };
        let refused = program.load("load an XDP program with frags").err().and_then(|error| error.errno());
        // The answer to a flag that the kernel does not know; any other says nothing about frags.
        refused != Some(Errno::EINVAL)
    })
}

/// The object with its sections renamed from `xdp.frags` to `xdp` and from `xdp.frags/…` to `xdp/…`, which a loader
/// reads as programs without frags. A name is shortened where it stands, so that nothing else in the object moves.
fn without_frags(object: &[u8]) -> Vec<u8> {
    const FRAGS: &[u8] = b".frags";
    let mut object = object.to_vec();
    let mut at = 0;
    while let Some(found) = object[at..].windows(9).position(|window| window == b"xdp.frags") {
        at += found + "xdp".len();
        let rest = at + FRAGS.len();
        let end = object[rest..].iter().position(|byte| *byte == 0).map_or(object.len(), |length| rest + length);
        object.copy_within(rest..end, at);
        object[end - FRAGS.len()..end].fill(0);
    }
    object
}

/// What the loader sets in a user's object. Equal ones share a loader.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Settings {
    /// The bytes of global variables by name.
    pub(crate) globals: BTreeMap<String, Vec<u8>>,
    /// `max_entries` of maps by name.
    pub(crate) map_entries: BTreeMap<String, u32>,
    /// The object has CO-RE relocations against this kernel's types.
    pub(crate) needs_kernel_types: bool,
}

/// Creates the maps of a user's object, those too that aya has no type for, and makes its programs ready to be loaded one by
/// one.
///
/// A new loader of aya's reads and parses this kernel's types before anything can be set, which takes longer than all the rest. So
/// loaders are kept, each with the few bytes that it borrows, for the life of the process.
///
/// # Errors
/// The maps could not be created, or this kernel's types are needed and not to be had.
pub(crate) fn load_with(settings: Settings, bytes: &[u8], what: String) -> Result<Ebpf> {
    static LOADERS: Mutex<BTreeMap<&Settings, EbpfLoader<'_>>> = Mutex::new(BTreeMap::new());
    let mut loaders = LOADERS.lock().unwrap_or_else(PoisonError::into_inner);
    let loader = match loaders.get_mut(&settings) {
        Some(loader) => loader,
        None => {
            let settings: &'static Settings = Box::leak(Box::new(settings));
            loaders.entry(settings).or_insert(new_loader(settings)?)
        }
    };
    loader.load(bytes).map_err(|error| describe_ebpf_error(what, &error))
}

fn new_loader(settings: &'static Settings) -> Result<EbpfLoader<'static>> {
    let btf = if settings.needs_kernel_types { Some(kernel_btf()?) } else { None };
    let mut loader = EbpfLoader::new();
    loader.btf(btf).allow_unsupported_maps();
    for (name, bytes) in &settings.globals {
        loader.override_global(name, bytes.as_slice(), true);
    }
    for (name, entries) in &settings.map_entries {
        loader.map_max_entries(name, *entries);
    }
    Ok(loader)
}

/// Creates the maps of an object of ours and makes its programs ready to be loaded one by one.
///
/// # Errors
/// The maps could not be created, or this kernel's types are needed and not to be had.
pub fn load(committed: Committed, object: &Object) -> Result<Ebpf> {
    let what = || format!("load the BPF object {}", committed.name);
    // Before the kernel's types, which another thread may be reading meanwhile.
    loader::prepare();
    let kernel_types = if object.needs_kernel_types { Some(kernel_btf()?) } else { None };
    let whole = takes_frags() && !object.without_frags;
    let mut bytes = if whole { committed.bytes.to_vec() } else { without_frags(committed.bytes) };
    let words = |values: &[u64]| values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let globals = object.globals.iter().map(|(name, value)| (name, value.to_ne_bytes().to_vec()));
    for (name, value) in globals.chain(object.arrays.iter().map(|(name, values)| (name, words(values)))) {
        loader::set_global(&mut bytes, name, &value)
            .map_err(|why| Error::invalid(what(), format!("its variable {name} can't be set: {why}")))?;
    }
    loader::load(&bytes, &object.map_entries, kernel_types).map_err(|error| describe_ebpf_error(what(), &error))
}

/// Loads the program `name` of an object of ours into the kernel, if it is not there yet.
///
/// # Errors
/// The verifier or the kernel refused it.
pub fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let what = format!("load the XDP program {name}");
    let program = ebpf.program_mut(name).ok_or_else(|| Error::invalid(&what, "the object does not have it"))?;
    let program: &mut Xdp =
        program.try_into().map_err(|error: ProgramError| Error::invalid(&what, error.to_string()))?;
    if program.fd().is_err() {
        program.load().map_err(|error| describe_load_error(what, &error))?;
    }
    Ok(program)
}

/// Takes a map out of an object, as the typed map that the caller expects.
///
/// # Errors
/// The object has no such map, or it is of another type.
pub fn take_map<T>(ebpf: &mut Ebpf, name: &str) -> Result<T>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    let what = format!("open the BPF map {name}");
    let map = ebpf.take_map(name).ok_or_else(|| Error::invalid(&what, "the object does not have it"))?;
    map.try_into().map_err(|error: aya::maps::MapError| map_error(what, &error))
}

/// The number of CPUs that this machine may ever have: the length of a per-CPU value.
pub(crate) fn possible_cpus() -> Result<u32> {
    let what = "read the possible CPUs";
    let cpus =
        aya::util::nr_cpus().map_err(|(path, error)| Error::io(format!("{what} from {path}"), "read", &error))?;
    u32::try_from(cpus).map_err(|error| Error::invalid(what, error.to_string()))
}

/// A failed map operation as an error of ours.
pub(crate) fn map_error(what: impl Into<String>, error: &aya::maps::MapError) -> Error {
    match error {
        aya::maps::MapError::SyscallError(call) => Error::io(what, "bpf", &call.io_error),
        aya::maps::MapError::CreateError { name, io_error } => {
            Error::io(format!("{} (map {name})", what.into()), "bpf(BPF_MAP_CREATE)", io_error)
        }
        other => Error::invalid(what, other.to_string()),
    }
}

/// An object that was not loaded, as an error of ours.
pub(crate) fn describe_ebpf_error(what: String, error: &EbpfError) -> Error {
    match error {
        EbpfError::MapError(error) => {
            let error = map_error(what, error);
            match error.errno() {
                Some(Errno::EPERM) => error.remedy("run as root, or with CAP_BPF and CAP_NET_ADMIN"),
                _ => error,
            }
        }
        other => Error::invalid(what, with_causes(other)),
    }
}

/// An error with those that caused it, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut causes: Vec<String> =
        std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect();
    // An error that shows its cause already does not need it again.
    causes.dedup_by(|cause, error| error.ends_with(cause.as_str()));
    causes.join(": ")
}

/// A refused program as an error of ours: the verifier's last words, which name the reason, and the errno.
#[must_use]
pub fn describe_load_error(what: String, error: &ProgramError) -> Error {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            // What follows the reason are the verifier's statistics (`print_verification_stats`, kernel/bpf/verifier.c).
            let is_reason = |line: &&str| {
                !line.is_empty()
                    && !["processed ", "stack depth ", "verification time "].iter().any(|start| line.starts_with(start))
            };
            let reason = log.lines().rev().map(str::trim).find(is_reason);
            let error = Error::io(what, "bpf(BPF_PROG_LOAD)", io_error)
                .kernel_says(reason.unwrap_or_default())
                .with_log(log.as_str());
            match error.errno() {
                Some(Errno::EPERM) => error.remedy("run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"),
                _ => error,
            }
        }
        ProgramError::SyscallError(call) => Error::io(what, "bpf", &call.io_error),
        other => Error::invalid(what, other.to_string()),
    }
}

/// The sum over CPUs of per-CPU counters that are arrays of 64-bit numbers.
pub(crate) fn sum_per_cpu<const N: usize>(
    map: &aya::maps::PerCpuArray<MapData, [u64; N]>,
    index: u32,
    what: &str,
) -> Result<[u64; N]> {
    let per_cpu = map.get(&index, 0).map_err(|error| map_error(format!("read {what}"), &error))?;
    Ok(per_cpu.iter().fold([0; N], |mut sum, cpu| {
        sum.iter_mut().zip(cpu).for_each(|(total, value)| *total += value);
        sum
    }))
}

#[cfg(test)]
mod tests {
    use aya_obj::{Object, ProgramSection};

    use super::*;
    use crate::bpf::{CPUMAP, DISPATCHER, DUT, EGRESS, GENERATOR, REDIRECT, TCP, TRAFFICGEN, XSK};

    /// Name of each XDP program, with its frags and what it is attached to.
    fn programs(object: &[u8]) -> BTreeMap<String, (bool, String)> {
        let object = Object::parse(object).unwrap();
        let programs = object.programs.into_iter().filter_map(|(name, program)| match program.section {
            ProgramSection::Xdp { frags, attach_type } => Some((name, (frags, format!("{attach_type:?}")))),
            _ => None,
        });
        programs.collect()
    }

    #[test]
    fn an_object_for_an_old_kernel_has_the_same_programs_without_frags() {
        for committed in [CPUMAP, DISPATCHER, DUT, EGRESS, GENERATOR, REDIRECT, TCP, TRAFFICGEN, XSK] {
            let (with, without) = (programs(committed.bytes), programs(&without_frags(committed.bytes)));
            assert!(!with.is_empty() && with.values().all(|(frags, _)| *frags), "{with:?}");
            let expected = with.into_iter().map(|(name, (_, attach_type))| (name, (false, attach_type)));
            assert_eq!(without, expected.collect());
        }
    }
}
