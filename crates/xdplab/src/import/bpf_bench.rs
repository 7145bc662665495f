//! `bench` of the kernel's BPF selftests (tools/testing/selftests/bpf/bench.c).

use super::Parser;
use super::block::Blocks;
use super::lines::{Line, between};
use super::model::{Format, Metric, OwnAverage, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct BpfBench {
    /// The summary was read: what follows is another run.
    ended: bool,
}

impl Parser for BpfBench {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        match *line.words() {
            ["Setting", "up", "benchmark", _] | ["Benchmark", _, "started."] => {
                to.introduction(line.text);
                self.ended = false;
                true
            }
            ["Iter", number, ..] => {
                let figures = line.text.split_once("):").map(|(_, figures)| figures);
                figures.is_some_and(|figures| self.iteration(number, figures, to))
            }
            ["Summary:", what, ..]
                if column(line.text).is_some() && !what.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                self.ended = true;
                summary(line.text, to)
            }
            _ => false,
        }
    }

    fn interrupted(&mut self, _: &mut Blocks<'_>) {
        self.ended = false;
    }
}

/// A figure of a comma-separated list: `hits   62.338M/s ( 62.338M/prod)` or `throughput   57.847 ± 8.899 M ops/s`.
struct Column<'a> {
    name: &'a str,
    mean: Stated,
    sd: Option<Stated>,
    /// What follows the number, without the producers' share.
    unit: &'a str,
}

fn column(text: &str) -> Option<Column<'_>> {
    let text = text.trim().trim_start_matches("Summary:").trim_start();
    let start = text.find(|digit: char| digit.is_ascii_digit())?;
    let (name, rest) = text.split_at(start);
    let (mean, rest) = leading_number(rest)?;
    let (sd, rest) = match rest.trim_start().strip_prefix('±') {
        Some(rest) => leading_number(rest.trim_start()).map(|(sd, rest)| (Some(sd), rest))?,
        None => (None, rest),
    };
    let unit = rest.split('(').next()?.trim();
    Some(Column { name: name.trim(), mean, sd, unit })
}

fn leading_number(text: &str) -> Option<(Stated, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((Stated::parse(number)?, rest))
}

/// What to multiply a rate with; `None` for what is no rate.
fn factor(unit: &str) -> Option<f64> {
    let unit = unit.strip_suffix("/s")?.trim_end_matches("ops").trim_end_matches("op").trim();
    match unit {
        "M" => Some(1e6),
        "K" | "k" => Some(1e3),
        "" => Some(1.0),
        _ => None,
    }
}

/// What to multiply a latency with to have nanoseconds.
fn nanos(unit: &str) -> Option<f64> {
    match unit.strip_suffix("/op")? {
        "ns" => Some(1.0),
        "us" => Some(1e3),
        "ms" => Some(1e6),
        _ => None,
    }
}

impl BpfBench {
    fn iteration(&mut self, number: &str, figures: &str, to: &mut Blocks<'_>) -> bool {
        let Some(number) = Stated::integer(number) else { return false };
        let columns =
            || figures.split(',').filter_map(column).filter_map(|column| Some((factor(column.unit)?, column)));
        if columns().next().is_none() {
            return false;
        }
        if std::mem::take(&mut self.ended) {
            to.close();
        }
        let block = to.block(Format::BpfBench);
        if number.value == 0.0 {
            block.note("iteration 0 left out: it is cold, and the tool's own summary leaves it out too");
            return true;
        }
        for (factor, column) in columns() {
            block.value(column.name, metric(column.name), Unit::OperationsPerSecond, column.mean.scaled(factor));
        }
        true
    }
}

fn metric(name: &str) -> Metric {
    if name == "drops" { Metric::Drop } else { Metric::Operation }
}

fn summary(text: &str, to: &mut Blocks<'_>) -> bool {
    let block = to.block(Format::BpfBench);
    let mut found = false;
    for column in text.split(',').filter_map(column) {
        // The summary calls throughput what the iterations call hits.
        let name = if column.name.ends_with("throughput") { "hits" } else { column.name };
        if let Some(factor) = factor(column.unit) {
            let own = OwnAverage {
                mean: column.mean.scaled(factor),
                sd: column.sd.map(|sd| sd.scaled(factor)),
                range: None,
                samples: None,
            };
            block.own(name, metric(name), Unit::OperationsPerSecond, own);
            found = true;
        } else if let Some(factor) = nanos(column.unit) {
            let own = OwnAverage { mean: column.mean.scaled(factor), sd: None, range: None, samples: None };
            block.own(column.name, Metric::Operation, Unit::NanosPerOperation, own);
            block.note("latency is the time of one producer");
            found = true;
        }
    }
    if between(text, "(", "/prod").or_else(|| between(text, "(", "ops/prod")).is_some_and(|share| differs(share, text))
    {
        block.note("several producers: ns/operation of the hits is of all together");
    }
    found
}

/// Whether a producer's share is another number than the total's.
fn differs(share: &str, text: &str) -> bool {
    let share = leading_number(share.trim()).map(|(share, _)| share.value);
    share.zip(column(text)).is_some_and(|(share, total)| (share - total.mean.value).abs() > total.mean.step)
}
