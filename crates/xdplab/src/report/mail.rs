//! Findings as plain text for a mail: ASCII as far as it is ours, at most 72 columns, ready to paste under a patch.

use std::iter;

use textwrap::{Options, WordSplitter, core::display_width};

use super::table::{Cell, Table};
use super::text::table;
use super::view::{Chart, Finding, Kind, RecordView, Report, meaning, outcome_word};
use crate::guard::Outcome;
use crate::live::Account;
use crate::reading::Reading;

/// Columns of a mail's lines that can be quoted a few times before they break.
const COLUMNS: usize = 72;

pub(super) fn report(report: &Report) -> String {
    report.records.iter().map(record).collect::<Vec<_>>().join("\n")
}

fn record(record: &RecordView) -> String {
    // Of a scenario's overviews the first has what is not in the cases.
    let told = record.findings.iter().enumerate().filter(|(index, found)| *index == 0 || found.kind != Kind::Scenario);
    let findings = told.map(|(index, found)| finding(record, found, index == 0));
    let findings = findings.collect::<Vec<_>>().join("\n");
    if findings.is_empty() { format!("{}: nothing was found yet\n", ascii(&record.file)) } else { findings }
}

/// The first finding of a record has what it shares with the others.
fn finding(record: &RecordView, finding: &Finding, is_first: bool) -> String {
    let mut text = wrapped("", &finding.title) + "\n";
    text += &labelled("How:", finding.set_up.iter());
    if is_first {
        text += &labelled("Machine:", iter::once(&record.machine));
        let tool = format!("{}, {}: {}", record.tool, record.started, record.command);
        text += &labelled("Tool:", iter::once(&tool));
    }
    text += "\n";
    // The cases of a scenario follow, each with its own table.
    if finding.kind != Kind::Scenario {
        text += &fitting(finding.table.clone().without_empty_columns());
        text += "\n";
        text += &longer_verdicts(&finding.table);
    }
    text += &finding.notes.iter().map(|note| wrapped("  ", note)).collect::<String>();
    text + &checks(finding)
}

/// Lines after a label, each beginning below the one before.
fn labelled<'a>(label: &str, lines: impl Iterator<Item = &'a String>) -> String {
    let indent = " ".repeat(9);
    let first = |index: usize| if index == 0 { format!("{label:<9}") } else { indent.clone() };
    lines.enumerate().map(|(index, line)| wrap(line, &first(index), &indent)).collect()
}

fn wrapped(indent: &str, text: &str) -> String {
    wrap(text, "", indent)
}

fn wrap(text: &str, first: &str, indent: &str) -> String {
    let options = Options::new(COLUMNS).initial_indent(first).subsequent_indent(indent);
    textwrap::fill(&ascii(text), options.word_splitter(WordSplitter::NoHyphenation)) + "\n"
}

/// The signs that our own texts use, in ASCII.
fn ascii(text: &str) -> String {
    [("Δ", "delta"), ("±", "+-"), ("≥", ">="), ("≤", "<="), ("→", "->"), ("…", "..."), ("µ", "u")]
        .iter()
        .fold(text.to_owned(), |text, (sign, ascii)| text.replace(sign, ascii))
}

/// A table that fits: without its dispensable columns as far as that is needed, then with numbers in the place of long names,
/// and where nothing helps, row by row.
fn fitting(full: Table) -> String {
    let short = |table: &Table| {
        let mut table = table.clone();
        table.columns.iter_mut().for_each(|column| column.heading = ascii(&column.heading));
        for cell in table.rows.iter_mut().flatten() {
            *cell = Cell::Text(ascii(&cell.short()));
        }
        self::table(&table)
    };
    let fits = |text: &str| text.lines().all(|line| display_width(line) <= COLUMNS);
    let most = full.columns.iter().map(|column| column.dispensable).max().unwrap_or(0);
    for kept in (0..=most).rev() {
        let kept: Vec<bool> = full.columns.iter().map(|column| column.dispensable <= kept).collect();
        let text = short(&full.clone().only(&kept));
        if fits(&text) {
            return text;
        }
    }
    let kept: Vec<bool> = full.columns.iter().map(|column| column.dispensable == 0).collect();
    let numbered = numbered(full.clone().only(&kept));
    let text = short(&numbered);
    if fits(&text) { legend(&full) + "\n" + &text } else { row_by_row(&full) }
}

/// The table with numbers for names.
fn numbered(mut table: Table) -> Table {
    for (index, row) in table.rows.iter_mut().enumerate() {
        row[0] = Cell::Text(format!("[{}]", index + 1));
    }
    table
}

