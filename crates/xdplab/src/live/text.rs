//! The lines of live commands. Labels, columns and their order are an interface that scripts read, the one that
//! `xdp-bench` has established: a label of 23 characters, then for each figure a number of 10 and a unit of 13. Numbers
//! have commas between thousands whatever the locale; rows of zeros are left out.

use indicatif::HumanCount;

use super::cpu_cost::CpuCost;
use super::cpumap::CpumapInterval;
use super::cpumap_text;
use super::event::End;
use super::interval::{Exceptions, Interval, Received};
use super::ledger::{Account, Part};
use super::softirq::SoftirqTime;
use crate::device::Counts;
use crate::reading::Reading;
use crate::units::Nanos;

/// What the lines of a command look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What stands before the figures of a terse line.
    pub label: String,
    /// The program drops every packet that it can handle, so that drops are what is measured and no errors.
    pub drops: bool,
    /// Packets are shown by RX queue too.
    pub rx_queues: bool,
}

/// Errors, and the seconds in which they were counted.
struct Errors {
    packets: u64,
    period_s: f64,
}

impl Layout {
    /// The line or lines of an interval: one terse line, with details in extended mode, and in terse mode only those that
    /// tell of an error.
    #[must_use]
    pub fn interval(&self, interval: &Interval, extended: bool) -> String {
        let mut text = self.terse(interval);
        if let Some(received) = &interval.received {
            text += &self.received(received, interval.cpumap.as_ref(), extended);
        }
        if let Some(cpumap) = &interval.cpumap {
            text += &cpumap_text::lines(cpumap, extended);
        }
        if let Some(exceptions) = &interval.exceptions {
            text += &exceptions_text(exceptions, extended);
        }
        if extended {
            text += &per_packet(interval);
            text += "\n";
        }
        text
    }

    fn terse(&self, interval: &Interval) -> String {
        let mut line = format!("{:<23}", self.label);
        if let Some(received) = &interval.received {
            line += &column(rate(received.packets, received.period_s), "rx/s");
        }
        let Errors { packets, period_s } = errors(interval);
        let lost = interval.cpumap.as_ref().map_or(0, |cpumap| cpumap.lost() + cpumap.verdicts().dropped);
        line += &column(rate(packets + lost, period_s), if self.drops { "err/s" } else { "err,drop/s" });
        if interval.partial {
            line += &column(format!("{:.3}", interval.period_s), "s, partial");
        }
        line + "\n"
    }

    fn received(&self, received: &Received, cpumap: Option<&CpumapInterval>, extended: bool) -> String {
        let total = Counts { packets: received.packets, aborted: received.aborted };
        let dropped = cpumap.map_or_else(|| self.dropped(&total), |cpumap| cpumap.verdicts().dropped);
        let mut text = String::new();
        if extended || total.aborted > 0 || dropped > 0 && !self.drops {
            let label =
                if extended && rate(total.packets, received.period_s) != "0" { "receive total" } else { "receive" };
            text += &format!("  {label:<20} {}\n", receive_columns(&total, dropped, received.period_s));
        }
        if !extended {
            return text;
        }
        let row = |name: &str, number: &u32, counts: &Counts, dropped| {
            let label = format!("{name}:{number}");
            format!("    {label:<18} {}\n", receive_columns(counts, dropped, received.period_s))
        };
        text.extend(received.cpus.iter().map(|(cpu, counts)| {
            let of_cpu = |cpumap: &CpumapInterval| cpumap.verdicts.get(cpu).map_or(0, |verdicts| verdicts.dropped);
            row("cpu", cpu, counts, cpumap.map_or_else(|| self.dropped(counts), of_cpu))
        }));
        if self.rx_queues {
            text += "\n";
            text.extend(
                received.rx_queues.iter().map(|(queue, counts)| row("rxq", queue, counts, self.dropped(counts))),
            );
        }
        text
    }

    fn dropped(&self, counts: &Counts) -> u64 {
        if self.drops { counts.packets - counts.aborted } else { 0 }
    }

