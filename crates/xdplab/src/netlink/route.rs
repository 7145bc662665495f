//! The `rtnetlink` family: links, addresses, neighbours and routes.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags,
    LinkInfo as LinkInfoAttribute, LinkMessage, LinkXdp, State, Stats64,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::socket::Socket;
use crate::error::{Error, Result};
use crate::packet::MacAddr;

/// The longest interface name in bytes: `IFNAMSIZ` (`include/uapi/linux/if.h`) less its NUL.
const NAME_MAX: usize = 15;

/// An `rtnetlink` socket.
pub struct Rtnl {
    socket: Socket,
}

/// What the kernel says about a network interface (`RTM_GETLINK`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkInfo {
    /// The interface's number in its network namespace.
    pub ifindex: u32,
    /// The interface's name.
    pub name: String,
    /// The Ethernet address; `None` where the interface has none of 6 bytes.
    pub mac: Option<MacAddr>,
    /// The largest payload of one frame in bytes, without the Ethernet header and FCS.
    pub mtu: u32,
    /// The largest MTU it takes now, where the driver knows one. On veth the peer's native XDP program lowers it.
    pub max_mtu: Option<u32>,
    /// Whether the interface was set up (`IFF_UP`).
    pub up: bool,
    /// Whether it says that it carries frames (`IF_OPER_UP` of RFC 2863): the carrier was seen and the transmit queues
    /// were started. `IFF_RUNNING` is no substitute, since it counts "unknown" too, the state of a veth end whose carrier
    /// was not looked at yet and which drops what it is to send. Some interfaces (`lo`) never say so.
    pub oper_up: bool,
    /// Whether frames bypass address resolution (`IFF_NOARP`).
    pub no_arp: bool,
    /// The kind of a virtual interface, e.g. `veth`; `None` for most hardware.
    pub kind: Option<String>,
    /// Free text that somebody gave it (`ip link set alias`).
    pub alias: Option<String>,
    /// The receive queues the interface was made with; [`super::Channels`] tells those in use.
    pub rx_queues: Option<u32>,
    /// The transmit queues the interface was made with.
    pub tx_queues: Option<u32>,
    /// The other end of a veth pair (for other kinds the lower interface).
    pub peer: Option<Peer>,
    /// Every XDP program attached, by mode.
    pub xdp: Vec<XdpAttached>,
    /// The counters; `None` where the kernel left them out.
    pub stats: Option<LinkStats>,
}

/// The interface that another one names as its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its number in its own network namespace.
    pub ifindex: u32,
    /// The id by which the asking namespace knows the peer's; `None` if both are in the same one.
    pub netnsid: Option<i32>,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// On `sk_buff`s (`XDP_FLAGS_SKB_MODE`), also called generic XDP.
    #[serde(rename = "skb")]
    Generic,
    /// In the NIC (`XDP_FLAGS_HW_MODE`).
    Offload,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "skb",
            Self::Offload => "offload",
        })
    }
}

/// An XDP program on an interface (`IFLA_XDP`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct XdpAttached {
    /// How it is attached.
    pub mode: XdpMode,
    /// The kernel's id of the program.
    pub prog_id: u32,
}

/// The interface's counters (`IFLA_STATS64`, `struct rtnl_link_stats64`) since it was made. Bytes are the driver's
/// count: with the Ethernet header, without the FCS on veth and most NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the kernel's, told in Documentation/networking/statistics.rst")]
pub struct LinkStats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

/// One end of a veth pair to make.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Its name.
    pub name: &'a str,
    /// The network namespace to put it in.
    pub netns: BorrowedFd<'a>,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its receive queues and its transmit queues, 1 to 4096.
    pub queues: u16,
    /// Its MTU in bytes.
    pub mtu: u32,
}

