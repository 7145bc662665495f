//! The script, kernels that it boots, and a program for guests.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Each kernel names its folder. What is in there happens: `result`, or `result.N` in its Nth boot, comes out of the second serial
/// port, `checks` where nothing is counted, `console` out of the first; the plugin writes `profile`; and QEMU ends with the status
/// in `exit`, unless there is a `hang`.
const QEMU: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "QEMU emulator version 7.2.22 (script)"; exit; }
result=checks
while [ $# -gt 0 ]; do
    case $1 in
        -kernel) folder=$(grep -a '^folder=' "$2" | cut -d= -f2-);;
        -icount) result=result;;
        file:*console) to_console=${1#file:};;
        file:*result) to_result=${1#file:};;
        *,out=*) to_profile=${1##*,out=};;
    esac
    shift
done
number=1
until mkdir "$folder/boot.$number" 2>/dev/null; do number=$((number + 1)); done
echo $$ > "$folder/boot.$number/.pid" && mv "$folder/boot.$number/.pid" "$folder/boot.$number/pid"
[ -e "$folder/hang" ] && exec sleep 1000
mkdir "${0%/*}/running.$$"
ls -d "${0%/*}"/running.* | wc -l >> "${0%/*}/at_a_time"
[ -e "$folder/slow" ] && sleep 0.5
rmdir "${0%/*}/running.$$"
[ -e "$folder/$result.$number" ] && result=$result.$number
cat "$folder/$result" > "$to_result"
cat "$folder/console" > "$to_console"
[ -n "$to_profile" ] && cat "$folder/profile" > "$to_profile"
exit "$(cat "$folder/exit")"
"#;

/// What a kernel's configuration must say, with everything built in.
pub(crate) const CONFIG: &str = "CONFIG_64BIT=y\nCONFIG_BINFMT_ELF=y\nCONFIG_BLK_DEV_INITRD=y\nCONFIG_DEVTMPFS=y\n\
    CONFIG_SERIAL_8250_CONSOLE=y\nCONFIG_PROC_FS=y\nCONFIG_SYSFS=y\nCONFIG_TMPFS=y\n\
    CONFIG_FUTEX=y\nCONFIG_ETHTOOL_NETLINK=y\nCONFIG_NET_NS=y\nCONFIG_INET=y\nCONFIG_BPF_SYSCALL=y\n\
    CONFIG_VETH=y\nCONFIG_NET_PKTGEN=y\n";

/// A folder with the script, in front of `PATH`.
pub(crate) struct Lab(pub(crate) TempDir);

/// A kernel, and what its guests do.
pub(crate) struct Kernel {
    pub(crate) package: PathBuf,
    folder: PathBuf,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let lab = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(lab.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
        lab.script("qemu-system-x86_64", QEMU);
        fs::write(lab.path("guest"), static_program()).unwrap();
        lab
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn script(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// An unpacked package whose guests end well, and print nothing but that.
    pub(crate) fn kernel(&self, release: &str) -> Kernel {
        let (package, folder) = (self.path(release), self.path(&format!("{release}.guests")));
        fs::create_dir_all(package.join("boot")).unwrap();
        fs::write(package.join(format!("boot/vmlinuz-{release}")), image(release, &folder)).unwrap();
        fs::write(package.join(format!("boot/config-{release}")), CONFIG).unwrap();
        let kernel = Kernel { package, folder };
        kernel.guests();
        kernel
    }

    /// What the guests of a kernel do that is still to be built.
    pub(crate) fn guests_of(&self, release: &str) -> Kernel {
        let folder = self.path(&format!("{release}.guests"));
        fs::write(self.path(&format!("{release}.image")), image("6.12.0", &folder)).unwrap();
        let kernel = Kernel { package: PathBuf::new(), folder };
        kernel.guests();
        kernel
    }

    /// xdplab with the script's folder in front of `PATH`.
    pub(crate) fn xdplab(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xdplab"));
        let path = std::env::var("PATH").unwrap();
        command.arg("kernels").args(arguments).env("PATH", format!("{}:{path}", self.0.path().display()));
        command
    }

    /// A comparison of live-drop.
    pub(crate) fn compare(&self, baseline: &Kernel, candidate: &Kernel, arguments: &[&str]) -> Command {
        let mut command = self.xdplab(&["--baseline"]);
        command.arg(&baseline.package).arg("--candidate").arg(&candidate.package).args(["--case", "live-drop"]);
        command.arg("--guest").arg(self.path("guest")).arg("--record").arg(self.path("record.json")).args(arguments);
        command
    }

    pub(crate) fn record(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("record.json")).unwrap()).unwrap()
    }
}

impl Kernel {
    fn guests(&self) {
        fs::create_dir_all(&self.folder).unwrap();
        fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o777)).unwrap();
        self.does("console", "Linux version 6\n").does("exit", "33").does("checks", "\"done\"\n").counts(100);
    }

    pub(crate) fn does(&self, what: &str, content: impl AsRef<[u8]>) -> &Self {
        fs::write(self.folder.join(what), content).unwrap();
        self
    }

    /// Every packet of live-drop takes so many instructions.
    pub(crate) fn counts(&self, per_packet: u64) -> &Self {
        self.does("result", lines(&[counted(per_packet), json!("done")]))
    }

    pub(crate) fn boots(&self) -> usize {
        fs::read_dir(&self.folder).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
    }

    /// The process of the first boot, as soon as there is one.
    pub(crate) fn process(&self) -> PathBuf {
        let begin = Instant::now();
        loop {
            if let Ok(pid) = fs::read_to_string(self.folder.join("boot.1/pid")) {
                return Path::new("/proc").join(pid.trim());
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "nothing was booted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lines that a guest writes.
pub(crate) fn lines(lines: &[Value]) -> Vec<u8> {
    lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect()
}

/// Rounds of live-drop: in all but one something else came between, and the first is far off.
pub(crate) fn counted(per_packet: u64) -> Value {
    let call = |packets: u64, beside: u64| {
        let instructions = 7000 + beside + packets * per_packet;
        json!({"packets": packets, "instructions": instructions, "ksoftirqd": 0, "kernel_ns": 1, "timer_interrupts": 0})
    };
    let rounds =
        [90_000, 3000, 0, 0, 0, 4000].map(|beside| json!({"short": call(1024, beside), "long": call(5120, beside)}));
    json!({"counted": {"case": "live-drop", "rounds": {"Ok": rounds}}})
}

/// A guest's symbols: the line that announces them, and the bytes.
pub(crate) fn symbols(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    [lines(&[json!({"symbols": {"bytes": packed.len()}})]), packed].concat()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a command that ended with this status said on standard output and standard error.
pub(crate) fn ended(output: &Output, status: i32) -> (String, String) {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

/// Whether it is gone, or at least dead: a container's first process may not reap.
pub(crate) fn is_gone(process: &Path) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        if stat.is_empty() || stat.rsplit(") ").next().is_some_and(|state| state.starts_with('Z')) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// The least that is read of a kernel's image (Documentation/arch/x86/boot.rst).
fn image(release: &str, folder: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 0x400];
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    let text = format!("{release} (builder@host) #1 SMP");
    bytes[0x300..0x300 + text.len()].copy_from_slice(text.as_bytes());
    bytes.extend(format!("\nfolder={}\n", folder.display()).bytes());
    bytes
}

/// The smallest program without an interpreter: the ELF header and one segment, elf(5).
fn static_program() -> Vec<u8> {
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    elf.extend([2_u16, 62].map(u16::to_le_bytes).concat());
    elf.extend(1_u32.to_le_bytes());
    elf.extend([0, 64, 0_u64].map(u64::to_le_bytes).concat());
    elf.extend(0_u32.to_le_bytes());
    elf.extend([64_u16, 56, 1, 64, 0, 0].map(u16::to_le_bytes).concat());
    elf.extend([1_u32, 5].map(u32::to_le_bytes).concat());
    elf.extend([0, 0x40_0000, 0x40_0000, 120, 120, 4096_u64].map(u64::to_le_bytes).concat());
    elf
}