/// What the numbers stand for.
fn legend(table: &Table) -> String {
    let rows = table.rows.iter().enumerate();
    rows.map(|(index, row)| wrap(&row[0].to_string(), &format!("[{}] ", index + 1), "    ")).collect()
}

fn row_by_row(table: &Table) -> String {
    let row = |row: &Vec<Cell>| {
        let cells = table.columns.iter().zip(row).filter(|(_, cell)| **cell != Cell::Empty);
        let cells: Vec<String> = cells.map(|(column, cell)| format!("{} {cell}", column.heading)).collect();
        wrapped("  ", &cells.join(", "))
    };
    table.rows.iter().map(row).collect()
}

/// The verdicts whose table has but their first word.
fn longer_verdicts(table: &Table) -> String {
    let of_row = |row: &Vec<Cell>| {
        let verdict = row.iter().find(|cell| matches!(cell, Cell::Outcome { more, .. } if !more.is_empty()))?;
        Some(wrapped("  ", &format!("{}: {verdict}", row.first()?)))
    };
    table.rows.iter().filter_map(of_row).collect()
}

/// The guards that did not pass and a count of the others, or what became of a live command's packets.
fn checks(finding: &Finding) -> String {
    if finding.guards.is_empty() {
        let accounts = finding.charts.iter().filter_map(|chart| match chart {
            Chart::Accounts(accounts) => Some(&accounts.accounts),
            _ => None,
        });
        let line = |account: &Account| wrapped("  ", &format!("Ledger: {account}"));
        return accounts.flatten().filter_map(Reading::known).map(line).collect();
    }
    let count = |outcome| finding.guards_that(outcome).count();
    let (warned, failed) = (count(Outcome::Warn), count(Outcome::Fail));
    let mut text = wrapped("  ", &format!("Guards: {} passed, {warned} warned, {failed} failed", count(Outcome::Pass)));
    for guard in finding.guards_that(Outcome::Fail).chain(finding.guards_that(Outcome::Warn)) {
        let line = format!("{} {}: {}: {}", outcome_word(guard.outcome), guard.id, guard.value, meaning(guard));
        text += &wrap(&line, "  ", "    ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::table::{Column, Tone};
    use super::*;

    fn row(name: &str) -> Vec<Cell> {
        vec![
            Cell::text(name),
            Cell::number(21.304, 2),
            Cell::Interval { low: 21.0, high: 22.0, signed: false },
            Cell::difference(-0.5, 2),
            Cell::Outcome { tone: Tone::Neutral, word: "equivalent".into(), more: " within ±1 ns".into() },
        ]
    }

    fn table_of(names: &[&str]) -> Table {
        let columns = vec![
            Column::words("variant", "variant"),
            Column::numbers("ns/packet", "ns"),
            Column::numbers("95 % interval", "ns_interval").dispensable(1),
            Column::numbers("Δ ns", "delta_ns"),
            Column::words("verdict", "verdict"),
        ];
        Table { columns, rows: names.iter().map(|name| row(name)).collect() }
    }

    #[test]
    fn a_table_that_fits_keeps_all_its_columns() {
        insta::assert_snapshot!(fitting(table_of(&["drop", "pass"])), @"
         variant  ns/packet   95 % interval  delta ns  verdict
         drop         21.30  [21.00, 22.00]     -0.50  equivalent
         pass         21.30  [21.00, 22.00]     -0.50  equivalent
        ");
    }

    #[test]
    fn what_is_too_wide_loses_first_what_can_be_missed_then_its_names_and_never_a_figure() {
        let wide = fitting(table_of(&["a-variant-with-quite-a-long-name:program"]));
        assert!(!wide.contains("interval") && wide.contains("21.30") && wide.contains("-0.50"), "{wide}");
        let numbered = fitting(table_of(&[&"/a/path".repeat(20), &"b".repeat(100)]));
        assert!(numbered.starts_with("[1] /a/path") && numbered.contains("\n [2] "), "{numbered}");
        for text in [wide, numbered, row_by_row(&table_of(&[&"c".repeat(200)]))] {
            assert!(text.lines().all(|line| display_width(line) <= COLUMNS), "{text}");
            assert!(text.contains("21.30") && text.contains("equivalent"), "{text}");
        }
    }

    #[test]
    fn our_own_signs_become_ascii() {
        assert_eq!(ascii("Δ ns ±0.1 → …"), "delta ns +-0.1 -> ...");
    }
}
