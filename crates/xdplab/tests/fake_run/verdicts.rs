//! Verdicts about a machine whose costs are known.

use std::sync::atomic::{AtomicBool, Ordering};

use xdplab::Error;
use xdplab::device::{Operation, VariantSpec};
use xdplab::guard::Outcome as GuardOutcome;
use xdplab::observed::Observed;
use xdplab::run::{self, Case, Outcome, Plan, Progress, Rig};
use xdplab::verdict::{self, Reason, Verdict};

use crate::common::{FakeRig, Model, plan, program};
use crate::measure;

fn run(model: Model, candidates: Vec<VariantSpec>) -> Case {
    measure(&plan(candidates), FakeRig::new(model))
}

fn delta(case: &Case, candidate: usize) -> f64 {
    case.comparisons[candidate].comparison.estimate().unwrap().difference.delta.estimate
}

fn reasons(case: &Case, candidate: usize) -> &[Reason] {
    match &case.comparisons[candidate].verdict {
        Verdict::Inconclusive { reasons, .. } => reasons,
        decided => panic!("{decided:?}"),
    }
}

#[test]
fn a_planted_cost_is_found_with_its_sign_and_size() {
    let case = run(Model::default(), vec![program(Operation::NoTouch, 2)]);
    assert_eq!(case.comparisons[0].verdict, Verdict::Slower);
    assert!((delta(&case, 0) - 2.0).abs() < 0.4, "{}", delta(&case, 0));

    let slow_baseline = Plan { baseline: program(Operation::NoTouch, 2), ..plan(vec![program(Operation::NoTouch, 0)]) };
    let case = measure(&slow_baseline, FakeRig::new(Model::default()));
    assert_eq!(case.comparisons[0].verdict, Verdict::Faster);
    assert!((delta(&case, 0) + 2.0).abs() < 0.4, "{}", delta(&case, 0));
}

#[test]
fn each_variant_s_cost_is_told_once() {
    let still = Model { drift_sd: 0.0, ..Model::default() };
    let case = run(still, vec![program(Operation::NoTouch, 5), program(Operation::NoTouch, 10)]);
    let costs: Vec<_> =
        case.costs.iter().map(|cost| (cost.variant.as_str(), cost.cost.estimate().unwrap().cost.estimate)).collect();
    assert_eq!(costs.len(), 3);
    for ((variant, cost), (expected, expected_ns)) in
        costs.into_iter().zip([("drop:no-touch", 66.5), ("drop:no-touch:mul=5", 71.5), ("drop:no-touch:mul=10", 76.5)])
    {
        assert_eq!(variant, expected);
        assert!((cost - expected_ns).abs() < 0.5, "{variant}: {cost}");
    }
}

#[test]
fn equal_programs_are_seldom_called_different() {
    let different = (0..20)
        .filter(|&seed| {
            let case = run(Model { seed, ..Model::default() }, vec![program(Operation::ReadData, 0)]);
            matches!(case.comparisons[0].verdict, Verdict::Slower | Verdict::Faster)
        })
        .count();
    // One in twenty at most, for a level of 95 %; three or more of twenty would come up in 8 % of all choices of seeds.
    assert!(different <= 2, "{different} of 20");
}

#[test]
fn slow_slices_and_drift_do_not_hide_a_difference() {
    for rough in [Model { slow_share: 0.2, ..Model::default() }, Model { drift_sd: 0.2, ..Model::default() }] {
        let plan = Plan { seconds: 2.0, ..plan(vec![program(Operation::NoTouch, 4)]) };
        let case = measure(&plan, FakeRig::new(rough.clone()));
        assert_eq!(case.comparisons[0].verdict, Verdict::Slower, "{rough:?}");
        assert!((delta(&case, 0) - 4.0).abs() < 1.0, "{rough:?}: {}", delta(&case, 0));
    }
}

#[test]
fn a_margin_wider_than_the_resolution_shows_equal_programs_equivalent() {
    let equal = |margin_ns| Plan { margin_ns: Some(margin_ns), ..plan(vec![program(Operation::ReadData, 0)]) };
    let case = measure(&equal(1.0), FakeRig::new(Model::default()));
    assert_eq!(case.comparisons[0].verdict, Verdict::Equivalent { margin_ns: 1.0 });
    let case = measure(&equal(0.001), FakeRig::new(Model::default()));
    assert!(matches!(case.comparisons[0].verdict, Verdict::Inconclusive { .. }), "{:?}", case.comparisons[0].verdict);

    let different = Plan { margin_ns: Some(1.0), ..plan(vec![program(Operation::NoTouch, 3)]) };
    let case = measure(&different, FakeRig::new(Model::default()));
    assert_eq!(case.comparisons[0].verdict, Verdict::Slower);
}

