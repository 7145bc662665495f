//! Whole measurements on the lab: what is planted is found, nothing is lost from sight, and runs do not disturb each other.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use libtest_mimic::Trial;
use xdplab::device::{Action, Operation, Planted, ProgramSpec, VariantSpec};
use xdplab::guard::{Guard, Outcome};
use xdplab::netlink::XdpMode;
use xdplab::observe::PagePools;
use xdplab::packet::{FlowSpec, FrameSize};
use xdplab::rig::LabRig;
use xdplab::run::{self, Case, Plan, Progress};
use xdplab::stats::{Slice, median};
use xdplab::topology::Placement;
use xdplab::verdict::Verdict;

use crate::support::child::{self, Part};
use crate::support::{BPF, NETNS, REAL_TIME, TWO_CPUS, emulated, test};

pub(crate) const CHILDREN: &[Part] = &[("measure briefly", measure_briefly)];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "measurement::a_planted_cost_is_found_and_a_copy_of_the_baseline_costs_the_same",
            &[&NETNS, &BPF, &REAL_TIME],
            planted,
        ),
        test("measurement::split_placement_keeps_to_its_cpu", &[&NETNS, &BPF, &TWO_CPUS], split),
        test("measurement::skb_mode_is_measured_as_asked", &[&NETNS, &BPF], skb),
        test("measurement::what_is_sent_back_is_counted", &[&NETNS, &BPF], sent_back),
        test("measurement::two_runs_in_one_process_do_not_see_each_other", &[&NETNS, &BPF], two_threads),
        test("measurement::two_runs_in_two_processes_do_not_see_each_other", &[&NETNS, &BPF], two_processes),
        test("measurement::a_plan_that_can_not_be_carried_out_is_an_error_of_one_line", &[&NETNS, &BPF], wrong_plans),
    ]
}

struct Silent;

impl Progress for Silent {
    fn stage(&mut self, _name: &str) {}
    fn sampling(&mut self, _seconds: f64, _of: f64, _slices: usize) {}
}

fn plan(candidates: Vec<VariantSpec>, placement: Placement) -> Plan {
    let plan = Plan { seconds: 0.5, rounds: 2, ..Plan::new("test", dropping(0), candidates, placement, 1) };
    // Where packets take long, there are slices enough all the same.
    if emulated() { Plan { seconds: 3.0, slice_packets: 128, ..plan } } else { plan }
}

fn dropping(multiplications: u32) -> VariantSpec {
    let planted = Some(Planted::Mul(multiplications));
    ProgramSpec { planted, ..ProgramSpec::new(Action::Drop, Operation::NoTouch) }.into()
}

fn measure(plan: &Plan) -> Case {
    run::compare(plan, &mut LabRig, &mut Silent, &AtomicBool::new(false)).unwrap()
}

fn guard<'a>(case: &'a Case, id: &str) -> &'a Guard {
    case.guards.iter().find(|guard| guard.id == id).unwrap_or_else(|| panic!("no guard {id}: {:?}", case.guards))
}

/// The lab's own doing is faultless, however busy the machine: every packet is accounted for, every page is back, nothing
/// was changed, and slices of every copy came from where they should.
fn is_sound(case: &Case) {
    let sound =
        ["placement", "xdp-mode", "no-aborted", "ledger", "page-pool", "settings", "single-rx-queue", "one-cpu"];
    for id in sound {
        assert_eq!(guard(case, id).outcome, Outcome::Pass, "{:?}", guard(case, id));
    }
    let ledger = &case.observed.ledger;
    assert!(ledger.residuals().iter().all(|(_, residual)| *residual == 0), "{:?}", ledger.residuals());
    assert_eq!(ledger.residuals().len(), 4, "every stage was counted");
    assert!(ledger.received > 0 && ledger.generated.known() >= Some(&ledger.received), "{ledger:?}");
    let PagePools { device, generator } = *case.observed.page_pools.known().unwrap();
    assert_eq!((device.held, generator.held), (device.released, generator.released));
    let rounds = case.observed.slices_by_round();
    assert_eq!(rounds.len(), usize::from(case.plan.rounds));
    assert_eq!(rounds.concat(), case.observed.slices);
    for round in rounds {
        let mut slices = BTreeMap::new();
        for slice in round {
            *slices.entry((slice.variant, slice.copy)).or_insert(0) += 1;
            assert_eq!(slice.packets, case.plan.slice_packets);
            assert!(slice.stop_ns > slice.start_ns, "{slice:?}");
        }
        let copies = case.plan.variants().len() * usize::from(case.plan.copies);
        assert_eq!(slices.len(), copies, "each copy had its turns: {slices:?}");
        let (fewest, most) = (slices.values().min().unwrap(), slices.values().max().unwrap());
        assert!(case.observed.slices_lost > 0 || most - fewest <= 2, "equally often: {slices:?}");
    }
}

