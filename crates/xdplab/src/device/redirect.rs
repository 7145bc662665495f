//! Programs that redirect, and what they and the programs of their devmap counted.

use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Ebpf;
use aya::maps::xdp::{DevMap, XdpMapError};
use aya::maps::{MapData, PerCpuArray};
use aya::programs::ProgramFd;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::program::read_counts;
use super::{Counts, LoadMode};
use crate::bpf;
use crate::error::{Error, Result};
use crate::packet::MacAddr;

/// How a program redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectBy {
    /// `bpf_redirect()` to the only target; the MACs are exchanged in this way.
    Helper(LoadMode),
    /// `bpf_redirect_map()` to the only target, by way of a devmap; the MACs are exchanged by direct packet access.
    Map,
    /// `bpf_redirect_map()` with `BPF_F_BROADCAST` (kernel 5.14): a copy to each target but the one that the packet came in
    /// by. The packet is not touched.
    Broadcast,
}

/// Verdicts of enum xdp_action, include/uapi/linux/bpf.h.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// What the program of a devmap entry does with a frame that is about to be transmitted; kernel 5.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum EgressAction {
    /// Give it the interface's MAC as its source, and let it pass.
    Forward,
    /// Drop it.
    Drop,
}

/// An interface that packets are redirected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectTarget {
    /// Its number in the calling thread's network namespace.
    pub ifindex: u32,
    /// Its address.
    pub mac: MacAddr,
}

/// A loaded program that redirects. Its devmap is filled from the start.
pub struct RedirectProgram {
    fd: ProgramFd,
    id: u32,
    counts: PerCpuArray<MapData, [u64; 2]>,
    rx_queues: u32,
    /// The program of each target, in their order.
    egress: Vec<EgressProgram>,
    _object: Ebpf,
}

impl RedirectProgram {
    /// Loads the program for devices with up to `rx_queues` RX queues, and fills its devmap.
    ///
    /// # Errors
    /// The kernel refused the object, a program or an entry of the devmap.
    pub fn load(
        by: RedirectBy,
        targets: &[RedirectTarget],
        egress: Option<EgressAction>,
        rx_queues: u32,
    ) -> Result<Self> {
        let entries = u32::try_from(targets.len()).unwrap_or(u32::MAX).max(1);
        let mut object = bpf::load(
            bpf::REDIRECT,
            &bpf::Object {
                globals: [("target_ifindex", targets.first().map_or(0, |target| target.ifindex))].into(),
                map_entries: [("rx_counts", rx_queues), ("targets", entries)].into(),
                ..bpf::Object::default()
            },
        )?;
        let what = "keep the redirecting program open";
        let program = bpf::program(&mut object, by.function())?;
        let id = program.info().map_err(|error| bpf::describe_load_error(what.into(), &error))?.id();
        let fd =
            program.fd().and_then(|fd| Ok(fd.try_clone()?)).map_err(|error| Error::invalid(what, error.to_string()))?;
        let egress = match by {
            RedirectBy::Helper(_) => Vec::new(),
            RedirectBy::Map | RedirectBy::Broadcast => fill(&mut object, targets, egress)?,
        };
        let counts = bpf::take_map(&mut object, "rx_counts")?;
        Ok(Self { fd, id, counts, rx_queues, egress, _object: object })
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The kernel's id of the program.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What was counted so far: for each RX queue, each possible CPU.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn counts(&self) -> Result<Vec<Vec<Counts>>> {
        (0..self.rx_queues).map(|queue| read_counts(&self.counts, queue)).collect()
    }

    /// What the programs of the devmap saw so far, for each target in their order; nothing without such programs.
    ///
    /// # Errors
    /// A map could not be read.
    pub fn egress_counts(&self) -> Result<Vec<Counts>> {
        self.egress.iter().map(EgressProgram::total).collect()
    }
}

impl RedirectBy {
    /// The name of the program's function in `bpf/redirect.bpf.c`.
    fn function(self) -> &'static str {
        match self {
            Self::Helper(LoadMode::Dpa) => "redirect",
            Self::Helper(LoadMode::LoadBytes) => "redirect_load",
            Self::Map => "redirect_map",
            Self::Broadcast => "redirect_multi",
        }
    }
}

/// Puts each target into the devmap, with a program of its own if there is to be one.
fn fill(object: &mut Ebpf, targets: &[RedirectTarget], egress: Option<EgressAction>) -> Result<Vec<EgressProgram>> {
    let mut map: DevMap<MapData> = bpf::take_map(object, "targets")?;
    let mut programs = Vec::new();
    for (index, target) in (0..).zip(targets) {
        let program = egress.map(|action| EgressProgram::load(action, target.mac)).transpose()?;
        let fd = program.as_ref().map(|program| &program.fd);
        map.set(index, target.ifindex, fd, 0).map_err(|error| {
            let what = format!("put the interface with ifindex {} into the devmap", target.ifindex);
            match error {
                XdpMapError::MapError(error) => bpf::map_error(what, &error),
                XdpMapError::ChainedProgramNotSupported => {
                    Error::unsupported(what, "this kernel runs no program there")
                        .remedy("use kernel 5.8 or later, or leave the egress program out")
                }
            }
        })?;
        programs.extend(program);
    }
    Ok(programs)
}

/// The program of one devmap entry.
struct EgressProgram {
    fd: ProgramFd,
    counts: PerCpuArray<MapData, [u64; 2]>,
    _object: Ebpf,
}

impl EgressProgram {
    fn load(action: EgressAction, MacAddr([a, b, c, d, e, f]): MacAddr) -> Result<Self> {
        let verdict = match action {
            EgressAction::Forward => XDP_PASS,
            EgressAction::Drop => XDP_DROP,
        };
        let mac = [("mac_0", [a, b]), ("mac_2", [c, d]), ("mac_4", [e, f])];
        let mac = mac.map(|(name, bytes)| (name, u16::from_ne_bytes(bytes).into()));
        let globals = mac.into_iter().chain([("action", verdict)]).collect();
        let mut object = bpf::load(bpf::EGRESS, &bpf::Object { globals, ..bpf::Object::default() })?;
        let fd = bpf::program(&mut object, "egress")?
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(|error| Error::invalid("keep the egress program open", error.to_string()))?;
        Ok(Self { fd, counts: bpf::take_map(&mut object, "egress_counts")?, _object: object })
    }

    fn total(&self) -> Result<Counts> {
        Ok(read_counts(&self.counts, 0)?.into_iter().fold(Counts::default(), |mut sum, cpu| {
            sum += cpu;
            sum
        }))
    }
}
