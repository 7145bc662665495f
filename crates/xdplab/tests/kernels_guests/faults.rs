//! What can go wrong: each is told in a line, with the end of the console, and nothing is left running.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::json;

use crate::lab::{CONFIG, Lab, counted, ended, is_gone, lines, text};

/// A comparison whose candidate's guests do this; what is said on standard output and standard error.
fn told(does: &[(&str, &str)]) -> (String, String) {
    let lab = Lab::new();
    let (good, bad) = (lab.kernel("6.1.0"), lab.kernel("6.12.0"));
    for (what, content) in does {
        bad.does(what, content);
    }
    let told = ended(&lab.compare(&good, &bad, &[]).output().unwrap(), 2);
    assert_eq!(told.1.lines().count(), 1, "{}", told.1);
    let boots = &lab.record()["kernels"][0]["kernels"];
    assert_eq!(boots[0]["boots"][0]["outcome"], "finished", "what was counted is kept");
    assert_ne!(boots[1]["boots"][0]["outcome"], "finished");
    told
}

#[test]
fn a_kernel_that_panics_or_meets_a_bug_is_told_with_its_trace() {
    for trace in ["Kernel panic - not syncing: Attempted to kill init!", "BUG: kernel NULL pointer", "Oops: 0000 [#1]"]
    {
        let console = format!("calm\n[ 1.5] {trace}\n[ 1.5] Call Trace: veth_poll\n");
        let (text, error) = told(&[("console", &console), ("result", ""), ("exit", "0")]);
        assert!(error.contains("the guest 6.12.0: the kernel crashed"), "{error}");
        assert!(text.contains("6.12.0: boot 1: the kernel crashed\n  | calm\n"), "{text}");
        assert!(text.contains(&format!("  | [ 1.5] {trace}\n  | [ 1.5] Call Trace: veth_poll\n")), "{text}");
        assert!(text.contains("candidate not available: the kernel crashed"), "{text}");
    }
}

#[test]
fn a_machine_that_ends_before_the_guest_is_done_is_no_success_whatever_its_status() {
    let (text, error) = told(&[("result", ""), ("exit", "0")]);
    assert!(error.contains("the machine ended before the guest was done"), "{error}");
    assert!(text.contains("  | Linux version 6"), "{text}");
}

#[test]
fn output_that_is_lost_is_no_success() {
    let whole = text(&lines(&[counted(100), json!("done")]));
    for lost in [&whole[..whole.len() - 2], &whole[..whole.len() / 2], ""] {
        let (_, error) = told(&[("result", lost)]);
        assert!(error.contains("the guest ended well, but its output did not arrive whole"), "{error}");
    }
}

#[test]
fn a_guest_that_gives_up_says_why() {
    let (said, _) = told(&[("result", &text(&lines(&[json!({"failed": "no veth"}), json!("done")])))]);
    assert!(said.contains("6.12.0: boot 1: the guest gave up: no veth"), "{said}");
}

#[test]
fn a_qemu_that_fails_is_told_by_its_own_words() {
    let (_, error) = told(&[("exit", "1")]);
    assert!(error.contains("QEMU failed: exit status: 1"), "{error}");
}

