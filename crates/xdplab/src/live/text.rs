//! The lines of live commands. Labels, columns and their order are an interface that scripts read, the one that
//! `xdp-bench` has established: a label of 23 characters, then for each figure a number of 10 and a unit of 13. Numbers
//! have commas between thousands whatever the locale; rows of zeros are left out.

use std::collections::BTreeMap;

use indicatif::HumanCount;

use super::counters::XmitCounts;
use super::cpu_cost::CpuCost;
use super::cpumap::CpumapInterval;
use super::cpumap_text;
use super::event::End;
use super::interval::{Exceptions, Interval, Received, RedirectErrors, Redirects, Transmitted};
use super::ledger::Account;
use super::softirq::{BusyCpu, SoftirqTime};
use crate::device::Counts;
use crate::reading::Reading;
use crate::units::Nanos;

/// What the lines of a command look like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// What stands before the figures of a terse line.
    pub label: String,
    /// The program drops every packet that it can handle, so that drops are what is measured and no errors.
    pub drops: bool,
    /// Packets are shown by RX queue too.
    pub rx_queues: bool,
    /// In extended mode redirect errors have their line even if there are none.
    pub redirect_errors: bool,
    /// Transmitted frames have a line for all flows together, besides one for each.
    pub xmit_total: bool,
}

/// The text of a command.
pub trait Lines {
    /// The line or lines of an interval.
    fn interval(&self, interval: &Interval, extended: bool) -> String;

    /// Those of the last interval.
    fn last(&self, interval: &Interval, extended: bool) -> String {
        self.interval(interval, extended)
    }

    /// The block at the end.
    fn end(&self, end: &End, extended: bool) -> String;
}

/// Packets that met an error of one kind, and the seconds in which they were counted.
struct Errors {
    packets: u64,
    period_s: f64,
}

impl Lines for Layout {
    /// The line or lines of an interval: one terse line, with details in extended mode, and in terse mode only those that
    /// tell of an error.
    fn interval(&self, interval: &Interval, extended: bool) -> String {
        let mut text = self.terse(interval);
        if let Some(received) = &interval.received {
            text += &self.received(received, interval.cpumap.as_ref(), extended);
        }
        if let Some(cpumap) = &interval.cpumap {
            text += &cpumap_text::lines(cpumap, extended);
        }
        if let Some(redirects) = interval.redirects.as_ref().filter(|_| extended) {
            text += &redirects_text(redirects);
        }
        if let Some(errors) = &interval.redirect_errors {
            text += &redirect_errors_text(errors, extended, self.redirect_errors);
        }
        if let Some(exceptions) = &interval.exceptions {
            text += &exceptions_text(exceptions, extended);
        }
        if let Some(xmit) = &interval.xmit {
            text += &xmit_text(xmit, extended, self.xmit_total);
        }
        if extended {
            text += &per_packet(interval);
            text += "\n";
        }
        text
    }

    /// The block at the end: totals, averages over the whole time, the time per packet, and where redirected packets went.
    fn end(&self, end: &End, _extended: bool) -> String {
        self.totals(end) + &costs(end)
    }
}

