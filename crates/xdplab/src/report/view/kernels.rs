//! Kernels compared by guest instructions.

use super::super::table::{Cell, Column, Table, Tone};
use super::charts::{Chart, FunctionShare, Functions};
use super::{Finding, Kind, plain};
use crate::kernels::compare::{Change, Comparison, Cost};
use crate::kernels::{CheckName, FunctionChange, Instrument, KernelRuns, KernelsCase, Part, Profile, UNIT, changes};

/// Functions in the table of a case.
const TOP: usize = 10;
/// Changes below this are not shown, in instructions per packet.
const LEAST_CHANGE: f64 = 0.01;

/// A finding for each candidate, one for each of its cases that was counted by function, and one for the checks.
pub(in super::super) fn findings(case: &KernelsCase) -> Vec<Finding> {
    let Some((baseline, candidates)) = case.kernels.split_first() else { return Vec::new() };
    let mut findings = Vec::new();
    for (index, candidate) in (1..).zip(candidates) {
        let rows: Vec<&Comparison> = case.comparisons.iter().filter(|row| row.candidate == index).collect();
        let title = plain(&format!("{} against {}", label(candidate, baseline), label(baseline, candidate)));
        let by_function: Vec<Finding> = rows.iter().filter_map(|row| functions(row, baseline, candidate)).collect();
        let notes = reasons(&rows).chain([baseline, candidate].into_iter().flat_map(failures)).collect();
        let table = costs(baseline, candidate, &rows);
        findings.push(Finding { notes, ..finding(title, how(&case.instrument, case.plan.boots), table) });
        findings.extend(by_function);
    }
    findings.extend(checks(&case.kernels));
    findings
}

fn finding(title: String, set_up: Vec<String>, table: Table) -> Finding {
    let (notes, guards, charts) = (Vec::new(), Vec::new(), Vec::new());
    Finding { kind: Kind::Kernels, title, set_up, table, notes, guards, charts }
}

/// A kernel's release, or as it was given where the other's is the same.
fn label<'a>(kernel: &'a KernelRuns, other: &KernelRuns) -> &'a str {
    if kernel.image.release == other.image.release { &kernel.given } else { &kernel.image.release }
}

/// The unit and the instrument.
pub(super) fn how(instrument: &Instrument, boots: u16) -> Vec<String> {
    let [short, long] = instrument.packets;
    let guest = instrument.guest_sha256.get(..12).unwrap_or_default();
    vec![
        format!("{UNIT}: work done, never time, rate or speed"),
        plain(&format!(
            "QEMU {}, CPU {}, 1 CPU; {} packets beyond {short} over a veth, other cases in proportion; {boots} boots of each \
             kernel; guest {guest}",
            instrument.qemu,
            instrument.cpu,
            long.saturating_sub(short),
        )),
    ]
}

/// The costs of a candidate's cases beside the baseline's.
pub(in super::super) fn costs(baseline: &KernelRuns, candidate: &KernelRuns, rows: &[&Comparison]) -> Table {
    let is_same = baseline.image.release == candidate.image.release;
    let heading = |kernel: &KernelRuns, side: &'static str, key| {
        Column::numbers(if is_same { side } else { &kernel.image.release }, key)
    };
    let columns = vec![
        Column::words("case", "variant"),
        heading(baseline, "baseline", "baseline_instructions"),
        heading(candidate, "candidate", "candidate_instructions"),
        Column::numbers("Δ", "delta_instructions"),
        Column::numbers("±", "resolution_instructions").dispensable(1),
        Column::words("verdict", "verdict"),
    ];
    let cost = |cost: &Cost| cost.per_packet().map_or(Cell::Missing, |instructions| Cell::number(instructions, 2));
    let row = |row: &&Comparison| {
        vec![
            Cell::text(row.case.to_string()),
            cost(&row.baseline_cost),
            cost(&row.candidate_cost),
            row.delta.map_or(Cell::Empty, |delta| Cell::difference(delta, 2)),
            row.resolution.map_or(Cell::Empty, |resolution| Cell::number(resolution, 2)),
            verdict(row.change),
        ]
    };
    Table { columns, rows: rows.iter().map(row).collect() }
}

pub(super) fn verdict(change: Change) -> Cell {
    let (tone, word) = match change {
        Change::More => (Tone::Bad, "more"),
        Change::Fewer => (Tone::Good, "fewer"),
        Change::Same => (Tone::Neutral, "same"),
        Change::NotDeterministic => (Tone::Doubt, "not deterministic"),
        Change::NotAvailable => (Tone::Doubt, "not available"),
    };
    Cell::Outcome { tone, word: word.into(), more: String::new() }
}

/// Why sides have no number.
pub(in super::super) fn reasons(rows: &[&Comparison]) -> impl Iterator<Item = String> {
    rows.iter().flat_map(|row| {
        [("baseline", &row.baseline_cost), ("candidate", &row.candidate_cost)]
            .into_iter()
            .filter_map(move |(side, cost)| why_not(&format!("{}: {side}", row.case), cost))
    })
}

/// Why a cost has no number.
pub(super) fn why_not(what: &str, cost: &Cost) -> Option<String> {
    let why = match cost {
        Cost::Exact { .. } => return None,
        Cost::NotAvailable { why } => format!("not available: {why}"),
        Cost::NotDeterministic { boots } => {
            let boots = boots.iter().map(|(instructions, packets)| format!("{instructions}/{packets}"));
            let boots: Vec<String> = boots.collect();
            format!("not deterministic: its boots took {} instructions/packets", boots.join(", "))
        }
    };
    Some(plain(&format!("{what} {why}")))
}

