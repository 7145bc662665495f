//! The kernel's own packet generator, module `pktgen`, by its files in `/proc/net/pktgen`
//! (Documentation/networking/pktgen.rst; the options are those of samples/pktgen there).

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::packet::{MacAddr, Vlan, VlanTag};
use crate::sys::interrupt;

/// Where the module's files are for the network namespace of the calling thread; /proc/net is that of the process's first one.
const FILES: &str = "/proc/thread-self/net/pktgen";
/// The first UDP source port of several flows, as in the samples.
const FIRST_SOURCE_PORT: u16 = 9;

/// How packets are given to the interface (`xmit_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum XmitMode {
    /// To the driver, past the queueing discipline
    StartXmit,
    /// Into the receive path, as if they had come in by the interface (Linux 4.2 and later)
    NetifReceive,
    /// To the queueing discipline (Linux 4.8 and later)
    QueueXmit,
}

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PktgenSpec {
    /// The interface.
    pub interface: String,
    /// Bytes of a frame without FCS.
    pub size: u32,
    /// Destination addresses from the first to the last.
    pub destination: (IpAddr, IpAddr),
    /// The destination's Ethernet address.
    pub dst_mac: MacAddr,
    /// UDP destination ports from the first to the last; `None`: pktgen's own.
    pub dst_ports: Option<(u16, u16)>,
    /// Fill in UDP checksums.
    pub udp_checksum: bool,
    /// VLAN tags.
    #[serde(default)]
    pub vlan: Vlan,
    /// Threads, each on the CPU of its number.
    pub threads: u32,
    /// The number of the first thread.
    pub first_thread: u32,
    /// How often a packet is sent again before another is made; 0 for never.
    pub clones: u32,
    /// Packets that a driver gets at once.
    pub burst: u32,
    /// Packets of each thread; 0 until stopped.
    pub count_per_thread: u64,
    /// Nanoseconds from packet to packet.
    pub delay_ns: u64,
    /// Packets a second of each thread; `None`: as the delay says.
    pub rate_pps: Option<u64>,
    /// UDP source ports at random, so many.
    pub flows: u16,
    /// How packets are given to the interface.
    pub mode: XmitMode,
}

/// What one thread has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PktgenCounts {
    /// Packets that the driver took.
    pub packets: u64,
    /// Attempts that it refused; pktgen tries again.
    pub errors: u64,
}

/// A thread's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PktgenResult {
    /// From start to stop, in microseconds.
    pub elapsed_us: u64,
    /// Of these, waiting for the time of the next packet or for the driver.
    pub idle_us: u64,
    /// Packets that the driver took.
    pub packets: u64,
    /// Bytes of each, without FCS.
    pub size: u32,
    /// Fragments of each.
    pub frags: u32,
    /// Packets per second.
    pub pps: u64,
    /// Bits per second, FCS not counted.
    pub bps: u64,
    /// Attempts that the driver refused.
    pub errors: u64,
}

/// The module with our devices on its threads. Dropping it stops them and takes the devices away.
#[derive(Debug)]
pub struct Pktgen {
    files: Files,
    devices: Vec<String>,
    threads: Vec<String>,
    starter: Option<JoinHandle<Result<()>>>,
}

/// The module's files, or those of a test.
#[derive(Clone, Debug)]
struct Files(PathBuf);

impl Files {
    fn exist(&self) -> bool {
        self.0.join("pgctrl").exists()
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.0.join(name);
        fs::read_to_string(&path).map_err(|error| Error::io(format!("read {}", path.display()), "read", &error))
    }

    /// One command; the kernel answers a wrong one with an error, and says why in the file.
    fn command(&self, name: &str, command: &str) -> Result<()> {
        let path = self.0.join(name);
        let mut file = OpenOptions::new().append(true).open(&path).map_err(|error| {
            Error::io(format!("open {}", path.display()), "open", &error).remedy("run as root, with CAP_NET_ADMIN")
        })?;
        file.write_all(format!("{command}\n").as_bytes()).map_err(|error| {
            let said = fs::read_to_string(&path).unwrap_or_default();
            let said = said.lines().rev().find_map(|line| line.trim().strip_prefix("Result: ").map(str::to_owned));
            Error::io(format!("tell pktgen {command:?} by {}", path.display()), "write", &error)
                .kernel_says(said.unwrap_or_default())
        })
    }
}

