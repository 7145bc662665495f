//! A scenario's results as text for a terminal.

use super::text::{aligned, verdict_word};
use crate::guard::{Guard, Outcome as GuardOutcome};
use crate::pool::PoolCase;
use crate::record::Record;
use crate::run::{Compared, Cost};
use crate::scenario::{Done, Outcome, ScenarioRun};
use crate::settings::SettingsCase;
use crate::stats::Interval;

/// Every case that was carried out, in the order of the file, by kind.
#[must_use]
pub fn scenario_text(record: &Record) -> String {
    let Some(run) = &record.scenario else { return "the record has no scenario\n".into() };
    let mut text = format!("{}: {}\n", run.name, run.about);
    let mut done: Vec<&Done> = run.done.iter().collect();
    done.sort_by_key(|done| (done.case, done.repeat));
    let rows: Vec<Vec<String>> = done.iter().flat_map(|done| compared_rows(record, run, done)).collect();
    if !rows.is_empty() {
        let header = ["case", "variant", "ns", "95 % interval", "Δ ns", "95 % interval", "verdict", "guards"];
        text += &format!("\n{}", aligned(&header, &[0, 1, 6, 7], rows));
    }
    for (done, why) in run.failed() {
        text += &format!("\n{} failed: {why}\n", name(run, done));
    }
    text
}

/// The case that was carried out last, in a line.
#[must_use]
pub fn last_done_text(record: &Record) -> String {
    let run = record.scenario.as_ref();
    let Some((run, done)) = run.and_then(|run| Some((run, run.done.last()?))) else { return String::new() };
    let told = match &done.outcome {
        Outcome::Case(index) => {
            let case = &record.cases[*index];
            compared_line(&case.comparisons) + &guards(&case.guards)
        }
        Outcome::Settings(index) => settings_line(&record.settings[*index]),
        Outcome::Pool(index) => pool_line(&record.pools[*index]),
        Outcome::Failed(why) => format!("failed: {why}"),
    };
    format!("{}: {told}", name(run, done))
}

fn name(run: &ScenarioRun, done: &Done) -> String {
    if run.repeats == 1 { done.label.clone() } else { format!("{} #{}", done.label, done.repeat + 1) }
}

/// A row for each variant of a case that compares.
fn compared_rows(record: &Record, run: &ScenarioRun, done: &Done) -> Vec<Vec<String>> {
    let name = name(run, done);
    match &done.outcome {
        Outcome::Case(index) => {
            let case = &record.cases[*index];
            rows(&name, &case.costs, &case.comparisons, guards(&case.guards).trim_start())
        }
        Outcome::Pool(index) => {
            let case = &record.pools[*index];
            rows(&name, &case.costs, &case.comparisons, "")
        }
        Outcome::Settings(index) => settings_rows(&name, &record.settings[*index]),
        Outcome::Failed(_) => Vec::new(),
    }
}

fn rows(name: &str, costs: &[Cost], comparisons: &[Compared], guards: &str) -> Vec<Vec<String>> {
    let of_cost = |cost: &Cost| {
        let shown = cost.shown();
        let ns = shown.map_or("n/a".into(), |cost| format!("{:.2}", cost.estimate));
        [cost.variant.clone(), ns, shown.map_or(String::new(), |cost| format!("[{:.2}, {:.2}]", cost.low, cost.high))]
    };
    let (baseline, candidates) = costs.split_at(costs.len().min(1));
    let first = baseline.iter().map(|cost| {
        let end = [String::new(), String::new(), "baseline".into(), guards.to_owned()];
        [name.to_owned()].into_iter().chain(of_cost(cost)).chain(end).collect()
    });
    let others = candidates.iter().zip(comparisons).map(|(cost, compared)| {
        let delta = compared.comparison.estimate().map(|comparison| comparison.difference.delta);
        let [delta, interval] = delta.map_or(["n/a".into(), String::new()], |delta| difference(&delta));
        let end = [delta, interval, verdict_word(&compared.verdict), String::new()];
        [String::new()].into_iter().chain(of_cost(cost)).chain(end).collect()
    });
    first.chain(others).collect()
}

fn settings_rows(name: &str, case: &SettingsCase) -> Vec<Vec<String>> {
    let commands = case.plan.commands.first().into_iter();
    let baseline = commands.map(|command| {
        let guards = guards(&case.guards).trim_start().to_owned();
        let empty = || String::new();
        vec![name.to_owned(), command.clone(), empty(), empty(), empty(), empty(), "baseline".into(), guards]
    });
    let others = case.comparisons.iter().map(|compared| {
        let delta = compared.comparison.estimate().map(|comparison| comparison.difference.delta);
        let [delta, interval] = delta.map_or(["n/a".into(), String::new()], |delta| difference(&delta));
        let empty = || String::new();
        vec![
            empty(),
            compared.command.clone(),
            empty(),
            empty(),
            delta,
            interval,
            verdict_word(&compared.verdict),
            empty(),
        ]
    });
    baseline.chain(others).collect()
}

fn difference(delta: &Interval) -> [String; 2] {
    [format!("{:+.2}", delta.estimate), format!("[{:+.2}, {:+.2}]", delta.low, delta.high)]
}

fn compared_line(comparisons: &[Compared]) -> String {
    let told = comparisons.iter().map(|compared| {
        let delta = compared.comparison.estimate().map(|comparison| comparison.difference.delta.estimate);
        let delta = delta.map_or("n/a".into(), |delta| format!("{delta:+.2} ns"));
        format!("{} {delta} ({})", compared.candidate, verdict_word(&compared.verdict))
    });
    told.collect::<Vec<_>>().join(", ")
}

fn settings_line(case: &SettingsCase) -> String {
    let told = case.comparisons.iter().map(|compared| {
        let delta = compared.comparison.estimate().map(|comparison| comparison.difference.delta.estimate);
        let delta = delta.map_or("n/a".into(), |delta| format!("{delta:+.2} ns"));
        format!("`{}` {delta} ({})", compared.command, verdict_word(&compared.verdict))
    });
    told.collect::<Vec<_>>().join(", ") + &guards(&case.guards)
}

fn pool_line(case: &PoolCase) -> String {
    compared_line(&case.comparisons)
}

/// The guards that did not pass.
fn guards(guards: &[Guard]) -> String {
    let told = guards.iter().filter_map(|guard| match guard.outcome {
        GuardOutcome::Fail => Some(format!("{} FAIL", guard.id)),
        GuardOutcome::Warn => Some(format!("{} warn", guard.id)),
        GuardOutcome::Pass | GuardOutcome::NotApplicable => None,
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() { String::new() } else { format!(" [{}]", told.join(", ")) }
}
