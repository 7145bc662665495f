//! The guest: xdplab as the first process of a kernel that counts instructions. It does what its plan says, tells it to the host
//! through a serial port, and ends the machine.

mod cases;
mod checks;
mod meter;
mod pktgen;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Command;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::{SetArg, cfmakeraw, tcdrain, tcgetattr, tcsetattr};
use rustix::mount::{MountFlags, mount};

use super::protocol::{EXIT_PORT, EXIT_VALUE, GuestPlan, Job, Line, MODULES, PLAN};
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::sys::guest::write_port;

/// Mounted in this order: what, where, and whether the guest can do without.
const MOUNTS: [(&str, &str, bool); 8] = [
    ("devtmpfs", "/dev", false),
    ("proc", "/proc", false),
    ("sysfs", "/sys", false),
    ("tmpfs", "/tmp", false),
    ("tmpfs", "/run", false),
    ("bpf", "/sys/fs/bpf", true),
    ("tracefs", "/sys/kernel/tracing", true),
    ("debugfs", "/sys/kernel/debug", true),
];
/// Settings: symbols with their addresses, and BPF programs among them.
const SETTINGS: [(&str, &str); 2] =
    [("/proc/sys/kernel/kptr_restrict", "0"), ("/proc/sys/net/core/bpf_jit_kallsyms", "1")];
/// How long the kernel has to do what it left for after the boot, such as checking its own cryptography. Where time is counted in
/// instructions, idle time takes none.
const SETTLE: Duration = Duration::from_secs(5);
/// The second serial port; the first is the console.
const PORT: &str = "/dev/ttyS1";

/// Does everything. When it is done the machine ends, so this only returns where it could not even begin.
///
/// # Errors
/// This is not the first process of a machine, or the host can't be told anything.
pub(crate) fn run() -> Result<()> {
    if std::process::id() != 1 {
        return Err(Error::usage("run as a guest", "this is not the first process of a machine")
            .remedy("xdplab kernels boots guests that do"));
    }
    for (kind, place, dispensable) in MOUNTS {
        let mounted = mount(kind, place, kind, MountFlags::empty(), None);
        if let Err(errno) = mounted.or_else(|errno| if dispensable { Ok(()) } else { Err(errno) }) {
            let errno = Errno::from_raw(errno.raw_os_error());
            return Err(Error::syscall(format!("mount {kind} on {place}"), "mount", errno));
        }
    }
    let mut host = Host::open()?;
    if let Err(error) = work(&mut host) {
        let log = error.log().map_or(String::new(), |log| format!(" {log}"));
        host.tell(&Line::Failed(format!("{error}{log}")))?;
    }
    host.tell(&Line::Done)?;
    host.drain()?;
    // Without an exit device, the power is switched off.
    let exit = write_port(EXIT_PORT, EXIT_VALUE);
    reboot(RebootMode::RB_POWER_OFF)
        .map_err(|errno| Error::syscall(format!("end the machine (ioperm: {exit:?})"), "reboot", errno))?;
    Ok(())
}

fn work(host: &mut Host) -> Result<()> {
    let what = format!("read the plan /{PLAN}");
    let text = fs::read(format!("/{PLAN}")).map_err(|error| Error::io(&what, "read", &error))?;
    let plan: GuestPlan = serde_json::from_slice(&text).map_err(|error| Error::invalid(&what, error.to_string()))?;
    plan.modules.iter().try_for_each(|name| load_module(name))?;
    for (path, value) in SETTINGS {
        // A kernel without the setting has nothing to set.
        fs::write(path, value).unwrap_or_default();
    }
    host.tell(&Line::Booted(Box::new(Environment::read())))?;
    match plan.job {
        Job::Count { cases, packets, symbols } => {
            std::thread::sleep(SETTLE);
            // Programs stay loaded until their symbols are read.
            let mut kept = Vec::new();
            for case in cases {
                let rounds = cases::count(case, packets, &mut kept).map_err(|error| error.to_string());
                host.tell(&Line::Counted { case, rounds })?;
            }
            if symbols { send_symbols(host) } else { Ok(()) }
        }
        Job::Check(checks) => checks.into_iter().try_for_each(|check| {
            let outcome = checks::run(check).map_err(|error| error.to_string());
            host.tell(&Line::Checked { check, outcome })
        }),
        Job::Execute { command, environment } => execute(&command, environment, host),
    }
}

fn load_module(name: &str) -> Result<()> {
    let path = format!("/{MODULES}/{name}");
    let what = format!("load the module {name}");
    let file = File::open(&path).map_err(|error| Error::io(&what, "open", &error))?;
    match finit_module(&file, &CString::default(), ModuleInitFlags::empty()) {
        // Built in after all.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(Error::syscall(what, "finit_module", errno)),
    }
}

fn send_symbols(host: &mut Host) -> Result<()> {
    let what = "send the kernel's symbols";
    let text = fs::read("/proc/kallsyms").map_err(|error| Error::io(what, "read", &error))?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = packed.write_all(&text).and_then(|()| packed.finish());
    let packed = packed.map_err(|error| Error::io(what, "write", &error))?;
    host.tell(&Line::Symbols { bytes: packed.len() })?;
    host.send(&packed)
}

/// Runs a program and sends the lines that it prints, on standard output and standard error, in their order.
fn execute(command: &[String], environment: Vec<(String, String)>, host: &mut Host) -> Result<()> {
    let [program, arguments @ ..] = command else { return Err(Error::usage("run a program", "none is named")) };
    let what = format!("run {program}");
    let io = |call| {
        let what = what.clone();
        move |error| Error::io(what, call, &error)
    };
    let (reader, writer) = std::io::pipe().map_err(io("pipe"))?;
    let second = writer.try_clone().map_err(io("dup"))?;
    let mut child = Command::new(program)
        .args(arguments)
        .envs([("PATH", "/bin:/usr/bin:/sbin:/usr/sbin"), ("HOME", "/root"), ("TMPDIR", "/tmp")])
        .envs(environment)
        .stdout(writer)
        .stderr(second)
        .spawn()
        .map_err(io("execve"))?;
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).map_err(io("read"))? > 0 {
        host.tell(&Line::Output(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned()))?;
        line.clear();
    }
    let status = child.wait().map_err(io("wait4"))?;
    let exited = status.code().and_then(|code| u8::try_from(code).ok()).ok_or_else(|| status.to_string());
    host.tell(&Line::Exited(exited))
}

/// The serial port to the host.
struct Host(File);

impl Host {
    fn open() -> Result<Self> {
        let what = format!("tell the host through {PORT}");
        let port = OpenOptions::new().write(true).open(PORT).map_err(|error| Error::io(&what, "open", &error))?;
        let raw = |port: &File| {
            let mut settings = tcgetattr(port)?;
            cfmakeraw(&mut settings);
            tcsetattr(port, SetArg::TCSANOW, &settings)
        };
        raw(&port).map_err(|errno| Error::syscall(what, "tcsetattr", errno))?;
        Ok(Self(port))
    }

    fn tell(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line).map_err(|error| Error::invalid("tell the host", error.to_string()))?;
        text.push(b'\n');
        self.send(&text)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(|error| Error::io("tell the host", "write", &error))
    }

    /// Waits until everything is out of the port.
    fn drain(&self) -> Result<()> {
        tcdrain(&self.0).map_err(|errno| Error::syscall("tell the host", "tcdrain", errno))
    }
}
