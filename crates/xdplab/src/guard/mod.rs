//! Validity checks of a run: what was looked at, the number, the outcome, and the remedy.
//!
//! Pure: the checks see what was observed and nothing of the kernel. A failed guard makes every verdict of its run
//! inconclusive; none is hidden.

mod checks;

use serde::{Deserialize, Serialize};

pub(crate) use checks::REFUSED_WARN;
pub use checks::{MIN_SLICES, control, run_guards};

/// What a guard found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// There is nothing to check in this kind of run.
    NotApplicable,
    /// As it should be.
    Pass,
    /// Worth knowing; the verdict stands.
    Warn,
    /// The run does not mean what it should.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// Its name, stable, for programs.
    pub id: String,
    /// What it found.
    pub outcome: Outcome,
    /// The number looked at, with its unit.
    pub value: String,
    /// What the number means.
    pub reason: String,
    /// What to do about it; empty for a pass.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Guard {
    /// A check that found what it should.
    #[must_use]
    pub fn pass(id: &str, value: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            outcome: Outcome::Pass,
            value: value.into(),
            reason: reason.into(),
            remedy: String::new(),
        }
    }

    /// A check of something that this kind of run does not have.
    #[must_use]
    pub fn not_applicable(id: &str, reason: impl Into<String>) -> Self {
        Self { outcome: Outcome::NotApplicable, ..Self::pass(id, "", reason) }
    }

    /// A check that found something worth knowing.
    #[must_use]
    pub fn warn(id: &str, value: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { outcome: Outcome::Warn, remedy: remedy.into(), ..Self::pass(id, value, reason) }
    }

    /// A check that failed.
    #[must_use]
    pub fn fail(id: &str, value: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { outcome: Outcome::Fail, remedy: remedy.into(), ..Self::pass(id, value, reason) }
    }
}

/// The names of the guards that failed.
#[must_use]
pub fn failed(guards: &[Guard]) -> Vec<String> {
    guards.iter().filter(|guard| guard.outcome == Outcome::Fail).map(|guard| guard.id.clone()).collect()
}