    /// The block at the end: totals, averages over the whole time, and the time per packet.
    #[must_use]
    pub fn end(&self, End { total, softirq, cpus, limiter, ledger, .. }: &End) -> String {
        let mut text = entry("Duration", format!("{:.1}s", total.period_s));
        if let Some(received) = total.received.as_ref().filter(|received| received.packets > 0) {
            text += &entry("Packets received", padded(received.packets));
            text += &entry("Average packets/s", format!("{:<10}", rate(received.packets, received.period_s)));
            let filtered = total.cpumap.as_ref().map_or(0, |cpumap| cpumap.verdicts().dropped);
            let dropped = if self.drops { received.packets - received.aborted } else { filtered };
            if self.drops || dropped > 0 {
                text += &entry("Rx dropped", padded(dropped));
            }
        }
        match &total.exceptions {
            Some(Reading::NotAvailable { why }) => {
                let aborted = padded(errors(total).packets);
                text +=
                    &entry("Errors recorded", format!("{aborted} (aborted alone; others are not available: {why})"));
            }
            _ if errors(total).packets > 0 => text += &entry("Errors recorded", padded(errors(total).packets)),
            _ => {}
        }
        if let Some(Nanos(ns)) = total.received.as_ref().and_then(|received| received.ns_per_packet) {
            text += &entry("ns per packet", format!("{ns:<10.2} (period / packets)"));
            text += &softirq.as_ref().map_or_else(String::new, busy);
        }
        text.extend(cpus.iter().map(cpu_cost));
        if let Some(limiter) = limiter {
            text += &entry("Limited by", limiter.to_string());
        }
        text.extend(ledger.iter().map(account));
        text
    }
}

fn receive_columns(counts: &Counts, dropped: u64, period_s: f64) -> String {
    [(counts.packets, "pkt/s"), (dropped, "drop/s"), (counts.aborted, "error/s")]
        .map(|(packets, unit)| column(rate(packets, period_s), unit))
        .concat()
}

fn cpu_cost(cost: &Reading<CpuCost>) -> String {
    match cost {
        Reading::Known(CpuCost { role, share, ns_per_packet: Some(Nanos(ns)), .. }) => {
            entry("Busy ns per packet", format!("{ns:<10.2} ({role}: run time / packets, {:.0} % busy)", share * 100.0))
        }
        Reading::Known(CpuCost { role, .. }) => entry("Busy ns per packet", format!("none       ({role}: no packets)")),
        Reading::NotAvailable { why } => entry("Busy ns per packet", format!("not available ({why})")),
    }
}

/// `1,000 redirected = 990 queued + 10 queue full, residual 0`
fn account(account: &Reading<Account>) -> String {
    let value = match account {
        Reading::NotAvailable { why } => format!("not available ({why})"),
        Reading::Known(Account { of, packets, parts, residual }) => {
            let part = |part: &Part| format!("{} {}", HumanCount(part.packets), part.to);
            let parts: Vec<String> = parts.iter().map(part).collect();
            format!("{} {of} = {}, residual {residual}", HumanCount(*packets), parts.join(" + "))
        }
    };
    entry("Ledger", value)
}

fn busy(softirq: &Reading<SoftirqTime>) -> String {
    let value = match softirq {
        Reading::NotAvailable { why } => format!("not available ({why})"),
        Reading::Known(SoftirqTime { busy_ns_per_packet: Nanos(ns), .. }) => {
            format!("{ns:<10.2} (softirq time of the receiving CPUs / packets)")
        }
    };
    entry("Busy ns per packet", value)
}

/// Verdicts that were not carried out where the kernel tells them, else the packets that the program aborted.
fn errors(interval: &Interval) -> Errors {
    match (&interval.exceptions, &interval.received) {
        (Some(Reading::Known(exceptions)), _) => Errors { packets: exceptions.packets, period_s: exceptions.period_s },
        (_, Some(received)) => Errors { packets: received.aborted, period_s: received.period_s },
        (_, None) => Errors { packets: 0, period_s: 0.0 },
    }
}

fn exceptions_text(exceptions: &Reading<Exceptions>, extended: bool) -> String {
    let Exceptions { period_s, packets, verdicts } = match exceptions {
        Reading::Known(exceptions) => exceptions,
        Reading::NotAvailable { why } if extended => {
            return format!("  {:<20} not available ({why})\n", "xdp_exception");
        }
        Reading::NotAvailable { .. } => return String::new(),
    };
    if *packets == 0 && !extended {
        return String::new();
    }
    let label = if *packets > 0 { "xdp_exception total" } else { "xdp_exception" };
    let mut text = format!("  {label:<20} {}\n", column(rate(*packets, *period_s), "hit/s"));
    for (verdict, cpus) in verdicts {
        text += &format!("    {verdict:<18} {}\n", column(rate(cpus.values().sum(), *period_s), "error/s"));
        for (cpu, packets) in cpus.iter().filter(|_| extended) {
            text += &format!("       {:<16}{}\n", format!("cpu:{cpu}"), column(rate(*packets, *period_s), "error/s"));
        }
    }
    text
}

