//! `xdplab rerun`: the plan of a record once more, beside what it found then.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::AtomicBool;

use clap::{Args, Parser as _};
use serde_json::{Value, json};

use super::progress::ProgressLine;
use super::{Arguments, Command, Ending, output, signals};
use crate::across;
use crate::error::{Error, Result};
use crate::host::{self, Environment};
use crate::kernels::{self, GuestBinary, KernelSource, KernelsCase, Qemu};
use crate::live::{EndedBy, LiveRun};
use crate::record::{self, Record};
use crate::report;
use crate::rerun::{self, Recounted};
use crate::rig::{InterfaceRig, LabRig};
use crate::run::{self, Engine, Plan, Rig};
use crate::scenario::{self, Machine, ScenarioRun, Work};
use crate::settings::{self, SettingsPlan};
use crate::stats::Level;
use crate::testrun::TestRunRig;

/// Options of rerun.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The record whose runs are repeated, with the same plan each
    #[arg(value_name = "RECORD")]
    of: PathBuf,
    /// Take the recorded seed, which gives the same schedule and the same places of programs; with another one, which is taken
    /// otherwise, runs that agree did not do so for the sake of these
    #[arg(long)]
    keep_seed: bool,
    /// Run the shell commands that a record of `ab --baseline-cmd` holds; look at them before you do
    #[arg(long)]
    run_commands: bool,
    /// The guest's program for kernels that were compared: a statically linked xdplab; this program itself if not given
    #[arg(long, value_name = "FILE")]
    guest: Option<PathBuf>,
    /// Take an interface even if a default route or this SSH session goes through it
    #[arg(long)]
    force: bool,
    /// Write the new record to FILE instead of the user's state folder
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Repeats, compares and prints.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let before = Record::read(&options.of)?;
    check(&before, options)?;
    let path = match &options.record {
        Some(path) => path.clone(),
        None => record::default_path("rerun")?,
    };
    let after = match (&before.scenario, before.live_runs.first()) {
        (Some(scenario), _) => carry_out(scenario, &path, options)?,
        (None, Some(live)) => repeat_live(live, &path, options)?,
        (None, None) => measure(&before, &path, options)?,
    };
    tell(&before, &after, &path, options)?;
    Ok(Ending::Done)
}

/// Refuses what can't be repeated.
fn check(record: &Record, options: &Options) -> Result<()> {
    let what = || format!("repeat the run of {}", options.of.display());
    let has_run = !record.cases.is_empty()
        || !record.settings.is_empty()
        || !record.live_runs.is_empty()
        || !record.kernels.is_empty()
        || record.scenario.is_some();
    if !has_run {
        let imported = "its results were imported: the run was another tool's";
        let why = if record.imported.is_empty() { "it holds no run" } else { imported };
        return Err(Error::usage(what(), why));
    }
    let commands = commands(record)?;
    if commands.is_empty() || options.run_commands {
        return Ok(());
    }
    let why = format!("it would run shell commands out of the record: `{}`", commands.join("`, `"));
    Err(Error::usage(what(), why).remedy("allow that with --run-commands"))
}

/// The shell commands that repeating the record's run would run, each once.
fn commands(record: &Record) -> Result<Vec<String>> {
    let of_settings = |plan: &SettingsPlan| plan.commands.iter().chain(&plan.restore).cloned().collect::<Vec<_>>();
    let mut commands: Vec<String> = record.settings.iter().flat_map(|case| of_settings(&case.plan)).collect();
    if let Some(run) = &record.scenario {
        for case in run.scenario()?.cases {
            commands.extend(case.setup.into_iter().chain(case.restore));
            if let Work::Settings(plan, _) = &case.work {
                commands.extend(of_settings(plan));
            }
        }
    }
    commands.sort_unstable();
    commands.dedup();
    Ok(commands)
}

/// Carries out the scenario of a record once more.
fn carry_out(run: &ScenarioRun, path: &Path, options: &Options) -> Result<Record> {
    let stop = signals::stop_flag()?;
    let mut after = Record::begin(Environment::read(), std::env::args().collect());
    let seed = if options.keep_seed { run.seed } else { run::fresh_seed() };
    after.scenario = Some(ScenarioRun { seed, done: Vec::new(), ..run.clone() });
    let mut save = |record: &Record| record.write(path);
    scenario::go_on(&mut after, &mut Machine, &mut ProgressLine::new(), &stop, &mut save, &mut |_, _| Ok(()))?;
    Ok(after)
}

/// Measures every case anew; the record is written after each.
fn measure(before: &Record, path: &Path, options: &Options) -> Result<Record> {
    let stop = signals::stop_flag()?;
    let mut after = Record::begin(Environment::read(), std::env::args().collect());
    let seed = |plan: &Plan| if options.keep_seed { plan.seed } else { run::fresh_seed() };
    for case in &before.cases {
        let plan = Plan { seed: seed(&case.plan), ..case.plan.clone() };
        let mut progress = ProgressLine::new();
        after.add(run::compare(&plan, &mut *rig(&plan, options.force)?, &mut progress, &stop)?);
        after.write(path)?;
    }
    for case in &before.settings {
        after.settings.push(measure_settings(&case.plan, seed(&case.plan.run), &stop)?);
        after.stop();
        after.write(path)?;
    }
    for case in &before.kernels {
        after.kernels.push(count(case, options.guest.as_deref(), &stop)?);
        after.stop();
        after.write(path)?;
    }
    Ok(after)
}

