//! Where a kernel comes from: an image and its modules.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::module::ModuleFolder;
use super::package;
use crate::error::{Error, Result};

/// Options that a kernel must have built in to boot, find its root in memory, and be heard.
const NEEDED: [(&str, &str); 13] = [
    ("CONFIG_64BIT", "the guest's program is for x86-64"),
    ("CONFIG_BINFMT_ELF", "the guest's program is ELF"),
    ("CONFIG_BLK_DEV_INITRD", "the guest's root is an initramfs"),
    ("CONFIG_DEVTMPFS", "the guest finds its serial port in /dev"),
    ("CONFIG_SERIAL_8250_CONSOLE", "the guest is heard through a serial port"),
    ("CONFIG_PROC_FS", "CPU time and settings are read from /proc"),
    ("CONFIG_SYSFS", "links are read from /sys"),
    ("CONFIG_TMPFS", "the guest has a /tmp"),
    ("CONFIG_FUTEX", "threads of the guest's program wait for each other"),
    ("CONFIG_ETHTOOL_NETLINK", "offloads of the lab are set"),
    ("CONFIG_NET_NS", "the lab is made of network namespaces"),
    ("CONFIG_INET", "the lab has addresses"),
    ("CONFIG_BPF_SYSCALL", "XDP programs are loaded"),
];
/// Options that may be modules.
const NEEDED_SOMEHOW: [(&str, &str); 1] = [("CONFIG_VETH", "the lab is a veth pair")];

/// A kernel image for x86-64 (`bzImage`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// As `uname -r` will say.
    pub release: String,
    /// Who built it and when, as the image says.
    pub version: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

/// A kernel that can be booted.
#[derive(Debug)]
pub struct KernelSource {
    /// As the user gave it.
    pub given: String,
    /// What the image says of itself.
    pub image: Image,
    path: PathBuf,
    modules: Option<ModuleFolder>,
    config: Option<PathBuf>,
    /// Holds what was unpacked.
    _unpacked: Option<TempDir>,
}

impl KernelSource {
    /// Finds a kernel: a `vmlinuz` (its modules are looked for beside it and in `/lib/modules`; `VMLINUZ:FOLDER` names them),
    /// a folder with an unpacked package, a build folder, or a Debian package (`.deb`).
    ///
    /// # Errors
    /// There is none, it is for another architecture, or its configuration lacks an option without which nothing can be
    /// counted.
    pub fn open(given: &str) -> Result<Self> {
        let path = Path::new(given);
        if path.extension().is_some_and(|extension| extension == "deb") {
            let unpacked = package::unpack(path)?;
            let (image, modules) = in_package(unpacked.path()).ok_or_else(|| no_image(given))?;
            return Self::of(given, image, modules, Some(unpacked));
        }
        if path.is_dir() {
            let (image, modules) = in_package(path).or_else(|| in_build(path)).ok_or_else(|| no_image(given))?;
            return Self::of(given, image, modules, None);
        }
        let (image, folder) = match given.rsplit_once(':') {
            Some((image, folder)) if !path.exists() => (Path::new(image), Some(PathBuf::from(folder))),
            _ => (path, None),
        };
        Self::of(given, image.to_owned(), folder, None)
    }

    fn of(given: &str, path: PathBuf, modules: Option<PathBuf>, unpacked: Option<TempDir>) -> Result<Self> {
        let bytes = fs::read(&path).map_err(|error| {
            Error::io(format!("read the kernel {}", path.display()), "open", &error)
                .remedy("name a vmlinuz, a folder with an unpacked package, a build folder or a .deb")
        })?;
        let image = Image::parse(&path, &bytes)?;
        let folder = modules.or_else(|| beside(&path, &image.release));
        let config = config_of(&path, &image.release);
        if let Some(config) = &config {
            require_options(given, config)?;
        }
        let modules = folder.map(ModuleFolder::open).transpose()?;
        Ok(Self { given: given.to_owned(), image, path, modules, config, _unpacked: unpacked })
    }