impl Rtnl {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(NETLINK_ROUTE)? })
    }

    /// Every interface of the namespace.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn links(&mut self) -> Result<Vec<LinkInfo>> {
        let request = Message::GetLink(LinkMessage::default());
        let answers = self.socket.request("netlink(RTM_GETLINK)", "list the interfaces", request, NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(link_of).collect())
    }

    /// The interface called `name`.
    ///
    /// # Errors
    /// If there is none (the remedy lists those there are), or no interface can have this name.
    pub fn link_by_name(&mut self, name: &str) -> Result<LinkInfo> {
        let what = format!("find interface {name:?}");
        check_name(&what, name)?;
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.link(&what, message)
    }

    /// The interface with number `ifindex`.
    ///
    /// # Errors
    /// If there is none; the remedy lists those there are.
    pub fn link_by_index(&mut self, ifindex: u32) -> Result<LinkInfo> {
        self.link(&format!("find the interface with ifindex {ifindex}"), link_message(ifindex))
    }

    fn link(&mut self, what: &str, message: LinkMessage) -> Result<LinkInfo> {
        match self.socket.request("netlink(RTM_GETLINK)", what, Message::GetLink(message), 0) {
            Ok(answers) => answers
                .iter()
                .find_map(link_of)
                .ok_or_else(|| Error::invalid(what, "netlink(RTM_GETLINK): the kernel named no interface")),
            Err(error) if error.errno() == Some(Errno::ENODEV) => {
                let names: Vec<_> = self.links()?.into_iter().map(|link| link.name).collect();
                Err(error.remedy(format!("there are here: {}", names.join(", "))))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a veth pair; each end has its name, namespace, address and queues from the start.
    ///
    /// # Errors
    /// If an end can't be made so; then neither is.
    pub fn add_veth(&mut self, ends: [VethEnd<'_>; 2]) -> Result<()> {
        let [end, peer] = ends;
        let what = format!("make the veth pair {} and {}", end.name, peer.name);
        check_name(&what, end.name)?;
        check_name(&what, peer.name)?;
        let mut message = veth_message(end);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfoAttribute::Kind(InfoKind::Veth),
            LinkInfoAttribute::Data(InfoData::Veth(InfoVeth::Peer(veth_message(peer)))),
        ]));
        self.act("netlink(RTM_NEWLINK)", &what, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes a bridge, with neither spanning tree nor VLANs.
    ///
    /// # Errors
    /// If there is an interface of this name, or the kernel has no bridges.
    pub fn add_bridge(&mut self, name: &str) -> Result<()> {
        let what = format!("make the bridge {name}");
        check_name(&what, name)?;
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfoAttribute::Kind(InfoKind::Bridge)]),
        ];
        self.act("netlink(RTM_NEWLINK)", &what, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes the interface a port of the bridge with number `bridge`.
    ///
    /// # Errors
    /// If that is no bridge, or the interface can't be a port.
    pub fn set_bridge(&mut self, ifindex: u32, bridge: u32) -> Result<()> {
        let mut message = link_message(ifindex);
        message.attributes.push(LinkAttribute::Controller(bridge));
        let what = format!("make the interface with ifindex {ifindex} a port of the one with ifindex {bridge}");
        self.act("netlink(RTM_SETLINK)", &what, Message::SetLink(message), 0)
    }

    /// Gives the interface free text of at most 255 bytes (`IFALIASZ`, `include/uapi/linux/if.h`).
    ///
    /// # Errors
    /// If the text is longer.
    pub fn set_alias(&mut self, ifindex: u32, alias: &str) -> Result<()> {
        let mut message = link_message(ifindex);
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        let what = format!("give the interface with ifindex {ifindex} the alias {alias:?}");
        self.act("netlink(RTM_SETLINK)", &what, Message::SetLink(message), 0)
    }

    /// Sets the interface up.
    ///
    /// # Errors
    /// If the kernel or its driver refuses.
    pub fn set_up(&mut self, ifindex: u32) -> Result<()> {
        self.set_flag(&format!("set the interface with ifindex {ifindex} up"), ifindex, LinkFlags::Up, true)
    }

    /// Sets the interface down.
    ///
    /// # Errors
    /// If the kernel or its driver refuses.
    pub fn set_down(&mut self, ifindex: u32) -> Result<()> {
        self.set_flag(&format!("set the interface with ifindex {ifindex} down"), ifindex, LinkFlags::Up, false)
    }

    /// Lets frames bypass address resolution (`IFF_NOARP`): the kernel sends no ARP, no neighbour discovery and no
    /// multicast listener report through the interface. Neighbours must be static, and are to be added after this.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_no_arp(&mut self, ifindex: u32) -> Result<()> {
        let what = format!("switch ARP off on the interface with ifindex {ifindex}");
        self.set_flag(&what, ifindex, LinkFlags::Noarp, true)
    }

    /// Keeps the kernel from giving the interface an IPv6 link-local address when it goes up, and so from sending router
    /// solicitations through it.
    ///
    /// # Errors
    /// If the kernel has no IPv6.
    pub fn set_no_link_local_address(&mut self, ifindex: u32) -> Result<()> {
        let what = format!("keep the interface with ifindex {ifindex} without a link-local address");
        let mut message = link_message(ifindex);
        message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![
            AfSpecInet6::AddrGenMode(In6AddrGenMode::None),
        ])]));
        self.act("netlink(RTM_SETLINK)", &what, Message::SetLink(message), 0)
    }

    fn set_flag(&mut self, what: &str, ifindex: u32, flag: LinkFlags, on: bool) -> Result<()> {
        let mut message = link_message(ifindex);
        message.header.flags.set(flag, on);
        message.header.change_mask = flag;
        self.act("netlink(RTM_SETLINK)", what, Message::SetLink(message), 0)
    }

    /// Sets the interface's MTU in bytes.
    ///
    /// # Errors
    /// If it is out of the range of the driver, or of the XDP program that is attached.
    pub fn set_mtu(&mut self, ifindex: u32, mtu: u32) -> Result<()> {
        let mut message = link_message(ifindex);
        message.attributes.push(LinkAttribute::Mtu(mtu));
        let what = format!("set the MTU of the interface with ifindex {ifindex} to {mtu}");
        self.act("netlink(RTM_SETLINK)", &what, Message::SetLink(message), 0)
    }

    /// Adds an address; an IPv6 one without duplicate address detection, so that it is usable at once.
    ///
    /// # Errors
    /// If it is there already, or the prefix is longer than the address.
    pub fn add_address(&mut self, ifindex: u32, address: IpAddr, prefix_len: u8) -> Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = ifindex;
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        if address.is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let what = format!("add {address}/{prefix_len} to the interface with ifindex {ifindex}");
        self.act("netlink(RTM_NEWADDR)", &what, Message::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route by way of `gateway` to the main table; a prefix of length 0 is the default route.
    ///
    /// # Errors
    /// If it is there already, or the gateway is not reached through an interface that is up.
    pub fn add_route(&mut self, (to, prefix_len): (IpAddr, u8), gateway: IpAddr) -> Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.destination_prefix_length = prefix_len;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Gateway(gateway.into()));
        if prefix_len > 0 {
            message.attributes.push(RouteAttribute::Destination(to.into()));
        }
        let what = format!("add the route to {to}/{prefix_len} via {gateway}");
        self.act("netlink(RTM_NEWROUTE)", &what, Message::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a permanent neighbour, or replaces the one that is there: frames to `address` go to `mac`.
    ///
    /// # Errors
    /// If the kernel refuses, e.g. on an interface that is down.
    pub fn add_neighbour(&mut self, ifindex: u32, address: IpAddr, mac: MacAddr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = ifindex;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes =
            vec![NeighbourAttribute::Destination(address.into()), NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())];
        let what = format!("make {address} the neighbour {mac} of the interface with ifindex {ifindex}");
        self.act("netlink(RTM_NEWNEIGH)", &what, Message::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes a virtual interface; of a veth pair both ends go.
    ///
    /// # Errors
    /// If there is none, or it can't be deleted.
    pub fn delete_link(&mut self, ifindex: u32) -> Result<()> {
        let what = format!("delete the interface with ifindex {ifindex}");
        self.act("netlink(RTM_DELLINK)", &what, Message::DelLink(link_message(ifindex)), 0)
    }

    /// The numbers of the interfaces that carry a default route, IPv4 or IPv6, in any routing table.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn default_route_ifindexes(&mut self) -> Result<BTreeSet<u32>> {
        let mut ifindexes = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let request = Message::GetRoute(message);
            let answers = self.socket.request("netlink(RTM_GETROUTE)", "list the routes", request, NLM_F_DUMP)?;
            let routes = answers.iter().filter_map(route_of);
            ifindexes.extend(routes.filter(|route| is_default(route)).flat_map(output_ifindexes));
        }
        Ok(ifindexes)
    }

    /// The number of the interface through which packets to `address` leave, e.g. those of the user's own SSH session.
    ///
    /// # Errors
    /// If there is no route.
    pub fn route_to(&mut self, address: IpAddr) -> Result<u32> {
        let routes = self.routes_to(address)?;
        let ifindex = routes.iter().filter_map(route_of).flat_map(output_ifindexes).next();
        ifindex.ok_or_else(|| {
            Error::invalid(format!("find the route to {address}"), "netlink(RTM_GETROUTE): it names no interface")
        })
    }

    /// Whether packets to `address` are received here. An IPv6 address is usable as a source at once when it was added,
    /// but the kernel takes in packets to it only some time later, when a worker has added its route.
    ///
    /// # Errors
    /// If there is no route at all.
    pub fn is_local(&mut self, address: IpAddr) -> Result<bool> {
        let routes = self.routes_to(address)?;
        Ok(routes.iter().filter_map(route_of).any(|route| route.header.kind == RouteType::Local))
    }

    fn routes_to(&mut self, address: IpAddr) -> Result<Vec<Message>> {
        let what = format!("find the route to {address}");
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        message.attributes.push(RouteAttribute::Destination(address.into()));
        self.socket.request("netlink(RTM_GETROUTE)", &what, Message::GetRoute(message), 0)
    }

    /// A request that is answered by nothing but its outcome.
    fn act(&mut self, call: &'static str, what: &str, message: Message, flags: u16) -> Result<()> {
        self.socket.request(call, what, message, flags).map(|_| ())
    }
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
        return Err(Error::usage(what, format!("an interface name has 1 to {NAME_MAX} bytes and no NUL")));
    }
    Ok(())
}

