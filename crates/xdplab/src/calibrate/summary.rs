//! The table of a calibration: error rates, coverage, bias and power. Pure.

use serde::Serialize;
use statrs::distribution::{Beta, ContinuousCDF};

use super::{Calibration, FOR_SLICE_SIZES, Outcome, Run};
use crate::device::Planted;
use crate::reading::Reading;
use crate::run::Plan;
use crate::stats::{Difference, hodges_lehmann, mad, median, percentile};
use crate::verdict::{self, Verdict};

/// What is added to one of two equal programs, in ns per packet.
pub const ADDED_NS: f64 = 0.25;

/// Comparisons of one kind and duration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was planted; none in an A/A comparison.
    pub planted: Option<Planted>,
    /// Seconds of such a comparison with one candidate.
    pub seconds: f64,
    /// Comparisons with a result.
    pub comparisons: usize,
    /// Comparisons without: too few slices.
    pub without_result: usize,
    /// The true difference in ns per packet: 0 between equal programs, else the location (Hodges and Lehmann's) of all
    /// comparisons of full length.
    pub truth_ns: f64,
    /// The standard error of the truth in ns per packet; absent between equal programs.
    pub truth_error_ns: Option<f64>,
    /// The difference of the programs alone, without a driver; absent between equal programs.
    pub alone: Option<Reading<Difference>>,
    /// The location of the estimates less the truth, in ns per packet; 0 by construction where the truth is that location.
    pub bias_ns: f64,
    /// The standard error of the location, in ns per packet.
    pub bias_error_ns: f64,
    /// 95 % of the estimates are off by less than this, in ns per packet.
    pub error_95_ns: f64,
    /// The median of half the interval's width, in ns per packet.
    pub half_width_ns: f64,
    /// Comparisons whose interval holds the truth.
    pub coverage: Proportion,
    /// Comparisons with the verdict slower or faster: false positives between equal programs, else the power.
    pub called_different: Proportion,
    /// Between programs that differ: runs whose two comparisons agree ([`Difference::agrees_with`]). What programs cost that
    /// touch memory changes with what else uses the caches, and so from run to run; within one it is the same.
    pub pairs_agree: Option<Proportion>,
    /// Between equal programs: comparisons called different with [`ADDED_NS`] added to one of them, and with as much taken off;
    /// the true difference is then known exactly.
    pub called_with_added: Option<Proportion>,
    /// Comparisons called faster that are slower; none between equal programs.
    pub wrong_sign: usize,
}

/// A share with its 95 % interval (Clopper and Pearson, Biometrika 26, 1934).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Proportion {
    /// How many.
    pub hits: usize,
    /// Of how many.
    pub of: usize,
    /// Lower end, 0 to 1.
    pub low: f64,
    /// Upper end, 0 to 1.
    pub high: f64,
}

impl Proportion {
    /// `hits` of `of`; an interval from 0 to 1 where there is nothing to count.
    #[must_use]
    pub fn new(hits: usize, of: usize) -> Self {
        let (count, misses) = (hits as f64, of.saturating_sub(hits) as f64);
        let end = |a: f64, b: f64, p: f64| Beta::new(a, b).map(|beta| beta.inverse_cdf(p)).ok();
        Self {
            hits,
            of,
            low: if hits == 0 { 0.0 } else { end(count, misses + 1.0, 0.025).unwrap_or(0.0) },
            high: if hits >= of { 1.0 } else { end(count + 1.0, misses, 0.975).unwrap_or(1.0) },
        }
    }

    /// The share, 0 to 1; none where there is nothing to count.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }
}

/// The rows: equal programs first, then each effect, each from short to long.
#[must_use]
pub fn rows(calibration: &Calibration) -> Vec<Row> {
    let outcomes: Vec<&Outcome> = calibration.runs.iter().flat_map(|run| &run.comparisons).collect();
    let effects = calibration.settings.effects.iter().copied().map(Some);
    let mut rows = Vec::new();
    for planted in [None].into_iter().chain(effects) {
        let of_kind: Vec<&Outcome> = outcomes
            .iter()
            .copied()
            .filter(|outcome| planted.map_or(!outcome.planted, |planted| outcome.planted && outcome.of == planted))
            .collect();
        for part in super::PARTS {
            rows.extend(row(calibration, planted, part, &of_kind));
        }
    }
    rows
}

fn row(calibration: &Calibration, planted: Option<Planted>, part: f64, of_kind: &[&Outcome]) -> Option<Row> {
    let of_part = |part: f64| of_kind.iter().filter(move |outcome| outcome.part.total_cmp(&part).is_eq());
    let full: Vec<f64> = of_part(1.0).filter_map(|outcome| Some(outcome.difference.known()?.delta.estimate)).collect();
    let (truth_ns, truth_error_ns) = match planted {
        None => (0.0, None),
        Some(_) => located(&full).map(|(location, error)| (location, Some(error)))?,
    };
    let known: Vec<&Difference> = of_part(part).filter_map(|outcome| outcome.difference.known()).collect();
    let estimates: Vec<f64> = known.iter().map(|difference| difference.delta.estimate).collect();
    let mut widths: Vec<f64> = known.iter().map(|difference| difference.delta.half_width()).collect();
    let holds = |difference: &&&Difference| (difference.delta.low..=difference.delta.high).contains(&truth_ns);
    let verdicts = |of: fn(&Verdict) -> bool| of_part(part).filter(|outcome| of(&outcome.verdict)).count();
    let (slower, faster) = (verdicts(|v| *v == Verdict::Slower), verdicts(|v| *v == Verdict::Faster));
    let (location_ns, bias_error_ns) = located(&estimates)?;
    Some(Row {
        planted,
        seconds: calibration.settings.seconds * part,
        comparisons: known.len(),
        without_result: of_part(part).count() - known.len(),
        truth_ns,
        truth_error_ns,
        alone: planted.and_then(|planted| {
            let of_alone = calibration.alone.iter().flatten().find(|(effect, _)| *effect == planted);
            of_alone.map(|(_, difference)| difference.clone())
        }),
        bias_ns: location_ns - truth_ns,
        bias_error_ns,
        error_95_ns: error_95(&estimates, truth_ns)?,
        half_width_ns: median(&mut widths)?,
        coverage: Proportion::new(known.iter().filter(holds).count(), known.len()),
        called_different: Proportion::new(slower + faster, of_part(part).count()),
        pairs_agree: planted.map(|planted| pairs_agree(calibration, planted, part)),
        called_with_added: planted.is_none().then(|| called_with_added(calibration, part)),
        wrong_sign: if planted.is_some() { faster } else { 0 },
    })
}

