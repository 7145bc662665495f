//! Builds the static xdplab that `xdplab kernels` runs as a guest, and the profiling plugin beside it.

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
pub(crate) fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::canonicalize(&root).with_context(|| format!("can't find {}", root.display()))
}

/// A target folder of its own, so that other flags do not build everything else anew.
fn target_folder() -> Result<PathBuf> {
    Ok(root()?.join("target/guest"))
}

/// `cargo` with the flags of a static program.
pub(crate) fn static_cargo(arguments: &[&str]) -> Result<Command> {
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
    let program = program()?;
    let (from, to) = (folder.join(PROFILE).join(PLUGIN), program.with_file_name(PLUGIN));
    fs::copy(&from, &to).with_context(|| format!("can't copy {} to {}", from.display(), to.display()))?;
    Ok(program)
}

/// Where the program is once it is built.
pub(crate) fn program() -> Result<PathBuf> {
    Ok(target_folder()?.join(TARGET).join(PROFILE).join("xdplab"))
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

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().context("can't run cargo")?;
    if !status.success() {
        bail!("cargo failed: {status}");
    }
    Ok(())
}
