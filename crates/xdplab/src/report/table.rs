//! Tables of figures: what stands in a cell, and how it is written. Every format writes the same cells.

use std::collections::BTreeMap;
use std::fmt;

use indicatif::HumanCount;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::view::plain;

/// A table. Each row has a cell for each column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The columns, the first of which says what a row is of.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// What stands above it.
    pub heading: String,
    /// Its name for programs, with the unit.
    pub key: &'static str,
    /// Whether its cells stand to the left, as words do, and not to the right, as numbers do.
    pub left: bool,
    /// Where there is little room, columns go in the order of this number, the highest first; those with 0 stay.
    pub dispensable: u8,
}

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing belongs here.
    Empty,
    /// There is no figure; the notes say why.
    Missing,
    /// Words.
    Text(String),
    /// How many.
    Count(u64),
    /// A figure.
    Number {
        /// Its value.
        value: f64,
        /// Digits shown after the point.
        decimals: usize,
        /// Whether it has a sign even above zero, as differences have.
        signed: bool,
    },
    /// Both ends of an interval, with two digits after the point.
    Interval {
        /// The lower end.
        low: f64,
        /// The upper end.
        high: f64,
        /// Whether the ends have a sign even above zero.
        signed: bool,
    },
    /// A verdict, or what a guard found.
    Outcome {
        /// What it means for the reader.
        tone: Tone,
        /// The word for it.
        word: String,
        /// What may follow the word where there is room; empty or with a blank at its start.
        more: String,
    },
}

/// What an outcome means for the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// Good news.
    Good,
    /// Bad news.
    Bad,
    /// Worth knowing.
    Doubt,
    /// Neither.
    Neutral,
}

impl Tone {
    /// Its name, which is a class in HTML.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Doubt => "doubt",
            Self::Neutral => "neutral",
        }
    }
}

impl Column {
    /// A column of words, which stays.
    #[must_use]
    pub fn words(heading: &str, key: &'static str) -> Self {
        Self { heading: plain(heading), key, left: true, dispensable: 0 }
    }

    /// A column of numbers, which stays.
    #[must_use]
    pub fn numbers(heading: &str, key: &'static str) -> Self {
        Self { left: false, ..Self::words(heading, key) }
    }

    /// The column, which goes where there is little room.
    #[must_use]
    pub fn dispensable(self, dispensable: u8) -> Self {
        Self { dispensable, ..self }
    }
}

impl Cell {
    /// Words; those of a record can hold anything.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::Text(plain(text.as_ref()))
    }

    /// A time or a rate.
    #[must_use]
    pub fn number(value: f64, decimals: usize) -> Self {
        Self::Number { value, decimals, signed: false }
    }

    /// A difference.
    #[must_use]
    pub fn difference(value: f64, decimals: usize) -> Self {
        Self::Number { value, decimals, signed: true }
    }

    /// The cell's value for programs, with all its digits; `None` where there is none.
    #[must_use]
    pub fn value(&self) -> Option<Value> {
        match self {
            Self::Empty | Self::Missing => None,
            Self::Text(_) | Self::Outcome { .. } => Some(json!(self.to_string())),
            Self::Count(count) => Some(json!(count)),
            Self::Number { value, .. } => Some(json!(value)),
            Self::Interval { low, high, .. } => Some(json!([low, high])),
        }
    }

    /// The cell where there is little room.
    #[must_use]
    pub fn short(&self) -> String {
        match self {
            Self::Outcome { word, .. } => word.clone(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => Ok(()),
            Self::Missing => f.write_str("n/a"),
            Self::Text(ref text) => f.write_str(text),
            Self::Count(count) => HumanCount(count).fmt(f),
            Self::Number { value, decimals, signed: true } => {
                // What is shown as zero is on no side of it.
                let is_zero = value.abs() < 0.5 * 0.1f64.powi(decimals as i32);
                write!(f, "{:+.decimals$}", if is_zero { 0.0 } else { value })
            }
            Self::Number { value, decimals, signed: false } => write!(f, "{value:.decimals$}"),
            Self::Interval { low, high, signed: true } => write!(f, "[{low:+.2}, {high:+.2}]"),
            Self::Interval { low, high, signed: false } => write!(f, "[{low:.2}, {high:.2}]"),
            Self::Outcome { ref word, ref more, .. } => write!(f, "{word}{more}"),
        }
    }
}

