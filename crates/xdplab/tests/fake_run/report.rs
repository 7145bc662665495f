//! What is printed of a run.

use std::collections::BTreeMap;

use xdplab::device::Operation;
use xdplab::observed::Observed;
use xdplab::reading::Reading;
use xdplab::remote::{RemoteBy, RemoteRound, RemoteTime};
use xdplab::report::case_text;
use xdplab::run::Plan;

use crate::common::{FakeRig, Model, environment, generated, plan, program};
use crate::measure;

fn candidates() -> Plan {
    plan(vec![program(Operation::ReadData, 0), program(Operation::ParseIp, 8), program(Operation::SwapMacs, 16)])
}

#[test]
fn a_good_run() {
    let case = measure(&candidates(), FakeRig::new(Model::default()));
    insta::assert_snapshot!(case_text(&environment(), &case));
}

#[test]
fn a_run_with_warnings() {
    let rig = FakeRig {
        model: Model { control_ns: 3.0, ..Model::default() },
        spoil: |observed| {
            observed.rx_queue_packets = Reading::Known(vec![1000, observed.ledger.received - 1000]);
            observed.exceptions = Reading::not_available("this kernel has no tracepoint xdp_exception");
            observed.page_pools = Reading::not_available("this kernel has no tracepoint page_pool_state_hold");
            observed.slices_lost = 12;
        },
    };
    let case = measure(&Plan { queues: 2, ..candidates() }, rig);
    insta::assert_snapshot!(case_text(&environment(), &case));
}

#[test]
fn a_failed_run() {
    let rig = FakeRig {
        model: Model::default(),
        spoil: |observed| {
            *generated(observed) += 64;
            observed.ledger.aborted = Reading::Known(3);
            observed.exceptions = Reading::Known(BTreeMap::from([("XDP_ABORTED".to_owned(), 3)]));
            observed.xdp_mode = None;
        },
    };
    insta::assert_snapshot!(case_text(&environment(), &measure(&candidates(), rig)));
}

/// What baseline and second candidate cost other CPUs, in two rounds; the third candidate's kthread was not to be found.
fn elsewhere(observed: &mut Observed) {
    let round = |busy_ns| RemoteRound { busy_ns, packets: 1_000_000 };
    let time = |variant, rounds| RemoteTime { variant, by: RemoteBy::Kthreads(vec![0]), rounds };
    observed.remote = vec![
        time(0, Reading::Known(vec![round(250_000_000), round(254_000_000)])),
        time(3, Reading::Known(vec![round(312_000_000)])),
        time(4, Reading::not_available("there is no kthread of the cpumap with id 7")),
    ];
}

#[test]
fn a_run_whose_packets_are_taken_by_other_cpus() {
    let rig = FakeRig { model: Model::default(), spoil: elsewhere };
    insta::assert_snapshot!(case_text(&environment(), &measure(&candidates(), rig)));
}

#[test]
fn a_run_too_short_to_say_anything() {
    let case = measure(&Plan { seconds: 0.01, ..candidates() }, FakeRig::new(Model::default()));
    insta::assert_snapshot!(case_text(&environment(), &case));
}

#[test]
fn a_candidate_that_is_the_baseline_itself_has_a_row_of_its_own() {
    let baseline = program(Operation::NoTouch, 0);
    let case = measure(&plan(vec![baseline.clone(), program(Operation::NoTouch, 8)]), FakeRig::new(Model::default()));
    let text = case_text(&environment(), &case);
    let rows: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("drop:no-touch ")).collect();
    let [first, second] = rows[..] else { panic!("{text}") };
    assert!(first.trim_end().ends_with("baseline"), "{first}");
    assert!(!second.trim_end().ends_with("baseline"), "{second}");
}
