//! What was counted, compared, recorded and reported.

use std::fs;

use serde_json::{Value, json};

use crate::lab::{Lab, counted, ended, lines, symbols};

#[test]
fn three_instructions_more_a_packet_are_found_exactly_whatever_came_between() {
    let lab = Lab::new();
    let (before, after) = (lab.kernel("6.1.0"), lab.kernel("6.12.0"));
    after.counts(103);
    let (text, _) = ended(&lab.compare(&before, &after, &[]).output().unwrap(), 0);
    let row = text.lines().find(|line| line.trim_start().starts_with("live-drop")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words, ["live-drop", "100.00", "103.00", "+3.00", "0.00", "more"], "{text}");
    assert!(text.contains("guest instructions per packet (TCG): work done, never time, rate or speed"), "{text}");
    assert_eq!((before.boots(), after.boots()), (2, 2));
    let instrument = &lab.record()["kernels"][0]["instrument"];
    assert_eq!((&instrument["qemu"], &instrument["cpu"]), (&json!("7.2.22"), &json!("max,-erms,-fsrm")));
    assert_eq!(instrument["guest_sha256"].as_str().unwrap().len(), 64);
    ended(&lab.compare(&before, &after, &["--fail-on", "more"]).output().unwrap(), 1);
    ended(&lab.compare(&after, &before, &["--fail-on", "more"]).output().unwrap(), 0);
    let (json, _) = ended(&lab.compare(&after, &after, &["--json"]).output().unwrap(), 0);
    let row: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&row["comparison"]["change"], &row["comparison"]["delta"]), (&json!("same"), &json!(0.0)));
}

#[test]
fn boots_that_do_not_agree_to_the_instruction_give_no_difference() {
    let lab = Lab::new();
    let (steady, other) = (lab.kernel("6.1.0"), lab.kernel("6.12.0"));
    other.does("result.2", lines(&[counted(101), json!("done")]));
    let (text, _) = ended(&lab.compare(&steady, &other, &[]).output().unwrap(), 0);
    assert!(text.contains("not deterministic: its boots took 409600/4096, 413696/4096 instructions/packets"), "{text}");
    assert!(!text.contains('+'), "{text}");
    fs::remove_dir_all(lab.path("6.12.0.guests/boot.1")).unwrap();
    fs::remove_dir_all(lab.path("6.12.0.guests/boot.2")).unwrap();
    ended(&lab.compare(&steady, &other, &["--fail-on", "inconclusive"]).output().unwrap(), 3);
}

#[test]
fn what_scheduling_decides_is_seen_to_work_or_told_why_not() {
    let lab = Lab::new();
    let (works, fails) = (lab.kernel("6.1.0"), lab.kernel("6.12.0"));
    let checked = |outcome| lines(&[json!({"checked": {"check": "af-xdp", "outcome": outcome}}), json!("done")]);
    works.does("checks", checked(json!({"Ok": null})));
    fails.does("checks", checked(json!({"Err": "31 of 32 came"})));
    let (text, _) = ended(&lab.compare(&works, &fails, &["--check", "af-xdp"]).output().unwrap(), 0);
    assert!(text.contains("6.12.0: af-xdp fails: 31 of 32 came"), "{text}");
    let outcome = |kernel: &str| text.lines().find(|line| line.contains("af-xdp") && line.contains(kernel)).unwrap();
    assert!(outcome("6.1.0 ").ends_with("works") && text.contains("fails"), "{text}");
    ended(&lab.compare(&works, &fails, &["--check", "af-xdp", "--fail-on", "inconclusive"]).output().unwrap(), 3);
}

const SYMBOLS: &str = "ffffffff81000000 T other\nffffffff81000100 t veth_xdp_rcv_one\nffffffff81000200 t xdp_test_run_batch\n\
    ffffffff81000300 T end\n";

/// What the plugin writes in six rounds, the first of which is far off.
fn sections(rcv_one: u64) -> String {
    let section = |packets: u64, beside: u64| {
        let [other, rcv_one, batch] = [5000 + beside, packets * rcv_one, packets * 66];
        format!("mark\nffffffff81000010 {other}\nffffffff81000110 {rcv_one}\nffffffff81000210 {batch}\n")
    };
    [90_000, 3000, 0, 0, 0, 4000].map(|beside| section(1024, beside) + &section(5120, beside)).concat()
}

#[test]
fn the_function_that_takes_three_instructions_more_is_named_and_what_measures_stands_apart() {
    let lab = Lab::new();
    let (before, after) = (lab.kernel("6.1.0"), lab.kernel("6.12.0"));
    for (kernel, rcv_one) in [(&before, 82), (&after, 85)] {
        let result = [lines(&[counted(rcv_one + 66)]), symbols(SYMBOLS), lines(&[json!("done")])].concat();
        kernel.does("result", result).does("profile", sections(rcv_one));
    }
    let plugin = lab.path("guest");
    let output = lab.compare(&before, &after, &["--profile", plugin.to_str().unwrap()]).output().unwrap();
    let (text, _) = ended(&output, 0);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        &["veth_xdp_rcv_one", "kernel", "82.00", "85.00", "+3.00"][..],
        &["(what", "sends", "and", "measures)", "harness", "66.00", "66.00", "+0.00"],
        &["(all", "others)", "0.00", "0.00", "+0.00"],
        &["(in", "all)", "148.00", "151.00", "+3.00"],
    ] {
        assert!(rows.iter().any(|found| found == row), "{row:?} is not in {text}");
    }
    assert!(!text.contains("xdp_test_run_batch"), "{text}");
    let report = |format: &str| {
        let mut report = std::process::Command::new(env!("CARGO_BIN_EXE_xdplab"));
        ended(&report.arg("report").arg(lab.path("record.json")).args(["--format", format]).output().unwrap(), 0).0
    };
    let told = report("text");
    for line in text.lines().filter(|line| !line.starts_with("record: ")) {
        assert!(told.lines().any(|also| also == line), "{line} is not in {told}");
    }
    let page = report("html");
    assert!(page.contains("<title>veth_xdp_rcv_one: 82.00 -&gt; 85.00 (+3.00), kernel</title>"), "{page}");
}

#[test]
fn runs_of_another_instrument_are_not_compared() {
    let lab = Lab::new();
    let kernel = lab.kernel("6.1.0");
    ended(&lab.compare(&kernel, &kernel, &[]).output().unwrap(), 0);
    let mut other = lab.record();
    other["kernels"][0]["instrument"]["qemu"] = json!("8.2.0");
    fs::write(lab.path("other.json"), other.to_string()).unwrap();
    let compare = |other: &str| {
        let mut compare = std::process::Command::new(env!("CARGO_BIN_EXE_xdplab"));
        compare.arg("compare").arg(lab.path("record.json")).arg(lab.path(other)).output().unwrap()
    };
    let (_, error) = ended(&compare("other.json"), 2);
    assert!(error.contains("counted differently: QEMU 7.2.22 and 8.2.0"), "{error}");
    let (text, _) = ended(&compare("record.json"), 0);
    assert!(text.contains("same"), "{text}");
}