fn link_message(ifindex: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = ifindex;
    message
}

fn veth_message(end: VethEnd<'_>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(end.name.to_owned()),
        LinkAttribute::NetNsFd(end.netns.as_raw_fd()),
        LinkAttribute::Address(end.mac.0.to_vec()),
        LinkAttribute::Mtu(end.mtu),
        LinkAttribute::NumRxQueues(end.queues.into()),
        LinkAttribute::NumTxQueues(end.queues.into()),
    ];
    message
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn link_of(message: &Message) -> Option<LinkInfo> {
    let Message::NewLink(message) = message else { return None };
    let flags = message.header.flags;
    let mut link = LinkInfo {
        ifindex: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        max_mtu: None,
        up: flags.contains(LinkFlags::Up),
        oper_up: false,
        no_arp: flags.contains(LinkFlags::Noarp),
        kind: None,
        alias: None,
        rx_queues: None,
        tx_queues: None,
        peer: None,
        xdp: Vec::new(),
        stats: None,
    };
    let (mut peer, mut netnsid) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok().map(MacAddr),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::MaxMtu(mtu) => link.max_mtu = Some(*mtu).filter(|&mtu| mtu != 0),
            LinkAttribute::OperState(state) => link.oper_up = *state == State::Up,
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::NumRxQueues(queues) => link.rx_queues = Some(*queues),
            LinkAttribute::NumTxQueues(queues) => link.tx_queues = Some(*queues),
            LinkAttribute::Link(ifindex) if *ifindex != 0 => peer = Some(*ifindex),
            LinkAttribute::LinkNetNsId(id) => netnsid = Some(*id),
            LinkAttribute::LinkInfo(attributes) => link.kind = attributes.iter().find_map(kind_of),
            LinkAttribute::Xdp(attributes) => link.xdp = xdp_of(attributes),
            LinkAttribute::Stats64(stats) => link.stats = Some(stats_of(stats)),
            _ => {}
        }
    }
    link.peer = peer.map(|ifindex| Peer { ifindex, netnsid });
    Some(link)
}

