//! Where the time of a packet goes, as far as this kernel lets it be told.
//!
//! Pure: it reads a measured case and the same programs run alone.

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::run::Case;
use crate::topology::Placement;

/// A part of the time of a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What takes it.
    pub what: String,
    /// Nanoseconds per packet, or why they are not known.
    pub ns: Reading<f64>,
    /// Where the figure comes from.
    pub source: String,
}

/// The parts of the baseline's time, and what each program takes alone. `alone` is the same programs' test run;
/// `functions` says why single kernel functions can't be timed.
#[must_use]
pub fn explain(case: &Case, alone: &Reading<Case>, functions: &str) -> Vec<Part> {
    let cost = case.costs.first().and_then(|cost| cost.cost.estimate()).map(|cost| cost.cost.estimate);
    let whole: Reading<f64> = cost.ok_or("too few slices").into();
    let softirq = softirq_ns(case);
    let mut parts = vec![
        part(format!("a packet of {}", case.plan.baseline), whole.clone(), "slices"),
        part("in the NET_RX softirq: driver, NAPI, XDP", softirq.clone(), "tracepoints softirq_entry and softirq_exit"),
        part(
            "outside of it: the generator and what else ran on its CPU",
            outside(case, whole, &softirq),
            "the difference",
        ),
    ];
    for variant in case.plan.variants().iter().skip(1).map(ToString::to_string) {
        let ns = alone.clone().and_then(|alone| alone_ns(&alone, &variant));
        parts.push(part(format!("the program {variant} alone"), ns, "BPF_PROG_TEST_RUN, less an empty program"));
    }
    parts.push(part(
        "our own counting in the program",
        alone.clone().and_then(|alone| alone_ns(&alone, COUNTING)),
        "drop:no-touch alone: it does nothing but count",
    ));
    parts.push(part("by kernel function", Reading::not_available(functions), "fentry and fexit"));
    parts
}

/// Our program that does nothing but count.
pub const COUNTING: &str = "drop:no-touch";

fn part(what: impl Into<String>, ns: Reading<f64>, source: &str) -> Part {
    Part { what: what.into(), ns, source: source.into() }
}

fn alone_ns(alone: &Case, variant: &str) -> Reading<f64> {
    let found = alone.costs.iter().find(|cost| cost.variant == variant).and_then(|cost| cost.program_alone.as_ref());
    found.map(|difference| difference.delta.estimate).ok_or("it was not run alone, or too short").into()
}

/// Softirq time of the device's CPU over all packets it saw, with the ramp and the time between rounds.
fn softirq_ns(case: &Case) -> Reading<f64> {
    let Some(cpu) = case.plan.placement.dut_cpu() else {
        return Reading::not_available("which CPU serves the interface is not ours to say");
    };
    if matches!(case.plan.placement, Placement::Split { .. }) {
        return Reading::not_available("NAPI runs in a thread of its own, not in softirq");
    }
    let packets = case.observed.cpu_packets.get(cpu).copied().unwrap_or(0);
    case.observed.softirqs.clone().and_then(|softirqs| match softirqs.get(cpu) {
        Some(softirq) if packets > 0 => Reading::Known(softirq.busy_ns as f64 / packets as f64),
        _ => Reading::not_available("the CPU saw no packet"),
    })
}

fn outside(case: &Case, whole: Reading<f64>, softirq: &Reading<f64>) -> Reading<f64> {
    match case.plan.placement {
        Placement::Same { .. } => whole.and_then(|whole| softirq.clone().map(|softirq| whole - softirq)),
        Placement::Split { .. } => Reading::not_available("the generator has a CPU of its own"),
        Placement::Outside => Reading::not_available("the traffic comes from outside"),
    }
}
