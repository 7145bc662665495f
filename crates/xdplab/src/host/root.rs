//! Files of `/proc`, `/sys` and `/boot`, below a root that tests replace.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use nix::errno::Errno;

use crate::reading::Reading;

/// The directory that stands for `/`.
#[derive(Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// The machine itself.
    pub(crate) fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    #[cfg(test)]
    pub(crate) fn at(path: &std::path::Path) -> Self {
        Self(path.to_path_buf())
    }

    fn resolve(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The bytes of the file at the absolute `path`.
    pub(crate) fn bytes(&self, path: &str) -> Reading<Vec<u8>> {
        fs::read(self.resolve(path)).map_err(|error| reason(path, &error)).into()
    }

    /// The text of a file without white space around it; an empty file has no value.
    pub(crate) fn text(&self, path: &str) -> Reading<String> {
        self.bytes(path).and_then(|bytes| match String::from_utf8_lossy(&bytes).trim() {
            "" => Reading::not_available(format!("{path}: empty")),
            text => Reading::Known(text.to_owned()),
        })
    }

    /// The number (or other simple value) a file holds.
    pub(crate) fn value<T: FromStr>(&self, path: &str) -> Reading<T> {
        self.text(path).and_then(|text| parse(path, &text))
    }

    /// The names in a directory, sorted; a directory with none has no value.
    pub(crate) fn names(&self, path: &str) -> Reading<Vec<String>> {
        let names = fs::read_dir(self.resolve(path)).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<Vec<_>>>()
        });
        match names {
            Err(error) => Reading::not_available(reason(path, &error)),
            Ok(names) if names.is_empty() => Reading::not_available(format!("{path}: empty")),
            Ok(mut names) => {
                names.sort();
                Reading::Known(names)
            }
        }
    }
}

/// `text`, found at `place`, as a value.
pub(crate) fn parse<T: FromStr>(place: &str, text: &str) -> Reading<T> {
    text.parse().ok().ok_or_else(|| format!("{place}: unexpected {text:?}")).into()
}

fn reason(path: &str, error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => format!("{path}: {errno:?} ({})", errno.desc()),
        None => format!("{path}: {error}"),
    }
}
