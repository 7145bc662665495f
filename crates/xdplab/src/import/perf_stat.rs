//! `perf stat`: event counts, in the numbers of the user's locale.

use super::Parser;
use super::block::{Block, Blocks};
use super::lines::{Line, between};
use super::model::{Format, Metric, OwnAverage, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct PerfStat {
    /// A header was read: lines without a spread or a share are counts too.
    inside: bool,
}

impl Parser for PerfStat {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        let text = line.text;
        if text.trim_start().starts_with("Performance counter stats for") {
            to.introduction(text);
            self.inside = true;
            return true;
        }
        match *line.words() {
            ["<not", reason @ ("counted>" | "supported>"), event, ..] => {
                let reason = reason.trim_end_matches('>');
                to.block(Format::PerfStat).note(format!("{event}: not {reason} by perf"));
                true
            }
            [seconds, ref rest @ ..]
                if rest.ends_with(&["seconds", "time", "elapsed"]) || text.contains(" seconds time elapsed") =>
            {
                let Some(seconds) = Stated::with_decimals(seconds) else { return false };
                to.block(Format::PerfStat).duration(seconds);
                true
            }
            [seconds, "seconds", "user" | "sys"] => self.inside && Stated::with_decimals(seconds).is_some(),
            // A second line of remarks on the event above.
            ["#", ..] => self.inside,
            [count, "msec", event, ..] => self.count(Stated::with_decimals(count), event, Unit::Milliseconds, text, to),
            // Events are counted in whole numbers, so that any separator in one sets thousands apart.
            [count, event, ..] => self.count(Stated::integer(count), event, Unit::Events, text, to),
            _ => false,
        }
    }

    fn interrupted(&mut self, _: &mut Blocks<'_>) {
        self.inside = false;
    }
}

impl PerfStat {
    fn count(&self, count: Option<Stated>, event: &str, unit: Unit, text: &str, to: &mut Blocks<'_>) -> bool {
        let Some(mean) = count else { return false };
        let spread = between(text, "( +-", "%").and_then(|percent| Stated::with_decimals(percent.trim()));
        let share = text.strip_suffix("%)").and_then(|text| text.rsplit_once('(')).map(|(_, share)| share);
        let share = share.and_then(Stated::with_decimals);
        let is_name = event.starts_with(|first: char| first.is_ascii_alphabetic());
        if !is_name || !(self.inside || spread.is_some() || share.is_some()) {
            return false;
        }
        let block = to.block(Format::PerfStat);
        let sd = spread.map(|percent| Stated {
            value: mean.value * percent.value / 100.0,
            step: mean.value * percent.step / 100.0,
        });
        let metric = if event == "task-clock" { Metric::Cpu } else { Metric::Counter };
        block.own(event, metric, unit, OwnAverage { mean, sd, range: None, samples: None });
        note_share(share, block);
        true
    }
}

fn note_share(share: Option<Stated>, block: &mut Block) {
    if share.is_some_and(|share| share.value < 100.0) {
        block.note(
            "counters took turns (the last per cent of a line is its share of the time): counts are scaled estimates",
        );
    }
}
