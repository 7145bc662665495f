//! The lines about a cpumap, as `xdp-bench` has established them.

use std::collections::BTreeMap;

use super::cpumap::{CpumapInterval, Enqueues, Kthreads, sum};
use super::text::{column, rate, ratio};
use crate::observe::{Enqueued, Kthread};
use crate::reading::Reading;

/// Enqueues, kthreads and the verdicts of the remote program; in terse mode only those that tell of dropped packets.
pub(super) fn lines(cpumap: &CpumapInterval, extended: bool) -> String {
    let mut text = match &cpumap.enqueued {
        Reading::Known(enqueued) => enqueues(enqueued, extended),
        Reading::NotAvailable { why } => not_available("enqueue", why, extended),
    };
    text += &match &cpumap.kthreads {
        Reading::Known(threads) => kthreads(threads, extended) + &remote(threads, extended),
        Reading::NotAvailable { why } => not_available("kthread", why, extended),
    };
    text
}

fn not_available(what: &str, why: &str, extended: bool) -> String {
    if extended { format!("  {what:<20} not available ({why})\n") } else { String::new() }
}

fn enqueues(enqueued: &Enqueues, extended: bool) -> String {
    let columns = |counts: Enqueued| {
        [
            column(rate(counts.processed, enqueued.period_s), "pkt/s"),
            column(rate(counts.drops, enqueued.period_s), "drop/s"),
            column(ratio(counts.processed, counts.bulks), "bulk-avg"),
        ]
        .concat()
    };
    let mut text = String::new();
    for (to, from) in &enqueued.to {
        let total = sum(from.values().copied());
        if extended || total.drops > 0 {
            text += &format!("  {:<20} {}\n", format!("enqueue to cpu {to}"), columns(total));
        }
        for (cpu, counts) in from.iter().filter(|_| extended) {
            text += &format!("    {:<18} {}\n", format!("cpu:{cpu}->{to}"), columns(*counts));
        }
    }
    text
}

fn kthreads(threads: &Kthreads, extended: bool) -> String {
    let columns = |counts: Kthread| {
        [(counts.processed, "pkt/s"), (counts.drops, "drop/s"), (counts.sched, "sched")]
            .map(|(events, unit)| column(rate(events, threads.period_s), unit))
            .concat()
    };
    let total = threads.total();
    let label = if rate(total.processed, threads.period_s) == "0" { "kthread" } else { "kthread total" };
    let shown = |counts: &Kthread| counts.processed + counts.drops + counts.sched > 0;
    rows((label, 20), total, extended || total.drops > 0, &threads.cpus, |counts| extended && shown(counts), columns)
}

/// What the program in the map decided.
fn remote(threads: &Kthreads, extended: bool) -> String {
    let columns = |counts: Kthread| {
        [(counts.pass, "pass/s"), (counts.drop, "drop/s"), (counts.redirect, "redir/s")]
            .map(|(packets, unit)| column(rate(packets, threads.period_s), unit))
            .concat()
    };
    let total = threads.total();
    let ran = |counts: &Kthread| counts.pass + counts.drop + counts.redirect > 0;
    let shown = ran(&total) && (extended || total.drop > 0);
    let text = rows(("xdp_stats", 18), total, shown, &threads.cpus, |counts| extended && ran(counts), columns);
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// A line with the total and one for each CPU, set in by two.
fn rows(
    (label, width): (&str, usize),
    total: Kthread,
    show_total: bool,
    cpus: &BTreeMap<u32, Kthread>,
    show: impl Fn(&Kthread) -> bool,
    columns: impl Fn(Kthread) -> String,
) -> String {
    let mut text = if show_total { format!("  {label:<width$} {}\n", columns(total)) } else { String::new() };
    for (cpu, counts) in cpus.iter().filter(|(_, counts)| show(counts)) {
        let width = width - 2;
        text += &format!("    {:<width$} {}\n", format!("cpu:{cpu}"), columns(*counts));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::cpumap::tests::interval;
    use super::*;
    use crate::device::Verdicts;

    fn told(enqueued: Enqueued, kthread: Kthread, extended: bool) -> String {
        lines(&interval(Verdicts::default(), enqueued, kthread), extended).replace('\n', "|\n")
    }

    #[test]
    fn extended_lines_of_a_map_with_a_program() {
        let enqueued = Enqueued { processed: 2_000_000, drops: 200, bulks: 300_000 };
        let kthread = Kthread {
            processed: 1_999_800,
            sched: 40,
            pass: 1_999_000,
            redirect: 800,
            batches: 7,
            ..Kthread::default()
        };
        insta::assert_snapshot!(told(enqueued, kthread, true), @r"
          enqueue to cpu 1      1,000,000 pkt/s               100 drop/s             6.67 bulk-avg     |
            cpu:0->1            1,000,000 pkt/s               100 drop/s             6.67 bulk-avg     |
          kthread total           999,900 pkt/s                 0 drop/s               20 sched        |
            cpu:1                 999,900 pkt/s                 0 drop/s               20 sched        |
            xdp_stats             999,500 pass/s                0 drop/s              400 redir/s      |
              cpu:1               999,500 pass/s                0 drop/s              400 redir/s      |
        ");
    }

    #[test]
    fn terse_mode_tells_of_dropped_packets_alone() {
        let full = Enqueued { processed: 400, drops: 200, bulks: 50 };
        insta::assert_snapshot!(told(full, Kthread { processed: 200, drop: 2, ..Kthread::default() }, false), @r"
        enqueue to cpu 1            200 pkt/s               100 drop/s             8.00 bulk-avg     |
          xdp_stats                   0 pass/s                1 drop/s                0 redir/s      |
        ");
        let quiet = Enqueued { drops: 0, ..full };
        assert_eq!(told(quiet, Kthread { processed: 400, pass: 400, ..Kthread::default() }, false), "");
    }

    #[test]
    fn a_tracepoint_that_is_not_there_is_told_in_extended_mode() {
        let mut interval = interval(Verdicts::default(), Enqueued::default(), Kthread::default());
        interval.enqueued = Reading::not_available("this kernel does not have it");
        assert!(lines(&interval, true).starts_with("  enqueue              not available (this kernel does not"));
        assert_eq!(lines(&interval, false), "");
    }
}