fn per_packet(interval: &Interval) -> String {
    match interval.received.as_ref().and_then(|received| received.ns_per_packet) {
        Some(Nanos(ns)) => format!("  {:<20} {}\n", "period per packet", column(format!("{ns:.2}"), "ns")),
        None => String::new(),
    }
}

/// Events per second, rounded; 0 over no time.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate to show"
)]
pub(super) fn rate(events: u64, period_s: f64) -> String {
    let rate = if period_s > 0.0 { (events as f64 / period_s).round() as u64 } else { 0 };
    HumanCount(rate).to_string()
}

fn padded(number: u64) -> String {
    format!("{:<10}", HumanCount(number).to_string())
}

/// Packets per bulk; 0.00 without a bulk.
pub(super) fn ratio(packets: u64, bulks: u64) -> String {
    let ratio = if bulks == 0 { 0.0 } else { packets as f64 / bulks as f64 };
    format!("{ratio:.2}")
}

pub(super) fn column(number: String, unit: &str) -> String {
    format!("{number:>10} {unit:<13}")
}

fn entry(label: &str, value: String) -> String {
    format!("  {label:<20}: {value}\n")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::event::{EndedBy, InterfaceCounted};
    use super::super::interval::WallClock;
    use super::super::interval::tests::{Row, counters};
    use super::*;

    const DROP: fn() -> Layout = || Layout { label: "Summary".into(), drops: true, rx_queues: false };
    const PASS: fn() -> Layout = || Layout { drops: false, ..DROP() };

    fn interval(seconds: f64, received: &[Row], exceptions: &[(&str, u32, u64)], partial: bool) -> Interval {
        let start = Instant::now();
        let (first, last) = (counters(start, 0.0, &[], &[]), counters(start, seconds, received, exceptions));
        Interval::between(&first, &last, partial, &WallClock::start(start))
    }

    fn end(total: Interval, softirq: Option<Reading<SoftirqTime>>) -> End {
        let interface = Reading::Known(InterfaceCounted { rx_packets: 0, tx_packets: 0 });
        End { softirq, interface, ..End::new(total, EndedBy::Duration) }
    }

    /// With a mark at the end of each line, so that columns show.
    fn marked(text: &str) -> String {
        text.replace('\n', "|\n")
    }

    #[test]
    fn a_terse_line_of_drop_and_of_pass() {
        let interval = interval(2.0, &[(0, 1, 2_469_134, 0)], &[], false);
        insta::assert_snapshot!(marked(&DROP().interval(&interval, false)), @r"
        Summary                 1,234,567 rx/s                  0 err/s        |
        ");
        insta::assert_snapshot!(marked(&PASS().interval(&interval, false)), @r"
        Summary                 1,234,567 rx/s                  0 err,drop/s   |
        ");
    }

    #[test]
    fn a_partial_interval_is_shown_as_such_with_its_own_rate() {
        let interval = interval(0.25, &[(0, 0, 1_000, 0)], &[], true);
        insta::assert_snapshot!(marked(&DROP().interval(&interval, false)), @r"
        Summary                     4,000 rx/s                  0 err/s             0.250 s, partial   |
        ");
    }

    #[test]
    fn extended_mode_shows_cpus_and_queues_and_leaves_out_those_without_packets() {
        let rows = [(0, 0, 1_000_000, 0), (1, 1, 2_000_000, 0), (2, 1, 0, 0), (3, 1, 400_000, 0)];
        let interval = interval(2.0, &rows, &[], false);
        let layout = Layout { rx_queues: true, ..DROP() };
        insta::assert_snapshot!(marked(&layout.interval(&interval, true)), @r"
        Summary                 1,700,000 rx/s                  0 err/s        |
          receive total         1,700,000 pkt/s         1,700,000 drop/s                0 error/s      |
            cpu:0                 500,000 pkt/s           500,000 drop/s                0 error/s      |
            cpu:1               1,200,000 pkt/s         1,200,000 drop/s                0 error/s      |
        |
            rxq:0                 500,000 pkt/s           500,000 drop/s                0 error/s      |
            rxq:1               1,000,000 pkt/s         1,000,000 drop/s                0 error/s      |
            rxq:3                 200,000 pkt/s           200,000 drop/s                0 error/s      |
          xdp_exception                 0 hit/s        |
          period per packet        588.24 ns           |
        |
        ");
    }

    #[test]
    fn extended_mode_without_packets() {
        insta::assert_snapshot!(marked(&PASS().interval(&interval(1.0, &[], &[], false), true)), @r"
        Summary                         0 rx/s                  0 err,drop/s   |
          receive                       0 pkt/s                 0 drop/s                0 error/s      |
          xdp_exception                 0 hit/s        |
        |
        ");
    }

    #[test]
    fn errors_are_told_in_terse_mode_too() {
        let exceptions = [("XDP_ABORTED", 0, 20), ("XDP_TX", 1, 6_000)];
        let interval = interval(2.0, &[(0, 0, 1_000, 20)], &exceptions, false);
        insta::assert_snapshot!(marked(&PASS().interval(&interval, false)), @r"
        Summary                       500 rx/s              3,010 err,drop/s   |
          receive                     500 pkt/s                 0 drop/s               10 error/s      |
          xdp_exception total       3,010 hit/s        |
            XDP_ABORTED                10 error/s      |
            XDP_TX                  3,000 error/s      |
        ");
        insta::assert_snapshot!(marked(&PASS().interval(&interval, true)), @r"
        Summary                       500 rx/s              3,010 err,drop/s   |
          receive total               500 pkt/s                 0 drop/s               10 error/s      |
            cpu:0                     500 pkt/s                 0 drop/s               10 error/s      |
          xdp_exception total       3,010 hit/s        |
            XDP_ABORTED                10 error/s      |
               cpu:0                   10 error/s      |
            XDP_TX                  3,000 error/s      |
               cpu:1                3,000 error/s      |
          period per packet    2000000.00 ns           |
        |
        ");
    }

    #[test]
    fn without_the_tracepoint_errors_are_those_that_the_program_counted() {
        let mut interval = interval(2.0, &[(0, 0, 1_000, 20)], &[], false);
        interval.exceptions = Some(Reading::not_available("no tracepoint"));
        insta::assert_snapshot!(marked(&DROP().interval(&interval, true)), @r"
        Summary                       500 rx/s                 10 err/s        |
          receive total               500 pkt/s               490 drop/s               10 error/s      |
            cpu:0                     500 pkt/s               490 drop/s               10 error/s      |
          xdp_exception        not available (no tracepoint)|
          period per packet    2000000.00 ns           |
        |
        ");
        insta::assert_snapshot!(marked(&DROP().end(&end(interval, None))), @r"
        Duration            : 2.0s|
        Packets received    : 1,000     |
        Average packets/s   : 500       |
        Rx dropped          : 980       |
        Errors recorded     : 20         (aborted alone; others are not available: no tracepoint)|
        ns per packet       : 2000000.00 (period / packets)|
        ");
    }

    #[test]
    fn the_end_block_has_totals_averages_and_the_time_per_packet() {
        let total = interval(12.34, &[(0, 0, 12_340_000, 40)], &[("XDP_ABORTED", 0, 40)], false);
        let busy = SoftirqTime { busy_ns: [(0, 888_480_000)].into(), busy_ns_per_packet: Nanos(72.0) };
        insta::assert_snapshot!(marked(&DROP().end(&end(total.clone(), Some(Reading::Known(busy))))), @r"
        Duration            : 12.3s|
        Packets received    : 12,340,000|
        Average packets/s   : 1,000,000 |
        Rx dropped          : 12,339,960|
        Errors recorded     : 40        |
        ns per packet       : 1000.00    (period / packets)|
        Busy ns per packet  : 72.00      (softirq time of the receiving CPUs / packets)|
        ");
        insta::assert_snapshot!(marked(&PASS().end(&end(total, Some(Reading::not_available("threads"))))), @r"
        Duration            : 12.3s|
        Packets received    : 12,340,000|
        Average packets/s   : 1,000,000 |
        Errors recorded     : 40        |
        ns per packet       : 1000.00    (period / packets)|
        Busy ns per packet  : not available (threads)|
        ");
    }

    #[test]
    fn an_end_without_packets_is_the_duration_alone() {
        insta::assert_snapshot!(marked(&DROP().end(&end(interval(0.04, &[], &[], false), None))), @r"
          Duration            : 0.0s|
        ");
    }
}
