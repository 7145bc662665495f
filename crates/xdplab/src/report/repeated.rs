//! A repeated run beside the recorded one, as text for a terminal.

use super::table::{Cell, Column, Table, Tone};
use super::text::table;
use super::view::{difference, verdict};
use crate::rerun::{Repeated, RepeatedCase};
use crate::stats::{Difference, Level};

/// A row for each candidate of each case: its difference then and now, and whether both can be the same.
#[must_use]
pub fn repeated_text(cases: &[RepeatedCase], level: Level) -> String {
    let tables: Vec<(String, Table)> =
        cases.iter().map(|case| (case.case.clone(), of_case(&case.candidates, level))).collect();
    table(&Table::stacked(Column::words("case", "case"), &tables))
}

fn of_case(candidates: &[Repeated], level: Level) -> Table {
    let interval = format!("{:.0} % interval", level.get() * 100.0);
    let columns = vec![
        Column::words("candidate", "candidate"),
        Column::numbers("Δ ns then", "before_ns"),
        Column::numbers(&interval, "before_interval_ns"),
        Column::words("verdict", "verdict_before"),
        Column::numbers("Δ ns now", "after_ns"),
        Column::numbers(&interval, "after_interval_ns"),
        Column::words("verdict", "verdict_after"),
        Column::numbers("change", "change_ns"),
        Column::numbers(&interval, "change_interval_ns"),
        Column::words("the runs", "agrees"),
    ];
    Table { columns, rows: candidates.iter().map(row).collect() }
}

fn row(repeated: &Repeated) -> Vec<Cell> {
    let found =
        |found: &Option<Difference>| found.map_or([Cell::Missing, Cell::Empty], |found| difference(&found.delta));
    let agrees = match repeated.agrees() {
        Some(true) => (Tone::Good, "agree"),
        Some(false) => (Tone::Bad, "DIFFER"),
        None => (Tone::Doubt, "can't be compared"),
    };
    let mut row = vec![Cell::text(&repeated.candidate)];
    row.extend(found(&repeated.before));
    row.push(verdict(&repeated.verdict_before));
    row.extend(found(&repeated.after));
    row.push(verdict(&repeated.verdict_after));
    row.extend(found(&repeated.change));
    row.push(Cell::Outcome { tone: agrees.0, word: agrees.1.into(), more: String::new() });
    row
}