/// Counts the kernels of a comparison once more, from where they came from then.
fn count(case: &KernelsCase, guest: Option<&Path>, stop: &AtomicBool) -> Result<KernelsCase> {
    let guest = GuestBinary::open(guest)?;
    let sources = case.kernels.iter().map(|kernel| KernelSource::open(&kernel.given)).collect::<Result<Vec<_>>>()?;
    kernels::measure(&case.plan, &Qemu::find()?, &guest, &sources, &mut ProgressLine::new(), stop)
}

fn measure_settings(plan: &SettingsPlan, seed: u64, stop: &AtomicBool) -> Result<settings::SettingsCase> {
    let plan = SettingsPlan { run: Plan { seed, ..plan.run.clone() }, ..plan.clone() };
    settings::compare(&plan, &mut ProgressLine::new(), stop)
}

/// What carried out a plan like this one.
fn rig(plan: &Plan, force: bool) -> Result<Box<dyn Rig>> {
    Ok(match (&plan.interface, plan.engine) {
        (Some(name), _) => {
            if !force {
                host::require_unused(name)?;
            }
            Box::new(InterfaceRig::find(name)?)
        }
        (None, Engine::Slices) => Box::new(LabRig),
        (None, Engine::TestRun { .. }) => Box::new(TestRunRig),
    })
}

/// Runs the live command anew, as a command of its own, which writes its own record.
fn repeat_live(run: &LiveRun, path: &Path, options: &Options) -> Result<Record> {
    let what = || format!("repeat the command of {}", options.of.display());
    let mut arguments: Vec<OsString> = run.start.argv.iter().skip(1).map(OsString::from).collect();
    let end = run.end.as_ref();
    if let Some(end) = end.filter(|end| !matches!(end.ended_by, EndedBy::Duration | EndedBy::Count)) {
        arguments.extend(["--duration".into(), end.total.period_s.max(0.001).to_string().into()]);
    }
    arguments.extend(["--record".into(), path.into()]);
    arguments.extend(options.json.then(|| "--json".into()));
    arguments.extend(options.force.then(|| "--force".into()));
    let parsed = Arguments::try_parse_from([OsString::from("xdplab")].iter().chain(&arguments));
    if !parsed.is_ok_and(|parsed| parsed.command.is_some_and(|command| is_live(&command))) {
        return Err(Error::usage(what(), "its command line is not that of a live command of this version"));
    }
    // The command ends by signals of its own terminal; what it has counted until then is compared all the same.
    let _stop = signals::stop_flag()?;
    let program = std::env::current_exe().map_err(|error| Error::io(what(), "readlink", &error))?;
    let status = process::Command::new(program)
        .args(&arguments)
        .status()
        .map_err(|error| Error::io(what(), "execve", &error))?;
    if !status.success() {
        return Err(Error::invalid(what(), format!("it ended with {status}")));
    }
    Record::read(path)
}

fn is_live(command: &Command) -> bool {
    matches!(
        command,
        Command::Drop(_)
            | Command::Pass(_)
            | Command::Tx(_)
            | Command::RedirectCpu(_)
            | Command::XskDrop(_)
            | Command::XskTx(_)
            | Command::Redirect(_)
            | Command::RedirectMap(_)
            | Command::RedirectMulti(_)
            | Command::Monitor(_)
    )
}

fn tell(before: &Record, after: &Record, path: &Path, options: &Options) -> Result<()> {
    let level = Level::default();
    let repeated = rerun::repeated(before, after);
    let remeasured = rerun::remeasured(before, after);
    let recounted = rerun::recounted(before, after);
    let sides = [std::slice::from_ref(before), std::slice::from_ref(after)];
    // Settings have no costs that records are compared by, and a live command may have seen no packet.
    let costs = across::compare(sides[0], sides[1], level, Plan::FLOOR_NS, None).unwrap_or_default();
    let mut differences = across::environment_differences(sides[0], sides[1]);
    differences.extend(rerun::lab_differences(before, after));
    if options.json {
        let object = json!({
            "schema": "xdplab.rerun/1", "of": options.of, "record": path, "repeated": repeated, "costs": costs,
            "remeasured": remeasured, "kernels": recounted.iter().map(recounted_json).collect::<Vec<_>>(), "environment": differences
        });
        return output::text(&format!("{object}\n"));
    }
    let mut text = found(after);
    if !repeated.is_empty() {
        text += &format!("\n{}\n", report::repeated_text(&repeated, level));
    }
    if !remeasured.is_empty() {
        text += &format!("\n{}\n", report::remeasured_text(&remeasured));
    }
    if !recounted.is_empty() {
        text += &format!("\n{}", report::recounted_text(&recounted));
    }
    text += &format!("the recorded run as baseline\n{}", report::across_text(&costs, Some(&differences), level));
    output::text(&text)?;
    output::text(&format!("\nrecord: {}\n", path.display()))
}

fn recounted_json(recounted: &Recounted<'_>) -> Value {
    let images = json!({ "before": recounted.before.image, "after": recounted.after.image });
    json!({
        "case": recounted.case, "kernel": images, "unit": kernels::UNIT, "cases": recounted.rows.as_ref().ok(),
        "not_available": recounted.rows.as_ref().err()
    })
}

/// What the repeated run found by itself.
fn found(after: &Record) -> String {
    if after.scenario.is_some() {
        return report::scenario_text(after);
    }
    let cases = after.cases.iter().map(|case| report::case_text(&after.environment, case));
    let settings = after.settings.iter().map(|case| report::settings_text(&after.environment, case));
    cases.chain(settings).chain(after.kernels.iter().map(report::kernels_text)).collect()
}
