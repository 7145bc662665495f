//! Which CPU runs the generator and which the device under test.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::lab::Port;
use super::netns::{NetNs, on_thread};
use crate::error::{Error, Result};
use crate::netlink::{Napi, Netdev};
use crate::reading::Reading;

/// How long the kernel may take to start its NAPI threads.
const THREADS_DEADLINE: Duration = Duration::from_secs(1);

/// Which CPU runs what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "placement", rename_all = "lowercase")]
pub enum Placement {
    /// The generator and the DUT's NAPI, as softirq, take turns on one CPU.
    Same {
        /// That CPU.
        cpu: usize,
    },
    /// The DUT's NAPI is polled by kernel threads (threaded NAPI, Linux 5.12 and later) on a CPU of its own.
    Split {
        /// The generator's CPU.
        generator_cpu: usize,
        /// The CPU of the DUT's NAPI threads.
        dut_cpu: usize,
    },
    /// Traffic comes from outside, and the interface's interrupts decide which CPU takes it.
    Outside,
}

/// Which CPU runs what, as it is asked for; the machine says which CPUs there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementName {
    /// Generator and device take turns on one CPU
    #[default]
    Same,
    /// A CPU for each
    Split,
}

impl PlacementName {
    /// The CPUs it stands for on this machine.
    ///
    /// # Errors
    /// Those of [`Placement::same`] and [`Placement::split`].
    pub fn resolve(self) -> Result<Placement> {
        match self {
            Self::Same => Placement::same(),
            Self::Split => Placement::split(),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same { cpu } => write!(f, "generator and device on CPU {cpu} (same)"),
            Self::Split { generator_cpu, dut_cpu } => {
                write!(f, "generator on CPU {generator_cpu}, device on CPU {dut_cpu} (split)")
            }
            Self::Outside => write!(f, "traffic from outside, on the CPU that its interrupts go to"),
        }
    }
}

impl Placement {
    /// Generator and DUT on one CPU: the last that the calling thread may use, since the first ones serve most interrupts.
    ///
    /// # Errors
    /// If the kernel does not tell the thread's CPUs.
    pub fn same() -> Result<Self> {
        match allowed_cpus()?.last() {
            Some(&cpu) => Ok(Self::Same { cpu }),
            None => Err(Error::unsupported("place generator and DUT on one CPU", "this thread may use no CPU")),
        }
    }

    /// Generator and DUT on a CPU each, the DUT on the last one that the calling thread may use.
    ///
    /// # Errors
    /// If the thread may use only one CPU.
    pub fn split() -> Result<Self> {
        match allowed_cpus()?.as_slice() {
            [.., generator_cpu, dut_cpu] => Ok(Self::Split { generator_cpu: *generator_cpu, dut_cpu: *dut_cpu }),
            _ => Err(Error::unsupported("split generator and DUT", "this thread may use only one CPU")
                .remedy("allow it two CPUs (taskset, cpuset), or take placement \"same\"")),
        }
    }

    /// The CPU on which the generator runs; `None` where there is none.
    #[must_use]
    pub fn generator_cpu(self) -> Option<usize> {
        match self {
            Self::Same { cpu } => Some(cpu),
            Self::Split { generator_cpu, .. } => Some(generator_cpu),
            Self::Outside => None,
        }
    }

    /// The CPU on which the DUT runs; `None` where that is not decided here.
    #[must_use]
    pub fn dut_cpu(self) -> Option<usize> {
        match self {
            Self::Same { cpu } => Some(cpu),
            Self::Split { dut_cpu, .. } => Some(dut_cpu),
            Self::Outside => None,
        }
    }

    /// A CPU to redirect packets to: of those that the calling thread may use the last that runs neither generator nor DUT,
    /// else one that does not run the DUT, else the DUT's. `None` where it is not decided here what runs where.
    ///
    /// # Errors
    /// If the kernel does not tell the thread's CPUs.
    pub fn remote_cpu(self) -> Result<Option<usize>> {
        let (Some(generator), Some(dut)) = (self.generator_cpu(), self.dut_cpu()) else { return Ok(None) };
        Ok(allowed_cpus()?.into_iter().max_by_key(|&cpu| (cpu != dut, cpu != generator, cpu)))
    }