#[test]
fn several_candidates_are_told_apart_and_their_p_values_corrected() {
    let candidates =
        [(Operation::NoTouch, 3), (Operation::ReadData, 0), (Operation::ParseIp, 0), (Operation::SwapMacs, 6)]
            .map(|(operation, extra_mul)| program(operation, extra_mul));
    let case = run(Model::default(), candidates.to_vec());
    let named: Vec<_> = case.comparisons.iter().map(|compared| compared.candidate.clone()).collect();
    assert_eq!(named, candidates.map(|candidate| candidate.to_string()));
    for (index, planted) in [3.0, 0.0, 0.0, 6.0].into_iter().enumerate() {
        assert!((delta(&case, index) - planted).abs() < 0.6, "{}: {}", named[index], delta(&case, index));
        let different = matches!(case.comparisons[index].verdict, Verdict::Slower);
        assert_eq!(different, planted > 0.0, "{}", named[index]);
    }
    // Benjamini and Hochberg 1995 by their definition: the smallest of p(k) n / k over all k from the rank on.
    let raw = |index: usize| case.comparisons[index].comparison.estimate().unwrap().difference.p_value;
    let mut ranked: Vec<usize> = (0..4).collect();
    ranked.sort_by(|a, b| raw(*a).total_cmp(&raw(*b)));
    for (rank, &index) in ranked.iter().enumerate() {
        let expected = (rank..4).map(|k| raw(ranked[k]) * 4.0 / (k as f64 + 1.0)).fold(f64::INFINITY, f64::min);
        let adjusted = case.comparisons[index].adjusted_p_value.unwrap();
        assert!((adjusted - expected.min(1.0)).abs() <= 1e-12 * expected, "{adjusted} {expected}");
    }
}

#[test]
fn a_difference_that_many_candidates_explain_is_no_verdict() {
    let case = run(Model::default(), vec![program(Operation::NoTouch, 2)]);
    let comparison = case.comparisons[0].comparison.estimate().unwrap();
    let decide = |adjusted| verdict::decide(comparison, case.control.as_ref(), 0.1, None, Some(adjusted), &[]);
    assert_eq!(decide(0.049), Verdict::Slower);
    let Verdict::Inconclusive { reasons, .. } = decide(0.051) else { panic!("decided by chance") };
    assert_eq!(reasons, [Reason::ManyCandidates { adjusted_p_value: 0.051 }]);
}

#[test]
fn one_copy_can_not_tell_the_change_from_the_layout() {
    let one_copy = Plan { copies: 1, ..plan(vec![program(Operation::NoTouch, 8)]) };
    let case = measure(&one_copy, FakeRig::new(Model::default()));
    assert_eq!(reasons(&case, 0), [Reason::LayoutNotIncluded]);
    assert!((delta(&case, 0) - 8.0).abs() < 1.0, "the estimate is shown all the same");
}

#[test]
fn layout_noise_widens_the_interval_of_equal_programs() {
    let half_width = |layout_sd_ns| {
        let case = run(Model { layout_sd_ns, ..Model::default() }, vec![program(Operation::ReadData, 0)]);
        case.comparisons[0].comparison.estimate().unwrap().difference.delta.half_width()
    };
    let (quiet, noisy) = (half_width(0.0), half_width(2.0));
    assert!(noisy > 4.0 * quiet, "{quiet} {noisy}");
}

#[test]
fn too_few_slices_are_no_verdict_and_no_number() {
    let short = Plan { seconds: 0.01, ..plan(vec![program(Operation::NoTouch, 8)]) };
    let case = measure(&short, FakeRig::new(Model::default()));
    assert!(!case.observed.slices.is_empty());
    assert!(case.control.is_none());
    assert!(case.costs.iter().all(|cost| cost.cost.estimate().is_none()), "{:?}", case.costs);
    assert!(matches!(case.comparisons[0].comparison, Outcome::NotEnough(_)));
    assert_eq!(case.comparisons[0].adjusted_p_value, None);
    let reasons = reasons(&case, 0);
    assert!(reasons.contains(&Reason::GuardFailed { guard: "slices".into() }), "{reasons:?}");
    assert!(reasons.iter().any(|reason| matches!(reason, Reason::NotEnough { .. })), "{reasons:?}");
}

