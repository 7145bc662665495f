//! Shell commands around a case.

use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Runs a command by the shell.
pub(super) fn run(command: &str) -> Result<()> {
    let what = || format!("run the case's command `{command}`");
    let output = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::io(what(), "execve", &error))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(Error::invalid(what(), format!("{}: {last}", output.status)))
}