    /// Refuses a placement that this machine can't hold.
    pub(super) fn check(self) -> Result<()> {
        let what = "place generator and DUT";
        for cpu in [self.generator_cpu(), self.dut_cpu()].into_iter().flatten() {
            // Only the kernel knows what is online and in this process's cpuset.
            on_thread(|| pin(0, cpu).map_err(|errno| Error::syscall(what, "sched_setaffinity", errno)))
                .map_err(|error| error.remedy(format!("CPU {cpu} is not there, offline or not in the cpuset")))?;
        }
        match self {
            Self::Split { generator_cpu, dut_cpu } if generator_cpu == dut_cpu => {
                Err(Error::usage(what, format!("CPU {dut_cpu} is to run both")).remedy("take placement \"same\""))
            }
            _ => Ok(()),
        }
    }

    /// Makes the NAPI of `port` run where the placement wants it.
    pub(super) fn apply(self, port: &Port) -> Result<PlacementState> {
        match self {
            Self::Outside => Ok(PlacementState::outside(&port.netns, port.ifindex)),
            Self::Same { .. } => {
                set_threaded(port, false)?;
                Ok(PlacementState { placement: self, ..PlacementState::outside(&port.netns, port.ifindex) })
            }
            Self::Split { dut_cpu, .. } => {
                let others = threads_by_name(&port.name)?;
                set_threaded(port, true)?;
                let napis = threaded_napis(port, &others)?;
                let threads = napis.iter().map(|napi| pin_napi(napi, port, dut_cpu)).collect::<Result<_>>()?;
                Ok(PlacementState { placement: self, napi_ids: Reading::Known(ids(&napis)), threads })
            }
        }
    }
}

/// Where the DUT's NAPI runs, as read back from the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementState {
    /// What was asked for.
    #[serde(flatten)]
    pub placement: Placement,
    /// The DUT's NAPI instances (Linux 6.8 and later); none before an XDP program is attached (or GRO is on) there.
    pub napi_ids: Reading<Vec<u32>>,
    /// The kernel threads that poll them; none where softirq does.
    pub threads: Vec<NapiThread>,
}

/// A kernel thread that polls one NAPI instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiThread {
    /// The NAPI instance.
    pub napi_id: u32,
    /// The thread.
    pub pid: i32,
    /// The CPUs it may run on.
    pub cpus: Vec<usize>,
}

impl PlacementState {
    /// Where nothing is placed: the NAPI instances that the interface has.
    #[must_use]
    pub fn outside(netns: &NetNs, ifindex: u32) -> Self {
        let napis = netns.run(Netdev::open).and_then(|mut netdev| netdev.napis(ifindex));
        let napi_ids = Reading::from(napis).map(|napis| ids(&napis));
        Self { placement: Placement::Outside, napi_ids, threads: Vec::new() }
    }
}

fn ids(napis: &[Napi]) -> Vec<u32> {
    napis.iter().map(|napi| napi.id).collect()
}

fn set_threaded(port: &Port, threaded: bool) -> Result<()> {
    let path = format!("class/net/{}/threaded", port.name);
    let wanted = if threaded { "1" } else { "0" };
    let sysfs = port.netns.sysfs()?;
    match sysfs.read(&path) {
        Ok(read) if read == wanted => return Ok(()),
        Err(error) if error.errno() == Some(Errno::ENOENT) && !threaded => return Ok(()), // Before Linux 5.12.
        _ => {}
    }
    sysfs.write(&path, wanted).map_err(|error| {
        if error.errno() == Some(Errno::EOPNOTSUPP) {
            error.remedy("veth has NAPI only while an XDP program is attached or GRO is on: attach first")
        } else {
            error
        }
    })?;
    match sysfs.read(&path)? {
        read if read == wanted => Ok(()),
        read => Err(Error::invalid(format!("write {wanted:?} to /sys/{path}"), format!("it still reads {read:?}"))),
    }
}

