//! A case as text for a terminal.

use comfy_table::{CellAlignment, Table, presets};

use crate::guard::{Guard, Outcome as GuardOutcome};
use crate::host::Environment;
use crate::observed::{Observed, Trial};
use crate::packet::FrameLengths;
use crate::reading::Reading;
use crate::reference::Reference;
use crate::run::{Case, Compared, Cost, Engine, PROGRAM_ONLY, Plan};
use crate::stats::{Comparison, Interval, Level};
use crate::units::Nanos;
use crate::verdict::{Reason, Verdict};

/// Environment, set-up, table, guards and the resolution reached.
#[must_use]
pub fn case_text(environment: &Environment, case: &Case) -> String {
    let mut text = format!("{}\n{}\n{}\n{}\n", environment.one_line(), set_up(case), reference(case), special(case));
    text += &table(case);
    text += "\n";
    text += &control_line(case.control.as_ref(), &case.plan.baseline.to_string());
    text += &asked_resolution(case);
    for (compared, candidate) in case.comparisons.iter().zip(&case.plan.candidates) {
        if candidate.is_same_program(&case.plan.baseline) {
            text += &format!("{}: the baseline itself, so this is an A/A\n", compared.candidate);
        }
        text += &why_inconclusive(&compared.candidate, &compared.verdict);
    }
    text += "\n";
    text += &guards(&case.guards);
    text
}

/// One line about the run.
fn set_up(case: &Case) -> String {
    let plan = &case.plan;
    format!(
        "{}; {} of {} of each variant, slices of {} packets, {:.1} s, seed {}",
        lab_line(plan, &case.observed),
        count(case.observed.rounds.len(), "round", "rounds"),
        count(plan.copies.into(), "copy", "copies"),
        plan.slice_packets,
        case.observed.seconds,
        plan.seed,
    )
}

/// The engine, the lab and the traffic.
pub(super) fn lab_line(plan: &Plan, observed: &Observed) -> String {
    let size = match plan.size.lengths(&plan.flow) {
        Ok(FrameLengths { l2, wire, .. }) => format!("{l2}-byte frames ({wire} on the wire with FCS)"),
        Err(_) => "frames of unknown size".into(),
    };
    let size = if plan.interface.is_some() { "frames from outside".into() } else { size };
    let on = plan.interface.as_ref().map_or(String::new(), |name| format!("{name}: "));
    let flows = if plan.flows == 1 { String::new() } else { format!(" of {} flows", plan.flows) };
    match plan.engine {
        Engine::Slices => {
            let driver = observed.lab_after.as_ref().map_or("no driver", |lab| &lab.dut.driver.driver);
            format!(
                "{on}{driver}, {} XDP, {}, {size}{flows}, MTU {}, {}",
                plan.xdp_mode,
                count(plan.queues.into(), "RX queue", "RX queues"),
                plan.mtu,
                plan.placement
            )
        }
        Engine::TestRun { cold } => {
            let data = if cold { "cold (its first 64 bytes not in the first level cache)" } else { "warm" };
            format!(
                "{PROGRAM_ONLY} (BPF_PROG_TEST_RUN on CPU {}), packet data {data}, {size}; ns/packet is what a program \
                 costs more than an empty one",
                plan.placement.dut_cpu().map_or("?".into(), |cpu| cpu.to_string())
            )
        }
    }
}

/// A number and what it counts.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// One line about the clock: the reference workload.
fn reference(case: &Case) -> String {
    let reference = match &case.observed.reference {
        Reading::Known(Reference { before, after }) => format!(
            "{:.1} ns before, {:.1} ns after (median deviation {:.1})",
            before.median_ns,
            after.median_ns,
            before.mad_ns.max(after.mad_ns)
        ),
        Reading::NotAvailable { why } => format!("not available ({why})"),
    };
    format!("reference workload, 1000 dependent multiplications: {reference}")
}

/// Lines about what a run with users' programs or with programs that send back has beyond the others.
fn special(case: &Case) -> String {
    let mut text = String::new();
    let restored = case.observed.restored_bytes;
    for Trial { variant, returns, changes_until } in &case.observed.tried {
        let changed = match changes_until {
            Reading::Known(0) => String::new(),
            Reading::Known(until) if *until > restored => {
                format!(", and changes it; what it changes behind byte {restored} stays in recycled frames")
            }
            Reading::Known(until) => format!(", and changes it (up to byte {until})"),
            Reading::NotAvailable { .. } => String::new(),
        };
        text += &format!("{variant}: tried on the run's frame, it returns {returns}{changed}\n");
    }
    if restored > 0 {
        text += &format!(
            "the generator restores the first {restored} bytes of every frame; it costs every variant the same\n"
        );
    }
    if case.observed.ledger.returned.is_some() {
        text +=
            "a program at the generator's end takes what is sent back; where it runs it costs every variant the same\n";
    }
    text
}

fn table(case: &Case) -> String {
    let rate = if case.plan.engine == Engine::Slices { "Mpps" } else { "" };
    cost_table("variant", "ns/packet", rate, case.plan.level, &case.costs, &case.comparisons)
}

