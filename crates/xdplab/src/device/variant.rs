//! What can be compared: one of our programs, or one of a user's object file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Action, CpumapVariant, ProgramSpec, RedirectVariant, XskAction, XskVariant};
use crate::error::Error;

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VariantSpec {
    /// One of our programs that give a verdict.
    Builtin(ProgramSpec),
    /// One of ours that redirect to other interfaces.
    Redirect(RedirectVariant),
    /// One of ours that redirect to other CPUs.
    Cpumap(CpumapVariant),
    /// One of ours that give packets to AF_XDP sockets.
    Xsk(XskVariant),
    /// A program of a user's object file.
    Object(ObjectSpec),
}

/// A program of a user's object file, and what the loader sets in the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectSpec {
    /// The object file.
    pub object: PathBuf,
    /// The program's function; `None`: the only XDP program of the object.
    pub program: Option<String>,
    /// Values of global variables, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub globals: BTreeMap<String, Integer>,
    /// Sizes (`max_entries`) of maps, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub map_entries: BTreeMap<String, u32>,
    /// SHA-256 of the file, in hexadecimal; `None` while it was not read.
    pub sha256: Option<String>,
}

/// The value of a global variable: any integer of up to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Integer {
    /// Zero or above.
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
}

impl Integer {
    /// Its bytes as a variable of `size` bytes holds them; `None` where it does not fit, signed or unsigned.
    #[must_use]
    pub fn bytes(self, size: usize) -> Option<Vec<u8>> {
        let bits = u32::try_from(size * 8).ok().filter(|bits| (8..=64).contains(bits))?;
        let (fits, low) = match self {
            Self::Unsigned(value) => (value.leading_zeros() >= 64 - bits, value),
            Self::Negative(value) => (value.leading_ones() > 64 - bits, value.cast_unsigned()),
        };
        // BPF has the byte order of the machine (Documentation/bpf/standardization/instruction-set.rst).
        let bytes = low.to_ne_bytes();
        let low = if cfg!(target_endian = "big") { &bytes[8 - size..] } else { &bytes[..size] };
        fits.then(|| low.to_vec())
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => value.fmt(f),
            Self::Negative(value) => value.fmt(f),
        }
    }
}

impl FromStr for Integer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let value = match hexadecimal {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(Self::Unsigned),
            None if text.starts_with('-') => text.parse().ok().map(Self::Negative),
            None => text.parse().ok().map(Self::Unsigned),
        };
        value.ok_or_else(|| {
            Error::usage(format!("read the number `{text}`"), "it is no integer of 64 bits, such as 7, -1 or 0x1f")
        })
    }
}

impl VariantSpec {
    /// Whether it may send packets back out of the interface they came in on. Nobody knows that of a user's program.
    #[must_use]
    pub fn may_return_packets(&self) -> bool {
        match self {
            Self::Builtin(spec) => spec.action == Action::Tx,
            Self::Redirect(_) | Self::Cpumap(_) => false,
            Self::Xsk(spec) => spec.xsk == XskAction::Tx,
            Self::Object(_) => true,
        }
    }

    /// Whether both are the same program with the same settings; where the files lie does not matter once they were read.
    #[must_use]
    pub fn is_same_program(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(a), Self::Object(b)) if a.sha256.is_some() => {
                (&a.sha256, &a.program, &a.globals, &a.map_entries)
                    == (&b.sha256, &b.program, &b.globals, &b.map_entries)
            }
            _ => self == other,
        }
    }
}

impl From<ProgramSpec> for VariantSpec {
    fn from(spec: ProgramSpec) -> Self {
        Self::Builtin(spec)
    }
}

impl fmt::Display for VariantSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin(spec) => spec.fmt(f),
            Self::Redirect(spec) => spec.fmt(f),
            Self::Cpumap(spec) => spec.fmt(f),
            Self::Xsk(spec) => spec.fmt(f),
            Self::Object(spec) => spec.fmt(f),
        }
    }
}

impl fmt::Display for ObjectSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.display())?;
        if let Some(program) = &self.program {
            write!(f, ":{program}")?;
        }
        for (name, value) in &self.globals {
            write!(f, " {name}={value}")?;
        }
        for (name, entries) in &self.map_entries {
            write!(f, " {name}[{entries}]")?;
        }
        Ok(())
    }
}

impl FromStr for VariantSpec {
    type Err = Error;

