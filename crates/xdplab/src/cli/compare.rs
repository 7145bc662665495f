//! `xdplab compare`: records of two sides, by boots. Needs no privileges.

use std::path::Path;

use clap::Args;

use super::{Ending, output};
use crate::across;
use crate::error::{Error, Result};
use crate::kernels::{self, CaseName, KernelsCase, UNIT};
use crate::record::Record;
use crate::report;
use crate::run::Plan;
use crate::stats::Level;

/// Options of compare.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Records of the baseline; several, one for each boot, are joined by commas
    #[arg(value_name = "BASELINE")]
    baseline: String,
    /// Records of a candidate; several, one for each boot, are joined by commas
    #[arg(value_name = "CANDIDATE", required = true)]
    candidates: Vec<String>,
    /// Call differences shown to be smaller than this equivalent, in ns per packet
    #[arg(long, value_name = "NS")]
    margin: Option<f64>,
    /// Of the baseline, take the variants whose name or label holds TEXT, and match them by the rest of it
    #[arg(long, value_name = "TEXT")]
    baseline_match: Option<String>,
    /// Of the candidates, take the variants whose name or label holds TEXT, and match them by the rest of it
    #[arg(long, value_name = "TEXT")]
    candidate_match: Option<String>,
    /// Print one JSON object for each candidate
    #[arg(long)]
    json: bool,
}

/// Compares each candidate with the baseline.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let level = Level::default();
    let baseline = read(&options.baseline, options.baseline_match.as_deref())?;
    for candidate in &options.candidates {
        let records = read(candidate, options.candidate_match.as_deref())?;
        if baseline.iter().chain(&records).any(|record| !record.kernels.is_empty()) {
            compare_kernels(&baseline, candidate, &records, options.json)?;
            // A scenario can have counted instructions beside what it timed.
            if ![&baseline, &records].iter().all(|side| side.iter().any(|record| !record.cases.is_empty())) {
                continue;
            }
        }
        let rows = across::compare(&baseline, &records, level, Plan::FLOOR_NS, options.margin)?;
        // An imported result does not tell its machine.
        let known = baseline.iter().chain(&records).all(|record| record.imported.is_empty());
        let differences = known.then(|| across::environment_differences(&baseline, &records));
        if options.json {
            let object = serde_json::json!({
                "schema": "xdplab.compare/1", "candidate": candidate, "variants": rows, "environment": differences
            });
            output::text(&format!("{object}\n"))?;
        } else {
            output::text(&format!("{candidate}\n{}", report::across_text(&rows, differences.as_deref(), level)))?;
        }
    }
    Ok(Ending::Done)
}

/// Every kernel of the candidate's records against the baseline's own baseline.
fn compare_kernels(baseline: &[Record], name: &str, records: &[Record], as_json: bool) -> Result<()> {
    let counted = |records: &[Record]| -> Vec<KernelsCase> {
        records.iter().flat_map(|record| record.kernels.iter().cloned()).collect()
    };
    let (before, after) = (counted(baseline), counted(records));
    if before.is_empty() || after.is_empty() {
        return Err(Error::usage(
            format!("compare with {name}"),
            "one side has kernels counted in guests, the other has none",
        ));
    }
    for case in &after {
        let both = |first: &KernelsCase| -> Vec<CaseName> {
            first.plan.cases.iter().filter(|name| case.plan.cases.contains(name)).copied().collect()
        };
        let Some((first, cases)) = before.iter().map(|first| (first, both(first))).find(|(_, cases)| !cases.is_empty())
        else {
            continue;
        };
        let Some(first_kernel) = first.kernels.first() else { continue };
        for kernel in &case.kernels {
            let of_baseline = (&first.instrument, first_kernel);
            let rows = kernels::compare::compare_across(&cases, of_baseline, (&case.instrument, kernel))?;
            if as_json {
                let object = serde_json::json!({
                    "schema": "xdplab.compare/1", "candidate": name, "kernel": kernel.image, "cases": rows
                });
                output::text(&format!("{object}\n"))?;
            } else {
                let rows: Vec<_> = rows.iter().collect();
                let table = report::kernels_table(first_kernel, kernel, &rows);
                output::text(&format!("{name}: {UNIT}\n{table}"))?;
            }
        }
    }
    Ok(())
}

fn read(paths: &str, text: Option<&str>) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = paths.split(',').map(|path| Record::read(Path::new(path))).collect::<Result<_>>()?;
    if let Some(text) = text {
        across::select(&mut records, text)?;
    }
    Ok(records)
}
