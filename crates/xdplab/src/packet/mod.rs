//! Frames as bytes: the flow they belong to, their length and their checksums. Knows nothing of the kernel.
//!
//! [`build_udp_frame`] turns a [`FlowSpec`] and a [`FrameSize`] into an Ethernet frame without its FCS, which is what
//! the kernel and XDP programs see.

pub mod checksum;
mod flow;
mod pcap;
mod size;
mod sizes;
mod traffic;
mod udp;

pub use flow::{Addresses, FlowSpec, MacAddr, PayloadPattern, Vlan, VlanTag};
pub use pcap::read_frames;
pub use size::{FrameLengths, FrameSize};
pub use sizes::Sizes;
pub use traffic::{Fields, Template, Traffic, Variation, Variator};
pub use udp::build_udp_frame;

/// Length of an Ethernet header without VLAN tags (IEEE 802.3).
pub const ETHERNET_HEADER_LEN: usize = 14;
/// Length of one VLAN tag, TPID included (IEEE 802.1Q).
pub const VLAN_TAG_LEN: usize = 4;
/// Length of an IPv4 header without options (RFC 791).
pub const IPV4_HEADER_LEN: usize = 20;
/// Length of an IPv6 header without extensions (RFC 8200).
pub const IPV6_HEADER_LEN: usize = 40;
/// Length of a UDP header (RFC 768).
pub const UDP_HEADER_LEN: usize = 8;
/// Length of the Ethernet frame check sequence (IEEE 802.3). Hardware adds and removes it; no buffer here holds it.
pub const FCS_LEN: usize = 4;
/// The shortest Ethernet frame without FCS (IEEE 802.3; the kernel's `ETH_ZLEN`): 64 bytes on the wire.
pub const MIN_L2_LEN: usize = 60;
