//! One boot: QEMU with its command line, watched until it ends or its time is over, and what its end means.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::instrument::Qemu;
use super::protocol::{EXIT_PORT, EXIT_VALUE, Line};
use crate::error::{Error, Result};
use crate::sys::child::{Running, Waited};

/// How often there is a look at what a guest has written, where somebody hears it.
const HEAR_EVERY: Duration = Duration::from_millis(50);
/// Lines of the console that are kept of a guest that failed, and how many of them come before the first trace of a crash.
const CONSOLE_LINES: usize = 25;
const LINES_BEFORE: usize = 8;
/// How the kernel begins to tell that it met a bug.
const TRACES: [&str; 4] = ["Kernel panic", "BUG: ", "Oops: ", "kernel BUG at"];

/// What to boot.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    pub(super) qemu: &'a Qemu,
    pub(super) kernel: &'a Path,
    pub(super) initramfs: &'a Path,
    /// Count instructions in place of time, with everything pinned that could differ from boot to boot.
    pub(super) counted: bool,
    /// The profiling plugin, which writes to [`Finished::profile`].
    pub(super) plugin: Option<&'a Path>,
    /// They take turns on one CPU of the host: with a thread for each, QEMU 7.2 has been seen to run code that the guest's kernel
    /// had just patched.
    pub(super) cpus: u16,
    pub(super) memory_mib: u32,
    pub(super) timeout: Duration,
}

/// Is given the lines of a guest as they come.
pub(super) type Hear<'a> = &'a mut dyn FnMut(&Line) -> Result<()>;

/// What a boot left.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) outcome: Outcome,
    pub(super) lines: Vec<Line>,
    /// `/proc/kallsyms`, gzipped, where the guest sent it.
    pub(super) symbols: Option<Vec<u8>>,
    /// What the plugin wrote.
    pub(super) profile: Option<String>,
    pub(super) wall: Duration,
}

/// How a boot ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The guest did everything and said so.
    Finished,
    /// The guest gave up.
    GaveUp {
        /// Its reason.
        why: String,
    },
    /// The kernel panicked or met a bug.
    Crashed {
        /// The end of its console.
        console: Vec<String>,
    },
    /// The machine ended without a word.
    EndedEarly {
        /// The end of its console.
        console: Vec<String>,
    },
    /// The guest ended as if all was well, but its last lines did not arrive.
    OutputLost,
    /// It did not end in time, and was stopped.
    Hung {
        /// The time it had.
        seconds: u64,
        /// The end of its console.
        console: Vec<String>,
    },
    /// QEMU did not run the guest.
    QemuFailed {
        /// How it ended, and what it said.
        why: String,
    },
}

impl Outcome {
    /// What happened, in a line; `None` if all went well.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        Some(match self {
            Self::Finished => return None,
            Self::GaveUp { why } => format!("the guest gave up: {why}"),
            Self::Crashed { .. } => "the kernel crashed".into(),
            Self::EndedEarly { .. } => "the machine ended before the guest was done".into(),
            Self::OutputLost => "the guest ended well, but its output did not arrive whole".into(),
            Self::Hung { seconds, .. } => format!("it was not done after {seconds} s and was stopped"),
            Self::QemuFailed { why } => format!("QEMU failed: {why}"),
        })
    }

    /// The end of the console, where that says more.
    #[must_use]
    pub fn console(&self) -> &[String] {
        match self {
            Self::Crashed { console } | Self::EndedEarly { console } | Self::Hung { console, .. } => console,
            _ => &[],
        }
    }
}

