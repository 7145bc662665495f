//! `xdplab` and `xdplab demo`: four packet operations of XDP_DROP on a throw-away lab.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::progress::ProgressLine;
use super::{Ending, output, signals};
use crate::device::{Action, Operation, ProgramSpec};
use crate::error::{Error, Result};
use crate::host::{self, Environment};
use crate::pool;
use crate::record::{self, Record};
use crate::report;
use crate::rig::LabRig;
use crate::run::{self, Plan, Rules};
use crate::stats::Level;
use crate::topology::PlacementName;

/// Options of the demo.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Seconds during which slices are taken
    #[arg(long, default_value_t = DEFAULT_SECONDS)]
    seconds: f64,
    /// Which CPU runs generator and device
    #[arg(long, value_enum, default_value_t)]
    placement: PlacementName,
    /// Seed of the schedule; another one each time if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Write the record to FILE instead of the user's state folder
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Long enough for a quarter of a nanosecond, short enough for the whole demo to take less than 20 s.
const DEFAULT_SECONDS: f64 = 8.0;

impl Default for Options {
    fn default() -> Self {
        Self { seconds: DEFAULT_SECONDS, placement: PlacementName::Same, seed: None, record: None }
    }
}

/// Runs the demo.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let stop = signals::stop_flag()?;
    if let Err(missing) = host::require_privileges() {
        return without_privileges(options, &missing, &stop);
    }
    let plan = plan(options)?;
    let path = match &options.record {
        Some(path) => path.clone(),
        None => record::default_path("demo")?,
    };
    let mut record = Record::begin(Environment::read(), std::env::args().collect());
    let mut progress = ProgressLine::new();
    let case = run::compare(&plan, &mut LabRig, &mut progress, &stop);
    drop(progress);
    let case = case?;
    output::text(&report::case_text(&record.environment, &case))?;
    record.add(case);
    record.write(&path)?;
    output::text(&format!("\nrecord: {}\n", path.display()))?;
    Ok(Ending::Done)
}

/// Measures what needs no privileges, and says what the real thing needs.
fn without_privileges(options: &Options, missing: &Error, stop: &AtomicBool) -> Result<Ending> {
    let rules = Rules { level: Level::default(), floor_ns: pool::FLOOR_NS, margin_ns: None };
    let seed = options.seed.unwrap_or_else(run::fresh_seed);
    let mut progress = ProgressLine::new();
    let case = pool::measure(pool::Group::Single, options.seconds, seed, rules, &mut progress, stop);
    drop(progress);
    let text = report::pool_text(&case?);
    let environment = Environment::read().one_line();
    output::text(&format!("{environment}\n{text}\n{}\n{}", report::kernel_pool_text(), report::published_text()))?;
    output::text(&format!("\nno packet was sent: {missing}\n"))?;
    Ok(Ending::Done)
}

fn plan(options: &Options) -> Result<Plan> {
    let dropping = |operation| ProgramSpec::new(Action::Drop, operation);
    let placement = options.placement.resolve()?;
    let seed = options.seed.unwrap_or_else(run::fresh_seed);
    let candidates = [Operation::ReadData, Operation::ParseIp, Operation::SwapMacs]
        .map(|operation| dropping(operation).into())
        .to_vec();
    Ok(Plan::new("demo", dropping(Operation::NoTouch).into(), candidates, placement, seed).lasting(options.seconds))
}