/// The NAPI instances of `port`, once each has its thread; `others` are threads for interfaces of this name that were there before.
fn threaded_napis(port: &Port, others: &[Napi]) -> Result<Vec<Napi>> {
    let deadline = Instant::now() + THREADS_DEADLINE;
    loop {
        let napis = match port.netns.run(|| Netdev::open()?.napis(port.ifindex)) {
            // Before Linux 6.8 the kernel lists none.
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EOPNOTSUPP)) => {
                started_threads(port, others)?
            }
            napis => napis?,
        };
        if !napis.is_empty() && napis.iter().all(|napi| napi.pid.is_some()) {
            return Ok(napis);
        }
        if Instant::now() > deadline {
            let without = napis.iter().filter(|napi| napi.pid.is_none()).count();
            let why = match napis.len() {
                0 => "it has none".to_owned(),
                all => format!("{without} of its {all} NAPI instances have no thread"),
            };
            return Err(Error::invalid(format!("find the NAPI threads of {}", port.name), why));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The threads that have been started for interfaces of this name; none as long as they are not as many as the RX queues.
fn started_threads(port: &Port, others: &[Napi]) -> Result<Vec<Napi>> {
    let queues = port.netns.rtnl()?.link_by_index(port.ifindex)?.rx_queues.unwrap_or(1) as usize;
    let mut started = threads_by_name(&port.name)?;
    started.retain(|napi| !others.contains(napi));
    match started.len() {
        all if all == queues => Ok(started),
        fewer if fewer < queues => Ok(Vec::new()),
        more => Err(Error::invalid(
            format!("find the NAPI threads of {}", port.name),
            format!("{more} were started for {queues} queues: those of another interface of this name are among them"),
        )
        .remedy("try again; Linux 6.8 and later list them")),
    }
}

/// The threads that poll NAPI instances of interfaces of this name in any network namespace: they are called `napi/NAME-ID`
/// (`napi_kthread_create()`, net/core/dev.c).
fn threads_by_name(name: &str) -> Result<Vec<Napi>> {
    let prefix = format!("napi/{name}-");
    let processes = fs::read_dir("/proc").map_err(|error| Error::io("list processes", "readdir", &error))?;
    let napi_of = |process: fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(process.path().join("comm")).ok()?;
        let id = comm.trim_end().strip_prefix(&prefix)?.parse().ok()?;
        Some(Napi { id, irq: None, pid: Some(pid), threaded: Some(true) })
    };
    Ok(processes.flatten().filter_map(napi_of).collect())
}

/// Pins the thread of `napi` to `cpu` and reads back where it may run.
fn pin_napi(napi: &Napi, port: &Port, cpu: usize) -> Result<NapiThread> {
    let pid = napi.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
    let what = format!("pin the thread {pid} of NAPI {} of {} to CPU {cpu}", napi.id, port.name);
    // The kernel names the thread by its id in the initial pid namespace; elsewhere that may be some other process.
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if !name.starts_with("napi/") {
        return Err(Error::unsupported(what, "no NAPI thread has this process id here")
            .remedy("run in the initial pid namespace"));
    }
    pin(pid, cpu).map_err(|errno| Error::syscall(&what, "sched_setaffinity", errno))?;
    let cpus = cpus_of(pid).map_err(|errno| Error::syscall(&what, "sched_getaffinity", errno))?;
    if cpus == [cpu] {
        Ok(NapiThread { napi_id: napi.id, pid, cpus })
    } else {
        Err(Error::invalid(what, format!("it may still run on {cpus:?}")))
    }
}

/// Lets the thread `pid` (0: the calling one) run on `cpu` alone.
fn pin(pid: i32, cpu: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(pid), &set)
}

/// The CPUs that the calling thread may use.
fn allowed_cpus() -> Result<Vec<usize>> {
    cpus_of(0).map_err(|errno| Error::syscall("read the CPUs this thread may use", "sched_getaffinity", errno))
}

fn cpus_of(pid: i32) -> nix::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(pid))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_redirected_to_another_cpu_than_the_device_s_where_there_is_one() {
        let cpus = allowed_cpus().unwrap();
        let dut = cpus[0];
        let remote = Placement::Same { cpu: dut }.remote_cpu().unwrap().unwrap();
        assert_eq!(remote, *cpus.last().unwrap());
        assert_eq!(Placement::Outside.remote_cpu().unwrap(), None);
    }

    #[test]
    fn a_placement_that_the_machine_can_not_hold_is_refused_with_a_remedy() {
        let both = Placement::Split { generator_cpu: 0, dut_cpu: 0 }.check().unwrap_err();
        assert_eq!(both.to_string(), "can't place generator and DUT: CPU 0 is to run both; take placement \"same\"");
        let absent = Placement::Same { cpu: 99_999 }.check().unwrap_err();
        assert!(absent.to_string().ends_with("CPU 99999 is not there, offline or not in the cpuset"), "{absent}");
        Placement::same().unwrap().check().unwrap();
    }
}
