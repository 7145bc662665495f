//! Comparing runs that can't interleave: two kernels, two firmwares, two boots.

use serde::{Deserialize, Serialize};

use super::student::{Difference, Level, Variance, interval, mean};
use super::{Interval, NotEnough};

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

/// Compares costs that were taken in turn, pair by pair, in nanoseconds per packet: Student's t about the mean of the pairs'
/// differences. What moves both of a pair is gone.
///
/// # Errors
///
/// Fewer than two pairs have no scatter, and values that are not finite have no mean.
pub fn compare_pairs(pairs: &[(f64, f64)], level: Level) -> Result<UnitsComparison, NotEnough> {
    let deltas: Vec<f64> = pairs.iter().map(|(baseline, candidate)| candidate - baseline).collect();
    let too_few = NotEnough::Pairs { pairs: pairs.len() };
    let (Some(delta), Some(variance)) = (mean(&deltas), Variance::of_mean(&deltas)) else { return Err(too_few) };
    Ok(UnitsComparison {
        difference: Difference::new(delta, variance, level)?,
        baseline_units: pairs.len(),
        candidate_units: pairs.len(),
    })
}

/// The mean of one cost a unit (round), in nanoseconds per packet, with Student's interval.
///
/// # Errors
///
/// Fewer than two units have no scatter, and values that are not finite have no mean.
pub fn mean_interval(costs: &[f64], level: Level) -> Result<Interval, NotEnough> {
    let too_few = NotEnough::Pairs { pairs: costs.len() };
    let (Some(cost), Some(variance)) = (mean(costs), Variance::of_mean(costs)) else { return Err(too_few) };
    interval(cost, variance, level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_the_published_one_for_students_sleep_data() {
        // R: t.test(extra ~ group, data = sleep), turned round.
        let first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let found = compare_units(&first, &second, Level::default()).unwrap().difference;
        for (found, expected) in [
            (found.delta.estimate, 1.58),
            (found.delta.low, -0.205_483_2),
            (found.delta.high, 3.365_483_2),
            (found.degrees_of_freedom, 17.776_47),
            (found.p_value, 0.079_394_14),
        ] {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    #[test]
    fn one_boot_on_a_side_is_a_reason_and_no_interval() {
        let units = |baseline, candidate| Err(NotEnough::Units { baseline, candidate });
        assert_eq!(compare_units(&[70.0], &[71.0], Level::default()), units(1, 1));
        assert_eq!(compare_units(&[70.0, 70.1, 70.2], &[71.0], Level::default()), units(3, 1));
        assert_eq!(compare_units(&[], &[71.0, 72.0], Level::default()), units(0, 2));
        let why = NotEnough::Units { baseline: 1, candidate: 1 }.to_string();
        assert!(why.ends_with("one boot a side can't separate the change from the boot"), "{why}");
    }

    #[test]
    fn what_is_not_a_number_gives_none() {
        assert_eq!(compare_units(&[70.0, f64::NAN], &[71.0, 72.0], Level::default()), Err(NotEnough::NotFinite));
        assert_eq!(compare_units(&[70.0, 71.0], &[f64::INFINITY, 72.0], Level::default()), Err(NotEnough::NotFinite));
    }
}
