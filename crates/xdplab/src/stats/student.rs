//! Student's t: from an estimate with a standard error to an interval, a p-value and an equivalence test.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{Interval, NotEnough};
use crate::error::Error;

/// The confidence of a two-sided interval, above 0.5 and below 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Level(f64);

impl Level {
    /// A level.
    ///
    /// # Errors
    ///
    /// A usage error unless `level` is above 0.5 and below 1.
    pub fn new(level: f64) -> crate::Result<Self> {
        if level > 0.5 && level < 1.0 {
            Ok(Self(level))
        } else {
            Err(Error::usage(format!("use {level} as confidence level"), "it must be above 0.5 and below 1")
                .remedy("0.95 is usual"))
        }
    }

    /// The level as a share, e.g. 0.95.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// 95 %.
impl Default for Level {
    fn default() -> Self {
        Self(0.95)
    }
}

impl TryFrom<f64> for Level {
    type Error = Error;

    fn try_from(level: f64) -> Result<Self, Error> {
        Self::new(level)
    }
}

impl From<Level> for f64 {
    fn from(level: Level) -> Self {
        level.0
    }
}

/// A variance with the degrees of freedom of its estimate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variance {
    pub(super) value: f64,
    pub(super) degrees_of_freedom: f64,
}

impl Variance {
    /// The sum of independent variance estimates, with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946).
    pub(super) fn sum(parts: &[Self]) -> Self {
        let value: f64 = parts.iter().map(|part| part.value).sum();
        let weights: f64 = parts.iter().map(|part| part.value.powi(2) / part.degrees_of_freedom).sum();
        let fewest = parts.iter().map(|part| part.degrees_of_freedom).fold(f64::INFINITY, f64::min);
        // Equal values everywhere leave 0 / 0; the fewest degrees of freedom are then the cautious choice.
        // Satterthwaite's formula falls below 1 where a part is itself a small difference of large variances; Student's t with
        // less than one degree of freedom has quantiles of hundreds, which says nothing about the data.
        let degrees_of_freedom = if weights > 0.0 { (value.powi(2) / weights).max(1.0) } else { fewest };
        Self { value, degrees_of_freedom }
    }

    /// The variance of the mean of independent `values`, from their scatter; `None` below two values.
    pub(super) fn of_mean(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let squares = squares(values, mean(values)?);
        (values.len() > 1).then(|| Self { value: squares / (count - 1.0) / count, degrees_of_freedom: count - 1.0 })
    }

    /// The variance of the mean over several series of values in the order of time, each about a level of its own;
    /// `None` unless a series has two values. Values that follow their neighbours (correlation r at lag one, over all
    /// series) tell less than their number: n (1 - r) / (1 + r) independent ones (Bartlett 1935). A negative r is taken
    /// as 0, and one above 0.8 as 0.8, where so few values can't tell it.
    pub(super) fn of_series_mean(series: &[Vec<f64>]) -> Option<Self> {
        let levels: Vec<f64> = series.iter().map(|values| mean(values).unwrap_or(0.0)).collect();
        let about_levels = || series.iter().zip(&levels);
        let count: f64 = series.iter().map(|values| values.len() as f64).sum();
        let spare = count - series.len() as f64;
        let squares: f64 = about_levels().map(|(values, &level)| squares(values, level)).sum();
        let neighbours: f64 = about_levels()
            .flat_map(|(values, level)| values.windows(2).map(move |pair| (pair[0] - level) * (pair[1] - level)))
            .sum();
        let correlation = if squares > 0.0 { (neighbours / squares).clamp(0.0, 0.8) } else { 0.0 };
        let fewer = (1.0 + correlation) / (1.0 - correlation);
        (spare > 0.0)
            .then(|| Self { value: squares / spare / count * fewer, degrees_of_freedom: (spare / fewer).max(1.0) })
    }

    /// This variance less `other`, a known one that it holds too, or zero; the uncertainty stays as it was.
    pub(super) fn excess_over(self, other: f64) -> Option<Self> {
        let value = self.value - other;
        (value > 0.0)
            .then(|| Self { value, degrees_of_freedom: self.degrees_of_freedom * (value / self.value).powi(2) })
    }
}

fn squares(values: &[f64], level: f64) -> f64 {
    values.iter().map(|value| (value - level).powi(2)).sum()
}

/// The arithmetic mean; `None` without values.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// A difference, candidate minus baseline, as a t statistic has it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The difference in nanoseconds per packet: above zero, the candidate costs more.
    pub delta: Interval,
    /// Standard error of the difference, in nanoseconds per packet.
    pub standard_error_ns: f64,
    /// Degrees of freedom of the standard error.
    pub degrees_of_freedom: f64,
    /// Two-sided p-value of "there is no difference".
    pub p_value: f64,
}

