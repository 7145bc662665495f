//! The pool's paths in one interleaved run, beside a mutex and malloc, and with the feature `peers` other pools and allocators.
//!
//! `cargo bench -p page-pool --features peers [-- ROUNDS [OPERATIONS]] [GROUP]...`
//!
//! Each round runs every path once, starting one path later than the round before, so that all see the same drift. One
//! thread's paths are timed by its CPU time, paths of two threads by the clock. Ratios are taken within a round; medians
//! and 10th percentiles (p10) over the rounds are printed. Without `--bench` (as `cargo test --benches` calls it) one
//! short round is run.
#![expect(clippy::print_stdout, reason = "it is a program that prints tables")]

mod table;

use std::process::ExitCode;

use page_pool::bench::{self, BOUNDS, Bound, Group};
use table::Table;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let short = !args.iter().any(|arg| arg == "--bench");
    args.retain(|arg| !arg.starts_with("--"));
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let mut number = |default| if short { None } else { numbers.next() }.unwrap_or(default);
    let (rounds, operations) = (number(if short { 1 } else { 41 }), number(if short { 2048 } else { 200_000 }));
    let names: Vec<_> = args.iter().filter(|arg| arg.parse::<u64>().is_err()).collect();
    let groups = Group::ALL
        .into_iter()
        .filter(|group| names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(&format!("{group:?}"))));
    match run(&groups.collect::<Vec<_>>(), rounds as usize, operations) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints; true if no frame is missing and, with several rounds, all bounds hold.
fn run(groups: &[Group], rounds: usize, operations: u64) -> page_pool::Result<bool> {
    bench::pin(0);
    println!("{rounds} rounds, {operations} operations a round; ns per allocation and return\n");
    let mut tables = Vec::new();
    let mut clean = true;
    for &group in groups {
        let owner = bench::owner()?;
        let mut paths = group.own_paths(&owner, 1);
        paths.extend(group.other_paths(1));
        tables.push((group, Table::measure(group.operation(), paths, rounds, operations)));
        let closed = owner.close();
        if !closed.is_clean() {
            println!("{closed}");
            clean = false;
        }
    }
    if rounds == 1 {
        return Ok(clean); // one round says nothing about bounds
    }
    println!("Bounds");
    let mut hold = true;
    for bound in BOUNDS.iter().filter(|bound| groups.contains(&bound.group)) {
        let table = tables.iter().find_map(|(group, table)| (*group == bound.group).then_some(table));
        let value = table.and_then(|table| value(bound, table));
        hold &= value.is_some_and(|value| bound.limit.holds(value));
        let outcome = match value {
            Some(value) if bound.limit.holds(value) => format!("{value:7.2}  holds"),
            Some(value) => format!("{value:7.2}  MISSED"),
            None => "not measured (needs the feature peers)".to_owned(),
        };
        println!("{:72} {:7} {outcome}", bound.to_string(), bound.limit.to_string());
    }
    Ok(hold && clean)
}

/// The value a bound is on, if its paths were measured.
fn value(bound: &Bound, table: &Table) -> Option<f64> {
    match bound.by {
        None => table.median(bound.path),
        Some(by) if bound.p10 => Some(table.p10(bound.path)? / table.p10(by)?),
        Some(by) => table.ratio(bound.path, by),
    }
}
