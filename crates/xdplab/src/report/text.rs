//! Findings as text for a terminal.

use comfy_table::{CellAlignment, Table as Grid, presets};

use super::table::{Cell, Table};
use super::view::{Chart, Finding, RecordView, Report, machine, meaning, outcome_word};
use crate::guard::Guard;
use crate::host::Environment;
use crate::live::Account;
use crate::reading::Reading;
use crate::run::Case;
use crate::settings::SettingsCase;

/// Environment, set-up, table, guards and the resolution reached.
#[must_use]
pub fn case_text(environment: &Environment, case: &Case) -> String {
    finding(&machine(environment), &Finding::of_case(case))
}

/// The same of a comparison of settings.
#[must_use]
pub fn settings_text(environment: &Environment, case: &SettingsCase) -> String {
    finding(&machine(environment), &Finding::of_settings(case))
}

/// Every finding of every record.
pub(super) fn report(report: &Report) -> String {
    report.records.iter().map(record).collect::<Vec<_>>().join("\n")
}

fn record(record: &RecordView) -> String {
    let stopped = record.stopped.as_deref().unwrap_or("not ended");
    let mut text = format!("{}\n{}: {}\n{} to {stopped}\n", record.file, record.tool, record.command, record.started);
    for found in &record.findings {
        text += &format!("\n{}\n{}", found.title, finding(&record.machine, found));
    }
    if record.findings.is_empty() {
        text += "\nnothing was found yet\n";
    }
    text
}

fn finding(machine: &str, finding: &Finding) -> String {
    let mut text = format!("{machine}\n{}\n", lines(&finding.set_up));
    text += &table(&finding.table);
    text += "\n";
    text += &lines(&finding.notes);
    text += &ledgers(finding);
    if !finding.guards.is_empty() {
        text += "\n";
        text += &guards(&finding.guards);
    }
    text
}

/// Each on a line of its own.
pub(super) fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// What a live command's packets became; that of other runs is among the guards.
fn ledgers(finding: &Finding) -> String {
    if !finding.guards.is_empty() {
        return String::new();
    }
    let of_chart = |chart: &Chart| match chart {
        Chart::Accounts(accounts) => accounts.accounts.iter().filter_map(Reading::known).map(account).collect(),
        _ => String::new(),
    };
    finding.charts.iter().map(of_chart).collect()
}

fn account(account: &Account) -> String {
    format!("ledger: {account}\n")
}

/// A table without its empty columns.
pub(super) fn table(table: &Table) -> String {
    let table = table.clone().without_empty_columns();
    let header: Vec<&str> = table.columns.iter().map(|column| column.heading.as_str()).collect();
    let left: Vec<usize> = (0..table.columns.len()).filter(|index| table.columns[*index].left).collect();
    aligned(&header, &left, table.rows.iter().map(|row| row.iter().map(Cell::to_string).collect()).collect())
}

/// Columns two blanks apart: those named in `left` to the left, numbers to the right, no blank at a line's end.
pub(super) fn aligned(header: &[&str], left: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Grid::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        let alignment = if left.contains(&index) { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(alignment);
    }
    table.trim_fmt() + "\n"
}

fn guards(guards: &[Guard]) -> String {
    let row = |guard: &Guard| {
        vec![outcome_word(guard.outcome).to_owned(), guard.id.clone(), guard.value.clone(), meaning(guard)]
    };
    aligned(&["guard", "", "number", "meaning"], &[0, 1, 2, 3], guards.iter().map(row).collect())
}
