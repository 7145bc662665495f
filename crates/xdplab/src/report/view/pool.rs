//! A comparison of page-pool paths.

use super::super::table::{Cell, Tone};
use super::case::{control_line, cost_table, tone, verdict, why_inconclusive};
use super::charts::{self, Spread};
use super::{Finding, Kind, plain};
use crate::pool::{Checked, FLOOR_NS, Group, PoolCase};
use crate::stats::Level;

impl Finding {
    /// What is told of a comparison of page-pool paths.
    #[must_use]
    pub fn of_pool(case: &PoolCase) -> Self {
        let level = case.costs.first().and_then(|cost| cost.shown()).map_or(Level::default(), |cost| cost.level);
        let differences = case.comparisons.iter().filter_map(|compared| {
            let delta = compared.comparison.estimate()?.difference.delta;
            Some(Spread::of(&compared.candidate, delta, tone(&compared.verdict), &verdict(&compared.verdict)))
        });
        let control = case
            .control
            .as_ref()
            .map(|control| Spread::of("A/A control", control.difference.delta, Tone::Neutral, &Cell::text("control")));
        let [owner, other] = case.cpus;
        let crosses = case.group == Group::Cross;
        let crossing = if crosses { format!(", the returning thread on CPU {other}") } else { String::new() };
        Self {
            kind: Kind::Pool,
            title: format!("page-pool in this process: {}", case.group.operation()),
            set_up: vec![format!(
                "owner on CPU {owner}{crossing}; {:.1} s, {} slices, seed {}",
                case.seconds, case.slices, case.seed
            )],
            table: cost_table("path", "ns", "M/s", level, &case.costs, &case.comparisons),
            notes: notes(case).into_iter().chain(case.bounds.iter().map(bound)).collect(),
            guards: Vec::new(),
            charts: charts::differences(control.into_iter().chain(differences).collect(), FLOOR_NS, None)
                .into_iter()
                .collect(),
        }
    }
}

/// The control, and why what is inconclusive is so.
pub(in super::super) fn notes(case: &PoolCase) -> Vec<String> {
    let baseline = case.costs.first().map_or("", |cost| &cost.variant);
    let why = case.comparisons.iter().filter_map(|compared| why_inconclusive(&compared.candidate, &compared.verdict));
    let notes = std::iter::once(control_line(case.control.as_ref(), baseline)).chain(why);
    notes.map(|note| plain(&note)).collect()
}

fn bound(checked: &Checked) -> String {
    let found = match (checked.value, checked.holds) {
        (Some(value), Some(true)) => format!("{value:.2}, holds"),
        (Some(value), _) => format!("{value:.2}, missed"),
        (None, _) => "not measured".into(),
    };
    plain(&format!("bound {} {}: {found}", checked.bound, checked.limit))
}
