//! Each guard sees the one fault that is planted for it, and nothing else does.

use std::collections::BTreeMap;

use xdplab::device::{HandedOn, KernelCounts, Operation, SocketCounts, SocketReading, XskAction};
use xdplab::guard::{Guard, Outcome};
use xdplab::host::CpuShares;
use xdplab::netlink::XdpMode;
use xdplab::observe::{NapiPolls, Xmit};
use xdplab::observed::{Observed, Onwards, SocketOutcome, Sockets};
use xdplab::reading::Reading;
use xdplab::run::{Case, Plan};
use xdplab::topology::{LabDescription, Placement};
use xdplab::verdict::{Reason, Verdict};

use crate::common::{FakeRig, Model, generated, plan, program};
use crate::measure;

/// Two queues on CPU 1, a candidate that is slower and one that is not.
fn same() -> Plan {
    Plan { queues: 2, ..plan(vec![program(Operation::NoTouch, 8), program(Operation::ReadData, 0)]) }
}

fn split() -> Plan {
    Plan { placement: Placement::Split { generator_cpu: 0, dut_cpu: 1 }, ..same() }
}

fn run(plan: &Plan, spoil: fn(&mut Observed)) -> Case {
    measure(plan, FakeRig { model: Model::default(), spoil })
}

/// Spoils what was observed and finds the guard `id` alone changed, to `outcome`, with a reason that holds `says`.
fn planted(plan: &Plan, spoil: fn(&mut Observed), id: &str, outcome: Outcome, says: &str) -> Guard {
    let (clean, spoilt) = (run(plan, |_| {}), run(plan, spoil));
    let outcomes = |case: &Case| -> BTreeMap<String, Outcome> {
        case.guards.iter().map(|guard| (guard.id.clone(), guard.outcome)).collect()
    };
    assert!(outcomes(&clean).values().all(|outcome| *outcome == Outcome::Pass), "{:?}", clean.guards);
    let mut expected = outcomes(&clean);
    expected.insert(id.to_owned(), outcome);
    assert_eq!(outcomes(&spoilt), expected);
    let guard = spoilt.guards.iter().find(|guard| guard.id == id).unwrap();
    assert!(guard.reason.contains(says), "{guard:?}");
    assert_eq!(guard.remedy.is_empty(), outcome == Outcome::Pass, "{guard:?}");
    for (clean, spoilt) in clean.comparisons.iter().zip(&spoilt.comparisons) {
        match (outcome, &spoilt.verdict) {
            (Outcome::Fail, Verdict::Inconclusive { reasons, needs_seconds }) => {
                assert_eq!(*needs_seconds, None, "more time does not mend {guard:?}");
                assert!(reasons.contains(&Reason::GuardFailed { guard: id.into() }), "{reasons:?}");
            }
            (Outcome::Fail, decided) => panic!("{decided:?} in spite of {guard:?}"),
            (_, verdict) => assert_eq!(*verdict, clean.verdict, "a warning leaves the verdict alone"),
        }
    }
    assert_eq!(clean.comparisons[0].verdict, Verdict::Slower, "there was a verdict to lose");
    guard.clone()
}

#[test]
fn packets_on_two_queues() {
    let spoil = |observed: &mut Observed| {
        observed.rx_queue_packets = Reading::Known(vec![1, observed.ledger.received - 1]);
    };
    let guard = planted(&same(), spoil, "single-rx-queue", Outcome::Warn, "RX queues 0, 1");
    assert_eq!(guard.value, "2");
}

#[test]
fn packets_on_no_queue() {
    let spoil = |observed: &mut Observed| observed.rx_queue_packets = Reading::Known(vec![0, 0]);
    planted(&same(), spoil, "single-rx-queue", Outcome::Fail, "no RX queue received a packet");
}

#[test]
fn queues_that_nobody_counted() {
    let spoil = |observed: &mut Observed| observed.rx_queue_packets = Reading::not_available("a program of the user's");
    planted(&same(), spoil, "single-rx-queue", Outcome::Warn, "a program of the user's");
    let one_queue = Plan { queues: 1, ..same() };
    planted(&one_queue, spoil, "single-rx-queue", Outcome::Pass, "has one RX queue");
}

#[test]
fn packets_on_two_cpus() {
    let spoil = |observed: &mut Observed| observed.cpu_packets = vec![7, observed.ledger.received - 7];
    planted(&same(), spoil, "one-cpu", Outcome::Warn, "CPUs 0, 1");
}

