//! Builds a kernel from source with a configuration for guests, and the same tree with a patch.
//!
//! Both are built in one output folder from one configuration, so the second build compiles only what the patch touches, and
//! the two differ in nothing else: names, dates and numbers that the build puts into the image are fixed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Options on top of `make tinyconfig`.
const CONFIG: &str = include_str!("xdp.config");
/// What the build would put into the image otherwise (Documentation/kbuild/reproducible-builds.rst).
const FIXED: [(&str, &str); 5] = [
    ("KBUILD_BUILD_TIMESTAMP", "2024-01-01"),
    ("KBUILD_BUILD_USER", "xdplab"),
    ("KBUILD_BUILD_HOST", "xdplab"),
    ("KBUILD_BUILD_VERSION", "1"),
    ("LOCALVERSION", ""),
];

/// What to build.
#[derive(Clone, Debug)]
pub struct KernelBuild {
    /// The kernel's source; nothing may have been built in it.
    pub source: PathBuf,
    /// Where everything goes that is built.
    pub output: PathBuf,
    /// Compilers at a time.
    pub jobs: usize,
}

impl KernelBuild {
    /// Builds the source as it is; gives the image.
    ///
    /// # Errors
    /// The folder holds no kernel source, a tool is missing, or the build failed; its log is in the output folder.
    pub fn baseline(&self) -> Result<PathBuf> {
        if !self.source.join("arch/x86/Kconfig").is_file() {
            return Err(Error::usage(
                format!("build the kernel in {}", self.source.display()),
                "there is no arch/x86/Kconfig: it is no kernel source",
            ));
        }
        fs::create_dir_all(&self.output)
            .map_err(|error| Error::io(format!("make the folder {}", self.output.display()), "mkdir", &error))?;
        self.configure()?;
        self.build("baseline")
    }

    /// Applies the patch, builds what it changes, and takes it back; gives the image.
    ///
    /// # Errors
    /// The patch does not apply, or the build failed; the source is then as before.
    pub fn patched(&self, patch: &Path) -> Result<PathBuf> {
        let applied = Applied::to(&self.source, patch)?;
        let built = self.build("candidate");
        applied.take_back()?;
        built
    }

    /// Writes the configuration, if it is another one than before.
    fn configure(&self) -> Result<()> {
        let (wanted, config) = (self.output.join("xdplab.config"), self.output.join(".config"));
        if config.is_file() && fs::read_to_string(&wanted).is_ok_and(|text| text == CONFIG) {
            return Ok(());
        }
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|error| Error::io(format!("write {}", path.display()), "write", &error))
        };
        self.make(&["tinyconfig"])?;
        let tiny = read(&config)?;
        write(&config, &format!("{tiny}{CONFIG}"))?;
        self.make(&["olddefconfig"])?;
        write(&wanted, CONFIG)
    }

    fn build(&self, side: &str) -> Result<PathBuf> {
        self.make(&[&format!("-j{}", self.jobs), "bzImage"])?;
        let folder = self.output.join(side);
        let image = folder.join("arch/x86/boot/bzImage");
        let copy = |from: &str| {
            let (from, to) = (self.output.join(from), folder.join(from));
            let parent = to.parent().unwrap_or(&folder);
            fs::create_dir_all(parent)
                .and_then(|()| fs::copy(&from, &to))
                .map_err(|error| Error::io(format!("copy {} to {}", from.display(), to.display()), "copy", &error))
        };
        copy("arch/x86/boot/bzImage")?;
        copy(".config")?;
        Ok(image)
    }

    fn make(&self, arguments: &[&str]) -> Result<()> {
        let output = fs::canonicalize(&self.output)
            .map_err(|error| Error::io(format!("find {}", self.output.display()), "realpath", &error))?;
        let mut make = Command::new("make");
        make.arg("-C").arg(&self.source).arg(format!("O={}", output.display())).args(arguments).envs(FIXED);
        let log = self.output.join("build.log");
        let what = format!("build the kernel in {} (make {})", self.source.display(), arguments.join(" "));
        run(make, &what, &log)
    }
}

/// A patch in a tree; it is taken back when it is dropped.
struct Applied<'a> {
    source: &'a Path,
    patch: PathBuf,
    done: bool,
}

