//! Builds the static xdplab that `xdplab kernels` runs as a guest, the profiling plugin beside it, and the kernel tests for
//! guests.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "guest";
const PLUGIN: &str = "libxdplab_tcg_profile.so";

/// The workspace's root.
fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::canonicalize(&root).with_context(|| format!("can't find {}", root.display()))
}

/// A target folder of its own, so that other flags do not build everything else anew.
fn target_folder() -> Result<PathBuf> {
    Ok(root()?.join("target/guest"))
}

/// `cargo` with the flags of a static program.
fn static_cargo(arguments: &[&str]) -> Result<Command> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()?).args(arguments).args(["--profile", PROFILE, "--target", TARGET, "--target-dir"]);
    cargo.arg(target_folder()?).env("RUSTFLAGS", "-C target-feature=+crt-static");
    Ok(cargo)
}

/// Builds program and plugin; gives the program.
pub(crate) fn build() -> Result<PathBuf> {
    run(&mut static_cargo(&["build", "--package", "xdplab"])?)?;
    let folder = target_folder()?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()?).args(["build", "--package", "xdplab-tcg-profile", "--profile", PROFILE, "--target-dir"]);
    run(cargo.arg(&folder))?;
    let programs = folder.join(TARGET).join(PROFILE);
    let (from, to) = (folder.join(PROFILE).join(PLUGIN), programs.join(PLUGIN));
    fs::copy(&from, &to).with_context(|| format!("can't copy {} to {}", from.display(), to.display()))?;
    Ok(programs.join("xdplab"))
}

/// Runs the kernel tests in each of the kernels.
pub(crate) fn test(kernels: &[String], arguments: &[String]) -> Result<()> {
    let xdplab = build()?;
    let tests = [test_program("xdplab")?, test_program("xsk")?];
    let mut failed = BTreeSet::new();
    for kernel in kernels {
        for program in &tests {
            let mut exec = Command::new(&xdplab);
            exec.args(["kernels", "exec", kernel, "--env", "XDPLAB_REQUIRE_KERNEL_TESTS=1"]);
            exec.args(["--timeout", "1200"]).arg("--file").arg(there(program, "/kernel-tests"));
            for file in needed(&xdplab)? {
                exec.arg("--file").arg(there(&file, &file.display().to_string()));
            }
            exec.args(["--", "/kernel-tests", "--test-threads", "1"]).args(arguments);
            if !exec.status().with_context(|| format!("can't run {}", xdplab.display()))?.success() {
                failed.insert(kernel);
            }
        }
    }
    ensure!(failed.is_empty(), "kernel tests failed in {failed:?}");
    Ok(())
}

/// What is known of a packet's instructions from Linux 6.1 to 6.12, whatever the build: XDP's memory accounting has grown.
const KNOWN: [&str; 2] = ["live-drop", "veth-redirect"];

/// Counts the known cases on Linux 6.1 and 6.12, twice each: the boots must agree, and the known differences be there.
pub(crate) fn check_counts(older: &str, newer: &str) -> Result<()> {
    let mut command = Command::new(build()?);
    command.args(["kernels", "--baseline", older, "--candidate", newer, "--check", "cpumap,af-xdp,tcp-stream"]);
    command.args(["--case", &KNOWN.join(","), "--fail-on", "inconclusive", "--json"]);
    let output = command.stderr(std::process::Stdio::inherit()).output().context("can't run xdplab")?;
    let text = String::from_utf8(output.stdout).context("xdplab's output is no text")?;
    std::io::stdout().lock().write_all(text.as_bytes()).context("can't print")?;
    ensure!(output.status.success(), "xdplab failed: {}", output.status);
    for case in KNOWN {
        let rows = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
        let row = rows.iter().find(|row| row["comparison"]["case"] == case).with_context(|| format!("no {case}"))?;
        ensure!(row["comparison"]["change"] == "more", "{case}: not more instructions with {newer} than with {older}");
    }
    Ok(())
}

/// A file and its place in the guest, as `--file` takes them.
fn there(here: &Path, there: &str) -> OsString {
    let mut file = here.as_os_str().to_owned();
    file.push(":");
    file.push(there);
    file
}

/// What tests find by the path that it has here: xdplab and the objects of tests.
fn needed(xdplab: &Path) -> Result<Vec<PathBuf>> {
    let objects = root()?.join("crates/xdplab/bpf/objects");
    let entries = fs::read_dir(&objects).with_context(|| format!("can't read {}", objects.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "o"));
    files.push(xdplab.to_owned());
    Ok(files)
}

/// Builds the kernel tests of a package; gives their program.
fn test_program(package: &str) -> Result<PathBuf> {
    let arguments = ["test", "--package", package, "--test", "kernel", "--no-run", "--message-format", "json"];
    let output =
        static_cargo(&arguments)?.stderr(std::process::Stdio::inherit()).output().context("can't run cargo")?;
    ensure!(output.status.success(), "cargo failed: {}", output.status);
    let text = String::from_utf8(output.stdout).context("cargo's messages are no text")?;
    let is_test = |message: &Value| message["target"]["name"] == "kernel";
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(is_test);
    let mut programs = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next_back().with_context(|| format!("cargo built no kernel tests of {package}"))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().context("can't run cargo")?;
    if !status.success() {
        bail!("cargo failed: {status}");
    }
    Ok(())
}
