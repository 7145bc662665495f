//! The guards of a run on a lab.

use super::Guard;
use crate::netlink::XdpMode;
use crate::observe::Pages;
use crate::observed::{Ledger, Observed, Onwards};
use crate::reading::Reading;
use crate::run::{Engine, PROGRAM_ONLY};
use crate::stats::Comparison;
use crate::topology::Placement;

/// Slices of each variant below which no interval is worth printing.
pub const MIN_SLICES: usize = 200;
/// Share of NAPI polls that must use their whole budget for the device to count as saturated.
const SATURATED: f64 = 0.9;
/// Idle share up to which a CPU counts as busy all the time: loading the programs of the next round takes some.
const BUSY_IDLE: f64 = 0.05;
/// Share of a CPU's time taken by the hypervisor above which a run is noted. Interleaving cancels steal in differences.
const STEAL_WARN: f64 = 0.05;
/// Change of the reference workload's time during the run above which it is noted. Interleaving keeps it out of differences.
const FREQUENCY_WARN: f64 = 0.05;
/// Share of the packets handed on that found no room above which it is noted: refusing them costs something else.
pub(crate) const REFUSED_WARN: f64 = 0.01;

/// Checks everything that was observed, except the statistics.
#[must_use]
pub fn run_guards(observed: &Observed, engine: Engine, asked_mode: XdpMode, variants: &[String]) -> Vec<Guard> {
    let mut guards = match engine {
        Engine::Slices => traffic_guards(observed, asked_mode),
        Engine::TestRun { .. } => program_guards(observed),
    };
    guards.extend([steal(observed), frequency(observed), enough_slices(observed, variants)]);
    guards.extend(redirects(observed));
    guards.extend(lost_slices(observed));
    guards.extend(interrupted(observed));
    guards
}

fn traffic_guards(observed: &Observed, asked_mode: XdpMode) -> Vec<Guard> {
    vec![
        single_rx_queue(observed),
        one_of("one-cpu", "CPU", &observed.cpu_packets),
        placement_unchanged(observed),
        saturation(observed),
        mode(observed, asked_mode),
        aborted(observed),
        ledger(observed),
        page_pool(observed),
        settings_unchanged(observed),
    ]
}

fn program_guards(observed: &Observed) -> Vec<Guard> {
    let without = |id| Guard::not_applicable(id, PROGRAM_ONLY);
    vec![
        without("single-rx-queue"),
        one_of("one-cpu", "CPU", &observed.cpu_packets),
        placement_unchanged(observed),
        without("napi-saturated"),
        without("xdp-mode"),
        aborted_alone(observed),
        runs_counted(&observed.ledger),
        without("page-pool"),
        without("settings"),
    ]
}

/// Programs run alone must have run as often as the kernel was asked to run them.
fn runs_counted(ledger: &Ledger) -> Guard {
    let value = format!("{} asked for, {} run", ledger.generated, ledger.received);
    if ledger.generated == Reading::Known(ledger.received) {
        return Guard::pass("ledger", value, "the dispatcher counted every run");
    }
    Guard::fail("ledger", value, "the dispatcher missed runs, or saw others", "report this: it should not happen")
}

/// Checks baseline against itself.
#[must_use]
pub fn control(control: &Comparison) -> Guard {
    let delta = &control.difference.delta;
    let value = format!("{:+.2} ns [{:+.2}, {:+.2}]", delta.estimate, delta.low, delta.high);
    if !delta.excludes_zero() {
        return Guard::pass("a/a-control", value, "baseline against other copies of itself differs by nothing");
    }
    Guard::warn(
        "a/a-control",
        value,
        "baseline differs from itself; a verdict needs an effect larger than this",
        "one in twenty runs shows this by chance; run longer or with more copies if it comes back",
    )
}

fn single_rx_queue(observed: &Observed) -> Guard {
    const ID: &str = "single-rx-queue";
    let after = observed.lab_after.as_ref();
    match &observed.rx_queue_packets {
        Reading::Known(packets) => one_of(ID, "RX queue", packets),
        Reading::NotAvailable { .. } if after.is_some_and(|lab| lab.dut.rx_queues == Some(1)) => {
            Guard::pass(ID, "RX queue 0", "the device has one RX queue")
        }
        Reading::NotAvailable { why } => {
            Guard::warn(ID, "not available", why.clone(), "use one queue to measure one queue's cost")
        }
    }
}

