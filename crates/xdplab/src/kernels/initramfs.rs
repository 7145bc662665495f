//! The guest's root: a newc archive (Documentation/driver-api/early-userspace/buffer-format.rst), uncompressed, and the same
//! bytes for the same content: no times, no owners, numbered in the order of the entries.

use std::collections::HashSet;
use std::io::Write as _;

use cpio::newc::{Builder, trailer};

use crate::error::{Error, Result};

/// Types of files in `st_mode`, inode(7).
const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;
/// Folders that the guest mounts on or writes to.
const FOLDERS: [&str; 7] = ["dev", "proc", "sys", "tmp", "run", "root", "modules"];

/// An archive under construction.
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    inode: u32,
    folders: HashSet<String>,
}

impl Initramfs {
    /// With the folders to mount on, and the console: the kernel opens it for the first process before anything is mounted.
    pub(super) fn new() -> Result<Self> {
        let mut archive = Self { bytes: Vec::new(), inode: 0, folders: HashSet::new() };
        for folder in FOLDERS {
            archive.folder(folder)?;
        }
        // Major and minor number: Documentation/admin-guide/devices.txt.
        archive.entry("dev/console", CHARACTER_DEVICE | 0o600, &[], (5, 1))?;
        Ok(archive)
    }

    /// Adds a file, with the folders that lead to it; the path is from the root, with or without a leading slash.
    pub(super) fn file(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            self.folder(&path[..at])?;
        }
        self.entry(path, REGULAR | mode, data, (0, 0))
    }

    fn folder(&mut self, path: &str) -> Result<()> {
        if self.folders.insert(path.to_owned()) { self.entry(path, DIRECTORY | 0o755, &[], (0, 0)) } else { Ok(()) }
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8], (major, minor): (u32, u32)) -> Result<()> {
        self.inode += 1;
        let what = || format!("put {path} into the guest's root");
        let size = u32::try_from(data.len()).map_err(|error| Error::usage(what(), error.to_string()))?;
        let header =
            Builder::new(path).ino(self.inode).nlink(1).mode(mode).mtime(0).rdev_major(major).rdev_minor(minor);
        let mut entry = header.write(std::mem::take(&mut self.bytes), size);
        let written = entry.write_all(data).and_then(|()| entry.finish());
        self.bytes = written.map_err(|error| Error::io(what(), "write", &error))?;
        Ok(())
    }

    /// The archive's bytes.
    pub(super) fn finish(self) -> Result<Vec<u8>> {
        trailer(self.bytes).map_err(|error| Error::io("close the guest's root", "write", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut archive = Initramfs::new().unwrap();
        archive.file("/a/b/init", 0o755, b"program").unwrap();
        archive.file("a/b/plan", 0o644, b"odd").unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn the_same_content_gives_the_same_bytes() {
        assert_eq!(sample(), sample());
    }

    #[test]
    fn a_reader_finds_every_entry_with_its_mode_and_content_and_each_folder_once_before_what_is_in_it() {
        let bytes = sample();
        let mut rest = bytes.as_slice();
        let mut entries = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut data = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut data).unwrap();
            let entry = reader.entry();
            entries.push((entry.name().to_owned(), entry.mode(), data, entry.mtime(), entry.uid()));
            rest = reader.finish().unwrap();
        }
        let names: Vec<&str> = entries.iter().map(|entry| entry.0.as_str()).collect();
        let expected = [&FOLDERS[..], &["dev/console", "a", "a/b", "a/b/init", "a/b/plan"]].concat();
        assert_eq!(names, expected);
        let file = |name: &str| entries.iter().find(|entry| entry.0 == name).unwrap();
        assert_eq!(file("a/b/init"), &("a/b/init".into(), 0o100_755, b"program".to_vec(), 0, 0));
        assert_eq!(file("a/b").1, 0o040_755);
        assert_eq!(file("dev/console").1, 0o020_600);
    }
}