fn planted() {
    // A busy machine can leave one run without a verdict.
    for _ in 0..3 {
        let candidates = vec![dropping(16), dropping(0)];
        let case = measure(&Plan { seconds: 3.0, rounds: 4, ..plan(candidates, Placement::same().unwrap()) });
        is_sound(&case);
        let [baseline, control, planted, copy] = [0, 1, 2, 3].map(|variant| typical_cost(&case, variant));
        println!("baseline {baseline:.2} ns, control {control:.2}, 16 multiplications {planted:.2}, copy {copy:.2}");
        // 16 dependent 64-bit multiplications take 48 cycles, of which 7/8 are waited for.
        assert!(planted - baseline > 3.0, "{planted} {baseline}");
        for equal in [control, copy] {
            assert!((equal - baseline).abs() < 0.05 * baseline, "{equal} {baseline}");
        }
        match &case.comparisons[0].verdict {
            Verdict::Slower => return,
            Verdict::Inconclusive { reasons, .. } => println!("inconclusive: {reasons:?}"),
            wrong => panic!("{wrong:?}"),
        }
    }
    panic!("the planted cost was not found in three runs");
}

/// The median over rounds and copies of the median over slices, in ns per packet.
fn typical_cost(case: &Case, variant: u16) -> f64 {
    let of_copy = |(round, copy): (&[Slice], u16)| {
        let slices = round.iter().filter(|slice| (slice.variant, slice.copy) == (variant, copy));
        median(&mut slices.filter_map(Slice::ns_per_packet).collect::<Vec<_>>()).unwrap()
    };
    let rounds = case.observed.slices_by_round();
    let copies = rounds.iter().flat_map(|round| (0..case.plan.copies).map(|copy| (*round, copy)));
    median(&mut copies.map(of_copy).collect::<Vec<_>>()).unwrap()
}

fn split() {
    let placement = Placement::split().unwrap();
    let case = measure(&plan(vec![dropping(8)], placement));
    is_sound(&case);
    assert_eq!(case.observed.placement.threads[0].cpus, [placement.dut_cpu().unwrap()]);
    assert!(case.observed.slices.iter().all(|slice| usize::from(slice.cpu) == placement.dut_cpu().unwrap()));
}

fn skb() {
    let case = measure(&Plan { xdp_mode: XdpMode::Generic, ..plan(vec![dropping(8)], Placement::same().unwrap()) });
    is_sound(&case);
    assert_eq!(case.observed.xdp_mode, Some(XdpMode::Generic));
}

fn sent_back() {
    let tx = |operation| VariantSpec::from(ProgramSpec::new(Action::Tx, operation));
    let plan = Plan {
        baseline: tx(Operation::NoTouch),
        flow: FlowSpec::lab_v6(),
        size: FrameSize::Wire(128),
        ..plan(vec![tx(Operation::SwapMacs)], Placement::same().unwrap())
    };
    let case = measure(&plan);
    is_sound(&case);
    let (returned, received) = (case.observed.ledger.returned.unwrap(), case.observed.ledger.received);
    assert!(returned > 0 && returned <= received, "{returned} of {received}");
}

fn two_threads() {
    let placement = Placement::same().unwrap();
    let first = plan(vec![dropping(8)], placement);
    let second = plan(vec![ProgramSpec::new(Action::Tx, Operation::SwapMacs).into()], placement);
    let second = Plan { seconds: 2.0 * second.seconds, seed: 2, ..second };
    let second = thread::spawn(move || is_sound(&measure(&second)));
    is_sound(&measure(&first));
    second.join().unwrap();
}

fn measure_briefly() {
    is_sound(&measure(&plan(vec![dropping(8)], Placement::same().unwrap())));
    println!("sound");
}

fn two_processes() {
    let run = || {
        let (mut child, line) = child::start("measure briefly");
        assert_eq!(line, "sound");
        assert!(child.wait().unwrap().success());
    };
    let other = thread::spawn(run);
    run();
    other.join().unwrap();
}

fn wrong_plans() {
    let good = plan(vec![dropping(8)], Placement::same().unwrap());
    for (wrong, why) in [
        (Plan { copies: 0, ..good.clone() }, "3 variants with 0 copies each"),
        (Plan { copies: 22, ..good.clone() }, "1 to 64 copies fit in all"),
        (Plan { slice_packets: 0, ..good.clone() }, "at least one packet"),
        (Plan { warmup_packets: 0, ..good.clone() }, "at least one packet"),
        (Plan { queues: 0, ..good.clone() }, "queues"),
        (Plan { size: FrameSize::Wire(63), ..good.clone() }, "64 to "),
        (Plan { placement: Placement::Same { cpu: 99_999 }, ..good.clone() }, "CPU 99999"),
        (Plan { xdp_mode: XdpMode::Offload, ..good.clone() }, "not offloaded"),
    ] {
        let error = run::compare(&wrong, &mut LabRig, &mut Silent, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    }
}