#[test]
fn slices_on_another_cpu_than_planned() {
    let spoil = |observed: &mut Observed| observed.slices.iter_mut().for_each(|slice| slice.cpu = 0);
    let guard = planted(&same(), spoil, "placement", Outcome::Fail, "another CPU than planned");
    assert!(guard.value.ends_with("off CPU 1"), "{guard:?}");
    planted(&split(), spoil, "placement", Outcome::Fail, "another CPU than planned");
}

#[test]
fn one_slice_on_another_cpu_is_one_too_many() {
    let spoil = |observed: &mut Observed| observed.slices[0].cpu = 0;
    let guard = planted(&same(), spoil, "placement", Outcome::Fail, "another CPU than planned");
    assert!(guard.value.starts_with("1 of "), "{guard:?}");
}

#[test]
fn a_split_device_that_waits_for_packets() {
    let spoil = |observed: &mut Observed| {
        observed.napi = Reading::Known(NapiPolls { polls: 1000, work: 30_000, full: 899 });
    };
    let guard = planted(&split(), spoil, "napi-saturated", Outcome::Warn, "waited for packets");
    assert_eq!(guard.value, "89.9 % of 1000 polls used their budget");
    let enough = |observed: &mut Observed| {
        observed.napi = Reading::Known(NapiPolls { polls: 1000, work: 60_000, full: 900 });
    };
    planted(&split(), enough, "napi-saturated", Outcome::Pass, "more packets waiting");
    planted(&same(), spoil, "napi-saturated", Outcome::Pass, "share a CPU");
}

#[test]
fn an_interface_that_waits_for_packets_from_outside() {
    fn waits(observed: &mut Observed, idle: f64) {
        observed.placement.placement = Placement::Outside;
        observed.napi = Reading::Known(NapiPolls { polls: 1000, work: 30_000, full: 899 });
        let Reading::Known(shares) = &mut observed.cpu_shares else { panic!("{:?}", observed.cpu_shares) };
        for (_, shares) in shares {
            *shares = shares.clone().map(|shares| CpuShares { idle, ..shares });
        }
    }
    let idle = |observed: &mut Observed| waits(observed, 0.06);
    planted(&same(), idle, "napi-saturated", Outcome::Fail, "time between packets, which no program changes");
    let busy = |observed: &mut Observed| waits(observed, 0.05);
    planted(&same(), busy, "napi-saturated", Outcome::Warn, "never idle, but not with this interface alone");
}

#[test]
fn a_device_that_was_never_polled() {
    let spoil = |observed: &mut Observed| observed.napi = Reading::Known(NapiPolls::default());
    planted(&same(), spoil, "napi-saturated", Outcome::Fail, "never polled");
}

#[test]
fn another_mode_than_asked() {
    let spoil = |observed: &mut Observed| observed.xdp_mode = Some(XdpMode::Generic);
    let guard = planted(&same(), spoil, "xdp-mode", Outcome::Fail, "native was asked for");
    assert_eq!(guard.value, "skb");
    let skb = Plan { xdp_mode: XdpMode::Generic, ..same() };
    let native = |observed: &mut Observed| observed.xdp_mode = Some(XdpMode::Native);
    planted(&skb, native, "xdp-mode", Outcome::Fail, "skb was asked for");
}

#[test]
fn a_program_that_is_gone_at_the_end() {
    let guard = planted(&same(), |observed| observed.xdp_mode = None, "xdp-mode", Outcome::Fail, "was asked for");
    assert_eq!(guard.value, "none");
}

#[test]
fn one_aborted_packet() {
    let guard = planted(
        &same(),
        |observed| observed.ledger.aborted = Reading::Known(1),
        "no-aborted",
        Outcome::Fail,
        "1 aborted",
    );
    assert_eq!(guard.value, "1 packets");
}

#[test]
fn an_aborted_packet_and_its_exception_are_one_packet() {
    let spoil = |observed: &mut Observed| {
        observed.ledger.aborted = Reading::Known(3);
        observed.exceptions = Reading::Known(BTreeMap::from([("XDP_ABORTED".to_owned(), 3), ("XDP_TX".to_owned(), 2)]));
    };
    let guard = planted(&same(), spoil, "no-aborted", Outcome::Fail, "XDP_ABORTED 3, XDP_TX 2");
    assert_eq!(guard.value, "5 packets");
}

#[test]
fn one_packet_without_a_program() {
    let spoil = |observed: &mut Observed| observed.packets_without_program = 1;
    planted(&same(), spoil, "no-aborted", Outcome::Fail, "1 without a program");
}

