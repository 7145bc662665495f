//! `xdplab pool bench`: the page-pool crate's paths in this process, and other pools beside them. Needs no privileges.

use clap::{Args, Subcommand, ValueEnum};

use super::progress::ProgressLine;
use super::{Ending, output, signals};
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::pool::{self, Group};
use crate::report;
use crate::run::{self, Rules};
use crate::stats::Level;

/// What to do with the page pool.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the paths of the page-pool crate with each other and with a mutex and malloc, slice by slice in turn
    ///
    /// Built with --features pool-peers, it compares other crates' pools and allocators too.
    Bench(Bench),
}

/// Options of pool bench.
#[derive(Args, Debug)]
struct Bench {
    /// What to compare; everything if not given
    #[arg(value_enum, value_name = "GROUP")]
    groups: Vec<Group>,
    /// Seconds for each group; 20 for frames that cross, 5 for the others if not given
    #[arg(long)]
    seconds: Option<f64>,
    /// Seed of the schedule; another one each time if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object for each group
    #[arg(long)]
    json: bool,
}

/// Measures and prints group by group.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let Command::Bench(bench) = &options.command;
    let stop = signals::stop_flag()?;
    let rules = Rules { level: Level::default(), floor_ns: pool::FLOOR_NS, margin_ns: None };
    let groups = if bench.groups.is_empty() { Group::value_variants() } else { &bench.groups };
    if !bench.json {
        output::text(&format!("{}\n", Environment::read().one_line()))?;
    }
    let mut bounds = Vec::new();
    for &group in groups {
        let mut progress = ProgressLine::new();
        let seed = bench.seed.unwrap_or_else(run::fresh_seed);
        let seconds = bench.seconds.unwrap_or_else(|| group.usual_seconds());
        let case = pool::measure(group, seconds, seed, rules, &mut progress, &stop);
        drop(progress);
        let case = case?;
        if bench.json {
            let json = serde_json::to_value(&case).map_err(|error| Error::invalid("write JSON", error.to_string()))?;
            output::text(&format!("{}\n", serde_json::json!({"schema": "xdplab.pool/1", "case": json})))?;
        } else {
            output::text(&format!("\n{}", report::pool_text(&case)))?;
        }
        bounds.extend(case.bounds);
    }
    if !bench.json {
        output::text(&format!("\n{}\n{}", report::pool_bounds_text(&bounds), report::kernel_pool_text()))?;
    }
    Ok(Ending::Done)
}