impl Machine<'_> {
    /// Boots, and waits for the end.
    ///
    /// # Errors
    /// QEMU can't be started, the user interrupts, or who hears the lines has had enough. Everything that goes wrong inside is an
    /// [`Outcome`].
    pub(super) fn boot(&self, stop: &AtomicBool, hear: Option<Hear<'_>>) -> Result<Finished> {
        let folder = tempfile::tempdir().map_err(|error| Error::io("make a temporary folder", "mkdir", &error))?;
        let files = Files::of(&folder);
        let begin = Instant::now();
        let ended = self.run(&files, stop, hear)?;
        let wall = begin.elapsed();
        let (lines, symbols) = parse(&fs::read(&files.result).unwrap_or_default());
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        let outcome = classify(ended, &lines, &read(&files.console), &read(&files.stderr), self.timeout);
        let profile = self.plugin.map(|_| read(&files.profile));
        Ok(Finished { outcome, lines, symbols, profile, wall })
    }

    fn run(&self, files: &Files, stop: &AtomicBool, mut hear: Option<Hear<'_>>) -> Result<Option<ExitStatus>> {
        let what = || format!("run {}", self.qemu.program.display());
        let stderr = File::create(&files.stderr).map_err(|error| Error::io(what(), "open", &error))?;
        let mut command = Command::new(&self.qemu.program);
        command.args(self.arguments(files)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let mut running = Running::start(&mut command).map_err(|error| Error::io(what(), "execve", &error))?;
        let deadline = Instant::now() + self.timeout;
        let mut heard = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let waited =
                running.wait(left.min(HEAR_EVERY), stop).map_err(|error| Error::io(what(), "wait4", &error))?;
            if let Some(hear) = &mut hear {
                new_lines(&files.result, &mut heard).iter().try_for_each(hear)?;
            }
            match waited {
                Waited::Ended(status) => return Ok(Some(status)),
                Waited::Stopped => return Err(Error::interrupted("running a guest")),
                Waited::TimeIsOver if left <= HEAR_EVERY => return Ok(None),
                Waited::TimeIsOver => {}
            }
        }
    }

    fn arguments(&self, files: &Files) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let mut arguments: Vec<String> = [
            "-M",
            "q35",
            "-accel",
            "tcg,thread=single",
            "-cpu",
            self.qemu.cpu(),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]
        .map(str::to_owned)
        .to_vec();
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        add("-smp", self.cpus.to_string());
        add("-m", self.memory_mib.to_string());
        add("-kernel", path(self.kernel));
        add("-initrd", path(self.initramfs));
        add("-append", self.boot_parameters());
        add("-serial", format!("file:{}", escaped(&files.console)));
        add("-serial", format!("file:{}", escaped(&files.result)));
        add("-device", format!("isa-debug-exit,iobase={EXIT_PORT:#x},iosize=1"));
        if self.counted {
            add("-icount", "shift=0,sleep=off".into());
            add("-seed", "1".into());
            add("-rtc", "base=2024-01-01T00:00:00,clock=vm".into());
        }
        if let Some(plugin) = self.plugin {
            add("-plugin", format!("{},out={}", escaped(plugin), escaped(&files.profile)));
        }
        arguments
    }

    fn boot_parameters(&self) -> String {
        // What the kernel does not know become arguments of the first process: `guest`, and `nokaslr`, which is for the
        // code that unpacks the kernel.
        let mut parameters = "guest console=ttyS0 panic=-1 oops=panic quiet nokaslr".to_owned();
        if self.counted {
            // With instruction counting the TSC runs at 1 GHz exactly; what the kernel measures is off by some parts per
            // million. Accounting of interrupt time would take softirqs out of a thread's CPU time.
            parameters += " tsc_early_khz=1000000 tsc=noirqtime";
        } else {
            // The kernel waits for some interrupts of the timer, and panics where a busy host gives QEMU no time to send them.
            parameters += " no_timer_check";
        }
        parameters
    }
}

/// Commas separate options in QEMU's arguments, and are doubled in values.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

struct Files {
    console: PathBuf,
    result: PathBuf,
    stderr: PathBuf,
    profile: PathBuf,
}

impl Files {
    fn of(folder: &TempDir) -> Self {
        let file = |name| folder.path().join(name);
        Self { console: file("console"), result: file("result"), stderr: file("stderr"), profile: file("profile") }
    }
}

/// The lines of a guest; those that are not whole are left out. The symbols stand between them as raw bytes.
fn parse(bytes: &[u8]) -> (Vec<Line>, Option<Vec<u8>>) {
    let (mut lines, mut symbols, mut rest) = (Vec::new(), None, bytes);
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = serde_json::from_slice::<Line>(&rest[..end]).ok();
        rest = &rest[end + 1..];
        if let Some(Line::Symbols { bytes }) = line {
            let Some(whole) = rest.get(..bytes) else { break };
            symbols = Some(whole.to_vec());
            rest = &rest[bytes..];
        }
        lines.extend(line);
    }
    (lines, symbols)
}

/// The lines that have come whole since the last look, which went up to `heard` bytes.
fn new_lines(path: &Path, heard: &mut u64) -> Vec<Line> {
    let mut bytes = Vec::new();
    let read = File::open(path)
        .and_then(|mut file| file.seek(SeekFrom::Start(*heard)).and_then(|_| file.read_to_end(&mut bytes)));
    // QEMU makes the file when it starts.
    let whole = read.ok().and_then(|_| bytes.iter().rposition(|byte| *byte == b'\n')).map_or(0, |end| end + 1);
    *heard += whole as u64;
    parse(&bytes[..whole]).0
}

