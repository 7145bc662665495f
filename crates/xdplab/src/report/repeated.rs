//! A repeated run beside the recorded one, as text for a terminal.

use super::kernels::kernels_table;
use super::table::{Cell, Column, Table, Tone};
use super::text::table;
use super::view::{difference, plain, verdict};
use crate::kernels::UNIT;
use crate::rerun::{Recounted, Remeasured, Repeated, RepeatedCase};
use crate::stats::{Difference, Level};

/// A row for each candidate of each case: its difference then and now, and whether both can be the same.
#[must_use]
pub fn repeated_text(cases: &[RepeatedCase], level: Level) -> String {
    let tables: Vec<(String, Table)> =
        cases.iter().map(|case| (case.case.clone(), of_case(&case.candidates, level))).collect();
    table(&Table::stacked(Column::words("case", "case"), &tables))
}

/// A row for each figure that both runs measured once.
#[must_use]
pub fn remeasured_text(figures: &[Remeasured]) -> String {
    let columns = vec![
        Column::words("case", "case"),
        Column::words("figure", "figure"),
        Column::numbers("then", "before"),
        Column::numbers("now", "after"),
        Column::numbers("change", "change"),
    ];
    let cell = |figure: Option<f64>| figure.map_or(Cell::Missing, |figure| Cell::number(figure, 3));
    let row = |figure: &Remeasured| {
        let change = figure.after.zip(figure.before).map(|(after, before)| after - before);
        let change = change.map_or(Cell::Missing, |change| Cell::difference(change, 3));
        vec![Cell::text(&figure.case), Cell::text(figure.figure), cell(figure.before), cell(figure.after), change]
    };
    let rows = figures.iter().map(row).collect();
    format!("measured once a run, so the spread is not known\n{}", table(&Table { columns, rows }))
}

/// A table for each kernel that was counted in guests in both runs, the recorded one as baseline.
#[must_use]
pub fn recounted_text(kernels: &[Recounted<'_>]) -> String {
    let of_kernel = |recounted: &Recounted<'_>| {
        let [before, after] = [recounted.before, recounted.after].map(|kernel| &kernel.image);
        let image = if before == after { "the same image" } else { "ANOTHER IMAGE than then" };
        let table = match &recounted.rows {
            Ok(rows) => kernels_table(recounted.before, recounted.after, &rows.iter().collect::<Vec<_>>()),
            Err(why) => format!("{}\n", plain(why)),
        };
        let case = if recounted.case.is_empty() { String::new() } else { format!("{}: ", recounted.case) };
        format!("{}{}\n{table}", plain(&case), plain(&format!("{}, {image}: {UNIT}", after.release)))
    };
    kernels.iter().map(of_kernel).collect()
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
