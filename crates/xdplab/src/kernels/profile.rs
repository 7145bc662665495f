//! Instructions by function: what the profiling plugin counted, with the guest's own symbols.
//!
//! The plugin counts how often each translated block is executed. A block counts for the function in which it starts.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where addresses of the kernel begin (Documentation/arch/x86/x86_64/mm.rst): the upper half.
const KERNEL_HALF: u64 = 1 << 63;
/// Shares below this are left out of the record, in instructions per packet.
const LEAST: f64 = 0.005;
/// How the functions of what sends and measures begin: `BPF_PROG_TEST_RUN` and pktgen.
const HARNESS: [&str; 7] = [
    "bpf_prog_test_run",
    "bpf_test_run",
    "bpf_test_timer",
    "fill_packet",
    "mod_cur_headers",
    "pktgen_",
    "xdp_test_run",
];

/// Whose a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The kernel's data path, and whatever else it does meanwhile.
    Kernel,
    /// A BPF program's machine code.
    Bpf,
    /// What sends and measures: `BPF_PROG_TEST_RUN`, pktgen, the generator's program, the guest's user space. What they call
    /// (the page allocator, say) can't be told from the data path's calls and counts as the kernel's.
    Harness,
}

/// A function's share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Its name; `bpf:NAME` for a BPF program, `(user space)` for everything there.
    pub name: String,
    /// Whose it is.
    pub part: Part,
    /// Guest instructions per packet (TCG).
    pub instructions: f64,
}

/// A case by function: the long call of the last round less the short one, per packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Every function with a share of at least 0.005 instructions per packet, the largest first.
    pub functions: Vec<Function>,
    /// Instructions per packet of all functions, small ones too.
    pub total: f64,
}

impl Profile {
    /// Instructions per packet of a part.
    #[must_use]
    pub fn part(&self, part: Part) -> f64 {
        self.functions.iter().filter(|function| function.part == part).map(|function| function.instructions).sum()
    }

    /// A function's instructions per packet; 0 where its share is too small to be kept.
    fn of(&self, name: &str) -> f64 {
        self.functions.iter().find(|function| function.name == name).map_or(0.0, |function| function.instructions)
    }

    /// From two sections of the plugin's output.
    pub(super) fn between(short: &Section, long: &Section, symbols: &Symbols, packets: u64) -> Self {
        let mut by_name: BTreeMap<String, i128> = BTreeMap::new();
        for (section, sign) in [(long, 1), (short, -1)] {
            for (address, instructions) in &section.0 {
                *by_name.entry(symbols.name_of(*address)).or_default() += sign * i128::from(*instructions);
            }
        }
        let per_packet = |instructions: i128| instructions as f64 / packets as f64;
        let total = per_packet(by_name.values().sum());
        let functions = by_name.into_iter().map(|(name, instructions)| {
            let part = part_of(&name);
            Function { name, part, instructions: per_packet(instructions) }
        });
        let mut functions: Vec<_> = functions.filter(|function| function.instructions.abs() >= LEAST).collect();
        functions.sort_by(|a, b| b.instructions.total_cmp(&a.instructions).then_with(|| a.name.cmp(&b.name)));
        Self { functions, total }
    }
}

/// A function on both sides, in guest instructions per packet (TCG).
#[derive(Clone, Debug, PartialEq)]
pub struct Change<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whose it is.
    pub part: Part,
    /// Its share with the baseline and with the candidate.
    pub sides: [f64; 2],
}

impl Change<'_> {
    /// Candidate less baseline.
    #[must_use]
    pub fn delta(&self) -> f64 {
        self.sides[1] - self.sides[0]
    }
}

/// Every function of either side, the largest change first; one that a side does not have counts as nothing there.
#[must_use]
pub fn changes<'a>(baseline: &'a Profile, candidate: &'a Profile) -> Vec<Change<'a>> {
    let functions: BTreeMap<&str, Part> = baseline
        .functions
        .iter()
        .chain(&candidate.functions)
        .map(|function| (function.name.as_str(), function.part))
        .collect();
    let change = |(name, part)| Change { name, part, sides: [baseline.of(name), candidate.of(name)] };
    let mut changes: Vec<_> = functions.into_iter().map(change).collect();
    // The names are in order, and the order of equals stays.
    changes.sort_by(|a, b| b.delta().abs().total_cmp(&a.delta().abs()));
    changes
}

fn part_of(name: &str) -> Part {
    if name == USER_SPACE || name == "bpf:send" || HARNESS.iter().any(|start| name.starts_with(start)) {
        return Part::Harness;
    }
    if name.starts_with("bpf:") { Part::Bpf } else { Part::Kernel }
}

const USER_SPACE: &str = "(user space)";

/// What was executed between a pair of marks: where blocks start, and the instructions they executed in all.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Section(Vec<(u64, u64)>);

/// The plugin's output: for each pair of marks a line `mark`, then a line for each block with its address in hexadecimal and
/// its instructions.
pub(super) fn parse_sections(text: &str) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        if line == "mark" {
            sections.push(Section::default());
            continue;
        }
        let block = line
            .split_once(' ')
            .and_then(|(address, count)| Some((u64::from_str_radix(address, 16).ok()?, count.parse().ok()?)));
        match (sections.last_mut(), block) {
            (Some(section), Some(block)) => section.0.push(block),
            _ => return Err(Error::invalid("read the profile", format!("its line `{line}` is not understood"))),
        }
    }
    Ok(sections)
}

