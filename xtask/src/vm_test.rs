//! Runs the kernel tests in guests, passes on what they print, and sums it up.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::guest;

/// Modules of the kernel that tests use beside veth.
const MODULES: &str = "bridge,pktgen,tun";
/// Packages with kernel tests.
pub(crate) const PACKAGES: [&str; 2] = ["xdplab", "xsk"];

/// What to run.
pub(crate) struct VmTest<'a> {
    /// Kernels as `xdplab kernels` takes them.
    pub(crate) kernels: &'a [String],
    /// Only the tests of this package.
    pub(crate) package: Option<&'a str>,
    /// Only tests whose names have this in them.
    pub(crate) filter: Option<&'a str>,
    /// No tests whose names have one of these in them.
    pub(crate) skip: &'a [String],
    /// Wall-clock seconds for the tests of a package.
    pub(crate) timeout: u64,
}

/// Runs the kernel tests in each of the kernels, as many at a time as there are CPUs. It fails if a test does, a guest does, or no
/// test was run.
pub(crate) fn run(asked: &VmTest<'_>) -> Result<()> {
    // The tests of xdplab come with the xdplab that the guests are.
    if asked.package.is_some_and(|package| package != "xdplab") {
        guest::build()?;
    }
    let packages = PACKAGES.into_iter().filter(|package| asked.package.is_none_or(|asked| asked == *package));
    let tests = packages.map(test_program).collect::<Result<Vec<_>>>()?;
    let of_kernel = |kernel: &str| -> Result<Totals> {
        let mut totals = Totals::default();
        for tests in &tests {
            totals.add(in_guest(asked, kernel, tests)?);
        }
        Ok(totals)
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut totals = Vec::new();
    for kernels in asked.kernels.chunks(cpus) {
        std::thread::scope(|scope| {
            let of_kernel = &of_kernel;
            let threads: Vec<_> = kernels.iter().map(|kernel| scope.spawn(move || of_kernel(kernel))).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")));
            totals.extend(kernels.iter().zip(ended));
        });
    }
    let mut all_good = true;
    for (kernel, totals) in totals {
        let totals = totals?;
        all_good &= totals.are_good();
        print(&format!("\n{}:\n{totals}", label(kernel)))?;
    }
    ensure!(all_good, "kernel tests failed, or were not run to their end");
    Ok(())
}

/// How a kernel is called in the output: a package by its name.
fn label(kernel: &str) -> &str {
    let name = kernel.trim_end_matches('/').rsplit('/').next().unwrap_or(kernel);
    let name = name.strip_prefix("linux-image-").unwrap_or(name);
    name.split_once('_').map_or(name, |(name, _)| name)
}

fn print(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("can't print")
}

/// Runs a program of tests in a guest of its own.
fn in_guest(asked: &VmTest<'_>, kernel: &str, tests: &Path) -> Result<Totals> {
    let xdplab = guest::program()?;
    let mut exec = Command::new(&xdplab);
    exec.args(["-v", "kernels", "exec", kernel, "--cpus", "2", "--module", MODULES]);
    exec.args(["--timeout", &asked.timeout.to_string()]);
    exec.args(["--env", "XDPLAB_REQUIRE_KERNEL_TESTS=1", "--env", "XDPLAB_EMULATED=1", "--file"]);
    exec.arg(there(tests, "/kernel-tests"));
    for file in needed(&xdplab)? {
        exec.arg("--file").arg(there(&file, &file.display().to_string()));
    }
    exec.args(["--", "/kernel-tests", "--test-threads", "1"]);
    exec.args(asked.skip.iter().flat_map(|name| ["--skip", name.as_str()]));
    exec.args(asked.filter);
    let mut child = exec.stdout(Stdio::piped()).spawn().with_context(|| format!("can't run {}", xdplab.display()))?;
    let mut totals = Totals::default();
    let lines = BufReader::new(child.stdout.take().context("no output")?);
    for line in lines.lines() {
        let line = line.context("can't read what the tests print")?;
        print(&format!("{}: {line}", label(kernel)))?;
        totals.hear(&line);
    }
    totals.ended(child.wait().context("can't wait for xdplab")?);
    Ok(totals)
}

/// What became of tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// How many were ignored for each reason.
    reasons: BTreeMap<String, u64>,
    /// Programs that said their result.
    results: u64,
    /// Programs that did not, or whose guest failed.
    broken: u64,
}

