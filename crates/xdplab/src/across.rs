//! Comparing records: runs that could not interleave, such as two kernels.
//!
//! The unit is the boot. What differs from boot to boot, and memory layout does, enters the interval only if there are
//! several boots a side; with one, the difference is shown and nothing is concluded from it. Imported results do not tell
//! their boot: they are one run a side, and how their intervals spread is shown and concludes nothing either.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::guard;
use crate::host::Environment;
use crate::import::{Cost, Imported, Series, Spread, Stated, Unit};
use crate::record::Record;
use crate::run::Outcome;
use crate::stats::{self, Level, UnitsComparison};
use crate::verdict::{self, Reason, Verdict};

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
    /// What other tools printed for baseline and candidate, where the variant was imported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported: Option<[ImportedSide; 2]>,
}

/// An imported result as one side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportedSide {
    /// Its label, or those of the results that are averaged.
    pub labels: Vec<String>,
    /// What the tool printed.
    pub figure: Option<Stated>,
    /// The figure's unit.
    pub unit: Unit,
    /// What the rounding of the figure as written leaves open either way, in ns per packet.
    pub rounding_ns: f64,
    /// How the run's intervals spread; absent where it is unknown.
    pub spread: Option<Spread>,
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
    let names =
        |records: &[Record]| -> Vec<String> { variants(records).into_iter().map(|variant| variant.name).collect() };
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
            let imported = imported_sides(baseline, candidate, &variant);
            let verdict = match (&imported, &comparison) {
                (Some(sides), _) => one_run_a_side(sides),
                (None, Ok(comparison)) => verdict::decide_units(comparison, None, floor_ns, margin_ns, &failed),
                (None, Err(reason)) => verdict::not_enough(reason, &failed),
            };
            let delta_ns = mean(&candidate_ns) - mean(&baseline_ns);
            Across { variant, baseline_ns, candidate_ns, delta_ns, comparison: comparison.into(), verdict, imported }
        })
        .collect())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A variant and its costs, each with the record it comes from.
struct Variant<'a> {
    name: String,
    costs: Vec<(usize, f64)>,
    imported: Vec<(&'a Imported, &'a Series, Cost)>,
}

/// Every variant with a cost, in the order in which they come up.
fn variants(records: &[Record]) -> Vec<Variant<'_>> {
    let mut variants: Vec<Variant<'_>> = Vec::new();
    let mut add = |name: String, index: usize, ns: f64, imported| {
        let found = variants.iter().position(|variant| variant.name == name);
        let place = found.unwrap_or_else(|| {
            variants.push(Variant { name, costs: Vec::new(), imported: Vec::new() });
            variants.len() - 1
        });
        variants[place].costs.push((index, ns));
        variants[place].imported.extend(imported);
    };
    // Results under one label are called by what they are of; the label tells them apart only where there are several.
    let labels: BTreeSet<&str> =
        records.iter().flat_map(|record| &record.imported).map(|block| block.label.as_str()).collect();
    for (index, record) in records.iter().enumerate() {
        for cost in record.cases.iter().flat_map(|case| &case.costs) {
            let Some(absolute) = cost.cost.estimate() else { continue };
            add(cost.variant.clone(), index, absolute.cost.estimate, None);
        }
        for (block, series) in record.imported.iter().flat_map(|block| block.series.iter().map(move |one| (block, one)))
        {
            let Some(cost) = series.cost else { continue };
            let name = if labels.len() > 1 { format!("{}: {}", block.title(), series.name()) } else { series.name() };
            add(name, index, cost.ns, Some((block, series, cost)));
        }
    }
    variants
}

/// For each variant its cost in each boot. Records that do not know their boot count as one boot together.
fn boots(records: &[Record]) -> BTreeMap<String, Vec<f64>> {
    let boot = |index: usize| records[index].environment.boot_id.known().cloned();
    variants(records)
        .into_iter()
        .map(|variant| {
            let mut by_boot: BTreeMap<Option<String>, Vec<f64>> = BTreeMap::new();
            for (index, cost) in variant.costs {
                by_boot.entry(boot(index)).or_default().push(cost);
            }
            (variant.name, by_boot.values().map(|costs| mean(costs)).collect())
        })
        .collect()
}

/// What was imported of the variant, if all of both sides was.
fn imported_sides(baseline: &[Record], candidate: &[Record], name: &str) -> Option<[ImportedSide; 2]> {
    let side = |records: &[Record]| {
        let variant = variants(records).into_iter().find(|variant| variant.name == name)?;
        let costs = &variant.imported;
        let (_, series, _) = costs.first().filter(|_| costs.len() == variant.costs.len())?;
        let spreads: Vec<Spread> = costs.iter().filter_map(|(_, _, cost)| cost.spread).collect();
        Some(ImportedSide {
            labels: costs.iter().map(|(block, _, _)| block.title().to_owned()).collect(),
            figure: series.figure().filter(|_| costs.len() == 1),
            unit: series.unit,
            rounding_ns: costs.iter().map(|(_, _, cost)| cost.rounding_ns).fold(0.0, f64::max),
            spread: spreads
                .into_iter()
                .reduce(Spread::and)
                .filter(|_| costs.iter().all(|(_, _, cost)| cost.spread.is_some())),
        })
    };
    Some([side(baseline)?, side(candidate)?])
}

fn one_run_a_side(sides: &[ImportedSide; 2]) -> Verdict {
    let spread = |side: &ImportedSide| match side.spread {
        Some(spread) => format!("{spread} within the run"),
        None => "spread unknown".into(),
    };
    let [before, after] = sides.each_ref().map(spread);
    let spread = if before == after { before } else { format!("baseline {before}, candidate {after}") };
    let why = format!("imported: one run a side can't separate the change from the run; {spread}");
    Verdict::Inconclusive { reasons: vec![Reason::NotEnough { why }], needs_seconds: None }
}

/// Keeps the variants whose name or label holds `text`, and calls them by the rest, so that variants which differ in it
/// can be compared.
///
/// # Errors
/// None holds it.
pub fn select(records: &mut [Record], text: &str) -> Result<()> {
    let without = |name: &str| name.replacen(text, "", 1).split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = false;
    for record in records.iter_mut() {
        for case in &mut record.cases {
            case.costs.retain(|cost| cost.variant.contains(text));
            case.costs.iter_mut().for_each(|cost| cost.variant = without(&cost.variant));
            found |= !case.costs.is_empty();
        }
        for block in &mut record.imported {
            if block.label.contains(text) {
                block.label = without(&block.label);
            } else {
                block.series.retain(|series| series.subject.contains(text));
                block.series.iter_mut().for_each(|series| series.subject = without(&series.subject));
            }
        }
        record.imported.retain(|block| !block.series.is_empty());
        found |= !record.imported.is_empty();
    }
    if found {
        return Ok(());
    }
    Err(Error::usage("compare the records", format!("no variant and no label holds `{text}`"))
        .remedy("`xdplab import` prints them"))
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