    /// `FILE.o` or `FILE.o:PROGRAM`, with whatever stands before the last `.o:` or with a slash; all else is one of ours.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(mode) = Self::parse_mode(text) {
            return mode;
        }
        let (file, program) = match text.rfind(".o:") {
            Some(at) => (&text[..at + 2], Some(&text[at + 3..])),
            None if text.ends_with(".o") => (text, None),
            None if text.contains('/') => text.rsplit_once(':').map_or((text, None), |(file, name)| (file, Some(name))),
            None => return text.parse().map(Self::Builtin),
        };
        if program == Some("") {
            return Err(Error::usage(
                format!("read the program specification `{text}`"),
                "no program follows the colon",
            )
            .remedy("write FILE.o:PROGRAM, or FILE.o alone where the object has one XDP program"));
        }
        Ok(Self::Object(ObjectSpec {
            object: file.into(),
            program: program.map(str::to_owned),
            globals: BTreeMap::new(),
            map_entries: BTreeMap::new(),
            sha256: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Operation;

    fn object(text: &str) -> (String, Option<String>) {
        match text.parse().unwrap() {
            VariantSpec::Object(spec) => (spec.object.display().to_string(), spec.program),
            other => panic!("{text} is read as {other}"),
        }
    }

    #[test]
    fn a_file_with_or_without_a_program_is_told_from_a_program_of_ours() {
        for text in ["drop.o", "../a:b/drop.bpf.o", "x.o:prog", "./x.o:y.o:prog", "/tmp/drop:prog"] {
            assert_eq!(text.parse::<VariantSpec>().unwrap().to_string(), text);
        }
        assert_eq!(object("x.o:prog"), ("x.o".into(), Some("prog".into())));
        assert_eq!(object("./x.o:y.o:prog"), ("./x.o:y.o".into(), Some("prog".into())));
        assert_eq!(object("a:b/c.o"), ("a:b/c.o".into(), None));
        assert_eq!(object("/tmp/drop:prog"), ("/tmp/drop".into(), Some("prog".into())));
        let ours = ProgramSpec::new(Action::Drop, Operation::NoTouch);
        assert_eq!("drop:no-touch".parse::<VariantSpec>().unwrap(), VariantSpec::Builtin(ours));
        assert!("x.o:".parse::<VariantSpec>().unwrap_err().to_string().contains("no program follows the colon"));
    }

    #[test]
    fn a_variant_survives_json_and_one_of_ours_is_written_as_before() {
        let ours: VariantSpec = "tx:swap-macs:mul=2".parse().unwrap();
        let mut theirs: VariantSpec = "x.o:prog".parse().unwrap();
        if let VariantSpec::Object(spec) = &mut theirs {
            spec.globals.insert("limit".into(), Integer::Negative(-3));
            spec.globals.insert("mask".into(), Integer::Unsigned(u64::MAX));
            spec.map_entries.insert("flows".into(), 64);
        }
        assert_eq!(theirs.to_string(), format!("x.o:prog limit=-3 mask={} flows[64]", u64::MAX));
        for variant in [ours, theirs] {
            let json = serde_json::to_string(&variant).unwrap();
            assert_eq!(serde_json::from_str::<VariantSpec>(&json).unwrap(), variant, "{json}");
        }
    }

    #[test]
    fn a_number_takes_the_bytes_of_its_variable_if_it_fits() {
        let bytes = |text: &str, size| text.parse::<Integer>().unwrap().bytes(size);
        assert_eq!(bytes("255", 1), Some(vec![255]));
        assert_eq!(bytes("256", 1), None);
        assert_eq!(bytes("-128", 1), Some(vec![0x80]));
        assert_eq!(bytes("-129", 1), None);
        assert_eq!(bytes("0x12345678", 4), Some(0x1234_5678_u32.to_ne_bytes().to_vec()));
        assert_eq!(bytes("-1", 8), Some(vec![0xff; 8]));
        assert_eq!(bytes("0xffffffffffffffff", 8), Some(vec![0xff; 8]));
        assert_eq!(bytes("0", 12), None);
        for text in ["", "x", "0x", "1.5", "18446744073709551616", "-9223372036854775809", "+-1"] {
            assert!(text.parse::<Integer>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_same_bytes_under_two_names_are_the_same_program() {
        let read = |text: &str, sha256: &str| match text.parse().unwrap() {
            VariantSpec::Object(spec) => VariantSpec::Object(ObjectSpec { sha256: Some(sha256.into()), ..spec }),
            ours => ours,
        };
        assert!(read("a.o:p", "1").is_same_program(&read("b.o:p", "1")));
        assert!(!read("a.o:p", "1").is_same_program(&read("a.o:q", "1")));
        assert!(!read("a.o:p", "1").is_same_program(&read("a.o:p", "2")));
        assert!(!read("a.o:p", "1").is_same_program(&"drop:no-touch".parse().unwrap()));
    }
}
