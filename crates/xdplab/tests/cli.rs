//! The command line as a user or a script meets it. What needs the kernel is among the kernel tests.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs::{self, File};
use std::io;
use std::process::{Command, Output, Stdio};

fn xdplab() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("xdplab"))
}

fn run(arguments: &[&str]) -> Output {
    xdplab().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line on standard error of a command that could not do what it was asked.
fn refusal(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(text(&output.stdout), "");
    let line = text(&output.stderr).strip_suffix('\n').unwrap();
    assert!(line.starts_with("xdplab: ") && !line.contains(char::is_control), "{line:?}");
    line
}

#[test]
fn help_names_every_command_and_version_is_the_crate_s() {
    let help = run(&["--help"]);
    assert!(help.status.success());
    assert_eq!(text(&help.stderr), "");
    for command in ["demo", "doctor", "compare", "pool"] {
        assert!(
            text(&help.stdout).lines().any(|line| line.trim_start().starts_with(&format!("{command} "))),
            "{command}"
        );
        assert!(run(&[command, "--help"]).status.success(), "{command}");
    }
    let version = run(&["--version"]);
    assert!(version.status.success());
    assert_eq!(text(&version.stdout), format!("xdplab {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn what_is_typed_wrong_is_exit_status_2_and_nothing_on_standard_output() {
    for wrong in [
        &["frobnicate"][..],
        &["--frobnicate"],
        &["demo", "--frobnicate"],
        &["demo", "--seconds", "soon"],
        &["demo", "--seconds"],
        &["demo", "--placement", "sideways"],
        &["demo", "--seed", "-1"],
        &["compare"],
        &["compare", "baseline.json"],
        &["compare", "--margin", "wide", "baseline.json", "candidate.json"],
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert_eq!(text(&output.stdout), "", "{wrong:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{wrong:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_record_that_can_not_be_read_is_one_line_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("future"), r#"{"schema": "xdplab.record/99"}"#).unwrap();
    for (name, why) in [("absent", "ENOENT"), ("empty", "EOF"), ("future", "xdplab.record/99")] {
        let output = run(&["compare", &path(name), &path(name)]);
        let line = refusal(&output);
        assert!(line.contains(&path(name)) && line.contains(why), "{line}");
    }
    let line = run(&["compare", &path("a\nb\u{1b}[2J"), &path("empty")]);
    refusal(&line);
}

#[test]
fn a_reader_that_has_gone_away_is_no_failure() {
    for arguments in [&["--help"][..], &["--version"], &["doctor"], &["doctor", "--json"]] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = xdplab().args(arguments).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
}

#[test]
fn output_that_can_not_be_written_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = xdplab().arg("doctor").stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(refusal(&output), "xdplab: can't write to standard output: write: ENOSPC (No space left on device)");
}

#[test]
fn doctor_prints_a_line_for_each_answer_and_each_is_json_if_asked() {
    let output = run(&["doctor", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 5);
    let printed = run(&["doctor"]);
    for line in &lines {
        assert!(text(&printed.stdout).contains(line["what"].as_str().unwrap()), "{line}");
    }
    let error = run(&["doctor", "no-such-interface"]);
    assert!(text(&error.stderr).contains("no-such-interf"), "{error:?}");
    assert_eq!(error.status.code(), Some(2));
}

#[test]
fn pool_bench_compares_paths_checks_bounds_and_quotes_the_kernel_s_figures() {
    let bench = run(&["pool", "bench", "single", "--seconds", "0.5", "--seed", "7"]);
    assert!(bench.status.success(), "{bench:?}");
    let out = text(&bench.stdout);
    let row = |what: &str| {
        let row = out.lines().find(|row| row.trim_start().starts_with(what));
        row.unwrap_or_else(|| panic!("{what}: {out}"))
    };
    for path in ["direct, explicit", "Frame drop", "ring, bulk 16", "Mutex<Vec>", "malloc of the C library"] {
        row(path);
    }
    row("Single: Frame drop / direct, explicit");
    if !cfg!(feature = "pool-peers") {
        assert!(row("Single: ArrayQueue / Frame drop").ends_with("not measured"), "{out}");
    }
    assert!(out.contains("the kernel's page_pool, published, ns") && out.contains("A/A control: "), "{out}");
}