/// Costs, the first of which is the baseline's, and the differences of the others from it; without a name for the rate, no
/// rates.
pub(super) fn cost_table(
    what: &str,
    unit: &str,
    rate: &str,
    level: Level,
    costs: &[Cost],
    comparisons: &[Compared],
) -> String {
    let interval = format!("{:.0} % interval", level.get() * 100.0);
    let header = [what, unit, &interval, rate, "Δ ns", &interval, "Δ %", "verdict"];
    let (baseline, candidates) = costs.split_at(costs.len().min(1));
    let baseline = baseline.first();
    let mut rows: Vec<_> = baseline.map(|cost| row(cost, baseline, None, !rate.is_empty())).into_iter().collect();
    let compared = candidates.iter().zip(comparisons);
    rows.extend(compared.map(|(cost, compared)| row(cost, baseline, Some(compared), !rate.is_empty())));
    aligned(&header, &[0, 7], rows)
}

/// Columns two blanks apart: those named in `left` to the left, numbers to the right, no blank at a line's end.
pub(super) fn aligned(header: &[&str], left: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        let alignment = if left.contains(&index) { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(alignment);
    }
    table.trim_fmt() + "\n"
}

fn row(cost: &Cost, baseline: Option<&Cost>, compared: Option<&Compared>, has_rate: bool) -> Vec<String> {
    let absolute = cost.shown();
    let ns = absolute.map_or("n/a".into(), |cost| format!("{:.2}", cost.estimate));
    let interval = absolute.map_or(String::new(), |cost| format!("[{:.2}, {:.2}]", cost.low, cost.high));
    let rate = absolute.filter(|_| has_rate).and_then(|cost| Nanos(cost.estimate).to_rate());
    let rate = rate.map_or(String::new(), |rate| format!("{:.2}", rate.mpps()));
    let mut row = vec![cost.variant.clone(), ns, interval, rate];
    let Some(compared) = compared else {
        row.extend([String::new(), String::new(), String::new(), "baseline".into()]);
        return row;
    };
    match compared.comparison.estimate() {
        Some(comparison) => {
            let delta = &comparison.difference.delta;
            let base = baseline.and_then(Cost::shown).map(|base| base.estimate);
            row.push(format!("{:+.2}", delta.estimate));
            row.push(format!("[{:+.2}, {:+.2}]", delta.low, delta.high));
            row.push(base.map_or(String::new(), |base| format!("{:+.1}", 100.0 * delta.estimate / base)));
        }
        None => row.extend(["n/a".into(), String::new(), String::new()]),
    }
    row.push(verdict_word(&compared.verdict));
    row
}

/// The verdict in a word or two.
pub(super) fn verdict_word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Slower => "slower".into(),
        Verdict::Faster => "faster".into(),
        Verdict::Equivalent { margin_ns } => format!("equivalent within ±{margin_ns} ns"),
        Verdict::Inconclusive { .. } => "inconclusive".into(),
    }
}

/// What baseline against itself showed, and so what the run resolves.
pub(super) fn control_line(control: Option<&Comparison>, baseline: &str) -> String {
    match control {
        Some(Comparison { difference, .. }) => {
            let Interval { estimate, low, high, .. } = difference.delta;
            format!(
                "A/A control: {estimate:+.2} ns [{low:+.2}, {high:+.2}] between {baseline} and other copies of itself; this \
                 run resolves {:.2} ns\n",
                difference.delta.half_width()
            )
        }
        None => "A/A control: not available (too few slices)\n".into(),
    }
}

/// Whether the run resolves what was asked for.
fn asked_resolution(case: &Case) -> String {
    let Some(asked) = case.plan.resolve_ns else { return String::new() };
    let seconds = case.observed.seconds;
    let mut text = String::new();
    for compared in &case.comparisons {
        let Some(comparison) = compared.comparison.estimate() else { continue };
        let reached = comparison.difference.delta.half_width();
        let how = match comparison.seconds_needed(asked) {
            Some(0.0) => format!("resolved to ±{reached:.2} ns in {seconds:.1} s"),
            Some(more) => format!("±{reached:.2} ns after {seconds:.1} s; needs about {more:.0} s more"),
            None => {
                format!("±{reached:.2} ns after {seconds:.1} s; layout noise is wider: needs more copies, not time")
            }
        };
        text += &format!("{}: ±{asked} ns asked for, {how}\n", compared.candidate);
    }
    text
}

/// Why a verdict is inconclusive, and what would help; nothing for the others.
pub(super) fn why_inconclusive(variant: &str, verdict: &Verdict) -> String {
    let Verdict::Inconclusive { reasons, needs_seconds } = verdict else { return String::new() };
    let reasons: Vec<String> = reasons.iter().map(Reason::to_string).collect();
    let more = needs_seconds.map_or(String::new(), |seconds| format!("; needs about {seconds:.0} s more"));
    format!("{variant}: inconclusive: {}{more}\n", reasons.join("; "))
}

pub(super) fn guards(guards: &[Guard]) -> String {
    let row = |guard: &Guard| {
        let outcome = match guard.outcome {
            GuardOutcome::NotApplicable => "n/a",
            GuardOutcome::Pass => "pass",
            GuardOutcome::Warn => "WARN",
            GuardOutcome::Fail => "FAIL",
        };
        let text = match guard.remedy.as_str() {
            "" => guard.reason.clone(),
            remedy => format!("{}; {remedy}", guard.reason),
        };
        vec![outcome.to_owned(), guard.id.clone(), guard.value.clone(), text]
    };
    aligned(&["guard", "", "number", "meaning"], &[0, 1, 2, 3], guards.iter().map(row).collect())
}
