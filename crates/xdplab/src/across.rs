//! Comparing records: runs that could not interleave, such as two kernels.
//!
//! The unit is the boot. What differs from boot to boot, and memory layout does, enters the interval only if there are
//! several boots a side; with one, the difference is shown and nothing is concluded from it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::guard;
use crate::host::Environment;
use crate::record::Record;
use crate::run::Outcome;
use crate::stats::{self, Level, UnitsComparison};
use crate::verdict::{self, Verdict};

/// One variant in the records of both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Across {
    /// The variant.
    pub variant: String,
    /// Its cost in each boot of the baseline, in ns per packet; a boot's records are averaged.
    pub baseline_ns: Vec<f64>,
    /// Its cost in each boot of the candidate, in ns per packet.
    pub candidate_ns: Vec<f64>,
    /// The mean of the candidate's boots minus that of the baseline's, in ns per packet.
    pub delta_ns: f64,
    /// The difference with its interval, or why there is none.
    pub comparison: Outcome<UnitsComparison>,
    /// What it means.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Where the two sides' machines differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EnvironmentDifference {
    /// Path of the value, e.g. `kernel.release`.
    pub what: String,
    /// The baseline's values, each once.
    pub baseline: Vec<String>,
    /// The candidate's values, each once.
    pub candidate: Vec<String>,
}

/// Compares every variant that all records have.
///
/// # Errors
/// A side has no record, or the sides have no variant in common.
pub fn compare(
    baseline: &[Record],
    candidate: &[Record],
    level: Level,
    floor_ns: f64,
    margin_ns: Option<f64>,
) -> Result<Vec<Across>> {
    let names = |records: &[Record]| -> Vec<String> { variants(records).into_iter().map(|(name, _)| name).collect() };
    let (before, after) = (boots(baseline), boots(candidate));
    let common: Vec<String> = names(baseline)
        .into_iter()
        .filter(|name| [&before, &after].iter().all(|side| side.contains_key(name)))
        .collect();
    if common.is_empty() {
        let list = |records| names(records).join(", ");
        return Err(Error::usage(
            "compare the records",
            format!("they have no variant in common: [{}] and [{}]", list(baseline), list(candidate)),
        ));
    }
    let failed = failed_guards(baseline.iter().chain(candidate));
    Ok(common
        .into_iter()
        .map(|variant| {
            let (baseline_ns, candidate_ns) = (before[&variant].clone(), after[&variant].clone());
            let comparison = stats::compare_units(&baseline_ns, &candidate_ns, level);
            let verdict = match &comparison {
                Ok(comparison) => verdict::decide_units(comparison, None, floor_ns, margin_ns, &failed),
                Err(reason) => verdict::not_enough(reason, &failed),
            };
            let delta_ns = mean(&candidate_ns) - mean(&baseline_ns);
            Across { variant, baseline_ns, candidate_ns, delta_ns, comparison: comparison.into(), verdict }
        })
        .collect())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Every variant with a cost, in the order in which they come up, with the record it comes from.
fn variants(records: &[Record]) -> Vec<(String, Vec<(usize, f64)>)> {
    let mut variants: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        for cost in record.cases.iter().flat_map(|case| &case.costs) {
            let Some(absolute) = cost.cost.estimate() else { continue };
            let found = variants.iter().position(|(name, _)| *name == cost.variant);
            let place = found.unwrap_or_else(|| {
                variants.push((cost.variant.clone(), Vec::new()));
                variants.len() - 1
            });
            variants[place].1.push((index, absolute.cost.estimate));
        }
    }
    variants
}

/// For each variant its cost in each boot. Records that do not know their boot count as one boot together.
fn boots(records: &[Record]) -> BTreeMap<String, Vec<f64>> {
    let boot = |index: usize| records[index].environment.boot_id.known().cloned();
    variants(records)
        .into_iter()
        .map(|(name, costs)| {
            let mut by_boot: BTreeMap<Option<String>, Vec<f64>> = BTreeMap::new();
            for (index, cost) in costs {
                by_boot.entry(boot(index)).or_default().push(cost);
            }
            (name, by_boot.values().map(|costs| mean(costs)).collect())
        })
        .collect()
}

fn failed_guards<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<String> {
    let failed: BTreeSet<String> =
        records.flat_map(|record| &record.cases).flat_map(|case| guard::failed(&case.guards)).collect();
    failed.into_iter().collect()
}

/// What changes from minute to minute and tells nothing about the machine.
const FLEETING: [&str; 4] = ["boot_id", "uptime_s", "load_average", "frequency.current_mhz"];

/// Where the machines of the two sides differ.
#[must_use]
pub fn environment_differences(baseline: &[Record], candidate: &[Record]) -> Vec<EnvironmentDifference> {
    let (before, after) = (environment_values(baseline), environment_values(candidate));
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let none = BTreeSet::new();
    paths
        .into_iter()
        .map(|path| (path, before.get(path).unwrap_or(&none), after.get(path).unwrap_or(&none)))
        .filter(|(_, before, after)| before != after)
        .map(|(path, before, after)| EnvironmentDifference {
            what: path.clone(),
            baseline: before.iter().cloned().collect(),
            candidate: after.iter().cloned().collect(),
        })
        .collect()
}

fn environment_values(records: &[Record]) -> BTreeMap<String, BTreeSet<String>> {
    let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for record in records {
        for (path, value) in leaves(&record.environment) {
            values.entry(path).or_default().insert(value);
        }
    }
    values
}

fn leaves(environment: &Environment) -> Vec<(String, String)> {
    fn walk(path: &str, value: &Value, into: &mut Vec<(String, String)>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    walk(&if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, value, into);
                }
            }
            Value::String(text) => into.push((path.into(), text.clone())),
            other => into.push((path.into(), other.to_string())),
        }
    }
    let mut found = Vec::new();
    if let Ok(value) = serde_json::to_value(environment) {
        walk("", &value, &mut found);
    }
    found.retain(|(path, _)| !FLEETING.iter().any(|fleeting| path.starts_with(fleeting)));
    found
}
