//! The cost of one variant and the difference of two, with copies as the unit.

use serde::{Deserialize, Serialize};

use super::blocks::{Centre, Row, Table};
use super::robust::percentile;
use super::student::{Difference, Level, Variance, interval, mean, t_quantile};
use super::{Interval, NotEnough, Slice};

/// The cost of one variant in this run. Other runs drift: compare variants only within one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Absolute {
    /// Mean over copies of their locations, in nanoseconds per packet.
    pub cost: Interval,
    /// The 5th, 50th, 95th and 99th percentile of single slices, in nanoseconds per packet.
    pub percentiles_5_50_95_99_ns: [f64; 4],
    /// Copies of the variant.
    pub copies: usize,
    /// Whether the interval holds layout noise; it can't with one copy.
    pub layout_included: bool,
    /// Slices the estimate is made of.
    pub slices_used: usize,
    /// Slices left out: without packets, without time, or from a CPU with too few blocks.
    pub slices_left_out: usize,
}

/// Candidate minus baseline from interleaved slices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The difference.
    #[serde(flatten)]
    pub difference: Difference,
    /// Standard deviation of the cost between copies of one variant (layout noise), in nanoseconds per packet, what the
    /// scatter of slices explains taken off; `None` with one copy on a side.
    pub between_copies_sd_ns: Option<f64>,
    /// Robust standard deviation of one slice about its copy and block, in nanoseconds per packet.
    pub within_copy_sd_ns: f64,
    /// Copies of the baseline.
    pub baseline_copies: usize,
    /// Copies of the candidate.
    pub candidate_copies: usize,
    /// Whether the interval holds layout noise; with one copy on a side it can't, and is too narrow.
    pub layout_included: bool,
    /// Blocks the estimate is made of.
    pub blocks: usize,
    /// Slices the estimate is made of.
    pub slices_used: usize,
    /// Slices left out because no packet was counted or the time did not advance.
    pub slices_invalid: usize,
    /// Slices left out because too few others of their block, or of their CPU, were there.
    pub slices_unpaired: usize,
    /// From the first slice's start to the last one's stop, in seconds.
    pub seconds: f64,
    /// The part of the squared standard error that more copies, not more time, bring down, in (ns per packet)².
    pub layout_variance_ns2: f64,
}

impl Comparison {
    /// Further run time, in seconds, until half the interval's width is about `half_width_ns` nanoseconds per packet; 0
    /// where it is already; `None` where more time can't do it because layout noise alone is wider.
    #[must_use]
    pub fn seconds_needed(&self, half_width_ns: f64) -> Option<f64> {
        if self.difference.delta.half_width() <= half_width_ns {
            return Some(0.0);
        }
        let t = t_quantile(self.difference.degrees_of_freedom, self.difference.delta.level).ok()?;
        let spare = (half_width_ns / t).powi(2) - self.layout_variance_ns2;
        let shrinks = self.difference.standard_error_ns.powi(2) - self.layout_variance_ns2;
        (half_width_ns > 0.0 && spare > 0.0).then(|| self.seconds * (shrinks / spare - 1.0).max(0.0))
    }
}

/// The cost of `variant`.
///
/// # Errors
///
/// [`NotEnough`] without slices of the variant or with too few blocks of them.
pub fn absolute(slices: &[Slice], variant: u16, level: Level) -> Result<Absolute, NotEnough> {
    let table = Table::new(slices, &[variant], Centre::Nothing)?;
    let side = Side::new(table.rows.iter());
    // Drift moves all copies together, so it adds to what the copies' own scatter shows.
    let variance = match (side.between(), Variance::of_mean(&side.batch_means())) {
        (Some(between), Some(batches)) => Variance::sum(&[between, batches]),
        (None, Some(batches)) => batches,
        (_, None) => return Err(NotEnough::Slices { variant }),
    };
    let mut sorted: Vec<f64> =
        slices.iter().filter(|slice| slice.variant == variant).filter_map(Slice::ns_per_packet).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    Ok(Absolute {
        cost: interval(side.location(), variance, level)?,
        percentiles_5_50_95_99_ns: [0.05, 0.5, 0.95, 0.99].map(|p| percentile(&sorted, p).unwrap_or(0.0)),
        copies: side.rows.len(),
        layout_included: side.rows.len() > 1,
        slices_used: table.slices_used,
        slices_left_out: table.slices_invalid + table.slices_unpaired,
    })
}

