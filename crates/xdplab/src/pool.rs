//! Paths of the `page-pool` crate, and other pools and allocators beside them, compared in this process slice by slice like
//! programs on a lab. Needs no privileges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use page_pool::Owner;
use page_pool::bench::{self, BOUNDS, Bound, Path};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::run::{self, Compared, Cost, Progress, Rules};
use crate::sample::Schedule;
use crate::stats::{self, Comparison, Level, Slice};
use crate::sys::affinity::Pinned;
use crate::topology::Placement;
use crate::units::whole_nanos;

/// Allocations and returns of a slice where each takes a nanosecond or two: tens of microseconds, of which reading the thread's
/// clock is less than a hundredth.
const SLICE_OPERATIONS_SINGLE: u64 = 32768;
/// The same of bursts and fragments, which take longer.
const SLICE_OPERATIONS: u64 = 8192;
/// The same where a thread is started for each slice, which is not timed.
const SLICE_OPERATIONS_CROSS: u64 = 16384;
/// Allocations and returns after a switch that are not timed.
const WARMUP_OPERATIONS: u64 = 512;
/// Separate pools of each path, each elsewhere in memory.
const COPIES: u16 = 2;
/// Rounds, for each of which the pools are made anew.
const ROUNDS: u16 = 8;
/// Effects up to this, some hundredth of a path's cost, are in the reach of code layout, in ns.
pub const FLOOR_NS: f64 = 0.02;
/// Whether other crates' pools and allocators are in this build.
pub const HAS_PEERS: bool = cfg!(feature = "pool-peers");

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// One frame allocated and returned at a time
    Single,
    /// Bursts of 64 frames, the first line of each written
    Burst,
    /// Bursts of 512 frames, more than the pool's cache takes
    LongBurst,
    /// Frames that a thread on another CPU returns
    Cross,
    /// Fragments of 512 bytes from a pool, and from a page_frag_cache
    Frags,
    /// Fragments of 2048 bytes
    LargeFrags,
    /// Drops from a window of 2048 frames in flight: where the fragment table is kept
    Window,
}

impl Group {
    fn of_crate(self) -> bench::Group {
        match self {
            Self::Single => bench::Group::Single,
            Self::Burst => bench::Group::Burst,
            Self::LongBurst => bench::Group::LongBurst,
            Self::Cross => bench::Group::Cross,
            Self::Frags => bench::Group::Frags,
            Self::LargeFrags => bench::Group::LargeFrags,
            Self::Window => bench::Group::Window,
        }
    }

    /// What one operation is.
    #[must_use]
    pub fn operation(self) -> &'static str {
        self.of_crate().operation()
    }

    /// Seconds that let every path have enough slices on a quiet machine.
    #[must_use]
    pub fn usual_seconds(self) -> f64 {
        if self == Self::Cross { 20.0 } else { 5.0 }
    }

    fn slice_operations(self) -> u64 {
        match self {
            Self::Single | Self::Window => SLICE_OPERATIONS_SINGLE,
            Self::Cross => SLICE_OPERATIONS_CROSS,
            Self::Burst | Self::LongBurst | Self::Frags | Self::LargeFrags => SLICE_OPERATIONS,
        }
    }
}

/// A bound the pool is built to, and what was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// What is bounded: a path's cost over another's, or in ns.
    pub bound: String,
    /// What it must keep to.
    pub limit: String,
    /// The median over the rounds; absent if one of the paths is not in this build, or had too few slices.
    pub value: Option<f64>,
    /// The lowest and the highest of the rounds.
    pub range: Option<[f64; 2]>,
    /// Whether the value keeps to it.
    pub holds: Option<bool>,
}

/// What the paths of a group cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolCase {
    /// What was compared.
    pub group: Group,
    /// Seed of the schedule.
    pub seed: u64,
    /// Seconds measured.
    pub seconds: f64,
    /// The owner's CPU, and that of the thread that returns what crosses.
    pub cpus: [usize; 2],
    /// Slices taken.
    pub slices: usize,
    /// Nanoseconds of one operation on each path.
    pub costs: Vec<Cost>,
    /// The first path against itself in other pools.
    pub control: Option<Comparison>,
    /// Each other path against the first.
    pub comparisons: Vec<Compared>,
    /// The bounds of this group.
    pub bounds: Vec<Checked>,
}

