//! Programs run alone: planted costs are found with their size, and nothing that a driver would tell is made up.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use libtest_mimic::Trial;
use xdplab::device::VariantSpec;
use xdplab::guard::Outcome;
use xdplab::run::{self, Case, Engine, Plan, Progress};
use xdplab::testrun::TestRunRig;
use xdplab::topology::Placement;

use crate::support::{NETNS, REAL_TIME, patience, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "testrun::planted_multiplications_cost_what_the_reference_workload_says",
            &[&NETNS, &REAL_TIME],
            multiplications,
        ),
        test("testrun::a_cold_run_finds_a_planted_cost_and_takes_longer", &[&NETNS, &REAL_TIME], cold),
        test("testrun::guards_of_a_driver_are_not_applicable_and_every_run_is_counted", &[&NETNS], guards),
        test("testrun::a_run_ends_soon_after_it_is_told_to", &[&NETNS], stopped),
    ]
}

struct Silent;

impl Progress for Silent {
    fn stage(&mut self, _: &str) {}
    fn sampling(&mut self, _: f64, _: f64, _: usize) {}
}

fn plan(candidate: &str, cold: bool) -> Plan {
    let spec = |text: &str| text.parse::<VariantSpec>().unwrap();
    let plan = Plan::new("alone", spec("drop:no-touch:mul=0"), vec![spec(candidate)], Placement::same().unwrap(), 1);
    Plan { seconds: 2.0, ..plan.with_engine(Engine::TestRun { cold }) }
}

fn measure(plan: &Plan) -> Case {
    run::compare(plan, &mut TestRunRig, &mut Silent, &AtomicBool::new(false)).unwrap()
}

fn delta_ns(case: &Case) -> f64 {
    case.comparisons[0].comparison.estimate().unwrap().difference.delta.estimate
}

fn multiplications() {
    let case = measure(&plan("drop:no-touch:mul=16", false));
    let reference = case.observed.reference.known().unwrap();
    // `planted_cost` in bpf/dut.bpf.c: 7/8 of the latency, less what other work hides, more where copies lie badly.
    let latency = 16.0 * reference.ns() / 1000.0;
    let found = delta_ns(&case);
    assert!((0.5..1.6).contains(&(found / latency)), "{found} ns for a latency of {latency} ns");
    let alone = case.costs[0].program_alone.unwrap().delta;
    let timed = case.costs[0].cost.estimate().unwrap().cost;
    assert!(alone.estimate > 0.0 && alone.estimate < timed.estimate, "{alone:?} of {timed:?}");
}

fn cold() {
    let (warm, cold) = (measure(&plan("drop:no-touch:lookup", false)), measure(&plan("drop:no-touch:lookup", true)));
    let timed = |case: &Case| case.costs[0].cost.estimate().unwrap().cost.estimate;
    assert!(timed(&cold) > timed(&warm) + 20.0, "walking 64 lines takes time: {} {}", timed(&cold), timed(&warm));
    assert!(delta_ns(&cold) > 3.0, "a look-up in a hash map costs more than {} ns", delta_ns(&cold));
}

fn guards() {
    let case = measure(&plan("drop:no-touch:mul=1", false));
    let not_applicable: Vec<&str> = case
        .guards
        .iter()
        .filter(|guard| guard.outcome == Outcome::NotApplicable)
        .map(|guard| guard.id.as_str())
        .collect();
    assert_eq!(not_applicable, ["single-rx-queue", "napi-saturated", "xdp-mode", "page-pool", "settings"]);
    let ledger = case.guards.iter().find(|guard| guard.id == "ledger").unwrap();
    assert_eq!(ledger.outcome, Outcome::Pass, "{ledger:?}");
    assert_eq!(case.observed.ledger.generated.known(), Some(&case.observed.ledger.received));
    assert!(case.observed.napi.known().is_none() && case.observed.page_pools.known().is_none());
    let text = xdplab::report::case_text(&xdplab::host::Environment::read(), &case);
    assert!(text.contains("program only, no driver"), "{text}");
}

fn stopped() {
    let plan = Plan { seconds: 60.0, ..plan("drop:no-touch:mul=1", false) };
    let begin = Instant::now();
    let case = run::compare(&plan, &mut TestRunRig, &mut Silent, &AtomicBool::new(true)).unwrap();
    assert!(case.observed.interrupted);
    assert!(begin.elapsed() < patience(20), "took {:?}", begin.elapsed());
}