fn pairs_agree(calibration: &Calibration, planted: Planted, part: f64) -> Proportion {
    let of_run = |run: &Run| {
        let mut found = run
            .comparisons
            .iter()
            .filter(|outcome| outcome.planted && outcome.of == planted && outcome.part.total_cmp(&part).is_eq())
            .filter_map(|outcome| outcome.difference.known());
        Some(found.next()?.agrees_with(found.next()?))
    };
    let agree: Vec<bool> = calibration.runs.iter().filter_map(of_run).collect();
    Proportion::new(agree.iter().filter(|agree| **agree).count(), agree.len())
}

fn called_with_added(calibration: &Calibration, part: f64) -> Proportion {
    let mut called = Vec::new();
    for run in &calibration.runs {
        let of_part: Vec<&Outcome> = run
            .comparisons
            .iter()
            .filter(|outcome| !outcome.planted && outcome.part.total_cmp(&part).is_eq())
            .collect();
        for (index, outcome) in of_part.iter().enumerate() {
            let control = of_part[(index + 1) % of_part.len()];
            let (Some(difference), Some(control)) = (outcome.difference.known(), control.difference.known()) else {
                continue;
            };
            called.extend([ADDED_NS, -ADDED_NS].map(|added_ns| {
                run.failed_guards.is_empty() && verdict::called_with(difference, control, added_ns, Plan::FLOOR_NS)
            }));
        }
    }
    Proportion::new(called.iter().filter(|called| **called).count(), called.len())
}

/// Hodges and Lehmann's location, and its standard error from the median absolute deviation: a copy that lies badly in memory
/// makes one result in many differ by far more than the others.
fn located(values: &[f64]) -> Option<(f64, f64)> {
    let location = hodges_lehmann(values)?;
    Some((location, mad(&mut values.to_vec())? / (values.len() as f64).sqrt()))
}

fn error_95(values: &[f64], truth_ns: f64) -> Option<f64> {
    let mut errors: Vec<f64> = values.iter().map(|value| (value - truth_ns).abs()).collect();
    errors.sort_unstable_by(f64::total_cmp);
    percentile(&errors, 0.95)
}

/// One planted difference by slice length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SliceSizes {
    /// What was planted.
    pub planted: Planted,
    /// Packets of a slice, and the difference.
    pub differences: Vec<(u32, Reading<Difference>)>,
    /// Whether the intervals have a value in common; absent with fewer than two results.
    pub agree: Option<bool>,
}

/// Whether the length of slices matters.
#[must_use]
pub fn slice_sizes(calibration: &Calibration) -> SliceSizes {
    let known: Vec<&Difference> =
        calibration.slice_sizes.iter().filter_map(|(_, difference)| difference.known()).collect();
    SliceSizes { planted: FOR_SLICE_SIZES, differences: calibration.slice_sizes.clone(), agree: agree(&known) }
}

fn agree(known: &[&Difference]) -> Option<bool> {
    let highest_low = known.iter().map(|difference| difference.delta.low).fold(f64::NEG_INFINITY, f64::max);
    let lowest_high = known.iter().map(|difference| difference.delta.high).fold(f64::INFINITY, f64::min);
    (known.len() > 1).then_some(highest_low <= lowest_high)
}

/// The usual way: two runs of the same program one after the other, and the difference of their means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Usual {
    /// Comparisons with a result.
    pub comparisons: usize,
    /// Seconds of each run.
    pub seconds: f64,
    /// Half of the results are off by less than this, in ns per packet.
    pub error_50_ns: f64,
    /// 95 % of the results are off by less than this, in ns per packet.
    pub error_95_ns: f64,
}

/// How far the usual way is off; none without a result.
#[must_use]
pub fn usual(calibration: &Calibration) -> Option<Usual> {
    let mut errors: Vec<f64> =
        calibration.runs.iter().filter_map(|run| run.usual_ns.known()).map(|delta| delta.abs()).collect();
    errors.sort_unstable_by(f64::total_cmp);
    Some(Usual {
        comparisons: errors.len(),
        seconds: calibration.settings.seconds / 2.0,
        error_50_ns: percentile(&errors, 0.5)?,
        error_95_ns: percentile(&errors, 0.95)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proportion_has_the_interval_of_the_tables() {
        // Clopper-Pearson as published: 0 of 20 gives 0 to 16.84 %, 10 of 20 gives 27.20 to 72.80 %.
        let close = |a: f64, b: f64| assert!((a - b).abs() < 5e-5, "{a} {b}");
        let none = Proportion::new(0, 20);
        close(none.low, 0.0);
        close(none.high, 0.1684);
        let half = Proportion::new(10, 20);
        close(half.low, 0.2720);
        close(half.high, 0.7280);
        assert_eq!((Proportion::new(20, 20).high, Proportion::new(0, 0).share()), (1.0, None));
    }
}
