//! A comparison of programs.

use super::super::table::{Cell, Column, Table, Tone};
use super::charts::{self, Chart};
use super::{Finding, Kind, guards, plain};
use crate::observed::{Observed, Onwards, Sockets, Trial};
use crate::packet::FrameLengths;
use crate::reading::Reading;
use crate::reference::Reference;
use crate::remote::RemoteCost;
use crate::run::{Case, Compared, Cost, Engine, PROGRAM_ONLY, Plan};
use crate::stats::{Comparison, Interval, Level};
use crate::units::Nanos;
use crate::verdict::{Reason, Verdict};

pub(super) fn finding(case: &Case) -> Finding {
    let baseline = case.plan.baseline.to_string();
    let mut notes = vec![control_line(case.control.as_ref(), &baseline)];
    notes.extend(asked_resolution(case));
    notes.extend(case.costs.iter().filter_map(remote_line));
    notes.extend(case.limiter.as_ref().map(|limiter| format!("limited by {limiter}")));
    for (compared, candidate) in case.comparisons.iter().zip(&case.plan.candidates) {
        if candidate.is_same_program(&case.plan.baseline) {
            notes.push(format!("{}: the baseline itself, so this is an A/A", compared.candidate));
        }
        notes.extend(why_inconclusive(&compared.candidate, &compared.verdict));
    }
    let candidates: Vec<String> = case.plan.candidates.iter().map(ToString::to_string).collect();
    let title = match candidates.join(", ") {
        none if none.is_empty() => format!("{}: {baseline}", case.plan.name),
        candidates => format!("{}: {candidates} against {baseline}", case.plan.name),
    };
    let rate = if case.plan.engine == Engine::Slices { "Mpps" } else { "" };
    Finding {
        kind: Kind::Programs,
        title: plain(&title),
        set_up: set_up(case).iter().map(|line| plain(line)).collect(),
        table: cost_table("variant", "ns/packet", rate, case.plan.level, &case.costs, &case.comparisons),
        notes: notes.iter().map(|note| plain(note)).collect(),
        guards: guards(&case.guards),
        charts: charts(case),
    }
}