/// Measures every path of the group.
///
/// # Errors
/// The pools' memory is not to be had.
pub fn measure(
    group: Group,
    seconds: f64,
    seed: u64,
    rules: Rules,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<PoolCase> {
    let [owner_cpu, other_cpu] = cpus()?;
    let _pinned = Pinned::to(owner_cpu)?;
    let mut shown = Shown { progress, seconds_before: 0.0, seconds };
    let mut names = Vec::new();
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let owners: Vec<Owner> = (0..COPIES * 2).map(|_| owner()).collect::<Result<_>>()?;
        let (pools, control_pools) = owners.split_at(usize::from(COPIES));
        // The order of variants is the schedule's: baseline, its control, candidates.
        let mut copies: Vec<Vec<Path<'_>>> = pools
            .iter()
            .zip(control_pools)
            .map(|(pool, control)| {
                let mut paths = group.of_crate().own_paths(pool, other_cpu);
                paths.insert(1, group.of_crate().own_paths(control, other_cpu).swap_remove(0));
                paths.extend(group.of_crate().other_paths(other_cpu));
                paths
            })
            .collect();
        names = copies.first().map_or(Vec::new(), |paths| paths.iter().map(|path| path.name.to_owned()).collect());
        let variants = u16::try_from(names.len()).unwrap_or(u16::MAX);
        let schedule = Schedule::draw(variants, COPIES, seed.wrapping_add(u64::from(round)))?;
        let seconds = seconds / f64::from(ROUNDS);
        rounds.push(sample(&mut copies, &schedule, group.slice_operations(), seconds, &mut shown, stop));
        shown.seconds_before += seconds;
    }
    let slices: Vec<&[Slice]> = rounds.iter().map(Vec::as_slice).collect();
    let control = stats::compare_rounds(&slices, 0, 1, rules.level).ok();
    let weighed = run::weigh(&slices, &names, control.as_ref(), rules, &[]);
    let bounds = BOUNDS.iter().filter(|bound| bound.group == group.of_crate());
    Ok(PoolCase {
        group,
        seed,
        seconds,
        cpus: [owner_cpu, other_cpu],
        slices: slices.iter().map(|round| round.len()).sum(),
        bounds: bounds.map(|bound| check(bound, &slices, &names, rules.level)).collect(),
        costs: weighed.costs,
        control,
        comparisons: weighed.comparisons,
    })
}

/// The owner's CPU and another one, where this thread may use two.
fn cpus() -> Result<[usize; 2]> {
    let placement = Placement::split().or_else(|_one_cpu| Placement::same())?;
    let cpus = [placement.dut_cpu(), placement.generator_cpu()];
    Ok(cpus.map(|cpu| cpu.unwrap_or_default()))
}

fn check(bound: &Bound, rounds: &[&[Slice]], names: &[String], level: Level) -> Checked {
    let mut values = rounds.iter().map(|slices| value(bound, slices, names, level)).collect::<Option<Vec<f64>>>();
    let value = values.as_mut().and_then(|values| stats::median(values));
    let range = values.as_ref().and_then(|values| {
        let ordered = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick);
        Some([ordered(f64::min)?, ordered(f64::max)?])
    });
    Checked {
        bound: bound.to_string(),
        limit: bound.limit.to_string(),
        value,
        range,
        holds: value.map(|value| bound.limit.holds(value)),
    }
}

/// What a bound is on, in one round.
fn value(bound: &Bound, slices: &[Slice], names: &[String], level: Level) -> Option<f64> {
    let cost = |path: &str| {
        let variant = u16::try_from(names.iter().position(|name| name == path)?).ok()?;
        if !bound.p10 {
            return Some(stats::absolute(slices, variant, level).ok()?.cost.estimate);
        }
        let of_path = slices.iter().filter(|slice| slice.variant == variant);
        let mut sorted: Vec<f64> = of_path.filter_map(Slice::ns_per_packet).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        stats::percentile(&sorted, 0.1)
    };
    Some(cost(bound.path)? / bound.by.map_or(Some(1.0), cost)?)
}

/// Where the progress of all rounds is shown.
struct Shown<'a> {
    progress: &'a mut dyn Progress,
    seconds_before: f64,
    seconds: f64,
}

