//! A program of a user's object file: chosen, checked, and loaded as often as copies are wanted.
//!
//! Only the wanted program goes into the kernel, with those that it tail-calls out of a table which the object itself fills
//! in. Each copy has maps of its own, empty but for what the object gives them; nothing is pinned.

mod btf;
mod elf;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::{ProgramFd, TestRun as _, TestRunOptions, Xdp};
use aya_obj::generated::bpf_map_type;
use sha2::{Digest as _, Sha256};

use super::ObjectSpec;
use crate::bpf;
use crate::error::{Error, Result};

/// No object of a program is nearly as long; a device or a disk image is not read to its end.
const MAX_LEN: u64 = 64 << 20;

/// A program of an object file, ready to be loaded.
#[derive(Debug)]
pub struct UserObject {
    spec: ObjectSpec,
    bytes: Vec<u8>,
    program: String,
    frags: bool,
    tail_calls: Vec<elf::TailCall>,
    /// The bytes of each global variable to set.
    globals: BTreeMap<String, Vec<u8>>,
    /// `max_entries` of the maps that the object leaves to its loader, or that are not used.
    map_entries: BTreeMap<String, u32>,
    needs_kernel_types: bool,
}

impl UserObject {
    /// Reads the file, chooses the program and checks everything that needs no kernel.
    ///
    /// # Errors
    /// The file can't be read, is no BPF object, has no such program or none for XDP, or needs what this loader does not give
    /// it: the error says what.
    pub fn open(spec: &ObjectSpec) -> Result<Self> {
        let refuse = |refusal: elf::Refusal| {
            let error = Error::usage(load_what(spec), refusal.why);
            refusal.remedy.into_iter().fold(error, Error::remedy)
        };
        let bytes = read(&spec.object)?;
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if spec.sha256.as_ref().is_some_and(|before| *before != sha256) {
            return Err(Error::invalid(load_what(spec), "the file has changed since the run was planned"));
        }
        let prepared = elf::prepare(bytes, spec.program.as_deref()).map_err(refuse)?;
        let parsed = aya_obj::Object::parse(&prepared.bytes)
            .map_err(|error| Error::usage(load_what(spec), bpf::with_causes(&error)))?;
        let maps = Maps { spec, parsed: &parsed.maps, prepared: &prepared };
        maps.check_programs()?;
        Ok(Self {
            globals: globals(spec, &prepared.globals)?,
            map_entries: maps.entries()?,
            needs_kernel_types: parsed.has_btf_relocations(),
            spec: ObjectSpec { program: Some(prepared.program.clone()), sha256: Some(sha256), ..spec.clone() },
            bytes: prepared.bytes,
            program: prepared.program,
            frags: prepared.frags,
            tail_calls: prepared.tail_calls,
        })
    }

    /// The specification with the program's name and the file's hash.
    #[must_use]
    pub fn spec(&self) -> &ObjectSpec {
        &self.spec
    }

    /// Whether the program takes packets in fragments (`xdp.frags`, Linux 5.18 and later).
    #[must_use]
    pub fn frags(&self) -> bool {
        self.frags
    }

    /// Loads a copy of the program, with maps of its own.
    ///
    /// # Errors
    /// The kernel refused a map or the program; the verifier's last words are in the error, all of them in
    /// [`Error::log`].
    pub fn load(&self) -> Result<ObjectProgram> {
        let settings = bpf::Settings {
            globals: self.globals.clone(),
            map_entries: self.map_entries.clone(),
            needs_kernel_types: self.needs_kernel_types,
        };
        let mut object = bpf::load_with(settings, &self.bytes, load_what(&self.spec))?;
        let fd = self.load_program(&mut object, &self.program)?;
        let tables = self.fill_tables(&mut object)?;
        Ok(ObjectProgram { name: self.spec.to_string(), fd, object, program: self.program.clone(), _tables: tables })
    }

