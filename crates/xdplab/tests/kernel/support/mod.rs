//! Tests that say what they need, and what is said when it is not there.

pub(crate) mod capture;
pub(crate) mod child;
pub(crate) mod held;
pub(crate) mod needs;
pub(crate) mod tap;
pub(crate) mod xdp;

use std::collections::BTreeMap;
use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
pub(crate) use needs::{
    BPF, NAPI_LIST, NETNS, Need, PKTGEN, Probe, REAL_TIME, RETURNS_BY_OTHERS, SHELL, TAP, TWO_CPUS, XDP_FEATURES,
    XSK_FRAGS, is_before, refuses_redirects_to_deaf_peers,
};

/// Set to 1 where every test must run that the kernel is able to run.
const REQUIRE: &str = "XDPLAB_REQUIRE_KERNEL_TESTS";

/// Set to 1 where QEMU plays the machine, as `cargo xtask vm-test` does.
const EMULATED: &str = "XDPLAB_EMULATED";

/// How many tests were ignored for each reason.
static IGNORED: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Whether QEMU plays the machine: everything takes many times as long, and times mean nothing.
pub(crate) fn emulated() -> bool {
    env::var(EMULATED).is_ok_and(|value| value == "1")
}

/// So many seconds, or as many more as it takes emulated to get as far, for a command line.
pub(crate) fn seconds(seconds: f64) -> String {
    (if emulated() { 4.0 * seconds } else { seconds }).to_string()
}

/// How long something may take that should take so many seconds at most.
pub(crate) fn patience(seconds: u64) -> Duration {
    Duration::from_secs(if emulated() { 12 * seconds } else { seconds })
}

/// A test called `name` that runs where all its needs are met; it fails by panicking.
pub(crate) fn test(name: &'static str, needs: &'static [&'static Need], body: fn()) -> Trial {
    Trial::ignorable_test(name, move || match unmet(needs) {
        None => {
            body();
            Ok(Completion::Completed)
        }
        Some((reason, kernel_lacks)) => {
            if !kernel_lacks && env::var(REQUIRE).is_ok_and(|value| value == "1") {
                return Err(Failed::from(format!("{REQUIRE}=1, but it can't run: {reason}")));
            }
            *IGNORED.lock().unwrap_or_else(PoisonError::into_inner).entry(reason.clone()).or_default() += 1;
            Ok(Completion::ignored_with(reason))
        }
    })
}

/// The first need that is not met: why, and whether the kernel is to blame.
fn unmet(needs: &[&Need]) -> Option<(String, bool)> {
    needs.iter().find_map(|need| match (need.probe)() {
        Probe::Met => None,
        Probe::Prevented(why) => Some((format!("needs {}: {why}", need.name), false)),
        Probe::Lacking(why) => Some((format!("needs {}, which is not to be had here: {why}", need.name), true)),
    })
}

/// Runs the tests, and ends with how many were ignored and why.
pub(crate) fn run(arguments: &Arguments, tests: Vec<Trial>) -> ExitCode {
    let conclusion = libtest_mimic::run(arguments, tests);
    let ignored = IGNORED.lock().unwrap_or_else(PoisonError::into_inner);
    for (reason, count) in ignored.iter() {
        println!("{count} ignored: {reason}");
    }
    conclusion.exit_code()
}

/// The tests of this module itself.
pub(crate) fn tests() -> Vec<Trial> {
    vec![test("support::without_rights_a_test_is_ignored_with_the_reason_or_fails", &[&NETNS], without_rights)]
}

/// Runs one of the tests as a user without rights.
fn without_rights() {
    const NOBODY: u32 = 65_534;
    let run = |require| {
        let output = Command::new("/proc/self/exe")
            .args(["--exact", "topology::two_labs_stand_side_by_side"])
            .env(REQUIRE, require)
            .uid(NOBODY)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (success, output) = run("0");
    assert!(success, "{output}");
    assert!(output.contains("0 passed; 0 failed; 1 ignored"), "{output}");
    let reason = "needs network namespaces: can't make a network namespace: unshare(CLONE_NEWNET): EPERM";
    assert!(output.contains(&format!("ignored ({reason}")), "{output}");
    assert!(output.contains(&format!("1 ignored: {reason}")), "{output}");
    let (success, output) = run("1");
    assert!(!success, "{output}");
    assert!(output.contains("XDPLAB_REQUIRE_KERNEL_TESTS=1, but it can't run: needs network namespaces"), "{output}");
}

/// Waits until `condition` holds; panics with `what` if it does not within `seconds`.
pub(crate) fn eventually(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience(seconds);
    while !condition() {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
