//! The command line while it measures: what it prints, how it ends, and that it leaves nothing.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::unistd::Pid;
use xdplab::record::Record;
use xdplab::verdict::Verdict;

use crate::counts::lab;
use crate::live::{Live, command};
use crate::support::child::Actor;
use crate::support::held::Held;
use crate::support::{BPF, NETNS, eventually, patience, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("cli::the_demo_prints_verdicts_and_writes_a_record", &[&NETNS, &BPF], demo),
        test("cli::an_interrupted_demo_ends_soon_and_leaves_nothing", &[&NETNS, &BPF], interrupted),
        test("cli::a_second_interrupt_ends_it_at_once", &[&NETNS, &BPF], interrupted_twice),
        test("cli::a_command_that_is_ended_before_it_begins_observes_nothing", &[&NETNS, &BPF], ended_first),
        test("cli::a_demo_whose_reader_has_gone_away_still_writes_its_record", &[&NETNS, &BPF], reader_gone),
    ]
}

/// Reading this kernel's types takes longer than all else that a command does before it counts.
fn ended_first() {
    let lab = lab(1);
    for args in [
        &["drop", "dut0", "--json"][..],
        &["redirect-cpu", "dut0", "-c", "0", "--json"],
        &["xsk-drop", "dut0", "--json"],
    ] {
        let mut command = command(args);
        with_signal(&mut command);
        let ended = Live::spawn(&lab.dut, command).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains("ended before it observed anything"), "{args:?}: {}", ended.stdout);
    }
}

/// Has the command start with a SIGINT that waits.
#[expect(unsafe_code, reason = "what runs between fork and exec must not allocate")]
fn with_signal(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    let interrupt = || {
        SigSet::from(Signal::SIGINT).thread_block()?;
        Ok(raise(Signal::SIGINT)?)
    };
    // SAFETY: two system calls that are safe after a fork (signal-safety(7)), on values that need no memory of the heap.
    unsafe { command.pre_exec(interrupt) };
}

fn xdplab(seconds: &str, record: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xdplab"));
    command.args(["demo", "--seconds", seconds, "--record"]).arg(record);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn demo() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    let output = xdplab("0.5", &path).args(["--seed", "5"]).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress line where nobody watches");
    assert!(!stdout.contains(|byte: char| byte.is_control() && byte != '\n'), "{stdout:?}");

    let record = Record::read(&path).unwrap();
    let [case] = &record.cases[..] else { panic!("{} cases", record.cases.len()) };
    assert_eq!(record.tool.argv[1..4], ["demo", "--seconds", "0.5"]);
    assert_eq!((case.plan.seed, case.plan.seconds, case.observed.interrupted), (5, 0.5, false));
    assert!(case.observed.ledger.residuals().iter().all(|(_, residual)| *residual == 0), "{:?}", case.observed.ledger);
    assert_eq!(case.comparisons.len(), 3);
    for compared in &case.comparisons {
        let row = stdout.lines().find(|line| line.trim_start().starts_with(&compared.candidate)).unwrap();
        let word = match compared.verdict {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::Equivalent { .. } => "equivalent",
            Verdict::Inconclusive { .. } => "inconclusive",
        };
        assert!(row.contains(word), "{row}");
    }
    assert!(stdout.contains(path.to_str().unwrap()), "it says where the record is: {stdout}");
    // The report is the record's, nothing else.
    assert!(stdout.starts_with(&xdplab::report::case_text(&record.environment, case)));
}

/// A demo that would take half a minute, once it sends.
fn sending(record: &Path) -> Actor {
    let demo = Actor(xdplab("30", record).spawn().unwrap());
    let tasks = format!("/proc/{}/task", demo.id());
    eventually("the generator runs", 20, || {
        let mut tasks = fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("comm"));
        tasks.any(|comm| fs::read_to_string(comm).is_ok_and(|name| name.starts_with("generator/")))
    });
    std::thread::sleep(Duration::from_millis(700));
    demo
}

fn interrupt(demo: &Actor, signal: Signal) {
    kill(Pid::from_raw(demo.id().cast_signed()), signal).unwrap();
}

fn interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    let mut first = sending(&path);
    let held = Held::by(first.id());
    let asked = Instant::now();
    interrupt(&first, Signal::SIGINT);
    let status = first.wait().unwrap();
    let took = asked.elapsed();
    println!("the demo ended {took:?} after SIGINT");
    assert!(took < patience(6), "{took:?}");
    assert!(status.success(), "{status}");
    held.is_gone();
    let record = Record::read(&path).unwrap();
    assert!(record.cases[0].observed.interrupted && record.cases[0].observed.seconds < 25.0);

    let second = xdplab("0.2", &path).output().unwrap();
    assert!(second.status.success(), "{second:?}");
    assert!(!Record::read(&path).unwrap().cases[0].observed.interrupted);
}

fn interrupted_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = sending(&folder.path().join("record.json"));
    let held = Held::by(demo.id());
    // Two of a kind that come before the first is handled would be one.
    interrupt(&demo, Signal::SIGINT);
    interrupt(&demo, Signal::SIGTERM);
    let status = demo.wait().unwrap();
    assert!([Some(130), Some(143)].contains(&status.code()), "{status}");
    held.is_gone();
}

fn reader_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let output = xdplab("0.2", &path).stdout(writer).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(Record::read(&path).unwrap().cases.len(), 1);
}
