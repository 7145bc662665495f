//! The laboratory: a veth pair between two namespaces, one end for the generator and one for the device under test; and where
//! that redirects, a second pair to a third namespace.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;

use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use super::interface::{Interface, has_ipv6};
use super::netns::NetNs;
use super::placement::{Placement, PlacementState};
use crate::error::{Error, Result};
use crate::netlink::{Ethtool, VethEnd};
use crate::packet::MacAddr;
use crate::reading::Reading;
use crate::sys::ethtool::{DriverInfo, EthtoolIoctl};

/// An end of a veth pair. Its MAC address is locally administered (the bit 0x02 of the first byte), and the bytes after it
/// spell "XDP". Its IPv4 address is of 198.18.0.0/15, set aside for benchmarks of network devices (RFC 2544, appendix C.2.2),
/// its IPv6 address of 2001:2::/48, set aside for the same (RFC 5180, section 8, erratum 1752).
#[derive(Clone, Copy)]
struct End {
    name: &'static str,
    /// Which of its pair's two subnets of these it is in.
    subnet: u8,
    /// Its number in all of its addresses.
    number: u8,
}

const GENERATOR: End = End { name: "gen0", subnet: 0, number: 1 };
const DUT: End = End { name: "dut0", subnet: 0, number: 2 };
/// The name of the interface that the lab brings for programs that redirect.
pub const REDIRECT_TARGET: &str = "out0";
const OUT: End = End { name: REDIRECT_TARGET, subnet: 1, number: 1 };
const SINK: End = End { name: "sink0", subnet: 1, number: 2 };
const IPV4_PREFIX_LEN: u8 = 24;
const IPV6_PREFIX_LEN: u8 = 64;
/// Why a port has no IPv6 address.
const NO_IPV6: &str = "the kernel has no IPv6: /proc/net/if_inet6 is not there";
/// Why an interface that is not of a lab has no addresses here.
const NOT_READ: &str = "the interface is not of a lab, and its addresses have no part in the run";

/// What lab to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabSpec {
    /// Receive queues and transmit queues of each end, 1 to 4096. Native XDP on veth needs as many receive queues as the
    /// peer has transmit queues.
    pub queues: u16,
    /// The MTU of all ends in bytes.
    pub mtu: u32,
    /// Which CPU runs what.
    pub placement: Placement,
    /// Whether there is a second pair, for programs that redirect; see [`Exit`].
    pub exit: bool,
    /// Offloads of all ends, each by a name that [`Ethtool::set_offloads`] takes; those not named stay as veth has them.
    pub offloads: Vec<(String, bool)>,
}

impl LabSpec {
    /// The most queues of an end (`veth_get_num_queues`, `drivers/net/veth.c`).
    pub const MAX_QUEUES: u16 = 4096;

    /// One queue, 1500 bytes, and no offload that merges or splits packets or leaves checksums to the receiver.
    #[must_use]
    pub fn new(placement: Placement) -> Self {
        let off = |name: &str| (name.to_owned(), false);
        Self { queues: 1, mtu: 1500, placement, exit: false, offloads: ["gro", "gso", "tso", "tx"].map(off).to_vec() }
    }
}

/// One end of the veth pair in its namespace.
#[derive(Debug)]
pub struct Port {
    /// The namespace.
    pub netns: NetNs,
    /// The interface's name.
    pub name: String,
    /// The interface's number in the namespace.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address; where the kernel has no IPv6, only the frames of a generator can carry it.
    pub ipv6: Ipv6Addr,
}

/// The pairs and their namespaces; the kernel sends nothing through them on its own. Dropping it removes everything.
#[derive(Debug)]
pub struct Lab {
    spec: LabSpec,
    /// The end that sends.
    pub generator: Port,
    /// The end whose XDP program is measured.
    pub dut: Port,
    /// Where its program redirects to, if the lab was asked for it.
    pub exit: Option<Exit>,
}

/// A second veth pair, for programs that redirect.
#[derive(Debug)]
pub struct Exit {
    /// The end that frames are redirected to, [`REDIRECT_TARGET`], in the namespace of the DUT.
    pub out: Port,
    /// The end that receives them, in a namespace of its own. It takes redirected frames once it has NAPI: an XDP program, or
    /// GRO.
    pub sink: Port,
}