fn one_of(id: &str, thing: &str, packets: &[u64]) -> Guard {
    let used: Vec<String> =
        (0..packets.len()).filter(|index| packets[*index] > 0).map(|index| index.to_string()).collect();
    let list = used.join(", ");
    match used.len() {
        0 => {
            Guard::fail(id, "0", format!("no {thing} received a packet"), "see the ledger for where packets were lost")
        }
        1 => Guard::pass(id, format!("{thing} {list}"), format!("every packet came in on one {thing}")),
        n => Guard::warn(
            id,
            format!("{n}"),
            format!("packets came in on {thing}s {list}: costs of several are averaged"),
            format!("use one flow and one {thing} to measure one {thing}'s cost"),
        ),
    }
}

fn placement_unchanged(observed: &Observed) -> Guard {
    let Some(planned) = observed.placement.placement.dut_cpu() else {
        return Guard::pass("placement", "not planned", observed.placement.placement.to_string());
    };
    let planned = u16::try_from(planned).unwrap_or(u16::MAX);
    let elsewhere = observed.slices.iter().filter(|slice| slice.cpu != planned).count();
    let value = format!("{elsewhere} of {} slices off CPU {planned}", observed.slices.len());
    if elsewhere == 0 {
        return Guard::pass("placement", value, format!("the device ran on CPU {planned}, as planned"));
    }
    Guard::fail(
        "placement",
        value,
        "the program ran on another CPU than planned",
        "stop what moves NAPI threads or IRQs",
    )
}

fn saturation(observed: &Observed) -> Guard {
    const ID: &str = "napi-saturated";
    let polls = match &observed.napi {
        Reading::Known(polls) if polls.polls > 0 => polls,
        Reading::Known(_) => return Guard::fail(ID, "0 polls", "the device was never polled", "see the ledger"),
        Reading::NotAvailable { why } => {
            return Guard::warn(ID, "not available", why.clone(), "take absolute costs as busy time over packets");
        }
    };
    let share = polls.full as f64 / polls.polls as f64;
    let value = format!("{:.1} % of {} polls used their budget", share * 100.0, polls.polls);
    match observed.placement.placement {
        Placement::Same { .. } => Guard::pass(
            ID,
            value,
            "generator and device share a CPU: each slice holds the generator's constant cost, differences are the device's",
        ),
        Placement::Split { .. } | Placement::Outside if share >= SATURATED => {
            Guard::pass(ID, value, "the device had more packets waiting: slices are its cost alone")
        }
        Placement::Split { .. } => Guard::warn(
            ID,
            value,
            "the device waited for packets: slices hold waiting time",
            "add generator threads, or place both on the same CPU and compare differences",
        ),
        Placement::Outside if idle_of_busiest(observed).is_some_and(|idle| idle <= BUSY_IDLE) => Guard::warn(
            ID,
            value,
            "the CPU was never idle, but not with this interface alone: slices hold what else it did",
            "take differences from this run, and keep other work off the CPU",
        ),
        Placement::Outside => Guard::fail(
            ID,
            value,
            "the device waited for packets: slices hold the time between packets, which no program changes",
            "send faster",
        ),
    }
}

/// The idle share of the CPU that took the most packets.
fn idle_of_busiest(observed: &Observed) -> Option<f64> {
    let (busiest, _) = observed.cpu_packets.iter().enumerate().max_by_key(|(_, packets)| **packets)?;
    let shares = observed.cpu_shares.known()?.iter().find(|(cpu, _)| usize::try_from(*cpu) == Ok(busiest))?;
    Some(shares.1.known()?.idle)
}

fn mode(observed: &Observed, asked: XdpMode) -> Guard {
    match observed.xdp_mode {
        Some(mode) if mode == asked => Guard::pass("xdp-mode", mode.to_string(), "as asked, read back from the kernel"),
        other => Guard::fail(
            "xdp-mode",
            other.map_or("none".into(), |mode| mode.to_string()),
            format!("{asked} was asked for"),
            "somebody else changed the interface's program during the run",
        ),
    }
}

