//! How long a frame is, and by which count. Tools differ: pktgen's size leaves the FCS out, xdp-trafficgen's counts it,
//! iperf's is the payload.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Addresses, FCS_LEN, FlowSpec, MIN_L2_LEN, UDP_HEADER_LEN};
use crate::error::{Error, Result};

/// The length of a frame in bytes, with what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameSize {
    /// UDP payload alone, as `iperf -l` counts.
    Payload(usize),
    /// From the destination MAC address to the end of the payload, FCS left out: what XDP programs see, and what
    /// pktgen's `pkt_size` counts.
    L2(usize),
    /// [`FrameSize::L2`] plus the 4 bytes of FCS, as `xdp-trafficgen` and line rates count; preamble and
    /// inter-frame gap (20 bytes) are left out.
    Wire(usize),
}

/// The length of one frame in bytes by every count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameLengths {
    /// UDP or TCP payload.
    pub payload: usize,
    /// Headers and payload without FCS.
    pub l2: usize,
    /// Headers, payload and FCS.
    pub wire: usize,
}

impl FrameSize {
    /// The shortest frame of `flow`: 64 bytes on the wire (60 without FCS), the Ethernet minimum, unless its headers
    /// alone are longer. Those of IPv6 UDP are: 66 bytes on the wire (62 without FCS).
    #[must_use]
    pub fn shortest(flow: &FlowSpec) -> Self {
        Self::Wire(shortest_l2(flow) + FCS_LEN)
    }

    /// The lengths by every count of a frame of `flow` that has this size.
    ///
    /// # Errors
    /// A size below the shortest frame of the flow (its headers; 60 bytes without FCS, because no padding is added) or
    /// above the longest (65,535 bytes of IPv4 packet or IPv6 payload). The error says the range allowed, by the same
    /// count.
    pub fn lengths(self, flow: &FlowSpec) -> Result<FrameLengths> {
        let headers = flow.headers_len();
        let shortest = shortest_l2(flow);
        let longest = longest_l2(flow);
        let l2 = match self {
            Self::Payload(bytes) => bytes.saturating_add(headers),
            Self::L2(bytes) => bytes,
            // Too short for the FCS alone is too short below as well.
            Self::Wire(bytes) => bytes.saturating_sub(FCS_LEN),
        };
        if (shortest..=longest).contains(&l2) {
            return Ok(FrameLengths { payload: l2 - headers, l2, wire: l2 + FCS_LEN });
        }
        let (from, to) = match self {
            Self::Payload(_) => (shortest - headers, longest - headers),
            Self::L2(_) => (shortest, longest),
            Self::Wire(_) => (shortest + FCS_LEN, longest + FCS_LEN),
        };
        Err(Error::usage(
            format!("build a UDP frame of {self}"),
            format!("this flow has {headers} bytes of headers; {from} to {to} {} are allowed", self.unit()),
        ))
    }

    /// Bytes of a frame of this size that an MTU counts: all but Ethernet header, VLAN tags and FCS.
    ///
    /// # Errors
    /// As [`FrameSize::lengths`].
    pub fn l3_len(self, flow: &FlowSpec) -> Result<u32> {
        // At most 65,575: an IPv6 header before the longest payload.
        Ok((self.lengths(flow)?.l2 - flow.l3_offset()) as u32)
    }

    fn bytes(self) -> usize {
        match self {
            Self::Payload(bytes) | Self::L2(bytes) | Self::Wire(bytes) => bytes,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Payload(_) => "bytes of payload",
            Self::L2(_) => "bytes without FCS",
            Self::Wire(_) => "bytes on the wire (FCS counted)",
        }
    }
}

fn shortest_l2(flow: &FlowSpec) -> usize {
    flow.headers_len().max(MIN_L2_LEN)
}

/// The longest frame without FCS: both IP length fields hold 16 bits; IPv4's counts its header (RFC 791), IPv6's does
/// not (RFC 8200).
fn longest_l2(flow: &FlowSpec) -> usize {
    let longest = usize::from(u16::MAX);
    match flow.addresses {
        Addresses::V4 { .. } => flow.l3_offset() + longest,
        Addresses::V6 { .. } => flow.headers_len() - UDP_HEADER_LEN + longest,
    }
}

impl fmt::Display for FrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.bytes(), self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Vlan, VlanTag};
    use super::*;

    #[test]
    fn sixty_four_on_the_wire_is_sixty_without_fcs_and_eighteen_of_payload() {
        let lengths = FrameLengths { payload: 18, l2: 60, wire: 64 };
        for size in [FrameSize::Wire(64), FrameSize::L2(60), FrameSize::Payload(18)] {
            assert_eq!(size.lengths(&FlowSpec::lab_v4()).unwrap(), lengths);
        }
        assert_eq!(FrameSize::shortest(&FlowSpec::lab_v4()), FrameSize::Wire(64));
    }

    #[test]
    fn the_shortest_ipv6_udp_frame_is_sixty_two_bytes_without_fcs() {
        let flow = FlowSpec::lab_v6();
        assert_eq!(FrameSize::Payload(0).lengths(&flow).unwrap(), FrameLengths { payload: 0, l2: 62, wire: 66 });
        assert_eq!(FrameSize::shortest(&flow), FrameSize::Wire(66));
        let error = FrameSize::Wire(64).lengths(&flow).unwrap_err();
        assert_eq!(
            error.to_string(),
            "can't build a UDP frame of 64 bytes on the wire (FCS counted): this flow has 62 bytes of headers; 66 to \
             65593 bytes on the wire (FCS counted) are allowed"
        );
    }

    #[test]
    fn a_bad_size_is_refused_with_the_range_in_the_same_count() {
        let mut flow = FlowSpec::lab_v4();
        flow.vlan = Vlan::Tagged(VlanTag { id: 1, priority: 0 });
        for (size, range) in [
            (FrameSize::L2(59), "60 to 65553 bytes without FCS"),
            (FrameSize::L2(65_554), "60 to 65553 bytes without FCS"),
            (FrameSize::Wire(0), "64 to 65557 bytes on the wire"),
            (FrameSize::Payload(13), "14 to 65507 bytes of payload"),
            (FrameSize::Payload(usize::MAX), "14 to 65507 bytes of payload"),
        ] {
            let error = size.lengths(&flow).unwrap_err().to_string();
            assert!(error.contains(range), "{error}");
        }
        assert!(FrameSize::L2(60).lengths(&flow).is_ok());
        assert!(FrameSize::L2(65_553).lengths(&flow).is_ok());
    }
}