#[test]
fn one_exception_or_redirect_error() {
    let spoil = |observed: &mut Observed| {
        observed.exceptions = Reading::Known(BTreeMap::from([("XDP_TX".to_owned(), 1)]));
    };
    planted(&same(), spoil, "no-aborted", Outcome::Fail, "exceptions XDP_TX 1");
    let spoil = |observed: &mut Observed| {
        observed.redirect_errors = Reading::Known(BTreeMap::from([("ENXIO".to_owned(), 3)]));
    };
    let guard = planted(&same(), spoil, "no-aborted", Outcome::Fail, "redirect errors ENXIO 3");
    assert_eq!(guard.value, "3 packets");
}

#[test]
fn exceptions_that_nobody_counted() {
    let spoil = |observed: &mut Observed| observed.exceptions = Reading::not_available("no such tracepoint");
    planted(&same(), spoil, "no-aborted", Outcome::Warn, "no such tracepoint");
    let spoil = |observed: &mut Observed| observed.redirect_errors = Reading::not_available("no such tracepoint");
    planted(&same(), spoil, "no-aborted", Outcome::Warn, "no such tracepoint");
}

#[test]
fn one_packet_missing_in_each_stage_of_the_ledger() {
    planted(
        &same(),
        |observed| *generated(observed) += 1,
        "ledger",
        Outcome::Fail,
        "generated - transmitted - dropped at transmit = 1",
    );
    let transmitted = |observed: &mut Observed| {
        let Reading::Known(xmit) = &mut observed.ledger.xmit else { panic!() };
        xmit.sent += 1;
        *generated(observed) += 1;
    };
    planted(&same(), transmitted, "ledger", Outcome::Fail, "balance: transmitted - received = 1");
    let unseen = |observed: &mut Observed| {
        observed.ledger.interface_received = Reading::Known(observed.ledger.received + 1);
    };
    planted(&same(), unseen, "ledger", Outcome::Fail, "balance: received by dispatcher - by interface = -1");
    let received_twice = |observed: &mut Observed| {
        observed.ledger.received += 1;
        observed.ledger.interface_received = Reading::Known(observed.ledger.received);
        observed.ledger.handled = Reading::Known(observed.ledger.received);
    };
    planted(&same(), received_twice, "ledger", Outcome::Fail, "balance: transmitted - received = -1");
    let unhandled = |observed: &mut Observed| observed.ledger.handled = Reading::Known(observed.ledger.received - 1);
    planted(&same(), unhandled, "ledger", Outcome::Fail, "balance: received by dispatcher - handled by programs = 1");
}

#[test]
fn a_ledger_with_a_stage_that_nobody_counted() {
    let uncounted = |observed: &mut Observed| {
        *generated(observed) = observed.ledger.received;
        observed.ledger.xmit = Reading::not_available("no such tracepoint");
    };
    planted(&same(), uncounted, "ledger", Outcome::Warn, "one stage uncounted: no such tracepoint");
    let lost = |observed: &mut Observed| observed.ledger.xmit = Reading::not_available("no such tracepoint");
    planted(&same(), lost, "ledger", Outcome::Fail, "generated - received = ");
    let no_interface = |observed: &mut Observed| {
        observed.ledger.interface_received = Reading::not_available("no statistics");
    };
    planted(&same(), no_interface, "ledger", Outcome::Warn, "one stage uncounted: no statistics");
}

/// A thousand packets handed on to an interface, whose driver had no room for some.
fn onwards(refused: u64) -> Onwards {
    let sent = 1_000 - refused;
    Onwards {
        handed_on: Reading::Known(HandedOn { to_interfaces: 1_000, ..HandedOn::default() }),
        failed: Reading::Known(0),
        xmit: Reading::Known(Xmit { sent, drops: refused, bulks: 63, errors: BTreeMap::new() }),
        received: Reading::Known(sent),
        enqueued: None,
        kthreads: None,
        sockets: None,
    }
}

#[test]
fn a_target_without_room() {
    let room = |observed: &mut Observed| observed.ledger.onwards = Some(onwards(10));
    planted(&same(), room, "redirects", Outcome::Pass, "took what they were given");
    let full = |observed: &mut Observed| observed.ledger.onwards = Some(onwards(11));
    let guard = planted(&same(), full, "redirects", Outcome::Warn, "the target's ring or the queue of a CPU was full");
    assert_eq!(guard.value, "11 of 1000 found no room");
    let nothing = |observed: &mut Observed| {
        let xmit = Reading::Known(Xmit::default());
        let handed_on = Reading::Known(HandedOn::default());
        observed.ledger.onwards = Some(Onwards { handed_on, xmit, received: Reading::Known(0), ..onwards(0) });
    };
    planted(&same(), nothing, "redirects", Outcome::Fail, "no packet was handed on");
}