fn kind_of(attribute: &LinkInfoAttribute) -> Option<String> {
    match attribute {
        LinkInfoAttribute::Kind(kind) => Some(kind.to_string()),
        _ => None,
    }
}

/// Every program attached. The kernel names each mode's own id; `IFLA_XDP_PROG_ID` repeats the only one there is.
fn xdp_of(attributes: &[LinkXdp]) -> Vec<XdpAttached> {
    let attached = attributes.iter().filter_map(|attribute| match *attribute {
        LinkXdp::DrvProgId(prog_id) => Some(XdpAttached { mode: XdpMode::Native, prog_id }),
        LinkXdp::SkbProgId(prog_id) => Some(XdpAttached { mode: XdpMode::Generic, prog_id }),
        LinkXdp::HwProgId(prog_id) => Some(XdpAttached { mode: XdpMode::Offload, prog_id }),
        _ => None,
    });
    attached.collect()
}

fn stats_of(stats: &Stats64) -> LinkStats {
    LinkStats {
        rx_packets: stats.rx_packets,
        tx_packets: stats.tx_packets,
        rx_bytes: stats.rx_bytes,
        tx_bytes: stats.tx_bytes,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        rx_dropped: stats.rx_dropped,
        tx_dropped: stats.tx_dropped,
    }
}

