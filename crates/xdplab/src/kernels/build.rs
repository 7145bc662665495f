//! Builds a kernel from source with a configuration for guests, and the same tree with a patch.
//!
//! Both are built in one output folder from one configuration, so the second build compiles only what the patch touches, and
//! the two differ in nothing else: names, dates and numbers that the build puts into the image are fixed.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sys::child::{Running, Waited};

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
/// What a build with this configuration calls (Documentation/process/changes.rst), by the Debian packages that have it.
const TOOLS: [(&str, &str); 8] = [
    ("make", "make"),
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
    ("patch", "patch"),
];
/// A header of the library that the kernel's objtool reads object files with, and its Debian package.
const LIBRARY: (&str, &str) = ("gelf.h", "libelf-dev");

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
    /// Whether everything is there that a build takes, and the patch applies: what would be a pity to be told after the build.
    ///
    /// # Errors
    /// The folder holds no kernel source, a tool is missing (the Debian packages are named), or the patch does not apply.
    pub fn check(&self, patch: Option<&Path>) -> Result<()> {
        let what = format!("build the kernel in {}", self.source.display());
        if !self.source.join("arch/x86/Kconfig").is_file() {
            return Err(Error::usage(what, "there is no arch/x86/Kconfig: it is no kernel source"));
        }
        let missing = missing();
        if !missing.is_empty() {
            let list = |of: fn(&(&'static str, &'static str)) -> &'static str, between: &str| {
                missing.iter().map(of).collect::<Vec<_>>().join(between)
            };
            return Err(Error::unsupported(what, format!("{} missing", list(|(tool, _)| *tool, ", ")))
                .remedy(format!("on Debian: apt-get install {}", list(|(_, package)| *package, " "))));
        }
        patch.map_or(Ok(()), |patch| Applied::check(&self.source, patch))
    }

    /// Builds the source as it is; gives the image.
    ///
    /// # Errors
    /// The build failed (its log is in the output folder), or the user interrupts.
    pub fn baseline(&self, stop: &AtomicBool) -> Result<PathBuf> {
        fs::create_dir_all(&self.output)
            .map_err(|error| Error::io(format!("make the folder {}", self.output.display()), "mkdir", &error))?;
        self.configure(stop)?;
        self.build("baseline", stop)
    }

    /// Applies the patch, builds what it changes, and takes it back; gives the image.
    ///
    /// # Errors
    /// The patch does not apply, the build failed, or the user interrupts; the source is then as before.
    pub fn patched(&self, patch: &Path, stop: &AtomicBool) -> Result<PathBuf> {
        let applied = Applied::to(&self.source, patch)?;
        let built = self.build("candidate", stop);
        applied.take_back()?;
        built
    }

    /// Writes the configuration, if it is another one than before.
    fn configure(&self, stop: &AtomicBool) -> Result<()> {
        let (wanted, config) = (self.output.join("xdplab.config"), self.output.join(".config"));
        if config.is_file() && fs::read_to_string(&wanted).is_ok_and(|text| text == CONFIG) {
            return Ok(());
        }
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|error| Error::io(format!("write {}", path.display()), "write", &error))
        };
        self.make(&["tinyconfig"], stop)?;
        let tiny = read(&config)?;
        write(&config, &format!("{tiny}{CONFIG}"))?;
        self.make(&["olddefconfig"], stop)?;
        write(&wanted, CONFIG)
    }

    fn build(&self, side: &str, stop: &AtomicBool) -> Result<PathBuf> {
        self.make(&[&format!("-j{}", self.jobs), "bzImage"], stop)?;
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

    fn make(&self, arguments: &[&str], stop: &AtomicBool) -> Result<()> {
        let output = fs::canonicalize(&self.output)
            .map_err(|error| Error::io(format!("find {}", self.output.display()), "realpath", &error))?;
        let mut make = Command::new("make");
        make.arg("-C").arg(&self.source).arg(format!("O={}", output.display())).args(arguments).envs(FIXED);
        let log = self.output.join("build.log");
        let what = format!("build the kernel in {} (make {})", self.source.display(), arguments.join(" "));
        run(&mut make, &what, &log, stop).map_err(|error| error.remedy(format!("all of it is in {}", log.display())))
    }
}

/// Those of the tools that this machine has not.
fn missing() -> Vec<(&'static str, &'static str)> {
    let path = env::var_os("PATH").unwrap_or_default();
    let has = |tool: &str| env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let mut missing: Vec<_> = TOOLS.into_iter().filter(|(tool, _)| !has(tool)).collect();
    let mut gcc = Command::new("gcc");
    gcc.args(["-fsyntax-only", "-include", LIBRARY.0, "-x", "c", "/dev/null"]).stdin(Stdio::null());
    let compiles = gcc.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    missing.extend((!compiles).then_some(LIBRARY));
    missing
}

/// A patch in a tree; it is taken back when it is dropped.
struct Applied<'a> {
    source: &'a Path,
    patch: PathBuf,
    done: bool,
}

