//! Imported results as text for a terminal.

use super::text::aligned;
use crate::import::{Cost, Import, Imported, Series, Stated, Unit};

/// A table of all costs first, then for each block what else it holds and what one must know.
#[must_use]
pub fn import_text(import: &Import) -> String {
    let mut text = String::new();
    let rows: Vec<_> = import.blocks.iter().flat_map(cost_rows).collect();
    if !rows.is_empty() {
        let header = ["result", "of", "ns", "", "rate or time as stated", "from", "spread ns"];
        text += &aligned(&header, &[0, 1, 3, 5], rows);
    }
    for block in &import.blocks {
        text += &details(block);
    }
    text + &leftovers(import)
}

fn cost_rows(block: &Imported) -> impl Iterator<Item = Vec<String>> {
    block.series.iter().filter_map(|series| Some(row(block, series, series.cost?)))
}

fn row(block: &Imported, series: &Series, cost: Cost) -> Vec<String> {
    let per = if series.unit.is_of_packets() { "/packet" } else { "/operation" };
    vec![
        block.title().into(),
        series.name(),
        ns(&cost),
        per.into(),
        series.figure().map_or(String::new(), |figure| format!("{figure} {}", series.unit)),
        source(block, series),
        spread(&cost),
    ]
}

/// With the rounding of the figures as written where it shows.
fn ns(cost: &Cost) -> String {
    if cost.rounding_ns < 0.005 {
        format!("{:.2}", cost.ns)
    } else {
        format!("{:.2} ± {:.2}", cost.ns, cost.rounding_ns)
    }
}

fn source(block: &Imported, series: &Series) -> String {
    match (series.summary, series.own) {
        (_, Some(own)) if own.samples.is_some() => format!("average of {} samples", own.samples.unwrap_or(0)),
        (Some(summary), own) if summary.intervals > 1 || own.is_none() => {
            let left_out =
                if summary.left_out > 0 { format!(" ({} left out)", summary.left_out) } else { String::new() };
            format!("{} value{}{left_out}", summary.intervals, if summary.intervals == 1 { "" } else { "s" })
        }
        _ => block.duration_s.map_or("its average".into(), |seconds| format!("average over {seconds} s")),
    }
}

fn spread(cost: &Cost) -> String {
    match cost.spread {
        Some(spread) => match spread.high_ns {
            Some(high) => format!("{:.2} to {high:.2}", spread.low_ns),
            None => format!("{:.2} to no packet", spread.low_ns),
        },
        None => "unknown".into(),
    }
}

/// What has no cost, and the notes.
fn details(block: &Imported) -> String {
    let mut text = format!("\n{} [{}, {}:{}]\n", block.title(), block.format, block.file, block.line);
    for line in &block.context {
        text += &format!("  | {line}\n");
    }
    let mut rows = Vec::new();
    let mut add =
        |name: String, figure: Stated, unit: Unit| rows.push(vec![name, figure.to_string(), unit.to_string()]);
    for series in block.series.iter().filter(|series| series.cost.is_none()) {
        if let Some(figure) = series.figure() {
            add(series.name(), figure, series.unit);
        }
    }
    for total in &block.totals {
        let name = format!("{} {} in all", total.subject, total.metric);
        add(name.trim().to_owned(), total.count, total.unit);
    }
    if !rows.is_empty() {
        for line in aligned(&["", "", ""], &[0, 2], rows).lines().filter(|line| !line.trim().is_empty()) {
            text += &format!("  {line}\n");
        }
    }
    for note in &block.notes {
        text += &format!("  note: {note}\n");
    }
    text
}

fn leftovers(import: &Import) -> String {
    let unknown = &import.not_understood;
    let mut text = String::new();
    if import.left_out > 0 {
        text += &format!("\n{} results or series left out: there are too many\n", import.left_out);
    }
    if unknown.count > 0 {
        text += &format!("\n{} lines not understood:\n", unknown.count);
        for line in &unknown.first {
            text += &format!("  {}:{}: {}\n", line.file, line.line, line.text);
        }
        let more = unknown.count.saturating_sub(unknown.first.len() as u64);
        if more > 0 {
            text += &format!("  and {more} more\n");
        }
    }
    text
}
