//! Records of several boots: a clock that differs is seen, and taken out beside the raw difference.

use xdplab::across;
use xdplab::reading::Reading;
use xdplab::record::Record;
use xdplab::reference::{Reference, Timing};
use xdplab::report::across_text;
use xdplab::run::Plan;
use xdplab::stats::Level;

use crate::common::{FakeRig, Model, environment, plan};
use crate::measure;

/// Three boots of a machine whose clock is `slow` times as slow as usual.
fn boots(slow: f64, reference: Option<f64>) -> Vec<Record> {
    (0..3u8)
        .map(|boot| {
            let mut environment = environment();
            environment.boot_id = Reading::Known(format!("{slow} {boot}"));
            let mut record = Record::begin(environment, Vec::new());
            let model = Model { base_ns: 66.5 * slow, seed: u64::from(boot), ..Model::default() };
            let plan = Plan { seconds: 0.3, ..plan(Vec::new()) };
            let mut case = measure(&plan, FakeRig::new(model));
            case.observed.reference = match reference {
                Some(median_ns) => {
                    let timing = Timing { median_ns: median_ns + f64::from(boot), mad_ns: 2.0 };
                    Reading::Known(Reference { before: timing, after: timing })
                }
                None => Reading::not_available("no test run"),
            };
            record.add(case);
            record
        })
        .collect()
}

fn compare(baseline: &[Record], candidate: &[Record]) -> across::Across {
    let mut rows = across::compare(baseline, candidate, Level::default(), 0.1, None).unwrap();
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

#[test]
fn a_slower_clock_is_the_whole_difference_once_it_is_corrected() {
    let (baseline, candidate) = (boots(1.0, Some(1000.0)), boots(1.1, Some(1100.0)));
    let across = compare(&baseline, &candidate);
    assert!((across.delta_ns - 6.65).abs() < 0.3, "{across:?}");
    let corrected = across.corrected.as_ref().unwrap();
    assert!(corrected.delta_ns.abs() < 0.3, "{corrected:?}");
    assert_eq!((corrected.baseline_reference_ns, corrected.candidate_reference_ns), (1001.0, 1101.0));
    let text = across_text(&[across], Some(&[]), Level::default());
    assert!(text.contains("the clocks differ (reference workload 1001.0 -> 1101.0 ns)"), "{text}");
}

#[test]
fn clocks_that_differ_by_no_more_than_they_scatter_or_are_not_known_correct_nothing() {
    let baseline = boots(1.0, Some(1000.0));
    assert_eq!(compare(&baseline, &boots(1.1, Some(1001.5))).corrected, None);
    assert_eq!(compare(&baseline, &boots(1.1, None)).corrected, None);
}
