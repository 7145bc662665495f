//! A comparison of settings.

use super::super::table::{Cell, Column, Table, Tone};
use super::case::{difference, lab_lines, tone, verdict, why_inconclusive};
use super::charts::{self, Chart};
use super::{Finding, Kind, guards, plain};
use crate::settings::SettingsCase;

pub(super) fn finding(case: &SettingsCase) -> Finding {
    let plan = &case.plan;
    let blocks = case.visits.iter().map(|visit| visit.block.saturating_add(1)).max().unwrap_or(0);
    let [lab, reference] = lab_lines(&plan.run, &case.observed);
    let turns = format!(
        "{} under settings taken in turn: {blocks} blocks, {} s to settle and {} s of slices for each, seed {}",
        plan.run.baseline, plan.settle_s, plan.visit_s, plan.run.seed,
    );
    let control = match &case.control {
        Some(control) => {
            let [delta, interval] = difference(&control.difference.delta);
            format!("A/A control: {delta} ns {interval} between the baseline's setting and itself")
        }
        None => "A/A control: not available (too few blocks)".into(),
    };
    let why = case.comparisons.iter().filter_map(|compared| why_inconclusive(&compared.command, &compared.verdict));
    let notes: Vec<String> = std::iter::once(control).chain(why).collect();
    Finding {
        kind: Kind::Settings,
        title: plain(&format!("{}: {} under other settings", plan.run.name, plan.run.baseline)),
        set_up: [lab, turns, reference].iter().map(|line| plain(line)).collect(),
        table: table(case),
        notes: notes.iter().map(|note| plain(note)).collect(),
        guards: guards(&case.guards),
        charts: charts(case),
    }
}

fn table(case: &SettingsCase) -> Table {
    let interval = format!("{:.0} % interval", case.plan.run.level.get() * 100.0);
    let columns = vec![
        Column::words("setting", "variant"),
        Column::numbers("ns/packet", "ns"),
        Column::numbers("Δ ns", "delta_ns"),
        Column::numbers(&interval, "delta_interval_ns"),
        Column::words("verdict", "verdict"),
    ];
    let mean = |state: u16| {
        let costs: Vec<f64> = case.visits.iter().filter(|visit| visit.state == state).map(|visit| visit.ns).collect();
        if costs.is_empty() { Cell::Missing } else { Cell::number(costs.iter().sum::<f64>() / costs.len() as f64, 2) }
    };
    let baseline = case.plan.commands.first().map_or("", String::as_str);
    let mut rows = vec![vec![Cell::text(baseline), mean(0), Cell::Empty, Cell::Empty, Cell::text("baseline")]];
    for (state, compared) in (2u16..).zip(&case.comparisons) {
        let found = compared.comparison.estimate().map(|found| difference(&found.difference.delta));
        let [delta, interval] = found.unwrap_or([Cell::Missing, Cell::Empty]);
        rows.push(vec![Cell::text(&compared.command), mean(state), delta, interval, verdict(&compared.verdict)]);
    }
    Table { columns, rows }
}

fn charts(case: &SettingsCase) -> Vec<Chart> {
    let differences = case.comparisons.iter().filter_map(|compared| {
        let delta = compared.comparison.estimate()?.difference.delta;
        Some(charts::Spread::of(&compared.command, delta, tone(&compared.verdict), &verdict(&compared.verdict)))
    });
    let control = case.control.as_ref().map(|control| {
        charts::Spread::of("A/A control", control.difference.delta, Tone::Neutral, &Cell::text("control"))
    });
    let spreads = control.into_iter().chain(differences).collect();
    let run = &case.plan.run;
    [
        charts::differences(spreads, run.floor_ns, run.margin_ns),
        charts::visits(&case.plan.commands, &case.visits),
        charts::ledger(&case.observed),
        charts::page_pools(&case.observed),
    ]
    .into_iter()
    .flatten()
    .collect()
}
