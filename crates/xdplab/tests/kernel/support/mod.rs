//! Tests that say what they need, and what is said when it is not there.

pub(crate) mod capture;
pub(crate) mod child;
pub(crate) mod held;
pub(crate) mod tap;
pub(crate) mod xdp;

use std::collections::BTreeMap;
use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nix::errno::Errno;
use xdplab::ErrorKind;
use xdplab::generator::{LiveFrames, LiveFramesSpec, Rewrite};
use xdplab::topology::NetNs;

/// Set to 1 where every test must run that the kernel is able to run.
const REQUIRE: &str = "XDPLAB_REQUIRE_KERNEL_TESTS";

/// How many tests were ignored for each reason.
static IGNORED: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Something that a test can't do without.
pub(crate) struct Need {
    pub(crate) name: &'static str,
    pub(crate) probe: fn() -> Probe,
}

/// Whether a need is met.
pub(crate) enum Probe {
    Met,
    /// This process can't do it: want of rights, a limit, anything that is a matter of how the tests are run.
    Prevented(String),
    /// The kernel or the machine can't do it, whoever asks.
    Lacking(String),
}

impl Probe {
    /// Judges an attempt: only the errors by which the kernel says that it does not know a thing count as its lack.
    pub(crate) fn of<T>(attempt: xdplab::Result<T>) -> Self {
        const UNKNOWN: [Errno; 5] =
            [Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::EINVAL, Errno::ENOENT, Errno::EAFNOSUPPORT];
        let Err(error) = attempt else { return Self::Met };
        let lacking = matches!(error.kind(), ErrorKind::Unsupported(_))
            || error.errno().is_some_and(|errno| UNKNOWN.contains(&errno));
        if lacking { Self::Lacking(error.to_string()) } else { Self::Prevented(error.to_string()) }
    }
}

/// Network namespaces can be made.
pub(crate) const NETNS: Need = Need { name: "network namespaces", probe: || Probe::of(NetNs::new()) };

/// XDP programs can be loaded, and the kernel makes live frames.
pub(crate) const BPF: Need = Need { name: "live frames", probe: || Probe::of(send_one()) };

/// Sends a frame to the loopback interface of an empty namespace, which takes none.
fn send_one() -> xdplab::Result<()> {
    let rewrite = Rewrite::default();
    let spec = LiveFramesSpec { frame: vec![0; 60], ifindex: 1, cpus: vec![0], batch: 1, count: Some(1), rewrite };
    LiveFrames::start(&spec, &NetNs::new()?)?.wait().map(|_sent| ())
}

/// There are tap interfaces.
pub(crate) const TAP: Need = Need {
    name: "tap interfaces",
    probe: || match std::fs::exists("/dev/net/tun") {
        Ok(true) => Probe::Met,
        _ => Probe::Lacking("there is no /dev/net/tun".to_owned()),
    },
};

/// The machine has two CPUs.
pub(crate) const TWO_CPUS: Need = Need {
    name: "two CPUs",
    probe: || match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() >= 2 => Probe::Met,
        _ => Probe::Lacking("there is one".to_owned()),
    },
};

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
        Probe::Lacking(why) => Some((format!("needs {}, which the kernel lacks: {why}", need.name), true)),
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
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