impl Difference {
    pub(super) fn new(estimate: f64, variance: Variance, level: Level) -> Result<Self, NotEnough> {
        let standard_error_ns = variance.value.sqrt();
        let student = student(variance.degrees_of_freedom)?;
        Ok(Self {
            delta: interval(estimate, variance, level)?,
            standard_error_ns,
            degrees_of_freedom: variance.degrees_of_freedom,
            p_value: match estimate.abs() / standard_error_ns {
                // 0 / 0: no difference and no scatter.
                t if t.is_nan() => 1.0,
                t => 2.0 * student.sf(t),
            },
        })
    }

    /// This difference less an independent `other` one, such as that of an earlier run of the same comparison.
    ///
    /// # Errors
    /// [`NotEnough::NotFinite`] where one of them is no finite number.
    pub fn less(&self, other: &Self) -> Result<Self, NotEnough> {
        let variance =
            |of: &Self| Variance { value: of.standard_error_ns.powi(2), degrees_of_freedom: of.degrees_of_freedom };
        let variance = Variance::sum(&[variance(self), variance(other)]);
        Self::new(self.delta.estimate - other.delta.estimate, variance, self.delta.level)
    }

    /// Whether two independent estimates may be of the same difference: the interval of the one less the other (Welch) holds zero.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.less(other).is_ok_and(|apart| !apart.delta.excludes_zero())
    }

    /// Whether the difference is shown to lie within ± `margin_ns` nanoseconds per packet: both of two one-sided tests
    /// (TOST, Schuirmann 1987), each with an error rate of 1 - level, reject a difference as large as the margin.
    #[must_use]
    pub fn equivalent_within(&self, margin_ns: f64) -> bool {
        student(self.degrees_of_freedom).is_ok_and(|student| {
            let reach = student.inverse_cdf(self.delta.level.get()) * self.standard_error_ns;
            self.delta.estimate.abs() + reach < margin_ns
        })
    }
}

/// The two-sided interval about `estimate`.
pub(super) fn interval(estimate: f64, variance: Variance, level: Level) -> Result<Interval, NotEnough> {
    let reach = t_quantile(variance.degrees_of_freedom, level)? * variance.value.sqrt();
    let (low, high) = (estimate - reach, estimate + reach);
    if low.is_finite() && high.is_finite() {
        Ok(Interval { estimate, low, high, level })
    } else {
        Err(NotEnough::NotFinite)
    }
}

/// Half the width of the two-sided interval, in standard errors.
pub(super) fn t_quantile(degrees_of_freedom: f64, level: Level) -> Result<f64, NotEnough> {
    Ok(student(degrees_of_freedom)?.inverse_cdf(f64::midpoint(1.0, level.get())))
}

