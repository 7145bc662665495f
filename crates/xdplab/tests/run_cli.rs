//! `xdplab run` where it needs no privileges: cases that measure the page-pool crate in this process.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use xdplab::record::Record;
use xdplab::scenario::{Outcome, ScenarioRun};

/// A scenario of as many cases, each once; in a folder that goes with it.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("scenario.toml"), text).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xdplab"));
        command.arg("run").args(args).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn record(&self) -> Record {
        Record::read(&self.path("record.json")).unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn run_of(record: &Record) -> &ScenarioRun {
    record.scenario.as_ref().unwrap()
}

const POOL: &str = r#"
name = "pools"
about = "two groups"
repeats = 2

[[cases]]
kind = "pool"
seconds = 0.2
matrix.group = ["single", "frags"]
"#;

const RECORD: [&str; 3] = ["scenario.toml", "--record", "record.json"];

#[test]
fn every_case_is_in_the_record_and_told_with_the_time_left() {
    let bench = Bench::new(POOL);
    let output = bench.run(&[&RECORD[..], &["--seed", "3"]].concat());
    assert!(output.status.success(), "{output:?}");
    let record = bench.record();
    let run = run_of(&record);
    assert_eq!((run.name.as_str(), run.seed, run.repeats, run.text.as_str()), ("pools", 3, 2, POOL));
    assert_eq!((run.done.len(), record.pools.len()), (4, 4));
    let mut cases: Vec<_> = run.done.iter().map(|done| (done.case, done.repeat)).collect();
    cases.sort_unstable();
    assert_eq!(cases, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    for done in &run.done {
        let Outcome::Pool(index) = done.outcome else { panic!("{done:?}") };
        assert_eq!(serde_json::to_value(record.pools[index].group).unwrap(), done.parameters["group"]);
    }
    let stdout = text(&output.stdout);
    for (number, done) in (1..).zip(&run.done) {
        let line = stdout.lines().find(|line| line.starts_with(&format!("[{number}/4] "))).unwrap();
        assert!(line.contains(&format!("{} #{}: ", done.label, done.repeat + 1)), "{line}");
        assert_eq!(line.contains(" left"), number < 4, "{line}");
    }
    assert!(stdout.ends_with(&xdplab::report::scenario_text(&record)), "the report is the record's");
}

#[test]
fn the_same_seed_gives_the_same_order_and_what_is_typed_wins() {
    let bench = Bench::new(POOL);
    let order = |args: &[&str]| {
        let output = bench.run(&[&["scenario.toml", "--dry-run"], args].concat());
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).to_owned()
    };
    assert_eq!(order(&["--seed", "1"]), order(&["--seed", "1"]));
    let many = ["1", "2", "3", "4", "5", "6", "7", "8"].map(|seed| {
        let told = order(&["--seed", seed, "--repeats", "8"]);
        told.lines().filter(|line| line.contains("group=")).map(str::to_owned).collect::<Vec<_>>()
    });
    assert!(many.iter().any(|order| *order != many[0]));
    assert!(many.iter().all(|order| order.len() == 16));
    assert!(order(&["--seconds", "7"]).contains("7 s"));
    assert!(!bench.path("record.json").exists());
}

#[test]
fn a_mistake_in_the_file_is_one_line_and_nothing_is_measured() {
    let bench = Bench::new(&POOL.replace("seconds = 0.2", "seconds = -1"));
    let output = bench.run(&RECORD);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert_eq!(
        text(&output.stderr),
        "xdplab: can't read the scenario scenario.toml: line 8, key `cases[0].seconds`: -1 is not above 0\n"
    );
    assert!(!bench.path("record.json").exists());
    let output = bench.run(&["absent.toml"]);
    assert!(text(&output.stderr).contains("read the scenario absent.toml: open: ENOENT"), "{output:?}");
    let output = bench.run(&["--resume", "scenario.toml"]);
    assert_eq!(output.status.code(), Some(2));
}

/// Cases in the record so far; none while it is not there.
fn done_in(path: &Path) -> usize {
    fs::read(path)
        .ok()
        .and_then(|json| serde_json::from_slice::<Value>(&json).ok())
        .map_or(0, |record| record["scenario"]["done"].as_array().unwrap().len())
}

#[test]
fn a_killed_run_loses_one_case_at_most_and_goes_on_from_its_record() {
    let bench = Bench::new(&POOL.replace("repeats = 2", "repeats = 4\nseed = 5"));
    let path = bench.path("record.json");
    let mut killed = bench.command(&RECORD).spawn().unwrap();
    let begin = Instant::now();
    while done_in(&path) < 3 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        assert_eq!(killed.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    let told = killed.wait_with_output().unwrap();
    let lines = text(&told.stdout).lines().filter(|line| line.starts_with('[')).count();
    let before = bench.record();
    let kept = run_of(&before).done.clone();
    assert!(kept.len() >= 3 && kept.len() >= lines && kept.len() < 8, "{} kept, {lines} told", kept.len());

    let output = bench.run(&["--resume", "record.json"]);
    assert!(output.status.success(), "{output:?}");
    let after = bench.record();
    let run = run_of(&after);
    assert_eq!(run.done[..kept.len()], kept, "what was there is kept");
    assert_eq!(after.pools[..before.pools.len()], before.pools);
    assert_eq!(run.done.len(), 8);
    let whole: Vec<_> = run.scenario().unwrap().steps(5).iter().map(|step| (step.case, step.repeat)).collect();
    assert_eq!(run.done.iter().map(|done| (done.case, done.repeat)).collect::<Vec<_>>(), whole, "in the same order");
    let again = bench.run(&["--resume", "record.json"]);
    assert!(again.status.success() && !text(&again.stdout).contains("[8/8]"), "nothing is left to do: {again:?}");
}

#[test]
fn a_case_that_fails_is_told_and_does_not_end_the_run() {
    let bench = Bench::new(
        &(POOL.replace("repeats = 2", "order = \"file\"")
            + "[[cases]]\nkind = \"pool\"\ngroup = \"single\"\nseconds = 0.2\nsetup = \"test -e allowed\"\n\
               restore = \"touch restored\"\n"),
    );
    let output = bench.run(&RECORD);
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with(
            "xdplab: can't carry out 1 of 3 cases: pool group=single restore=touch restored setup=test -e allowed: can't run \
             the case's command `test -e allowed`"
        ),
        "{stderr}"
    );
    assert!(stderr.trim_end().ends_with("go on with --resume record.json"), "{stderr}");
    assert!(bench.path("restored").exists(), "restored although it failed");
    assert!(text(&output.stdout).contains("setup=test -e allowed: failed: can't run"), "{output:?}");
    assert_eq!(run_of(&bench.record()).failed().count(), 1);

    fs::write(bench.path("allowed"), "").unwrap();
    let output = bench.run(&["--resume", "record.json"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((run_of(&bench.record()).failed().count(), bench.record().pools.len()), (0, 3));
}

#[test]
fn json_has_an_object_for_each_case() {
    let bench = Bench::new(&POOL.replace("repeats = 2\n", ""));
    let output = bench.run(&[&RECORD[..], &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(line["schema"], "xdplab.run/1");
        assert_eq!(line["result"]["group"], line["parameters"]["group"]);
        assert!(line["result"]["comparisons"].as_array().is_some_and(|comparisons| !comparisons.is_empty()));
    }
}

#[test]
fn a_kernel_that_can_not_be_booted_fails_its_cases_alone_and_is_tried_again_when_the_run_goes_on() {
    let bench = Bench::new(
        "name = \"guests\"\norder = \"file\"\n[[cases]]\nkind = \"kernels\"\nprogram = \"drop:no-touch\"\n\
         matrix.kernel = [\"text\", \"vmlinux\"]\n[[cases]]\nkind = \"pool\"\ngroup = \"single\"\nseconds = 0.2\n",
    );
    let refused = bench.run(&RECORD);
    assert!(
        text(&refused.stderr).starts_with(
            "xdplab: can't read the scenario scenario.toml: line 6, key `cases[0].matrix.kernel[0]`: there is no text; a kernel is"
        ),
        "{refused:?}"
    );
    fs::write(bench.path("text"), "no kernel").unwrap();
    fs::write(bench.path("vmlinux"), b"\x7fELF").unwrap();
    let plan = bench.run(&["scenario.toml", "--dry-run"]);
    assert!(text(&plan.stdout).contains("   1  kernels kernel=text\n"), "{plan:?}");
    for args in [&RECORD[..], &["--resume", "record.json"]] {
        let output = bench.run(args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            text(&output.stderr).contains("can't carry out 2 of 3 cases: kernels kernel=text: can't boot the kernel")
        );
        let record = bench.record();
        let failed: Vec<String> = run_of(&record).failed().map(|(_, why)| why.to_owned()).collect();
        assert!(failed[0].contains("no boot header of an x86 kernel"), "{failed:?}");
        assert!(failed[1].contains("it is an ELF file (vmlinux)"), "{failed:?}");
        assert_eq!((record.pools.len(), record.kernels.len()), (1, 0));
    }
}
