//! A program that redirects packets to other CPUs, its cpumap, and the counts it keeps.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{AddAssign, Sub};
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Ebpf;
use aya::maps::xdp::XdpMapError;
use aya::maps::{CpuMap, DevMap, IterableMap as _, MapData, PerCpuArray};
use aya::programs::ProgramFd;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::spec::name_of;
use super::{Counts, HandedOn};
use crate::bpf;
use crate::error::{Error, Result};
use crate::host;
use crate::packet::MacAddr;

/// How the CPU for a packet is chosen from the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// The first one; packet memory is not touched.
    NoTouch,
    /// The first one, after the EtherType was read; a frame with a length in its place (IEEE 802.3) is dropped.
    Touch,
    /// One after the other, packet by packet, each RX queue and CPU for itself.
    RoundRobin,
    /// By IP protocol: TCP and everything unknown to the first, UDP to the second, ICMP to the third; around again where
    /// the list is shorter.
    L4Proto,
    /// As l4-proto, but UDP to port 9 (discard) is dropped.
    L4Filter,
    /// By a hash of addresses, IP protocol and ports that is the same for both directions of a flow.
    L4Hash,
    /// By TCP or UDP source port modulo the number of CPUs; others to the first.
    L4Sport,
    /// By TCP or UDP destination port modulo the number of CPUs; others to the first.
    L4Dport,
}

impl Selection {
    /// The name of the program's function in `bpf/cpumap.bpf.c`.
    fn function(self) -> &'static str {
        match self {
            Self::NoTouch => "no_touch",
            Self::Touch => "touch",
            Self::RoundRobin => "round_robin",
            Self::L4Proto => "l4_proto",
            Self::L4Filter => "l4_filter",
            Self::L4Hash => "l4_hash",
            Self::L4Sport => "l4_sport",
            Self::L4Dport => "l4_dport",
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

/// What the CPU that gets a packet does with it (kernel 5.9; in generic mode 5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// No program: the packet goes to the network stack.
    Disabled,
    /// A program drops it.
    Drop,
    /// A program passes it to the network stack.
    Pass,
    /// A program sends it back to whom it came from, out of another interface.
    Redirect {
        /// The interface.
        ifindex: u32,
        /// Its MAC address, the source of what is sent.
        mac: MacAddr,
    },
}

/// What to redirect where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpumapSpec {
    /// How the CPU is chosen.
    pub selection: Selection,
    /// The CPUs to choose from, at least one; a CPU may be there more than once.
    pub cpus: Vec<u32>,
    /// Packets that the queue of each CPU holds.
    pub qsize: u32,
    /// What the CPU does.
    pub remote: Remote,
}

impl CpumapSpec {
    /// The longest queue that the kernel takes (kernel/bpf/cpumap.c, `cpu_map_update_elem`).
    pub const MAX_QSIZE: u32 = 16_384;
    /// `MAX_CPUS` in `bpf/cpumap.bpf.c`.
    const MAX_CPUS: usize = 1024;

    fn check(&self) -> Result<()> {
        let what = "redirect to CPUs";
        if !(1..=Self::MAX_QSIZE).contains(&self.qsize) {
            let remedy = format!("choose 1 to {}", Self::MAX_QSIZE);
            return Err(
                Error::usage(what, format!("the kernel takes no queue of {} packets", self.qsize)).remedy(remedy)
            );
        }
        if !(1..=Self::MAX_CPUS).contains(&self.cpus.len()) {
            return Err(Error::usage(
                what,
                format!("{} CPUs are given, which is not 1 to {}", self.cpus.len(), Self::MAX_CPUS),
            ));
        }
        host::require_online(&self.cpus)
    }
}

/// What became of the packets that a program saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdicts {
    /// Dropped.
    pub dropped: u64,
    /// Passed to the network stack.
    pub passed: u64,
    /// Given to a map to be redirected.
    pub redirected: u64,
}

impl AddAssign for Verdicts {
    fn add_assign(&mut self, other: Self) {
        self.dropped += other.dropped;
        self.passed += other.passed;
        self.redirected += other.redirected;
    }
}

impl Sub for Verdicts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            dropped: self.dropped - earlier.dropped,
            passed: self.passed - earlier.passed,
            redirected: self.redirected - earlier.redirected,
        }
    }
}

/// A loaded program with its cpumap filled.
pub struct CpumapProgram {
    spec: CpumapSpec,
    fd: ProgramFd,
    remote: Option<(ProgramFd, u32)>,
    cpu_map: CpuMap<MapData>,
    map_id: u32,
    counts: PerCpuArray<MapData, [u64; 5]>,
    rx_queues: u32,
    _object: Ebpf,
}

impl CpumapProgram {
    /// Loads the program for a device with `rx_queues` RX queues, and fills its maps.
    ///
    /// # Errors
    /// A CPU is not there, the queue size is out of range, or the kernel refused the object, a program or an entry.
    pub fn load(spec: CpumapSpec, rx_queues: u32) -> Result<Self> {
        Self::load_as(spec, rx_queues, false)
    }