/// The guest's functions by address.
#[derive(Debug)]
pub(super) struct Symbols(Vec<(u64, String)>);

impl Symbols {
    /// From a gzipped `/proc/kallsyms`.
    pub(super) fn read(gzipped: &[u8]) -> Result<Self> {
        let what = "read the guest's symbols";
        let mut text = String::new();
        GzDecoder::new(gzipped).read_to_string(&mut text).map_err(|error| Error::invalid(what, error.to_string()))?;
        let mut symbols: Vec<(u64, String)> = text.lines().filter_map(symbol).collect();
        symbols.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1)));
        symbols.dedup_by_key(|(address, _)| *address);
        if symbols.iter().all(|(address, _)| *address == 0) {
            return Err(Error::invalid(what, "the kernel hides their addresses (kptr_restrict)"));
        }
        Ok(Self(symbols))
    }

    fn name_of(&self, address: u64) -> String {
        if address < KERNEL_HALF {
            return USER_SPACE.into();
        }
        let behind = self.0.partition_point(|(start, _)| *start <= address);
        behind.checked_sub(1).map_or_else(|| format!("{address:#x}"), |index| self.0[index].1.clone())
    }
}

/// A line of `/proc/kallsyms`, if it is of a function: its address and name. Of BPF programs (`bpf_prog_TAG_NAME`) the tag,
/// which says where it is loaded, is left out; of functions, what the compiler puts behind the name of a part or a variant
/// (`.cold`, `.constprop.0`), and `_noprof`, by which allocators are called since 6.10.
fn symbol(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
    if !matches!(kind, "t" | "T" | "w" | "W") {
        return None;
    }
    let program = name.strip_prefix("bpf_prog_").filter(|_| words.next() == Some("[bpf]"));
    let name = match program.and_then(|rest| rest.split_once('_')) {
        Some((_tag, name)) => format!("bpf:{name}"),
        None => {
            let base = name.split('.').next().filter(|name| !name.is_empty()).unwrap_or(name);
            base.strip_suffix("_noprof").unwrap_or(base).to_owned()
        }
    };
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const KALLSYMS: &str = "ffffffff81000000 T startup_noprof\nffffffff81000100 t veth_xdp_rcv_one\nffffffff81000180 d data\n\
        ffffffff81000200 T xdp_test_run_batch.constprop.0\nffffffffc0000000 t bpf_prog_6deef7357e7b4530_send\t[bpf]\n\
        ffffffffc0000040 t bpf_prog_0123456789abcdef_no_touch\t[bpf]\n";

    fn symbols(text: &str) -> Result<Symbols> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        Symbols::read(&gz.finish().unwrap())
    }

    const SECTIONS: &str = "mark\nffffffff81000110 100\n401000 7\nmark\nffffffff81000110 5000\nffffffff81000190 3000\n\
        ffffffff81000208 2000\nffffffffc0000004 400\nffffffffc0000050 1000\n401000 107\nffffffff81000000 1\n";

    #[test]
    fn blocks_count_for_the_function_they_start_in_and_the_short_call_is_taken_off() {
        let sections = parse_sections(SECTIONS).unwrap();
        let profile = Profile::between(&sections[0], &sections[1], &symbols(KALLSYMS).unwrap(), 100);
        let shares: Vec<(&str, Part, f64)> =
            profile.functions.iter().map(|f| (f.name.as_str(), f.part, f.instructions)).collect();
        assert_eq!(
            shares,
            [
                ("veth_xdp_rcv_one", Part::Kernel, 79.0),
                ("xdp_test_run_batch", Part::Harness, 20.0),
                ("bpf:no_touch", Part::Bpf, 10.0),
                ("bpf:send", Part::Harness, 4.0),
                ("(user space)", Part::Harness, 1.0),
                ("startup", Part::Kernel, 0.01),
            ]
        );
        assert!((profile.total - 114.01).abs() < 1e-9);
        assert!((profile.part(Part::Harness) - 25.0).abs() < 1e-9);
    }

    #[test]
    fn changes_come_by_size_and_a_function_of_one_side_counts_as_nothing_on_the_other() {
        let function = |name: &str, instructions| Function { name: name.into(), part: Part::Kernel, instructions };
        let profile = |functions: Vec<Function>| Profile { functions, total: 0.0 };
        let before = profile(vec![function("a", 10.0), function("b", 5.0), function("c", 1.0)]);
        let after = profile(vec![function("a", 13.0), function("b", 5.0), function("d", 20.0)]);
        let found: Vec<_> = changes(&before, &after).iter().map(|change| (change.name, change.sides)).collect();
        assert_eq!(found, [("d", [0.0, 20.0]), ("a", [10.0, 13.0]), ("c", [1.0, 0.0]), ("b", [5.0, 5.0])]);
    }

    #[test]
    fn damaged_profiles_and_hidden_symbols_are_errors() {
        assert!(parse_sections("12 3\n").unwrap_err().to_string().contains("`12 3`"));
        assert!(parse_sections("mark\nffff\n").unwrap_err().to_string().contains("`ffff`"));
        let hidden = symbols("0000000000000000 T startup\n0000000000000000 t other\n").unwrap_err().to_string();
        assert!(hidden.contains("kptr_restrict"), "{hidden}");
        assert!(Symbols::read(b"no gzip").is_err());
    }
}