/// What an end means. `ended` is `None` for a QEMU that was stopped.
///
/// The exit status alone says nothing: a kernel that panics with `-no-reboot` ends QEMU with 0, and a guest whose output was
/// lost ends it as one that did well.
fn classify(ended: Option<ExitStatus>, lines: &[Line], console: &str, stderr: &str, timeout: Duration) -> Outcome {
    let done = matches!(lines.last(), Some(Line::Done));
    if let Some(Line::Failed(why)) = lines.iter().find(|line| matches!(line, Line::Failed(_))) {
        return Outcome::GaveUp { why: why.clone() };
    }
    let tail = || excerpt(console);
    let crashed = TRACES.iter().any(|trace| console.contains(trace));
    match ended.map(|status| status.code()) {
        None => Outcome::Hung { seconds: timeout.as_secs(), console: tail() },
        // With an exit device the guest's value says that it got there; without one (no ioperm) it powers off.
        Some(Some(code)) if code == i32::from(EXIT_VALUE << 1 | 1) => {
            if done {
                Outcome::Finished
            } else {
                Outcome::OutputLost
            }
        }
        Some(Some(0)) if done => Outcome::Finished,
        Some(Some(0)) if crashed => Outcome::Crashed { console: tail() },
        Some(Some(0)) => Outcome::EndedEarly { console: tail() },
        Some(_) => {
            let status = ended.map_or(String::new(), |status| status.to_string());
            let said = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
            Outcome::QemuFailed { why: format!("{status}: {said}") }
        }
    }
}

