//! `ab --explain`: the programs once more, alone, and where the time of a packet goes.

use std::sync::atomic::AtomicBool;

use super::progress::ProgressLine;
use crate::explain::{self, COUNTING, Part};
use crate::host;
use crate::reading::Reading;
use crate::run::{self, Case, Engine, Plan};
use crate::testrun::TestRunRig;

/// Seconds for which the programs are run alone.
const ALONE_SECONDS: f64 = 2.0;

/// The parts of the time of a packet of the case's baseline.
pub(super) fn parts(case: &Case, progress: &mut ProgressLine, stop: &AtomicBool) -> Vec<Part> {
    explain::explain(case, &alone(case, progress, stop), &functions())
}

/// The case's programs, and ours that only counts, run alone.
fn alone(case: &Case, progress: &mut ProgressLine, stop: &AtomicBool) -> Reading<Case> {
    let mut plan = Plan { resolve_ns: None, flows: 1, ..case.plan.clone() }.lasting(ALONE_SECONDS);
    // Sockets are bound to the queue of a driver.
    plan.candidates.retain(|candidate| candidate.socket().is_none());
    if let Ok(counting) = COUNTING.parse()
        && !plan.variants().contains(&counting)
    {
        plan.candidates.push(counting);
    }
    run::compare(&plan.with_engine(Engine::TestRun { cold: false }), &mut TestRunRig, progress, stop).into()
}

/// Why single kernel functions are not timed.
fn functions() -> String {
    let line = host::examine().ok().and_then(|lines| lines.into_iter().find(|line| line.id == "fentry"));
    match line {
        Some(line) if line.answer == host::Answer::Yes => "this tool does not time single functions; use perf".into(),
        Some(line) => line.detail,
        None => "not probed".into(),
    }
}
