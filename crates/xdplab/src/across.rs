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
use crate::import::{Cost, Imported, Series, Spread, Stated, Unit};
use crate::live::LiveRun;
use crate::record::Record;
use crate::reference::Reference;
use crate::run::{self, Case, Engine, Outcome, PROGRAM_ONLY};
use crate::scenario;
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
    /// The same at the baseline's clock, where the reference workload says that the clocks differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected: Option<Corrected>,
    /// What other tools printed for baseline and candidate, where the variant was imported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported: Option<[ImportedSide; 2]>,
}

/// A difference whose costs were all brought to the baseline's clock: each boot's cost times the baseline's time for the
/// reference workload over that boot's. Right as far as a cost waits for the core; what waits for memory does not follow the
/// core's clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Corrected {
    /// What 1000 dependent multiplications took beside the baseline, in nanoseconds ([`crate::reference`]).
    pub baseline_reference_ns: f64,
    /// The same beside the candidate.
    pub candidate_reference_ns: f64,
    /// The corrected difference, in ns per packet.
    pub delta_ns: f64,
    /// The corrected difference with its interval, or why there is none.
    pub comparison: Outcome<UnitsComparison>,
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
    let labelled = [baseline, candidate].into_iter().any(|records| labels(records).len() > 1);
    let (before, after) = (variants(baseline, labelled), variants(candidate, labelled));
    let by_name: BTreeMap<&str, &Variant<'_>> = after.iter().map(|variant| (variant.name.as_str(), variant)).collect();
    let pairs: Vec<(&Variant<'_>, &Variant<'_>)> =
        before.iter().filter_map(|variant| Some((variant, *by_name.get(variant.name.as_str())?))).collect();
    if pairs.is_empty() {
        return Err(Error::usage(
            "compare the records",
            format!("they have no variant in common: [{}] and [{}]", list(&before), list(&after)),
        ));
    }
    let failed = failed_guards(baseline.iter().chain(candidate));
    Ok(pairs
        .into_iter()
        .map(|(before, after)| {
            let (baseline_ns, candidate_ns) = (before.boots(), after.boots());
            let comparison = stats::compare_units(&baseline_ns, &candidate_ns, level);
            let imported = before.imported_side().zip(after.imported_side()).map(<[ImportedSide; 2]>::from);
            let verdict = match (&imported, &comparison) {
                (Some(sides), _) => one_run_a_side(sides),
                (None, Ok(comparison)) => verdict::decide_units(comparison, None, floor_ns, margin_ns, &failed),
                (None, Err(reason)) => verdict::not_enough(reason, &failed),
            };
            let delta_ns = mean(&candidate_ns) - mean(&baseline_ns);
            let variant = before.name.clone();
            let corrected = corrected(before, after, level);
            let comparison = comparison.into();
            Across { variant, baseline_ns, candidate_ns, delta_ns, comparison, verdict, corrected, imported }
        })
        .collect())
}

