//! Drawings as SVG for the page that [`super::html`] makes; colours come from its style sheet.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::view::{Differences, Distribution, FunctionShare, Functions, Histogram, Line, Spread, TimeLine};
use crate::stats::percentile;

/// Units of all drawings' width; the page shows about one unit a pixel.
const WIDTH: f64 = 900.0;
/// Where plots begin: names stand before it.
const LEFT: f64 = 200.0;
/// Characters of a name that fit before the plot.
const NAME: usize = 26;

/// From values to places.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Values from `low` to `high` on places from `from` to `to`; where there is no such range, about its middle.
    fn new(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) = if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 0.0) };
        let (low, high) = if high > low { (low, high) } else { (low - 0.5, low + 0.5) };
        Self { low, high, from, to }
    }

    /// The range of values with some room at both ends.
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let room = (high - low) * 0.05;
        Self::new(low - room, high + room, from, to)
    }

    /// The place of a value; what is beyond the range is at its end.
    fn at(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// Round values all over the range, about as many as asked for, with their places.
    fn ticks(&self, about: f64) -> Vec<(String, f64)> {
        let rough = (self.high - self.low) / about;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0].map(|step| step * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let first = (self.low / step).ceil();
        let values = (0..=40).map(|index| (first + f64::from(index)) * step);
        // Adding 0 makes -0 a plain 0.
        let label = |value: f64| (format!("{:.decimals$}", value + 0.0), self.at(value));
        values.take_while(|value| *value <= self.high).map(label).collect()
    }
}

/// A name as far as it fits; its end tells more than its beginning.
fn short(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(length + 1 - NAME).collect::<String>())
    }
}

/// A name before the plot, whole for those who point at it.
fn name(text: &str, y: f64) -> Markup {
    html! { text .name x=(LEFT - 12.0) y=(number(y)) { title { (text) } (short(text)) } }
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

/// Values along the bottom of a plot.
fn bottom(scale: &Scale, top: f64, y: f64, unit: &str) -> Markup {
    html! {
        @for (label, x) in scale.ticks(8.0) {
            line .grid x1=(number(x)) x2=(number(x)) y1=(number(top)) y2=(number(y)) {}
            text .tick x=(number(x)) y=(number(y + 16.0)) { (label) }
        }
        text .unit x=(number(scale.to)) y=(number(y + 32.0)) { (unit) }
    }
}

fn drawing(height: f64, label: &str, content: Markup) -> Markup {
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(label) { (content) }
    }
}

/// Intervals against zero and against what counts as a difference.
pub(super) fn differences(plot: &Differences) -> Markup {
    const ROW: f64 = 30.0;
    const TOP: f64 = 22.0;
    let bottom_y = TOP + ROW * plot.rows.len() as f64;
    let (band_ns, band) = match plot.margin_ns {
        Some(margin_ns) => (margin_ns, format!("margin ±{margin_ns} ns")),
        None => (plot.floor_ns, format!("floor ±{} ns", plot.floor_ns)),
    };
    let ends = plot.rows.iter().flat_map(|row| [row.low_ns, row.high_ns]);
    let scale = Scale::of(ends.chain([0.0, band_ns, -band_ns]), LEFT, WIDTH - 230.0);
    let row = |index: usize, row: &Spread| {
        let y = TOP + ROW * (index as f64 + 0.5);
        let [low, middle, high] = [row.low_ns, row.estimate_ns, row.high_ns].map(|ns| number(scale.at(ns)));
        let said = format!("{:+.2} [{:+.2}, {:+.2}]", row.estimate_ns, row.low_ns, row.high_ns);
        html! {
            g class=(row.tone.name()) {
                (name(&row.name, y + 4.0))
                line .interval x1=(low) x2=(high) y1=(number(y)) y2=(number(y)) {}
                @for end in [&low, &high] {
                    line .interval x1=(end) x2=(end) y1=(number(y - 5.0)) y2=(number(y + 5.0)) {}
                }
                circle .dot cx=(middle) cy=(number(y)) r="4.5" {}
                text .figure x=(WIDTH - 220.0) y=(number(y + 4.0)) { (said) tspan .verdict { " " (row.verdict) } }
            }
        }
    };
    let [from, zero, to] = [-band_ns, 0.0, band_ns].map(|ns| scale.at(ns));
    drawing(
        bottom_y + 40.0,
        "differences with their intervals",
        html! {
            rect .band x=(number(from)) width=(number(to - from)) y=(TOP - 4.0) height=(number(bottom_y - TOP + 4.0)) {}
            text .tick x=(number(zero)) y="12" { (band) }
            (bottom(&scale, TOP - 4.0, bottom_y, "Δ ns per packet: left of 0 faster, right of it slower"))
            line .zero x1=(number(zero)) x2=(number(zero)) y1=(TOP - 4.0) y2=(number(bottom_y)) {}
            @for (index, spread) in plot.rows.iter().enumerate() { (row(index, spread)) }
        },
    )
}