impl Lab {
    /// Builds the lab, and waits until frames can pass.
    ///
    /// # Errors
    /// If the machine or the kernel can't hold what `spec` asks for; then nothing is left behind.
    pub fn build(spec: &LabSpec) -> Result<Self> {
        spec.placement.check()?;
        // Until a pair is complete the namespaces alone own it: without them it goes too.
        let (generator, dut) = pair(spec, (GENERATOR, NetNs::new()?), (DUT, NetNs::new()?))?;
        let mut lab = Self { spec: spec.clone(), generator, dut, exit: None };
        if spec.exit {
            let (out, sink) = pair(spec, (OUT, lab.dut.netns.try_clone()?), (SINK, NetNs::new()?))?;
            lab.exit = Some(Exit { out, sink });
        }
        Ok(lab)
    }

    /// What the lab was built from.
    #[must_use]
    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    /// Makes the DUT's NAPI run where the placement wants it, and reads that back. To be called whenever an XDP program
    /// was attached to an end that had none: veth has NAPI only from then on, and new threads are not pinned.
    ///
    /// # Errors
    /// If the placement can't be met.
    pub fn apply_placement(&self) -> Result<PlacementState> {
        self.spec.placement.apply(&self.dut)
    }

    /// The lab as it is now; links, queues, offloads and drivers are read back from the kernel.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn describe(&self) -> Result<LabDescription> {
        Ok(LabDescription {
            placement: self.spec.placement,
            generator: Some(self.generator.describe()?),
            dut: self.dut.describe()?,
            exit: match &self.exit {
                Some(Exit { out, sink }) => vec![out.describe()?, sink.describe()?],
                None => Vec::new(),
            },
        })
    }
}

/// Makes a pair, and waits until frames can pass.
fn pair(spec: &LabSpec, (near, near_netns): (End, NetNs), (far, far_netns): (End, NetNs)) -> Result<(Port, Port)> {
    let veth = |End { name, .. }, netns, mac| VethEnd { name, netns, mac, queues: spec.queues, mtu: spec.mtu };
    let ends = [veth(near, near_netns.as_fd(), near.mac()), veth(far, far_netns.as_fd(), far.mac())];
    near_netns.rtnl()?.add_veth(ends)?;
    let (near, far) = (Port::find(near_netns, near)?, Port::find(far_netns, far)?);
    near.configure(spec, &far)?;
    far.configure(spec, &near)?;
    near.await_ready()?;
    far.await_ready()?;
    Ok((near, far))
}

impl End {
    fn mac(self) -> MacAddr {
        MacAddr([0x02, 0x58, 0x44, 0x50, self.subnet, self.number])
    }

    fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.subnet, self.number)
    }

    fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 2, 0, self.subnet.into(), 0, 0, 0, self.number.into())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The namespaces would take the pairs with them, but only some time after they are closed, and not while a socket
        // still holds one.
        let near = [Some(&self.dut), self.exit.as_ref().map(|exit| &exit.out)];
        for port in near.into_iter().flatten() {
            drop(port.netns.rtnl().and_then(|mut rtnl| rtnl.delete_link(port.ifindex)));
        }
    }
}

impl Port {
    fn find(netns: NetNs, end: End) -> Result<Self> {
        let ifindex = netns.rtnl()?.link_by_name(end.name)?.ifindex;
        Ok(Self { netns, name: end.name.to_owned(), ifindex, mac: end.mac(), ipv4: end.ipv4(), ipv6: end.ipv6() })
    }

    /// Goes up, sets offloads and gets addresses and the peer as a static neighbour.
    fn configure(&self, spec: &LabSpec, peer: &Self) -> Result<()> {
        self.interface().configure(
            spec.offloads.iter().map(|(name, on)| (name.as_str(), *on)),
            [(self.ipv4.into(), IPV4_PREFIX_LEN), (self.ipv6.into(), IPV6_PREFIX_LEN)],
            [(peer.ipv4.into(), peer.mac), (peer.ipv6.into(), peer.mac)],
        )
    }

    fn await_ready(&self) -> Result<()> {
        self.interface().await_ready(&[self.ipv4.into(), self.ipv6.into()])
    }

    fn interface(&self) -> Interface<'_> {
        Interface { netns: &self.netns, name: &self.name, ifindex: self.ifindex }
    }

    /// The port as it is now: its link, queues, offloads and driver are read back from the kernel.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn describe(&self) -> Result<PortDescription> {
        Ok(PortDescription {
            mac: Reading::Known(self.mac),
            ipv4: Reading::Known(self.ipv4),
            ipv6: if has_ipv6() { Reading::Known(self.ipv6) } else { Reading::not_available(NO_IPV6) },
            ..PortDescription::read(&self.netns, self.ifindex)?
        })
    }
}

