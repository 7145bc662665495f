//! `xdplab run`: the cases of a scenario file, one after the other.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde_json::{Value, json};

use super::ab::positive;
use super::progress::ProgressLine;
use super::{Ending, output, signals};
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::kernels::compare::{compare_across, cost};
use crate::kernels::{KernelsCase, UNIT};
use crate::record::{self, Record};
use crate::report;
use crate::scenario::{self, Done, Machine, Outcome, Overrides, Progressed, ScenarioRun};
use crate::units::duration_text;

/// Options of run.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The scenario, a TOML file
    #[arg(value_name = "SCENARIO", required_unless_present = "resume")]
    scenario: Option<PathBuf>,
    /// Go on with the scenario in the record FILE; cases that failed are carried out again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "seconds", "repeats", "seed", "record", "dry_run"])]
    resume: Option<PathBuf>,
    /// Measure so long in each case, whatever the scenario says
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    seconds: Option<f64>,
    /// Carry out each case so often, whatever the scenario says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Seed of the order and of the cases; the scenario's, or another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// Only say what would be carried out, in which order, and how long it would take
    #[arg(long)]
    dry_run: bool,
    /// Write the record to FILE instead of the user's state folder
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print one JSON object for each case
    #[arg(long)]
    json: bool,
}

/// Carries out what is not there yet.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let stop = signals::stop_flag()?;
    let (mut record, path) = begin(options)?;
    let Some(run) = &record.scenario else {
        return Err(Error::usage(format!("go on with {}", path.display()), "it is no record of a scenario"));
    };
    if options.dry_run {
        return dry_run(run);
    }
    carry_out(&mut record, &path, options.json, &stop)?;
    ending(&record, &path)
}

fn begin(options: &Options) -> Result<(Record, PathBuf)> {
    if let Some(path) = &options.resume {
        let mut record = Record::read(path)?;
        if let Some(run) = &mut record.scenario {
            run.forget_failed();
        }
        return Ok((record, path.clone()));
    }
    let overrides = Overrides { seconds: options.seconds, repeats: options.repeats, seed: options.seed };
    let run = ScenarioRun::begin(options.scenario.as_deref().unwrap_or(Path::new("")), overrides)?;
    let path = match &options.record {
        Some(path) => path.clone(),
        None if options.dry_run => PathBuf::new(),
        None => record::default_path("run")?,
    };
    let mut record = Record::begin(Environment::read(), std::env::args().collect());
    record.scenario = Some(run);
    Ok((record, path))
}

fn dry_run(run: &ScenarioRun) -> Result<Ending> {
    let scenario = run.scenario()?;
    let steps = scenario.steps(run.seed);
    let mut text = format!("{}: {}\n", run.name, run.about);
    let mut seconds = 0.0;
    for (number, step) in (1..).zip(&steps) {
        let case = &scenario.cases[step.case];
        seconds += case.work.expected_seconds();
        let seconds = case.work.seconds().map_or(String::new(), |seconds| format!("  {seconds} s"));
        text += &format!("{number:4}  {}{seconds}\n", case.label);
    }
    text += &format!("{} cases, {}, seed {}\n", steps.len(), duration_text(seconds), run.seed);
    output::text(&text)?;
    Ok(Ending::Done)
}

fn carry_out(record: &mut Record, path: &Path, json: bool, stop: &AtomicBool) -> Result<()> {
    // So that a file that can't be written is known before anything was measured.
    record.write(path)?;
    if !json {
        output::text(&format!("{}\nrecord: {}\n", record.environment.one_line(), path.display()))?;
    }
    let mut progress = ProgressLine::new();
    let mut told = |record: &Record, progressed| {
        let text = if json { json_line(record)? } else { line(record, progressed) };
        output::text(&text)
    };
    let done = scenario::go_on(record, &mut Machine, &mut progress, stop, &mut |record| record.write(path), &mut told);
    drop(progress);
    done?;
    if json { Ok(()) } else { output::text(&format!("\n{}", report::scenario_text(record))) }
}

/// A line about the case that was carried out last.
fn line(record: &Record, Progressed { done, of, seconds_left }: Progressed) -> String {
    let left = if done < of { format!("; {} left", duration_text(seconds_left)) } else { String::new() };
    format!("[{done}/{of}] {}{left}\n", report::last_done_text(record))
}

/// Everything about it but what was sampled.
fn json_line(record: &Record) -> Result<String> {
    let Some(run) = &record.scenario else { return Ok(String::new()) };
    let Some(done) = run.done.last() else { return Ok(String::new()) };
    let value =
        |value: serde_json::Result<Value>| value.map_err(|error| Error::invalid("write JSON", error.to_string()));
    let result = match &done.outcome {
        Outcome::Case(index) => {
            let case = &record.cases[*index];
            json!({
                "costs": case.costs, "control": case.control, "comparisons": case.comparisons, "guards": case.guards,
                "seed": case.plan.seed
            })
        }
        Outcome::Settings(index) => {
            let case = &record.settings[*index];
            json!({
                "commands": case.plan.commands, "control": case.control, "comparisons": case.comparisons,
                "guards": case.guards, "seed": case.plan.run.seed
            })
        }
        Outcome::Rates(index) => value(serde_json::to_value(&record.rates[*index]))?,
        Outcome::Stream(index) => value(serde_json::to_value(&record.streams[*index]))?,
        Outcome::Pool(index) => value(serde_json::to_value(&record.pools[*index]))?,
        Outcome::Kernels(index) => counted(run, record, done, &record.kernels[*index]),
        Outcome::Failed(why) => json!({ "failed": why }),
    };
    let line = json!({
        "schema": "xdplab.run/1", "case": done.label, "repeat": done.repeat, "parameters": done.parameters, "result": result
    });
    Ok(format!("{line}\n"))
}

/// What a kernel takes, and how it compares with the first of its axis where that is there already.
fn counted(run: &ScenarioRun, record: &Record, done: &Done, case: &KernelsCase) -> Value {
    let compared = |baseline: &KernelsCase| {
        let [before, after] = [baseline, case].map(|side| (&side.instrument, &side.kernels[0]));
        match compare_across(&case.plan.cases, before, after) {
            Ok(rows) => json!(rows),
            Err(error) => json!({ "not_available": error.to_string() }),
        }
    };
    let baseline = run.counted_against(record, done);
    let kernel = &case.kernels[0];
    let costs = case.plan.cases.iter().map(|name| json!({ "case": name, "cost": cost(kernel, *name) }));
    json!({
        "unit": UNIT, "instrument": case.instrument, "kernel": kernel.image, "costs": costs.collect::<Vec<_>>(),
        "comparisons": baseline.map(compared)
    })
}

fn ending(record: &Record, path: &Path) -> Result<Ending> {
    let Some(run) = &record.scenario else { return Ok(Ending::Done) };
    let of = run.scenario()?.steps(run.seed).len();
    let go_on = format!("go on with --resume {}", path.display());
    if run.done.len() < of {
        return Err(Error::interrupted(format!("{} of {of} cases are done", run.done.len())).remedy(go_on));
    }
    let failed = run.failed().count();
    match run.failed().next() {
        Some((done, why)) => {
            Err(Error::invalid(format!("carry out {failed} of {of} cases"), format!("{}: {why}", done.label))
                .remedy(go_on))
        }
        None => Ok(Ending::Done),
    }
}