impl Pktgen {
    /// Gives every thread a device with these settings.
    ///
    /// # Errors
    /// The kernel has no pktgen or it is not loaded, devices are on its threads already, there is no such thread, or a
    /// setting was refused; then nothing is left behind.
    pub fn configure(spec: &PktgenSpec) -> Result<Self> {
        Self::configure_at(Files(FILES.into()), spec)
    }

    fn configure_at(files: Files, spec: &PktgenSpec) -> Result<Self> {
        let what = "send by the kernel's pktgen";
        if !files.exist() {
            let why = format!("{} is not there: the module is not loaded", files.0.display());
            return Err(Error::unsupported(what, why)
                .remedy("modprobe pktgen; if there is none, use a kernel with CONFIG_NET_PKTGEN"));
        }
        spec.check()?;
        for thread in threads(&files)? {
            if let Some(device) = devices_of(&files.read(&thread)?).first() {
                return Err(Error::invalid(what, format!("{thread} has the device {device} already")).remedy(
                    "pktgen starts all devices together; if they are not needed: echo reset > /proc/net/pktgen/pgctrl",
                ));
            }
        }
        let mut pktgen = Self { files, devices: Vec::new(), threads: Vec::new(), starter: None };
        for number in spec.first_thread..spec.first_thread + spec.threads {
            let (thread, device) = (format!("kpktgend_{number}"), format!("{}@{number}", spec.interface));
            if !pktgen.files.0.join(&thread).exists() {
                return Err(Error::usage(what, format!("there is no thread {thread}"))
                    .remedy("pktgen has a thread for each CPU: fewer threads, or a lower first one"));
            }
            pktgen.threads.push(thread.clone());
            pktgen.files.command(&thread, &format!("add_device {device}"))?;
            for command in spec.commands(number) {
                pktgen.files.command(&device, &command)?;
            }
            pktgen.devices.push(device);
        }
        Ok(pktgen)
    }

    /// Starts all threads. They run until they have sent their count or are stopped.
    ///
    /// # Errors
    /// No thread for the call could be started.
    pub fn start(&mut self) -> Result<()> {
        interrupt::prepare()?;
        let files = self.files.clone();
        // The call comes back when all threads have ended, or by a signal.
        let starter =
            std::thread::Builder::new().name("pktgen".into()).spawn(move || match files.command("pgctrl", "start") {
                Err(error) if error.errno() == Some(Errno::EINTR) => Ok(()),
                ended => ended,
            });
        self.starter = Some(starter.map_err(|error| Error::io("start pktgen", "clone", &error))?);
        Ok(())
    }

    /// Whether threads are sending.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.starter.as_ref().is_some_and(|starter| !starter.is_finished())
    }

    /// What each thread has sent so far.
    ///
    /// # Errors
    /// A file can't be read, or says something else.
    pub fn counts(&self) -> Result<Vec<PktgenCounts>> {
        self.devices.iter().map(|device| counts_of(&self.files.read(device)?, device)).collect()
    }

    /// Stops the threads that are still sending.
    ///
    /// # Errors
    /// The start was refused.
    pub fn stop(&mut self) -> Result<()> {
        let Some(starter) = self.starter.take() else { return Ok(()) };
        while !starter.is_finished() {
            // Either ends it: the word for the threads, or the signal for the call that waits for them.
            self.files.command("pgctrl", "stop")?;
            interrupt::interrupt(&starter);
            std::thread::sleep(Duration::from_millis(1));
        }
        starter.join().unwrap_or_else(|_panic| Err(Error::invalid("start pktgen", "the thread that waits panicked")))
    }

    /// Each thread's result, after it has ended.
    ///
    /// # Errors
    /// A file can't be read, or a thread has none.
    pub fn results(&self) -> Result<Vec<PktgenResult>> {
        self.devices.iter().map(|device| result_of(&self.files.read(device)?, device)).collect()
    }

    /// The devices, one of each thread.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        &self.devices
    }
}

