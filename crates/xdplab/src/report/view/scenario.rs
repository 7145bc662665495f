//! The cases of a scenario, and all of them in one table; what was counted in guests, and not timed, has a table of its own.

use super::super::table::{Cell, Column, Table};
use super::{Finding, Kind, counted, outcome_word, plain};
use crate::guard::Outcome as GuardOutcome;
use crate::kernels::UNIT;
use crate::record::Record;
use crate::scenario::{Done, Outcome, ScenarioRun};

/// The findings of the cases in the order of the file, after those that have the figures of all.
pub(super) fn findings(record: &Record, run: &ScenarioRun) -> Vec<Finding> {
    let mut done: Vec<&Done> = run.done.iter().collect();
    done.sort_by_key(|done| (done.case, done.repeat));
    let cases: Vec<(String, Finding)> =
        done.into_iter().filter_map(|done| Some((name(run, done), of_done(record, run, done)?))).collect();
    let titled =
        |(name, finding): (String, Finding)| Finding { title: format!("{name} ({})", finding.title), ..finding };
    let overviews = overviews(run, &cases);
    overviews.into_iter().chain(cases.into_iter().map(titled)).collect()
}

/// What all cases found: first what was timed, then what was counted in guests, each where there is any.
fn overviews(run: &ScenarioRun, cases: &[(String, Finding)]) -> Vec<Finding> {
    let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let failed = run.failed().map(|(done, why)| plain(&format!("{} failed: {why}", name(run, done))));
    let (counted, timed): (Vec<_>, Vec<_>) = cases.iter().partition(|(_, finding)| finding.kind == Kind::Kernels);
    let table = |cases: &[&(String, Finding)]| {
        let tables: Vec<(String, Table)> =
            cases.iter().map(|(name, finding)| (name.clone(), with_guards(finding))).collect();
        Table::stacked(Column::words("case", "case"), &tables)
    };
    let unit = format!("instructions are {UNIT}: work done, never time, rate or speed");
    let first = Finding {
        kind: Kind::Scenario,
        title: plain(&format!("{}: {}", run.name, run.about)),
        set_up: vec![format!("{} carried out, seed {}", count(run.done.len(), "case"), run.seed)],
        table: table(if timed.is_empty() { &counted } else { &timed }),
        notes: failed.collect(),
        guards: Vec::new(),
        charts: Vec::new(),
    };
    match (counted.is_empty(), timed.is_empty()) {
        (true, _) => vec![first],
        (false, true) => vec![Finding { notes: std::iter::once(unit).chain(first.notes).collect(), ..first }],
        (false, false) => {
            let second = Finding {
                title: plain(&format!("{}: counted in guests", run.name)),
                set_up: Vec::new(),
                table: table(&counted),
                notes: vec![unit],
                ..first.clone()
            };
            vec![first, second]
        }
    }
}

/// What came of a case; `None` where it failed, or the record does not hold it.
fn of_done(record: &Record, run: &ScenarioRun, done: &Done) -> Option<Finding> {
    match &done.outcome {
        Outcome::Case(index) => record.cases.get(*index).map(Finding::of_case),
        Outcome::Settings(index) => record.settings.get(*index).map(Finding::of_settings),
        Outcome::Rates(index) => record.rates.get(*index).map(Finding::of_rates),
        Outcome::Stream(index) => record.streams.get(*index).map(Finding::of_stream),
        Outcome::Pool(index) => record.pools.get(*index).map(Finding::of_pool),
        Outcome::Kernels(index) => {
            let case = record.kernels.get(*index).filter(|case| case.kernels.len() == 1)?;
            Some(counted::finding(case, done.against.is_none(), run.counted_against(record, done)))
        }
        Outcome::Failed(_) => None,
    }
}

/// A case's name, with which time it was where there are several.
pub(in super::super) fn name(run: &ScenarioRun, done: &Done) -> String {
    plain(&run.name_of(done))
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
        _ => Ok(of_done(record, run, done)?),
    };
    Some((name(run, done), told))
}