/// A thousand packets handed on to a socket, of which some found its ring full, some no frame, and some were too long for one.
fn at_socket(full: u64, without_frame: u64, too_long: u64) -> Onwards {
    let rx_dropped = without_frame + too_long;
    let received = 1_000 - full - rx_dropped;
    let counts = SocketCounts { rx_packets: received, rx_frags: received, ..SocketCounts::default() };
    let kernel = KernelCounts {
        rx_ring_full: Some(full),
        rx_dropped,
        fill_ring_empty: Some(without_frame),
        ..KernelCounts::default()
    };
    let socket = SocketOutcome { xsk: XskAction::Drop, reading: SocketReading { counts, kernel } };
    Onwards {
        handed_on: Reading::Known(HandedOn { to_sockets: 1_000, ..HandedOn::default() }),
        xmit: Reading::not_available("nothing is transmitted"),
        received: Reading::Known(0),
        sockets: Some(Reading::Known(Sockets { mode: "copy".into(), each: vec![socket], ..Sockets::default() })),
        ..onwards(0)
    }
}

#[test]
fn a_socket_whose_thread_stalls_or_has_no_frames() {
    let room = |observed: &mut Observed| observed.ledger.onwards = Some(at_socket(10, 0, 0));
    planted(&same(), room, "redirects", Outcome::Pass, "took what they were given");
    let full = |observed: &mut Observed| observed.ledger.onwards = Some(at_socket(300, 7, 5));
    let guard = planted(
        &same(),
        full,
        "redirects",
        Outcome::Warn,
        "300 packets found the full Rx ring of an AF_XDP socket, which its thread did not see to in time; 7 packets found the \
         empty fill ring of an AF_XDP socket, which its thread did not see to in time; 5 packets were too long for a frame",
    );
    assert_eq!(guard.value, "312 of 1000 found no room");
    let elsewhere = |observed: &mut Observed| {
        let handed_on = Reading::Known(HandedOn { to_interfaces: 1_000, ..HandedOn::default() });
        observed.ledger.onwards =
            Some(Onwards { sockets: Some(Reading::Known(Sockets::default())), handed_on, ..onwards(0) });
    };
    planted(&same(), elsewhere, "redirects", Outcome::Fail, "no packet came in on the queue of the AF_XDP sockets");
}

#[test]
fn one_packet_that_no_socket_accounts_for() {
    let spoil = |observed: &mut Observed| {
        let handed_on = Reading::Known(HandedOn { to_sockets: 1_001, ..HandedOn::default() });
        observed.ledger.onwards = Some(Onwards { handed_on, ..at_socket(300, 7, 5) });
    };
    let ledger = run(&same(), spoil).guards.into_iter().find(|guard| guard.id == "ledger").unwrap();
    assert_eq!(ledger.outcome, Outcome::Fail);
    assert!(ledger.reason.contains("given to drivers, queues and sockets = 1"), "{ledger:?}");
}

#[test]
fn one_packet_missing_behind_a_target_and_a_stage_there_that_nobody_counted() {
    let ledger = |spoil: fn(&mut Observed)| {
        let guards = run(&same(), spoil).guards;
        guards.into_iter().find(|guard| guard.id == "ledger").unwrap()
    };
    let whole = ledger(|observed| observed.ledger.onwards = Some(onwards(0)));
    assert_eq!(whole.outcome, Outcome::Pass);
    assert!(whole.reason.ends_with("; handed on 1000 to interfaces"), "{whole:?}");
    let missing = ledger(|observed| {
        observed.ledger.onwards = Some(Onwards { received: Reading::Known(999), ..onwards(0) });
    });
    assert_eq!(missing.outcome, Outcome::Fail);
    assert!(missing.reason.contains("sent to the target - received behind it = 1"), "{missing:?}");
    let uncounted = ledger(|observed| {
        observed.ledger.onwards = Some(Onwards { failed: Reading::not_available("no such tracepoint"), ..onwards(0) });
    });
    assert_eq!(uncounted.outcome, Outcome::Warn);
    assert!(uncounted.reason.contains("no such tracepoint"), "{uncounted:?}");
}

