//! This test binary, started once more as a child process that plays one part of a test.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// Names the part; without it the binary runs the tests.
pub(crate) const PART: &str = "XDPLAB_KERNEL_TEST_PART";

/// A part a child can play: its name, and what it does. It talks by one line on its standard output.
pub(crate) type Part = (&'static str, fn());

/// Plays the part this process was started for, if it was.
pub(crate) fn run_if_asked(parts: &[&[Part]]) -> Option<ExitCode> {
    let asked = env::var(PART).ok()?;
    // No child outlives the thread that started it.
    set_pdeathsig(Signal::SIGKILL).unwrap();
    match parts.iter().copied().flatten().find(|(name, _)| *name == asked) {
        Some((_, play)) => play(),
        None => panic!("no part of a test is called {asked}"),
    }
    Some(ExitCode::SUCCESS)
}

/// A child that ends with its owner.
pub(crate) struct Actor(pub(crate) Child);

impl Deref for Actor {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Actor {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may have ended already.
        drop((self.0.kill(), self.0.wait()));
    }
}

/// Starts a child with this part and returns it with the first line it prints.
pub(crate) fn start(part: &str) -> (Actor, String) {
    let mut child = Command::new(env::current_exe().unwrap())
        .env(PART, part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Actor(child), line.trim_end().to_owned())
}
