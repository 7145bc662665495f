//! Settings taken in turn by commands.

use std::fs;
use std::sync::atomic::AtomicBool;

use libtest_mimic::Trial;
use xdplab::device::{Action, Operation, ProgramSpec};
use xdplab::run::{Plan, Progress};
use xdplab::settings::{self, SettingsPlan};
use xdplab::topology::Placement;
use xdplab::verdict::Verdict;

use crate::support::{NETNS, SHELL, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("settings::commands_run_in_turn_where_the_device_is_and_things_are_put_back", &[&NETNS, &SHELL], in_turn),
        test("settings::a_command_that_fails_is_one_line_and_things_are_put_back", &[&NETNS, &SHELL], failing),
    ]
}

struct Silent;

impl Progress for Silent {
    fn stage(&mut self, _name: &str) {}
    fn sampling(&mut self, _seconds: f64, _of: f64, _slices: usize) {}
}

fn plan(commands: &[String], restore: &str) -> SettingsPlan {
    let program = ProgramSpec::new(Action::Drop, Operation::NoTouch).into();
    let run = Plan::new("settings", program, Vec::new(), Placement::same().unwrap(), 1);
    SettingsPlan {
        run: Plan { seconds: 1.0, ..run },
        commands: commands.to_vec(),
        restore: Some(restore.to_owned()),
        settle_s: 0.02,
        visit_s: 0.05,
    }
}

fn in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    // The interface is the device under test's: the command sees it in its own namespace.
    let command = |name: &str| format!("grep -q $XDPLAB_IFACE: /proc/self/net/dev && echo {name} >> {}", log.display());
    let plan = plan(&[command("a"), command("b")], &command("restored"));
    let case = settings::compare(&plan, &mut Silent, &AtomicBool::new(false)).unwrap();
    let log = fs::read_to_string(&log).unwrap();
    let count = |name: &str| log.lines().filter(|line| *line == name).count();
    assert!(count("b") >= 2, "{log}");
    assert_eq!(count("a"), 2 * count("b"), "the baseline is its own control: {log}");
    assert_eq!((count("restored"), log.lines().last()), (1, Some("restored")));
    assert_eq!(case.visits.len(), count("a") + count("b"));
    assert!(case.visits.iter().all(|visit| visit.slices > 0 && visit.ns > 0.0), "{:?}", case.visits);
    assert_eq!(case.observed.ledger.residuals().iter().map(|(_, left)| *left).collect::<Vec<_>>(), [0; 4]);
    assert!(case.control.is_some() && case.comparisons.len() == 1);
    assert!(!matches!(case.comparisons[0].verdict, Verdict::Equivalent { .. }), "no margin was given");
}

fn failing() {
    let folder = tempfile::tempdir().unwrap();
    let restored = folder.path().join("restored");
    let plan = plan(
        &["true".to_owned(), "echo first; echo no such thing >&2; exit 3".to_owned()],
        &format!("touch {}", restored.display()),
    );
    let error = settings::compare(&plan, &mut Silent, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("exit status: 3: no such thing; it runs in the namespace"), "{error}");
    assert!(!error.contains('\n') && restored.exists());
}
