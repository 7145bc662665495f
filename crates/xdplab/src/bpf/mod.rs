//! The committed BPF objects and how they get into the kernel.

mod load;
mod loader;

pub use load::{Object, describe_load_error, kernel_btf, load, program, take_map, takes_frags};
pub(crate) use load::{
    Settings, load_with, map_error, possible_cpus, read_types_ahead, sum_per_cpu, types_are_read, with_causes,
};

use aya_obj::generated::{bpf_attach_type, bpf_prog_type};

use crate::sys::bpf::Program;

/// A committed object, built by `cargo xtask bpf` from the C source of the same name.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// File name below `bpf/objects/`.
    pub name: &'static str,
    bytes: &'static [u8],
}

macro_rules! committed {
    ($constant:ident, $file:literal, $doc:literal) => {
        #[doc = $doc]
        pub const $constant: Committed = Committed {
            name: $file,
            bytes: aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/objects/", $file)),
        };
    };
}

committed!(CPUMAP, "cpumap.bpf.o", "Redirects packets to other CPUs; `bpf/cpumap.bpf.c`.");
committed!(DISPATCHER, "dispatcher.bpf.o", "Cuts traffic into slices; `bpf/dispatcher.bpf.c`.");
committed!(DUT, "dut.bpf.o", "The programs under test; `bpf/dut.bpf.c`.");
committed!(EGRESS, "egress.bpf.o", "Runs on frames that a devmap is about to transmit; `bpf/egress.bpf.c`.");
committed!(GENERATOR, "generator.bpf.o", "Sends live frames and sinks what comes back; `bpf/generator.bpf.c`.");
committed!(COLD, "cold.bpf.o", "Makes packet data cold in a test run; `bpf/cold.bpf.c`.");
committed!(REFERENCE, "reference.bpf.o", "The reference workload; `bpf/reference.bpf.c`.");
committed!(OBSERVE, "observe.bpf.o", "Counters fed by tracepoints; `bpf/observe.bpf.c`.");
committed!(REDIRECT, "redirect.bpf.o", "Redirects packets to other interfaces; `bpf/redirect.bpf.c`.");
committed!(TCP, "tcp.bpf.o", "Sends the segments of a TCP flow; `bpf/tcp.bpf.c`.");
committed!(TRAFFICGEN, "trafficgen.bpf.o", "Sends frames that differ, as scheduled; `bpf/trafficgen.bpf.c`.");
committed!(XSK, "xsk.bpf.o", "Gives packets to AF_XDP sockets; `bpf/xsk.bpf.c`.");

/// Every object.
pub const ALL: [Committed; 12] =
    [COLD, CPUMAP, DISPATCHER, DUT, EGRESS, GENERATOR, OBSERVE, REDIRECT, REFERENCE, TCP, TRAFFICGEN, XSK];

/// What built the objects and the hashes of sources and objects, as committed.
pub const MANIFEST: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/objects/MANIFEST.toml"));

impl Committed {
    /// SHA-256 of the object's bytes in hexadecimal, for the record.
    #[must_use]
    pub fn sha256(&self) -> String {
        use sha2::{Digest, Sha256};
        Sha256::digest(self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// An XDP program that nothing runs.
pub(crate) fn filler() -> Program {
    Program {
        prog_type: bpf_prog_type::BPF_PROG_TYPE_XDP,
        attach_type: bpf_attach_type::BPF_XDP,
        flags: 0,
        attach_btf_id: 0,
        returns: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_describes_the_objects_that_are_compiled_in() {
        for object in ALL {
            let entry = MANIFEST.split_once(&format!("[objects.\"{}\"]", object.name)).unwrap().1;
            let hash = entry.split_once("object_sha256 = \"").unwrap().1;
            assert!(hash.starts_with(&object.sha256()), "{} differs from the manifest", object.name);
        }
    }

    #[test]
    fn the_manifest_describes_the_sources_that_stand_beside_the_objects() {
        use sha2::{Digest, Sha256};
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/");
        let read = |name: &str| std::fs::read_to_string(format!("{folder}{name}")).unwrap();
        for object in ALL {
            let source = read(&object.name.replace(".bpf.o", ".bpf.c"));
            let headers = source.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
            let headers: String = headers.map(read).collect();
            let hash: String =
                Sha256::digest(source.clone() + &headers).iter().map(|byte| format!("{byte:02x}")).collect();
            let entry = MANIFEST.split_once(&format!("[objects.\"{}\"]", object.name)).unwrap().1;
            assert!(
                entry.split_once("source_sha256 = \"").unwrap().1.starts_with(&hash),
                "{} was built from another source: run cargo xtask bpf",
                object.name
            );
        }
    }
}