fn aborted(observed: &Observed) -> Guard {
    const ID: &str = "no-aborted";
    let sum = |reading: &Reading<std::collections::BTreeMap<String, u64>>| {
        reading.known().map_or(0, |counts| counts.values().sum::<u64>())
    };
    // Each packet that a program aborts is an exception as well.
    let by_exceptions = observed.exceptions.known().and_then(|counts| counts.get("XDP_ABORTED")).copied().unwrap_or(0);
    let by_programs = observed.ledger.aborted.known().copied().unwrap_or(0);
    let aborted = (by_programs + observed.packets_without_program).max(by_exceptions);
    let bad = aborted + (sum(&observed.exceptions) - by_exceptions) + sum(&observed.redirect_errors);
    if bad > 0 {
        return Guard::fail(
            ID,
            format!("{bad} packets"),
            format!(
                "{}{} without a program, exceptions {}, redirect errors {}",
                observed.ledger.aborted.known().map_or(String::new(), |count| format!("{count} aborted by programs, ")),
                observed.packets_without_program,
                counts(&observed.exceptions),
                counts(&observed.redirect_errors)
            ),
            "these packets did not take the measured path; fix the program or the frames",
        );
    }
    match (&observed.exceptions, &observed.redirect_errors) {
        (Reading::Known(_), Reading::Known(_)) => {
            Guard::pass(ID, "0 packets", "no XDP_ABORTED, exception or redirect error")
        }
        (Reading::NotAvailable { why }, _) | (_, Reading::NotAvailable { why }) => Guard::warn(
            ID,
            "0 packets",
            format!("as far as it is counted; {why}"),
            "use a kernel with these tracepoints",
        ),
    }
}

/// Without a driver nothing acts on an abort, so that there is the programs' own count, and of a user's program what it
/// returned when it was tried.
fn aborted_alone(observed: &Observed) -> Guard {
    const ID: &str = "no-aborted";
    const REMEDY: &str = "aborted runs did not take the measured path; fix the program or the frames";
    let tried = observed.tried.iter().find(|trial| trial.returns.known().is_some_and(|action| action == "XDP_ABORTED"));
    if let Some(trial) = tried {
        return Guard::fail(ID, "all runs", format!("{} returns XDP_ABORTED", trial.variant), REMEDY);
    }
    let missing = observed.packets_without_program;
    let aborted = match &observed.ledger.aborted {
        Reading::Known(aborted) => *aborted,
        Reading::NotAvailable { why } if missing == 0 => {
            return Guard::warn(
                ID,
                "not available",
                why.clone(),
                "compare on live traffic, where the kernel counts aborts",
            );
        }
        Reading::NotAvailable { .. } => 0,
    };
    let value = format!("{} runs", aborted + missing);
    if aborted + missing == 0 {
        return Guard::pass(ID, value, "no XDP_ABORTED, by the programs' own count");
    }
    Guard::fail(ID, value, format!("{aborted} aborted by programs, {missing} without a program"), REMEDY)
}

fn counts(reading: &Reading<std::collections::BTreeMap<String, u64>>) -> String {
    match reading {
        Reading::Known(counts) if counts.is_empty() => "none".into(),
        Reading::Known(counts) => {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        }
        Reading::NotAvailable { why } => format!("not available ({why})"),
    }
}

fn ledger(observed: &Observed) -> Guard {
    const ID: &str = "ledger";
    let ledger = &observed.ledger;
    let open: Vec<String> = ledger
        .residuals()
        .into_iter()
        .filter(|(_, residual)| *residual != 0)
        .map(|(stage, residual)| format!("{stage} = {residual}"))
        .collect();
    let value = match &ledger.generated {
        Reading::Known(generated) => format!("{generated} generated, {} received", ledger.received),
        Reading::NotAvailable { .. } => format!("{} received", ledger.received),
    };
    if !open.is_empty() {
        return Guard::fail(
            ID,
            value,
            format!("does not balance: {}", open.join("; ")),
            "two counters disagree; something else sends to, takes from or resets this interface",
        );
    }
    if let Some(why) = ledger.onwards.as_ref().and_then(Onwards::uncounted) {
        return Guard::warn(ID, value, format!("balances, with one stage uncounted: {why}"), "see xdplab doctor");
    }
    let onwards = ledger.onwards.as_ref().map_or_else(String::new, |onwards| format!("; {}", handed_on(onwards)));
    match (&ledger.xmit, &ledger.interface_received) {
        _ if observed.lab_after.as_ref().is_some_and(|lab| lab.generator.is_none()) => Guard::pass(
            ID,
            value,
            format!("dispatcher and programs agree, as far as these count; the sender's count is not here{onwards}"),
        ),
        (Reading::Known(xmit), Reading::Known(_)) => {
            Guard::pass(ID, value, format!("balances to the packet; {} dropped at transmit{onwards}", xmit.drops))
        }
        (Reading::NotAvailable { why }, _) | (_, Reading::NotAvailable { why }) => {
            Guard::warn(ID, value, format!("balances, with one stage uncounted: {why}"), "see xdplab doctor")
        }
    }
}