impl<'a> Applied<'a> {
    fn to(source: &'a Path, patch: &Path) -> Result<Self> {
        let patch = fs::canonicalize(patch)
            .map_err(|error| Error::io(format!("read the patch {}", patch.display()), "open", &error))?;
        let mut applied = Self { source, patch, done: true };
        // Nothing is changed unless all of it applies.
        applied.run(&["--dry-run", "--forward"])?;
        applied.run(&["--forward"])?;
        applied.done = false;
        Ok(applied)
    }

    fn take_back(mut self) -> Result<()> {
        self.done = true;
        self.run(&["--reverse"])
    }

    fn run(&self, options: &[&str]) -> Result<()> {
        let mut patch = Command::new("patch");
        patch.args(["-p1", "--batch", "--silent", "--reject-file=-", "-d"]).arg(self.source).args(options);
        let what = format!("apply the patch {} to {}", self.patch.display(), self.source.display());
        patch.arg("-i").arg(&self.patch);
        let log = tempfile::NamedTempFile::new().map_err(|error| Error::io(&what, "open", &error))?;
        run(patch, &what, log.path())
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        if !self.done {
            // The error that led here is told; this one would hide it.
            self.run(&["--reverse"]).unwrap_or_default();
        }
    }
}

/// Runs a tool with its output in a file, whose last words are the reason where it fails.
fn run(mut command: Command, what: &str, log: &Path) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let file = File::create(log).map_err(|error| Error::io(format!("write {}", log.display()), "open", &error))?;
    let second = file.try_clone().map_err(|error| Error::io(what, "dup", &error))?;
    let status = command.stdin(Stdio::null()).stdout(file).stderr(second).status().map_err(|error| {
        Error::io(what, "execve", &error).remedy(format!("install {program}; on Debian: apt-get install {program}"))
    })?;
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(log).unwrap_or_default();
    let error = text.lines().rev().find(|line| line.contains("rror") || line.contains("FAILED"));
    let words = error.or(text.lines().next_back()).unwrap_or("it said nothing").trim();
    Err(Error::invalid(what, format!("{status}: {words}"))
        .with_log(text.as_str())
        .remedy("on Debian a build takes the packages make gcc flex bison bc libelf-dev libssl-dev"))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::io(format!("read {}", path.display()), "read", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "--- a/file\n+++ b/file\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("file"), "one\ntwo\nthree\n").unwrap();
        fs::write(tree.path().join("patch"), PATCH).unwrap();
        tree
    }

    fn content(tree: &tempfile::TempDir) -> String {
        fs::read_to_string(tree.path().join("file")).unwrap()
    }

    #[test]
    fn a_patch_is_taken_back_also_after_an_error() {
        let tree = tree();
        let patch = tree.path().join("patch");
        let applied = Applied::to(tree.path(), &patch).unwrap();
        assert_eq!(content(&tree), "one\n2\nthree\n");
        applied.take_back().unwrap();
        assert_eq!(content(&tree), "one\ntwo\nthree\n");
        drop(Applied::to(tree.path(), &patch).unwrap());
        assert_eq!(content(&tree), "one\ntwo\nthree\n");
    }

    #[test]
    fn a_patch_that_does_not_apply_changes_nothing() {
        let tree = tree();
        fs::write(tree.path().join("file"), "other\n").unwrap();
        let error = Applied::to(tree.path(), &tree.path().join("patch")).err().unwrap().to_string();
        assert!(error.contains("apply the patch"), "{error}");
        assert_eq!(content(&tree), "other\n");
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 2, "no rejects are left");
    }

    #[test]
    fn a_folder_without_kernel_source_is_refused() {
        let tree = tree();
        let build = KernelBuild { source: tree.path().into(), output: tree.path().join("out"), jobs: 1 };
        assert!(build.baseline().unwrap_err().to_string().contains("no kernel source"));
        assert!(!tree.path().join("out").exists());
    }

    #[test]
    fn the_configuration_has_what_guests_need() {
        for option in ["CONFIG_VETH=y", "CONFIG_NET_PKTGEN=y", "CONFIG_X86_IOPL_IOPERM=y", "CONFIG_ETHTOOL_NETLINK=y"] {
            assert!(CONFIG.lines().any(|line| line == option), "{option}");
        }
    }
}
