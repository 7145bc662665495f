//! A scenario's results as text for a terminal.

use super::table::Cell;
use super::text::{lines, table};
use super::view::{self, Finding, Kind};
use crate::record::Record;

/// Every case that was carried out, in the order of the file.
#[must_use]
pub fn scenario_text(record: &Record) -> String {
    let findings = view::findings(record);
    let overviews: Vec<String> =
        findings.iter().take_while(|finding| finding.kind == Kind::Scenario).map(overview).collect();
    if overviews.is_empty() { "the record has no scenario\n".into() } else { overviews.join("\n") }
}

fn overview(overview: &Finding) -> String {
    let figures = if overview.table.rows.is_empty() { String::new() } else { table(&overview.table) + "\n" };
    format!("{}\n\n{figures}{}", overview.title, lines(&overview.notes))
}

/// The case that was carried out last, in a line.
#[must_use]
pub fn last_done_text(record: &Record) -> String {
    match view::last_case(record) {
        None => String::new(),
        Some((name, Err(why))) => format!("{name}: failed: {why}"),
        Some((name, Ok(finding))) => format!(
            "{name}: {}",
            match finding.kind {
                Kind::Rates | Kind::Stream => figures(&finding),
                Kind::Kernels => counts(&finding),
                _ => differences(&finding),
            }
        ),
    }
}

/// The figures of the only row, each with what stands above it.
fn figures(finding: &Finding) -> String {
    let cells = finding.table.columns.iter().zip(finding.table.rows.first().into_iter().flatten()).skip(1);
    let told =
        cells.filter(|(_, cell)| **cell != Cell::Empty).map(|(column, cell)| format!("{} {cell}", column.heading));
    told.collect::<Vec<_>>().join(", ")
}

/// The cell of the column with this key, as it is shown.
fn cell(finding: &Finding, row: &[Cell], key: &str) -> String {
    let place = finding.table.columns.iter().position(|column| column.key == key);
    place.and_then(|index| row.get(index)).map_or(String::new(), Cell::to_string)
}

/// What each case of a guest takes, and how that compares with the first kernel.
fn counts(finding: &Finding) -> String {
    let told = finding.table.rows.iter().map(|row| {
        let cell = |key| cell(finding, row, key);
        let delta = Some(cell("delta_instructions")).filter(|delta| !delta.is_empty()).map(|delta| delta + " ");
        format!(
            "{} {} instructions/packet ({}{})",
            cell("variant"),
            cell("instructions"),
            delta.unwrap_or_default(),
            cell("verdict")
        )
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Each difference with its verdict, and the guards that did not pass.
fn differences(finding: &Finding) -> String {
    let told = finding.table.rows.iter().skip(1).map(|row| {
        let cell = |key| cell(finding, row, key);
        format!("{} {} ns ({})", cell("variant"), cell("delta_ns"), cell("verdict"))
    });
    let told = told.collect::<Vec<_>>().join(", ");
    match view::open_guards(finding) {
        none if none.is_empty() => told,
        guards => format!("{told} [{guards}]"),
    }
}