/// What matters of a console: the first trace of a crash with what came before it, else the end.
fn excerpt(console: &str) -> Vec<String> {
    let printable = |line: &str| line.replace(|c: char| c.is_control() && c != '\t', "");
    let lines: Vec<String> = console.lines().map(printable).filter(|line| !line.is_empty()).collect();
    let trace = lines.iter().position(|line| TRACES.iter().any(|trace| line.contains(trace)));
    let last = lines.len().saturating_sub(CONSOLE_LINES);
    let first = trace.map_or(last, |trace| trace.saturating_sub(LINES_BEFORE));
    lines.into_iter().skip(first).take(CONSOLE_LINES).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::kernels::protocol::CheckName;

    fn end(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    fn judged(ended: Option<ExitStatus>, lines: &[Line], console: &str) -> Outcome {
        classify(ended, lines, console, "qemu: bad option\n\n", Duration::from_secs(7))
    }

    #[test]
    fn success_takes_the_exit_value_and_the_last_line() {
        assert_eq!(judged(end(33), &[Line::Done], ""), Outcome::Finished);
        assert_eq!(judged(end(33), &[Line::Output("x".into())], ""), Outcome::OutputLost);
        assert_eq!(judged(end(33), &[], ""), Outcome::OutputLost);
        assert_eq!(judged(end(0), &[Line::Done], ""), Outcome::Finished, "a kernel without ioperm powers off");
    }

    #[test]
    fn a_crash_a_hang_and_a_qemu_that_refuses_are_told_apart() {
        let panic = "[ 1.0] Kernel panic - not syncing: Attempted to kill init!\r\n\u{1b}[0m";
        let console = vec!["[ 1.0] Kernel panic - not syncing: Attempted to kill init!".into(), "[0m".into()];
        assert_eq!(judged(end(0), &[], panic), Outcome::Crashed { console });
        assert_eq!(judged(end(0), &[], "hello"), Outcome::EndedEarly { console: vec!["hello".into()] });
        assert_eq!(judged(None, &[Line::Done], ""), Outcome::Hung { seconds: 7, console: vec![] });
        let refused = judged(end(1), &[], "");
        assert!(refused.fault().unwrap().contains("qemu: bad option"), "{refused:?}");
        assert!(judged(Some(ExitStatus::from_raw(9)), &[], "").fault().unwrap().contains("signal: 9"));
        let gave_up = judged(end(33), &[Line::Failed("no veth".into()), Line::Done], "");
        assert_eq!(gave_up, Outcome::GaveUp { why: "no veth".into() });
    }

    #[test]
    fn of_a_long_console_the_begin_of_the_crash_is_kept() {
        let line = |number: usize| format!("line {number}\n");
        let calm: String = (0..100).map(line).collect();
        assert_eq!(excerpt(&calm).first().map(String::as_str), Some("line 75"));
        let crash = format!("{calm}Oops: 0000\n{calm}");
        let kept = excerpt(&crash);
        assert_eq!((kept[0].as_str(), kept[8].as_str(), kept.len()), ("line 92", "Oops: 0000", CONSOLE_LINES));
    }

    #[test]
    fn symbols_between_the_lines_are_taken_whole_or_not_at_all() {
        let line = |line: &Line| [serde_json::to_vec(line).unwrap(), b"\n".to_vec()].concat();
        let checked = Line::Checked { check: CheckName::AfXdp, outcome: Ok(()) };
        let whole = [line(&checked), line(&Line::Symbols { bytes: 4 }), b"a\n{}".to_vec(), line(&Line::Done)].concat();
        let (lines, symbols) = parse(&whole);
        assert_eq!(symbols.as_deref(), Some(b"a\n{}".as_slice()));
        assert!(matches!(lines.as_slice(), [Line::Checked { .. }, Line::Symbols { .. }, Line::Done]));
        let (lines, symbols) = parse(&whole[..whole.len() - line(&Line::Done).len() - 1]);
        assert_eq!((lines.len(), symbols), (1, None));
        assert!(parse(b"\xff\n{\"done\"").0.is_empty());
    }

    /// A stand-in for QEMU: a shell that is given QEMU's arguments.
    fn script(text: &str) -> (TempDir, Qemu) {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("qemu");
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        (folder, Qemu { program, version: "7.2.0".into() })
    }

    fn boot(qemu: &Qemu, timeout: Duration, stop: &AtomicBool) -> Result<Finished> {
        let (kernel, initramfs) = (Path::new("/k"), Path::new("/i"));
        Machine { qemu, kernel, initramfs, counted: true, plugin: None, cpus: 1, memory_mib: 1, timeout }
            .boot(stop, None)
    }

    #[test]
    fn a_guest_that_does_not_end_is_stopped_and_reaped_even_if_it_ignores_sigterm() {
        let (folder, qemu) = script(r#"trap "" TERM; echo $$ > "$0.pid"; while :; do sleep 0.05; done"#);
        let finished = boot(&qemu, Duration::from_millis(300), &AtomicBool::new(false)).unwrap();
        assert_eq!(finished.outcome, Outcome::Hung { seconds: 0, console: vec![] });
        let pid = fs::read_to_string(folder.path().join("qemu.pid")).unwrap();
        assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists(), "it is gone and reaped");
    }

    #[test]
    fn an_interrupt_ends_the_guest_and_is_an_error() {
        let (_folder, qemu) = script("exec sleep 100");
        let error = boot(&qemu, Duration::from_secs(100), &AtomicBool::new(true)).unwrap_err().to_string();
        assert_eq!(error, "interrupted: running a guest");
    }

    #[test]
    fn lines_are_heard_as_they_come_and_only_when_they_are_whole() {
        let text = r#"
            for argument; do case $argument in file:*result) result=${argument#file:};; esac; done
            printf '{"output":"first"}\n{"out' > "$result"
            while [ ! -e "$0.heard" ]; do sleep 0.02; done
            printf 'put":"second"}\n"done"\n' >> "$result"; exit 33"#;
        let (folder, qemu) = script(text);
        let mut heard = Vec::new();
        let mut hear = |line: &Line| {
            if let Line::Output(text) = line {
                heard.push(text.clone());
                fs::write(folder.path().join("qemu.heard"), "").unwrap();
            }
            Ok(())
        };
        let (kernel, initramfs, timeout) = (Path::new("/k"), Path::new("/i"), Duration::from_secs(20));
        let machine =
            Machine { qemu: &qemu, kernel, initramfs, counted: false, plugin: None, cpus: 2, memory_mib: 1, timeout };
        let finished = machine.boot(&AtomicBool::new(false), Some(&mut hear)).unwrap();
        assert_eq!((finished.outcome, heard), (Outcome::Finished, vec!["first".to_owned(), "second".to_owned()]));
        let mut enough = |_: &Line| Err(Error::interrupted("hearing"));
        assert!(machine.boot(&AtomicBool::new(false), Some(&mut enough)).is_err());
    }

    #[test]
    fn what_the_guest_wrote_is_read_and_everything_that_varies_is_pinned() {
        let text = r#"
            for argument; do
                case $argument in file:*result) printf '"done"\n' > "${argument#file:}";; esac
            done
            echo "$*" >&2; exit 33"#;
        let (_folder, qemu) = script(text);
        let finished = boot(&qemu, Duration::from_secs(20), &AtomicBool::new(false)).unwrap();
        assert_eq!(finished.outcome, Outcome::Finished);
        let (_folder, qemu) = script(r#"echo "$*" >&2; exit 1"#);
        let finished = boot(&qemu, Duration::from_secs(20), &AtomicBool::new(false)).unwrap();
        let arguments = finished.outcome.fault().unwrap();
        for pinned in [
            "-icount shift=0,sleep=off -seed 1 -rtc base=2024-01-01T00:00:00,clock=vm",
            "-cpu max,-erms,-fsrm -nodefaults -no-user-config",
            "-smp 1 ",
            "guest console=ttyS0 panic=-1 oops=panic quiet nokaslr tsc_early_khz=1000000 tsc=noirqtime",
        ] {
            assert!(arguments.contains(pinned), "{pinned}: {arguments}");
        }
    }
}