/// A hill for each variant, all on one scale.
pub(super) fn distribution(plot: &Distribution) -> Markup {
    const ROW: f64 = 48.0;
    let bottom_y = ROW * plot.rows.len() as f64 + 8.0;
    let scale = Scale::new(plot.range_ns.low, plot.range_ns.high, LEFT, WIDTH - 130.0);
    drawing(
        bottom_y + 40.0,
        "distribution of slices by their cost",
        html! {
            (bottom(&scale, 4.0, bottom_y, "ns per packet of a slice"))
            @for (index, row) in plot.rows.iter().enumerate() {
                (hill(index, row, &scale, ROW * (index as f64 + 1.0), ROW - 8.0))
            }
        },
    )
}

fn hill(index: usize, row: &Histogram, scale: &Scale, base: f64, height: f64) -> Markup {
    let highest = row.counts.iter().max().copied().unwrap_or(0).max(1) as f64;
    let width = (scale.to - scale.from) / row.counts.len().max(1) as f64;
    let mut outline = format!("M{:.1} {base:.1}", scale.from);
    for (bin, count) in row.counts.iter().enumerate() {
        let (x, y) = (scale.from + bin as f64 * width, base - *count as f64 / highest * height);
        // Nothing is to be seen of a String that can't be written to.
        write!(outline, "V{y:.1}H{:.1}", x + width).unwrap_or_default();
    }
    write!(outline, "V{base:.1}Z").unwrap_or_default();
    let [low, middle, high] = row.quartiles_ns.map(|ns| number(scale.at(ns)));
    let slices = row.counts.iter().sum::<u64>().saturating_add(row.below).saturating_add(row.above);
    let beyond = 100.0 * row.above as f64 / slices.max(1) as f64;
    html! {
        g class=(series(index)) {
            (name(&row.name, base - height / 2.0 + 4.0))
            path .hill d=(outline) {}
            line .range x1=(low) x2=(high) y1=(number(base + 3.0)) y2=(number(base + 3.0)) {}
            line .median x1=(middle) x2=(middle) y1=(number(base - height)) y2=(number(base + 5.0)) {}
            text .figure x=(WIDTH - 122.0) y=(number(base - height / 2.0)) {
                (format!("median {:.2}", row.quartiles_ns[1]))
            }
            text .figure.faint x=(WIDTH - 122.0) y=(number(base - height / 2.0 + 15.0)) { (format!("{beyond:.1} % beyond")) }
        }
    }
}

/// The class that gives the colour of a series.
pub(super) fn series(index: usize) -> String {
    format!("s{}", index % 8)
}

