//! Whole runs on a simulated machine: what is planted must be found, what is spoilt must be seen, and the record and the
//! report must tell it.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod across;
mod calibrate;
#[path = "../common/mod.rs"]
mod common;
mod explain;
mod guards;
mod record;
mod report;
mod verdicts;

use std::sync::atomic::AtomicBool;

use common::{FakeRig, Silent};
use xdplab::run::{self, Case, Plan};

/// Measures and analyses on a fake.
fn measure(plan: &Plan, mut rig: FakeRig) -> Case {
    run::compare(plan, &mut rig, &mut Silent, &AtomicBool::new(false)).unwrap()
}