    fn load_program(&self, object: &mut Ebpf, name: &str) -> Result<ProgramFd> {
        let program = bpf::program(object, name)
            .map_err(|error| error.concerning(format!("load {name} of {}", self.spec.object.display())))?;
        program
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(|error| Error::invalid(format!("keep the program {} open", self.spec), error.to_string()))
    }

    /// Puts the programs into their tables; a table loses them when its last descriptor is closed.
    fn fill_tables(&self, object: &mut Ebpf) -> Result<Vec<ProgramArray<MapData>>> {
        let mut tables: BTreeMap<&str, ProgramArray<MapData>> = BTreeMap::new();
        for call in &self.tail_calls {
            let fd = self.load_program(object, &call.program)?;
            let table = match tables.remove(call.map.as_str()) {
                Some(table) => table,
                None => bpf::take_map(object, &call.map)?,
            };
            let table = tables.entry(&call.map).or_insert(table);
            table.set(call.index, &fd, 0).map_err(|error| {
                bpf::map_error(format!("put {} into the table {} of {}", call.program, call.map, self.spec), &error)
            })?;
        }
        Ok(tables.into_values().collect())
    }
}

fn load_what(spec: &ObjectSpec) -> String {
    format!("load the object {}", spec.object.display())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let what = format!("read the object {}", path.display());
    let failed = |call: &'static str| {
        let what = what.clone();
        move |error: std::io::Error| Error::io(what, call, &error)
    };
    let metadata = std::fs::metadata(path).map_err(failed("stat"))?;
    if !metadata.is_file() {
        return Err(Error::usage(what, "it is no file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed("open"))?;
    file.take(MAX_LEN + 1).read_to_end(&mut bytes).map_err(failed("read"))?;
    if bytes.len() as u64 > MAX_LEN {
        return Err(Error::usage(what, format!("it is longer than {} MiB", MAX_LEN >> 20)));
    }
    Ok(bytes)
}

fn globals(spec: &ObjectSpec, there: &BTreeMap<String, elf::Global>) -> Result<BTreeMap<String, Vec<u8>>> {
    let bytes_of = |(name, value): (&String, &super::Integer)| {
        let what = format!("set the global variable {name} of {}", spec.object.display());
        let Some(global) = there.get(name) else { return Err(unknown(what, "global variable", there.keys())) };
        match (global.size, value.bytes(global.size)) {
            (_, Some(bytes)) => Ok((name.clone(), bytes)),
            (size @ (1 | 2 | 4 | 8), None) => {
                Err(Error::usage(what, format!("{value} does not fit into its {size} bytes ({} bits)", size * 8)))
            }
            (size, None) => Err(Error::usage(what, format!("it has {size} bytes, so it is no integer"))),
        }
    };
    spec.globals.iter().map(bytes_of).collect()
}

fn unknown<'a>(what: String, kind: &str, there: impl Iterator<Item = &'a String>) -> Error {
    let names: Vec<&str> = there.map(String::as_str).collect();
    match names[..] {
        [] => Error::usage(what, format!("the object has no {kind}")),
        _ => Error::usage(what, format!("the object has no such {kind}, only {}", names.join(", "))),
    }
}

/// The maps of an object, as the loader reads them.
struct Maps<'a> {
    spec: &'a ObjectSpec,
    parsed: &'a std::collections::HashMap<String, aya_obj::Map>,
    prepared: &'a elf::Prepared,
}

