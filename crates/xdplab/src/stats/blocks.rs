//! From slices to a table of locations: a row for each copy, a column for each batch of consecutive blocks.

use std::collections::BTreeMap;

use super::robust::{mad, median};
use super::{NotEnough, Slice};

/// A batch's median needs this many blocks to be steady against the share of slow slices.
const BLOCKS_PER_BATCH: usize = 8;
/// Fewer batches than this on one CPU leave their scatter unknown.
pub(super) const FEWEST_BATCHES: usize = 5;
/// Fewer batches than this on one CPU are no location to go by, where their scatter is not asked for.
pub(super) const FEWEST_BATCHES_OF_ROUND: usize = 2;
/// So many blocks on one CPU are always enough for an interval; a block gives each copy of each variant one slice.
pub const BLOCKS_NEEDED: usize = FEWEST_BATCHES * BLOCKS_PER_BATCH;
/// More batches would be so short that more of them follow their neighbours, and add little: 31 degrees of freedom give
/// an interval 4 % wider than infinitely many do.
const MOST_BATCHES: usize = 32;

/// A slice that took so many times its variant's median on its CPU was stolen time or interrupted, and says nothing about the
/// program. Far from anything that programs or frequency do, so that no variant loses slices for being itself.
const TAINTED: f64 = 2.0;

/// Locations by copy and batch.
pub(super) struct Table {
    /// A row for each copy, in the order of (variant, copy).
    pub(super) rows: Vec<Row>,
    /// The CPU of each batch, in the order of (CPU, time).
    pub(super) batch_cpus: Vec<u16>,
    /// Blocks used.
    pub(super) blocks: usize,
    /// Slices used.
    pub(super) slices_used: usize,
    /// Slices without packets or without time.
    pub(super) slices_invalid: usize,
    /// Slices that took more than [`TAINTED`] times their variant's median: time was taken from them.
    pub(super) slices_tainted: usize,
    /// Slices of blocks that lost all of one variant, or of a CPU with too few blocks.
    pub(super) slices_unpaired: usize,
    /// From the first start to the last stop, in seconds.
    pub(super) seconds: f64,
}

/// One copy's locations.
pub(super) struct Row {
    pub(super) variant: u16,
    /// The median of the copy's slices in each batch, in ns per packet; `None` in a batch without one.
    pub(super) batches: Vec<Option<f64>>,
    /// Robust standard deviation of one slice, in ns per packet.
    pub(super) slice_sd_ns: f64,
}

/// A slice with its cost in ns per packet.
type Timed = (Slice, f64);

/// A slice on its way into the table.
struct Sample {
    row: usize,
    batch: usize,
    ns: f64,
}

impl Table {
    /// The table of `variants`: of two, each slice less the other variant's level in its block; of one, as timed. It has at
    /// least so many batches.
    pub(super) fn new(slices: &[Slice], variants: &[u16], fewest_batches: usize) -> Result<Self, NotEnough> {
        let wanted: Vec<&Slice> = slices.iter().filter(|slice| variants.contains(&slice.variant)).collect();
        let mut timed: Vec<Timed> = wanted.iter().filter_map(|&slice| Some((*slice, slice.ns_per_packet()?))).collect();
        for &variant in variants {
            if !timed.iter().any(|(slice, _)| slice.variant == variant) {
                return Err(NotEnough::Slices { variant });
            }
        }
        let slices_invalid = wanted.len() - timed.len();
        drop_tainted(&mut timed);
        let slices_tainted = wanted.len() - slices_invalid - timed.len();
        // The order within a block does not matter: only medians are taken. The sort is quick where it is right already.
        timed.sort_by_key(|(slice, _)| (slice.cpu, slice.block));
        let mut copies: Vec<(u16, u16)> = timed.iter().map(|(slice, _)| (slice.variant, slice.copy)).collect();
        copies.sort_unstable();
        copies.dedup();

        let paired: Vec<&[Timed]> = timed
            .chunk_by(|(a, _), (b, _)| (a.cpu, a.block) == (b.cpu, b.block))
            .filter(|block| variants.iter().all(|variant| block.iter().any(|(slice, _)| slice.variant == *variant)))
            .collect();
        let batches = batches(&paired, fewest_batches)?;
        let mut samples = Vec::with_capacity(timed.len());
        for (batch, blocks) in batches.iter().enumerate() {
            for block in *blocks {
                let levels: Vec<f64> = variants.iter().map(|&variant| level(block, variant)).collect();
                samples.extend(block.iter().map(|(slice, ns)| {
                    let other = variants.iter().position(|variant| *variant != slice.variant);
                    let row = copies.partition_point(|copy| *copy < (slice.variant, slice.copy));
                    Sample { row, batch, ns: ns - other.map_or(0.0, |other| levels[other]) }
                }));
            }
        }
        let used = || batches.iter().copied().flatten().copied().flatten().map(|(slice, _)| slice);
        let first_ns = used().map(|slice| slice.start_ns).min().unwrap_or(0);
        let last_ns = used().map(|slice| slice.stop_ns).max().unwrap_or(0);
        Ok(Self {
            rows: rows(&samples, &copies, batches.len()),
            batch_cpus: batches.iter().map(|batch| batch[0][0].0.cpu).collect(),
            blocks: batches.iter().map(|batch| batch.len()).sum(),
            slices_used: samples.len(),
            slices_invalid,
            slices_tainted,
            slices_unpaired: timed.len() - samples.len(),
            seconds: (last_ns - first_ns) as f64 / 1e9,
        })
    }
}

