//! What a report tells of records: each text and each number once. The formats write them and add none of their own.

mod case;
mod charts;
mod counted;
mod imported;
pub(super) mod kernels;
mod live;
mod pool;
mod rates;
mod scenario;
mod settings;
mod stream;

use serde::Serialize;

pub(super) use case::{difference, verdict, why_inconclusive};
pub use charts::{
    Accounts, Chart, Differences, Distribution, FunctionShare, Functions, Histogram, Line, Range, Spread, Strip,
    TimeLine,
};
pub(super) use imported::{cost_table as imported_table, origin, without_cost};
pub(super) use pool::notes as pool_notes;
pub(super) use scenario::{last as last_case, open_guards};

use super::table::Table;
use crate::across;
use crate::guard::{Guard, Outcome};
use crate::host::Environment;
use crate::record::Record;
use crate::run::Case;
use crate::settings::SettingsCase;

/// The schema of a report in JSON.
pub const SCHEMA: &str = "xdplab.report/1";

/// What is told of records.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Each record.
    pub records: Vec<RecordView>,
}

/// What is told of a record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordView {
    /// Where it was read from.
    pub file: String,
    /// The tool that wrote it, with its version.
    pub tool: String,
    /// How that was called, as a shell takes it.
    pub command: String,
    /// Wall clock at the start, RFC 3339.
    pub started: String,
    /// Wall clock at the end; absent for a run that did not come to its end.
    pub stopped: Option<String>,
    /// The machine in one line.
    pub machine: String,
    /// Everything known of the machine, as path and value; empty where nothing is.
    pub environment: Vec<(String, String)>,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// What was found in one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What kind of case it is.
    pub kind: Kind,
    /// What it is about, in one line.
    pub title: String,
    /// How it was measured, line by line.
    pub set_up: Vec<String>,
    /// The figures.
    pub table: Table,
    /// What must be said about the figures.
    pub notes: Vec<String>,
    /// The validity checks.
    pub guards: Vec<Guard>,
    /// What can be drawn.
    pub charts: Vec<Chart>,
}

/// The kinds of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Programs against each other.
    Programs,
    /// Settings of the system against each other.
    Settings,
    /// Paths of the page-pool crate against each other.
    Pool,
    /// Packets of one program counted at each stage.
    Rates,
    /// TCP streams.
    Stream,
    /// All cases of a scenario; each has a finding of its own too.
    Scenario,
    /// Kernels against each other, by guest instructions.
    Kernels,
    /// A live command.
    Live,
    /// What other tools printed.
    Imported,
}

impl Kind {
    /// Its name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Programs => "programs",
            Self::Settings => "settings",
            Self::Pool => "pool",
            Self::Rates => "rates",
            Self::Stream => "stream",
            Self::Scenario => "scenario",
            Self::Kernels => "kernels",
            Self::Live => "live",
            Self::Imported => "imported",
        }
    }
}

impl Report {
    /// What is told of these records, each with the file that it was read from.
    #[must_use]
    pub fn of(records: &[(String, Record)]) -> Self {
        Self { schema: SCHEMA, records: records.iter().map(|(file, record)| RecordView::of(file, record)).collect() }
    }
}

impl RecordView {
    fn of(file: &str, record: &Record) -> Self {
        let here = record.imported.is_empty();
        Self {
            file: plain(file),
            tool: plain(&format!("{} {}", record.tool.name, record.tool.version)),
            command: command(&record.tool.argv),
            started: plain(&record.started),
            stopped: record.stopped.as_deref().map(plain),
            machine: if here { machine(&record.environment) } else { "not known: the results were imported".into() },
            environment: if here { environment(&record.environment) } else { Vec::new() },
            findings: findings(record),
        }
    }
}

/// Everything that was found; of a scenario its overview comes first.
pub(super) fn findings(record: &Record) -> Vec<Finding> {
    if let Some(run) = &record.scenario {
        return scenario::findings(record, run);
    }
    let cases = record.cases.iter().map(Finding::of_case);
    let settings = record.settings.iter().map(Finding::of_settings);
    let pools = record.pools.iter().map(Finding::of_pool);
    let kernels = record.kernels.iter().flat_map(kernels::findings);
    let live = record.live_runs.iter().map(Finding::of_live);
    let imported = (!record.imported.is_empty()).then(|| Finding::of_imported(&record.imported));
    cases.chain(settings).chain(pools).chain(kernels).chain(live).chain(imported).collect()
}

impl Finding {
    /// What is told of a comparison of programs.
    #[must_use]
    pub fn of_case(case: &Case) -> Self {
        case::finding(case)
    }

    /// What is told of a comparison of settings.
    #[must_use]
    pub fn of_settings(case: &SettingsCase) -> Self {
        settings::finding(case)
    }

    /// The guards with this outcome.
    pub fn guards_that(&self, outcome: Outcome) -> impl Iterator<Item = &Guard> {
        self.guards.iter().filter(move |guard| guard.outcome == outcome)
    }
}

/// The machine in one line.
pub(super) fn machine(environment: &Environment) -> String {
    plain(&environment.one_line())
}

fn environment(environment: &Environment) -> Vec<(String, String)> {
    let leaf = |(path, value): (String, String)| match path.strip_suffix(".not_available") {
        Some(path) => (plain(path), plain(&format!("not available ({value})"))),
        None => (plain(&path), plain(&value)),
    };
    across::leaves("", environment).into_iter().map(leaf).collect()
}

/// A text that may come from a record, without what could move a terminal's cursor or break a line.
pub(super) fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A command as a POSIX shell takes it, the program without its folder.
fn command(argv: &[String]) -> String {
    let quoted = |(index, argument): (usize, &String)| {
        let argument = if index == 0 { argument.rsplit('/').next().unwrap_or(argument) } else { argument };
        let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c);
        if !argument.is_empty() && argument.chars().all(is_safe) {
            return argument.to_owned();
        }
        format!("'{}'", argument.replace('\'', r"'\''"))
    };
    plain(&argv.iter().enumerate().map(quoted).collect::<Vec<_>>().join(" "))
}

/// The guards as a record has them, without what could move a terminal's cursor.
fn guards(guards: &[Guard]) -> Vec<Guard> {
    let clean = |guard: &Guard| Guard {
        id: plain(&guard.id),
        outcome: guard.outcome,
        value: plain(&guard.value),
        reason: plain(&guard.reason),
        remedy: plain(&guard.remedy),
    };
    guards.iter().map(clean).collect()
}

/// What a guard's number means, and what to do about it.
pub(super) fn meaning(guard: &Guard) -> String {
    match guard.remedy.as_str() {
        "" => guard.reason.clone(),
        remedy => format!("{}; {remedy}", guard.reason),
    }
}

/// The word for what a guard found.
pub(super) fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotApplicable => "n/a",
        Outcome::Pass => "pass",
        Outcome::Warn => "WARN",
        Outcome::Fail => "FAIL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_given_to_a_shell_again() {
        let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let words = ["/usr/bin/xdplab", "ab", "--baseline-cmd", "ethtool -K x gro off", "it's", "", "$(reboot)"];
        assert_eq!(command(&argv(&words)), r"xdplab ab --baseline-cmd 'ethtool -K x gro off' 'it'\''s' '' '$(reboot)'");
    }
}