/// What became of the packets that were handed on.
fn handed_on(onwards: &Onwards) -> String {
    let handed_on = onwards.handed_on.known().copied().unwrap_or_default();
    let to = [
        (handed_on.to_interfaces, "interfaces"),
        (handed_on.to_cpus, "CPUs"),
        (handed_on.to_sockets, "AF_XDP sockets"),
    ];
    let to: Vec<String> =
        to.iter().filter(|(packets, _)| *packets > 0).map(|(packets, what)| format!("{packets} to {what}")).collect();
    let dropped = match handed_on.egress_drops {
        0 => String::new(),
        frames => format!(", of which egress programs dropped {frames}"),
    };
    format!("handed on {}{dropped}", to.join(" and "))
}

/// Where programs hand packets on: whether there was room for them.
fn redirects(observed: &Observed) -> Option<Guard> {
    const ID: &str = "redirects";
    let onwards = observed.ledger.onwards.as_ref()?;
    let Some((refused, handed_on)) = onwards.refused() else {
        let why = onwards.uncounted().unwrap_or_default();
        return Some(Guard::warn(ID, "not available", why, "see xdplab doctor"));
    };
    let value = format!("{refused} of {handed_on} found no room");
    if onwards.sockets.is_some() && onwards.handed_on.known().is_some_and(|handed_on| handed_on.to_sockets == 0) {
        let why = "no packet came in on the queue of the AF_XDP sockets";
        return Some(Guard::fail(ID, value, why, "name the queue that they come in on: xsk-drop:queue=N"));
    }
    if handed_on == 0 {
        return Some(Guard::fail(ID, value, "no packet was handed on", "see the ledger for where packets were lost"));
    }
    if refused as f64 <= REFUSED_WARN * handed_on as f64 {
        return Some(Guard::pass(ID, value, "targets, queues and sockets took what they were given"));
    }
    Some(Guard::warn(
        ID,
        value,
        format!("{}: slices hold what dropping packets costs in place of handing them over", overfull(onwards)),
        "make queues longer, or what empties them faster; else it is the cost under overload",
    ))
}

/// Where packets found no room.
fn overfull(onwards: &Onwards) -> String {
    let sockets = onwards.sockets.as_ref().and_then(Reading::known).cloned().unwrap_or_default();
    let (ring, frames, dropped) = (sockets.ring_full(), sockets.without_frame(), sockets.dropped());
    let (refused, _) = onwards.refused().unwrap_or_default();
    let stalled = |packets: u64, what: &str| {
        format!("{packets} packets found the {what} of an AF_XDP socket, which its thread did not see to in time")
    };
    let places = [
        (refused.saturating_sub(ring + dropped), "the target's ring or the queue of a CPU was full".to_owned()),
        (ring, stalled(ring, "full Rx ring")),
        (frames, stalled(frames, "empty fill ring")),
        (dropped - frames, format!("{} packets were too long for a frame of the AF_XDP sockets", dropped - frames)),
    ];
    let places: Vec<String> = places.into_iter().filter(|(packets, _)| *packets > 0).map(|(_, place)| place).collect();
    places.join("; ")
}