#[test]
fn an_effect_below_the_floor_is_no_verdict() {
    let quiet = Model { mul_ns: 0.05, slice_sd_ns: 0.2, layout_sd_ns: 0.0, drift_sd: 0.0, ..Model::default() };
    let case = run(quiet, vec![program(Operation::NoTouch, 1)]);
    assert!(
        reasons(&case, 0).iter().any(|reason| matches!(reason, Reason::BelowFloor { effect_ns, floor_ns: 0.1 }
            if (effect_ns - 0.05).abs() < 0.04)),
        "{:?}",
        reasons(&case, 0)
    );
}

#[test]
fn a_baseline_that_differs_from_itself_sets_the_bar_for_its_candidates() {
    let off = Model { control_ns: 3.0, ..Model::default() };
    let case = run(off, vec![program(Operation::NoTouch, 2), program(Operation::NoTouch, 12)]);
    let guard = case.guards.iter().find(|guard| guard.id == "a/a-control").unwrap();
    assert_eq!(guard.outcome, GuardOutcome::Warn);
    assert!(guard.value.starts_with("+3.") || guard.value.starts_with("+2."), "{}", guard.value);
    let [Reason::WithinControl { effect_ns, control_ns }] = reasons(&case, 0) else { panic!("{:?}", case.comparisons) };
    assert!((effect_ns - 2.0).abs() < 0.5 && *control_ns > 2.5, "{effect_ns} {control_ns}");
    assert_eq!(case.comparisons[1].verdict, Verdict::Slower);
}

/// Interrupts a run at its `after`th sign of progress, and keeps what it is told.
struct Interrupts<'a> {
    after: usize,
    stop: &'a AtomicBool,
    stages: Vec<String>,
    sampled: Vec<(f64, f64, usize)>,
}

impl Progress for Interrupts<'_> {
    fn stage(&mut self, name: &str) {
        self.stages.push(name.to_owned());
    }

    fn sampling(&mut self, seconds: f64, of: f64, slices: usize) {
        self.sampled.push((seconds, of, slices));
        if self.sampled.len() == self.after {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_interrupted_run_says_so_and_keeps_what_it_has() {
    let stop = AtomicBool::new(false);
    let mut progress = Interrupts { after: 10, stop: &stop, stages: Vec::new(), sampled: Vec::new() };
    let plan = Plan { seconds: 3600.0, ..plan(vec![program(Operation::NoTouch, 8)]) };
    let case = run::compare(&plan, &mut FakeRig::new(Model::default()), &mut progress, &stop).unwrap();
    assert!(case.observed.interrupted);
    assert!(case.observed.seconds < 1.0, "{}", case.observed.seconds);
    assert_eq!(case.comparisons[0].verdict, Verdict::Slower);
    assert_eq!(progress.stages, ["simulating", "analysing"]);
    assert_eq!(progress.sampled.len(), 10);
    assert!(progress.sampled.is_sorted_by(|a, b| a.0 < b.0 && a.2 < b.2), "{:?}", progress.sampled);

    let stopped_before = AtomicBool::new(true);
    let mut progress = Interrupts { after: 0, stop: &stopped_before, stages: Vec::new(), sampled: Vec::new() };
    let case = run::compare(&plan, &mut FakeRig::new(Model::default()), &mut progress, &stopped_before).unwrap();
    assert!(case.observed.interrupted && case.observed.slices.is_empty());
    assert!(matches!(case.comparisons[0].verdict, Verdict::Inconclusive { .. }));
}

#[test]
fn the_same_plan_on_the_same_machine_gives_the_same_case_bit_for_bit() {
    let of = |seed| run(Model { seed, ..Model::default() }, vec![program(Operation::NoTouch, 2)]);
    assert_eq!(of(3), of(3));
    assert_ne!(of(3).comparisons, of(4).comparisons);
}

#[test]
fn a_rig_that_fails_is_the_run_s_error() {
    struct Broken;
    impl Rig for Broken {
        fn measure(&mut self, _: &Plan, _: &mut dyn Progress, _: &AtomicBool) -> xdplab::Result<Observed> {
            Err(Error::unsupported("build the lab", "there is no floor"))
        }
    }
    let stop = AtomicBool::new(false);
    let plan = plan(vec![program(Operation::NoTouch, 2)]);
    let error = run::compare(&plan, &mut Broken, &mut crate::common::Silent, &stop).unwrap_err();
    assert_eq!(error.to_string(), "can't build the lab: there is no floor");
}
