//! Kernels compared by guest instructions.

use super::super::kernels::{failures, how, why};
use super::super::table::{Cell, Column, Table, Tone};
use super::{Finding, Kind, plain};
use crate::kernels::compare::{Change, Comparison, Cost};
use crate::kernels::{KernelsCase, changes};

/// Functions of each case.
const TOP: usize = 10;

/// A finding for each candidate, and one for each of its cases that was counted by function.
pub(super) fn findings(case: &KernelsCase) -> Vec<Finding> {
    let Some((baseline, candidates)) = case.kernels.split_first() else { return Vec::new() };
    let mut findings = Vec::new();
    for (index, candidate) in (1..).zip(candidates) {
        let rows: Vec<&Comparison> = case.comparisons.iter().filter(|row| row.candidate == index).collect();
        let title = plain(&format!("{} against {}", candidate.image.release, baseline.image.release));
        let set_up: Vec<String> = how(&case.instrument, case.plan.boots).lines().map(plain).collect();
        let sides =
            |row: &Comparison| [("baseline", row.baseline_cost.clone()), ("candidate", row.candidate_cost.clone())];
        let reasons = rows.iter().flat_map(|row| sides(row).map(|(side, cost)| why(row, side, &cost)));
        let faults = [baseline, candidate].into_iter().map(failures);
        let notes: String = reasons.chain(faults).collect();
        let finding = |title, set_up, table, notes| Finding {
            kind: Kind::Kernels,
            title,
            set_up,
            table,
            notes,
            guards: Vec::new(),
            charts: Vec::new(),
        };
        let notes = notes.lines().filter(|line| !line.is_empty()).map(plain).collect();
        findings.push(finding(title.clone(), set_up, table(&rows), notes));
        for row in rows {
            let of = |kernel: usize| {
                let boot = case.kernels.get(kernel)?.boots.first()?;
                boot.cases.iter().find(|counted| counted.case == row.case)?.profile.known()
            };
            let Some((before, after)) = of(0).zip(of(index)) else { continue };
            let functions = changes(before, after).into_iter().take(TOP).map(|(name, before, after)| {
                vec![
                    Cell::text(name),
                    Cell::number(before, 2),
                    Cell::number(after, 2),
                    Cell::difference(after - before, 2),
                ]
            });
            let columns = columns("function").into_iter().take(4).collect();
            let table = Table { columns, rows: functions.collect() };
            findings.push(finding(format!("{title}: {} by function", row.case), Vec::new(), table, Vec::new()));
        }
    }
    findings
}

fn columns(first: &str) -> Vec<Column> {
    vec![
        Column::words(first, "variant"),
        Column::numbers("baseline", "baseline_instructions"),
        Column::numbers("candidate", "candidate_instructions"),
        Column::numbers("Δ instructions", "delta_instructions"),
        Column::words("verdict", "verdict"),
    ]
}

fn table(rows: &[&Comparison]) -> Table {
    let cost = |cost: &Cost| cost.per_packet().map_or(Cell::Missing, |instructions| Cell::number(instructions, 2));
    let row = |row: &&Comparison| {
        vec![
            Cell::text(row.case.to_string()),
            cost(&row.baseline_cost),
            cost(&row.candidate_cost),
            row.delta.map_or(Cell::Missing, |delta| Cell::difference(delta, 2)),
            verdict(row.change),
        ]
    };
    Table { columns: columns("case"), rows: rows.iter().map(row).collect() }
}

pub(super) fn verdict(change: Change) -> Cell {
    let tone = match change {
        Change::More => Tone::Bad,
        Change::Fewer => Tone::Good,
        Change::Same => Tone::Neutral,
        Change::NotDeterministic | Change::NotAvailable => Tone::Doubt,
    };
    Cell::Outcome { tone, word: super::super::kernels::verdict(change).into(), more: String::new() }
}
