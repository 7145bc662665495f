//! Debian packages: an `ar` archive whose member `data.tar.*` holds the files (deb(5)).

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use tempfile::TempDir;

use crate::error::{Error, Result};

/// Unpacks what a kernel needs of its package, `boot` and `lib/modules`, into a folder that goes when it is dropped.
pub(super) fn unpack(path: &Path) -> Result<TempDir> {
    let what = || format!("unpack the package {}", path.display());
    let refused = |error: std::io::Error| Error::io(what(), "read", &error);
    let folder = tempfile::tempdir().map_err(|error| Error::io("make a temporary folder", "mkdir", &error))?;
    let mut archive = ar::Archive::new(File::open(path).map_err(refused)?);
    while let Some(member) = archive.next_entry() {
        let member = member.map_err(refused)?;
        let name = String::from_utf8_lossy(member.header().identifier()).into_owned();
        let Some(packed) = name.trim_end_matches('/').strip_prefix("data.tar") else { continue };
        let files: Box<dyn Read> = match packed {
            "" => Box::new(member),
            ".gz" => Box::new(GzDecoder::new(member)),
            ".xz" => {
                let mut tar = Vec::new();
                lzma_rs::xz_decompress(&mut BufReader::new(member), &mut tar)
                    .map_err(|error| Error::usage(what(), format!("{error:?}")))?;
                Box::new(Cursor::new(tar))
            }
            _ => {
                return Err(Error::unsupported(what(), format!("its files are packed as {name}"))
                    .remedy("unpack it with `dpkg-deb -x PACKAGE FOLDER` and name the folder"));
            }
        };
        extract(files, folder.path()).map_err(refused)?;
        return Ok(folder);
    }
    Err(Error::usage(what(), "it has no data.tar: it is no Debian package"))
}

fn extract(files: impl Read, folder: &Path) -> std::io::Result<()> {
    for entry in tar::Archive::new(files).entries()? {
        let mut entry = entry?;
        let wanted = {
            let path = entry.path()?;
            let path = path.strip_prefix(".").unwrap_or(&path);
            ["boot", "lib/modules", "usr/lib/modules"].iter().any(|prefix| path.starts_with(prefix))
        };
        if wanted {
            // Paths that lead out of the folder are left out.
            entry.unpack_in(folder)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn tar() -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, text) in
            [("./boot/vmlinuz-6.1", "image"), ("./usr/share/doc/x", "text"), ("./lib/modules/6.1/a.ko", "ko")]
        {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn package(member: &str, data: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut archive = ar::Builder::new(file.reopen().unwrap());
        for (name, data) in [("debian-binary", b"2.0\n".as_slice()), (member, data)] {
            archive.append(&ar::Header::new(name.as_bytes().to_vec(), data.len() as u64), data).unwrap();
        }
        file
    }

    #[test]
    fn boot_and_modules_are_unpacked_whatever_the_package_is_packed_with() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&tar()).unwrap();
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut tar().as_slice(), &mut xz).unwrap();
        for (member, data) in [("data.tar", tar()), ("data.tar.gz", gz.finish().unwrap()), ("data.tar.xz", xz)] {
            let folder = unpack(package(member, &data).path()).unwrap();
            let read = |path| std::fs::read_to_string(folder.path().join(path));
            assert_eq!(read("boot/vmlinuz-6.1").unwrap(), "image", "{member}");
            assert_eq!(read("lib/modules/6.1/a.ko").unwrap(), "ko", "{member}");
            assert!(read("usr/share/doc/x").is_err(), "{member}");
        }
    }

    #[test]
    fn other_packing_and_other_files_are_refused_in_a_line() {
        let zst = unpack(package("data.tar.zst", b"").path()).unwrap_err().to_string();
        assert!(zst.contains("packed as data.tar.zst") && zst.contains("dpkg-deb -x"), "{zst}");
        let none = unpack(package("control.tar", b"").path()).unwrap_err().to_string();
        assert!(none.contains("no Debian package"), "{none}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "text").unwrap();
        assert!(unpack(file.path()).is_err());
    }
}
