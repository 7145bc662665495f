//! Scenarios: files that say what to measure, case by case, and the run that carries them out.
//!
//! A case is one comparison or one measurement. The record is written after each, so that a run that is killed loses one case
//! at most and goes on from its record.

mod commands;
mod file;
mod guests;
mod machine;
mod parameters;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use file::{Order, PlannedCase, Scenario, Step};
pub use guests::GuestWork;
pub use machine::Machine;
pub use work::Work;

use crate::error::{Error, Result};
use crate::kernels::KernelsCase;
use crate::pool::PoolCase;
use crate::rates::RatesCase;
use crate::record::{Record, now};
use crate::run::{self, Case, PartOf, Progress};
use crate::settings::SettingsCase;
use crate::stream::StreamCase;
use crate::toml_file::TomlFile;
use crate::units::duration_text;

/// A scenario in its record: what was asked for, and which of the record's entries belongs to which case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioRun {
    /// Its name.
    pub name: String,
    /// What it is to show, in a line.
    pub about: String,
    /// The file's folder, from which object files are looked for.
    pub folder: PathBuf,
    /// The file, whole.
    pub text: String,
    /// Seed of the order; those of the cases follow from it.
    pub seed: u64,
    /// How often each case is carried out.
    pub repeats: u32,
    /// Seconds of each case, where that was asked for instead of what the file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What was carried out, in order.
    pub done: Vec<Done>,
}

/// One case that was carried out once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The case's place in the file, from 0.
    pub case: usize,
    /// Which time, from 0.
    pub repeat: u32,
    /// Its kind and what tells it from the others.
    pub label: String,
    /// Its parameters as they were written.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Wall clock at its start, RFC 3339.
    pub started: String,
    /// The case's place whose kernel this one's is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<usize>,
    /// What came of it.
    pub outcome: Outcome,
}

/// Where in the record a case's result is, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// In `cases`.
    Case(usize),
    /// In `settings`.
    Settings(usize),
    /// In `rates`.
    Rates(usize),
    /// In `streams`.
    Stream(usize),
    /// In `pools`.
    Pool(usize),
    /// In `kernels`.
    Kernels(usize),
    /// It could not be carried out, for this reason.
    Failed(String),
}

/// What carrying out a case gave.
#[derive(Clone, Debug)]
pub enum Finding {
    /// Programs compared.
    Case(Box<Case>),
    /// Settings compared.
    Settings(Box<SettingsCase>),
    /// Packets counted.
    Rates(Box<RatesCase>),
    /// TCP streams.
    Stream(Box<StreamCase>),
    /// Paths of the page-pool crate compared.
    Pool(Box<PoolCase>),
    /// Instructions counted in guests of a kernel.
    Kernels(Box<KernelsCase>),
}

/// What carries out cases: this machine, or a fake.
pub trait Bench {
    /// Carries out a case. `stop` set from outside ends it early.
    ///
    /// # Errors
    /// It can't be carried out here, or failed under way.
    fn carry_out(&mut self, work: &Work, seed: u64, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Finding>;
}

/// What else a run is told: by the command line instead of by the file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Seconds of each case.
    pub seconds: Option<f64>,
    /// How often each case is carried out.
    pub repeats: Option<u32>,
    /// Seed of the order.
    pub seed: Option<u64>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progressed {
    /// Steps that were carried out.
    pub done: usize,
    /// Steps in all.
    pub of: usize,
    /// Seconds that the rest is expected to take.
    pub seconds_left: f64,
}

impl ScenarioRun {
    /// A run of the scenario in `path`, with nothing carried out.
    ///
    /// # Errors
    /// The file can't be read, or does not fit together.
    pub fn begin(path: &Path, overrides: Overrides) -> Result<Self> {
        let (scenario, text) = Scenario::read(path)?;
        let path = std::path::absolute(path)
            .map_err(|error| Error::io(format!("find the folder of {}", path.display()), "getcwd", &error))?;
        let folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        Ok(Self {
            seed: overrides.seed.or(scenario.seed).unwrap_or_else(run::fresh_seed),
            repeats: overrides.repeats.unwrap_or(scenario.repeats),
            seconds: overrides.seconds,
            name: scenario.name,
            about: scenario.about,
            folder,
            text,
            done: Vec::new(),
        })
    }

    /// The scenario with what it was told beside.
    ///
    /// # Errors
    /// The text does not fit together, as when an object file has gone since.
    pub fn scenario(&self) -> Result<Scenario> {
        let file = TomlFile::of(format!("read the scenario {}", self.name), self.text.as_str());
        let mut scenario = Scenario::of(&file, &self.folder)?;
        let wrong = |why| Error::usage(format!("repeat the cases of {} {} times", self.name, self.repeats), why);
        scenario.set_repeats(self.repeats).map_err(wrong)?;
        if let Some(seconds) = self.seconds {
            scenario.set_seconds(seconds);
        }
        Ok(scenario)
    }

