//! `xdplab calibrate`: how often the instrument is right.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::progress::ProgressLine;
use super::{Ending, output, signals};
use crate::calibrate::{self, Benches, Calibration, Settings};
use crate::device::Planted;
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::record;
use crate::report;
use crate::rig::LabRig;
use crate::run::{self, Plan};
use crate::testrun::TestRunRig;
use crate::topology::PlacementName;

/// Options of calibrate.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Comparisons of equal programs, at least; with --resume of what is there too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    comparisons: Option<u32>,
    /// Seconds of a comparison with one candidate; parts of it are looked at too
    #[arg(long, default_value_t = 10.0, value_parser = super::ab::positive)]
    seconds: f64,
    /// What to plant: mul=N, add=N, touch, lookup, joined by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = Settings::EFFECTS)]
    planted: Vec<Planted>,
    /// Separately loaded copies of each program in a round
    #[arg(long, default_value_t = Plan::COPIES, value_parser = clap::value_parser!(u16).range(1..))]
    copies: u16,
    /// Rounds of a comparison, for each of which everything is loaded anew
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Which CPU runs generator and device
    #[arg(long, value_enum, default_value_t)]
    placement: PlacementName,
    /// Seed; another one each time if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Write the record to FILE instead of the user's state folder
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Go on with the calibration in FILE, by its own settings
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "planted", "copies", "rounds", "placement", "seed", "record"])]
    resume: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Enough for the interval of a rate of 5 % to end below 10 %.
const COMPARISONS: usize = 200;

/// Calibrates until all is there or a signal comes, and prints what is there.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let stop = signals::stop_flag()?;
    let (mut calibration, path) = begin(options)?;
    let mut progress = ProgressLine::new();
    let mut benches =
        Benches { traffic: &mut LabRig, alone: &mut TestRunRig, overhead: &mut calibrate::measure_overhead };
    let done = calibration.go_on(&mut benches, &mut progress, &stop, &mut |calibration| calibration.write(&path));
    drop(progress);
    output::text(&text(&calibration, &path, options.json))?;
    done?;
    if calibration.steps_done() < calibration.steps() {
        let what = format!("calibrate: {} of {} steps are done", calibration.steps_done(), calibration.steps());
        return Err(Error::interrupted(what).remedy(format!("go on with --resume {}", path.display())));
    }
    Ok(Ending::Done)
}

fn begin(options: &Options) -> Result<(Calibration, PathBuf)> {
    if let Some(path) = &options.resume {
        let mut calibration = Calibration::read(path)?;
        if let Some(comparisons) = options.comparisons {
            calibration.settings.comparisons = comparisons as usize;
        }
        return Ok((calibration, path.clone()));
    }
    let path = match &options.record {
        Some(path) => path.clone(),
        None => record::default_path("calibrate")?,
    };
    let settings = Settings {
        comparisons: options.comparisons.map_or(COMPARISONS, |comparisons| comparisons as usize),
        seconds: options.seconds,
        effects: options.planted.clone(),
        copies: options.copies,
        rounds: options.rounds.unwrap_or_else(|| Plan::rounds_in(options.seconds)),
        placement: options.placement.resolve()?,
        seed: options.seed.unwrap_or_else(run::fresh_seed),
    };
    settings.check()?;
    Ok((Calibration::begin(Environment::read(), std::env::args().collect(), settings), path))
}

fn text(calibration: &Calibration, path: &Path, json: bool) -> String {
    if !json {
        return format!("{}\nrecord: {}\n", report::calibration_text(calibration), path.display());
    }
    let object = json!({
        "schema": "xdplab.calibrate/1",
        "started": calibration.started,
        "stopped": calibration.stopped,
        "settings": calibration.settings,
        "runs": calibration.runs.len(),
        "rows": calibrate::rows(calibration),
        "usual": calibrate::usual_errors(calibration),
        "overhead": calibration.overhead,
        "slice_sizes": calibrate::slice_sizes(calibration),
        "record": path,
    });
    format!("{object}\n")
}