#[test]
fn one_page_that_did_not_come_back() {
    let device = |observed: &mut Observed| {
        let Reading::Known(pools) = &mut observed.page_pools else { panic!() };
        pools.device.held += 1;
    };
    planted(&same(), device, "page-pool", Outcome::Fail, "1 pages of the device, 0 of the generator");
    let generator = |observed: &mut Observed| {
        let Reading::Known(pools) = &mut observed.page_pools else { panic!() };
        pools.generator.released -= 1;
    };
    planted(&same(), generator, "page-pool", Outcome::Fail, "0 pages of the device, 1 of the generator");
    let unknown = |observed: &mut Observed| observed.page_pools = Reading::not_available("no such tracepoint");
    planted(&same(), unknown, "page-pool", Outcome::Warn, "no such tracepoint");
}

#[test]
fn a_leak_of_the_device_is_not_hidden_by_the_generator_s_pages() {
    let crossed = |observed: &mut Observed| {
        let Reading::Known(pools) = &mut observed.page_pools else { panic!() };
        pools.device.held += 1;
        pools.generator.released += 1;
    };
    planted(&same(), crossed, "page-pool", Outcome::Fail, "1 pages of the device, -1 of the generator");
}

#[test]
fn a_hypervisor_that_takes_time_away() {
    let steal = |observed: &mut Observed| {
        let Reading::Known(cpus) = &mut observed.cpu_shares else { panic!() };
        let shares = CpuShares { user: 0.0, system: 0.5, idle: 0.0, irq: 0.0, softirq: 0.2, steal: 0.3 };
        cpus[1].1 = Reading::Known(shares);
    };
    let guard = planted(&same(), steal, "steal", Outcome::Warn, "took time away");
    assert_eq!(guard.value, "30.0 % of the most stolen CPU");
    let unknown = |observed: &mut Observed| observed.cpu_shares = Reading::not_available("no /proc");
    planted(&same(), unknown, "steal", Outcome::Warn, "no /proc");
}

#[test]
fn a_clock_that_changed_during_the_run() {
    let slower = |observed: &mut Observed| {
        let Reading::Known(reference) = &mut observed.reference else { panic!() };
        reference.after.median_ns = reference.before.median_ns * 1.2;
    };
    let guard = planted(&same(), slower, "frequency", Outcome::Warn, "speed changed");
    assert_eq!(guard.value, "reference +20.0 % from before to after");
    let unknown = |observed: &mut Observed| observed.reference = Reading::not_available("no test run");
    planted(&same(), unknown, "frequency", Outcome::Warn, "no test run");
}

fn lab_after(observed: &mut Observed) -> &mut LabDescription {
    observed.lab_after.as_mut().unwrap()
}

#[test]
fn settings_that_changed_during_the_run() {
    for spoil in [
        (|observed: &mut Observed| lab_after(observed).dut.mtu = 9000) as fn(&mut Observed),
        |observed| lab_after(observed).dut.features_on.push("rx-gro".into()),
        |observed| lab_after(observed).generator.as_mut().unwrap().rx_queues = Some(4),
    ] {
        planted(&same(), spoil, "settings", Outcome::Fail, "changed during the run");
    }
}

#[test]
fn fewer_slices_than_an_interval_needs() {
    // 4 copies of each variant: 49 blocks are 196 slices, 50 are the 200 that are needed.
    let short = |observed: &mut Observed| observed.slices.retain(|slice| slice.block < 49);
    let guard = planted(&same(), short, "slices", Outcome::Fail, "200 are needed");
    assert_eq!(guard.value, "196 of each variant at least");
    let one_variant_short =
        |observed: &mut Observed| observed.slices.retain(|slice| slice.block < 49 || slice.variant != 3);
    planted(&same(), one_variant_short, "slices", Outcome::Fail, "200 are needed");
    let enough = |observed: &mut Observed| observed.slices.retain(|slice| slice.block < 50);
    assert!(run(&same(), enough).guards.iter().all(|guard| guard.outcome == Outcome::Pass));
}

#[test]
fn slices_that_the_ring_had_no_room_for() {
    let guard = planted(&same(), |observed| observed.slices_lost = 5, "slices-lost", Outcome::Warn, "ring full");
    assert_eq!(guard.value, "5");
}

#[test]
fn a_run_that_the_user_ended_before_its_time() {
    let guard = planted(&same(), |observed| observed.interrupted = true, "interrupted", Outcome::Warn, "ended the run");
    assert_eq!(guard.value, "after 0.5 s");
}
