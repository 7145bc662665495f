//! `xdplab report` on recorded runs (`tests/fixtures/records/`), `help`, `completions`, `man`, and what `rerun` refuses. None
//! of these needs rights.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Real runs, cut down: programs compared, settings compared, a scenario, kernels compared, a live command, and imported results.
const RECORDS: [&str; 6] = ["programs", "settings", "scenario", "kernels", "live", "imported"];
const FORMATS: [&str; 6] = ["text", "mail", "markdown", "html", "csv", "json"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/records")
}

/// Runs where the fixtures are, so that their names are the same everywhere.
fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xdplab"));
    command.current_dir(folder()).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert_eq!(output.stderr, b"", "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line on standard error of a command that could not do what it was asked.
fn refusal(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{arguments:?}: {output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

fn report(record: &str, format: &str) -> String {
    printed(&["report", &format!("{record}.json"), "--format", format])
}

#[test]
fn every_kind_of_record_is_told_in_every_format_as_its_golden_file_says() {
    for record in RECORDS {
        for format in FORMATS {
            insta::assert_snapshot!(format!("{record}.{format}"), report(record, format));
        }
    }
}

#[test]
fn a_mail_fits_into_72_columns_of_ascii() {
    for record in RECORDS {
        let mail = report(record, "mail");
        for line in mail.lines() {
            assert!(line.len() <= 72 && line.is_ascii(), "{record}: {line}");
        }
        assert!(mail.lines().count() > 10, "{mail}");
    }
}

#[test]
fn a_figure_is_the_same_in_every_format() {
    for record in RECORDS {
        let json: Value = serde_json::from_str(&report(record, "json")).unwrap();
        let findings = json["records"][0]["findings"].as_array().unwrap();
        let rows: Vec<&Value> = findings.iter().flat_map(|finding| finding["table"].as_array().unwrap()).collect();
        assert!(!rows.is_empty(), "{json}");
        let csv = report(record, "csv");
        let others = ["text", "mail", "markdown", "html"].map(|format| report(record, format));
        for row in rows {
            let Some(ns) = row["ns"].as_f64() else { continue };
            assert!(csv.contains(&format!(",{},", row["ns"])), "{record}: {ns} in {csv}");
            let shown = [Some(format!("{ns:.2}")), row["delta_ns"].as_f64().map(|delta| format!("{delta:+.2}"))];
            for text in &others {
                for figure in shown.iter().flatten() {
                    assert!(text.contains(figure), "{record}: {figure} in {text}");
                }
            }
        }
    }
}

#[test]
fn what_was_printed_at_the_time_is_what_the_report_tells() {
    let (record, text) =
        (xdplab::record::Record::read(&folder().join("programs.json")).unwrap(), report("programs", "text"));
    assert!(text.ends_with(&xdplab::report::case_text(&record.environment, &record.cases[0])), "{text}");
}

#[test]
fn a_page_needs_nothing_else_and_runs_nothing() {
    for record in RECORDS {
        let page = report(record, "html");
        for never in ["<script", "http:", "https:", "src=", "href=", "@import", "url(", "onload", "<iframe", "<object"]
        {
            assert!(!page.contains(never), "{record}: {never}");
        }
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("prefers-color-scheme: dark"));
    }
}

/// Every text of a record with something else put before it.
fn prefix_texts(json: &mut Value, with: &str, keys: &[&str]) -> usize {
    match json {
        Value::Array(values) => values.iter_mut().map(|value| prefix_texts(value, with, keys)).sum(),
        Value::Object(fields) => {
            let mut changed = 0;
            for (key, value) in fields {
                changed += match value {
                    Value::String(text) if keys.contains(&key.as_str()) => {
                        *text = format!("{with}{text}");
                        1
                    }
                    Value::Array(texts) if key == "argv" || key == "notes" || key == "commands" => {
                        texts.push(with.into());
                        1
                    }
                    other => prefix_texts(other, with, keys),
                };
            }
            changed
        }
        _ => 0,
    }
}

#[test]
fn nothing_in_a_record_is_taken_for_markup_or_moves_the_cursor() {
    const EVIL: &str = "<script>alert(1)</script>\"'&|`*\u{1b}[2J\n\u{7f}";
    // Texts of a record that can be anything; the others have values of their own.
    const TEXTS: [&str; 16] = [
        "name",
        "variant",
        "candidate",
        "command",
        "value",
        "reason",
        "remedy",
        "release",
        "model_name",
        "version",
        "started",
        "label",
        "subject",
        "interface",
        "file",
        "of",
    ];
    let scratch = tempfile::tempdir().unwrap();
    for record in RECORDS {
        let text = fs::read(folder().join(record).with_extension("json")).unwrap();
        let mut json: Value = serde_json::from_slice(&text).unwrap();
        assert!(prefix_texts(&mut json, EVIL, &TEXTS) > 5);
        let path = scratch.path().join(record);
        fs::write(&path, serde_json::to_vec(&json).unwrap()).unwrap();
        for format in FORMATS {
            let told = printed(&["report", path.to_str().unwrap(), "--format", format]);
            let bad = told.chars().find(|c| c.is_control() && !"\r\n".contains(*c));
            assert_eq!(bad, None, "{record} as {format}");
            assert!(told.contains("alert"), "{record} as {format} does not show it: the test tests nothing");
            match format {
                "html" => assert!(!told.contains("<script") && told.contains("&lt;script&gt;alert(1)")),
                "markdown" => {
                    for line in told.lines().filter(|line| !line.contains('`')) {
                        assert!(!line.contains("<script"), "{line}");
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn several_records_are_one_report_and_can_go_to_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("report.html");
    let arguments = ["report", "programs.json", "live.json", "--format", "html", "-o", path.to_str().unwrap()];
    assert_eq!(printed(&arguments), "");
    let page = fs::read_to_string(&path).unwrap();
    assert!(page.contains("2 records, 2 results"), "{page}");
    let csv = printed(&["report", "programs.json", "settings.json", "--format", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    let fields = |line: &str| line.split(',').count();
    assert!(lines[0].starts_with("record,started,kind,title,failed_guards,variant,ns,"), "{csv}");
    assert!(lines.iter().any(|line| line.starts_with("settings.json,")), "{csv}");
    assert!(lines.iter().all(|line| line.contains('"') || fields(line) == fields(lines[0])), "{csv}");
    let nowhere = scratch.path().join("no such folder").join("report.html");
    let error = refusal(&["report", "programs.json", "-o", nowhere.to_str().unwrap()]);
    assert!(error.contains("ENOENT") && error.contains("no such folder"), "{error}");
}

#[test]
fn what_is_no_record_is_refused_in_one_line() {
    assert!(refusal(&["report", "absent.json"]).contains("absent.json"));
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("other.json");
    fs::write(&path, r#"{"schema": "xdplab.calibration/1"}"#).unwrap();
    let error = refusal(&["report", path.to_str().unwrap(), "--format", "html"]);
    assert!(error.contains("its schema is `xdplab.calibration/1`"), "{error}");
}

#[test]
fn rerun_refuses_what_it_can_not_or_must_not_repeat() {
    let error = refusal(&["rerun", "imported.json"]);
    assert!(error.contains("its results were imported"), "{error}");
    let error = refusal(&["rerun", "settings.json"]);
    assert!(error.contains("it would run shell commands") && error.contains("--run-commands"), "{error}");
    assert!(error.contains("ethtool -K"), "the commands are shown: {error}");
    assert!(refusal(&["rerun", "absent.json"]).contains("absent.json"));
}

/// A record of a live command can name any command line; only that of a live command is run.
#[test]
fn rerun_runs_no_other_command_out_of_a_record_of_a_live_one() {
    let text = fs::read(folder().join("live.json")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("live.json");
    for argv in
        [&["xdplab", "ab", "--baseline-cmd", "true", "--candidate-cmd", "true"][..], &["xdplab"], &["xdplab", "x"]]
    {
        let mut json: Value = serde_json::from_slice(&text).unwrap();
        json["live_runs"][0]["start"]["argv"] = argv.into();
        fs::write(&path, serde_json::to_vec(&json).unwrap()).unwrap();
        let error = refusal(&["rerun", path.to_str().unwrap()]);
        assert!(error.contains("not that of a live command"), "{argv:?}: {error}");
    }
}

#[test]
fn help_tells_commands_and_topics() {
    for topic in ["method", "verdicts", "guards", "placement", "variants", "records"] {
        let page = printed(&["help", topic]);
        assert!(page.starts_with("# ") && page.lines().count() > 8, "{page}");
        assert!(printed(&["--help"]).contains(topic), "{topic} is among the topics that --help names");
        assert!(page.lines().all(|line| line.chars().count() <= 110), "{topic}");
    }
    assert_eq!(printed(&["help", "Method"]), printed(&["help", "method"]));
    assert_eq!(printed(&["help", "ab"]), printed(&["ab", "--help"]));
    assert_eq!(printed(&["help", "pool", "bench"]), printed(&["pool", "bench", "--help"]));
    assert_eq!(printed(&["help"]), printed(&["--help"]));
    let error = refusal(&["help", "frobnication"]);
    assert!(error.contains("topics are method, verdicts"), "{error}");
}

#[test]
fn every_guard_has_a_line_on_the_page_about_guards() {
    let page = printed(&["help", "guards"]);
    let record = xdplab::record::Record::read(&folder().join("programs.json")).unwrap();
    let ids = record.cases[0].guards.iter().map(|guard| guard.id.as_str());
    for id in ids.chain(["slices-lost", "interrupted"]) {
        assert!(page.contains(&format!("| `{id}` |")), "{id}");
    }
}

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let listed = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    assert!(names.len() > 15 && names.contains(&"report".to_owned()), "{names:?}");
    names
}

#[test]
fn completions_for_every_shell_know_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("xdplab.bash");
    fs::write(&path, printed(&["completions", "bash"])).unwrap();
    let asked = format!(
        "source {}; COMP_WORDS=(xdplab rep); COMP_CWORD=1; _xdplab xdplab rep xdplab; echo ${{COMPREPLY[@]}}",
        path.display()
    );
    let output = Command::new("bash").args(["-c", &asked]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "report\n", "{:?}", String::from_utf8(output.stderr));
}

#[test]
fn every_command_has_a_manual_page_with_its_options() {
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("man");
    printed(&["man", to.to_str().unwrap()]);
    for command in commands() {
        let page = fs::read_to_string(to.join(format!("xdplab-{command}.1"))).unwrap().replace('\\', "");
        for word in printed(&[&command, "--help"]).split_whitespace().filter(|word| word.starts_with("--")) {
            let option = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            assert!(page.contains(option), "{command}: {option}");
        }
    }
    assert!(to.join("xdplab-pool-bench.1").exists());
    assert_eq!(printed(&["man"]), fs::read_to_string(to.join("xdplab.1")).unwrap());
}
