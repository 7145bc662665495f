//! Paths of the `page-pool` crate compared in this process, slice by slice like programs on a lab. Needs no privileges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use page_pool::bench::{self, Path};
use page_pool::{Builder, Owner};

use crate::error::{Error, Result};
use crate::run::{self, Compared, Cost, Progress, Rules};
use crate::sample::Schedule;
use crate::stats::{self, Comparison, Slice};

/// Allocations and returns of a slice: tens of microseconds.
const SLICE_OPERATIONS: u32 = 8192;
/// Allocations and returns after a switch that are not timed.
const WARMUP_OPERATIONS: u64 = 512;
/// Frames of each pool, as many as a ring of the kernel's default size holds.
const FRAMES: u32 = 1024;
/// Bytes of a frame, half a page: what most drivers give a packet of 1500 bytes.
const FRAME_SIZE: u32 = 2048;
/// Separate pools of each path, each elsewhere in memory.
const COPIES: u16 = 4;

/// What the paths cost.
pub struct PoolCase {
    /// Seed of the schedule.
    pub seed: u64,
    /// Seconds measured.
    pub seconds: f64,
    /// Slices taken.
    pub slices: usize,
    /// Nanoseconds for one allocation and one return on each path.
    pub costs: Vec<Cost>,
    /// The first path against itself in other pools.
    pub control: Option<Comparison>,
    /// Each other path against the first.
    pub comparisons: Vec<Compared>,
}

/// Measures one allocation and one return on every path of the pool, and by malloc and free.
///
/// # Errors
/// The pools' memory is not to be had.
pub fn measure(
    seconds: f64,
    seed: u64,
    rules: Rules,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<PoolCase> {
    let owners: Vec<Owner> = (0..COPIES * 2).map(|_| owner()).collect::<Result<_>>()?;
    let (pools, control_pools) = owners.split_at(usize::from(COPIES));
    // The order of variants is the schedule's: baseline, its control, candidates.
    let mut copies: Vec<Vec<Path<'_>>> = pools
        .iter()
        .zip(control_pools)
        .map(|(pool, control)| {
            let mut paths = bench::single(pool);
            let baseline = bench::single(control).swap_remove(0);
            paths.insert(1, baseline);
            paths.push(Path::new("malloc and free", malloc));
            paths
        })
        .collect();
    let names: Vec<String> =
        copies.first().map_or(Vec::new(), |paths| paths.iter().map(|path| path.name.into()).collect());
    let schedule = Schedule::draw(u16::try_from(names.len()).unwrap_or(u16::MAX), COPIES, seed)?;
    let begin = Instant::now();
    let slices = sample(&mut copies, &schedule, seconds, progress, stop);
    let rounds = [slices.as_slice()];
    let control = stats::compare_rounds(&rounds, 0, 1, rules.level).ok();
    let weighed = run::weigh(&rounds, &names, control.as_ref(), rules, &[]);
    Ok(PoolCase {
        seed,
        seconds: begin.elapsed().as_secs_f64(),
        slices: slices.len(),
        costs: weighed.costs,
        control,
        comparisons: weighed.comparisons,
    })
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
    progress: &mut dyn Progress,
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
            progress.sampling(elapsed.as_secs_f64(), seconds, slices.len());
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
