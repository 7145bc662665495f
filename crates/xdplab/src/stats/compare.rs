//! The cost of one variant and the difference of two, with copies as the unit.

use serde::{Deserialize, Serialize};

use super::blocks::{BLOCKS_NEEDED, FEWEST_BATCHES, FEWEST_BATCHES_OF_ROUND, Row, Table};
use super::robust::{hodges_lehmann, percentile};
use super::student::{Difference, Level, Variance, interval, mean, t_quantile};
use super::{Interval, NotEnough, Slice};

/// From so many rounds on the interval is theirs alone, and does not miss one that came out too short.
const ENOUGH_ROUNDS: usize = 6;

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
    /// Slices left out: without packets, without time, with time taken from them, or from a CPU with too few blocks.
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
    /// Robust standard deviation of one slice of a copy, less the other variant's level in the block, in nanoseconds per
    /// packet.
    pub within_copy_sd_ns: f64,
    /// Copies of the baseline, in the first round.
    pub baseline_copies: usize,
    /// Copies of the candidate, in the first round.
    pub candidate_copies: usize,
    /// Whether the interval holds layout noise; with one copy on a side it can't, and is too narrow.
    pub layout_included: bool,
    /// Rounds, each with programs loaded anew; with several, the interval comes from their scatter.
    pub rounds: usize,
    /// Blocks the estimate is made of.
    pub blocks: usize,
    /// Slices the estimate is made of.
    pub slices_used: usize,
    /// Slices left out because no packet was counted or the time did not advance.
    pub slices_invalid: usize,
    /// Slices left out because they took more than twice their variant's median: time was taken from them.
    pub slices_tainted: usize,
    /// Slices left out because too few others of their block, or of their CPU, were there.
    pub slices_unpaired: usize,
    /// From the first slice's start to the last one's stop, in seconds; the sum over rounds.
    pub seconds: f64,
    /// The part of the squared standard error that more copies, not more time, bring down, in (ns per packet)²; 0 with
    /// several rounds, since more time is more rounds.
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
    absolute_of(slices, variant, level, FEWEST_BATCHES)
}

fn absolute_of(slices: &[Slice], variant: u16, level: Level, fewest_batches: usize) -> Result<Absolute, NotEnough> {
    let table = Table::new(slices, &[variant], fewest_batches)?;
    let side = Side::new(&table, variant);
    let spread = Spread::new(&table, &[&side], &side.batches)?;
    Ok(Absolute {
        cost: interval(side.location(), spread.variance, level)?,
        percentiles_5_50_95_99_ns: percentiles(slices.iter(), variant),
        copies: side.rows.len(),
        layout_included: spread.layout.is_some(),
        slices_used: table.slices_used,
        slices_left_out: table.slices_invalid + table.slices_tainted + table.slices_unpaired,
    })
}

/// The cost of `variant` over rounds, between which everything was loaded anew: the mean of the rounds' costs with Student's
/// interval, in which what moves from round to round is held. One round is [`absolute`]. Rounds that came out too short are left
/// out as [`compare_rounds`] does.
///
/// # Errors
///
/// [`NotEnough`] without rounds, or of the first round that has not enough.
pub fn absolute_rounds(rounds: &[&[Slice]], variant: u16, level: Level) -> Result<Absolute, NotEnough> {
    let (of_round, left_out) =
        whole_rounds(rounds, &[variant], |slices, fewest_batches| absolute_of(slices, variant, level, fewest_batches))?;
    let costs: Vec<f64> = of_round.iter().map(|round| round.cost.estimate).collect();
    let (Some(&first), Some(cost)) = (of_round.first(), mean(&costs)) else {
        return Err(NotEnough::Slices { variant });
    };
    let Some(variance) = Variance::of_mean(&costs) else { return Ok(first) };
    Ok(Absolute {
        cost: interval(cost, variance, level)?,
        percentiles_5_50_95_99_ns: percentiles(rounds.iter().copied().flatten(), variant),
        layout_included: true,
        slices_used: of_round.iter().map(|round| round.slices_used).sum(),
        slices_left_out: of_round.iter().map(|round| round.slices_left_out).sum::<usize>() + left_out,
        ..first
    })
}

fn percentiles<'a>(slices: impl Iterator<Item = &'a Slice>, variant: u16) -> [f64; 4] {
    let mut sorted: Vec<f64> =
        slices.filter(|slice| slice.variant == variant).filter_map(Slice::ns_per_packet).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    [0.05, 0.5, 0.95, 0.99].map(|p| percentile(&sorted, p).unwrap_or(0.0))
}

/// The cost of `candidate` minus that of `baseline`.
///
/// # Errors
///
/// [`NotEnough`] without slices of one of them or with too few blocks that hold both.
pub fn compare(slices: &[Slice], baseline: u16, candidate: u16, level: Level) -> Result<Comparison, NotEnough> {
    compare_of(slices, [baseline, candidate], level, FEWEST_BATCHES)
}

