//! Kernels compared, as text for a terminal.

use super::text::{lines, table};
use super::view::{Finding, kernels};
use crate::kernels::compare::Comparison;
use crate::kernels::{KernelRuns, KernelsCase};

/// What was counted and how, a table for each candidate, failures, functions where there is a profile, and checks.
#[must_use]
pub fn kernels_text(case: &KernelsCase) -> String {
    let finding = |finding: &Finding| {
        let (set_up, notes) = (lines(&finding.set_up), lines(&finding.notes));
        format!(
            "{}\n{set_up}\n{}{}{notes}",
            finding.title,
            table(&finding.table),
            if notes.is_empty() { "" } else { "\n" }
        )
    };
    kernels::findings(case).iter().map(finding).collect::<Vec<_>>().join("\n")
}

/// The table of one candidate, and why a side has no number.
#[must_use]
pub fn kernels_table(baseline: &KernelRuns, candidate: &KernelRuns, rows: &[&Comparison]) -> String {
    let reasons: Vec<String> = kernels::reasons(rows).collect();
    table(&kernels::costs(baseline, candidate, rows)) + &lines(&reasons)
}
