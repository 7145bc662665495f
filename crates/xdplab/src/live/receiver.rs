//! The interface on which a live command receives: looked at, given a program, and read at the end.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::counters::Group;
use super::event::{Attached, InterfaceCounted, Start};
use super::readings;
use super::signals::Signals;
use super::softirq::SoftirqAccount;
use crate::bpf;
use crate::device::Attachment;
use crate::error::Result;
use crate::host;
use crate::netlink::{Channels, LinkInfo, Rtnl, XdpMode};
use crate::observe::{Figure, Interface, Observers, Watch};
use crate::reading::Reading;
use crate::topology::NetNs;

/// Packets on their way arrive within this time once the program is gone.
pub(super) const SETTLED_WITHIN: Duration = Duration::from_millis(500);

/// An interface that may be taken, before anything has been changed.
pub(super) struct Target {
    rtnl: Rtnl,
    pub(super) link: LinkInfo,
    channels: Reading<Channels>,
    /// RX queues that packets can come from: those the interface was made with, of which the channels in use are a part
    /// that can change while a program is attached.
    pub(super) rx_queues: u32,
}

/// What is told of a program.
pub(super) struct Program<'a> {
    pub(super) command: String,
    pub(super) name: String,
    pub(super) fd: BorrowedFd<'a>,
}

/// The interface with the program attached. Dropping it detaches, and so does the end of the process.
pub(super) struct Receiver {
    attachment: Option<Attachment>,
    pub(super) observers: Reading<Observers>,
    pub(super) softirqs: SoftirqAccount,
    rtnl: Rtnl,
    link: LinkInfo,
    start: Start,
}

impl Target {
    /// Looks at an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, or it is in use (unless `force`).
    pub(super) fn open(name: &str, force: bool) -> Result<Self> {
        host::require_privileges()?;
        bpf::read_types_ahead();
        let mut rtnl = Rtnl::open()?;
        let link = rtnl.link_by_name(name)?;
        if !force {
            host::require_unused(name)?;
        }
        let channels = readings::channels(link.ifindex);
        let rx_queues = readings::rx_queues(&link, &channels);
        Ok(Self { rtnl, link, channels, rx_queues })
    }

    /// Attaches the program, and watches `figures` of the interface; `xmit_to` is where frames are redirected to.
    ///
    /// # Errors
    /// It has a program already, or can't run one in this mode.
    pub(super) fn attach(
        self,
        program: &Program<'_>,
        mode: XdpMode,
        figures: &[Figure],
        xmit_to: u32,
    ) -> Result<Receiver> {
        let Self { mut rtnl, link, channels: channels_before, rx_queues } = self;
        let netns = NetNs::current()?.inode();
        let watch = Watch {
            device: Interface { ifindex: link.ifindex, netns },
            xmit_to: Interface { ifindex: xmit_to, netns },
        };
        // Before the first packet, so that what they count belongs to what the program counts.
        let observers = observe(|| Observers::attach_only(watch, figures));
        let attachment = Attachment::attach(program.fd, link.ifindex, mode)?;
        // Last, so that its counters are as old as the first reading that follows.
        let link = rtnl.link_by_index(link.ifindex)?;
        let attached = Attached {
            interface: link.name.clone(),
            ifindex: link.ifindex,
            driver: readings::driver(&link.name),
            xdp_mode: attachment.mode(),
            program: program.name.clone(),
            program_id: link.xdp.first().map_or(0, |attached| attached.prog_id),
            frags: bpf::takes_frags(),
            rx_queues,
            channels_before,
            channels_after: readings::channels(link.ifindex),
        };
        let start = Start { attached: Some(attached), ..Start::of(&program.command) };
        Ok(Receiver {
            attachment: Some(attachment),
            observers,
            softirqs: SoftirqAccount::open(&[link.ifindex]),
            rtnl,
            link,
            start,
        })
    }
}

/// Attaches observers once this kernel's types are read, which takes longer than all the rest of a start, unless a signal that ends
/// the command comes before.
pub(super) fn observe<T>(attach: impl FnOnce() -> Result<T>) -> Reading<T> {
    bpf::read_types_ahead();
    if !Signals::await_that(bpf::types_are_read) {
        return Reading::not_available("the command was ended before it observed anything");
    }
    attach().into()
}

impl Receiver {
    /// What is attached where, once the first reading has been made.
    pub(super) fn start(&self, started: String) -> Start {
        Start { started, ..self.start.clone() }
    }

    /// Takes the program away, so that no further packet comes.
    pub(super) fn detach(&mut self) {
        self.attachment = None;
    }

    /// Verdicts that the driver could not carry out.
    pub(super) fn exceptions(&self) -> Reading<Group<(String, u32), u64>> {
        readings::named(|| self.observers.as_ref().and_then(Observers::exceptions_per_cpu))
    }

    /// What the interface itself has counted since the program was attached.
    pub(super) fn interface(&mut self) -> Reading<InterfaceCounted> {
        readings::counted_since(&mut self.rtnl, &self.link)
    }

    /// Succeeds as long as the interface is there.
    pub(super) fn check(&mut self) -> Result<()> {
        readings::check_there(&mut self.rtnl, &self.link)
    }
}
