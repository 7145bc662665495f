//! Findings as Markdown, with tables as GitHub and GitLab take them.

use super::table::{Cell, Table};
use super::view::{Chart, Finding, RecordView, Report, meaning, outcome_word};
use crate::guard::{Guard, Outcome};

pub(super) fn report(report: &Report) -> String {
    report.records.iter().map(record).collect::<Vec<_>>().join("\n")
}

fn record(record: &RecordView) -> String {
    let stopped = record.stopped.as_deref().unwrap_or("not ended");
    let mut text = format!("# {}\n\n", escape(&record.file));
    text += &format!("- {}: {}\n", escape(&record.tool), code(&record.command));
    text += &format!("- {} to {}\n", escape(&record.started), escape(stopped));
    text += &format!("- {}\n", escape(&record.machine));
    for found in &record.findings {
        text += &finding(found);
    }
    if record.findings.is_empty() {
        text += "\nNothing was found yet.\n";
    }
    text
}

fn finding(finding: &Finding) -> String {
    let list = |lines: &[String]| lines.iter().map(|line| format!("- {}\n", escape(line))).collect::<String>();
    let mut text = format!("\n## {}\n\n{}\n", escape(&finding.title), list(&finding.set_up));
    text += &table(finding.table.clone().without_empty_columns());
    text += &format!("\n{}", list(&finding.notes));
    text += &accounts(&finding.charts);
    if !finding.guards.is_empty() {
        text += &guards(finding);
    }
    text
}

fn accounts(charts: &[Chart]) -> String {
    let mut text = String::new();
    for chart in charts {
        let Chart::Accounts(accounts) = chart else { continue };
        text += &format!("\n{}:\n\n", accounts.title);
        for account in &accounts.accounts {
            text += &format!("- {}\n", escape(&account.to_string()));
        }
    }
    text
}

fn table(table: Table) -> String {
    let heading = |text: &str| if text.is_empty() { " ".to_owned() } else { escape(text) };
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(table.columns.iter().map(|column| heading(&column.heading)).collect());
    text += &line(table.columns.iter().map(|column| if column.left { "---" } else { "---:" }.to_owned()).collect());
    for row in &table.rows {
        text += &line(row.iter().map(cell).collect());
    }
    text
}

/// Words are escaped; numbers have nothing to escape.
fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => escape(text),
        Cell::Outcome { .. } => format!("**{cell}**"),
        other => other.to_string(),
    }
}

fn guards(finding: &Finding) -> String {
    let open = finding.guards.iter().filter(|guard| matches!(guard.outcome, Outcome::Warn | Outcome::Fail)).count();
    let row = |guard: &Guard| {
        let cells = [outcome_word(guard.outcome), &guard.id, &guard.value, &meaning(guard)].map(escape);
        format!("| {} |\n", cells.join(" | "))
    };
    let rows: String = finding.guards.iter().map(row).collect();
    format!(
        "\n<details{}><summary>{} guards, {open} warned or failed</summary>\n\n| guard | | number | meaning \
         |\n|---|---|---|---|\n{rows}\n</details>\n",
        if open > 0 { " open" } else { "" },
        finding.guards.len(),
    )
}

/// Text as it is: what Markdown or HTML would take for markup has a backslash before it (CommonMark 2.4).
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\`*_{}[]<>#|~&$@".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Text as code. More backticks around it than are in it (CommonMark 6.1).
fn code(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    format!("{fence} {text} {fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_taken_for_markup() {
        assert_eq!(escape("a|b <script> [x](y) `z` *"), r"a\|b \<script\> \[x\](y) \`z\` \*");
        assert_eq!(code("a `b` ``c"), "``` a `b` ``c ```");
    }
}