/// Lines over time, and below them the parts that time was taken from.
pub(super) fn time_line(plot: &TimeLine) -> Markup {
    const TOP: f64 = 8.0;
    const BOTTOM: f64 = 220.0;
    const STRIP: f64 = 26.0;
    /// The share of tainted slices from which on the lines above are shaded too.
    const SHADED: f64 = 0.1;
    const LEFT: f64 = 60.0;
    let points = || plot.lines.iter().flat_map(|line| &line.points);
    let mut costs: Vec<f64> = points().map(|[_, ns]| *ns).collect();
    costs.sort_unstable_by(f64::total_cmp);
    // Single points far out would squeeze the lines; they are drawn at the edge.
    let ends = [0.02, 0.98].map(|p| percentile(&costs, p).unwrap_or(0.0));
    let room = (ends[1] - ends[0]) * 0.1;
    let y = Scale::new(ends[0] - room, ends[1] + room, BOTTOM, TOP);
    let times = points().map(|[time, _]| *time).chain(plot.tainted.iter().map(|strip| strip.to));
    let last = times.fold(0.0, f64::max);
    let x = Scale::new(0.0, last, LEFT, WIDTH - 10.0);
    let has_strip = plot.unit == "s" && !plot.rounds.is_empty() || !plot.tainted.is_empty();
    let axis = if has_strip { BOTTOM + STRIP + 8.0 } else { BOTTOM };
    // Marks of many rounds would hide the lines.
    let rounds_top = if plot.rounds.len() > 16 { BOTTOM - 8.0 } else { TOP };
    let strip_base = number(BOTTOM + STRIP + 4.0);
    drawing(
        axis + 40.0,
        "costs over time",
        html! {
            @for (label, at) in y.ticks(5.0) {
                line .grid x1=(LEFT) x2=(WIDTH - 10.0) y1=(number(at)) y2=(number(at)) {}
                text .tick.left x=(LEFT - 8.0) y=(number(at + 4.0)) { (label) }
            }
            @for round in &plot.rounds {
                line .round x1=(number(x.at(*round))) x2=(number(x.at(*round))) y1=(number(rounds_top)) y2=(number(BOTTOM)) {}
            }
            (bottom(&x, BOTTOM, axis, if plot.unit == "s" { "seconds" } else { plot.unit }))
            @if has_strip {
                line .grid x1=(LEFT) x2=(WIDTH - 10.0) y1=(strip_base) y2=(strip_base) {}
                text .tick.left x=(LEFT - 8.0) y=(strip_base) { "tainted" }
            }
            @for strip in plot.tainted.iter().filter(|strip| strip.share >= SHADED) {
                rect .shade x=(number(x.at(strip.from))) width=(number(x.at(strip.to) - x.at(strip.from))) y=(TOP)
                    height=(number(BOTTOM - TOP)) fill-opacity=(format!("{:.2}", 0.5 * strip.share)) {}
            }
            @for strip in &plot.tainted {
                rect .tainted x=(number(x.at(strip.from))) width=(number(x.at(strip.to) - x.at(strip.from)))
                    y=(number(BOTTOM + 4.0 + STRIP * (1.0 - strip.share))) height=(number(STRIP * strip.share)) {
                    title { (format!("{:.1} % of slices", 100.0 * strip.share)) }
                }
            }
            @for line in &plot.lines {
                path class=(format!("line {}", series(line.color))) d=(path(line, &x, &y)) { title { (line.name) } }
            }
        },
    )
}

fn path(line: &Line, x: &Scale, y: &Scale) -> String {
    let mut path = String::new();
    for (index, [time, ns]) in line.points.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        write!(path, "{command}{:.1} {:.1}", x.at(*time), y.at(*ns)).unwrap_or_default();
    }
    path
}

/// A bar for each kernel, cut into functions.
pub(super) fn functions(plot: &Functions) -> Markup {
    const HEIGHT: f64 = 40.0;
    const ROW: f64 = 54.0;
    const TOP: f64 = 6.0;
    let scale = Scale::new(0.0, plot.totals[0].max(plot.totals[1]), LEFT, WIDTH - 90.0);
    let bottom_y = TOP + 2.0 * ROW;
    let bar = |side: usize| {
        let y = TOP + ROW * side as f64;
        let mut from = 0.0;
        let places = plot.shares.iter().map(|share| {
            let begin = from;
            from += share.instructions[side].max(0.0);
            (share, scale.at(begin), scale.at(from))
        });
        let places: Vec<_> = places.filter(|(_, begin, end)| end - begin >= 0.05).collect();
        html! {
            text .name x=(LEFT - 12.0) y=(number(y + HEIGHT / 2.0 - 3.0)) { (["baseline", "candidate"][side]) }
            text .name.faint x=(LEFT - 12.0) y=(number(y + HEIGHT / 2.0 + 13.0)) {
                title { (plot.sides[side]) } (short(&plot.sides[side]))
            }
            @for (share, begin, end) in &places { (function(share, *begin, *end, y, HEIGHT)) }
            text .figure x=(number(scale.at(plot.totals[side]) + 10.0)) y=(number(y + HEIGHT / 2.0 + 4.0)) {
                (format!("{:.2}", plot.totals[side]))
            }
        }
    };
    drawing(
        bottom_y + 40.0,
        "instructions of a packet by function",
        html! { (bottom(&scale, TOP, bottom_y, "guest instructions per packet (TCG)")) (bar(0)) (bar(1)) },
    )
}

