//! The cases of a scenario, and all of them in one table.

use super::super::table::{Cell, Column, Table};
use super::{Finding, Kind, outcome_word, plain};
use crate::guard::Outcome as GuardOutcome;
use crate::record::Record;
use crate::scenario::{Done, Outcome, ScenarioRun};

/// The findings of the cases in the order of the file, after one that has the figures of all.
pub(super) fn findings(record: &Record, run: &ScenarioRun) -> Vec<Finding> {
    let mut done: Vec<&Done> = run.done.iter().collect();
    done.sort_by_key(|done| (done.case, done.repeat));
    let cases: Vec<(String, Finding)> =
        done.into_iter().filter_map(|done| Some((name(run, done), of_outcome(record, &done.outcome)?))).collect();
    let tables: Vec<(String, Table)> =
        cases.iter().map(|(name, finding)| (name.clone(), with_guards(finding))).collect();
    let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let failed = run.failed().map(|(done, why)| plain(&format!("{} failed: {why}", name(run, done))));
    let overview = Finding {
        kind: Kind::Scenario,
        title: plain(&format!("{}: {}", run.name, run.about)),
        set_up: vec![format!("{} carried out, seed {}", count(run.done.len(), "case"), run.seed)],
        table: Table::stacked(Column::words("case", "case"), &tables),
        notes: failed.collect(),
        guards: Vec::new(),
        charts: Vec::new(),
    };
    let titled =
        |(name, finding): (String, Finding)| Finding { title: format!("{name} ({})", finding.title), ..finding };
    std::iter::once(overview).chain(cases.into_iter().map(titled)).collect()
}

/// What came of a case; `None` where it failed, or the record does not hold it.
fn of_outcome(record: &Record, outcome: &Outcome) -> Option<Finding> {
    match outcome {
        Outcome::Case(index) => record.cases.get(*index).map(Finding::of_case),
        Outcome::Settings(index) => record.settings.get(*index).map(Finding::of_settings),
        Outcome::Rates(index) => record.rates.get(*index).map(Finding::of_rates),
        Outcome::Stream(index) => record.streams.get(*index).map(Finding::of_stream),
        Outcome::Pool(index) => record.pools.get(*index).map(Finding::of_pool),
        Outcome::Failed(_) => None,
    }
}

/// A case's name, with which time it was where there are several.
pub(in super::super) fn name(run: &ScenarioRun, done: &Done) -> String {
    plain(&if run.repeats == 1 { done.label.clone() } else { format!("{} #{}", done.label, done.repeat + 1) })
}

/// The finding's table, with the guards that did not pass in its first row.
fn with_guards(finding: &Finding) -> Table {
    let mut table = finding.table.clone();
    table.columns.push(Column::words("guards", "guards").dispensable(1));
    let mut guards = Some(open_guards(finding)).filter(|guards| !guards.is_empty());
    for row in &mut table.rows {
        row.push(guards.take().map_or(Cell::Empty, Cell::text));
    }
    table
}

/// The guards that did not pass.
pub(in super::super) fn open_guards(finding: &Finding) -> String {
    let open = [GuardOutcome::Fail, GuardOutcome::Warn].into_iter().flat_map(|outcome| finding.guards_that(outcome));
    open.map(|guard| format!("{} {}", guard.id, outcome_word(guard.outcome))).collect::<Vec<_>>().join(", ")
}

/// The case that was carried out last, and what came of it: its finding, or why it failed.
pub(in super::super) fn last(record: &Record) -> Option<(String, Result<Finding, String>)> {
    let run = record.scenario.as_ref()?;
    let done = run.done.last()?;
    let told = match &done.outcome {
        Outcome::Failed(why) => Err(plain(why)),
        outcome => Ok(of_outcome(record, outcome)?),
    };
    Some((name(run, done), told))
}