fn charts(case: &Case) -> Vec<Chart> {
    let names: Vec<String> = case
        .plan
        .variants()
        .iter()
        .enumerate()
        .map(|(index, variant)| plain(&if index == 1 { format!("{variant} (control)") } else { variant.to_string() }))
        .collect();
    let rounds = case.observed.slices_by_round();
    let differences = case.comparisons.iter().filter_map(|compared| {
        let delta = compared.comparison.estimate()?.difference.delta;
        Some(charts::Spread::of(&compared.candidate, delta, tone(&compared.verdict), &verdict(&compared.verdict)))
    });
    let control = case.control.as_ref().map(|control| {
        charts::Spread::of("A/A control", control.difference.delta, Tone::Neutral, &Cell::text("control"))
    });
    [
        charts::differences(control.into_iter().chain(differences).collect(), case.plan.floor_ns, case.plan.margin_ns),
        charts::distribution(&names, &case.observed.slices),
        charts::time_line(&names, &rounds),
        charts::ledger(&case.observed),
        charts::page_pools(&case.observed),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What was run, on what, and what the clock did.
fn set_up(case: &Case) -> Vec<String> {
    let plan = &case.plan;
    let slices = format!(
        "{}; {} of {} of each variant, slices of {} packets, {:.1} s, seed {}",
        lab_line(plan, &case.observed),
        count(case.observed.rounds.len(), "round", "rounds"),
        count(plan.copies.into(), "copy", "copies"),
        plan.slice_packets,
        case.observed.seconds,
        plan.seed,
    );
    let mut lines = vec![slices, reference(&case.observed)];
    lines.extend(special(&case.observed));
    lines
}

/// The engine, the lab and the traffic.
fn lab_line(plan: &Plan, observed: &Observed) -> String {
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

/// The lab of a run that has no programs to compare, and what the clock did.
pub(super) fn lab_lines(plan: &Plan, observed: &Observed) -> [String; 2] {
    [lab_line(plan, observed), reference(observed)]
}

/// A number and what it counts.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// One line about the clock: the reference workload.
fn reference(observed: &Observed) -> String {
    let reference = match &observed.reference {
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
fn special(observed: &Observed) -> Vec<String> {
    let restored = observed.restored_bytes;
    let mut lines: Vec<String> = observed.ledger.onwards.iter().filter_map(sockets_line).collect();
    for Trial { variant, returns, changes_until } in &observed.tried {
        let changed = match changes_until {
            Reading::Known(0) => String::new(),
            Reading::Known(until) if *until > restored => {
                format!(", and changes it; what it changes behind byte {restored} stays in recycled frames")
            }
            Reading::Known(until) => format!(", and changes it (up to byte {until})"),
            Reading::NotAvailable { .. } => String::new(),
        };
        lines.push(format!("{variant}: tried on the run's frame, it returns {returns}{changed}"));
    }
    if restored > 0 {
        lines.push(format!(
            "the generator restores the first {restored} bytes of every frame; it costs every variant the same"
        ));
    }
    if observed.ledger.returned.is_some() {
        lines.push(
            "a program at the generator's end takes what is sent back; where it runs it costs every variant the same"
                .into(),
        );
    }
    lines
}

/// The AF_XDP sockets that variants give packets to.
fn sockets_line(onwards: &Onwards) -> Option<String> {
    let Sockets { queue, mode, cpu, each, .. } = onwards.sockets.as_ref()?.known()?;
    let thread = cpu.map_or_else(|| "a thread of its own".into(), |cpu| format!("a thread on CPU {cpu}"));
    let sockets = count(each.len(), "AF_XDP socket", "AF_XDP sockets with one umem");
    Some(format!(
        "{sockets} on RX queue {queue} in {mode} mode, and {thread}, which sleeps while no program gives it packets"
    ))
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
) -> Table {
    let interval = format!("{:.0} % interval", level.get() * 100.0);
    let mut columns = vec![
        Column::words(what, "variant"),
        Column::numbers(unit, "ns"),
        Column::numbers(&interval, "ns_interval").dispensable(3),
        Column::numbers(rate, "mpps").dispensable(2),
        Column::numbers("Δ ns", "delta_ns"),
        Column::numbers(&interval, "delta_interval_ns"),
        Column::numbers("Δ %", "delta_percent").dispensable(1),
        Column::words("verdict", "verdict"),
    ];
    let baseline = costs.first();
    let compared = std::iter::once(None).chain(comparisons.iter().map(Some));
    let rows = costs.iter().zip(compared).map(|(cost, compared)| row(cost, baseline, compared, !rate.is_empty()));
    let mut rows: Vec<Vec<Cell>> = rows.collect();
    if costs.iter().any(|cost| cost.remote.is_some()) {
        let others = [
            Column::numbers("other CPU ns", "remote_ns"),
            Column::numbers(&interval, "remote_ns_interval").dispensable(4),
        ];
        columns.splice(OTHERS..OTHERS, others);
        for (row, cost) in rows.iter_mut().zip(costs) {
            row.splice(OTHERS..OTHERS, remote_cells(cost));
        }
    }
    Table { columns, rows }
}

/// Where in the table of costs the other CPUs stand: behind the cost and the rate of the device's.
const OTHERS: usize = 4;

/// What a packet costs another CPU.
fn remote_cells(cost: &Cost) -> [Cell; 2] {
    match &cost.remote {
        None => [Cell::Empty, Cell::Empty],
        Some(Reading::NotAvailable { .. }) => [Cell::Missing, Cell::Empty],
        Some(Reading::Known(RemoteCost { ns_per_packet, interval, .. })) => {
            let interval = interval.known().map_or(Cell::Missing, |&Interval { low, high, .. }| Cell::Interval {
                low,
                high,
                signed: false,
            });
            [Cell::number(*ns_per_packet, 2), interval]
        }
    }
}

/// Whose cost that is, and what of it is not known.
fn remote_line(cost: &Cost) -> Option<String> {
    Some(match cost.remote.as_ref()? {
        Reading::NotAvailable { why } => {
            format!("{}: the cost of the other CPU is not available ({why})", cost.variant)
        }
        Reading::Known(RemoteCost { by, busy_ns, packets, interval, .. }) => {
            let scatter = match interval {
                Reading::Known(_) => String::new(),
                Reading::NotAvailable { why } => format!("; its interval is not available ({why})"),
            };
            let seconds = *busy_ns as f64 / 1e9;
            format!("{}: other CPU is the {by}, which ran {seconds:.2} s for {packets} packets{scatter}", cost.variant)
        }
    })
}

fn row(cost: &Cost, baseline: Option<&Cost>, compared: Option<&Compared>, has_rate: bool) -> Vec<Cell> {
    let absolute = cost.shown();
    let rate = absolute.filter(|_| has_rate).and_then(|cost| Nanos(cost.estimate).to_rate());
    let mut row = vec![
        Cell::text(&cost.variant),
        absolute.map_or(Cell::Missing, |cost| Cell::number(cost.estimate, 2)),
        absolute.map_or(Cell::Empty, |cost| Cell::Interval { low: cost.low, high: cost.high, signed: false }),
        rate.map_or(Cell::Empty, |rate| Cell::number(rate.mpps(), 2)),
    ];
    let Some(compared) = compared else {
        row.extend([Cell::Empty, Cell::Empty, Cell::Empty, Cell::text("baseline")]);
        return row;
    };
    match compared.comparison.estimate() {
        Some(comparison) => {
            let delta = comparison.difference.delta;
            let base = baseline.and_then(Cost::shown).map(|base| base.estimate);
            let percent = base.map_or(Cell::Empty, |base| Cell::difference(100.0 * delta.estimate / base, 1));
            row.extend(difference(&delta));
            row.push(percent);
        }
        None => row.extend([Cell::Missing, Cell::Empty, Cell::Empty]),
    }
    row.push(verdict(&compared.verdict));
    row
}

/// A difference and its interval.
pub(in super::super) fn difference(delta: &Interval) -> [Cell; 2] {
    [Cell::difference(delta.estimate, 2), Cell::Interval { low: delta.low, high: delta.high, signed: true }]
}

/// The verdict in a word or two.
pub(in super::super) fn verdict(verdict: &Verdict) -> Cell {
    let (word, more) = match verdict {
        Verdict::Slower => ("slower", String::new()),
        Verdict::Faster => ("faster", String::new()),
        Verdict::Equivalent { margin_ns } => ("equivalent", format!(" within ±{margin_ns} ns")),
        Verdict::Inconclusive { .. } => ("inconclusive", String::new()),
    };
    Cell::Outcome { tone: tone(verdict), word: word.into(), more }
}

pub(super) fn tone(verdict: &Verdict) -> Tone {
    match verdict {
        Verdict::Slower => Tone::Bad,
        Verdict::Faster => Tone::Good,
        Verdict::Equivalent { .. } => Tone::Neutral,
        Verdict::Inconclusive { .. } => Tone::Doubt,
    }
}

/// What baseline against itself showed, and so what the run resolves.
pub(super) fn control_line(control: Option<&Comparison>, baseline: &str) -> String {
    match control {
        Some(Comparison { difference, .. }) => {
            let Interval { estimate, low, high, .. } = difference.delta;
            format!(
                "A/A control: {estimate:+.2} ns [{low:+.2}, {high:+.2}] between {baseline} and other copies of itself; this \
                 run resolves {:.2} ns",
                difference.delta.half_width()
            )
        }
        None => "A/A control: not available (too few slices)".into(),
    }
}

/// Whether the run resolves what was asked for.
fn asked_resolution(case: &Case) -> Vec<String> {
    let Some(asked) = case.plan.resolve_ns else { return Vec::new() };
    let seconds = case.observed.seconds;
    let line = |compared: &Compared| {
        let comparison = compared.comparison.estimate()?;
        let reached = comparison.difference.delta.half_width();
        let how = match comparison.seconds_needed(asked) {
            Some(0.0) => format!("resolved to ±{reached:.2} ns in {seconds:.1} s"),
            Some(more) => format!("±{reached:.2} ns after {seconds:.1} s; needs about {more:.0} s more"),
            None => {
                format!("±{reached:.2} ns after {seconds:.1} s; layout noise is wider: needs more copies, not time")
            }
        };
        Some(format!("{}: ±{asked} ns asked for, {how}", compared.candidate))
    };
    case.comparisons.iter().filter_map(line).collect()
}

/// Why a verdict is inconclusive, and what would help; nothing for the others.
pub(in super::super) fn why_inconclusive(variant: &str, verdict: &Verdict) -> Option<String> {
    let Verdict::Inconclusive { reasons, needs_seconds } = verdict else { return None };
    let reasons: Vec<String> = reasons.iter().map(Reason::to_string).collect();
    let more = needs_seconds.map_or(String::new(), |seconds| format!("; needs about {seconds:.0} s more"));
    Some(format!("{variant}: inconclusive: {}{more}", reasons.join("; ")))
}