fn owner() -> Result<Owner> {
    bench::owner().map_err(|error| Error::invalid("make a page pool", error.to_string()))
}

fn sample(
    copies: &mut [Vec<Path<'_>>],
    schedule: &Schedule,
    operations: u64,
    seconds: f64,
    to: &mut Shown<'_>,
    stop: &AtomicBool,
) -> Vec<Slice> {
    let origin = Instant::now();
    let mut shown = Duration::ZERO;
    let mut slices = Vec::new();
    for position in 0.. {
        let elapsed = origin.elapsed();
        if elapsed.as_secs_f64() >= seconds || stop.load(Ordering::Relaxed) {
            break;
        }
        if elapsed > shown + Duration::from_millis(20) {
            shown = elapsed;
            to.progress.sampling(to.seconds_before + elapsed.as_secs_f64(), to.seconds, slices.len());
        }
        let (entry, block) = schedule.at(position);
        let path = &mut copies[usize::from(entry.copy)][usize::from(entry.variant)];
        path.run(WARMUP_OPERATIONS);
        let (done, time) = path.run(operations);
        let stop_ns = whole_nanos(origin.elapsed());
        slices.push(Slice {
            start_ns: stop_ns.saturating_sub(whole_nanos(time)),
            stop_ns,
            packets: u32::try_from(done).unwrap_or(u32::MAX),
            cpu: 0,
            variant: entry.variant,
            copy: entry.copy,
            slot: entry.slot,
            block: u32::try_from(block).unwrap_or(u32::MAX),
        });
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices of one path whose blocks cost this, in ns.
    fn slices(variant: u16, cost: impl Fn(u32) -> u64) -> Vec<Slice> {
        let slice = |(block, copy): (u32, u16)| Slice {
            start_ns: u64::from(block) * 1_000_000,
            stop_ns: u64::from(block) * 1_000_000 + cost(block) * 1000,
            packets: 1000,
            cpu: 0,
            variant,
            copy,
            slot: 0,
            block,
        };
        (0..60).flat_map(|block| [(block, 0), (block, 1)]).map(slice).collect()
    }

    fn bound_on(path: &str) -> &'static Bound {
        BOUNDS.iter().find(|bound| bound.path == path && bound.by.is_some()).unwrap()
    }

    #[test]
    fn a_bound_is_on_the_ratio_of_two_paths_round_by_round() {
        let names = ["Frame drop".to_owned(), "control".to_owned(), "ring, single".to_owned()];
        let round = |ring: u64| [slices(0, |_| 2), slices(2, |_| ring)].concat();
        let rounds = [round(6), round(7), round(10)];
        let rounds: Vec<&[Slice]> = rounds.iter().map(Vec::as_slice).collect();
        let checked = check(bound_on("ring, single"), &rounds, &names, Level::default());
        assert_eq!((checked.value, checked.range, checked.holds), (Some(3.5), Some([3.0, 5.0]), Some(true)));
        assert_eq!((checked.bound.as_str(), checked.limit.as_str()), ("Single: ring, single / Frame drop", "≤ 4"));
        let missed = check(bound_on("ring, single"), &rounds[2..], &names, Level::default());
        assert_eq!((missed.value, missed.holds), (Some(5.0), Some(false)));
    }

    #[test]
    fn a_bound_on_the_10th_percentile_does_not_see_the_other_slices() {
        let names = ["lane, bulk 16".to_owned(), "control".to_owned(), "ArrayQueue".to_owned()];
        let of_ten = |first: u64, others: u64| move |block: u32| if block.is_multiple_of(5) { first } else { others };
        let round = [slices(0, of_ten(10, 50)), slices(2, of_ten(30, 60))].concat();
        let bound = BOUNDS.iter().find(|bound| bound.p10).unwrap();
        let checked = check(bound, &[&round], &names, Level::default());
        assert_eq!((checked.value, checked.holds), (Some(3.0), Some(true)));
    }

    #[test]
    fn a_path_that_was_not_run_leaves_its_bound_open() {
        let names = ["Frame drop".to_owned()];
        let round = slices(0, |_| 2);
        let checked = check(bound_on("mimalloc"), &[&round], &names, Level::default());
        assert_eq!((checked.value, checked.range, checked.holds), (None, None, None));
    }
}
