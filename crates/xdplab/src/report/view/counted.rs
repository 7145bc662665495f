//! What a scenario counted of one kernel in guests.

use super::super::table::{Cell, Column, Table};
use super::kernels::{how, verdict, why_not};
use super::{Finding, Kind, plain};
use crate::error::Result;
use crate::kernels::compare::{Comparison, Cost, compare_across, cost};
use crate::kernels::{CaseName, KernelsCase};

/// With the first kernel of its axis as baseline, where that is there and not this one.
pub(super) fn finding(case: &KernelsCase, is_baseline: bool, baseline: Option<&KernelsCase>) -> Finding {
    let release = |case: &KernelsCase| plain(&case.kernels[0].image.release);
    let mut notes: Vec<String> = costs(case).filter_map(|(name, cost)| why_not(&format!("{name}:"), &cost)).collect();
    let compared = match baseline.map(|baseline| compared(baseline, case)) {
        Some(Ok(rows)) => rows,
        Some(Err(error)) => {
            notes.push(plain(&error.to_string()));
            Vec::new()
        }
        None => Vec::new(),
    };
    if baseline.is_none() && !is_baseline {
        notes.push("the first kernel of the axis was not counted, so there is nothing to compare with".into());
    }
    let row = |(name, cost): (CaseName, Cost)| {
        let compared = compared.iter().find(|row| row.case == name);
        let alone = if is_baseline { Cell::text("baseline") } else { Cell::Missing };
        vec![
            Cell::text(name.to_string()),
            cost.per_packet().map_or(Cell::Missing, |instructions| Cell::number(instructions, 2)),
            compared.and_then(|row| row.delta).map_or(Cell::Empty, |delta| Cell::difference(delta, 2)),
            compared.map_or(alone, |row| verdict(row.change)),
        ]
    };
    let columns = vec![
        Column::words("counted", "variant"),
        Column::numbers("instructions/packet", "instructions"),
        Column::numbers("Δ instructions", "delta_instructions"),
        Column::words("verdict", "verdict"),
    ];
    let against = baseline.map_or(String::new(), |baseline| format!(" against {}", release(baseline)));
    Finding {
        kind: Kind::Kernels,
        title: format!("{}{against} in guests", release(case)),
        set_up: how(&case.instrument, case.plan.boots),
        table: Table { columns, rows: costs(case).map(row).collect() },
        notes,
        guards: Vec::new(),
        charts: Vec::new(),
    }
}

/// Each of the candidate's cases against the baseline's.
fn compared(baseline: &KernelsCase, candidate: &KernelsCase) -> Result<Vec<Comparison>> {
    let [before, after] = [baseline, candidate].map(|case| (&case.instrument, &case.kernels[0]));
    compare_across(&candidate.plan.cases, before, after)
}

/// What each case takes.
fn costs(case: &KernelsCase) -> impl Iterator<Item = (CaseName, Cost)> {
    case.plan.cases.iter().map(|name| (*name, cost(&case.kernels[0], *name)))
}
