//! Kernel modules: found by name, unpacked, and put in order by what their own `.modinfo` says they depend on.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use object::{Object as _, ObjectSection as _};

use super::source::files;
use crate::error::{Error, Result};

/// A folder of modules, `lib/modules/RELEASE` or a build folder.
#[derive(Debug)]
pub(super) struct ModuleFolder {
    path: PathBuf,
    /// Names with underscores, as the kernel has them.
    modules: HashMap<String, PathBuf>,
    built_in: HashSet<String>,
}

impl ModuleFolder {
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let what = || format!("read the modules in {}", path.display());
        if !path.is_dir() {
            return Err(Error::usage(what(), "there is no such folder"));
        }
        let mut modules = HashMap::new();
        find(&path, &mut modules);
        let list = fs::read_to_string(path.join("modules.builtin")).unwrap_or_default();
        let built_in = list.lines().filter_map(|line| name_of(Path::new(line))).collect();
        Ok(Self { path, modules, built_in })
    }

    /// The modules with those they depend on, each after all of its own.
    pub(super) fn resolve(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let (mut seen, mut order) = (HashSet::new(), Vec::new());
        names.iter().try_for_each(|name| self.add(name, &mut seen, &mut order))?;
        Ok(order)
    }

    fn add(&self, name: &str, seen: &mut HashSet<String>, order: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        if self.built_in.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let path = self.modules.get(name).ok_or_else(|| {
            let why = format!("{} has neither {name}.ko nor names it in modules.builtin", self.path.display());
            Error::usage(format!("find the module {name}"), why)
        })?;
        let bytes = unpack(path)?;
        for needed in depends(path, &bytes)? {
            self.add(&needed, seen, order)?;
        }
        order.push((name.to_owned(), bytes));
        Ok(())
    }
}

/// Every module below a folder. Links are not followed: a folder of modules links to its source and build folders.
fn find(folder: &Path, modules: &mut HashMap<String, PathBuf>) {
    for path in files(folder) {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            find(&path, modules);
        } else if let Some(name) = name_of(&path) {
            modules.insert(name, path);
        }
    }
}

/// The module's name; `None` where the file is none.
fn name_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = ["", ".xz", ".gz", ".zst"].iter().find_map(|packed| name.strip_suffix(packed)?.strip_suffix(".ko"))?;
    Some(name.replace('-', "_"))
}

/// The module's bytes, whatever it is packed with.
fn unpack(path: &Path) -> Result<Vec<u8>> {
    let what = || format!("unpack the module {}", path.display());
    let packed = fs::read(path).map_err(|error| Error::io(what(), "read", &error))?;
    let mut bytes = Vec::new();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return Ok(packed),
        Some("xz") => lzma_rs::xz_decompress(&mut packed.as_slice(), &mut bytes)
            .map_err(|error| Error::usage(what(), format!("{error:?}")))?,
        Some("gz") => GzDecoder::new(packed.as_slice())
            .read_to_end(&mut bytes)
            .map(drop)
            .map_err(|error| Error::usage(what(), error.to_string()))?,
        _ => return Err(Error::unsupported(what(), "it is packed with zstd").remedy("unpack it with `zstd -d`")),
    }
    Ok(bytes)
}

/// The names of the modules that a module needs (`depends=` of its `.modinfo`).
fn depends(path: &Path, bytes: &[u8]) -> Result<Vec<String>> {
    let what = || format!("read what the module {} depends on", path.display());
    let file = object::File::parse(bytes).map_err(|error| Error::usage(what(), error.to_string()))?;
    let section = file.section_by_name(".modinfo").ok_or_else(|| Error::usage(what(), "it has no .modinfo"))?;
    let info = section.data().map_err(|error| Error::usage(what(), error.to_string()))?;
    let depends =
        info.split(|byte| *byte == 0).find_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("depends="));
    let names = depends.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    Ok(names.map(|name| name.replace('-', "_")).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// The smallest ELF file with a `.modinfo`: the ELF header, three section headers, names, content.
    fn module(depends: &str) -> Vec<u8> {
        let info = format!("license=GPL\0depends={depends}\0name=x\0");
        let names = b"\0.modinfo\0.shstrtab\0";
        let (headers, info_at) = (64_u64, 64 + 3 * 64_u64);
        let names_at = info_at + info.len() as u64;
        let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        elf.extend([1_u16, 62].map(u16::to_le_bytes).concat());
        elf.extend(1_u32.to_le_bytes());
        elf.extend([0, 0, headers].map(u64::to_le_bytes).concat());
        elf.extend(0_u32.to_le_bytes());
        elf.extend([64_u16, 0, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
        let section = |name: u32, kind: u32, at: u64, size: usize| {
            let mut header = [name, kind].map(u32::to_le_bytes).concat();
            header.extend([0, 0, at, size as u64].map(u64::to_le_bytes).concat());
            header.extend([0_u32, 0].map(u32::to_le_bytes).concat());
            header.extend([1_u64, 0].map(u64::to_le_bytes).concat());
            header
        };
        elf.extend(section(0, 0, 0, 0));
        elf.extend(section(1, 1, info_at, info.len()));
        elf.extend(section(10, 3, names_at, names.len()));
        elf.extend(info.as_bytes());
        elf.extend(names);
        elf
    }

    fn folder(modules: &[(&str, &[u8])], built_in: &str) -> (tempfile::TempDir, ModuleFolder) {
        let root = tempfile::tempdir().unwrap();
        let kernel = root.path().join("kernel/drivers");
        fs::create_dir_all(&kernel).unwrap();
        for (name, bytes) in modules {
            fs::write(kernel.join(name), bytes).unwrap();
        }
        fs::write(root.path().join("modules.builtin"), built_in).unwrap();
        let folder = ModuleFolder::open(root.path().to_owned()).unwrap();
        (root, folder)
    }

    #[test]
    fn each_module_comes_after_those_it_depends_on_and_only_once() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&module("net_failover,failover")).unwrap();
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut module("failover").as_slice(), &mut xz).unwrap();
        let modules: &[(&str, &[u8])] = &[
            ("virtio-net.ko.gz", &gz.finish().unwrap()),
            ("net_failover.ko.xz", &xz),
            ("failover.ko", &module("")),
            ("veth.ko", &module("virtio-ring")),
        ];
        let (_root, folder) = folder(modules, "kernel/drivers/virtio/virtio_ring.ko\n");
        let order = folder.resolve(&["veth", "virtio_net", "failover"]).unwrap();
        let names: Vec<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["veth", "failover", "net_failover", "virtio_net"]);
        assert_eq!(order[2].1, module("failover"), "it is unpacked");
    }

    #[test]
    fn a_module_that_is_nowhere_or_damaged_is_an_error_that_names_it() {
        let (_root, folder) = folder(&[("broken.ko", b"no ELF"), ("packed.ko.xz", b"no xz")], "");
        let error = |name| folder.resolve(&[name]).unwrap_err().to_string();
        assert!(error("veth").contains("has neither veth.ko nor names it in modules.builtin"));
        assert!(error("broken").contains("broken.ko"));
        assert!(error("packed").contains("unpack the module"));
    }
}
