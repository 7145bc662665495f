//! Programs that redirect, and what they and the programs of their devmap counted.

use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Ebpf;
use aya::maps::xdp::{DevMap, XdpMapError};
use aya::maps::{MapData, PerCpuArray};
use aya::programs::ProgramFd;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::program::read_counts;
use super::{Counts, HandedOn, LoadMode};
use crate::bpf;
use crate::error::{Error, Result};
use crate::netlink::LinkInfo;
use crate::packet::MacAddr;

/// How a program redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

impl RedirectTarget {
    /// This interface.
    ///
    /// # Errors
    /// It has no Ethernet address.
    pub fn of(link: &LinkInfo) -> Result<Self> {
        let LinkInfo { name, ifindex, mac, .. } = link;
        let mac = mac.ok_or_else(|| {
            Error::unsupported(format!("redirect packets to {name} (ifindex {ifindex})"), "it has no Ethernet address")
        })?;
        Ok(Self { ifindex: *ifindex, mac })
    }
}

/// A loaded program that redirects. Its devmap is filled from the start.
pub struct RedirectProgram {
    fd: ProgramFd,
    id: u32,
    /// Copies made of each packet.
    copies: u64,
    egress_action: Option<EgressAction>,
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
        Self::load_as(by, targets, egress, rx_queues, false)
    }

    /// Loads the programs as ones that take no packets in fragments, to stand beside such programs.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn load_without_frags(
        by: RedirectBy,
        targets: &[RedirectTarget],
        egress: Option<EgressAction>,
        rx_queues: u32,
    ) -> Result<Self> {
        Self::load_as(by, targets, egress, rx_queues, true)
    }

    fn load_as(
        by: RedirectBy,
        targets: &[RedirectTarget],
        egress_action: Option<EgressAction>,
        rx_queues: u32,
        without_frags: bool,
    ) -> Result<Self> {
        let entries = u32::try_from(targets.len()).unwrap_or(u32::MAX).max(1);
        let mut object = bpf::load(
            bpf::REDIRECT,
            &bpf::Object {
                globals: [("target_ifindex", targets.first().map_or(0, |target| target.ifindex))].into(),
                map_entries: [("rx_counts", rx_queues), ("targets", entries)].into(),
                without_frags,
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
            RedirectBy::Map | RedirectBy::Broadcast => fill(&mut object, targets, egress_action, without_frags)?,
        };
        let copies = if by == RedirectBy::Broadcast { targets.len() as u64 } else { 1 };
        let counts = bpf::take_map(&mut object, "rx_counts")?;
        Ok(Self { fd, id, copies, egress_action, counts, rx_queues, egress, _object: object })
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn program_fd(&self) -> &ProgramFd {
        &self.fd
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

    /// Frames that the programs of the devmap dropped so far, for each target in their order; nothing without such programs.
    ///
    /// # Errors
    /// A map could not be read.
    pub fn egress_drops(&self) -> Result<Vec<u64>> {
        let drops = |Counts { packets, aborted }| match self.egress_action {
            Some(EgressAction::Drop) => packets,
            Some(EgressAction::Forward) | None => aborted,
        };
        self.egress.iter().map(|program| program.total().map(drops)).collect()
    }

    /// What was handed on so far, where packets come in by none of the targets.
    ///
    /// # Errors
    /// A map could not be read.
    pub fn handed_on(&self) -> Result<HandedOn> {
        let redirected: u64 = self.counts()?.into_iter().flatten().map(|counts| counts.packets - counts.aborted).sum();
        let egress_drops = self.egress_drops()?.iter().sum();
        Ok(HandedOn { to_interfaces: redirected * self.copies, egress_drops, ..HandedOn::default() })
    }
}

impl RedirectBy {
    /// The name of the command, and of the specification.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::Helper(_) => "redirect",
            Self::Map => "redirect-map",
            Self::Broadcast => "redirect-multi",
        }
    }

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
fn fill(
    object: &mut Ebpf,
    targets: &[RedirectTarget],
    egress: Option<EgressAction>,
    without_frags: bool,
) -> Result<Vec<EgressProgram>> {
    let mut map: DevMap<MapData> = bpf::take_map(object, "targets")?;
    let mut programs = Vec::new();
    for (index, target) in (0..).zip(targets) {
        let program = egress.map(|action| EgressProgram::load(action, target.mac, without_frags)).transpose()?;
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
    fn load(action: EgressAction, MacAddr([a, b, c, d, e, f]): MacAddr, without_frags: bool) -> Result<Self> {
        let verdict = match action {
            EgressAction::Forward => XDP_PASS,
            EgressAction::Drop => XDP_DROP,
        };
        let mac = [("mac_0", [a, b]), ("mac_2", [c, d]), ("mac_4", [e, f])];
        let mac = mac.map(|(name, bytes)| (name, u16::from_ne_bytes(bytes).into()));
        let globals = mac.into_iter().chain([("action", verdict)]).collect();
        let mut object = bpf::load(bpf::EGRESS, &bpf::Object { globals, without_frags, ..bpf::Object::default() })?;
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