    /// Loads the programs as ones that take no packets in fragments, to stand beside such programs.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn load_without_frags(spec: CpumapSpec, rx_queues: u32) -> Result<Self> {
        Self::load_as(spec, rx_queues, true)
    }

    fn load_as(spec: CpumapSpec, rx_queues: u32, without_frags: bool) -> Result<Self> {
        spec.check()?;
        let mut cpus: Vec<u64> = spec.cpus.iter().copied().map(u64::from).collect();
        cpus.resize(CpumapSpec::MAX_CPUS, 0);
        let mut object = bpf::load(
            bpf::CPUMAP,
            &bpf::Object {
                globals: [("cpu_count", u32::try_from(spec.cpus.len()).unwrap_or(u32::MAX))].into(),
                arrays: [("cpus", cpus), ("tx_mac", vec![mac_word(spec.remote)])].into(),
                map_entries: [("rx_counts", rx_queues), ("cpu_map", bpf::possible_cpus()?)].into(),
                without_frags,
                ..bpf::Object::default()
            },
        )?;
        let (fd, _) = open(&mut object, spec.selection.function())?;
        let remote = match spec.remote {
            Remote::Disabled => None,
            Remote::Drop => Some(open(&mut object, "remote_drop")?),
            Remote::Pass => Some(open(&mut object, "remote_pass")?),
            Remote::Redirect { ifindex, .. } => {
                let program = open(&mut object, "remote_redirect")?;
                set_port(&mut object, ifindex)?;
                Some(program)
            }
        };
        let cpu_map: CpuMap<MapData> = bpf::take_map(&mut object, "cpu_map")?;
        let counts = bpf::take_map(&mut object, "rx_counts")?;
        let info = cpu_map.map().info().map_err(|error| bpf::map_error("read the id of the cpumap", &error))?;
        let mut program = Self { map_id: info.id(), spec, fd, remote, cpu_map, counts, rx_queues, _object: object };
        program.fill(program.spec.qsize)?;
        Ok(program)
    }

    /// Makes the queue of every CPU anew with room for `qsize` packets, and a kthread with it.
    fn fill(&mut self, qsize: u32) -> Result<()> {
        let remote = self.remote.as_ref().map(|(fd, _)| fd);
        for &cpu in self.spec.cpus.iter().collect::<BTreeSet<_>>() {
            let what = || format!("make a queue of {qsize} packets to CPU {cpu}");
            self.cpu_map.set(cpu, qsize, remote, 0).map_err(|error| xdp_map_error(what(), error))?;
        }
        Ok(())
    }

    /// Replaces queues and kthreads while packets go on, with other sizes in between; for testing the kernel.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn stress(&mut self) -> Result<()> {
        [1024, 8, 16_000, self.spec.qsize].into_iter().try_for_each(|qsize| self.fill(qsize))
    }

    /// What it does.
    #[must_use]
    pub fn spec(&self) -> &CpumapSpec {
        &self.spec
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn program_fd(&self) -> &ProgramFd {
        &self.fd
    }

    /// What was handed on so far.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn handed_on(&self) -> Result<HandedOn> {
        let to_cpus = self.counts()?.iter().flatten().map(|(_, verdicts)| verdicts.redirected).sum();
        Ok(HandedOn { to_cpus, ..HandedOn::default() })
    }

    /// The kernel's id of the cpumap.
    #[must_use]
    pub fn map_id(&self) -> u32 {
        self.map_id
    }

    /// The kernel's id of the program in the map, if there is one.
    #[must_use]
    pub fn remote_id(&self) -> Option<u32> {
        self.remote.as_ref().map(|(_, id)| *id)
    }

    /// What was counted so far: for each RX queue, each possible CPU.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn counts(&self) -> Result<Vec<Vec<(Counts, Verdicts)>>> {
        let of_cpu = |&[aborted, dropped, passed, redirected, _next]: &[u64; 5]| {
            let packets = aborted + dropped + passed + redirected;
            (Counts { packets, aborted }, Verdicts { dropped, passed, redirected })
        };
        let of_queue = |queue| {
            let cpus = self.counts.get(&queue, 0);
            let cpus = cpus.map_err(|error| bpf::map_error("read the counts of redirect-cpu", &error))?;
            Ok(cpus.iter().map(of_cpu).collect())
        };
        (0..self.rx_queues).map(of_queue).collect()
    }
}

/// The loaded program, with the kernel's id of it.
fn open(object: &mut Ebpf, name: &str) -> Result<(ProgramFd, u32)> {
    let program = bpf::program(object, name)?;
    let opened = program.fd().and_then(|fd| Ok(fd.try_clone()?));
    opened
        .and_then(|fd| Ok((fd, program.info()?.id())))
        .map_err(|error| Error::invalid(format!("keep the program {name} open"), error.to_string()))
}

fn set_port(object: &mut Ebpf, ifindex: u32) -> Result<()> {
    let mut port: DevMap<MapData> = bpf::take_map(object, "tx_port")?;
    let what = format!("redirect to the interface with ifindex {ifindex}");
    port.set(0, ifindex, None, 0).map_err(|error| xdp_map_error(what, error))
}

fn xdp_map_error(what: String, error: XdpMapError) -> Error {
    match error {
        XdpMapError::MapError(error) => bpf::map_error(what, &error),
        other @ XdpMapError::ChainedProgramNotSupported => {
            Error::unsupported(what, other.to_string()).remedy("use Linux 5.9 or later, or -r disabled")
        }
    }
}

/// The address as `tx_mac` holds it.
fn mac_word(remote: Remote) -> u64 {
    let Remote::Redirect { mac: MacAddr([a, b, c, d, e, f]), .. } = remote else { return 0 };
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}