fn route_of(message: &Message) -> Option<&RouteMessage> {
    match message {
        Message::NewRoute(route) => Some(route),
        _ => None,
    }
}

fn is_default(route: &RouteMessage) -> bool {
    route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast
}

fn output_ifindexes(route: &RouteMessage) -> Vec<u32> {
    let mut ifindexes = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(ifindex) => ifindexes.push(*ifindex),
            RouteAttribute::MultiPath(hops) => ifindexes.extend(hops.iter().map(|hop| hop.interface_index)),
            _ => {}
        }
    }
    ifindexes
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::XdpAttached as Attached;
    use netlink_packet_route::route::RouteNextHop;

    use super::*;

    #[test]
    fn every_interface_of_a_default_route_counts_and_no_other_route() {
        let route = |prefix_len, kind, attributes| {
            let mut route = RouteMessage::default();
            route.header.destination_prefix_length = prefix_len;
            route.header.kind = kind;
            route.attributes = attributes;
            route
        };
        let hop = |ifindex| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = ifindex;
            hop
        };
        let multipath = route(0, RouteType::Unicast, vec![RouteAttribute::MultiPath(vec![hop(3), hop(4)])]);
        assert!(is_default(&multipath));
        assert_eq!(output_ifindexes(&multipath), [3, 4]);
        let plain = route(0, RouteType::Unicast, vec![RouteAttribute::Priority(100), RouteAttribute::Oif(2)]);
        assert!(is_default(&plain));
        assert_eq!(output_ifindexes(&plain), [2]);
        assert!(!is_default(&route(24, RouteType::Unicast, vec![RouteAttribute::Oif(5)])));
        assert!(!is_default(&route(0, RouteType::Unreachable, vec![RouteAttribute::Oif(1)])));
    }

    #[test]
    fn programs_in_two_modes_are_both_seen() {
        let attributes = [LinkXdp::Attached(Attached::Multiple), LinkXdp::DrvProgId(7), LinkXdp::SkbProgId(8)];
        assert_eq!(
            xdp_of(&attributes),
            [XdpAttached { mode: XdpMode::Native, prog_id: 7 }, XdpAttached { mode: XdpMode::Generic, prog_id: 8 }]
        );
        let alone = [LinkXdp::Attached(Attached::SocketBuffer), LinkXdp::ProgId(8), LinkXdp::SkbProgId(8)];
        assert_eq!(xdp_of(&alone), [XdpAttached { mode: XdpMode::Generic, prog_id: 8 }]);
        assert_eq!(xdp_of(&[LinkXdp::Attached(Attached::None)]), []);
    }
}
