//! From an interval to a decision, with reasons a program can read.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stats::{Comparison, Difference, Interval, NotEnough, UnitsComparison};

/// What a comparison says about the candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The candidate costs more.
    Slower,
    /// The candidate costs less.
    Faster,
    /// The difference is shown to be smaller than the margin.
    Equivalent {
        /// The margin, in nanoseconds per packet.
        margin_ns: f64,
    },
    /// Nothing is shown.
    Inconclusive {
        /// Every reason that applies.
        reasons: Vec<Reason>,
        /// Further run time, in seconds, until half the interval is about as wide as the margin (or else the floor);
        /// `None` where more time does not help.
        needs_seconds: Option<f64>,
    },
}

/// Why a comparison shows nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// A validity check of the run failed.
    GuardFailed {
        /// The guard's name.
        guard: String,
    },
    /// There are not enough data for an interval.
    NotEnough {
        /// What is missing.
        why: String,
    },
    /// Among this many candidates a difference like this one comes up by chance.
    ManyCandidates {
        /// The p-value corrected for their number (Benjamini-Hochberg).
        adjusted_p_value: f64,
    },
    /// One copy on a side: the change can't be told from where the program lies in memory.
    LayoutNotIncluded,
    /// The interval holds zero.
    IncludesZero {
        /// Half the interval's width, in nanoseconds per packet: what was resolved.
        resolved_ns: f64,
    },
    /// The effect is not larger than the stated floor.
    BelowFloor {
        /// The effect, in nanoseconds per packet.
        effect_ns: f64,
        /// The floor, in nanoseconds per packet.
        floor_ns: f64,
    },
    /// Baseline against itself showed as much.
    WithinControl {
        /// The effect, in nanoseconds per packet.
        effect_ns: f64,
        /// What the A/A control showed, in nanoseconds per packet.
        control_ns: f64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GuardFailed { guard } => write!(f, "the guard {guard} failed"),
            Self::NotEnough { why } => write!(f, "{why}"),
            Self::ManyCandidates { adjusted_p_value } => {
                write!(f, "with several candidates this may be chance (corrected p = {adjusted_p_value:.3})")
            }
            Self::LayoutNotIncluded => {
                write!(f, "one copy of a variant can't tell the change from where the program lies in memory")
            }
            Self::IncludesZero { resolved_ns } => {
                write!(f, "resolves {resolved_ns:.2} ns, and the interval holds zero")
            }
            Self::BelowFloor { effect_ns, floor_ns } => {
                write!(f, "the effect of {effect_ns:.2} ns is not above the floor of {floor_ns} ns")
            }
            Self::WithinControl { effect_ns, control_ns } => {
                write!(f, "the effect of {effect_ns:.2} ns is not above the {control_ns:.2} ns of the A/A control")
            }
        }
    }
}

/// The verdict where there is no comparison at all.
#[must_use]
pub fn not_enough(reason: &NotEnough, failed_guards: &[String]) -> Verdict {
    let mut reasons = guards(failed_guards);
    reasons.push(Reason::NotEnough { why: reason.to_string() });
    Verdict::Inconclusive { reasons, needs_seconds: None }
}

/// Decides about an interleaved comparison.
///
/// Slower or faster needs an interval without zero and an effect above both `floor_ns` and what the A/A control `aa`
/// showed: its difference, or its interval's far end where that interval excludes zero, since the method then promises
/// too much. Where several candidates were compared, `adjusted_p_value` must be small enough too. With a `margin_ns`, the
/// two one-sided tests within it come first. A failed guard leaves no decision.
#[must_use]
pub fn decide(
    comparison: &Comparison,
    aa: Option<&Comparison>,
    floor_ns: f64,
    margin_ns: Option<f64>,
    adjusted_p_value: Option<f64>,
    failed_guards: &[String],
) -> Verdict {
    let mut against = guards(failed_guards);
    if !comparison.layout_included {
        against.push(Reason::LayoutNotIncluded);
    }
    let control_ns = aa.map_or(0.0, |aa| control(&aa.difference));
    let decided = judge(&comparison.difference, floor_ns, control_ns, margin_ns, against);
    let alpha = 1.0 - comparison.difference.delta.level.get();
    let decided = match (decided, adjusted_p_value) {
        (Ok(Verdict::Slower | Verdict::Faster), Some(adjusted_p_value)) if adjusted_p_value > alpha => {
            Err(vec![Reason::ManyCandidates { adjusted_p_value }])
        }
        (decided, _) => decided,
    };
    decided.unwrap_or_else(|reasons| {
        let time_helps = failed_guards.is_empty() && comparison.layout_included;
        let needs_seconds = comparison.seconds_needed(margin_ns.unwrap_or(floor_ns));
        let needs_seconds = needs_seconds.filter(|&seconds| time_helps && seconds > 0.0);
        Verdict::Inconclusive { reasons, needs_seconds }
    })
}

