//! A scenario's results as text for a terminal.

use super::table::Cell;
use super::text::{lines, table};
use super::view::{self, Finding, Kind};
use crate::record::Record;

/// Every case that was carried out, in the order of the file.
#[must_use]
pub fn scenario_text(record: &Record) -> String {
    let findings = view::findings(record);
    let Some(overview) = findings.first().filter(|finding| finding.kind == Kind::Scenario) else {
        return "the record has no scenario\n".into();
    };
    let figures = if overview.table.rows.is_empty() { String::new() } else { table(&overview.table) + "\n" };
    format!("{}\n\n{figures}{}", overview.title, lines(&overview.notes))
}

/// The case that was carried out last, in a line.
#[must_use]
pub fn last_done_text(record: &Record) -> String {
    match view::last_case(record) {
        None => String::new(),
        Some((name, Err(why))) => format!("{name}: failed: {why}"),
        Some((name, Ok(finding))) if matches!(finding.kind, Kind::Rates | Kind::Stream) => {
            format!("{name}: {}", figures(&finding))
        }
        Some((name, Ok(finding))) => format!("{name}: {}", differences(&finding)),
    }
}

/// The figures of the only row, each with what stands above it.
fn figures(finding: &Finding) -> String {
    let cells = finding.table.columns.iter().zip(finding.table.rows.first().into_iter().flatten()).skip(1);
    let told =
        cells.filter(|(_, cell)| **cell != Cell::Empty).map(|(column, cell)| format!("{} {cell}", column.heading));
    told.collect::<Vec<_>>().join(", ")
}

/// Each difference with its verdict, and the guards that did not pass.
fn differences(finding: &Finding) -> String {
    let place = |key| finding.table.columns.iter().position(|column| column.key == key);
    let cell = |row: &[Cell], key| place(key).and_then(|index| row.get(index)).map_or(String::new(), Cell::to_string);
    let told = finding
        .table
        .rows
        .iter()
        .skip(1)
        .map(|row| format!("{} {} ns ({})", cell(row, "variant"), cell(row, "delta_ns"), cell(row, "verdict")));
    let told = told.collect::<Vec<_>>().join(", ");
    match view::open_guards(finding) {
        none if none.is_empty() => told,
        guards => format!("{told} [{guards}]"),
    }
}