impl Maps<'_> {
    fn is_used(&self, name: &str) -> bool {
        self.prepared.maps_used.contains(name)
    }

    fn of_type(map: &aya_obj::Map, types: &[bpf_map_type]) -> bool {
        types.iter().any(|map_type| *map_type as u32 == map.map_type())
    }

    /// A table of programs that the object does not fill in is filled by a loader of its own, and nobody else knows how.
    fn check_programs(&self) -> Result<()> {
        let filled = |name: &String| self.prepared.tail_calls.iter().any(|call| call.map == *name);
        let empty = self.parsed.iter().find(|(name, map)| {
            self.is_used(name) && Self::of_type(map, &[bpf_map_type::BPF_MAP_TYPE_PROG_ARRAY]) && !filled(name)
        });
        match empty {
            None => Ok(()),
            Some((name, _)) => Err(Error::usage(
                load_what(self.spec),
                format!(
                    "its program tail-calls out of {name}, which the object leaves empty: every tail call would fail"
                ),
            )
            .remedy(format!("fill {name} in the object: .values = {{ [0] = &program }}"))),
        }
    }

    /// What to set as `max_entries`: what the user says, and one entry for maps that nothing uses.
    fn entries(&self) -> Result<BTreeMap<String, u32>> {
        use bpf_map_type::{
            BPF_MAP_TYPE_CGRP_STORAGE, BPF_MAP_TYPE_INODE_STORAGE, BPF_MAP_TYPE_PERF_EVENT_ARRAY, BPF_MAP_TYPE_RINGBUF,
            BPF_MAP_TYPE_SK_STORAGE, BPF_MAP_TYPE_TASK_STORAGE,
        };
        /// The loader sizes the first by the CPUs, and the kernel the others by itself.
        const SIZED_BY_OTHERS: [bpf_map_type; 5] = [
            BPF_MAP_TYPE_PERF_EVENT_ARRAY,
            BPF_MAP_TYPE_SK_STORAGE,
            BPF_MAP_TYPE_TASK_STORAGE,
            BPF_MAP_TYPE_INODE_STORAGE,
            BPF_MAP_TYPE_CGRP_STORAGE,
        ];
        for name in self.spec.map_entries.keys() {
            if !self.parsed.contains_key(name) {
                let what = format!("size the map {name} of {}", self.spec.object.display());
                let there: std::collections::BTreeSet<&String> =
                    self.parsed.keys().filter(|name| !name.starts_with('.')).collect();
                return Err(unknown(what, "map", there.into_iter()));
            }
        }
        let tables = || self.prepared.table_sizes.iter().filter(|(_, entries)| **entries > 0);
        let sized: BTreeMap<String, u32> =
            tables().chain(&self.spec.map_entries).map(|(name, entries)| (name.clone(), *entries)).collect();
        let unsized_maps: BTreeMap<&String, &aya_obj::Map> = self
            .parsed
            .iter()
            .filter(|(name, map)| {
                map.max_entries() == 0 && !sized.contains_key(*name) && !Self::of_type(map, &SIZED_BY_OTHERS)
            })
            .collect();
        let missing: Vec<&str> =
            unsized_maps.keys().map(|name| name.as_str()).filter(|name| self.is_used(name)).collect();
        if !missing.is_empty() {
            return Err(Error::usage(
                load_what(self.spec),
                format!("it leaves the size of these maps to its loader: {}", missing.join(", ")),
            )
            .remedy(format!("give it: --map-entries {}=N", missing[0])));
        }
        // A ring's size is in bytes, and the loader rounds it up to a page.
        let smallest = |map: &aya_obj::Map| if Self::of_type(map, &[BPF_MAP_TYPE_RINGBUF]) { 4096 } else { 1 };
        let unused = unsized_maps.into_iter().map(|(name, map)| (name.clone(), smallest(map)));
        Ok(unused.chain(sized.clone()).collect())
    }
}

/// A loaded copy of a user's program.
pub struct ObjectProgram {
    name: String,
    program: String,
    fd: ProgramFd,
    object: Ebpf,
    _tables: Vec<ProgramArray<MapData>>,
}

/// What a program did with one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// What it returned (`enum xdp_action`, include/uapi/linux/bpf.h).
    pub action: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
}

impl ObjectProgram {
    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn program_fd(&self) -> &ProgramFd {
        &self.fd
    }

