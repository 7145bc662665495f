//! A short calibration on the lab: what the instrument costs, and that every step gives what it should.

use std::sync::atomic::AtomicBool;

use libtest_mimic::Trial;
use xdplab::calibrate::{Benches, Calibration, Settings, measure_overhead, rows};
use xdplab::device::Planted;
use xdplab::host::Environment;
use xdplab::report::calibration_text;
use xdplab::rig::LabRig;
use xdplab::run::Progress;
use xdplab::testrun::TestRunRig;
use xdplab::topology::Placement;

use crate::support::{NETNS, REAL_TIME, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("calibrate::the_dispatcher_and_the_counter_cost_something", &[&NETNS, &REAL_TIME], overhead),
        test("calibrate::a_short_calibration_is_whole", &[&NETNS, &REAL_TIME], short),
    ]
}

struct Silent;

impl Progress for Silent {
    fn stage(&mut self, _: &str) {}
    fn sampling(&mut self, _: f64, _: f64, _: usize) {}
}

fn overhead() {
    let overhead = measure_overhead(Placement::same().unwrap(), 1).unwrap();
    let (dispatcher, counter) = (overhead.dispatcher.delta, overhead.counter.delta);
    assert!(dispatcher.estimate > 1.0 && dispatcher.estimate < 200.0, "{dispatcher:?}");
    assert!(counter.estimate < dispatcher.estimate, "a counter is part of what a dispatcher does: {counter:?}");
}

fn short() {
    let settings = Settings {
        comparisons: 3,
        seconds: 2.0,
        effects: vec![Planted::Mul(16)],
        copies: 1,
        rounds: 2,
        placement: Placement::same().unwrap(),
        seed: 1,
    };
    let mut calibration = Calibration::begin(Environment::read(), vec!["xdplab".into()], settings);
    let mut benches = Benches { traffic: &mut LabRig, alone: &mut TestRunRig, overhead: &mut measure_overhead };
    let mut saved = 0;
    let stop = AtomicBool::new(false);
    let mut save = |_: &Calibration| {
        saved += 1;
        Ok(())
    };
    calibration.go_on(&mut benches, &mut Silent, &stop, &mut save).unwrap();
    assert_eq!((calibration.steps_done(), saved), (calibration.steps(), calibration.steps()));
    let rows = rows(&calibration);
    let whole = |planted| rows.iter().find(|row| row.planted == planted && row.seconds > 1.9).unwrap();
    assert_eq!(whole(None).comparisons + whole(None).without_result, 3);
    assert!(whole(Some(Planted::Mul(16))).truth_ns > 3.0, "{rows:?}");
    assert!(calibration.runs[0].usual_ns.known().is_some());
    let text = calibration_text(&calibration);
    assert!(text.contains("| mul=16 | 2 |") && text.contains("The dispatcher costs"), "{text}");
}