impl PortDescription {
    /// An interface as it is now: its link, queues, offloads and driver are read from the kernel, its addresses are not.
    ///
    /// # Errors
    /// If there is no such interface, or the kernel does not answer.
    pub fn read(netns: &NetNs, ifindex: u32) -> Result<Self> {
        let link = netns.rtnl()?.link_by_index(ifindex)?;
        let mut ethtool = netns.run(Ethtool::open)?;
        let (features, channels) = (ethtool.features(ifindex)?, ethtool.channels(ifindex)?);
        let queues = |own: Option<u32>| Some(own.unwrap_or(0) + channels.combined.unwrap_or(0)).filter(|sum| *sum > 0);
        Ok(Self {
            ifindex,
            mac: link.mac.ok_or("it has no Ethernet address").into(),
            ipv4: Reading::not_available(NOT_READ),
            ipv6: Reading::not_available(NOT_READ),
            mtu: link.mtu,
            rx_queues: queues(channels.rx),
            tx_queues: queues(channels.tx),
            features_on: features.into_iter().filter(|feature| feature.on).map(|feature| feature.name).collect(),
            driver: netns.run(EthtoolIoctl::open)?.driver_info(&link.name)?,
            name: link.name,
            netns_inode: netns.inode(),
        })
    }
}

/// A lab, or the interface measured, as the record keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabDescription {
    /// Which CPU runs what, as asked for; [`PlacementState`] says what was done.
    #[serde(flatten)]
    pub placement: Placement,
    /// The end that sends; `None` where traffic comes from outside.
    pub generator: Option<PortDescription>,
    /// The interface whose XDP program is measured.
    pub dut: PortDescription,
    /// Where its program redirects to: the interface, and in a lab the one behind it; empty where nothing redirects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exit: Vec<PortDescription>,
}

/// An interface as the record keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDescription {
    /// The interface's name.
    pub name: String,
    /// The interface's number in its namespace.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: Reading<MacAddr>,
    /// Its IPv4 address.
    pub ipv4: Reading<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Reading<Ipv6Addr>,
    /// Its MTU in bytes: the payload of a frame, without the Ethernet header.
    pub mtu: u32,
    /// Its receive queues in use.
    pub rx_queues: Option<u32>,
    /// Its transmit queues in use.
    pub tx_queues: Option<u32>,
    /// Every offload feature that is on, by the kernel's name; all others are off.
    pub features_on: Vec<String>,
    /// Its driver.
    pub driver: DriverInfo,
    /// The number of its namespace, as `lsns` shows it.
    pub netns_inode: u64,
}

/// The largest MTU in bytes of a veth end whose peer runs native XDP; `frags` says whether the program takes frames of
/// several buffers (`xdp.frags`, Linux 5.18 and later). Above it the attachment fails with `ERANGE`.
///
/// The formula is `veth_xdp_set`'s (`drivers/net/veth.c`): a page less the headroom, the `skb_shared_info` at its end and
/// the Ethernet header, with frags `MAX_SKB_FRAGS` more pages. The sizes are those of 64-bit kernels with 64-byte cache
/// lines and the default of 17 fragments; [`crate::netlink::LinkInfo::max_mtu`] of the peer tells the kernel's own result
/// once a program is attached.
///
/// # Errors
/// If the page size is unknown.
pub fn native_xdp_mtu_limit(frags: bool) -> Result<u32> {
    const XDP_PACKET_HEADROOM: u32 = 256;
    /// 2 (`include/linux/skbuff.h`) but where the architecture says 0, as these two do in their `asm/processor.h`.
    const NET_IP_ALIGN: u32 = if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) { 0 } else { 2 };
    const SKB_SHARED_INFO: u32 = 320;
    const ETH_HLEN: u32 = 14;
    const MAX_SKB_FRAGS: u32 = 17;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| u32::try_from(size).ok());
    let page =
        page.ok_or_else(|| Error::unsupported("compute the MTU limit of native XDP", "the page size is unknown"))?;
    let one_buffer = page - XDP_PACKET_HEADROOM - NET_IP_ALIGN - SKB_SHARED_INFO - ETH_HLEN;
    Ok(if frags { one_buffer + page * MAX_SKB_FRAGS } else { one_buffer })
}
