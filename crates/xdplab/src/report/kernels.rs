//! Kernels compared, as text for a terminal.

use super::text::aligned;
use crate::kernels::compare::{Change, Comparison, Cost};
use crate::kernels::{CheckName, Instrument, KernelRuns, KernelsCase, Part, Profile, changes};

/// Functions shown of each case.
const TOP: usize = 10;

/// What was counted and how, a table for each candidate, checks, failures, and functions where there is a profile.
#[must_use]
pub fn kernels_text(case: &KernelsCase) -> String {
    let Some((baseline, candidates)) = case.kernels.split_first() else { return String::new() };
    let mut text = how(&case.instrument, case.plan.boots);
    for (index, candidate) in (1..).zip(candidates) {
        let rows: Vec<&Comparison> = case.comparisons.iter().filter(|row| row.candidate == index).collect();
        text += &kernels_table(baseline, candidate, &rows);
        text += &profiles(baseline, candidate, &rows);
    }
    text += &checks(&case.kernels);
    for kernel in &case.kernels {
        text += &failures(kernel);
    }
    text
}

/// The unit and the instrument.
pub(super) fn how(instrument: &Instrument, boots: u16) -> String {
    let [short, long] = instrument.packets;
    format!(
        "guest instructions per packet (TCG): work done, never time, rate or speed\nQEMU {}, CPU {}, 1 CPU; {} packets after \
         {short}, pktgen a fifth; {boots} boots of each kernel; guest {}\n\n",
        instrument.qemu,
        instrument.cpu,
        long - short,
        instrument.guest_sha256.get(..12).unwrap_or_default(),
    )
}

/// The table of one candidate.
#[must_use]
pub fn kernels_table(baseline: &KernelRuns, candidate: &KernelRuns, rows: &[&Comparison]) -> String {
    let mut names = [baseline.image.release.as_str(), candidate.image.release.as_str()];
    if names[0] == names[1] {
        names = ["baseline", "candidate"];
    }
    let header = ["case", names[0], names[1], "Δ", "verdict"];
    let shown = rows.iter().map(|row| {
        let delta = row.delta.map_or(String::new(), |delta| format!("{delta:+.2}"));
        vec![
            row.case.to_string(),
            cost(&row.baseline_cost),
            cost(&row.candidate_cost),
            delta,
            verdict(row.change).into(),
        ]
    });
    let mut text = aligned(&header, &[0, 4], shown.collect());
    text += "\n";
    for row in rows {
        for (side, cost) in [("baseline", &row.baseline_cost), ("candidate", &row.candidate_cost)] {
            text += &why(row, side, cost);
        }
    }
    text
}

fn cost(cost: &Cost) -> String {
    cost.per_packet().map_or("n/a".into(), |instructions| format!("{instructions:.2}"))
}

pub(super) fn verdict(change: Change) -> &'static str {
    match change {
        Change::More => "more",
        Change::Fewer => "fewer",
        Change::Same => "same",
        Change::NotDeterministic => "not deterministic",
        Change::NotAvailable => "not available",
    }
}

/// Why a side has no number.
pub(super) fn why(row: &Comparison, side: &str, cost: &Cost) -> String {
    match cost {
        Cost::Exact { .. } => String::new(),
        Cost::NotAvailable { why } => format!("{}: {side} not available: {why}\n", row.case),
        Cost::NotDeterministic { boots } => {
            let boots: Vec<String> =
                boots.iter().map(|(instructions, packets)| format!("{instructions}/{packets}")).collect();
            format!(
                "{}: {side} not deterministic: its boots took {} instructions/packets\n",
                row.case,
                boots.join(", ")
            )
        }
    }
}

/// Which functions changed, case by case.
fn profiles(baseline: &KernelRuns, candidate: &KernelRuns, rows: &[&Comparison]) -> String {
    let mut text = String::new();
    for row in rows {
        let of = |kernel: &KernelRuns| -> Option<Profile> {
            let boot = kernel.boots.first()?;
            boot.cases.iter().find(|counted| counted.case == row.case)?.profile.known().cloned()
        };
        let Some((before, after)) = of(baseline).zip(of(candidate)) else { continue };
        text += &format!(
            "\n{} by function: {:.2} -> {:.2} in all, of which the harness {:.2} -> {:.2}\n",
            row.case,
            before.total,
            after.total,
            before.part(Part::Harness),
            after.part(Part::Harness),
        );
        let changed = changes(&before, &after);
        let shown = changed.iter().take(TOP).map(|(name, before, after)| {
            vec![(*name).to_owned(), format!("{before:.2}"), format!("{after:.2}"), format!("{:+.2}", after - before)]
        });
        text += &aligned(&["function", "baseline", "candidate", "Δ"], &[0], shown.collect());
        if changed.len() > TOP {
            text += &format!(" and {} more in the record\n", changed.len() - TOP);
        }
    }
    text
}

/// A row for each check, a column for each kernel.
fn checks(kernels: &[KernelRuns]) -> String {
    let all: Vec<CheckName> = CheckName::ALL
        .into_iter()
        .filter(|check| kernels.iter().any(|kernel| outcome(kernel, *check).is_some()))
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let mut text = "\nseen to work (not counted: the scheduler decides)\n".to_owned();
    let header: Vec<&str> =
        ["check"].into_iter().chain(kernels.iter().map(|kernel| kernel.image.release.as_str())).collect();
    let rows = all.iter().map(|check| {
        let outcomes = kernels.iter().map(|kernel| match outcome(kernel, *check) {
            None => "not run".into(),
            Some(None) => "works".into(),
            Some(Some(_)) => "fails".into(),
        });
        [check.to_string()].into_iter().chain(outcomes).collect()
    });
    text += &aligned(&header, &[0], rows.collect());
    for kernel in kernels {
        for check in &all {
            if let Some(Some(why)) = outcome(kernel, *check) {
                text += &format!("{}: {check} fails: {why}\n", kernel.image.release);
            }
        }
    }
    text
}

/// The outcome of a check, if it ran: why it failed, if it did.
fn outcome(kernel: &KernelRuns, check: CheckName) -> Option<Option<&str>> {
    let checks = &kernel.checks.as_ref()?.checks;
    checks.iter().find(|(name, _)| *name == check).map(|(_, why)| why.as_deref())
}

/// Boots that failed, with the ends of their consoles.
pub(super) fn failures(kernel: &KernelRuns) -> String {
    let counting = (1..).zip(&kernel.boots).map(|(number, boot)| (format!("boot {number}"), &boot.outcome));
    let checking = kernel.checks.iter().map(|checks| ("the boot for checks".to_owned(), &checks.outcome));
    let mut text = String::new();
    for (name, outcome) in counting.chain(checking) {
        let Some(fault) = outcome.fault() else { continue };
        text += &format!("\n{}: {name}: {fault}\n", kernel.image.release);
        for line in outcome.console() {
            text += &format!("  | {line}\n");
        }
    }
    text
}