    /// Forgets the cases that failed, so that they are carried out again.
    pub fn forget_failed(&mut self) {
        self.done.retain(|done| !matches!(done.outcome, Outcome::Failed(_)));
    }

    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = (&Done, &str)> {
        self.done.iter().filter_map(|done| match &done.outcome {
            Outcome::Failed(why) => Some((done, why.as_str())),
            _ => None,
        })
    }

    /// A case's name, with which time it was where there are several.
    #[must_use]
    pub fn name_of(&self, done: &Done) -> String {
        if self.repeats == 1 { done.label.clone() } else { format!("{} #{}", done.label, done.repeat + 1) }
    }

    /// What was counted of the kernel that this case's is compared with, in the same repeat.
    #[must_use]
    pub fn counted_against<'a>(&self, record: &'a Record, done: &Done) -> Option<&'a KernelsCase> {
        let place = (done.against?, done.repeat);
        let baseline = self.done.iter().find(|other| (other.case, other.repeat) == place)?;
        let Outcome::Kernels(index) = baseline.outcome else { return None };
        record.kernels.get(index).filter(|case| case.kernels.len() == 1)
    }

    fn has(&self, step: Step) -> bool {
        self.done.iter().any(|done| (done.case, done.repeat) == (step.case, step.repeat))
    }
}

/// Carries out what the record's scenario has not yet, until all is there or `stop` is set; the record must have one. `save` is
/// called after every case, and then `told` of it. A case that fails does not end the run.
///
/// # Errors
/// The scenario does not fit together, a case's `restore` failed, or those of `save` and `told`.
pub fn go_on(
    record: &mut Record,
    bench: &mut dyn Bench,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
    save: &mut dyn FnMut(&Record) -> Result<()>,
    told: &mut dyn FnMut(&Record, Progressed) -> Result<()>,
) -> Result<()> {
    let run = record.scenario.as_ref().ok_or_else(|| Error::usage("go on with a scenario", "the record has none"))?;
    let scenario = run.scenario()?;
    let seed = run.seed;
    let steps = scenario.steps(seed);
    let mut pace = Pace::new(&scenario, steps.iter().copied().filter(|step| !run.has(*step)));
    for (index, step) in (1_u64..).zip(&steps) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let run = record.scenario.as_ref().filter(|run| !run.has(*step));
        let Some(run) = run else { continue };
        let case = &scenario.cases[step.case];
        let text = pace.text(run.done.len(), steps.len(), &case.label);
        let mut shown = PartOf { inner: progress, text };
        let started = now();
        let clock = Instant::now();
        // Rounds of a case have seeds that follow each other.
        let seed = seed.wrapping_add(index.wrapping_mul(1_000_000));
        let finding = carry_out(case, seed, bench, &mut shown, stop)?;
        if stop.load(Ordering::Relaxed) {
            break; // It was cut short.
        }
        pace.done(case.work.expected_seconds(), clock.elapsed().as_secs_f64());
        let outcome = record.keep(finding);
        let done = Done {
            case: step.case,
            repeat: step.repeat,
            label: case.label.clone(),
            parameters: case.parameters.clone(),
            started,
            against: case.against,
            outcome,
        };
        record.stop();
        if let Some(run) = &mut record.scenario {
            run.done.push(done);
            let done = run.done.len();
            save(record)?;
            told(record, Progressed { done, of: steps.len(), seconds_left: pace.seconds_left() })?;
        }
    }
    Ok(())
}

