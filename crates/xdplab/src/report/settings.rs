//! A comparison of settings as text for a terminal.

use super::text::{aligned, guards, lab_line, verdict_word, why_inconclusive};
use crate::host::Environment;
use crate::run::Outcome;
use crate::settings::SettingsCase;
use crate::stats::UnitsComparison;

/// Environment, set-up, table, control and guards.
#[must_use]
pub fn settings_text(environment: &Environment, case: &SettingsCase) -> String {
    let plan = &case.plan;
    let blocks = case.visits.iter().map(|visit| visit.block + 1).max().unwrap_or(0);
    let mut text = format!(
        "{}\n{}\n{} under settings taken in turn: {blocks} blocks, {} s to settle and {} s of slices for each, seed {}\n\n",
        environment.one_line(),
        lab_line(&plan.run, &case.observed),
        plan.run.baseline,
        plan.settle_s,
        plan.visit_s,
        plan.run.seed,
    );
    let mean = |state: u16| {
        let costs: Vec<f64> = case.visits.iter().filter(|visit| visit.state == state).map(|visit| visit.ns).collect();
        if costs.is_empty() { "n/a".into() } else { format!("{:.2}", costs.iter().sum::<f64>() / costs.len() as f64) }
    };
    let mut rows = vec![vec![plan.commands[0].clone(), mean(0), String::new(), String::new(), "baseline".into()]];
    for (state, compared) in (2u16..).zip(&case.comparisons) {
        let [delta, interval] = match &compared.comparison {
            Outcome::Estimate(found) => difference(found),
            Outcome::NotEnough(_) => ["n/a".into(), String::new()],
        };
        rows.push(vec![compared.command.clone(), mean(state), delta, interval, verdict_word(&compared.verdict)]);
    }
    let interval = format!("{:.0} % interval", plan.run.level.get() * 100.0);
    text += &aligned(&["setting", "ns/packet", "Δ ns", &interval, "verdict"], &[0, 4], rows);
    text += "\n";
    text += &match &case.control {
        Some(control) => {
            let [delta, interval] = difference(control);
            format!("A/A control: {delta} ns {interval} between the baseline's setting and itself\n")
        }
        None => "A/A control: not available (too few blocks)\n".into(),
    };
    for compared in &case.comparisons {
        text += &why_inconclusive(&compared.command, &compared.verdict);
    }
    text + "\n" + &guards(&case.guards)
}

fn difference(found: &UnitsComparison) -> [String; 2] {
    let delta = &found.difference.delta;
    [format!("{:+.2}", delta.estimate), format!("[{:+.2}, {:+.2}]", delta.low, delta.high)]
}
