//! `xdplab` and `xdplab demo`: four packet operations of XDP_DROP on a throw-away lab.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::progress::ProgressLine;
use super::{Ending, output};
use crate::device::{Action, Operation, ProgramSpec};
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::record::Record;
use crate::report;
use crate::rig::LabRig;
use crate::run::{self, Plan};
use crate::topology::Placement;

/// Options of the demo.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Seconds during which slices are taken
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seed of the schedule; drawn anew if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Write the record to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[arg(long)]
    copies: Option<u16>,
    #[arg(long)]
    split: bool,
    #[arg(long)]
    candidates: Vec<ProgramSpec>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 10.0, seed: None, record: None, copies: None, split: false, candidates: vec![] }
    }
}

/// Runs the demo.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Error::io("listen for SIGINT and SIGTERM", "sigaction", &error))?;
    }
    let drop = |operation| ProgramSpec::new(Action::Drop, operation);
    let mut candidates = [Operation::ReadData, Operation::ParseIp, Operation::SwapMacs].map(drop).to_vec();
    if !options.candidates.is_empty() {
        candidates = options.candidates.clone();
    }
    let placement = if options.split { Placement::split()? } else { Placement::same()? };
    let mut plan = Plan {
        seconds: options.seconds,
        ..Plan::new("demo", drop(Operation::NoTouch), candidates, placement, options.seed.unwrap_or(1))
    };
    if let Some(c) = options.copies {
        plan.copies = c;
    }
    let environment = Environment::read();
    let mut record = Record::begin(environment, std::env::args().collect());
    let mut progress = ProgressLine::new();
    let case = run::compare(&plan, &mut LabRig, &mut progress, &stop)?;
    std::mem::drop(progress);
    output::text(&report::case_text(&record.environment, &case))?;
    record.add(case);
    if let Some(path) = &options.record {
        record.write(path)?;
    }
    Ok(Ending::Done)
}
