//! `drop`, `pass` and `tx`: one of our programs on an interface of the machine.

use std::time::Instant;

use nix::errno::Errno;

use super::counters::{Counters, Group, Place};
use super::event::{End, EndedBy, InterfaceCounted, Start};
use super::interval::Interval;
use super::session::Source;
use super::softirq::SoftirqAccount;
use crate::bpf;
use crate::device::{Attachment, DutProgram, ProgramSpec};
use crate::error::{Error, Result};
use crate::host;
use crate::netlink::{Channels, Ethtool, LinkInfo, LinkStats, Rtnl, XdpMode};
use crate::observe::{Figure, Interface, Observers, Watch};
use crate::reading::Reading;
use crate::sys::ethtool::EthtoolIoctl;
use crate::topology::NetNs;

/// A program attached to an interface of the calling thread's network namespace, and what is counted of it. Dropping it
/// detaches, and so does the end of the process.
pub struct BasicDevice {
    _attachment: Attachment,
    program: DutProgram,
    observers: Reading<Observers>,
    softirqs: SoftirqAccount,
    rtnl: Rtnl,
    link: LinkInfo,
    start: Start,
}

impl BasicDevice {
    /// Loads and attaches the program. Nothing is changed where that is refused.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, it is in use (unless `force`), it has a program already,
    /// or it can't run one in this mode.
    pub fn attach(name: &str, spec: ProgramSpec, mode: XdpMode, force: bool) -> Result<Self> {
        host::require_privileges()?;
        let mut rtnl = Rtnl::open()?;
        let link = rtnl.link_by_name(name)?;
        if !force {
            host::require_unused(name)?;
        }
        let channels_before = channels(link.ifindex);
        let rx_queues = rx_queues(&link, &channels_before);
        let program = DutProgram::load(spec, rx_queues)?;
        let attachment = Attachment::attach(program.fd(), link.ifindex, mode)?;
        let watch = Watch {
            device: Interface { ifindex: link.ifindex, netns: NetNs::current()?.inode() },
            xmit_to: Interface::default(),
        };
        let observers = Observers::attach_only(watch, &[Figure::Exceptions]).into();
        // Last, so that its counters are as old as the first reading that follows.
        let link = rtnl.link_by_index(link.ifindex)?;
        let start = Start {
            command: spec.action.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            argv: std::env::args().collect(),
            interface: link.name.clone(),
            ifindex: link.ifindex,
            driver: EthtoolIoctl::open().and_then(|ioctl| ioctl.driver_info(name)).map(|info| info.driver).into(),
            xdp_mode: attachment.mode(),
            program: spec.to_string(),
            program_id: link.xdp.first().map_or(0, |attached| attached.prog_id),
            frags: bpf::takes_frags(),
            rx_queues,
            channels_before,
            channels_after: channels(link.ifindex),
            started: String::new(),
        };
        Ok(Self {
            _attachment: attachment,
            program,
            observers,
            softirqs: SoftirqAccount::open(link.ifindex),
            rtnl,
            link,
            start,
        })
    }

    /// What is attached where, once the first reading has been made.
    #[must_use]
    pub fn start(&self, started: String) -> Start {
        Start { started, ..self.start.clone() }
    }

    /// The end of a command on this device.
    #[must_use]
    pub fn end(&mut self, total: Interval, ended_by: EndedBy) -> End {
        let received = total.received.as_ref().filter(|received| received.packets > 0);
        End {
            softirq: received.map(|received| self.softirqs.close(received)),
            interface: self.interface(),
            total,
            ended_by,
        }
    }

    /// What the interface itself has counted since the program was attached.
    fn interface(&mut self) -> Reading<InterfaceCounted> {
        let not_told = || Reading::not_available("the kernel left IFLA_STATS64 out");
        let now = match self.rtnl.link_by_index(self.link.ifindex) {
            Ok(link) => link.stats,
            Err(error) => return Reading::not_available(error.to_string()),
        };
        now.zip(self.link.stats).map_or_else(not_told, |(now, before): (LinkStats, LinkStats)| {
            Reading::Known(InterfaceCounted {
                rx_packets: now.rx_packets.saturating_sub(before.rx_packets),
                tx_packets: now.tx_packets.saturating_sub(before.tx_packets),
            })
        })
    }
}

impl Source for BasicDevice {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let queues = self.program.counts()?;
        let places = (0u32..)
            .zip(queues)
            .flat_map(|(queue, cpus)| (0u32..).zip(cpus).map(move |(cpu, counts)| (Place { queue, cpu }, counts)));
        let received = Group { at, rows: places.collect() };
        let at_exceptions = Instant::now();
        let exceptions = self.observers.as_ref().and_then(Observers::exceptions_per_cpu).map(|verdicts| {
            let rows = verdicts.into_iter().flat_map(|(verdict, cpus)| {
                (0u32..).zip(cpus).map(move |(cpu, packets)| ((verdict.clone(), cpu), packets))
            });
            Group { at: at_exceptions, rows: rows.collect() }
        });
        Ok(Counters { at, received: Some(received), exceptions: Some(exceptions) })
    }

    fn check(&mut self) -> Result<()> {
        self.rtnl.link_by_index(self.link.ifindex).map(|_| ()).map_err(|error| match error.errno() {
            Some(Errno::ENODEV) => {
                let what = format!("count packets of {} (ifindex {})", self.link.name, self.link.ifindex);
                Error::invalid(what, "the interface is gone")
            }
            _ => error,
        })
    }
}

fn channels(ifindex: u32) -> Reading<Channels> {
    Ethtool::open().and_then(|mut ethtool| ethtool.channels(ifindex)).into()
}

/// The RX queues that packets can come from: those the interface was made with, of which the channels in use are a part
/// that can change while a program is attached.
fn rx_queues(link: &LinkInfo, channels: &Reading<Channels>) -> u32 {
    let in_use = channels.known().map_or(0, |channels| channels.rx.unwrap_or(0) + channels.combined.unwrap_or(0));
    link.rx_queues.unwrap_or(1).max(in_use).max(1)
}