/// The difference at the baseline's clock; none where the clocks differ by no more than they scatter, or are not known.
fn corrected(before: &Variant<'_>, after: &Variant<'_>, level: Level) -> Option<Corrected> {
    let (baseline, candidate) = (before.references()?, after.references()?);
    let (baseline_reference_ns, candidate_reference_ns) = (mean(&baseline), mean(&candidate));
    let scatter_ns = before.references.iter().chain(&after.references).map(|(_, reference)| reference.spread_ns());
    if (baseline_reference_ns - candidate_reference_ns).abs() <= scatter_ns.fold(0.0, f64::max) {
        return None;
    }
    let at_baseline = |costs: Vec<f64>, references: &[f64]| -> Vec<f64> {
        costs.into_iter().zip(references).map(|(cost, reference)| cost * baseline_reference_ns / reference).collect()
    };
    let (baseline, candidate) = (at_baseline(before.boots(), &baseline), at_baseline(after.boots(), &candidate));
    Some(Corrected {
        baseline_reference_ns,
        candidate_reference_ns,
        delta_ns: mean(&candidate) - mean(&baseline),
        comparison: stats::compare_units(&baseline, &candidate, level).into(),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A variant and its costs.
#[derive(Default)]
struct Variant<'a> {
    name: String,
    /// The costs in each boot. Records that do not know their boot count as one boot together.
    by_boot: BTreeMap<Option<&'a str>, Vec<f64>>,
    /// The reference workload beside its runs, with their boots.
    references: Vec<(Option<&'a str>, Reference)>,
    /// Whether it was measured here in any record.
    measured: bool,
    imported: Vec<(&'a Imported, &'a Series, Cost)>,
}

impl Variant<'_> {
    fn boots(&self) -> Vec<f64> {
        self.by_boot.values().map(|costs| mean(costs)).collect()
    }

    /// The reference workload's time in each boot, in nanoseconds; none if a boot has none.
    fn references(&self) -> Option<Vec<f64>> {
        let of_boot = |boot: &Option<&str>| -> Option<f64> {
            let times: Vec<f64> =
                self.references.iter().filter(|(of, _)| of == boot).map(|(_, reference)| reference.ns()).collect();
            (!times.is_empty()).then(|| mean(&times))
        };
        self.by_boot.keys().map(of_boot).collect()
    }

    /// What was imported of it, if all of it was.
    fn imported_side(&self) -> Option<ImportedSide> {
        let (_, series, _) = self.imported.first().filter(|_| !self.measured)?;
        let costs = || self.imported.iter().map(|(_, _, cost)| cost);
        let spreads: Option<Vec<Spread>> = costs().map(|cost| cost.spread).collect();
        Some(ImportedSide {
            labels: self.imported.iter().map(|(block, _, _)| block.title().to_owned()).collect(),
            figure: series.figure().filter(|_| self.imported.len() == 1),
            unit: series.unit,
            rounding_ns: costs().map(|cost| cost.rounding_ns).fold(0.0, f64::max),
            spread: spreads.and_then(|spreads| spreads.into_iter().reduce(Spread::and)),
        })
    }
}

fn labels(records: &[Record]) -> BTreeSet<&str> {
    records.iter().flat_map(|record| &record.imported).map(|block| block.label.as_str()).collect()
}

/// The names of the first variants.
fn list(variants: &[Variant<'_>]) -> String {
    const SHOWN: usize = 20;
    let mut names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).take(SHOWN).collect();
    if variants.len() > SHOWN {
        names.push("…");
    }
    names.join(", ")
}

/// Every variant with a cost, in the order in which they come up. Imported ones are called by what they are of, after
/// their label where they are `labelled`.
fn variants(records: &[Record], labelled: bool) -> Vec<Variant<'_>> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut variants: Vec<Variant<'_>> = Vec::new();
    for record in records {
        let boot = record.environment.boot_id.known().map(String::as_str);
        let measured = record.cases.iter().enumerate().flat_map(|(index, case)| {
            let reference = case.observed.reference.known().copied();
            let label = label_of(record, index);
            let name = move |cost| format!("{label}{}", name_of(case, cost));
            let costs = case.costs.iter();
            costs.filter_map(move |cost| Some((name(cost), cost.shown()?.estimate, reference, None)))
        });
        let series = record.imported.iter().flat_map(|block| block.series.iter().map(move |series| (block, series)));
        let imported = series.filter_map(|(block, series)| {
            let name = if labelled { format!("{}: {}", block.title(), series.name()) } else { series.name() };
            Some((name, series.cost?.ns, None, Some((block, series, series.cost?))))
        });
        let live = record.live_runs.iter().filter_map(|run| {
            let received = run.end.as_ref()?.total.received.as_ref()?;
            Some((live_name(run), received.ns_per_packet?.0, None, None))
        });
        for (name, ns, reference, imported) in measured.chain(imported).chain(live) {
            let place = *places.entry(name.clone()).or_insert(variants.len());
            if place == variants.len() {
                variants.push(Variant { name, ..Variant::default() });
            }
            variants[place].by_boot.entry(boot).or_default().push(ns);
            variants[place].references.extend(reference.map(|reference| (boot, reference)));
            variants[place].measured |= imported.is_none();
            variants[place].imported.extend(imported);
        }
    }
    variants
}

/// The same program in another case of a scenario is another thing.
fn label_of(record: &Record, case: usize) -> String {
    let done = record.scenario.iter().flat_map(|run| &run.done);
    let of_case = done.filter(|done| done.outcome == scenario::Outcome::Case(case)).map(|done| &done.label);
    of_case.map(|label| format!("{label}: ")).next().unwrap_or_default()
}

/// A program alone is another thing than the same program on live traffic.
fn name_of(case: &Case, cost: &run::Cost) -> String {
    match case.plan.engine {
        Engine::Slices => cost.variant.clone(),
        Engine::TestRun { cold } => {
            format!("{} ({PROGRAM_ONLY}, {})", cost.variant, if cold { "cold" } else { "warm" })
        }
    }
}

/// A program on an interface, at the rate at which packets came.
fn live_name(run: &LiveRun) -> String {
    match &run.start.attached {
        Some(attached) => format!("{} on {} (live)", attached.program, attached.interface),
        None => format!("{} (live)", run.start.command),
    }
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
        // Live commands have no names of the user's.
        record.live_runs.clear();
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

/// Where the machines of the two sides differ, and the tools that measured.
#[must_use]
pub fn environment_differences(baseline: &[Record], candidate: &[Record]) -> Vec<EnvironmentDifference> {
    differences(&environment_values(baseline), &environment_values(candidate))
}

/// Where two values differ; their paths begin with `name`.
pub(crate) fn value_differences<T: Serialize>(name: &str, baseline: &T, candidate: &T) -> Vec<EnvironmentDifference> {
    let values = |of: &T| leaves(name, of).into_iter().map(|(path, value)| (path, BTreeSet::from([value]))).collect();
    differences(&values(baseline), &values(candidate))
}

/// Each path's values, each once.
type Values = BTreeMap<String, BTreeSet<String>>;

fn differences(before: &Values, after: &Values) -> Vec<EnvironmentDifference> {
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

fn environment_values(records: &[Record]) -> Values {
    let mut values = Values::new();
    for record in records {
        let machine = leaves("", &record.environment).into_iter();
        let machine = machine.filter(|(path, _)| !FLEETING.iter().any(|fleeting| path.starts_with(fleeting)));
        let objects = leaves("tool.bpf_objects_sha256", &record.tool.bpf_objects_sha256);
        let version = ("tool.version".to_owned(), record.tool.version.clone());
        for (path, value) in machine.chain(objects).chain([version]) {
            values.entry(path).or_default().insert(value);
        }
    }
    values
}

/// Every value with its path, e.g. `kernel.release`, behind the path of the whole.
pub(crate) fn leaves(path: &str, whole: &impl Serialize) -> Vec<(String, String)> {
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
    if let Ok(value) = serde_json::to_value(whole) {
        walk(path, &value, &mut found);
    }
    found
}
