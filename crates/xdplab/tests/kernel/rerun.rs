//! A run repeated from its record.

use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;
use xdplab::record::Record;

use crate::counts::lab;
use crate::live::{self, Live, generator};
use crate::support::{BPF, NETNS, seconds, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("rerun::the_same_plan_is_measured_again_and_compared", &[&NETNS, &BPF], programs),
        test("rerun::a_live_command_is_run_again_for_as_long_as_it_ran", &[&NETNS, &BPF], live_command),
    ]
}

fn programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = |arguments: &[&str]| {
        let output = Command::new(assert_cmd::cargo::cargo_bin!("xdplab")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let sides = ["--baseline", "drop:no-touch", "--candidate", "drop:read-data"];
    run(&[
        &["ab", "--seconds", &seconds(1.0), "--rounds", "2", "--slice-packets", "256", "--record", &path("first")],
        &sides[..],
    ]
    .concat());
    let told: Value =
        serde_json::from_str(&run(&["rerun", &path("first"), "--keep-seed", "--json", "--record", &path("second")]))
            .unwrap();
    let [first, second] = ["first", "second"].map(|name| Record::read(path(name).as_ref()).unwrap());
    assert_eq!(first.cases[0].plan, second.cases[0].plan, "the seed is kept too");
    let [repeated] = &told["repeated"][0]["candidates"].as_array().unwrap()[..] else { panic!("{told}") };
    let delta = |case: &xdplab::run::Case| case.comparisons[0].comparison.estimate().unwrap().difference.delta.estimate;
    let change = delta(&second.cases[0]) - delta(&first.cases[0]);
    assert!((repeated["change"]["delta"]["estimate_ns"].as_f64().unwrap() - change).abs() < 1e-9, "{told}");
    assert_eq!(told["costs"].as_array().unwrap().len(), 2, "{told}");
    assert_eq!(told["environment"], serde_json::json!([]), "the same machine, the same lab, the same tool");

    let text = run(&["rerun", &path("second"), "--record", &path("third")]);
    assert_ne!(Record::read(path("third").as_ref()).unwrap().cases[0].plan.seed, second.cases[0].plan.seed);
    assert!(text.contains("Δ ns then") && text.contains("environment: no difference"), "{text}");
}

fn live_command() {
    let lab = lab(1);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let generator = generator(&lab);
    Live::start(&lab.dut, &["drop", "dut0", "-p", "read-data", "--record", &path("first")]).end();
    let ended = Live::spawn(&lab.dut, live::command(&["rerun", &path("first"), "--record", &path("second")])).wait();
    generator.stop().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let [first, second] = ["first", "second"].map(|name| Record::read(path(name).as_ref()).unwrap());
    let period = |record: &Record| record.live_runs[0].end.as_ref().unwrap().total.period_s;
    assert!(period(&second) >= period(&first), "{} {}", period(&first), period(&second));
    assert_eq!(second.live_runs[0].start.attached.as_ref().unwrap().program, "drop:read-data");
    assert!(ended.stdout.contains("drop:read-data on dut0 (live)"), "{}", ended.stdout);
    assert!(ended.stdout.contains("one boot a side"), "{}", ended.stdout);
}
