//! This test binary, started once more as a child process that plays one part of a test.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

/// Names the part; without it the binary runs the tests.
const PART: &str = "XDPLAB_KERNEL_TEST_PART";

/// A part a child can play: its name, and what it does. It talks by one line on its standard output.
pub(crate) type Part = (&'static str, fn());

/// Plays the part this process was started for, if it was.
pub(crate) fn run_if_asked(parts: &[&[Part]]) -> Option<ExitCode> {
    let asked = env::var(PART).ok()?;
    match parts.iter().copied().flatten().find(|(name, _)| *name == asked) {
        Some((_, play)) => play(),
        None => panic!("no part of a test is called {asked}"),
    }
    Some(ExitCode::SUCCESS)
}

/// Starts a child with this part and returns it with the first line it prints.
pub(crate) fn start(part: &str) -> (Child, String) {
    let mut child = Command::new(env::current_exe().unwrap())
        .env(PART, part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}
