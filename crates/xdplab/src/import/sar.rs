//! `sar -n DEV` of sysstat: packets of each interface per second.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, OwnAverage, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct Sar {
    /// The header's columns after the interface; empty until one is read.
    columns: Vec<Option<Metric>>,
    /// The header is of another report, e.g. of errors or CPUs.
    other: bool,
}

impl Parser for Sar {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        let words = line.words();
        if words.first() == Some(&"Linux") && line.text.contains("CPU)") {
            to.introduction(line.text);
            return true;
        }
        let Some((average, row)) = after_time(words) else { return false };
        if row.iter().any(|word| matches!(*word, "IFACE" | "CPU" | "%user" | "DEV")) {
            self.header(row);
            return true;
        }
        !self.other && self.row(average, row, to)
    }

    fn interrupted(&mut self, _: &mut Blocks<'_>) {
        *self = Self::default();
    }
}

/// The words after `Average:` or the time of day, and whether they are averages.
fn after_time<'w, 'a>(words: &'w [&'a str]) -> Option<(bool, &'w [&'a str])> {
    match words {
        ["Average:", rest @ ..] => Some((true, rest)),
        [time, rest @ ..] if is_time(time) => match rest {
            ["AM" | "PM", rest @ ..] => Some((false, rest)),
            _ => Some((false, rest)),
        },
        _ => None,
    }
}

fn is_time(word: &str) -> bool {
    let mut parts = word.split(':');
    let two = |part: Option<&str>| part.is_some_and(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()));
    two(parts.next()) && two(parts.next()) && two(parts.next()) && parts.next().is_none()
}

impl Sar {
    fn header(&mut self, row: &[&str]) {
        let column = |word: &&str| match *word {
            "rxpck/s" => Some(Metric::Rx),
            "txpck/s" => Some(Metric::Xmit),
            _ => None,
        };
        self.columns = row.iter().skip(1).map(column).collect();
        self.other = row.first() != Some(&"IFACE") || self.columns.iter().all(Option::is_none);
    }

    fn row(&mut self, average: bool, row: &[&str], to: &mut Blocks<'_>) -> bool {
        let [interface, values @ ..] = row else { return false };
        let values: Option<Vec<Stated>> = values.iter().map(|value| Stated::with_decimals(value)).collect();
        let Some(values) = values else { return false };
        // Without a header only the report of interfaces has 7 or 8 columns (the eighth, %ifutil, since sysstat 10.1).
        let assumed = self.columns.is_empty();
        if assumed && !(7..=8).contains(&values.len()) {
            return false;
        }
        let block = to.block(Format::Sar);
        if assumed {
            block.note("ambiguous: no header: the first two columns are taken for rxpck/s and txpck/s");
        }
        let columns = if assumed { &[Some(Metric::Rx), Some(Metric::Xmit)] } else { self.columns.as_slice() };
        for (metric, value) in columns.iter().zip(values) {
            let Some(metric) = *metric else { continue };
            if average {
                let own = OwnAverage { mean: value, sd: None, range: None, samples: None };
                block.own(interface, metric, Unit::PacketsPerSecond, own);
            } else {
                block.value(interface, metric, Unit::PacketsPerSecond, value);
            }
        }
        true
    }
}