/// Whether each slice took more than twice its variant's median on its CPU: time was taken from it, and it says nothing about
/// the program. A run of several rounds is judged round by round.
#[must_use]
pub fn tainted(slices: &[Slice]) -> Vec<bool> {
    let timed: Vec<Timed> = slices.iter().filter_map(|slice| Some((*slice, slice.ns_per_packet()?))).collect();
    let limits = limits(&timed);
    let is_tainted = |slice: &Slice| Some(slice.ns_per_packet()? > *limits.get(&(slice.cpu, slice.variant))?);
    slices.iter().map(|slice| is_tainted(slice).unwrap_or(false)).collect()
}

/// By CPU and variant, the cost above which a slice is tainted.
fn limits(timed: &[Timed]) -> BTreeMap<(u16, u16), f64> {
    let mut costs: BTreeMap<(u16, u16), Vec<f64>> = BTreeMap::new();
    for (slice, ns) in timed {
        costs.entry((slice.cpu, slice.variant)).or_default().push(*ns);
    }
    costs.into_iter().filter_map(|(of, mut costs)| Some((of, TAINTED * median(&mut costs)?))).collect()
}

fn drop_tainted(timed: &mut Vec<Timed>) {
    let limits = limits(timed);
    timed.retain(|(slice, ns)| limits.get(&(slice.cpu, slice.variant)).is_none_or(|limit| ns <= limit));
}

/// Consecutive blocks of one CPU, about equally many in each batch. A CPU with too few blocks for one batch is left out.
fn batches<'a>(blocks: &'a [&'a [Timed]], fewest: usize) -> Result<Vec<&'a [&'a [Timed]]>, NotEnough> {
    let cpus: Vec<_> = blocks.chunk_by(|a, b| a[0].0.cpu == b[0].0.cpu).collect();
    let per_batch = (blocks.len() / (MOST_BATCHES * cpus.len().max(1))).max(BLOCKS_PER_BATCH);
    // Each CPU has a level of its own, so its first batch says nothing about scatter.
    let scatter: usize = cpus.iter().map(|of_cpu| (of_cpu.len() / per_batch).saturating_sub(1)).sum();
    if scatter + 1 < fewest {
        let blocks = cpus.iter().map(|of_cpu| of_cpu.len()).max().unwrap_or(0);
        return Err(NotEnough::Blocks { blocks, needed: fewest * BLOCKS_PER_BATCH });
    }
    let of_cpu = |of_cpu: &'a [&'a [Timed]]| {
        let (blocks, batches) = (of_cpu.len(), of_cpu.len() / per_batch);
        (0..batches).map(move |batch| &of_cpu[batch * blocks / batches..(batch + 1) * blocks / batches])
    };
    Ok(cpus.into_iter().flat_map(of_cpu).collect())
}

/// The median of a variant's slices in a block, in ns per packet.
fn level(block: &[Timed], variant: u16) -> f64 {
    let mut of_variant: Vec<f64> =
        block.iter().filter(|(slice, _)| slice.variant == variant).map(|(_, ns)| *ns).collect();
    median(&mut of_variant).unwrap_or(0.0)
}

fn rows(samples: &[Sample], copies: &[(u16, u16)], batches: usize) -> Vec<Row> {
    let mut cells = vec![vec![Vec::new(); batches]; copies.len()];
    for sample in samples {
        cells[sample.row][sample.batch].push(sample.ns);
    }
    cells
        .into_iter()
        .zip(copies)
        .map(|(mut cells, &(variant, _))| Row {
            variant,
            batches: cells.iter_mut().map(|cell| median(cell)).collect(),
            slice_sd_ns: mad(&mut cells.concat()).unwrap_or(0.0),
        })
        .collect()
}