impl Layout {
    fn terse(&self, interval: &Interval) -> String {
        let mut line = format!("{:<23}", self.label);
        if let Some(received) = &interval.received {
            line += &column(rate(received.packets, received.period_s), "rx/s");
        }
        if let Some(redirects) = &interval.redirects {
            line +=
                &column(known(redirects, |Redirects { packets, period_s, .. }| rate(*packets, *period_s)), "redir/s");
        }
        let mut bad = errors(interval);
        bad.extend(xmit_of(interval).map(|xmit| Errors { packets: xmit.total.drops, period_s: xmit.period_s }));
        bad.extend(
            interval.cpumap.as_ref().map(|cpumap| Errors {
                packets: cpumap.lost() + cpumap.verdicts().dropped,
                period_s: interval.period_s,
            }),
        );
        line += &column(rate_of(&bad), if self.drops { "err/s" } else { "err,drop/s" });
        if let Some(xmit) = &interval.xmit {
            line += &column(known(xmit, |xmit| rate(xmit.total.sent, xmit.period_s)), "xmit/s");
        }
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

    /// The part of the end block that tells totals and averages.
    pub(super) fn totals(&self, End { total, .. }: &End) -> String {
        let average = |packets, period_s| format!("{:<10}", rate(packets, period_s));
        let mut text = entry("Duration", format!("{:.1}s", total.period_s));
        let received = total.received.as_ref().filter(|received| received.packets > 0);
        if let Some(received) = received {
            text += &entry("Packets received", padded(received.packets));
            text += &entry("Average packets/s", average(received.packets, received.period_s));
        }
        let redirects = total.redirects.as_ref().and_then(Reading::known).filter(|redirects| redirects.packets > 0);
        if let Some(redirects) = redirects {
            text += &entry("Packets redirected", padded(redirects.packets));
            text += &entry("Average redir/s", average(redirects.packets, redirects.period_s));
        }
        if let Some(received) = received {
            let filtered = total.cpumap.as_ref().map_or(0, |cpumap| cpumap.verdicts().dropped);
            let dropped = if self.drops { received.packets - received.aborted } else { filtered };
            if self.drops || dropped > 0 {
                text += &entry("Rx dropped", padded(dropped));
            }
        }
        let xmit = xmit_of(total);
        if let Some(xmit) = xmit.filter(|xmit| xmit.total.drops > 0) {
            text += &entry("Tx dropped", padded(xmit.total.drops));
        }
        text += &errors_recorded(total);
        if let Some(xmit) = xmit.filter(|xmit| xmit.total.sent > 0) {
            text += &entry("Packets transmitted", padded(xmit.total.sent));
            text += &entry("Average transmit/s", average(xmit.total.sent, xmit.period_s));
        }
        if let Some(Nanos(ns)) = received.and_then(|received| received.ns_per_packet) {
            text += &entry("ns per packet", format!("{ns:<10.2} (period / packets)"));
        }
        text
    }
}

/// What the CPUs had to do, what limited the rate, and where all packets went.
pub(super) fn costs(End { softirq, cpus, limiter, ledger, .. }: &End) -> String {
    let mut text = softirq.as_ref().map_or_else(String::new, busy);
    text.extend(cpus.iter().map(cpu_cost));
    if let Some(limiter) = limiter {
        text += &entry("Limited by", limiter.to_string());
    }
    text.extend(ledger.iter().map(account));
    text
}

fn receive_columns(counts: &Counts, dropped: u64, period_s: f64) -> String {
    [(counts.packets, "pkt/s"), (dropped, "drop/s"), (counts.aborted, "error/s")]
        .map(|(packets, unit)| column(rate(packets, period_s), unit))
        .concat()
}

fn cpu_cost(cost: &Reading<CpuCost>) -> String {
    match cost {
        Reading::Known(CpuCost { role, share, ns_per_packet: Some(Nanos(ns)), cpu, .. }) => {
            let cpu = cpu.map_or_else(String::new, |cpu| {
                format!("; its CPU: {:.0} % in softirq, {:.0} % idle", cpu.softirq * 100.0, cpu.idle * 100.0)
            });
            let busy = format!("{role}: run time / packets, {:.0} % busy{cpu}", share * 100.0);
            entry("Busy ns per packet", format!("{ns:<10.2} ({busy})"))
        }
        Reading::Known(CpuCost { role, .. }) => entry("Busy ns per packet", format!("none       ({role}: no packets)")),
        Reading::NotAvailable { why } => entry("Busy ns per packet", format!("not available ({why})")),
    }
}

fn account(account: &Reading<Account>) -> String {
    entry("Ledger", account.to_string())
}

/// What was counted of errors, and which of their kinds could not be.
fn errors_recorded(total: &Interval) -> String {
    let packets: u64 = errors(total).iter().map(|errors| errors.packets).sum();
    let missing = [
        total.exceptions.as_ref().and_then(why_missing),
        total.redirect_errors.as_ref().and_then(why_missing),
        total.xmit.as_ref().and_then(why_missing),
    ];
    let missing: Vec<&str> = missing.into_iter().flatten().collect();
    match (missing.first(), packets) {
        (Some(why), packets) => {
            let aborted_alone =
                total.received.is_some() && total.exceptions.as_ref().is_some_and(|e| e.known().is_none());
            let what = if aborted_alone { "aborted alone; others are" } else { "some are" };
            entry("Errors recorded", format!("{} ({what} not available: {why})", padded(packets)))
        }
        (None, 0) => String::new(),
        (None, packets) => entry("Errors recorded", padded(packets)),
    }
}

fn why_missing<T>(reading: &Reading<T>) -> Option<&str> {
    match reading {
        Reading::NotAvailable { why } => Some(why),
        Reading::Known(_) => None,
    }
}

fn busy(softirq: &Reading<SoftirqTime>) -> String {
    let softirq = match softirq {
        Reading::NotAvailable { why } => return entry("Busy ns per packet", format!("not available ({why})")),
        Reading::Known(softirq) => softirq,
    };
    let SoftirqTime { busy_ns_per_packet: Nanos(ns), cpus, .. } = softirq;
    let mut text = entry("Busy ns per packet", format!("{ns:<10.2} (softirq time of the receiving CPUs / packets)"));
    for (cpu, BusyCpu { ns_per_packet, softirq, .. }) in cpus {
        let ns = ns_per_packet.map_or_else(|| format!("{:<10}", "-"), |Nanos(ns)| format!("{ns:<10.2}"));
        text += &entry(&format!("  cpu:{cpu}"), format!("{ns} ({:.0} % of its time in softirq)", 100.0 * softirq));
    }
    text
}

/// Verdicts that were not carried out where the kernel tells them, else the packets that the program aborted; redirects that
/// failed, and bulks that drivers answered with an error.
fn errors(interval: &Interval) -> Vec<Errors> {
    let verdicts = match (&interval.exceptions, &interval.received) {
        (Some(Reading::Known(exceptions)), _) => {
            Some(Errors { packets: exceptions.packets, period_s: exceptions.period_s })
        }
        (_, Some(received)) => Some(Errors { packets: received.aborted, period_s: received.period_s }),
        (_, None) => None,
    };
    let redirects = interval.redirect_errors.as_ref().and_then(Reading::known);
    let redirects = redirects.map(|errors| Errors { packets: errors.packets, period_s: errors.period_s });
    let xmit = xmit_of(interval).map(|xmit| Errors { packets: xmit.total.error_bulks, period_s: xmit.period_s });
    [verdicts, redirects, xmit].into_iter().flatten().collect()
}

fn xmit_of(interval: &Interval) -> Option<&Transmitted> {
    interval.xmit.as_ref().and_then(Reading::known)
}

/// A number to show, or that there is none.
fn known<T>(reading: &Reading<T>, show: impl Fn(&T) -> String) -> String {
    reading.known().map_or_else(|| "n/a".into(), show)
}

fn redirects_text(redirects: &Reading<Redirects>) -> String {
    let Redirects { period_s, packets, cpus } = match redirects {
        Reading::Known(redirects) => redirects,
        Reading::NotAvailable { why } => return not_available("redirect", why),
    };
    let label = if rate(*packets, *period_s) == "0" { "redirect" } else { "redirect total" };
    let mut text = format!("  {label:<20} {}\n", column(rate(*packets, *period_s), "redir/s"));
    for (cpu, packets) in cpus {
        text += &format!("    {:<18} {}\n", format!("cpu:{cpu}"), column(rate(*packets, *period_s), "redir/s"));
    }
    text
}

fn redirect_errors_text(errors: &Reading<RedirectErrors>, extended: bool, always: bool) -> String {
    let RedirectErrors { period_s, packets, errnos } = match errors {
        Reading::Known(errors) => errors,
        Reading::NotAvailable { why } if extended => return not_available("redirect_err", why),
        Reading::NotAvailable { .. } => return String::new(),
    };
    if *packets == 0 && !(extended && always) {
        return String::new();
    }
    let total = if extended && *packets > 0 { " total" } else { "" };
    let label = format!("redirect_err{total}");
    let mut text = format!("  {label:<20} {}\n", column(rate(*packets, *period_s), "error/s"));
    for (errno, cpus) in errnos {
        let label = format!("{errno}{total}");
        text += &format!("    {label:<18} {}\n", column(rate(cpus.values().sum(), *period_s), "error/s"));
        text += &error_cpus(cpus, *period_s, extended);
    }
    text
}

fn error_cpus(cpus: &BTreeMap<u32, u64>, period_s: f64, extended: bool) -> String {
    let shown = cpus.iter().filter(|_| extended);
    let line = |(cpu, packets): (&u32, &u64)| {
        format!("       {:<16}{}\n", format!("cpu:{cpu}"), column(rate(*packets, period_s), "error/s"))
    };
    shown.map(line).collect()
}

fn xmit_text(xmit: &Reading<Transmitted>, extended: bool, with_total: bool) -> String {
    let Transmitted { period_s, total, cpus, flows } = match xmit {
        Reading::Known(xmit) => xmit,
        Reading::NotAvailable { why } if extended => return not_available("devmap_xmit", why),
        Reading::NotAvailable { .. } => return String::new(),
    };
    let mut text = String::new();
    if with_total && (extended || total.drops > 0 || total.error_bulks > 0) {
        let label = if extended && total.sent > 0 { "devmap_xmit total" } else { "devmap_xmit" };
        text += &format!("  {label:<20} {}\n", xmit_columns(total, *period_s));
        text += &xmit_cpus(cpus, *period_s, extended);
    }
    for (flow, transmitted) in flows {
        if extended || transmitted.total.drops > 0 {
            text += &format!("  {:<20} {}\n", format!("xmit {flow}"), xmit_columns(&transmitted.total, *period_s));
            for (errno, counts) in &transmitted.driver_errors {
                text += &format!("    {errno:<18} {}\n", column(rate(counts.error_bulks, *period_s), "drv_err/s"));
            }
        }
        text += &xmit_cpus(&transmitted.cpus, *period_s, extended);
    }
    text
}

fn xmit_cpus(cpus: &BTreeMap<u32, XmitCounts>, period_s: f64, extended: bool) -> String {
    let shown = cpus.iter().filter(|_| extended);
    let line = |(cpu, counts): (&u32, &XmitCounts)| {
        format!("     {:<18}{}\n", format!("cpu:{cpu}"), xmit_columns(counts, period_s))
    };
    shown.map(line).collect()
}

#[expect(clippy::cast_precision_loss, reason = "an average to show")]
fn xmit_columns(counts: &XmitCounts, period_s: f64) -> String {
    let XmitCounts { sent, drops, bulks, error_bulks } = *counts;
    let average = if bulks > 0 { (sent + drops) as f64 / bulks as f64 } else { 0.0 };
    [(sent, "xmit/s"), (drops, "drop/s"), (error_bulks, "drv_err/s")]
        .map(|(events, unit)| column(rate(events, period_s), unit))
        .concat()
        + &column(format!("{average:.2}"), "bulk-avg")
}

fn not_available(label: &str, why: &str) -> String {
    format!("  {label:<20} not available ({why})\n")
}

fn exceptions_text(exceptions: &Reading<Exceptions>, extended: bool) -> String {
    let Exceptions { period_s, packets, verdicts } = match exceptions {
        Reading::Known(exceptions) => exceptions,
        Reading::NotAvailable { why } if extended => {
            return not_available("xdp_exception", why);
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
        text += &error_cpus(cpus, *period_s, extended);
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
pub(super) fn rate(events: u64, period_s: f64) -> String {
    rate_of(&[Errors { packets: events, period_s }])
}

/// The sum of their rates, rounded.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate to show"
)]
fn rate_of(events: &[Errors]) -> String {
    let rates =
        events.iter().filter(|events| events.period_s > 0.0).map(|events| events.packets as f64 / events.period_s);
    HumanCount(rates.sum::<f64>().round() as u64).to_string()
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

pub(super) fn entry(label: &str, value: String) -> String {
    format!("  {label:<20}: {value}\n")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::counters::{Group, Hop};
    use super::super::event::EndedBy;
    use super::super::interval::WallClock;
    use super::super::interval::tests::{Row, counters};
    use super::*;

    const DROP: fn() -> Layout = || Layout { label: "Summary".into(), drops: true, ..Layout::default() };
    const PASS: fn() -> Layout = || Layout { drops: false, ..DROP() };

    fn interval(seconds: f64, received: &[Row], exceptions: &[(&str, u32, u64)], partial: bool) -> Interval {
        let start = Instant::now();
        let (first, last) = (counters(start, 0.0, &[], &[]), counters(start, seconds, received, exceptions));
        Interval::between(&first, &last, partial, &WallClock::start(start))
    }

    fn end_of(total: Interval, softirq: Option<Reading<SoftirqTime>>) -> End {
        End { softirq, ..End::new(total, EndedBy::Duration) }
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
        insta::assert_snapshot!(marked(&DROP().end(&end_of(interval, None), false)), @r"
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
        let cpu = BusyCpu { ns_per_packet: Some(Nanos(72.0)), softirq: 0.072, idle: 0.9 };
        let busy = SoftirqTime {
            busy_ns: [(0, 888_480_000)].into(),
            busy_ns_per_packet: Nanos(72.0),
            cpus: [(0, cpu)].into(),
        };
        insta::assert_snapshot!(marked(&DROP().end(&end_of(total.clone(), Some(Reading::Known(busy))), false)), @r"
        Duration            : 12.3s|
        Packets received    : 12,340,000|
        Average packets/s   : 1,000,000 |
        Rx dropped          : 12,339,960|
        Errors recorded     : 40        |
        ns per packet       : 1000.00    (period / packets)|
        Busy ns per packet  : 72.00      (softirq time of the receiving CPUs / packets)|
          cpu:0             : 72.00      (7 % of its time in softirq)|
        ");
        insta::assert_snapshot!(marked(&PASS().end(&end_of(total, Some(Reading::not_available("threads"))), false)), @r"
        Duration            : 12.3s|
        Packets received    : 12,340,000|
        Average packets/s   : 1,000,000 |
        Errors recorded     : 40        |
        ns per packet       : 1000.00    (period / packets)|
        Busy ns per packet  : not available (threads)|
        ");
    }

    /// Two seconds of redirecting: received, redirect errors, and frames given to the driver of `out0`.
    fn redirecting(errors: &[(&str, u32, u64)], xmit: &[(Option<&str>, u32, XmitCounts)]) -> Interval {
        let start = Instant::now();
        let empty = || Group { at: start, rows: BTreeMap::new() };
        let mut first = counters(start, 0.0, &[], &[]);
        let mut last = counters(start, 2.0, &[(0, 1, 2_000, 0)], &[]);
        first.redirects = Some(Reading::Known(Group { at: start, rows: [].into() }));
        last.redirects = Some(Reading::Known(Group { at: last.at, rows: [(1, 1_800)].into() }));
        first.redirect_errors = Some(Reading::Known(empty()));
        let errors = errors.iter().map(|&(errno, cpu, packets)| ((errno.to_owned(), cpu), packets));
        last.redirect_errors = Some(Reading::Known(Group { at: last.at, rows: errors.collect() }));
        first.xmit = Some(Reading::Known(Group { at: start, rows: [].into() }));
        let hop = |errno: Option<&str>, cpu| Hop { flow: "in0->out0".into(), errno: errno.map(str::to_owned), cpu };
        let rows = xmit.iter().map(|&(errno, cpu, counts)| (hop(errno, cpu), counts)).collect();
        last.xmit = Some(Reading::Known(Group { at: last.at, rows }));
        Interval::between(&first, &last, false, &WallClock::start(start))
    }

    fn xmit(sent: u64, drops: u64, bulks: u64, error_bulks: u64) -> XmitCounts {
        XmitCounts { sent, drops, bulks, error_bulks }
    }

    #[test]
    fn a_redirect_without_errors_is_one_line_and_extended_shows_where_frames_went() {
        let interval = redirecting(&[], &[(None, 1, xmit(1_800, 0, 225, 0))]);
        let layout = Layout { label: "in0->out0".into(), redirect_errors: true, ..Layout::default() };
        insta::assert_snapshot!(marked(&layout.interval(&interval, false)), @r"
        in0->out0                   1,000 rx/s                900 redir/s               0 err,drop/s          900 xmit/s       |
        ");
        insta::assert_snapshot!(marked(&layout.interval(&interval, true)), @r"
        in0->out0                   1,000 rx/s                900 redir/s               0 err,drop/s          900 xmit/s       |
          receive total             1,000 pkt/s                 0 drop/s                0 error/s      |
            cpu:1                   1,000 pkt/s                 0 drop/s                0 error/s      |
          redirect total              900 redir/s      |
            cpu:1                     900 redir/s      |
          redirect_err                  0 error/s      |
          xdp_exception                 0 hit/s        |
          xmit in0->out0              900 xmit/s                0 drop/s                0 drv_err/s          8.00 bulk-avg     |
             cpu:1                    900 xmit/s                0 drop/s                0 drv_err/s          8.00 bulk-avg     |
          period per packet    1000000.00 ns           |
        |
        ");
    }

    #[test]
    fn redirect_errors_and_frames_not_taken_are_told_in_terse_mode_too() {
        let rows = [(None, 1, xmit(1_000, 600, 100, 0)), (Some("ENXIO"), 0, xmit(0, 32, 2, 2))];
        let interval = redirecting(&[("EMSGSIZE", 1, 168), ("ENETDOWN", 0, 200)], &rows);
        let layout = Layout { label: "Summary".into(), xmit_total: true, redirect_errors: true, ..Layout::default() };
        insta::assert_snapshot!(marked(&layout.interval(&interval, false)), @r"
        Summary                     1,000 rx/s                900 redir/s             501 err,drop/s          500 xmit/s       |
          redirect_err                184 error/s      |
            EMSGSIZE                   84 error/s      |
            ENETDOWN                  100 error/s      |
          devmap_xmit                 500 xmit/s              316 drop/s                1 drv_err/s         16.00 bulk-avg     |
          xmit in0->out0              500 xmit/s              316 drop/s                1 drv_err/s         16.00 bulk-avg     |
            ENXIO                       1 drv_err/s    |
        ");
        insta::assert_snapshot!(marked(&layout.interval(&interval, true)), @r"
        Summary                     1,000 rx/s                900 redir/s             501 err,drop/s          500 xmit/s       |
          receive total             1,000 pkt/s                 0 drop/s                0 error/s      |
            cpu:1                   1,000 pkt/s                 0 drop/s                0 error/s      |
          redirect total              900 redir/s      |
            cpu:1                     900 redir/s      |
          redirect_err total          184 error/s      |
            EMSGSIZE total             84 error/s      |
               cpu:1                   84 error/s      |
            ENETDOWN total            100 error/s      |
               cpu:0                  100 error/s      |
          xdp_exception                 0 hit/s        |
          devmap_xmit total           500 xmit/s              316 drop/s                1 drv_err/s         16.00 bulk-avg     |
             cpu:0                      0 xmit/s               16 drop/s                1 drv_err/s         16.00 bulk-avg     |
             cpu:1                    500 xmit/s              300 drop/s                0 drv_err/s         16.00 bulk-avg     |
          xmit in0->out0              500 xmit/s              316 drop/s                1 drv_err/s         16.00 bulk-avg     |
            ENXIO                       1 drv_err/s    |
             cpu:0                      0 xmit/s               16 drop/s                1 drv_err/s         16.00 bulk-avg     |
             cpu:1                    500 xmit/s              300 drop/s                0 drv_err/s         16.00 bulk-avg     |
          period per packet    1000000.00 ns           |
        |
        ");
        insta::assert_snapshot!(marked(&layout.end(&end_of(interval, None), false)), @r"
        Duration            : 2.0s|
        Packets received    : 2,000     |
        Average packets/s   : 1,000     |
        Packets redirected  : 1,800     |
        Average redir/s     : 900       |
        Tx dropped          : 632       |
        Errors recorded     : 370       |
        Packets transmitted : 1,000     |
        Average transmit/s  : 500       |
        ns per packet       : 1000000.00 (period / packets)|
        ");
    }

    #[test]
    fn what_no_tracepoint_tells_of_a_redirect_is_listed_and_no_zero() {
        let mut interval = redirecting(&[], &[]);
        interval.redirects = Some(Reading::not_available("no xdp_redirect"));
        interval.redirect_errors = Some(Reading::not_available("no xdp_redirect_err"));
        interval.xmit = Some(Reading::not_available("no xdp_devmap_xmit"));
        let layout = Layout { label: "Summary".into(), ..Layout::default() };
        insta::assert_snapshot!(marked(&layout.interval(&interval, true)), @r"
        Summary                     1,000 rx/s                n/a redir/s               0 err,drop/s          n/a xmit/s       |
          receive total             1,000 pkt/s                 0 drop/s                0 error/s      |
            cpu:1                   1,000 pkt/s                 0 drop/s                0 error/s      |
          redirect             not available (no xdp_redirect)|
          redirect_err         not available (no xdp_redirect_err)|
          xdp_exception                 0 hit/s        |
          devmap_xmit          not available (no xdp_devmap_xmit)|
          period per packet    1000000.00 ns           |
        |
        ");
        insta::assert_snapshot!(marked(&layout.end(&end_of(interval, None), false)), @r"
        Duration            : 2.0s|
        Packets received    : 2,000     |
        Average packets/s   : 1,000     |
        Errors recorded     : 0          (some are not available: no xdp_redirect_err)|
        ns per packet       : 1000000.00 (period / packets)|
        ");
    }

    #[test]
    fn an_end_without_packets_is_the_duration_alone() {
        insta::assert_snapshot!(marked(&DROP().end(&end_of(interval(0.04, &[], &[], false), None), false)), @r"
          Duration            : 0.0s|
        ");
    }
}