/// A case with the commands around it.
fn carry_out(
    case: &PlannedCase,
    seed: u64,
    bench: &mut dyn Bench,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<Result<Finding>> {
    let set_up = case.setup.as_deref().map_or(Ok(()), commands::run);
    let finding = set_up.and_then(|()| bench.carry_out(&case.work, seed, progress, stop));
    // What follows would be measured in a state that nobody asked for.
    case.restore.as_deref().map_or(Ok(()), commands::run)?;
    Ok(finding)
}

impl Record {
    /// Puts a result where results of its kind are.
    fn keep(&mut self, finding: Result<Finding>) -> Outcome {
        fn push<T>(to: &mut Vec<T>, value: T) -> usize {
            to.push(value);
            to.len() - 1
        }
        match finding {
            Ok(Finding::Case(case)) => Outcome::Case(push(&mut self.cases, *case)),
            Ok(Finding::Settings(case)) => Outcome::Settings(push(&mut self.settings, *case)),
            Ok(Finding::Rates(case)) => Outcome::Rates(push(&mut self.rates, *case)),
            Ok(Finding::Stream(case)) => Outcome::Stream(push(&mut self.streams, *case)),
            Ok(Finding::Pool(case)) => Outcome::Pool(push(&mut self.pools, *case)),
            Ok(Finding::Kernels(case)) => Outcome::Kernels(push(&mut self.kernels, *case)),
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }
}

/// How long the rest takes, from how long the cases so far took against what was expected of them.
struct Pace {
    expected_left: f64,
    expected_done: f64,
    taken: f64,
}

impl Pace {
    fn new(scenario: &Scenario, left: impl Iterator<Item = Step>) -> Self {
        let expected_left = left.map(|step| scenario.cases[step.case].work.expected_seconds()).sum();
        Self { expected_left, expected_done: 0.0, taken: 0.0 }
    }

    fn done(&mut self, expected: f64, taken: f64) {
        self.expected_left -= expected;
        self.expected_done += expected;
        self.taken += taken;
    }

    fn seconds_left(&self) -> f64 {
        let pace = if self.expected_done > 0.0 { self.taken / self.expected_done } else { 1.0 };
        (self.expected_left * pace).max(0.0)
    }

    fn text(&self, done: usize, of: usize, label: &str) -> String {
        format!("case {} of {of}, {} left: {label}", done + 1, duration_text(self.seconds_left()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Environment;

    /// Fails every case, counts them, and is interrupted in one of them.
    #[derive(Default)]
    struct Fake {
        carried_out: usize,
        interrupted_in: Option<usize>,
    }

    impl Bench for Fake {
        fn carry_out(&mut self, _: &Work, _: u64, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Finding> {
            self.carried_out += 1;
            progress.stage("failing");
            stop.store(self.interrupted_in == Some(self.carried_out), Ordering::Relaxed);
            Err(Error::unsupported("measure", "it is a fake"))
        }
    }

    /// Keeps what it is told.
    #[derive(Default)]
    struct Stages(Vec<String>);

    impl Progress for Stages {
        fn stage(&mut self, name: &str) {
            self.0.push(name.to_owned());
        }

        fn sampling(&mut self, _: f64, _: f64, _: usize) {}
    }

    fn record(lines: &str) -> Record {
        let mut record = Record::begin(Environment::unknown("a test"), Vec::new());
        record.scenario = Some(ScenarioRun {
            name: "fake".into(),
            about: String::new(),
            folder: "/nowhere".into(),
            text: format!(
                "name = \"fake\"\norder = \"file\"\n[[cases]]\nkind = \"pool\"\nseconds = 1\n\
                 matrix.group = [\"single\", \"burst\", \"frags\"]\n{lines}\n"
            ),
            seed: 1,
            repeats: 1,
            seconds: None,
            done: Vec::new(),
        });
        record
    }

    /// Carries out the record's scenario: how it ended, how often the record was saved, and what was told.
    fn run(record: &mut Record, bench: &mut Fake) -> (Result<()>, usize, Vec<String>) {
        let (mut saved, mut stages, stop) = (0, Stages::default(), AtomicBool::new(false));
        let mut save = |record: &Record| {
            saved += 1;
            assert_eq!(record.scenario.as_ref().unwrap().done.len(), saved);
            Ok(())
        };
        let ended = go_on(record, bench, &mut stages, &stop, &mut save, &mut |_, _| Ok(()));
        (ended, saved, stages.0)
    }

    fn labels(record: &Record) -> Vec<&str> {
        record.scenario.as_ref().unwrap().done.iter().map(|done| done.label.as_str()).collect()
    }

    #[test]
    fn a_case_that_is_interrupted_is_not_kept_and_carried_out_when_it_goes_on() {
        let mut record = record("");
        let (ended, saved, stages) = run(&mut record, &mut Fake { interrupted_in: Some(2), ..Fake::default() });
        ended.unwrap();
        assert_eq!((saved, labels(&record)), (1, vec!["pool group=single"]));
        assert_eq!(stages[0], "case 1 of 3, about 3 s left: pool group=single: failing");
        let mut bench = Fake::default();
        // The first is there already; how often it is saved goes on from there.
        let (mut saves, stop) = (0, AtomicBool::new(false));
        let mut save = |_: &Record| {
            saves += 1;
            Ok(())
        };
        go_on(&mut record, &mut bench, &mut Stages::default(), &stop, &mut save, &mut |_, _| Ok(())).unwrap();
        assert_eq!((bench.carried_out, saves), (2, 2));
        assert_eq!(labels(&record), ["pool group=single", "pool group=burst", "pool group=frags"]);
    }

    #[test]
    fn what_can_not_be_put_back_ends_the_run() {
        let mut record = record("restore = \"exit 3\"");
        let mut bench = Fake::default();
        let error = run(&mut record, &mut bench).0.unwrap_err().to_string();
        assert!(error.contains("run the case's command `exit 3`: exit status: 3"), "{error}");
        assert_eq!(bench.carried_out, 1);
    }

    #[test]
    fn a_case_whose_setup_fails_is_not_carried_out_and_the_others_are() {
        let mut record = record("matrix.setup = [\"exit 4\", \"true\"]");
        let mut bench = Fake::default();
        run(&mut record, &mut bench).0.unwrap();
        let run = record.scenario.as_ref().unwrap();
        assert_eq!((bench.carried_out, run.failed().count()), (3, 6));
        assert_eq!(run.failed().filter(|(_, why)| why.contains("exit status: 4")).count(), 3);
    }

    #[test]
    fn the_time_left_follows_from_how_long_cases_took() {
        let mut pace = Pace { expected_left: 100.0, expected_done: 0.0, taken: 0.0 };
        assert_eq!(pace.seconds_left(), 100.0);
        pace.done(20.0, 40.0);
        assert_eq!(pace.seconds_left(), 160.0);
    }
}
