//! What comes to a lab's DUT, frame by frame, decoded by another library.

use std::os::fd::AsRawFd as _;

use aya::maps::{MapData, XskMap};
use etherparse::{LinkExtHeader, LinkHeader, NetHeaders, PacketHeaders, PayloadSlice, TransportHeader};
use xdplab::bpf;
use xdplab::device::Attachment;
use xdplab::netlink::XdpMode;
use xdplab::topology::Lab;
use xsk::{Config, Socket, Umem, UmemConfig};

use crate::counts::attach;

/// The frames that come to the lab's DUT, which its program gives to an AF_XDP socket.
pub(crate) struct Capture {
    umem: Umem,
    socket: Socket,
    _attachment: Attachment,
    _object: aya::Ebpf,
}

impl Capture {
    pub(crate) fn on(lab: &Lab, multi_buffer: bool) -> Self {
        let umem = Umem::new(UmemConfig { frames: 4096, ..UmemConfig::default() }).unwrap();
        let config = Config { fill_ring: 4096, multi_buffer, ..Config::default() };
        let bind = || Ok(Socket::bind(&umem, lab.dut.ifindex, 0, &config).unwrap());
        let mut socket = lab.dut.netns.run(bind).unwrap();
        socket.fill.push(umem.take_free()).unwrap();
        let settings = bpf::Object {
            globals: [("queue", 0), ("socket_count", 1)].into(),
            map_entries: [("sockets", 1)].into(),
            ..bpf::Object::default()
        };
        let mut object = bpf::load(bpf::XSK, &settings).unwrap();
        let program = bpf::program(&mut object, "to_socket").unwrap().fd().unwrap().try_clone().unwrap();
        let mut map: XskMap<MapData> = bpf::take_map(&mut object, "sockets").unwrap();
        map.set(0, socket.as_raw_fd(), 0).unwrap();
        let attachment = attach(std::os::fd::AsFd::as_fd(&program), &lab.dut, XdpMode::Native);
        // The map holds the socket as long as the program lives, and that as long as it is attached.
        Self { umem, socket, _attachment: attachment, _object: object }
    }

    /// The packets that have come, whole.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        let mut packets = vec![Vec::new()];
        for segment in self.socket.rx.drain(2048) {
            packets.last_mut().unwrap().extend(segment.data());
            if !segment.continues() {
                packets.push(Vec::new());
            }
        }
        self.socket.fill.push(self.umem.take_free()).unwrap();
        assert_eq!(packets.pop().unwrap().len(), 0, "a packet is cut");
        packets
    }
}

/// A received packet, decoded by another library; its checksums are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) macs: ([u8; 6], [u8; 6]),
    pub(crate) tags: Vec<(u16, u8, u16)>,
    pub(crate) addresses: (String, String),
    pub(crate) ttl: u8,
    pub(crate) ports: (u16, u16),
    pub(crate) payload: Vec<u8>,
    pub(crate) l2: usize,
}

pub(crate) fn decode(frame: &[u8]) -> Packet {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let Some(LinkHeader::Ethernet2(ethernet)) = headers.link else { panic!("{frame:?}") };
    let mut tpid = ethernet.ether_type;
    let mut tags = Vec::new();
    for tag in &headers.link_exts {
        let LinkExtHeader::Vlan(tag) = tag else { panic!("{tag:?}") };
        tags.push((tpid.0, tag.pcp.value(), tag.vlan_id.value()));
        tpid = tag.ether_type;
    }
    let (Some(TransportHeader::Udp(udp)), PayloadSlice::Udp(payload)) = (headers.transport, headers.payload) else {
        panic!("{frame:?}")
    };
    let (check, addresses, ttl) = match headers.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let addresses =
                (ip.source.map(|byte| byte.to_string()).join("."), ip.destination.map(|b| b.to_string()).join("."));
            (udp.calc_checksum_ipv4(&ip, payload).unwrap(), addresses, ip.time_to_live)
        }
        NetHeaders::Ipv6(ip, _) => {
            let text = |address: [u8; 16]| std::net::Ipv6Addr::from(address).to_string();
            (udp.calc_checksum_ipv6(&ip, payload).unwrap(), (text(ip.source), text(ip.destination)), ip.hop_limit)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(udp.checksum, check, "{frame:?}");
    Packet {
        macs: (ethernet.source, ethernet.destination),
        tags,
        addresses,
        ttl,
        ports: (udp.source_port, udp.destination_port),
        payload: payload.to_vec(),
        l2: frame.len(),
    }
}