/// Boots that failed, with the ends of their consoles.
fn failures(kernel: &KernelRuns) -> Vec<String> {
    let counting = (1..).zip(&kernel.boots).map(|(number, boot)| (format!("boot {number}"), &boot.outcome));
    let checking = kernel.checks.iter().map(|checks| ("the boot for checks".to_owned(), &checks.outcome));
    let mut lines = Vec::new();
    for (name, outcome) in counting.chain(checking) {
        let Some(fault) = outcome.fault() else { continue };
        lines.push(plain(&format!("{}: {name}: {fault}", kernel.image.release)));
        lines.extend(outcome.console().iter().map(|line| plain(&format!("  | {line}"))));
    }
    lines
}

/// A case by function: the largest changes of the kernel and of BPF programs, then the rest, so that all adds up.
fn functions(row: &Comparison, baseline: &KernelRuns, candidate: &KernelRuns) -> Option<Finding> {
    let profile = |kernel: &KernelRuns| -> Option<Profile> {
        let boot = kernel.boots.first()?;
        boot.cases.iter().find(|counted| counted.case == row.case)?.profile.known().cloned()
    };
    let sides = [profile(baseline)?, profile(candidate)?];
    let all = changes(&sides[0], &sides[1]);
    let is_shown = |change: &&FunctionChange<'_>| change.part != Part::Harness && change.delta().abs() >= LEAST_CHANGE;
    let shown: Vec<&FunctionChange<'_>> = all.iter().filter(is_shown).take(TOP).collect();
    let of_part = |part| [0, 1].map(|side: usize| sides[side].part(part));
    let totals = [sides[0].total, sides[1].total];
    let harness = of_part(Part::Harness);
    let rest = [0, 1].map(|side: usize| {
        let rest = totals[side] - harness[side] - shown.iter().map(|change| change.sides[side]).sum::<f64>();
        // What the sum is off by in the last digits is no instruction; adding 0 makes -0 a plain 0.
        (rest * 1e6).round() / 1e6 + 0.0
    });
    let line = |name: &str, part: &str, [before, after]: [f64; 2]| {
        let delta = Cell::difference(after - before, 2);
        vec![Cell::text(name), Cell::text(part), Cell::number(before, 2), Cell::number(after, 2), delta]
    };
    let mut rows: Vec<_> = shown.iter().map(|change| line(change.name, word(change.part), change.sides)).collect();
    rows.push(line("(all others)", "", rest));
    rows.push(line("(what sends and measures)", word(Part::Harness), harness));
    rows.push(line("(in all)", "", totals));
    let columns = vec![
        Column::words("function", "variant"),
        Column::words("part", "part"),
        Column::numbers("baseline", "baseline_instructions"),
        Column::numbers("candidate", "candidate_instructions"),
        Column::numbers("Δ", "delta_instructions"),
    ];
    let title =
        format!("{} by function: {} against {}", row.case, label(candidate, baseline), label(baseline, candidate));
    let names = [baseline, candidate].map(|kernel| plain(&kernel.image.release));
    let charts = vec![drawn(names, totals, &all)];
    Some(Finding { charts, ..finding(plain(&title), Vec::new(), Table { columns, rows }) })
}

fn word(part: Part) -> &'static str {
    match part {
        Part::Kernel => "kernel",
        Part::Bpf => "BPF program",
        Part::Harness => "harness",
    }
}

/// Functions side by side, part by part, the largest first; those too small to be seen are one.
fn drawn(names: [String; 2], totals: [f64; 2], all: &[FunctionChange<'_>]) -> Chart {
    /// The share of the whole from which on a function is drawn by itself.
    const SEEN: f64 = 0.003;
    let largest = |change: &FunctionChange<'_>| change.sides[0].max(change.sides[1]);
    let seen = totals[0].max(totals[1]) * SEEN;
    let mut shares = Vec::new();
    for part in [Part::Kernel, Part::Bpf, Part::Harness] {
        let of_part = all.iter().filter(|change| change.part == part);
        let (mut large, small): (Vec<_>, Vec<_>) = of_part.partition(|change| largest(change) >= seen);
        large.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
        let share = |name: &str, instructions| FunctionShare { name: plain(name), part: word(part), instructions };
        shares.extend(large.into_iter().map(|change| share(change.name, change.sides)));
        let rest = [0, 1].map(|side: usize| small.iter().map(|change| change.sides[side]).sum::<f64>().max(0.0));
        shares.extend((!small.is_empty()).then(|| share(&format!("{} small functions", small.len()), rest)));
    }
    Chart::Functions(Functions { sides: names, totals, shares })
}

/// What was seen to work, a row for each check of each kernel.
fn checks(kernels: &[KernelRuns]) -> Option<Finding> {
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for check in CheckName::ALL {
        for kernel in kernels {
            let checks = kernel.checks.iter().flat_map(|checks| &checks.checks);
            let Some((_, why)) = checks.into_iter().find(|(name, _)| *name == check) else { continue };
            let (tone, word) = if why.is_none() { (Tone::Good, "works") } else { (Tone::Bad, "fails") };
            let outcome = Cell::Outcome { tone, word: word.into(), more: String::new() };
            rows.push(vec![Cell::text(check.to_string()), Cell::text(&kernel.image.release), outcome]);
            notes.extend(why.iter().map(|why| plain(&format!("{}: {check} fails: {why}", kernel.image.release))));
        }
    }
    let columns =
        vec![Column::words("check", "variant"), Column::words("kernel", "kernel"), Column::words("outcome", "verdict")];
    let set_up = vec!["not counted: the scheduler decides how much it takes".into()];
    let table = Table { columns, rows };
    (!table.rows.is_empty()).then(|| Finding { notes, ..finding("seen to work".into(), set_up, table) })
}