/// The cost of `candidate` minus that of `baseline`.
///
/// # Errors
///
/// [`NotEnough`] without slices of one of them or with too few blocks that hold both.
pub fn compare(slices: &[Slice], baseline: u16, candidate: u16, level: Level) -> Result<Comparison, NotEnough> {
    let table = Table::new(slices, &[baseline, candidate], Centre::Blocks)?;
    let side = |variant| Side::new(table.rows.iter().filter(move |row| row.variant == variant));
    let (before, after) = (side(baseline), side(candidate));
    let batches: Vec<f64> =
        after.batch_means().iter().zip(before.batch_means()).map(|(after, before)| after - before).collect();
    let within = Variance::of_mean(&batches).ok_or(NotEnough::Slices { variant: candidate })?;
    let between = before.between().zip(after.between()).map(|(before, after)| Variance::sum(&[before, after]));
    // Both estimate the same scatter of slices; the copies see layout as well, the batches see what moves one variant
    // for a while. The larger one is the cautious choice.
    let variance = between.filter(|between| between.value > within.value).unwrap_or(within);
    let layout_variance_ns2 = between.map_or(0.0, |between| (between.value - within.value).max(0.0));
    let copies_weight = 1.0 / before.rows.len() as f64 + 1.0 / after.rows.len() as f64;
    let slice_sds: Vec<f64> = table.rows.iter().map(|row| row.slice_sd_ns).collect();
    Ok(Comparison {
        difference: Difference::new(after.location() - before.location(), variance, level)?,
        between_copies_sd_ns: between.map(|_| (layout_variance_ns2 / copies_weight).sqrt()),
        within_copy_sd_ns: mean(&slice_sds).unwrap_or(0.0),
        baseline_copies: before.rows.len(),
        candidate_copies: after.rows.len(),
        layout_included: between.is_some(),
        blocks: table.blocks,
        slices_used: table.slices_used,
        slices_invalid: table.slices_invalid,
        slices_unpaired: table.slices_unpaired,
        seconds: table.seconds,
        layout_variance_ns2,
    })
}

/// The usual way, for showing beside: two runs one after the other, the mean time per packet of the second minus that
/// of the first, in nanoseconds. No interval: two numbers have none.
///
/// # Errors
///
/// [`NotEnough`] where a run counted no packet of its variant.
pub fn sequential(first: &[Slice], second: &[Slice]) -> Result<f64, NotEnough> {
    Ok(mean_cost(second)? - mean_cost(first)?)
}

fn mean_cost(run: &[Slice]) -> Result<f64, NotEnough> {
    let timed = run.iter().filter(|slice| slice.ns_per_packet().is_some());
    let packets: u64 = timed.clone().map(|slice| u64::from(slice.packets)).sum();
    let time_ns: u64 = timed.map(|slice| slice.stop_ns - slice.start_ns).sum();
    if packets > 0 { Ok(time_ns as f64 / packets as f64) } else { Err(NotEnough::Slices { variant: 0 }) }
}

/// The copies of one variant.
struct Side<'a> {
    rows: Vec<&'a Row>,
    /// A location for each row, in ns per packet.
    locations: Vec<f64>,
}

impl<'a> Side<'a> {
    fn new(rows: impl Iterator<Item = &'a Row>) -> Self {
        let (rows, locations) = rows
            .filter_map(|row| {
                let known: Vec<f64> = row.batches.iter().copied().flatten().collect();
                Some((row, mean(&known)?))
            })
            .unzip();
        Self { rows, locations }
    }

    fn location(&self) -> f64 {
        mean(&self.locations).unwrap_or(0.0)
    }

    /// The variance of [`Self::location`] from the scatter of the copies; `None` with one copy.
    fn between(&self) -> Option<Variance> {
        Variance::of_mean(&self.locations)
    }

    /// For each batch, the mean of the copies' deviations from their own locations. A copy that is missing from a batch
    /// does not shift it.
    fn batch_means(&self) -> Vec<f64> {
        let batches = self.rows.first().map_or(0, |row| row.batches.len());
        (0..batches)
            .map(|batch| {
                let deviations: Vec<f64> = self
                    .rows
                    .iter()
                    .zip(&self.locations)
                    .filter_map(|(row, location)| Some(row.batches[batch]? - location))
                    .collect();
                mean(&deviations).unwrap_or(0.0)
            })
            .collect()
    }
}
