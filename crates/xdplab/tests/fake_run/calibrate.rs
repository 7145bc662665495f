//! A calibration on the simulated machine, whose truth is known.

use std::sync::atomic::AtomicBool;

use xdplab::calibrate::{Benches, Calibration, Overhead, Settings, rows, usual_errors};
use xdplab::device::Planted;
use xdplab::observed::Observed;
use xdplab::run::{Plan, Progress, Rig};
use xdplab::stats::{Difference, Interval, Level};
use xdplab::topology::Placement;
use xdplab::{Error, Result};

use crate::common::{FakeRig, Model, Silent, environment};

fn settings() -> Settings {
    Settings {
        comparisons: 40,
        seconds: 0.6,
        effects: vec![Planted::Mul(1), Planted::Mul(4)],
        copies: 1,
        rounds: 6,
        placement: Placement::Same { cpu: 1 },
        seed: 1,
    }
}

/// The simulated machine, with noise that differs from plan to plan.
struct EachRunItsOwn;

impl Rig for EachRunItsOwn {
    fn measure(&mut self, plan: &Plan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Observed> {
        FakeRig::new(Model { seed: plan.seed, ..Model::default() }).measure(plan, progress, stop)
    }
}

fn nothing(_: Placement, _: u64) -> Result<Overhead> {
    let delta = Interval { estimate: 8.0, low: 7.0, high: 9.0, level: Level::default() };
    let difference = Difference { delta, standard_error_ns: 0.5, degrees_of_freedom: 7.0, p_value: 0.001 };
    Ok(Overhead { dispatcher: difference, counter: difference })
}

/// Goes on until `saves` steps were written or nothing is left.
fn go_on(calibration: &mut Calibration, saves: usize) {
    let mut written = 0;
    let stop = AtomicBool::new(false);
    let mut benches = Benches { traffic: &mut EachRunItsOwn, alone: &mut EachRunItsOwn, overhead: &mut nothing };
    let done = calibration.go_on(&mut benches, &mut Silent, &stop, &mut |_| {
        written += 1;
        if written == saves { Err(Error::interrupted("test")) } else { Ok(()) }
    });
    assert_eq!(done.is_err(), written == saves);
}

#[test]
fn a_calibration_finds_the_simulated_truth_and_calls_nothing_different_that_is_not() {
    let mut calibration = Calibration::begin(environment(), Vec::new(), settings());
    go_on(&mut calibration, usize::MAX);
    assert_eq!(calibration.steps_done(), calibration.steps());
    let model = Model::default();
    let rows = rows(&calibration);
    assert_eq!(rows.len(), 9, "three kinds in three durations");
    for row in rows.iter().filter(|row| row.seconds > 0.5) {
        let truth = match row.planted {
            None => 0.0,
            Some(Planted::Mul(count)) => model.mul_ns * f64::from(count),
            Some(other) => panic!("{other} was not planted"),
        };
        assert!((row.truth_ns - truth).abs() < 0.1, "{row:?}");
        assert!(row.bias_ns.abs() < 0.1, "{row:?}");
        assert!(row.coverage.share().unwrap() > 0.8, "{row:?}");
        match row.planted {
            None => {
                assert_eq!((row.comparisons, row.called_different.hits <= 6), (40, true), "{row:?}");
                let added = row.called_with_added.unwrap();
                assert!(added.of == 80 && added.hits > row.called_different.hits, "{row:?}");
            }
            Some(Planted::Mul(4)) if row.pairs_agree.unwrap().hits < 7 => panic!("{row:?}"),
            Some(Planted::Mul(4)) => assert_eq!((row.comparisons, row.called_different.hits), (20, 20), "{row:?}"),
            Some(_) => assert_eq!(row.comparisons, 20),
        }
    }
    assert_eq!(usual_errors(&calibration).unwrap().comparisons, 10);
}

#[test]
fn an_interrupted_calibration_goes_on_where_it_was_and_ends_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = Calibration::begin(environment(), Vec::new(), Settings { comparisons: 8, ..settings() });
    let path = folder.path().join("calibration.json");
    let mut parts = whole.clone();
    go_on(&mut whole, usize::MAX);
    go_on(&mut parts, 3);
    assert_eq!(parts.steps_done(), 3);
    parts.write(&path).unwrap();
    let mut parts = Calibration::read(&path).unwrap();
    go_on(&mut parts, usize::MAX);
    assert_eq!(rows(&parts), rows(&whole));
    assert_eq!(parts.slice_sizes, whole.slice_sizes);
}

#[test]
fn settings_that_can_not_be_loaded_at_once_are_refused_before_anything_is_measured() {
    assert!(settings().check().is_ok());
    let none = Settings { effects: Vec::new(), ..settings() };
    assert!(none.check().unwrap_err().to_string().contains("nothing is to be planted"));
    let many = Settings { copies: 9, ..settings() };
    assert!(many.check().unwrap_err().to_string().contains("1 to 64 copies fit in all"));
}