    /// The image's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The modules in the order in which they have to be loaded, with all that they depend on; what is built in is left out.
    ///
    /// # Errors
    /// One is neither there nor known to be built in, or can't be read.
    pub(super) fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let built_in = self.built_in(names)?;
        let wanted: Vec<&str> = names.iter().copied().filter(|name| !built_in.contains(name)).collect();
        match &self.modules {
            Some(folder) => folder.resolve(&wanted),
            None if wanted.is_empty() => Ok(Vec::new()),
            None if self.config.is_none() => Ok(Vec::new()),
            None => Err(Error::usage(
                format!("find the modules of {}", self.given),
                format!("{} is not built in, and there is no folder of modules", wanted.join(", ")),
            )
            .remedy("write VMLINUZ:FOLDER, with the folder lib/modules/RELEASE of the same build")),
        }
    }

    /// Those of the names that the configuration has as `y`.
    fn built_in<'a>(&self, names: &[&'a str]) -> Result<Vec<&'a str>> {
        let Some(config) = &self.config else { return Ok(Vec::new()) };
        let config = read(config)?;
        let option = |name: &str| match name {
            "veth" => "CONFIG_VETH",
            "pktgen" => "CONFIG_NET_PKTGEN",
            _ => "",
        };
        Ok(names.iter().copied().filter(|name| value(&config, option(name)) == Some("y")).collect())
    }

    /// Why pktgen can't be had, where the configuration tells.
    pub(super) fn lacks_pktgen(&self) -> Option<&'static str> {
        let config = self.config.as_ref().and_then(|config| fs::read_to_string(config).ok())?;
        let lacks = value(&config, "CONFIG_NET_PKTGEN").is_none();
        lacks.then_some("the kernel has no pktgen (CONFIG_NET_PKTGEN)")
    }
}

impl Image {
    /// Reads the header of a boot protocol image (Documentation/arch/x86/boot.rst).
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let what = || format!("boot the kernel {}", path.display());
        if bytes.get(0x202..0x206) != Some(b"HdrS") {
            let found = if bytes.get(56..60) == Some(b"ARM\x64") {
                "it is for 64-bit Arm"
            } else if bytes.get(56..60) == Some(b"RSC\x05") {
                "it is for RISC-V"
            } else if bytes.starts_with(b"\x7fELF") {
                "it is an ELF file (vmlinux)"
            } else {
                "it has no boot header of an x86 kernel"
            };
            return Err(Error::usage(what(), found).remedy("name a vmlinuz (bzImage) for x86-64"));
        }
        let text = bytes
            .get(0x20e..0x210)
            .map(|offset| usize::from(u16::from_le_bytes([offset[0], offset[1]])) + 0x200)
            .and_then(|start| bytes.get(start..))
            .and_then(|bytes| bytes.split(|byte| *byte == 0).next())
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default();
        let (release, version) = text.split_once(' ').unwrap_or((text, ""));
        if release.is_empty() {
            return Err(Error::usage(what(), "its boot header names no release"));
        }
        Ok(Self { release: release.to_owned(), version: version.to_owned(), sha256: sha256(bytes) })
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn no_image(given: &str) -> Error {
    Error::usage(
        format!("find a kernel in {given}"),
        "there is neither boot/vmlinuz-* (a package) nor arch/x86/boot/bzImage (a build folder)",
    )
}

/// Image and modules of an unpacked package.
fn in_package(root: &Path) -> Option<(PathBuf, Option<PathBuf>)> {
    let image = files(&root.join("boot")).into_iter().find(|path| has_name(path, "vmlinuz-"))?;
    let folders = ["lib/modules", "usr/lib/modules"].map(|folder| files(&root.join(folder)));
    Some((image, folders.into_iter().flatten().find(|path| path.is_dir())))
}

/// Image and modules of a build folder.
fn in_build(root: &Path) -> Option<(PathBuf, Option<PathBuf>)> {
    let image = root.join("arch/x86/boot/bzImage");
    image.is_file().then(|| (image, root.join("modules.order").is_file().then(|| root.to_owned())))
}

/// The modules of an image that was named by its file.
fn beside(image: &Path, release: &str) -> Option<PathBuf> {
    let root = image.parent()?.parent().unwrap_or(Path::new("/"));
    let places = [root.join("lib/modules"), root.join("usr/lib/modules"), PathBuf::from("/lib/modules")];
    places.into_iter().map(|place| place.join(release)).find(|folder| folder.is_dir())
}

/// The configuration beside the image, in a package or a build folder.
fn config_of(image: &Path, release: &str) -> Option<PathBuf> {
    let beside = image.with_file_name(format!("config-{release}"));
    let of_build = image.ancestors().nth(4).map(|root| root.join(".config"));
    let in_build = image.ends_with("arch/x86/boot/bzImage");
    [Some(beside), of_build.filter(|_| in_build)].into_iter().flatten().find(|path| path.is_file())
}

fn require_options(given: &str, config: &Path) -> Result<()> {
    let text = read(config)?;
    let lacking = NEEDED
        .iter()
        .filter(|(option, _)| value(&text, option) != Some("y"))
        .chain(NEEDED_SOMEHOW.iter().filter(|(option, _)| value(&text, option).is_none()));
    match lacking.map(|(option, why)| format!("{option} ({why})")).collect::<Vec<_>>() {
        lacking if lacking.is_empty() => Ok(()),
        lacking => Err(Error::unsupported(
            format!("boot {given}"),
            format!("its configuration {} lacks {}", config.display(), lacking.join(", ")),
        )
        .remedy("build the kernel with these options; xdplab kernels build has a configuration that does")),
    }
}

/// What a configuration sets an option to.
fn value<'a>(config: &'a str, option: &str) -> Option<&'a str> {
    config.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('='))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::io(format!("read {}", path.display()), "read", &error))
}