impl Totals {
    /// Takes what a line of libtest-mimic's says.
    fn hear(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            let number = |what| {
                let before = result.split_once(what)?.0;
                before.rsplit([' ', '.', ';']).next()?.parse::<u64>().ok()
            };
            if let (Some(passed), Some(failed), Some(ignored)) =
                (number(" passed"), number(" failed"), number(" ignored"))
            {
                (self.passed, self.failed, self.ignored) = (passed, failed, ignored);
                self.results = 1;
            }
        } else if let Some((_, reason)) = line.split_once(" ... ignored (") {
            *self.reasons.entry(reason.strip_suffix(')').unwrap_or(reason).to_owned()).or_default() += 1;
        }
    }

    fn ended(&mut self, status: ExitStatus) {
        self.broken = u64::from(!status.success() && self.failed == 0 || self.results == 0);
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.results += other.results;
        self.broken += other.broken;
        other.reasons.into_iter().for_each(|(reason, count)| *self.reasons.entry(reason).or_default() += count);
    }

    /// Nothing failed, nothing got lost, and something was run.
    fn are_good(&self) -> bool {
        self.failed == 0 && self.broken == 0 && self.passed > 0
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored, reasons, broken, .. } = self;
        writeln!(f, "  {passed} passed, {failed} failed, {ignored} ignored")?;
        if *broken > 0 {
            writeln!(f, "  {broken} programs of tests did not come to their end")?;
        }
        reasons.iter().try_for_each(|(reason, count)| writeln!(f, "  {count:>3} {reason}"))
    }
}

/// A file and its place in the guest, as `--file` takes them.
fn there(here: &Path, there: &str) -> OsString {
    let mut file = here.as_os_str().to_owned();
    file.push(":");
    file.push(there);
    file
}

/// What tests find by the path that it has here: xdplab, the objects of tests, and the scenarios.
fn needed(xdplab: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![xdplab.to_owned()];
    for folder in ["crates/xdplab/bpf/objects", "scenarios"] {
        let folder = guest::root()?.join(folder);
        let entries = fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))?;
        files.extend(entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?);
    }
    Ok(files)
}

/// Builds the kernel tests of a package, with the xdplab that they run; gives their program.
fn test_program(package: &str) -> Result<PathBuf> {
    let arguments = ["test", "--package", package, "--test", "kernel", "--no-run", "--message-format", "json"];
    let output = guest::static_cargo(&arguments)?.stderr(Stdio::inherit()).output().context("can't run cargo")?;
    ensure!(output.status.success(), "cargo failed: {}", output.status);
    let text = String::from_utf8(output.stdout).context("cargo's messages are no text")?;
    let is_test = |message: &Value| message["target"]["name"] == "kernel";
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(is_test);
    let mut programs = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next_back().with_context(|| format!("cargo built no kernel tests of {package}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn totals(lines: &[&str], status: i32) -> Totals {
        let mut totals = Totals::default();
        lines.iter().for_each(|line| totals.hear(line));
        totals.ended(ExitStatus::from_raw(status << 8));
        totals
    }

    const IGNORED: &str = "test live::x      ... ignored (needs pktgen, which is not to be had here: no (such))";
    const GOOD: &str = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 1.50s";

    #[test]
    fn kernels_have_short_names() {
        assert_eq!(label("a/linux-image-6.1.0-57-cloud-amd64_6.1.192-3_amd64.deb"), "6.1.0-57-cloud-amd64");
        assert_eq!((label("/kernels/mine/"), label("bzImage")), ("mine", "bzImage"));
    }

    #[test]
    fn what_is_printed_is_summed_up_with_each_reason() {
        let mut both = totals(&["running 13 tests", IGNORED, "test a ... ok", GOOD], 0);
        both.add(totals(&[IGNORED, GOOD], 0));
        assert!(both.are_good());
        let text = "  24 passed, 0 failed, 2 ignored\n    2 needs pktgen, which is not to be had here: no (such)\n";
        assert_eq!(both.to_string(), text);
    }

    #[test]
    fn failures_lost_output_and_a_guest_that_fails_are_no_success() {
        let failed = totals(&["test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured"], 101);
        assert_eq!((failed.are_good(), failed.failed, failed.broken), (false, 1, 0));
        for broken in [totals(&["test a ... ok"], 0), totals(&[GOOD], 2), totals(&[], 2)] {
            assert_eq!((broken.are_good(), broken.broken), (false, 1));
        }
        assert!(!totals(&["test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured"], 0).are_good(), "none was run");
    }
}
