//! What can be drawn of a record, as numbers.

use serde::Serialize;

use super::super::table::{Cell, Tone};
use super::plain;
use crate::live::Account;
use crate::observe::{Pages, PoolPaths};
use crate::observed::{Observed, Onwards};
use crate::reading::Reading;
use crate::settings::Visit;
use crate::stats::{self, Interval, Slice, median, percentile};

/// Bins of a distribution.
const BINS: usize = 96;
/// Points of a line over time.
const POINTS: usize = 120;

/// Something to draw.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "chart", rename_all = "snake_case")]
pub enum Chart {
    /// Differences with their intervals.
    Differences(Differences),
    /// How slices are distributed.
    Distribution(Distribution),
    /// Costs over time.
    TimeLine(TimeLine),
    /// Where things went.
    Accounts(Accounts),
    /// Instructions by function.
    Functions(Functions),
}

/// Differences from the baseline, in ns per packet, against what counts as one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Differences {
    /// Effects up to this are not called slower or faster.
    pub floor_ns: f64,
    /// Effects shown to be smaller than this are called equivalent.
    pub margin_ns: Option<f64>,
    /// The control, where there is one, and the candidates.
    pub rows: Vec<Spread>,
}

/// A difference with its interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// What differs.
    pub name: String,
    /// By how much, in ns per packet.
    pub estimate_ns: f64,
    /// The interval's lower end.
    pub low_ns: f64,
    /// The interval's upper end.
    pub high_ns: f64,
    /// The verdict in a word.
    pub verdict: String,
    /// What that means for the reader.
    pub tone: Tone,
}

/// Slices of each variant by their cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Where the first bin begins and the last one ends, in ns per packet.
    pub range_ns: Range,
    /// A row for each variant.
    pub rows: Vec<Histogram>,
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Slices of one variant by their cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// The variant.
    pub name: String,
    /// Slices in each bin; all bins are equally wide.
    pub counts: Vec<u64>,
    /// Slices below the first bin.
    pub below: u64,
    /// Slices above the last bin.
    pub above: u64,
    /// The quartiles of all of them, in ns per packet; the second is the median.
    pub quartiles_ns: [f64; 3],
}

/// Costs over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeLine {
    /// What the time is counted in: `s` or `block`.
    pub unit: &'static str,
    /// A line for each variant.
    pub lines: Vec<Line>,
    /// Where everything was loaded anew.
    pub rounds: Vec<f64>,
    /// Parts of the time with the share of slices that time was taken from; empty where slices were not looked at.
    pub tainted: Vec<Strip>,
}

/// A line over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What it is of.
    pub name: String,
    /// The number of its colour: 0 and 1 are the baseline's and its control's.
    pub color: usize,
    /// Time, and the median cost around it in ns per packet.
    pub points: Vec<[f64; 2]>,
}

/// A part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Strip {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// The share of its slices, 0 to 1, that took more than twice their variant's median.
    pub share: f64,
}

/// Where packets or pages went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accounts {
    /// What is accounted for.
    pub title: &'static str,
    /// Each stage.
    pub accounts: Vec<Reading<Account>>,
}

/// Guest instructions of a packet by function, with two kernels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Functions {
    /// The releases of baseline and candidate.
    pub sides: [String; 2],
    /// Instructions per packet in all.
    pub totals: [f64; 2],
    /// Every function, part by part, the largest first. Small ones are one at the end of their part.
    pub shares: Vec<FunctionShare>,
}

/// A function's share of a packet's guest instructions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionShare {
    /// Its name.
    pub name: String,
    /// Whose it is: `kernel`, `BPF program` or `harness`.
    pub part: &'static str,
    /// Instructions per packet with baseline and candidate.
    pub instructions: [f64; 2],
}

impl Spread {
    pub(super) fn of(name: &str, delta: Interval, tone: Tone, verdict: &Cell) -> Self {
        Self {
            name: plain(name),
            estimate_ns: delta.estimate,
            low_ns: delta.low,
            high_ns: delta.high,
            verdict: verdict.short(),
            tone,
        }
    }
}

pub(super) fn differences(rows: Vec<Spread>, floor_ns: f64, margin_ns: Option<f64>) -> Option<Chart> {
    (!rows.is_empty()).then_some(Chart::Differences(Differences { floor_ns, margin_ns, rows }))
}

