//! Result tables of Emacs org mode, the form in which kernel developers publish before, after and difference.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct OrgTable {
    /// Heading rows, until the rule below them.
    headings: Vec<Vec<String>>,
    /// What each column holds, once the rule was read; the first names the row.
    columns: Vec<Option<Column>>,
    /// The rule was read.
    ready: bool,
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    unit: Unit,
}

/// Heading rows and cells looked at.
const MAX_HEADINGS: usize = 4;
const MAX_CELLS: usize = 32;

impl Parser for OrgTable {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        let text = line.text.trim();
        if text.starts_with("#+TBLFM:") {
            *self = Self::default();
            return true;
        }
        let Some(inner) = text.strip_prefix('|').and_then(|text| text.strip_suffix('|')) else { return false };
        if !inner.is_empty() && inner.bytes().all(|byte| matches!(byte, b'-' | b'+' | b'|' | b':' | b' ')) {
            return self.rule();
        }
        let cells: Vec<&str> = inner.split('|').map(str::trim).take(MAX_CELLS).collect();
        if self.ready { self.row(&cells, to) } else { self.heading(&cells, to) }
    }

    fn interrupted(&mut self, _: &mut Blocks<'_>) {
        *self = Self::default();
    }
}

impl OrgTable {
    fn heading(&mut self, cells: &[&str], to: &mut Blocks<'_>) -> bool {
        if self.headings.len() >= MAX_HEADINGS {
            return false;
        }
        if self.headings.is_empty() {
            to.close();
        }
        self.headings.push(cells.iter().map(|&cell| cell.to_owned()).collect());
        true
    }

    /// The rule under the headings; one further down changes nothing.
    fn rule(&mut self) -> bool {
        if self.ready {
            return true;
        }
        let count = self.headings.iter().map(Vec::len).max().unwrap_or(0);
        let mut unit = None;
        self.columns = (0..count)
            .map(|index| {
                let cells = || self.headings.iter().filter_map(|row| row.get(index)).map(String::as_str);
                // The unit stands over the first of the columns that it holds for.
                unit = cells().find_map(unit_of).or(unit.filter(|_| cells().next() == Some("")));
                let name = cells().rfind(|cell| !cell.is_empty() && unit_of(cell).is_none()).unwrap_or("");
                let derived = ["diff", "%", "change"].iter().any(|word| name.contains(word));
                unit.filter(|_| index > 0 && !derived).map(|unit| Column { name: name.to_owned(), unit })
            })
            .collect();
        self.ready = self.columns.iter().any(Option::is_some);
        self.ready
    }

    /// Names of the columns, but the first, that hold neither nanoseconds nor a rate.
    fn not_read(&self) -> Vec<String> {
        let names = |index| {
            let words: Vec<&str> = self.headings.iter().filter_map(|row| row.get(index)).map(String::as_str).collect();
            words.join(" ").trim().to_owned()
        };
        let unread = self.columns.iter().enumerate().skip(1).filter(|(_, column)| column.is_none());
        unread.map(|(index, _)| names(index)).filter(|name| !name.is_empty()).collect()
    }

    fn row(&self, cells: &[&str], to: &mut Blocks<'_>) -> bool {
        let Some((name, cells)) = cells.split_first().filter(|(name, _)| !name.is_empty()) else { return false };
        let values = cells.iter().zip(self.columns.iter().skip(1));
        let values = values.filter_map(|(cell, column)| Some((Stated::parse(cell)?, column.as_ref()?)));
        let mut found = false;
        for (value, column) in values {
            let subject = if column.name.is_empty() { (*name).to_owned() } else { format!("{name} {}", column.name) };
            let metric = if column.unit == Unit::NanosPerOperation { Metric::Operation } else { Metric::Packets };
            to.block(Format::OrgTable).value(&subject, metric, column.unit, value);
            found = true;
        }
        if found && !self.not_read().is_empty() {
            to.block(Format::OrgTable).note(format!("columns not read: {}", self.not_read().join(", ")));
        }
        found
    }
}

fn unit_of(heading: &str) -> Option<Unit> {
    Some(match heading.trim_matches('*').to_ascii_lowercase().as_str() {
        "nanosec" | "nanoseconds" | "nanosec/op" | "ns" | "ns/op" => Unit::NanosPerOperation,
        "ns/packet" | "ns/pkt" | "nanosec/packet" => Unit::NanosPerPacket,
        "pps" | "packets/s" | "packets/sec" => Unit::PacketsPerSecond,
        _ => return None,
    })
}