/// Whether [`decide`] would call a comparison slower or faster with `added_ns` more in each of the candidate's slices, in ns per
/// packet: the estimate and its interval move by that, and nothing else changes.
#[must_use]
pub fn called_with(difference: &Difference, aa: &Difference, added_ns: f64, floor_ns: f64) -> bool {
    let Difference { delta, .. } = *difference;
    let moved = |ns: f64| ns + added_ns;
    let delta = Interval {
        estimate: moved(delta.estimate),
        low: moved(delta.low),
        high: moved(delta.high),
        level: delta.level,
    };
    judge(&Difference { delta, ..*difference }, floor_ns, control(aa), None, Vec::new()).is_ok()
}

/// Decides about a comparison of boots, or of settings taken in turn, by the rules of [`decide`]; `aa` is the control where
/// there is one, and there is none between boots.
#[must_use]
pub fn decide_units(
    comparison: &UnitsComparison,
    aa: Option<&UnitsComparison>,
    floor_ns: f64,
    margin_ns: Option<f64>,
    failed_guards: &[String],
) -> Verdict {
    let control_ns = aa.map_or(0.0, |aa| control(&aa.difference));
    judge(&comparison.difference, floor_ns, control_ns, margin_ns, guards(failed_guards))
        .unwrap_or_else(|reasons| Verdict::Inconclusive { reasons, needs_seconds: None })
}

fn guards(failed: &[String]) -> Vec<Reason> {
    failed.iter().map(|guard| Reason::GuardFailed { guard: guard.clone() }).collect()
}

fn control(aa: &Difference) -> f64 {
    if aa.delta.excludes_zero() { aa.delta.low.abs().max(aa.delta.high.abs()) } else { aa.delta.estimate.abs() }
}

fn judge(
    difference: &Difference,
    floor_ns: f64,
    control_ns: f64,
    margin_ns: Option<f64>,
    mut against: Vec<Reason>,
) -> Result<Verdict, Vec<Reason>> {
    if !against.is_empty() {
        return Err(against);
    }
    if let Some(margin_ns) = margin_ns.filter(|&margin_ns| difference.equivalent_within(margin_ns)) {
        return Ok(Verdict::Equivalent { margin_ns });
    }
    let delta = &difference.delta;
    let effect_ns = delta.estimate.abs();
    if !delta.excludes_zero() {
        against.push(Reason::IncludesZero { resolved_ns: delta.half_width() });
    }
    if effect_ns <= floor_ns {
        against.push(Reason::BelowFloor { effect_ns, floor_ns });
    }
    if effect_ns <= control_ns {
        against.push(Reason::WithinControl { effect_ns, control_ns });
    }
    match against.is_empty() {
        true if delta.estimate > 0.0 => Ok(Verdict::Slower),
        true => Ok(Verdict::Faster),
        false => Err(against),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Level, compare_units};

    /// Boots whose difference is `effect` ± about 0.2 ns.
    fn boots(effect: f64) -> UnitsComparison {
        let baseline = [70.0, 70.2, 69.8, 70.1, 69.9];
        compare_units(&baseline, &baseline.map(|cost| cost + effect), Level::default()).unwrap()
    }

    #[test]
    fn an_effect_above_its_interval_and_the_floor_is_slower_or_faster() {
        assert_eq!(decide_units(&boots(1.0), None, 0.25, None, &[]), Verdict::Slower);
        assert_eq!(decide_units(&boots(-1.0), None, 0.25, None, &[]), Verdict::Faster);
        assert_eq!(decide_units(&boots(0.1), None, 0.0, Some(0.5), &[]), Verdict::Equivalent { margin_ns: 0.5 });
    }

    #[test]
    fn a_failed_guard_leaves_no_decision_but_its_own_name() {
        let verdict = decide_units(&boots(5.0), None, 0.25, None, &["xdp_mode".to_owned()]);
        let reasons = vec![Reason::GuardFailed { guard: "xdp_mode".to_owned() }];
        assert_eq!(verdict, Verdict::Inconclusive { reasons, needs_seconds: None });
    }

    #[test]
    fn a_difference_that_is_added_is_called_where_interval_floor_and_control_allow_it() {
        let difference = |estimate: f64| Difference {
            delta: Interval { estimate, low: estimate - 0.2, high: estimate + 0.2, level: Level::default() },
            standard_error_ns: 0.1,
            degrees_of_freedom: 50.0,
            p_value: 0.5,
        };
        let called = |estimate, control, added| called_with(&difference(estimate), &difference(control), added, 0.1);
        assert!(!called(0.05, 0.0, 0.0));
        assert!(called(0.0, 0.0, 0.25) && called(0.0, 0.0, -0.25) && called(0.05, 0.0, 0.25));
        assert!(!called(-0.1, 0.0, 0.25), "the interval holds zero");
        assert!(!called(0.0, 0.19, 0.15), "the control showed more");
        assert!(!called(0.0, 0.21, 0.25), "the control promised too much, up to 0.41");
    }
}