/// The slices of each named variant, by index. The range leaves out single slices that would squeeze the rest together.
pub(super) fn distribution(names: &[String], slices: &[Slice]) -> Option<Chart> {
    let costs = |variant: usize| {
        let of_variant = slices.iter().filter(|slice| usize::from(slice.variant) == variant);
        let mut costs: Vec<f64> = of_variant.filter_map(Slice::ns_per_packet).collect();
        costs.sort_unstable_by(f64::total_cmp);
        costs
    };
    let all: Vec<(&String, Vec<f64>)> = names.iter().enumerate().map(|(index, name)| (name, costs(index))).collect();
    let range = all.iter().filter_map(|(_, costs)| Range::of(costs)).reduce(Range::and)?.widened();
    let rows = all.into_iter().filter(|(_, costs)| !costs.is_empty());
    let rows = rows.map(|(name, costs)| Histogram::of(name, &costs, range)).collect();
    Some(Chart::Distribution(Distribution { range_ns: range, rows }))
}

/// Of ascending costs.
fn quartiles(costs: &[f64]) -> Option<[f64; 3]> {
    Some([percentile(costs, 0.25)?, percentile(costs, 0.5)?, percentile(costs, 0.75)?])
}

impl Range {
    /// Of ascending costs, from the 1st to the 99th percentile as far as these are not far out (Tukey 1977: three times the
    /// middle half's width beyond it).
    fn of(costs: &[f64]) -> Option<Self> {
        let [first, _, third] = quartiles(costs)?;
        let (low, high) = (percentile(costs, 0.01)?, percentile(costs, 0.99)?);
        let fence = 3.0 * (third - first);
        Some(Self { low: low.max(first - fence), high: high.min(third + fence) })
    }

