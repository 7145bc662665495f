//! Tests against the kernel, each on veth in a network namespace of its own. They need root.
//!
//! A test that cannot run shows as ignored with its reason. With `XDPLAB_REQUIRE_KERNEL_TESTS=1` it fails instead,
//! unless the kernel itself lacks what is tested.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../support/mod.rs"]
mod support;

mod binding;
mod faults;
mod layouts;
mod needs;
mod offloads;
mod traffic;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut tests = needs::Tests::new();
    traffic::add(&mut tests);
    layouts::add(&mut tests);
    binding::add(&mut tests);
    faults::add(&mut tests);
    offloads::add(&mut tests);
    libtest_mimic::run(&arguments, tests.into_trials()).exit_code()
}
