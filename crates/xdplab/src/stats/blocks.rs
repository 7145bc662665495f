//! From slices to a table of locations: a row for each copy, a column for each batch of consecutive blocks.

use super::robust::{mad, median};
use super::{NotEnough, Slice};

/// A batch's median needs this many blocks to be steady against the share of slow slices.
const BLOCKS_PER_BATCH: usize = 8;
/// The scatter between batches needs this many of them to be known within a third (chi-squared with n - 1 degrees).
const FEWEST_BATCHES: usize = 5;
/// More batches than this would be so short that neighbours move together.
const MOST_BATCHES: usize = 32;

/// Locations by copy and batch.
pub(super) struct Table {
    /// A row for each copy, in the order of (variant, copy).
    pub(super) rows: Vec<Row>,
    /// Blocks used.
    pub(super) blocks: usize,
    /// Slices used.
    pub(super) slices_used: usize,
    /// Slices without packets or without time.
    pub(super) slices_invalid: usize,
    /// Slices of blocks that lost too many others to be compared, or of a CPU with too few blocks.
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

/// A slice on its way into the table.
#[derive(Clone, Copy)]
struct Sample {
    row: usize,
    batch: usize,
    ns: f64,
}

/// Whether the level of the block is subtracted from its slices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Centre {
    /// Only differences between copies remain.
    Blocks,
    /// Values as timed.
    Nothing,
}

impl Table {
    /// The table of `variants`.
    pub(super) fn new(slices: &[Slice], variants: &[u16], centre: Centre) -> Result<Self, NotEnough> {
        let wanted = slices.iter().filter(|slice| variants.contains(&slice.variant));
        let mut valid: Vec<(Slice, f64)> =
            wanted.clone().filter_map(|slice| Some((*slice, slice.ns_per_packet()?))).collect();
        let slices_invalid = wanted.count() - valid.len();
        for &variant in variants {
            if !valid.iter().any(|(slice, _)| slice.variant == variant) {
                return Err(NotEnough::Slices { variant });
            }
        }
        valid.sort_unstable_by_key(|(slice, _)| {
            (slice.cpu, slice.block, slice.variant, slice.copy, slice.start_ns, slice.stop_ns, slice.packets)
        });
        let mut copies: Vec<(u16, u16)> = valid.iter().map(|(slice, _)| (slice.variant, slice.copy)).collect();
        copies.sort_unstable();
        copies.dedup();

        let complete: Vec<&[(Slice, f64)]> = valid
            .chunk_by(|(a, _), (b, _)| (a.cpu, a.block) == (b.cpu, b.block))
            .filter(|block| {
                2 * block.len() >= copies.len()
                    && variants.iter().all(|variant| block.iter().any(|(slice, _)| slice.variant == *variant))
            })
            .collect();
        let batch_of = assign_batches(&complete)?;
        let used = || complete.iter().zip(&batch_of).filter_map(|(block, batch)| Some((*block, (*batch)?)));
        let mut blocks: Vec<Vec<Sample>> = used()
            .map(|(block, batch)| {
                let row = |slice: &Slice| copies.partition_point(|copy| *copy < (slice.variant, slice.copy));
                block.iter().map(|(slice, ns)| Sample { row: row(slice), batch, ns: *ns }).collect()
            })
            .collect();
        if centre == Centre::Blocks {
            subtract_block_levels(&mut blocks, copies.len());
        }
        let samples: Vec<Sample> = blocks.iter().flatten().copied().collect();
        let first = used().flat_map(|(block, _)| block).map(|(slice, _)| slice.start_ns).min().unwrap_or(0);
        let last = used().flat_map(|(block, _)| block).map(|(slice, _)| slice.stop_ns).max().unwrap_or(0);
        let seconds = last.saturating_sub(first) as f64 / 1e9;
        Ok(Self {
            rows: rows(&samples, &copies),
            blocks: blocks.len(),
            slices_used: samples.len(),
            slices_invalid,
            slices_unpaired: valid.len() - samples.len(),
            seconds,
        })
    }
}

/// The batch of each block: consecutive blocks of one CPU, about equally many in each; `None` for the blocks of a CPU
/// that has too few for one batch.
fn assign_batches(blocks: &[&[(Slice, f64)]]) -> Result<Vec<Option<usize>>, NotEnough> {
    let per_batch = blocks.len().div_ceil(MOST_BATCHES).max(BLOCKS_PER_BATCH);
    let mut batch_of = Vec::with_capacity(blocks.len());
    let mut batches = 0;
    for cpu in blocks.chunk_by(|a, b| a[0].0.cpu == b[0].0.cpu) {
        let of_cpu = cpu.len() / per_batch;
        batch_of.extend((0..cpu.len()).map(|block| (of_cpu > 0).then(|| batches + block * of_cpu / cpu.len())));
        batches += of_cpu;
    }
    if batches < FEWEST_BATCHES {
        let needed = FEWEST_BATCHES * BLOCKS_PER_BATCH;
        return Err(NotEnough::Blocks { blocks: blocks.len().min(needed - 1), needed });
    }
    Ok(batch_of)
}

/// Two passes of median polish: the first finds what each copy is above its blocks, the second subtracts from each
/// block the median of its slices less that. Without the second pass two variants far apart would leave the block's
/// level to the extremes of both.
fn subtract_block_levels(blocks: &mut [Vec<Sample>], copies: usize) {
    let mut of_copy = vec![0.0; copies];
    for _ in 0..2 {
        let mut residuals = vec![Vec::new(); copies];
        for block in blocks.iter_mut() {
            let mut above: Vec<f64> = block.iter().map(|sample| sample.ns - of_copy[sample.row]).collect();
            let level = median(&mut above).unwrap_or(0.0);
            for sample in block {
                sample.ns -= level;
                residuals[sample.row].push(sample.ns);
            }
        }
        for (location, residuals) in of_copy.iter_mut().zip(&mut residuals) {
            *location = median(residuals).unwrap_or(0.0);
        }
    }
}

fn rows(samples: &[Sample], copies: &[(u16, u16)]) -> Vec<Row> {
    let batches = samples.iter().map(|sample| sample.batch + 1).max().unwrap_or(0);
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