fn compare_of(
    slices: &[Slice],
    [baseline, candidate]: [u16; 2],
    level: Level,
    fewest_batches: usize,
) -> Result<Comparison, NotEnough> {
    let table = Table::new(slices, &[baseline, candidate], fewest_batches)?;
    let (before, after) = (Side::new(&table, baseline), Side::new(&table, candidate));
    // Each side is less the other one's level, so the distance between them is twice the difference.
    let batches: Vec<f64> =
        after.batches.iter().zip(&before.batches).map(|(after, before)| (after - before) / 2.0).collect();
    let spread = Spread::new(&table, &[&before, &after], &batches)?;
    let copies_weight = 1.0 / before.rows.len() as f64 + 1.0 / after.rows.len() as f64;
    let slice_sds: Vec<f64> = before.rows.iter().chain(&after.rows).map(|row| row.slice_sd_ns).collect();
    Ok(Comparison {
        difference: Difference::new((after.location() - before.location()) / 2.0, spread.variance, level)?,
        between_copies_sd_ns: spread.layout.map(|layout| (layout / copies_weight).sqrt()),
        within_copy_sd_ns: mean(&slice_sds).unwrap_or(0.0),
        baseline_copies: before.rows.len(),
        candidate_copies: after.rows.len(),
        layout_included: spread.layout.is_some(),
        rounds: 1,
        blocks: table.blocks,
        slices_used: table.slices_used,
        slices_invalid: table.slices_invalid,
        slices_tainted: table.slices_tainted,
        slices_unpaired: table.slices_unpaired,
        seconds: table.seconds,
        layout_variance_ns2: spread.layout.unwrap_or(0.0),
    })
}

/// The cost of `candidate` minus that of `baseline` over rounds, between which everything was loaded anew.
///
/// The copies of one round can share a fault that none of them shows: on one machine the same two programs differed by
/// 1.8 ns in one run and by 4.0 ns in the next, by the copies' scatter ± 0.3 and ± 0.9. With several rounds the *round*
/// is the unit: the interval is Student's about the mean of the rounds' differences. Take six or more: where a cost jumps
/// between two values, four rounds at 95 % hold the truth in 88 % (simulated), six to twelve in 93 % to 97 %. One round is
/// [`compare()`].
///
/// How blocks scatter within a round does not enter that interval, so with six rounds or more two batches of blocks are enough
/// for one, and rounds with fewer are left out as long as six remain: how many slices came, and not what they cost, decides.
/// Their slices are in [`Comparison::slices_unpaired`].
///
/// # Errors
///
/// [`NotEnough`] without rounds, or of the first round that has not enough.
pub fn compare_rounds(
    rounds: &[&[Slice]],
    baseline: u16,
    candidate: u16,
    level: Level,
) -> Result<Comparison, NotEnough> {
    let variants = [baseline, candidate];
    let (compared, left_out) =
        whole_rounds(rounds, &variants, |slices, fewest_batches| compare_of(slices, variants, level, fewest_batches))?;
    let deltas: Vec<f64> = compared.iter().map(|round| round.difference.delta.estimate).collect();
    let (Some(&first), Some(delta)) = (compared.first(), mean(&deltas)) else {
        return Err(NotEnough::Slices { variant: baseline });
    };
    let Some(variance) = Variance::of_mean(&deltas) else { return Ok(first) };
    let sum = |of: fn(&Comparison) -> usize| compared.iter().map(of).sum::<usize>();
    let average = |of: &dyn Fn(&Comparison) -> Option<f64>| mean(&compared.iter().map(of).collect::<Option<Vec<_>>>()?);
    Ok(Comparison {
        difference: Difference::new(delta, variance, level)?,
        between_copies_sd_ns: average(&|round| round.between_copies_sd_ns.map(|sd| sd.powi(2))).map(f64::sqrt),
        within_copy_sd_ns: average(&|round| Some(round.within_copy_sd_ns)).unwrap_or(first.within_copy_sd_ns),
        // Loaded anew, even a single copy lies elsewhere in each round.
        layout_included: true,
        rounds: compared.len(),
        blocks: sum(|round| round.blocks),
        slices_used: sum(|round| round.slices_used),
        slices_invalid: sum(|round| round.slices_invalid),
        slices_tainted: sum(|round| round.slices_tainted),
        slices_unpaired: sum(|round| round.slices_unpaired) + left_out,
        seconds: compared.iter().map(|round| round.seconds).sum(),
        layout_variance_ns2: 0.0,
        ..first
    })
}

