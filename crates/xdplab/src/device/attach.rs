//! Attaching: native by default, never a silent fallback, never in place of somebody's program, read back afterwards.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::netlink::{LinkInfo, Rtnl, XdpMode};
use crate::observe::AttachMessage;
use crate::sys::link;

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE`, include/uapi/linux/if_link.h.
const SKB_MODE: u32 = 1 << 1;
const DRV_MODE: u32 = 1 << 2;

/// A program on an interface; dropping it, or the end of the process, detaches.
#[derive(Debug)]
pub struct Attachment {
    link: OwnedFd,
    mode: XdpMode,
}

impl Attachment {
    /// Attaches `program` to the interface, in the calling thread's network namespace, and reads the mode back.
    ///
    /// # Errors
    /// A program is there already, the driver or its settings do not allow it, or the kernel says another mode than asked.
    pub fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> Result<Self> {
        let mut rtnl = Rtnl::open()?;
        let interface = rtnl.link_by_index(ifindex)?;
        refuse_occupied(&interface)?;
        let flags = match mode {
            XdpMode::Native => DRV_MODE,
            XdpMode::Generic => SKB_MODE,
            XdpMode::Offload => {
                return Err(Error::unsupported(
                    what(&interface, mode),
                    "programs are not offloaded to NICs by this tool",
                ));
            }
        };
        let link = link::create_xdp(program, ifindex, flags)
            .or_else(|errno| refused(program, &interface, mode, flags, errno))?;
        let attached = rtnl.link_by_index(ifindex)?.xdp;
        if attached.iter().map(|attached| attached.mode).ne([mode]) {
            return Err(Error::invalid(
                what(&interface, mode),
                format!("the kernel says {attached:?} after attaching, which is not what was asked"),
            ));
        }
        Ok(Self { link, mode })
    }

    /// Puts another program in the place of the attached one, while packets go on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn replace(&self, program: BorrowedFd<'_>) -> Result<()> {
        link::update_xdp(self.link.as_fd(), program)
            .map_err(|errno| Error::syscall("replace our attached XDP program", "bpf(BPF_LINK_UPDATE)", errno))
    }

    /// The mode, as the kernel says it.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        self.mode
    }
}

fn what(interface: &LinkInfo, mode: XdpMode) -> String {
    format!("attach an XDP program to {} (ifindex {}) in {mode} mode", interface.name, interface.ifindex)
}

fn refuse_occupied(interface: &LinkInfo) -> Result<()> {
    let Some(there) = interface.xdp.first() else { return Ok(()) };
    let name = aya::programs::loaded_programs()
        .filter_map(std::result::Result::ok)
        .find(|program| program.id() == there.prog_id)
        .and_then(|program| program.name_as_str().map(str::to_owned))
        .unwrap_or_default();
    Err(Error::invalid(
        format!("attach an XDP program to {} (ifindex {})", interface.name, interface.ifindex),
        format!("a program is there already: id {}, name `{name}`, {} mode", there.prog_id, there.mode),
    )
    .remedy("it is left alone; detach it first, if it is yours"))
}

/// Asks once more with an ear to the kernel, so that its reason gets into the error; the first try is silent since the
/// listener takes a tenth of a second to set up.
fn refused(program: BorrowedFd<'_>, interface: &LinkInfo, mode: XdpMode, flags: u32, errno: Errno) -> Result<OwnedFd> {
    let listener = AttachMessage::listen();
    let errno = match link::create_xdp(program, interface.ifindex, flags) {
        Ok(link) => return Ok(link),
        Err(again) if listener.is_some() => again,
        Err(_) => errno,
    };
    let error = Error::syscall(what(interface, mode), "bpf(BPF_LINK_CREATE)", errno)
        .kernel_says(listener.map(|listener| listener.text()).unwrap_or_default());
    Err(match (errno, mode) {
        (Errno::EBUSY, _) => error.remedy("detach what is on the interface first"),
        (Errno::EOPNOTSUPP, XdpMode::Native) => error.remedy("the driver has no native XDP; ask for skb mode"),
        (Errno::ERANGE | Errno::EINVAL, XdpMode::Native) => error.remedy(format!(
            "its MTU is {}: lower it (of a veth the peer's), or ask for skb mode; xdplab doctor {} says the limit",
            interface.mtu, interface.name
        )),
        (Errno::EPERM, _) => error.remedy("run as root, or with CAP_BPF and CAP_NET_ADMIN"),
        _ => error,
    })
}