#[test]
fn a_guest_that_hangs_is_stopped_in_time_and_reaped() {
    let lab = Lab::new();
    let (good, hung) = (lab.kernel("6.1.0"), lab.kernel("6.12.0"));
    hung.does("hang", "");
    let begin = Instant::now();
    let (text, error) = ended(&lab.compare(&good, &hung, &["--timeout", "1"]).output().unwrap(), 2);
    assert!(error.contains("it was not done after 1 s and was stopped"), "{error}");
    assert!(text.contains("live-drop: candidate not available: it was not done after 1 s"), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert!(!hung.process().exists(), "it is reaped");
}

#[test]
fn a_signal_ends_the_guests_too() {
    for (signal, status) in [(Signal::SIGTERM, Some(2)), (Signal::SIGINT, Some(2)), (Signal::SIGKILL, None)] {
        let lab = Lab::new();
        let kernel = lab.kernel("6.1.0");
        kernel.does("hang", "");
        let mut command = lab.compare(&kernel, &kernel, &["--jobs", "1"]);
        let mut xdplab = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let process = kernel.process();
        kill(Pid::from_raw(xdplab.id().try_into().unwrap()), signal).unwrap();
        assert_eq!(xdplab.wait().unwrap().code(), status, "{signal}");
        assert!(is_gone(&process), "{signal}");
        let said = std::io::read_to_string(xdplab.stderr.take().unwrap()).unwrap();
        assert_eq!(said.contains("interrupted: running a guest"), status.is_some(), "{said}");
    }
}

#[test]
fn a_qemu_that_is_missing_is_told_with_its_debian_package() {
    let lab = Lab::new();
    let kernel = lab.kernel("6.1.0");
    let (_, error) = ended(&lab.compare(&kernel, &kernel, &[]).env("PATH", "/nonexistent").output().unwrap(), 2);
    assert!(error.contains("install QEMU; on Debian: apt-get install qemu-system-x86"), "{error}");
    lab.script("qemu-system-x86_64", "#!/bin/sh\necho 'QEMU emulator version 9.1.0'\n");
    let plugin = lab.path("guest");
    let output = lab.compare(&kernel, &kernel, &["--profile", plugin.to_str().unwrap()]).output().unwrap();
    let (_, error) = ended(&output, 2);
    assert!(
        error.contains("the plugin was tested with QEMU 7.2 only, and this is 9.1.0; leave --profile out"),
        "{error}"
    );
}

#[test]
fn a_kernel_of_another_architecture_or_without_a_needed_option_is_refused_before_anything_boots() {
    let lab = Lab::new();
    let (good, bad) = (lab.kernel("6.1.0"), lab.kernel("6.12.0"));
    let refused = || {
        let (text, error) = ended(&lab.compare(&good, &bad, &[]).output().unwrap(), 2);
        assert_eq!((text.as_str(), error.lines().count(), good.boots() + bad.boots()), ("", 1, 0), "{text}{error}");
        error
    };
    fs::write(bad.package.join("boot/config-6.12.0"), CONFIG.replace("CONFIG_BPF_SYSCALL=y\n", "")).unwrap();
    assert!(refused().contains("lacks CONFIG_BPF_SYSCALL (XDP programs are loaded)"));
    let mut arm = vec![0; 0x400];
    arm[56..60].copy_from_slice(b"ARM\x64");
    fs::write(bad.package.join("boot/vmlinuz-6.12.0"), arm).unwrap();
    assert!(refused().contains("it is for 64-bit Arm"));
    assert!(!lab.path("record.json").exists());
}

#[test]
fn there_are_never_more_guests_at_a_time_than_cpus() {
    let at_a_time = |jobs: &str| {
        let lab = Lab::new();
        let kernel = lab.kernel("6.1.0");
        kernel.does("slow", "");
        ended(&lab.compare(&kernel, &kernel, &["--boots", "3", "--jobs", jobs]).output().unwrap(), 0);
        let counts = fs::read_to_string(lab.path("at_a_time")).unwrap();
        assert_eq!(counts.lines().count(), 6);
        counts.lines().map(|line| line.trim().parse::<usize>().unwrap()).max().unwrap()
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(at_a_time("1"), 1);
    let most = at_a_time("60000");
    assert!(most <= cpus && (most > 1 || cpus == 1), "{most} at a time on {cpus} CPUs");
}

/// Where the tests run as root, as nobody.
#[test]
fn nothing_takes_root() {
    let lab = Lab::new();
    let kernel = lab.kernel("6.1.0");
    let program = lab.path("xdplab");
    fs::copy(env!("CARGO_BIN_EXE_xdplab"), &program).unwrap();
    let of_root = lab.compare(&kernel, &kernel, &[]);
    let mut command = std::process::Command::new(program);
    command.args(of_root.get_args()).envs(of_root.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let (text, _) = ended(&command.output().unwrap(), 0);
    assert!(text.contains("same"), "{text}");
}