/// What is in a folder, in the order of the names; nothing where there is no such folder.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn has_name(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The least that is read of an image.
    pub(in super::super) fn image(release: &str) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        let text = format!("{release} (builder@host) #1 SMP");
        bytes[0x300..0x300 + text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    const CONFIG: &str = "CONFIG_64BIT=y\nCONFIG_BINFMT_ELF=y\nCONFIG_BLK_DEV_INITRD=y\nCONFIG_DEVTMPFS=y\n\
        CONFIG_SERIAL_8250_CONSOLE=y\nCONFIG_PROC_FS=y\nCONFIG_SYSFS=y\nCONFIG_TMPFS=y\n\
        CONFIG_FUTEX=y\nCONFIG_ETHTOOL_NETLINK=y\nCONFIG_NET_NS=y\nCONFIG_INET=y\nCONFIG_BPF_SYSCALL=y\n\
        CONFIG_VETH=m\n# CONFIG_NET_PKTGEN is not set\n";

    fn package(config: &str) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("boot")).unwrap();
        fs::create_dir_all(root.path().join("lib/modules/6.1.0-57")).unwrap();
        fs::write(root.path().join("boot/vmlinuz-6.1.0-57"), image("6.1.0-57")).unwrap();
        fs::write(root.path().join("boot/config-6.1.0-57"), config).unwrap();
        root
    }

    #[test]
    fn the_image_of_an_unpacked_package_tells_its_release() {
        let root = package(CONFIG);
        let kernel = KernelSource::open(root.path().to_str().unwrap()).unwrap();
        assert_eq!(kernel.image.release, "6.1.0-57");
        assert_eq!(kernel.image.version, "(builder@host) #1 SMP");
        assert_eq!(kernel.image.sha256.len(), 64);
        assert!(kernel.modules.is_some());
        assert_eq!(kernel.lacks_pktgen(), Some("the kernel has no pktgen (CONFIG_NET_PKTGEN)"));
        // The image alone finds the rest of its package.
        let image = root.path().join("boot/vmlinuz-6.1.0-57");
        assert!(KernelSource::open(image.to_str().unwrap()).unwrap().modules.is_some());
        let named = format!("{}:{}", image.display(), root.path().join("lib/modules/6.1.0-57").display());
        assert!(KernelSource::open(&named).unwrap().modules.is_some());
    }

    #[test]
    fn a_kernel_without_a_needed_option_is_refused_by_the_option_s_name() {
        let root = package(&CONFIG.replace("CONFIG_BPF_SYSCALL=y\n", "").replace("CONFIG_VETH=m\n", ""));
        let error = KernelSource::open(root.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(
            error.contains("lacks CONFIG_BPF_SYSCALL (XDP programs are loaded), CONFIG_VETH (the lab is a veth pair)")
        );
    }

    #[test]
    fn what_is_no_x86_kernel_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlinuz");
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            KernelSource::open(path.to_str().unwrap()).unwrap_err().to_string()
        };
        let mut arm = vec![0; 0x400];
        arm[56..60].copy_from_slice(b"ARM\x64");
        assert!(refused(&arm).contains("it is for 64-bit Arm"));
        assert!(refused(b"\x7fELF").contains("it is an ELF file (vmlinux)"));
        assert!(refused(b"").contains("it has no boot header"));
        let mut truncated = image("6.1");
        truncated.truncate(0x210);
        assert!(refused(&truncated).contains("names no release"));
        let empty = KernelSource::open(folder.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(empty.contains("neither boot/vmlinuz-* (a package) nor arch/x86/boot/bzImage"), "{empty}");
        let absent = KernelSource::open("/nonexistent/vmlinuz").unwrap_err().to_string();
        assert!(absent.contains("ENOENT") && absent.contains("name a vmlinuz"), "{absent}");
    }
}