impl Drop for Pktgen {
    fn drop(&mut self) {
        // Nobody is left to tell; what can be undone is.
        self.stop().unwrap_or_default();
        for thread in &self.threads {
            self.files.command(thread, "rem_device_all").unwrap_or_default();
        }
    }
}

impl PktgenSpec {
    fn check(&self) -> Result<()> {
        let refuse = |why: String, remedy: &str| Err(Error::usage("send by the kernel's pktgen", why).remedy(remedy));
        // The shortest frame with the headers and pktgen's own 16 bytes that it still makes whole.
        let shortest = if self.destination.0.is_ipv4() { 14 + 20 + 8 + 16 } else { 14 + 40 + 8 + 16 };
        let shortest = shortest + self.vlan.len() as u32; // At most 8.
        if self.size < shortest {
            return refuse(
                format!("{} bytes can't hold the headers and pktgen's own", self.size),
                &format!("ask for {shortest} or more"),
            );
        }
        if self.destination.0.is_ipv4() != self.destination.1.is_ipv4() || self.destination.0 > self.destination.1 {
            return refuse("the destination is no range of addresses".into(), "give an address, or one with /LENGTH");
        }
        if self.mode == XmitMode::QueueXmit && (self.clones > 0 || self.burst > 1) {
            return refuse("the queueing discipline takes packets one by one".into(), "leave burst and clones out");
        }
        if self.threads == 0 || self.burst == 0 || self.flows == 0 {
            return refuse("0 threads, packets in a burst, or flows".into(), "ask for 1 or more");
        }
        Ok(())
    }

    /// The settings of a thread's device, in the module's words.
    fn commands(&self, thread: u32) -> Vec<String> {
        fn set(name: &str, value: impl Display) -> String {
            format!("{name} {value}")
        }
        let (first, last) = self.destination;
        let v6 = if first.is_ipv6() { "6" } else { "" };
        let mut commands = vec![
            set("count", self.count_per_thread),
            set("clone_skb", self.clones),
            set("pkt_size", self.size),
            set("delay", self.delay_ns),
            // One queue for each thread, so that none waits for another's lock.
            set("queue_map_min", thread),
            set("queue_map_max", thread),
            set("dst_mac", self.dst_mac),
        ];
        if first == last && first.is_ipv6() {
            commands.push(set("dst6", first));
        } else {
            commands.extend([set(&format!("dst{v6}_min"), first), set(&format!("dst{v6}_max"), last)]);
        }
        if let Some((first, last)) = self.dst_ports {
            commands.extend(["flag UDPDST_RND".to_owned(), set("udp_dst_min", first), set("udp_dst_max", last)]);
        }
        let tag = |prefix: &str, VlanTag { id, priority }: VlanTag| {
            [set(&format!("{prefix}vlan_id"), id), set(&format!("{prefix}vlan_p"), priority)]
        };
        match self.vlan {
            Vlan::None => {}
            Vlan::Tagged(only) => commands.extend(tag("", only)),
            Vlan::QinQ { outer, inner } => commands.extend([tag("", inner), tag("s", outer)].concat()),
        }
        if self.udp_checksum {
            commands.push("flag UDPCSUM".into());
        }
        if self.flows > 1 {
            commands.push("flag UDPSRC_RND".into());
        }
        commands.extend([
            set("udp_src_min", FIRST_SOURCE_PORT),
            set("udp_src_max", FIRST_SOURCE_PORT.saturating_add(self.flows - 1)),
        ]);
        if let Some(pps) = self.rate_pps {
            commands.push(set("ratep", pps));
        }
        match self.mode {
            XmitMode::StartXmit => {}
            XmitMode::NetifReceive => commands.push("xmit_mode netif_receive".into()),
            XmitMode::QueueXmit => commands.push("xmit_mode queue_xmit".into()),
        }
        // After the mode, which decides what it may be.
        if self.burst > 1 {
            commands.push(set("burst", self.burst));
        }
        commands
    }
}

