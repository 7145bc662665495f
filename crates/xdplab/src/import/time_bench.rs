//! `time_bench` lines of the kernel log (prototype-kernel's `time_bench.c`, the kernel's page_pool benchmark).

use super::Parser;
use super::block::Blocks;
use super::lines::{Line, between};
use super::model::{Format, Metric, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct TimeBench {
    /// A line that a mail program broke, with its number, until its rest comes.
    broken: Option<(u64, String)>,
}

/// Bytes of a broken line kept.
const MAX_BROKEN: usize = 500;

impl Parser for TimeBench {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        let text = without_stamp(line.text.trim_start());
        if let Some(start) = text.find("Type:").filter(|_| text.contains("Per elem:")) {
            self.interrupted(to);
            return result(&text[start..], to) || self.keep(to.at, text[start..].to_owned());
        }
        if text.starts_with(['-', '('])
            && let Some((number, start)) = self.broken.take()
        {
            let whole = format!("{start} {text}");
            return result(&whole, to) || self.keep(number, whole);
        }
        // What the module says between its results.
        text.starts_with("bench_") && text.contains(": ")
    }

    fn interrupted(&mut self, to: &mut Blocks<'_>) {
        if let Some((number, start)) = self.broken.take() {
            to.text_at(number, &start);
        }
    }
}

impl TimeBench {
    fn keep(&mut self, number: u64, start: String) -> bool {
        let fits = start.len() <= MAX_BROKEN;
        self.broken = fits.then_some((number, start));
        fits
    }
}

/// The line without the time that the kernel log puts before it.
fn without_stamp(text: &str) -> &str {
    match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((stamp, rest)) if stamp.trim().parse::<f64>().is_ok() => rest.trim_start(),
        _ => text,
    }
}

/// `Type:NAME Per elem: 19 cycles(tsc) 5.399 ns (step:0) - (… time_interval:539904228) - (invoke count:… tsc_interval:…)`.
fn result(text: &str, to: &mut Blocks<'_>) -> bool {
    let field = |name: &str| {
        let (_, rest) = text.split_once(name)?;
        Stated::integer(rest.split(|end: char| !end.is_ascii_digit()).next()?)
    };
    let Some(name) = between(text, "Type:", " Per elem:") else { return false };
    let Some((nanos, count)) = field("time_interval:").zip(field("invoke count:").filter(|count| count.value > 0.0))
    else {
        return false;
    };
    let per = |interval: Stated| Stated { value: interval.value / count.value, step: interval.step / count.value };
    let step = field("(step:").filter(|step| step.value > 0.0);
    let subject = step.map_or_else(|| name.to_owned(), |step| format!("{name} step:{step}"));
    let block = to.block(Format::TimeBench);
    let ns = per(nanos);
    block.value(&subject, Metric::Operation, Unit::NanosPerOperation, ns);
    if let Some(cycles) = field("tsc_interval:") {
        // The cycles printed are cut to a whole number: 0 for 0.98.
        block.value(&subject, Metric::Operation, Unit::CyclesPerOperation, per(cycles));
    }
    let printed = between(text, "cycles(tsc)", "ns").and_then(|ns| Stated::parse(ns.trim()));
    if let Some(printed) = printed.filter(|printed| (printed.value - ns.value).abs() > printed.step) {
        block.note(format!("ambiguous: {name}: {printed} ns printed, {:.3} ns from its interval and count", ns.value));
    }
    if name.starts_with("no-softirq") {
        block.note("no-softirq tests take the slow path by design: quote the tasklet ones");
    }
    true
}
