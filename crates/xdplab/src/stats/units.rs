//! Comparing runs that can't interleave: two kernels, two firmwares, two boots.

use serde::{Deserialize, Serialize};

use super::NotEnough;
use super::student::{Difference, Level, Variance, mean};

/// Candidate minus baseline where whole units (boots) are the sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitsComparison {
    /// The difference.
    #[serde(flatten)]
    pub difference: Difference,
    /// Units of the baseline.
    pub baseline_units: usize,
    /// Units of the candidate.
    pub candidate_units: usize,
}

/// Compares one cost a unit (boot), in nanoseconds per packet, by Welch's unequal-variance t (Biometrika 34, 1947).
///
/// # Errors
///
/// With fewer than two units on a side the change can't be told from the unit, and values that are not finite have no
/// mean.
pub fn compare_units(baseline: &[f64], candidate: &[f64], level: Level) -> Result<UnitsComparison, NotEnough> {
    let (baseline_units, candidate_units) = (baseline.len(), candidate.len());
    let too_few = NotEnough::Units { baseline: baseline_units, candidate: candidate_units };
    let variances = [Variance::of_mean(baseline), Variance::of_mean(candidate)];
    let ([Some(baseline_variance), Some(candidate_variance)], Some(before), Some(after)) =
        (variances, mean(baseline), mean(candidate))
    else {
        return Err(too_few);
    };
    let variance = Variance::sum(&[baseline_variance, candidate_variance]);
    Ok(UnitsComparison {
        difference: Difference::new(after - before, variance, level)?,
        baseline_units,
        candidate_units,
    })
}