fn page_pool(observed: &Observed) -> Guard {
    const ID: &str = "page-pool";
    let pools = match &observed.page_pools {
        Reading::Known(pools) => pools,
        Reading::NotAvailable { why } => {
            return Guard::warn(ID, "not available", why.clone(), "a leak can't be seen here; see xdplab doctor");
        }
    };
    let held = pools.device.held + pools.generator.held;
    let released = pools.device.released + pools.generator.released;
    let recycled = observed.recycled().filter(|[recycled, fresh]| recycled + fresh > 0);
    let recycled = recycled.map_or(String::new(), |[recycled, fresh]| {
        let share = 100.0 * recycled as f64 / (recycled + fresh) as f64;
        format!("; {share:.1} % of packets used a recycled page")
    });
    let value = format!("{held} pages held, {released} released");
    // Each by itself: pages that the generator gave back say nothing of the device's.
    let outstanding = |pages: &Pages| i128::from(pages.held) - i128::from(pages.released);
    let (device, generator) = (outstanding(&pools.device), outstanding(&pools.generator));
    if device == 0 && generator == 0 {
        return Guard::pass(ID, value, format!("no leak after teardown{recycled}"));
    }
    Guard::fail(
        ID,
        value,
        format!("outstanding after teardown: {device} pages of the device, {generator} of the generator"),
        "a leak in the driver or the program's path, or packets still queued somewhere",
    )
}

fn steal(observed: &Observed) -> Guard {
    const ID: &str = "steal";
    let shares = match &observed.cpu_shares {
        Reading::Known(shares) => shares,
        Reading::NotAvailable { why } => {
            return Guard::warn(ID, "not available", why.clone(), "mount /proc");
        }
    };
    let worst = shares.iter().filter_map(|(_, shares)| shares.known()).map(|cpu| cpu.steal).fold(0.0, f64::max);
    let value = format!("{:.1} % of the most stolen CPU", worst * 100.0);
    if worst <= STEAL_WARN {
        return Guard::pass(ID, value, "the hypervisor took little time away");
    }
    Guard::warn(
        ID,
        value,
        "the hypervisor took time away; interleaving keeps it out of differences, not out of absolute costs",
        "take differences from this run and absolute costs from a quieter one",
    )
}

/// The clock frequency, as the reference workload shows it before and after the run.
fn frequency(observed: &Observed) -> Guard {
    const ID: &str = "frequency";
    let reference = match &observed.reference {
        Reading::Known(reference) => reference,
        Reading::NotAvailable { why } => {
            return Guard::warn(ID, "not available", why.clone(), "take differences from this run, not absolute costs");
        }
    };
    let change = reference.after.median_ns / reference.before.median_ns - 1.0;
    let value = format!("reference {:+.1} % from before to after", change * 100.0);
    if change.abs() <= FREQUENCY_WARN {
        return Guard::pass(ID, value, "the CPU ran as fast at the end as at the beginning");
    }
    Guard::warn(
        ID,
        value,
        "the CPU's speed changed; interleaving keeps it out of differences, not out of absolute costs",
        "fix the frequency, or compare records at one clock (xdplab compare shows both)",
    )
}

fn settings_unchanged(observed: &Observed) -> Guard {
    let (Some(before), Some(after)) = (&observed.lab_before, &observed.lab_after) else {
        return Guard::not_applicable("settings", "the run had no lab");
    };
    let value =
        format!("MTU {}, {} RX queues", after.dut.mtu, after.dut.rx_queues.map_or("?".into(), |n| n.to_string()));
    if before == after {
        return Guard::pass("settings", value, "MTU, queues and offloads are as planned at the end too");
    }
    Guard::fail("settings", value, "the lab's settings changed during the run", "compare the record's two descriptions")
}

fn enough_slices(observed: &Observed, variants: &[String]) -> Guard {
    let count = |variant: usize| observed.slices.iter().filter(|slice| usize::from(slice.variant) == variant).count();
    let fewest = (0..variants.len()).map(count).min().unwrap_or(0);
    let value = format!("{fewest} of each variant at least");
    if fewest >= MIN_SLICES {
        return Guard::pass("slices", value, format!("{MIN_SLICES} are needed"));
    }
    Guard::fail("slices", value, format!("{MIN_SLICES} are needed"), "run longer")
}

fn interrupted(observed: &Observed) -> Option<Guard> {
    observed.interrupted.then(|| {
        let value = format!("after {:.1} s", observed.seconds);
        Guard::warn(
            "interrupted",
            value,
            "the user ended the run before its time",
            "let it run for what it was asked to",
        )
    })
}

fn lost_slices(observed: &Observed) -> Option<Guard> {
    (observed.slices_lost > 0).then(|| {
        Guard::warn(
            "slices-lost",
            format!("{}", observed.slices_lost),
            "slices found the ring full because user space came too late",
            "give the tool more CPU time, or make slices longer",
        )
    })
}