/// The threads of the module.
fn threads(files: &Files) -> Result<Vec<String>> {
    let what = || format!("list {}", files.0.display());
    let entries = fs::read_dir(&files.0).map_err(|error| Error::io(what(), "getdents", &error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut threads: Vec<String> = names.filter(|name| name.starts_with("kpktgend_")).collect();
    threads.sort();
    Ok(threads)
}

/// The devices that a thread's file lists.
fn devices_of(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Running:").or_else(|| line.strip_prefix("Stopped:")));
    lines.flat_map(str::split_ascii_whitespace).map(str::to_owned).collect()
}

fn unexpected(device: &str, text: &str) -> Error {
    let last = text.lines().rev().find(|line| line.contains("Result:")).unwrap_or_default().trim();
    Error::invalid(format!("understand what pktgen tells of {device}"), format!("unexpected {last:?}"))
}

fn counts_of(text: &str, device: &str) -> Result<PktgenCounts> {
    let counts =
        || Some(PktgenCounts { packets: number_after(text, "pkts-sofar: ")?, errors: number_after(text, "errors: ")? });
    counts().ok_or_else(|| unexpected(device, text))
}

/// `Result: OK: 15430(c15405+d25) usec, 100000 (60byte,0frags)` and
/// `  6480562pps 3110Mb/sec (3110669760bps) errors: 0`.
fn result_of(text: &str, device: &str) -> Result<PktgenResult> {
    let result = || {
        let (_, result) = text.rsplit_once("Result: OK: ")?;
        let (first, second) = result.split_once('\n')?;
        Some(PktgenResult {
            elapsed_us: number_after(first, "")?,
            idle_us: number_after(first, "+d")?,
            packets: number_after(first, "usec, ")?,
            size: number_after(first, " (")?.try_into().ok()?,
            frags: number_after(first, "byte,")?.try_into().ok()?,
            pps: number_after(second.trim_start(), "")?,
            bps: number_after(second, "(")?,
            errors: number_after(second, "errors: ")?,
        })
    };
    result().ok_or_else(|| unexpected(device, text))
}

/// The number that follows the first `mark`.
fn number_after(text: &str, mark: &str) -> Option<u64> {
    let (_, rest) = text.split_once(mark)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the module shows of a device after a run.
    const DEVICE: &str = "Params: count 100000  min_pkt_size: 60  max_pkt_size: 60\n     frags: 0  delay: 0  clone_skb: 0  \
         ifname: eth4@0\n     flows: 0 flowlen: 0\nCurrent:\n     pkts-sofar: 100000  errors: 17\n     started: \
         623913381008us  stopped: 623913396439us idle: 25us\n     flows: 0\nResult: OK: 15430(c15405+d25) usec, 100000 \
         (60byte,0frags)\n  6480562pps 3110Mb/sec (3110669760bps) errors: 17\n";

    fn spec() -> PktgenSpec {
        let destination: IpAddr = "198.18.0.42".parse().unwrap();
        PktgenSpec {
            interface: "eth4".into(),
            size: 60,
            destination: (destination, destination),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            dst_ports: None,
            udp_checksum: false,
            vlan: Vlan::None,
            threads: 1,
            first_thread: 0,
            clones: 0,
            burst: 1,
            count_per_thread: 100_000,
            delay_ns: 0,
            rate_pps: None,
            flows: 1,
            mode: XmitMode::StartXmit,
        }
    }

    /// A folder with files as the module has them, but which keep every command.
    fn folder(threads: u32, devices: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("pgctrl", "");
        for number in 0..threads {
            write(&format!("kpktgend_{number}"), "Running: \nStopped: \nResult: NA\n");
        }
        devices.iter().for_each(|device| write(device, DEVICE));
        folder
    }

    fn files(folder: &tempfile::TempDir) -> Files {
        Files(folder.path().into())
    }

    /// The commands that a file was given.
    fn given(folder: &tempfile::TempDir, name: &str) -> Vec<String> {
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        let known = ["Running", "Stopped", "Result", "Params", "Current", " "];
        let commands = text.lines().filter(|line| !known.iter().any(|known| line.starts_with(known)));
        commands.map(str::to_owned).collect()
    }

    #[test]
    fn without_the_module_one_line_says_so() {
        let empty = tempfile::tempdir().unwrap();
        let error = Pktgen::configure_at(files(&empty), &spec()).unwrap_err().to_string();
        assert!(error.contains("the module is not loaded; modprobe pktgen"), "{error}");
    }

    #[test]
    fn each_thread_gets_a_device_of_its_own_which_is_gone_afterwards() {
        let folder = folder(3, &["eth4@1", "eth4@2"]);
        let spec = PktgenSpec { threads: 2, first_thread: 1, burst: 32, flows: 100, ..spec() };
        let mut pktgen = Pktgen::configure_at(files(&folder), &spec).unwrap();
        assert_eq!(pktgen.devices(), ["eth4@1", "eth4@2"]);
        assert_eq!(given(&folder, "kpktgend_0"), [""; 0]);
        assert_eq!(given(&folder, "kpktgend_2"), ["add_device eth4@2"]);
        assert_eq!(
            given(&folder, "eth4@2"),
            [
                "count 100000",
                "clone_skb 0",
                "pkt_size 60",
                "delay 0",
                "queue_map_min 2",
                "queue_map_max 2",
                "dst_mac 02:00:00:00:00:02",
                "dst_min 198.18.0.42",
                "dst_max 198.18.0.42",
                "flag UDPSRC_RND",
                "udp_src_min 9",
                "udp_src_max 108",
                "burst 32",
            ]
        );
        pktgen.start().unwrap();
        while pktgen.is_running() {
            std::thread::yield_now();
        }
        assert_eq!(given(&folder, "pgctrl"), ["start"]);
        // As the kernel does, the call that started them comes back once they have been told to stop.
        interrupt::prepare().unwrap();
        let control = folder.path().join("pgctrl");
        pktgen.starter = Some(std::thread::spawn(move || {
            while !fs::read_to_string(&control).unwrap().contains("stop") {
                std::thread::yield_now();
            }
            Ok(())
        }));
        assert!(pktgen.is_running());
        pktgen.stop().unwrap();
        assert!(!pktgen.is_running());
        assert_eq!(pktgen.counts().unwrap(), [PktgenCounts { packets: 100_000, errors: 17 }; 2]);
        drop(pktgen);
        assert_eq!(given(&folder, "kpktgend_1"), ["add_device eth4@1", "rem_device_all"]);
        assert_eq!(given(&folder, "kpktgend_2"), ["add_device eth4@2", "rem_device_all"]);
    }

    #[test]
    fn every_setting_has_its_word() {
        let words = |spec: &PktgenSpec| spec.commands(0).join("\n");
        let v6: IpAddr = "2001:2::2".parse().unwrap();
        let all = PktgenSpec {
            destination: (v6, v6),
            dst_ports: Some((433, 444)),
            udp_checksum: true,
            vlan: Vlan::QinQ { outer: VlanTag { id: 100, priority: 1 }, inner: VlanTag { id: 7, priority: 0 } },
            size: 86,
            clones: 7,
            delay_ns: 1000,
            rate_pps: Some(5_000),
            count_per_thread: 0,
            mode: XmitMode::NetifReceive,
            burst: 2,
            ..spec()
        };
        let text = words(&all);
        for word in [
            "count 0",
            "clone_skb 7",
            "delay 1000",
            "dst6 2001:2::2",
            "flag UDPDST_RND\nudp_dst_min 433\nudp_dst_max 444",
            "vlan_id 7\nvlan_p 0\nsvlan_id 100\nsvlan_p 1\nflag UDPCSUM",
            "udp_src_min 9\nudp_src_max 9",
            "ratep 5000",
            "xmit_mode netif_receive\nburst 2",
        ] {
            assert!(text.contains(word), "{word:?} is not in\n{text}");
        }
        let last: IpAddr = "2001:2::ff".parse().unwrap();
        assert!(
            words(&PktgenSpec { destination: (v6, last), ..all }).contains("dst6_min 2001:2::2\ndst6_max 2001:2::ff")
        );
        assert!(words(&PktgenSpec { mode: XmitMode::QueueXmit, ..spec() }).contains("xmit_mode queue_xmit"));
        assert!(!words(&spec()).contains("burst"), "old kernels do not know the word");
    }

    #[test]
    fn what_it_prints_after_a_run_is_read_to_the_last_number() {
        let expected = PktgenResult {
            elapsed_us: 15_430,
            idle_us: 25,
            packets: 100_000,
            size: 60,
            frags: 0,
            pps: 6_480_562,
            bps: 3_110_669_760,
            errors: 17,
        };
        assert_eq!(result_of(DEVICE, "eth4@0").unwrap(), expected);
        for bad in ["", "Result: Starting\n", "Result: OK: 15430(c15405", "Result: OK: pkt_size=60\n"] {
            let error = result_of(bad, "eth4@0").unwrap_err().to_string();
            assert!(error.contains("what pktgen tells of eth4@0"), "{error}");
        }
        assert!(counts_of("Idle\n", "eth4@0").is_err());
    }

    #[test]
    fn devices_of_somebody_else_are_left_alone() {
        let folder = folder(2, &["eth4@0"]);
        let text = "Running: \nStopped: eth9@1 \nResult: OK: add_device=eth9@1\n";
        fs::write(folder.path().join("kpktgend_1"), text).unwrap();
        let error = Pktgen::configure_at(files(&folder), &spec()).unwrap_err().to_string();
        assert!(error.contains("kpktgend_1 has the device eth9@1 already"), "{error}");
        assert_eq!(given(&folder, "kpktgend_0"), [""; 0]);
    }

    #[test]
    fn a_thread_or_a_device_that_is_not_there_leaves_nothing_behind() {
        let folder = folder(1, &["eth4@0"]);
        let two = PktgenSpec { threads: 2, ..spec() };
        let error = Pktgen::configure_at(files(&folder), &two).unwrap_err().to_string();
        assert!(error.contains("there is no thread kpktgend_1"), "{error}");
        assert_eq!(given(&folder, "kpktgend_0"), ["add_device eth4@0", "rem_device_all"]);
        let other = PktgenSpec { interface: "eth5".into(), ..spec() };
        let error = Pktgen::configure_at(files(&folder), &other).unwrap_err().to_string();
        assert!(error.contains("eth5@0: open: ENOENT"), "{error}");
        assert_eq!(given(&folder, "kpktgend_0").last().unwrap(), "rem_device_all");
    }

    #[test]
    fn what_pktgen_can_not_send_is_refused_before_it_is_told_anything() {
        let folder = folder(1, &["eth4@0"]);
        let (low, high): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        for (spec, word) in [
            (PktgenSpec { size: 57, ..spec() }, "57 bytes"),
            (PktgenSpec { size: 61, vlan: Vlan::Tagged(VlanTag { id: 1, priority: 0 }), ..spec() }, "61 bytes"),
            (PktgenSpec { destination: (high, low), ..spec() }, "no range"),
            (PktgenSpec { mode: XmitMode::QueueXmit, burst: 2, ..spec() }, "one by one"),
            (PktgenSpec { threads: 0, ..spec() }, "0 threads"),
            (PktgenSpec { flows: 0, ..spec() }, "flows"),
        ] {
            let error = Pktgen::configure_at(files(&folder), &spec).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(given(&folder, "kpktgend_0"), [""; 0]);
    }
}