    /// Runs it once on `frame` by `BPF_PROG_TEST_RUN`; the kernel does not act on what it returns. The frame comes in on
    /// queue 0 of the loopback interface.
    ///
    /// # Errors
    /// The kernel refused the frame: without frags it takes no more than a page less some hundred bytes.
    pub fn try_on(&self, frame: &[u8]) -> Result<Tried> {
        /// A program can put this much before a frame (`XDP_PACKET_HEADROOM`, include/uapi/linux/bpf.h), and more behind.
        const ROOM: usize = 4096;
        let what = || format!("try {} on the run's frame", self.name);
        let program: &Xdp = self
            .object
            .program(&self.program)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| Error::invalid(what(), "it is not in its object"))?;
        let mut out = vec![0; frame.len() + ROOM];
        let options = TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::new() };
        let result = program.test_run(options).map_err(|error| bpf::describe_load_error(what(), &error))?;
        out.truncate(result.data_size_out as usize);
        Ok(Tried { action: result.return_value, frame: out })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OBJECT: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/objects/tests-user.bpf.o"));

    /// What opening a file with these bytes comes to, without the file, and all of loading that needs no kernel.
    fn reads(bytes: Vec<u8>) -> bool {
        let Ok(prepared) = elf::prepare(bytes, Some("work")) else { return false };
        let Ok(mut object) = aya_obj::Object::parse(&prepared.bytes) else { return false };
        let features = aya_obj::btf::BtfFeatures::new(true, true, true, true, true, true, true, true);
        let maps = object.maps.clone();
        let code = object.functions.keys().map(|(section, _)| *section).collect();
        object.fixup_and_sanitize_btf(&features).is_ok()
            && object.relocate_maps(maps.iter().map(|(name, map)| (name.as_str(), 3, map)), &code).is_ok()
            && object.relocate_calls(&code).is_ok()
    }

    #[test]
    fn a_whole_object_is_read() {
        assert!(reads(OBJECT.to_vec()));
    }

    #[test]
    fn a_truncated_object_is_refused_and_never_panics() {
        for len in (0..OBJECT.len()).step_by(13) {
            assert!(!reads(OBJECT[..len].to_vec()), "{len} of {} bytes", OBJECT.len());
        }
    }

    #[test]
    fn an_address_in_the_last_instruction_of_a_function_is_refused_and_never_panics() {
        let mut bytes = OBJECT.to_vec();
        bytes[6792] = 144;
        assert!(!reads(bytes));
        // Wherever a function is made to end too early.
        for at in 0..OBJECT.len() {
            let mut bytes = OBJECT.to_vec();
            bytes[at] = 144;
            reads(bytes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_damaged_object_never_panics(damage in proptest::collection::vec((0..OBJECT.len(), any::<u8>()), 1..4)) {
            let mut bytes = OBJECT.to_vec();
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            reads(bytes);
        }
    }

    #[test]
    fn only_what_the_program_needs_is_left() {
        let prepared = |program| elf::prepare(OBJECT.to_vec(), Some(program)).ok().unwrap();
        let programs = |program| {
            let object = aya_obj::Object::parse(&prepared(program).bytes).unwrap();
            object.programs.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(programs("work"), ["work"]);
        assert_eq!(programs("sized"), ["sized"]);
        assert!(prepared("work").maps_used.is_empty());
        assert_eq!(prepared("sized").maps_used.iter().collect::<Vec<_>>(), ["left_to_loader"]);
        let globals: Vec<String> = prepared("work").globals.into_keys().collect();
        assert_eq!(globals, ["multiplications", "result", "seed", "table", "verdict"]);
    }

    #[test]
    fn no_map_is_pinned() {
        let prepared = elf::prepare(OBJECT.to_vec(), Some("pinned")).ok().unwrap();
        let object = aya_obj::Object::parse(&prepared.bytes).unwrap();
        let pinned = object.maps["xdplab_test_pinned"].pinning();
        assert_eq!(pinned, aya_obj::maps::PinningType::None);
    }
}