/// What each round says, and how many slices of these variants are in rounds that say nothing; `of` is given the fewest batches
/// that will do.
fn whole_rounds<T>(
    rounds: &[&[Slice]],
    variants: &[u16],
    of: impl Fn(&[Slice], usize) -> Result<T, NotEnough>,
) -> Result<(Vec<T>, usize), NotEnough> {
    let enough = |rounds: usize| rounds >= ENOUGH_ROUNDS;
    let fewest = if enough(rounds.len()) { FEWEST_BATCHES_OF_ROUND } else { FEWEST_BATCHES };
    let found: Vec<Result<T, NotEnough>> = rounds.iter().map(|slices| of(slices, fewest)).collect();
    let is_short =
        |found: &Result<T, NotEnough>| matches!(found, Err(NotEnough::Blocks { .. } | NotEnough::Slices { .. }));
    let may_leave_out = enough(found.iter().filter(|found| !is_short(found)).count());
    let (mut whole, mut left_out) = (Vec::new(), 0);
    for (found, slices) in found.into_iter().zip(rounds) {
        if may_leave_out && is_short(&found) {
            left_out += slices.iter().filter(|slice| variants.contains(&slice.variant)).count();
        } else {
            whole.push(found?);
        }
    }
    Ok((whole, left_out))
}

/// The usual way, for showing beside: two runs one after the other, the mean time per packet of the second minus that
/// of the first, in nanoseconds; `None` where a run counted no packet. It has no interval: two numbers have none.
#[must_use]
pub fn sequential(first: &[Slice], second: &[Slice]) -> Option<f64> {
    Some(mean_cost(second)? - mean_cost(first)?)
}

fn mean_cost(run: &[Slice]) -> Option<f64> {
    let timed = run.iter().filter(|slice| slice.ns_per_packet().is_some());
    let packets: u64 = timed.clone().map(|slice| u64::from(slice.packets)).sum();
    let time_ns: u64 = timed.map(|slice| slice.stop_ns - slice.start_ns).sum();
    (packets > 0).then(|| time_ns as f64 / packets as f64)
}

/// How uncertain an estimate over copies and batches is.
struct Spread {
    variance: Variance,
    /// The part of the variance that only more copies bring down, in (ns per packet)²; `None` with one copy on a side.
    layout: Option<f64>,
}

impl Spread {
    /// `batches` is the estimate's own deviation in each batch.
    fn new(table: &Table, sides: &[&Side], batches: &[f64]) -> Result<Self, NotEnough> {
        let mut of_batch = batches.iter().copied();
        let series: Vec<Vec<f64>> = table
            .batch_cpus
            .chunk_by(|a, b| a == b)
            .map(|of_cpu| of_batch.by_ref().take(of_cpu.len()).collect())
            .collect();
        let over_time = Variance::of_series_mean(&series)
            .ok_or(NotEnough::Blocks { blocks: table.blocks, needed: BLOCKS_NEEDED })?;
        let between: Option<Vec<Variance>> = sides.iter().map(|side| Variance::of_mean(&side.locations)).collect();
        let Some(between) = between else {
            return Ok(Self { variance: over_time, layout: None });
        };
        // What is left in the cells is in the scatter of the copies and in that of the batches, but counts once.
        let cells: f64 = sides.iter().map(|side| side.cell_variance()).sum();
        let layout = between.iter().map(|part| part.value).sum::<f64>() - cells;
        let parts: Vec<Variance> = between.into_iter().chain(over_time.excess_over(cells)).collect();
        Ok(Self { variance: Variance::sum(&parts), layout: Some(layout.max(0.0)) })
    }
}

/// The copies of one variant.
struct Side<'a> {
    rows: Vec<&'a Row>,
    /// A location for each row, in ns per packet.
    locations: Vec<f64>,
    /// For each batch, the mean of the rows' deviations from their locations: a copy missing from a batch does not
    /// shift it.
    batches: Vec<f64>,
}

impl<'a> Side<'a> {
    fn new(table: &'a Table, variant: u16) -> Self {
        let (rows, locations): (Vec<&Row>, Vec<f64>) = table
            .rows
            .iter()
            .filter(|row| row.variant == variant)
            .filter_map(|row| Some((row, hodges_lehmann(&row.batches.iter().copied().flatten().collect::<Vec<_>>())?)))
            .unzip();
        let batches = (0..table.batch_cpus.len())
            .map(|batch| {
                let above: Vec<f64> = rows
                    .iter()
                    .zip(&locations)
                    .filter_map(|(row, location)| Some(row.batches[batch]? - location))
                    .collect();
                mean(&above).unwrap_or(0.0)
            })
            .collect();
        Self { rows, locations, batches }
    }

    fn location(&self) -> f64 {
        mean(&self.locations).unwrap_or(0.0)
    }

    /// The variance of [`Self::location`] from what neither copy nor batch explains.
    fn cell_variance(&self) -> f64 {
        let unexplained: Vec<f64> = self
            .rows
            .iter()
            .zip(&self.locations)
            .flat_map(|(row, location)| {
                row.batches.iter().zip(&self.batches).filter_map(move |(cell, batch)| Some((*cell)? - location - batch))
            })
            .collect();
        let spare = (unexplained.len() + 1).saturating_sub(self.rows.len() + self.batches.len());
        let squares: f64 = unexplained.iter().map(|left| left.powi(2)).sum();
        if spare > 0 { squares / spare as f64 / unexplained.len() as f64 } else { 0.0 }
    }
}