impl<'a> Applied<'a> {
    fn of(source: &'a Path, patch: &Path) -> Result<Self> {
        let patch = fs::canonicalize(patch)
            .map_err(|error| Error::io(format!("read the patch {}", patch.display()), "open", &error))?;
        Ok(Self { source, patch, done: true })
    }

    fn check(source: &'a Path, patch: &Path) -> Result<()> {
        Self::of(source, patch)?.run(&["--dry-run", "--forward"])
    }

    fn to(source: &'a Path, patch: &Path) -> Result<Self> {
        let mut applied = Self::of(source, patch)?;
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
        let what = format!("apply the patch {} to {}", self.patch.display(), self.source.display());
        let mut patch = Command::new("patch");
        patch.args(["-p1", "--fuzz=0", "--batch", "--silent", "--no-backup-if-mismatch", "--reject-file=-", "-d"]);
        patch.arg(self.source).args(options).arg("-i").arg(&self.patch);
        let log = tempfile::NamedTempFile::new().map_err(|error| Error::io(&what, "open", &error))?;
        // It takes no time, and half a patch is worse than a late end.
        run(&mut patch, &what, log.path(), &AtomicBool::new(false))
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

/// Runs a tool with its output in a file, which tells the reason where it fails.
fn run(command: &mut Command, what: &str, log: &Path, stop: &AtomicBool) -> Result<()> {
    let file = File::create(log).map_err(|error| Error::io(format!("write {}", log.display()), "open", &error))?;
    let second = file.try_clone().map_err(|error| Error::io(what, "dup", &error))?;
    let running = Running::start(command.stdin(Stdio::null()).stdout(file).stderr(second));
    let mut running = running.map_err(|error| Error::io(what, "execve", &error))?;
    // Nobody knows how long a build may take.
    match running.wait(Duration::MAX, stop).map_err(|error| Error::io(what, "wait4", &error))? {
        Waited::Ended(status) if status.success() => Ok(()),
        Waited::Ended(status) => {
            let text = fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            Err(Error::invalid(what, format!("{status}: {}", reason(&text))).with_log(text))
        }
        Waited::TimeIsOver | Waited::Stopped => Err(Error::interrupted(what)),
    }
}

/// The line that tells what went wrong: the first of a compiler, of `patch`, of the shell, or of the kernel's Makefile (`*** …`);
/// else the last.
fn reason(log: &str) -> &str {
    let signs = ["error:", "FAILED", "previously applied", "not found", "*** "];
    let is_frame =
        |line: &str| line.trim_matches(['*', ' ']).is_empty() || line.contains("Waiting for unfinished jobs");
    let told = signs.iter().find_map(|sign| log.lines().find(|line| line.contains(sign) && !is_frame(line)));
    told.or(log.lines().next_back()).unwrap_or("it said nothing").trim()
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
        Applied::check(tree.path(), &patch).unwrap();
        assert_eq!(content(&tree), "one\ntwo\nthree\n");
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
        assert!(error.contains("apply the patch") && error.contains("FAILED"), "{error}");
        assert_eq!(content(&tree), "other\n");
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 2, "no rejects are left");
    }

    #[test]
    fn a_patch_that_is_in_the_tree_already_is_refused() {
        let tree = tree();
        fs::write(tree.path().join("file"), "one\n2\nthree\n").unwrap();
        let error = Applied::check(tree.path(), &tree.path().join("patch")).unwrap_err().to_string();
        assert!(error.contains("previously applied"), "{error}");
    }

    #[test]
    fn a_patch_that_applies_some_lines_away_leaves_no_other_files() {
        let tree = tree();
        fs::write(tree.path().join("file"), "zero\none\ntwo\nthree\n").unwrap();
        Applied::to(tree.path(), &tree.path().join("patch")).unwrap().take_back().unwrap();
        assert_eq!(content(&tree), "zero\none\ntwo\nthree\n");
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_reason_of_a_failure_is_the_first_that_is_told() {
        let compiler = "  CC      drivers/net/veth.o\ndrivers/net/veth.c:5:1: error: expected ';'\n\
            make[2]: *** [scripts/Makefile.build:229: drivers/net/veth.o] Error 1\n";
        assert_eq!(reason(compiler), "drivers/net/veth.c:5:1: error: expected ';'");
        let unclean =
            "***\n*** The source tree is not clean, please run 'make mrproper'\n*** in /src\n***\nmake: *** Error 1\n";
        assert_eq!(reason(unclean), "*** The source tree is not clean, please run 'make mrproper'");
        assert_eq!(reason("make: *** Waiting for unfinished jobs....\nKilled\n"), "Killed");
        assert_eq!(reason("/bin/sh: 1: rustc: not found\nmore\n"), "/bin/sh: 1: rustc: not found");
        assert_eq!(reason(""), "it said nothing");
    }

    #[test]
    fn the_configuration_has_what_guests_need() {
        for option in ["CONFIG_VETH=y", "CONFIG_NET_PKTGEN=y", "CONFIG_X86_IOPL_IOPERM=y", "CONFIG_ETHTOOL_NETLINK=y"] {
            assert!(CONFIG.lines().any(|line| line == option), "{option}");
        }
    }
}
