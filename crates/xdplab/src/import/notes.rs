//! Figures as people note them: `n=8756 cur-pps:3871776 avg=3743497 max=3914720 min=3621229`, `before: 13,746,471 pps`.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, OwnAverage, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct Notes;

impl Parser for Notes {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        running_average(line.words(), to) || rate(line.text, line.words(), to)
    }
}

/// A script's line after each sample; the last one of a run holds for all of it.
fn running_average(words: &[&str], to: &mut Blocks<'_>) -> bool {
    let [count, current, average, max, min] = words else { return false };
    let field = |word: &str, name: &str| Stated::integer(word.strip_prefix(name)?);
    let fields = || {
        Some((
            field(count, "n=")?,
            field(current, "cur-pps:")?,
            field(average, "avg=")?,
            field(max, "max=")?,
            field(min, "min=")?,
        ))
    };
    let Some((count, current, mean, max, min)) = fields() else { return false };
    let block = to.block(Format::Notes);
    block.value("", Metric::Packets, Unit::PacketsPerSecond, current);
    let own = OwnAverage { mean, sd: None, range: Some([min, max]), samples: Some(count.value as u64) };
    block.own("", Metric::Packets, Unit::PacketsPerSecond, own);
    true
}

/// `LABEL: 13,746,471 pps`, `- 11913154 (11,913,154) pps - LABEL` or `8.9 Mpps`: one rate, and nothing else after it.
fn rate(text: &str, words: &[&str], to: &mut Blocks<'_>) -> bool {
    if text.starts_with('*') {
        // A heading of org mode.
        return false;
    }
    let Some(at) = words.iter().position(|word| matches!(*word, "pps" | "kpps" | "Mpps" | "packets/s" | "packets/sec"))
    else {
        return false;
    };
    let factor = match words[at] {
        "Mpps" => 1e6,
        "kpps" => 1e3,
        _ => 1.0,
    };
    let (before, after) = (&words[..at], &words[at + 1..]);
    let again = before.last().filter(|word| word.starts_with('(') && word.ends_with(')'));
    let Some((number, name)) = before[..before.len() - usize::from(again.is_some())].split_last() else { return false };
    let same = |again: &str| Stated::integer(again.trim_matches(['(', ')'])).map(|n| n.value);
    let Some(value) = Stated::parse(number) else { return false };
    if again.is_some_and(|again| same(again) != Some(value.value)) {
        return false;
    }
    let label = match (name, after) {
        ([] | ["-"], []) => String::new(),
        ([] | ["-"], ["-" | "#", label @ ..]) if text.len() <= MAX_RATE_LINE => label.join(" "),
        ([label @ .., last], []) if last.ends_with(':') && text.len() <= MAX_RATE_LINE => {
            [label, &[last.trim_end_matches(':')]].concat().join(" ")
        }
        _ => return false,
    };
    let subject = label.trim_matches(['-', ' ']);
    to.block(Format::Notes).value(subject, Metric::Packets, Unit::PacketsPerSecond, value.scaled(factor));
    true
}

/// A longer line is prose.
const MAX_RATE_LINE: usize = 100;