impl Table {
    /// The rows as programs take them: a value by the key of each column that has one.
    pub fn objects(&self) -> impl Iterator<Item = BTreeMap<&'static str, Value>> {
        let of_row = |row: &Vec<Cell>| {
            self.columns.iter().zip(row).filter_map(|(column, cell)| Some((column.key, cell.value()?))).collect()
        };
        self.rows.iter().map(of_row)
    }

    /// The table without the columns in which no row has anything.
    #[must_use]
    pub fn without_empty_columns(self) -> Self {
        let has_any = |index: usize| self.rows.iter().any(|row| row[index] != Cell::Empty);
        let kept: Vec<bool> = (0..self.columns.len()).map(has_any).collect();
        self.only(&kept)
    }

    /// Tables below each other, each with its name in the column `of` in front. Columns with the same key are one.
    #[must_use]
    pub fn stacked(of: Column, tables: &[(String, Self)]) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        for column in tables.iter().flat_map(|(_, table)| &table.columns) {
            if !columns.iter().any(|have| have.key == column.key) {
                columns.push(column.clone());
            }
        }
        let rows = tables.iter().flat_map(|(name, table)| {
            let places: Vec<Option<usize>> =
                columns.iter().map(|column| table.columns.iter().position(|own| own.key == column.key)).collect();
            table.rows.iter().map(move |row| {
                let cells = places.iter().map(|place| place.map_or(Cell::Empty, |index| row[index].clone()));
                let name = if name.is_empty() { Cell::Empty } else { Cell::text(name) };
                std::iter::once(name).chain(cells).collect()
            })
        });
        let rows = rows.collect();
        columns.insert(0, of);
        Self { columns, rows }
    }

    /// The columns marked in `kept`.
    pub(super) fn only(self, kept: &[bool]) -> Self {
        fn filter<T>(all: Vec<T>, kept: &[bool]) -> Vec<T> {
            all.into_iter().zip(kept).filter_map(|(one, kept)| kept.then_some(one)).collect()
        }
        Self { columns: filter(self.columns, kept), rows: self.rows.into_iter().map(|row| filter(row, kept)).collect() }
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.rows.len()))?;
        for object in self.objects() {
            rows.serialize_element(&object)?;
        }
        rows.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_a_sign_and_one_that_is_shown_as_zero_no_minus() {
        let shown = [-1.5, -0.006, -0.004, 0.0, 0.004, 2.0].map(|value| Cell::difference(value, 2).to_string());
        assert_eq!(shown, ["-1.50", "-0.01", "+0.00", "+0.00", "+0.00", "+2.00"]);
    }

    #[test]
    fn stacked_tables_share_columns_by_key_and_leave_empty_what_one_lacks() {
        let table = |columns: Vec<Column>, row: Vec<Cell>| Table { columns, rows: vec![row] };
        let ns = || Column::numbers("ns", "ns");
        let first =
            table(vec![ns(), Column::words("verdict", "verdict")], vec![Cell::number(1.0, 2), Cell::text("slower")]);
        let second = table(vec![Column::words("path", "path"), ns()], vec![Cell::text("cache"), Cell::number(2.0, 2)]);
        let stacked = Table::stacked(Column::words("case", "case"), &[("a".into(), first), ("b".into(), second)]);
        let keys: Vec<&str> = stacked.columns.iter().map(|column| column.key).collect();
        assert_eq!(keys, ["case", "ns", "verdict", "path"]);
        let rows: Vec<String> =
            stacked.rows.iter().map(|row| row.iter().map(Cell::to_string).collect::<Vec<_>>().join("|")).collect();
        assert_eq!(rows, ["a|1.00|slower|", "b|2.00||cache"]);
    }
}