    fn and(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// A little room at both ends, and some width in any case.
    fn widened(self) -> Self {
        let room = (self.high - self.low).max(self.high.abs() * 0.01) * 0.04;
        Self { low: (self.low - room).max(0.0), high: self.high + room }
    }
}

impl Histogram {
    /// Of ascending costs.
    fn of(name: &str, costs: &[f64], range: Range) -> Self {
        let mut counts = vec![0; BINS];
        let (mut below, mut above) = (0, 0);
        for cost in costs {
            let place = (cost - range.low) / (range.high - range.low) * BINS as f64;
            if place < 0.0 {
                below += 1;
            } else {
                // A place that is no number or beyond all numbers is above, too.
                *counts.get_mut(place as usize).unwrap_or(&mut above) += 1;
            }
        }
        let quartiles_ns = quartiles(costs).unwrap_or_default();
        Self { name: name.to_owned(), counts, below, above, quartiles_ns }
    }
}

/// The median of each named variant's slices in equal parts of the time, without slices that time was taken from, and the
/// share of those.
pub(super) fn time_line(names: &[String], rounds: &[&[Slice]]) -> Option<Chart> {
    let start_ns = rounds.iter().copied().flatten().map(|slice| slice.start_ns).min()?;
    let last_ns = rounds.iter().copied().flatten().map(|slice| slice.start_ns).max()?;
    let seconds = |ns: u64| ns.saturating_sub(start_ns) as f64 / 1e9;
    let width = (seconds(last_ns) / POINTS as f64).max(1e-9);
    let part = |slice: &Slice| ((seconds(slice.start_ns) / width) as usize).min(POINTS - 1);
    let mut costs = vec![vec![Vec::new(); POINTS]; names.len()];
    let mut counts = [[0u32; 2]; POINTS];
    for round in rounds {
        for (slice, tainted) in round.iter().zip(stats::tainted(round)) {
            let Some(ns) = slice.ns_per_packet() else { continue };
            let Some(of_variant) = costs.get_mut(usize::from(slice.variant)) else { continue };
            counts[part(slice)][usize::from(tainted)] += 1;
            if !tainted {
                of_variant[part(slice)].push(ns);
            }
        }
    }
    let at = |index: usize| (index as f64 + 0.5) * width;
    let points = |parts: Vec<Vec<f64>>| {
        parts.into_iter().enumerate().filter_map(|(index, mut costs)| Some([at(index), median(&mut costs)?])).collect()
    };
    let lines = names.iter().zip(costs).enumerate();
    let lines = lines.map(|(color, (name, parts))| Line { name: name.clone(), color, points: points(parts) });
    let strip = |(index, [clean, tainted]): (usize, [u32; 2])| Strip {
        from: index as f64 * width,
        to: (index + 1) as f64 * width,
        share: f64::from(tainted) / f64::from((clean + tainted).max(1)),
    };
    let begins = rounds.iter().skip(1).filter_map(|round| round.iter().map(|slice| slice.start_ns).min());
    Some(Chart::TimeLine(TimeLine {
        unit: "s",
        lines: lines.filter(|line: &Line| !line.points.is_empty()).collect(),
        rounds: begins.map(seconds).collect(),
        tainted: counts.into_iter().enumerate().map(strip).filter(|strip| strip.share > 0.0).collect(),
    }))
}

/// The visits of each setting, block by block.
pub(super) fn visits(commands: &[String], visits: &[Visit]) -> Option<Chart> {
    let line = |(state, name): (usize, String)| {
        let of_state = visits.iter().filter(|visit| usize::from(visit.state) == state);
        let points = of_state.map(|visit| [f64::from(visit.block), visit.ns]).collect();
        Line { name, color: state, points }
    };
    let (baseline, candidates) = commands.split_first()?;
    let control = format!("{baseline} (control)");
    let names = [baseline, &control].into_iter().chain(candidates).map(|name| plain(name));
    let lines = names.enumerate().map(line).filter(|line| !line.points.is_empty()).collect();
    (!visits.is_empty()).then_some(Chart::TimeLine(TimeLine {
        unit: "block",
        lines,
        rounds: Vec::new(),
        tainted: Vec::new(),
    }))
}

/// Where packets went, from the generator to the verdict.
pub(super) fn ledger(observed: &Observed) -> Option<Chart> {
    let ledger = &observed.ledger;
    let received = ledger.received;
    let mut accounts = vec![match (&ledger.generated, &ledger.xmit) {
        (Reading::Known(generated), Reading::Known(xmit)) => Reading::Known(Account::new(
            "generated",
            *generated,
            [("transmitted", xmit.sent), ("dropped at transmit", xmit.drops)],
        )),
        (generated, _) => {
            generated.clone().map(|generated| Account::new("generated", generated, [("received", received)]))
        }
    }];
    if let (Reading::Known(_), Reading::Known(xmit)) = (&ledger.generated, &ledger.xmit) {
        accounts.push(Reading::Known(Account::new("transmitted", xmit.sent, [("received", received)])));
    }
    let counted = |of: &str, count: &Reading<u64>| {
        count.clone().map(|count| Account::new("received by the dispatcher", received, [(of, count)]))
    };
    accounts.push(counted("counted by the interface", &ledger.interface_received));
    accounts.push(match &ledger.aborted {
        Reading::Known(aborted) => ledger.handled.clone().map(|handled| {
            let parts = [("handled by the programs", handled.saturating_sub(*aborted)), ("aborted", *aborted)];
            Account::new("received by the dispatcher", received, parts)
        }),
        Reading::NotAvailable { .. } => counted("handled by the programs", &ledger.handled),
    });
    accounts.extend(ledger.onwards.as_ref().and_then(at_sockets));
    (received > 0).then_some(Chart::Accounts(Accounts { title: "Packets", accounts }))
}

/// What became of the packets that were given to AF_XDP sockets.
fn at_sockets(onwards: &Onwards) -> Option<Reading<Account>> {
    let sockets = onwards.sockets.as_ref()?;
    Some(sockets.as_ref().and_then(|sockets| {
        let parts = [
            ("received by their thread", sockets.received()),
            ("Rx ring full", sockets.ring_full()),
            ("dropped by sockets", sockets.dropped()),
        ];
        onwards.handed_on.as_ref().map(|given| Account::new("given to AF_XDP sockets", given.to_sockets, parts))
    }))
}

/// Whether packets used recycled pages, which way these went, and whether all pages came back.
pub(super) fn page_pools(observed: &Observed) -> Option<Chart> {
    let mut accounts = Vec::new();
    if let Some([recycled, fresh]) = observed.recycled() {
        let parts = [("on a recycled page", recycled), ("on a page from the page allocator", fresh)];
        accounts.push(Reading::Known(Account::new("packets sent", recycled + fresh, parts)));
    }
    accounts.extend(observed.pool_paths.iter().flat_map(pool_paths));
    if let Reading::Known(pools) = &observed.page_pools {
        let pages = |of: &str, pages: &Pages| {
            Reading::Known(Account::new(of, pages.held, [("released after teardown", pages.released)]))
        };
        accounts.push(pages("pages held by the device's pools", &pools.device));
        accounts.push(pages("pages held by the generator's pools", &pools.generator));
    }
    (!accounts.is_empty()).then_some(Chart::Accounts(Accounts { title: "Page pools", accounts }))
}

/// Where pages of the device's pools came from, and where they went.
fn pool_paths(paths: &Reading<PoolPaths>) -> Vec<Reading<Account>> {
    let paths = match paths {
        Reading::Known(paths) => paths,
        Reading::NotAvailable { why } => {
            return vec![Reading::not_available(plain(&format!("cache and ring of the device's pools: {why}")))];
        }
    };
    let account = |of: &str, parts: &[(&'static str, u64)]| {
        let pages = parts.iter().fold(0_u64, |sum, (_, pages)| sum.saturating_add(*pages));
        Reading::Known(Account::new(of, pages, parts.iter().copied()))
    };
    vec![
        account(
            "pages given out by the device's pools",
            &[
                ("out of the cache", paths.alloc_fast),
                ("out of the ring", paths.alloc_refill),
                ("from the page allocator", paths.alloc_slow),
            ],
        ),
        account(
            "pages that came back to the device's pools",
            &[
                ("into the cache", paths.recycle_cached),
                ("into the ring", paths.recycle_ring),
                ("to the page allocator, since the ring was full", paths.recycle_ring_full),
                ("to the page allocator, since they were still in use", paths.recycle_released_refcnt),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices of 1000 packets that take this many ns each, 0.1 ms apart, of two variants in turn.
    fn slices(costs: &[u64]) -> Vec<Slice> {
        let slice = |(index, ns): (u64, &u64)| Slice {
            start_ns: 5_000_000_000 + index * 100_000,
            stop_ns: 5_000_000_000 + index * 100_000 + ns * 1000,
            packets: 1000,
            cpu: 0,
            variant: u16::try_from(index % 2).unwrap(),
            copy: 0,
            slot: 0,
            block: u32::try_from(index / 2).unwrap(),
        };
        (0..).zip(costs).map(slice).collect()
    }

    fn names() -> [String; 2] {
        ["a".to_owned(), "b".to_owned()]
    }

    #[test]
    fn every_slice_is_in_a_bin_or_beside_them() {
        let mut costs = vec![60; 300];
        costs[7] = 6000;
        costs[8] = 1;
        let Some(Chart::Distribution(found)) = distribution(&names(), &slices(&costs)) else { panic!() };
        for row in &found.rows {
            assert_eq!(row.counts.iter().sum::<u64>() + row.below + row.above, 150);
            assert_eq!(row.quartiles_ns, [60.0; 3]);
        }
        assert_eq!((found.rows[0].below, found.rows[0].above), (1, 0));
        assert_eq!((found.rows[1].below, found.rows[1].above), (0, 1));
        assert!(found.range_ns.low < 60.0 && found.range_ns.high > 60.0 && found.range_ns.high < 70.0);
        assert_eq!(distribution(&names(), &[]), None);
    }

    #[test]
    fn the_time_line_shows_drift_and_marks_the_part_that_time_was_taken_from() {
        let mut costs: Vec<u64> = (0..2400).map(|index| if index < 1200 { 60 } else { 80 }).collect();
        costs[1500..1520].fill(600);
        let slices = slices(&costs);
        let rounds = [&slices[..1200], &slices[1200..]];
        let Some(Chart::TimeLine(found)) = time_line(&names(), &rounds) else { panic!() };
        assert_eq!(found.lines.len(), 2);
        assert_eq!((found.lines[0].points[0][1], found.lines[1].points.last().unwrap()[1]), (60.0, 80.0));
        assert!(found.lines[0].points.iter().all(|[_, ns]| *ns < 100.0), "stolen slices bend no line");
        assert_eq!(found.rounds, [0.12]);
        let [strip] = found.tainted[..] else { panic!("{:?}", found.tainted) };
        assert!(strip.from <= 0.150 && strip.to >= 0.151 && strip.share == 1.0, "{strip:?}");
    }

    #[test]
    fn the_ways_through_the_device_s_pools_are_shares_of_what_was_given_out_and_came_back() {
        let paths =
            PoolPaths { alloc_fast: 70, alloc_refill: 20, alloc_slow: 10, recycle_ring: 90, ..PoolPaths::default() };
        let told: Vec<String> = pool_paths(&Reading::Known(paths)).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "100 pages given out by the device's pools = 70 out of the cache + 20 out of the ring + 10 from the page allocator, \
                 residual 0",
                "90 pages that came back to the device's pools = 0 into the cache + 90 into the ring, residual 0",
            ]
        );
        let [Reading::NotAvailable { why }] = &pool_paths(&Reading::not_available("EOPNOTSUPP"))[..] else { panic!() };
        assert_eq!(why, "cache and ring of the device's pools: EOPNOTSUPP");
    }

    #[test]
    fn times_beyond_all_measure_are_drawn_without_a_panic() {
        let mut wild = slices(&[60; 40]);
        wild[3].start_ns = 0;
        wild[4].stop_ns = u64::MAX;
        wild[5].start_ns = u64::MAX;
        wild[6].variant = 9;
        assert!(time_line(&names(), &[&wild]).is_some());
        assert!(distribution(&names(), &wild).is_some());
    }
}