fn function(share: &FunctionShare, begin: f64, end: f64, y: f64, height: f64) -> Markup {
    /// The least change that is given a colour, in instructions per packet.
    const CHANGE: f64 = 0.5;
    /// About the width of a character.
    const CHARACTER: f64 = 6.6;
    let [before, after] = share.instructions;
    let class = match (after - before, share.part) {
        (delta, "kernel" | "BPF program") if delta >= CHANGE => "bad",
        (delta, "kernel" | "BPF program") if delta <= -CHANGE => "good",
        (_, "BPF program") => "bpf",
        (_, part) => part,
    };
    let said = format!("{}: {before:.2} -> {after:.2} ({:+.2}), {}", share.name, after - before, share.part);
    let room = ((end - begin - 8.0) / CHARACTER).max(0.0) as usize;
    let name = match share.name.chars().count() {
        length if length <= room => share.name.clone(),
        _ if room >= 4 => share.name.chars().take(room - 1).chain(['…']).collect(),
        _ => String::new(),
    };
    html! {
        g class=(format!("function {class}")) {
            title { (said) }
            rect x=(number(begin)) width=(number(end - begin)) y=(number(y)) height=(number(height)) {}
            @if !name.is_empty() { text x=(number(begin + 4.0)) y=(number(y + height / 2.0 + 4.0)) { (name) } }
        }
    }
}

/// Shares of a whole, from left to right, and what is missing of it.
pub(super) fn bar(parts: &[f64], missing: f64) -> Markup {
    let missing = missing.max(0.0);
    let whole = parts.iter().sum::<f64>() + missing;
    let mut at = 0.0;
    let mut share = |part: f64| {
        let (from, width) = (at, if whole > 0.0 { 100.0 * part / whole } else { 0.0 });
        at += width;
        (format!("{from:.2}"), format!("{width:.2}"))
    };
    html! {
        svg .bar viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
            rect .whole width="100" height="10" {}
            @for (index, part) in parts.iter().enumerate() {
                @let (from, width) = share(*part);
                rect class=(format!("part{}", index.min(2))) x=(from) width=(width) height="10" {}
            }
            @let (from, width) = share(missing);
            rect .missing x=(from) width=(width) height="10" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_range() {
        let labels = |low, high| -> Vec<String> {
            Scale::new(low, high, 0.0, 100.0).ticks(5.0).into_iter().map(|(label, _)| label).collect()
        };
        assert_eq!(labels(66.2, 70.9), ["67", "68", "69", "70"]);
        assert_eq!(labels(-0.25, 0.31), ["-0.2", "0.0", "0.2"]);
        assert_eq!(labels(0.0, 1e9).last().unwrap(), "1000000000");
        assert!(labels(5.0, 5.0).contains(&"5.0".to_owned()));
        assert!(labels(f64::NAN, 1.0).contains(&"0.0".to_owned()));
    }

    #[test]
    fn a_value_beyond_the_range_is_drawn_at_its_end() {
        let scale = Scale::new(0.0, 10.0, 100.0, 200.0);
        assert_eq!([-5.0, 0.0, 5.0, 99.0].map(|value| scale.at(value)), [100.0, 100.0, 150.0, 200.0]);
    }

    #[test]
    fn a_long_name_keeps_its_end() {
        let long = format!("{}/prog.o:name", "a".repeat(60));
        assert_eq!(short(&long).chars().count(), NAME);
        assert!(short(&long).ends_with("/prog.o:name"));
    }
}
