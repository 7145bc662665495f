//! Paths of the `page-pool` crate compared in this process, slice by slice like programs on a lab. Needs no privileges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use page_pool::bench::{self, Path};
use page_pool::{Builder, Owner};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::run::{self, Compared, Cost, Progress, Rules};
use crate::sample::Schedule;
use crate::stats::{self, Comparison, Slice};

/// Allocations and returns of a slice: tens of microseconds.
const SLICE_OPERATIONS: u32 = 8192;
/// Allocations and returns after a switch that are not timed.
const WARMUP_OPERATIONS: u64 = 512;
/// Frames of each pool: a return ring of twice the kernel's default size never overflows, and the window fits.
const FRAMES: u32 = 4096;
/// Bytes of a frame, half a page: what most drivers give a packet of 1500 bytes.
const FRAME_SIZE: u32 = 2048;
/// Separate pools of each path, each elsewhere in memory.
const COPIES: u16 = 2;
/// Rounds, for each of which the pools are made anew.
const ROUNDS: u16 = 8;
/// Effects up to this, some hundredth of a path's cost, are in the reach of code layout, in ns.
pub const FLOOR_NS: f64 = 0.02;
/// Frames of a burst: a NAPI budget.
const BURST: usize = 64;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// One frame allocated and returned at a time
    Single,
    /// Bursts of 64 frames, the first line of each written
    Burst,
    /// Fragments of 512 bytes from a pool, and from a page_frag_cache
    Frags,
    /// Drops from a window of 2048 frames in flight: where the fragment table is kept
    Window,
}

impl Group {
    /// What one operation is.
    #[must_use]
    pub fn operation(self) -> &'static str {
        match self {
            Self::Single => "one allocation and one return of a frame",
            Self::Burst => "one allocation and one return in bursts of 64 frames, the first line of each written",
            Self::Frags => "one allocation and one return of a 512-byte fragment, in bursts of 64",
            Self::Window => "one drop and one allocation with 2048 frames in flight",
        }
    }

    fn paths(self, owner: &Owner) -> Vec<Path<'_>> {
        match self {
            Self::Single => {
                let mut paths = bench::single(owner);
                paths.push(Path::new("malloc and free", malloc));
                paths
            }
            Self::Burst => bench::burst(owner, BURST),
            Self::Frags => bench::frags(owner, 512),
            Self::Window => bench::window(owner),
        }
    }
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
    /// Slices taken.
    pub slices: usize,
    /// Nanoseconds of one operation on each path.
    pub costs: Vec<Cost>,
    /// The first path against itself in other pools.
    pub control: Option<Comparison>,
    /// Each other path against the first.
    pub comparisons: Vec<Compared>,
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
                let mut paths = group.paths(pool);
                paths.insert(1, group.paths(control).swap_remove(0));
                paths
            })
            .collect();
        names = copies.first().map_or(Vec::new(), |paths| paths.iter().map(|path| path.name.to_owned()).collect());
        let variants = u16::try_from(names.len()).unwrap_or(u16::MAX);
        let schedule = Schedule::draw(variants, COPIES, seed.wrapping_add(u64::from(round)))?;
        rounds.push(sample(&mut copies, &schedule, seconds / f64::from(ROUNDS), &mut shown, stop));
        shown.seconds_before += seconds / f64::from(ROUNDS);
    }
    let slices: Vec<&[Slice]> = rounds.iter().map(Vec::as_slice).collect();
    let control = stats::compare_rounds(&slices, 0, 1, rules.level).ok();
    let weighed = run::weigh(&slices, &names, control.as_ref(), rules, &[]);
    Ok(PoolCase {
        group,
        seed,
        seconds,
        slices: slices.iter().map(|round| round.len()).sum(),
        costs: weighed.costs,
        control,
        comparisons: weighed.comparisons,
    })
}

/// Where the progress of all rounds is shown.
struct Shown<'a> {
    progress: &'a mut dyn Progress,
    seconds_before: f64,
    seconds: f64,
}

fn owner() -> Result<Owner> {
    let seed = Builder::heap(FRAMES).frame_size(FRAME_SIZE).build();
    seed.map(page_pool::Seed::bind).map_err(|error| Error::invalid("make a page pool", error.to_string()))
}

fn malloc(operations: u64) {
    for _ in 0..operations {
        drop(std::hint::black_box(Box::<[u8; FRAME_SIZE as usize]>::new_uninit()));
    }
}

fn sample(
    copies: &mut [Vec<Path<'_>>],
    schedule: &Schedule,
    seconds: f64,
    to: &mut Shown<'_>,
    stop: &AtomicBool,
) -> Vec<Slice> {
    let origin = Instant::now();
    let now_ns = || u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
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
        (path.run)(WARMUP_OPERATIONS);
        let start_ns = now_ns();
        (path.run)(u64::from(SLICE_OPERATIONS));
        slices.push(Slice {
            start_ns,
            stop_ns: now_ns(),
            packets: SLICE_OPERATIONS,
            cpu: 0,
            variant: entry.variant,
            copy: entry.copy,
            slot: entry.slot,
            block: u32::try_from(block).unwrap_or(u32::MAX),
        });
    }
    slices
}
