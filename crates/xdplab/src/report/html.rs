//! Findings as one page that needs nothing else: no script, no font, no other file. Everything that comes from a record goes
//! through [`maud`]'s escaping.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::svg;
use super::table::{Cell, Table, Tone};
use super::view::{Accounts, Chart, Finding, Kind, RecordView, Report, TimeLine, meaning, outcome_word};
use crate::guard::{Guard, Outcome};
use crate::live::Account;
use crate::reading::Reading;

pub(super) fn report(report: &Report) -> String {
    let title = title(report);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – xdplab" }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                main {
                    header { h1 { (title) } }
                    @for record in &report.records { (self::record(record)) }
                    footer { "Written by xdplab " (env!("CARGO_PKG_VERSION")) " from the record" @if report.records.len() > 1 { "s" } "." }
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn title(report: &Report) -> String {
    let findings: Vec<&Finding> = report.records.iter().flat_map(|record| &record.findings).collect();
    match (&findings[..], &report.records[..]) {
        ([finding], _) => finding.title.clone(),
        ([first, ..], [_]) if first.kind == Kind::Scenario => first.title.clone(),
        (_, [record]) => record.file.clone(),
        (findings, records) => format!("{} records, {} results", records.len(), findings.len()),
    }
}

fn record(record: &RecordView) -> Markup {
    let one = record.findings.len() == 1;
    html! {
        section .record {
            dl .about {
                dt { "machine" } dd { (record.machine) }
                dt { "command" } dd { code { (record.command) } }
                dt { "written by" } dd { (record.tool) ", " (record.started) " to " (record.stopped.as_deref().unwrap_or("not ended")) }
                dt { "record" } dd { code { (record.file) } }
            }
            @for finding in &record.findings { (self::finding(finding, one)) }
            @if record.findings.is_empty() { p { "Nothing was found yet." } }
            @if !record.environment.is_empty() {
                details {
                    summary { "Environment" }
                    table .environment {
                        @for (path, value) in &record.environment { tr { th scope="row" { (path) } td { (value) } } }
                    }
                }
            }
        }
    }
}

fn finding(finding: &Finding, is_only_one: bool) -> Markup {
    html! {
        article {
            @if !is_only_one { h2 { (finding.title) } }
            ul .setup { @for line in &finding.set_up { li { (line) } } }
            (table(&finding.table.clone().without_empty_columns()))
            ul .notes { @for note in &finding.notes { li { (note) } } }
            @if !finding.guards.is_empty() { (guards(finding)) }
            @for chart in &finding.charts { (self::chart(chart)) }
        }
    }
}

fn table(table: &Table) -> Markup {
    let class = |left: bool| if left { "words" } else { "numbers" };
    html! {
        div .scroll {
            table .figures {
                thead { tr { @for column in &table.columns { th scope="col" class=(class(column.left)) { (column.heading) } } } }
                tbody {
                    @for row in &table.rows {
                        tr { @for (column, cell) in table.columns.iter().zip(row) { td class=(class(column.left)) { (self::cell(cell)) } } }
                    }
                }
            }
        }
    }
}

fn cell(cell: &Cell) -> Markup {
    match cell {
        Cell::Outcome { tone, .. } => html! { span class=(format!("tag {}", tone.name())) { (cell.to_string()) } },
        other => html! { (other.to_string()) },
    }
}

/// Open where something did not pass.
fn guards(finding: &Finding) -> Markup {
    let count = |outcome| finding.guards_that(outcome).count();
    let (warned, failed) = (count(Outcome::Warn), count(Outcome::Fail));
    let row = |guard: &Guard| {
        html! {
            tr {
                td { span class=(format!("tag {}", tone(guard.outcome).name())) { (outcome_word(guard.outcome)) } }
                th scope="row" { (guard.id) }
                td { (guard.value) }
                td { (meaning(guard)) }
            }
        }
    };
    html! {
        details open[warned + failed > 0] {
            summary { "Guards: " (count(Outcome::Pass)) " passed, " (warned) " warned, " (failed) " failed" }
            div .scroll {
                table .guards {
                    thead { tr { th { "guard" } th {} th { "number" } th { "meaning" } } }
                    tbody { @for guard in &finding.guards { (row(guard)) } }
                }
            }
        }
    }
}

fn tone(outcome: Outcome) -> Tone {
    match outcome {
        Outcome::NotApplicable => Tone::Neutral,
        Outcome::Pass => Tone::Good,
        Outcome::Warn => Tone::Doubt,
        Outcome::Fail => Tone::Bad,
    }
}

fn chart(chart: &Chart) -> Markup {
    match chart {
        Chart::Differences(plot) => figure(
            "Differences from the baseline",
            "Each dot is an estimate, its line the interval. A verdict needs an interval without zero.",
            svg::differences(plot),
        ),
        Chart::Distribution(plot) => figure(
            "Slices by their cost",
            "How slices are distributed, and below each hill its middle half. All hills are equally high.",
            svg::distribution(plot),
        ),
        Chart::TimeLine(plot) => figure(
            "Over time",
            match (plot.unit, plot.tainted.is_empty()) {
                ("block", _) => "The cost at each visit of a setting, in ns per packet.",
                (_, true) => "Cost in ns per packet.",
                (_, false) => {
                    "Median cost in ns per packet, and below it the share of slices that time was taken from: they took more \
                     than twice their variant's median and are left out. Dashed marks: everything was loaded anew."
                }
            },
            html! { (legend(plot)) (svg::time_line(plot)) },
        ),
        Chart::Accounts(accounts) => self::accounts(accounts),
        Chart::Functions(functions) => figure(
            "A packet by function",
            "Guest instructions per packet. The functions of each side are in the same order; point at one for its figures.",
            html! { (parts()) (svg::functions(functions)) },
        ),
    }
}

fn figure(title: &str, caption: &str, content: Markup) -> Markup {
    html! { figure { figcaption { h3 { (title) } p { (caption) } } (content) } }
}

fn legend(plot: &TimeLine) -> Markup {
    html! {
        ul .legend {
            @for line in &plot.lines { li { span class=(format!("key {}", svg::series(line.color))) {} (line.name) } }
        }
    }
}

/// What the colours of functions mean.
fn parts() -> Markup {
    const PARTS: [(&str, &str); 5] = [
        ("kernel", "kernel"),
        ("bpf", "BPF programs"),
        ("harness", "harness: what sends and measures"),
        ("bad", "more with the candidate"),
        ("good", "fewer with the candidate"),
    ];
    html! { ul .legend { @for (class, meaning) in PARTS { li { span class=(format!("key area {class}")) {} (meaning) } } } }
}

fn accounts(accounts: &Accounts) -> Markup {
    html! {
        figure {
            figcaption { h3 { (accounts.title) } p { "Each line is an account that must balance." } }
            ul .accounts {
                @for account in &accounts.accounts {
                    li { @match account {
                        Reading::Known(account) => (self::account(account)),
                        Reading::NotAvailable { why } => p { "not available (" (why) ")" },
                    } }
                }
            }
        }
    }
}

fn account(account: &Account) -> Markup {
    let parts: Vec<f64> = account.parts.iter().map(|part| part.packets as f64).collect();
    html! {
        p class=(if account.residual == 0 { "balanced" } else { "open" }) { (account.to_string()) }
        (svg::bar(&parts, account.residual as f64))
    }
}
