//! What counts: QEMU, the processor it plays, the guest's program. Numbers of different instruments are not comparable.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSegment as _};
use serde::{Deserialize, Serialize};

use super::source::sha256;
use crate::error::{Error, Result};

/// The program, and the Debian package that has it.
const QEMU: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
/// The processor. `rep movsb` and `rep stosb` count one instruction a byte, so the kernel is not told that they are fast
/// (`erms`, `fsrm`), and takes `rep movsq` and `rep stosq`, or loops, as it would not on most machines of today.
const CPU: &str = "max,-erms,-fsrm";
/// The QEMU versions whose plugin interface is that of the profiling plugin and was tested with it: major and first and last
/// minor number.
const TESTED_PLUGIN_VERSIONS: (u32, std::ops::RangeInclusive<u32>) = (7, 2..=2);

/// What a comparison needs to be the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instrument {
    /// QEMU's version as it says it.
    pub qemu: String,
    /// `-cpu` of QEMU.
    pub cpu: String,
    /// SHA-256 of the guest's program, in hexadecimal.
    pub guest_sha256: String,
    /// Packets of the short and of the long call over a veth; other cases have more or fewer.
    pub packets: [u64; 2],
}

impl Instrument {
    /// What both have in common, or how they differ.
    ///
    /// # Errors
    /// Which parts differ: their numbers must not be compared.
    pub fn same_as(&self, other: &Self) -> Result<()> {
        let differing: Vec<String> = [
            ("QEMU", &self.qemu, &other.qemu),
            ("CPU model", &self.cpu, &other.cpu),
            ("guest program", &self.guest_sha256, &other.guest_sha256),
            ("packets", &format!("{:?}", self.packets), &format!("{:?}", other.packets)),
        ]
        .into_iter()
        .filter(|(_, a, b)| a != b)
        .map(|(what, a, b)| format!("{what} {a} and {b}"))
        .collect();
        if differing.is_empty() {
            return Ok(());
        }
        Err(Error::invalid("compare instructions", format!("they were counted differently: {}", differing.join("; ")))
            .remedy("count all kernels with one QEMU, one CPU model and one xdplab"))
    }
}

/// The QEMU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    pub(super) program: PathBuf,
    /// Its version, e.g. `7.2.22`.
    pub version: String,
}

impl Qemu {
    /// Finds it on the path and asks for its version.
    ///
    /// # Errors
    /// It is not there, or does not say a version.
    pub fn find() -> Result<Self> {
        Self::at(Path::new(QEMU))
    }

    fn at(program: &Path) -> Result<Self> {
        let what = format!("ask {} for its version", program.display());
        let output = Command::new(program).arg("--version").output().map_err(|error| {
            Error::io(&what, "execve", &error).remedy(format!("install QEMU; on Debian: apt-get install {PACKAGE}"))
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text
            .lines()
            .next()
            .and_then(|line| line.split_once("version "))
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .ok_or_else(|| Error::unsupported(&what, "it said none"))?;
        Ok(Self { program: program.to_owned(), version: version.to_owned() })
    }

    /// The processor that it plays.
    #[must_use]
    pub fn cpu(&self) -> &'static str {
        CPU
    }

    /// Whether the profiling plugin was tested with this version.
    ///
    /// # Errors
    /// It was not: counts might be wrong without a sign.
    pub fn require_tested_plugins(&self) -> Result<()> {
        let mut numbers = self.version.split(['.', '-']).map(|number| number.parse::<u32>().ok());
        let (major, minors) = TESTED_PLUGIN_VERSIONS;
        let tested = numbers.next().flatten() == Some(major)
            && numbers.next().flatten().is_some_and(|minor| minors.contains(&minor));
        if tested {
            return Ok(());
        }
        let why =
            format!("the plugin was tested with QEMU {major}.{} only, and this is {}", minors.end(), self.version);
        Err(Error::unsupported("count instructions by function", why).remedy("leave --profile out"))
    }
}

/// The program of the guest: an xdplab that needs nothing else.
#[derive(Debug)]
pub struct GuestBinary {
    pub(super) bytes: Vec<u8>,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

impl GuestBinary {
    /// Reads it; without a path this program itself is taken.
    ///
    /// # Errors
    /// It is not a statically linked program for x86-64.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let path = path.unwrap_or(Path::new("/proc/self/exe"));
        let what = || format!("take {} as the guest's program", path.display());
        let bytes = fs::read(path).map_err(|error| Error::io(what(), "open", &error))?;
        if let Some(why) = unfit(&bytes) {
            return Err(Error::unsupported(what(), why)
                .remedy("build a static xdplab with `cargo xtask guest`, and run that, or name it with --guest FILE"));
        }
        Ok(Self { sha256: sha256(&bytes), bytes })
    }
}

/// Why the guest can't run the program.
fn unfit(bytes: &[u8]) -> Option<String> {
    let file = match object::File::parse(bytes) {
        Ok(file) => file,
        Err(error) => return Some(format!("it is no program: {error}")),
    };
    if file.architecture() != object::Architecture::X86_64 {
        return Some(format!("it is for {:?}, and guests are x86-64", file.architecture()));
    }
    let object::File::Elf64(elf) = &file else { return Some("it is no 64-bit ELF file".into()) };
    use object::read::elf::ProgramHeader as _;
    let interpreter =
        elf.elf_program_headers().iter().any(|header| header.p_type(elf.endian()) == object::elf::PT_INTERP);
    if interpreter {
        return Some("it is linked dynamically, and the guest has no libraries".into());
    }
    file.segments().all(|segment| segment.size() == 0).then(|| "it has no program in it".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instrument() -> Instrument {
        Instrument { qemu: "7.2.22".into(), cpu: CPU.into(), guest_sha256: "ab".into(), packets: [1, 2] }
    }

    #[test]
    fn counts_of_different_instruments_are_not_compared() {
        instrument().same_as(&instrument()).unwrap();
        let other = Instrument { qemu: "8.0.0".into(), packets: [1, 3], ..instrument() };
        let error = instrument().same_as(&other).unwrap_err().to_string();
        assert!(error.contains("QEMU 7.2.22 and 8.0.0; packets [1, 2] and [1, 3]"), "{error}");
    }

    #[test]
    fn a_qemu_that_is_not_there_is_named_with_its_debian_package() {
        let error = Qemu::at(Path::new("/nonexistent/qemu")).unwrap_err().to_string();
        assert!(error.contains("ENOENT") && error.contains("apt-get install qemu-system-x86"), "{error}");
    }

    #[test]
    fn profiles_are_made_with_tested_versions_of_qemu_only() {
        let qemu = |version: &str| Qemu { program: PathBuf::new(), version: version.into() };
        qemu("7.2.22").require_tested_plugins().unwrap();
        for version in ["8.0.0", "10.0.2", "7.1.0", "unknown"] {
            let error = qemu(version).require_tested_plugins().unwrap_err().to_string();
            assert!(error.contains(version), "{error}");
        }
    }

    #[test]
    fn a_dynamic_program_and_a_text_are_no_guests() {
        let error = GuestBinary::open(Some(Path::new("/bin/sh"))).unwrap_err().to_string();
        assert!(error.contains("linked dynamically") && error.contains("cargo xtask guest"), "{error}");
        let error = GuestBinary::open(Some(Path::new("/proc/version"))).unwrap_err().to_string();
        assert!(error.contains("it is no program"), "{error}");
    }
}