fn student(degrees_of_freedom: f64) -> Result<StudentsT, NotEnough> {
    // Beyond ten thousand the quantile falls by another 0.012 %, less than statrs's error there.
    let degrees_of_freedom = if degrees_of_freedom > 1e4 { 1e4 } else { degrees_of_freedom };
    StudentsT::new(0.0, 1.0, degrees_of_freedom).or(Err(NotEnough::NotFinite))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    #[test]
    fn a_level_is_between_a_half_and_one() {
        for wrong in [f64::NAN, f64::INFINITY, -0.95, 0.0, 0.5, 1.0, 95.0] {
            assert!(Level::new(wrong).is_err(), "{wrong}");
        }
        assert_eq!(serde_json::from_str::<Level>("0.9").unwrap().get(), 0.9);
        let refused = serde_json::from_str::<Level>("95").unwrap_err().to_string();
        assert!(refused.contains("must be above 0.5 and below 1; 0.95 is usual"), "{refused}");
    }

    #[test]
    fn quantiles_are_those_of_the_printed_tables() {
        for (degrees, level, expected) in [
            (1.0, 0.95, 12.706_205),
            (2.0, 0.95, 4.302_653),
            (5.0, 0.95, 2.570_582),
            (5.0, 0.9, 2.015_048),
            (30.0, 0.95, 2.042_272),
            (1e9, 0.95, 1.960_201),
        ] {
            let found = t_quantile(degrees, Level::new(level).unwrap()).unwrap();
            assert!((found - expected).abs() < 2e-6, "{degrees} {level}: {found}");
        }
        assert_eq!(t_quantile(f64::NAN, Level::default()), Err(NotEnough::NotFinite));
    }

    #[test]
    fn no_scatter_is_a_certain_difference_or_none() {
        let none = Variance { value: 0.0, degrees_of_freedom: 3.0 };
        let same = Difference::new(0.0, none, Level::default()).unwrap();
        let other = Difference::new(0.5, none, Level::default()).unwrap();
        assert_eq!((same.p_value, other.p_value), (1.0, 0.0));
        assert!(same.equivalent_within(0.1) && !other.equivalent_within(0.1));
        assert_eq!(Variance::sum(&[none, none]).degrees_of_freedom, 3.0);
    }

    #[test]
    fn two_estimates_agree_as_far_as_their_joint_interval_reaches() {
        let of = |estimate| {
            Difference::new(estimate, Variance { value: 0.5, degrees_of_freedom: 5.0 }, Level::default()).unwrap()
        };
        // The standard error of the one less the other is 1, with 10 degrees of freedom: t is 2.228.
        assert!(of(1.0).agrees_with(&of(3.22)) && of(3.22).agrees_with(&of(1.0)));
        assert!(!of(1.0).agrees_with(&of(3.24)) && !of(3.24).agrees_with(&of(1.0)));
    }

    #[test]
    fn two_runs_that_see_the_same_differ_by_nothing_and_their_errors_add_up() {
        let found = |estimate| {
            let variance = Variance { value: 0.04, degrees_of_freedom: 7.0 };
            Difference::new(estimate, variance, Level::default()).unwrap()
        };
        let same = found(1.5).less(&found(1.4)).unwrap();
        assert!((same.delta.estimate - 0.1).abs() < 1e-12 && !same.delta.excludes_zero());
        assert!((same.standard_error_ns - 0.08f64.sqrt()).abs() < 1e-12);
        assert!((same.degrees_of_freedom - 14.0).abs() < 1e-9, "Welch with equal variances");
        assert!(found(1.5).less(&found(-1.5)).unwrap().delta.excludes_zero());
        assert_eq!(found(f64::MAX).less(&found(-f64::MAX)), Err(NotEnough::NotFinite));
    }

    #[test]
    fn neighbours_that_follow_each_other_widen_the_variance_of_their_mean() {
        let mut random = Pcg64Mcg::seed_from_u64(5);
        let (mut squares, mut estimates, mut naive) = (0.0, 0.0, 0.0);
        for _ in 0..2000 {
            // Correlation 0.5 at lag one; the mean is 0.
            let mut last = 0.0;
            let series: Vec<f64> = (0..132)
                .map(|_| {
                    last = 0.5 * last + random.random_range(-1.0..1.0);
                    last
                })
                .skip(100)
                .collect();
            squares += mean(&series).unwrap().powi(2);
            naive += Variance::of_mean(&series).unwrap().value;
            estimates += Variance::of_series_mean(&[series]).unwrap().value;
        }
        assert!(naive / squares < 0.45, "independent neighbours would be assumed: {}", naive / squares);
        assert!((0.8..1.2).contains(&(estimates / squares)), "{}", estimates / squares);
    }

    #[test]
    fn the_levels_of_different_cpus_are_no_scatter() {
        let apart = [vec![1.0, 2.0, 1.0, 2.0], vec![51.0, 52.0, 51.0, 52.0]];
        let together = [vec![1.0, 2.0, 1.0, 2.0], vec![1.0, 2.0, 1.0, 2.0]];
        let (apart, together) =
            (Variance::of_series_mean(&apart).unwrap(), Variance::of_series_mean(&together).unwrap());
        assert_eq!((apart.value, apart.degrees_of_freedom), (together.value, 6.0));
        assert!(Variance::of_series_mean(&[vec![1.0], vec![2.0]]).is_none());
    }

    proptest! {
        #[test]
        fn the_p_value_and_the_interval_agree(
            estimate in -3.0..3.0f64, value in 0.001..2.0f64, degrees_of_freedom in 1.0..1e7f64, level in 0.51..0.999,
        ) {
            let variance = Variance { value, degrees_of_freedom };
            let difference = Difference::new(estimate, variance, Level::new(level).unwrap()).unwrap();
            prop_assert_eq!(difference.delta.excludes_zero(), difference.p_value < 1.0 - level);
            // The end of the interval is where the p-value is 1 - level.
            let end = Difference::new(difference.delta.half_width(), variance, difference.delta.level).unwrap();
            prop_assert!((end.p_value - (1.0 - level)).abs() < 1e-6);
        }

        #[test]
        fn within_the_margin_is_where_the_interval_of_twice_the_error_lies_inside(
            estimate in -3.0..3.0f64, value in 0.001..2.0f64, degrees_of_freedom in 1.0..1e4f64, margin in 0.0..5.0,
        ) {
            let variance = Variance { value, degrees_of_freedom };
            let both = interval(estimate, variance, Level::new(0.9).unwrap()).unwrap();
            let difference = Difference::new(estimate, variance, Level::default()).unwrap();
            prop_assert_eq!(difference.equivalent_within(margin), -margin < both.low && both.high < margin);
        }
    }
}
