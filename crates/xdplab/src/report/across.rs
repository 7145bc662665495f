//! A comparison of records as text for a terminal.

use super::text::aligned;
use super::view::{verdict, why_inconclusive};
use crate::across::{Across, Corrected, EnvironmentDifference, ImportedSide};
use crate::run::Outcome;
use crate::stats::{Level, UnitsComparison};
use crate::units::Nanos;

/// Table, reasons and environment differences; `None` where the environment is not known.
#[must_use]
pub fn across_text(rows: &[Across], differences: Option<&[EnvironmentDifference]>, level: Level) -> String {
    let interval = format!("{:.0} % interval", level.get() * 100.0);
    let header =
        ["variant", "baseline ns", "boots", "candidate ns", "boots", "Δ ns", &interval, "Δ Mpps", "Δ %", "verdict"];
    let mut text = match rows {
        [] => String::new(),
        rows => aligned(&header, &[0, 9], rows.iter().map(row).collect()) + "\n",
    };
    for row in rows {
        text += &why_inconclusive(&row.variant, &row.verdict).map_or(String::new(), |why| why + "\n");
        text += &row.corrected.as_ref().map_or(String::new(), |corrected| clocks(&row.variant, corrected));
        if let Some(sides) = &row.imported {
            text += &imported(sides);
        }
    }
    match differences {
        None => text += "environment: not known for imported results\n",
        Some([]) => text += "environment: no difference\n",
        Some(differences) => {
            text += "environment differs:\n";
            for difference in differences {
                let (before, after) = (difference.baseline.join(" | "), difference.candidate.join(" | "));
                text += &format!("  {}: {before} -> {after}\n", difference.what);
            }
        }
    }
    text
}

/// What the difference is at one clock.
fn clocks(variant: &str, corrected: &Corrected) -> String {
    format!(
        "{variant}: the clocks differ (reference workload {:.1} -> {:.1} ns); at the baseline's clock Δ is {:+.2} ns{}, as far \
         as the cost does not wait for memory\n",
        corrected.baseline_reference_ns,
        corrected.candidate_reference_ns,
        corrected.delta_ns,
        match interval(&corrected.comparison) {
            Some(interval) => format!(" {interval}"),
            None => String::new(),
        }
    )
}

fn interval(comparison: &Outcome<UnitsComparison>) -> Option<String> {
    let delta = &comparison.estimate()?.difference.delta;
    Some(format!("[{:+.2}, {:+.2}]", delta.low, delta.high))
}

/// What was printed on both sides, and what its rounding leaves open where that shows.
fn imported([before, after]: &[ImportedSide; 2]) -> String {
    let side = |side: &ImportedSide| {
        let figure = side.figure.map_or("several results averaged".into(), |figure| format!("{figure} {}", side.unit));
        if before.labels == after.labels { figure } else { format!("{figure} [{}]", side.labels.join(", ")) }
    };
    let change = before.figure.zip(after.figure).filter(|(before, _)| before.value > 0.0);
    let change = change
        .map_or(String::new(), |(before, after)| format!(" ({:+.1} %)", 100.0 * (after.value / before.value - 1.0)));
    let open = before.rounding_ns + after.rounding_ns;
    let open = if open < 0.005 { String::new() } else { format!("; the digits as written leave ±{open:.2} ns open") };
    format!("  {} -> {}{change}{open}\n", side(before), side(after))
}

fn row(across: &Across) -> Vec<String> {
    let mean = |boots: &[f64]| boots.iter().sum::<f64>() / boots.len() as f64;
    let (before, after) = (mean(&across.baseline_ns), mean(&across.candidate_ns));
    let packets = across.imported.as_ref().is_none_or(|[side, _]| side.unit.is_of_packets());
    let rate = |ns: f64| Nanos(ns).to_rate().filter(|_| packets).map(|rate| rate.mpps());
    vec![
        across.variant.clone(),
        format!("{before:.2}"),
        across.baseline_ns.len().to_string(),
        format!("{after:.2}"),
        across.candidate_ns.len().to_string(),
        format!("{:+.2}", across.delta_ns),
        interval(&across.comparison).unwrap_or("unknown".into()),
        rate(before).zip(rate(after)).map_or("n/a".into(), |(before, after)| format!("{:+.3}", after - before)),
        format!("{:+.1}", 100.0 * across.delta_ns / before),
        verdict(&across.verdict).to_string(),
    ]
}
