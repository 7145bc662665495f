//! The flow a frame belongs to: every header field that is not a length or a checksum.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ETHERNET_HEADER_LEN, IPV4_HEADER_LEN, IPV6_HEADER_LEN, UDP_HEADER_LEN, VLAN_TAG_LEN};
use crate::error::{Error, Result};

/// A UDP flow and what its frames carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSpec {
    /// Source MAC address.
    pub src_mac: MacAddr,
    /// Destination MAC address.
    pub dst_mac: MacAddr,
    /// VLAN tags between the Ethernet header and the IP header.
    pub vlan: Vlan,
    /// IP addresses, which also say the family.
    pub addresses: Addresses,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// What the UDP payload holds.
    pub payload: PayloadPattern,
}

/// Source and destination IP address of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
    },
}

/// The VLAN tags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vlan {
    /// Untagged.
    #[default]
    None,
    /// One 802.1Q tag (TPID 0x8100).
    Tagged(VlanTag),
    /// An 802.1ad service tag (TPID 0x88a8) outside an 802.1Q tag (TPID 0x8100).
    QinQ {
        /// The service tag.
        outer: VlanTag,
        /// The customer tag.
        inner: VlanTag,
    },
}

/// The tag control information of a VLAN tag; the drop-eligible bit is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VlanTag {
    /// VLAN identifier, 0 to 4094 (0: a priority tag; 4095 is reserved by IEEE 802.1Q).
    pub id: u16,
    /// Priority code point, 0 to 7.
    #[serde(default)]
    pub priority: u8,
}

/// What the UDP payload holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PayloadPattern {
    /// Every byte the same.
    Fill(u8),
    /// Byte i is i modulo 256, so that a shifted or truncated copy shows.
    Counting,
    /// These 32 bits again and again, the highest byte first.
    Word(u32),
}

/// A MAC address, written as `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(pub [u8; 6]);

impl FlowSpec {
    /// The lab's IPv4 flow: 198.18.0.1 to 198.18.0.2 (the benchmarking range of RFC 2544), port 9 (discard, RFC 863)
    /// on both sides, locally administered MAC addresses, untagged, payload of zeros.
    #[must_use]
    pub fn lab_v4() -> Self {
        let (src, dst) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2));
        Self::lab(Addresses::V4 { src, dst })
    }

    /// The lab's IPv6 flow: 2001:2::1 to 2001:2::2 (the benchmarking range of RFC 5180), otherwise as
    /// [`FlowSpec::lab_v4`].
    #[must_use]
    pub fn lab_v6() -> Self {
        let (src, dst) = (Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2));
        Self::lab(Addresses::V6 { src, dst })
    }

    fn lab(addresses: Addresses) -> Self {
        Self {
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: Vlan::None,
            addresses,
            ttl: 64,
            src_port: 9,
            dst_port: 9,
            payload: PayloadPattern::Fill(0),
        }
    }

    /// Bytes before the UDP payload: Ethernet, VLAN tags, IP and UDP headers.
    #[must_use]
    pub fn headers_len(&self) -> usize {
        self.l3_offset() + self.addresses.header_len() + UDP_HEADER_LEN
    }

    /// Bytes before the IP header.
    #[must_use]
    pub fn l3_offset(&self) -> usize {
        ETHERNET_HEADER_LEN + self.vlan.len()
    }
}

impl Addresses {
    /// Length of the family's IP header without options or extensions.
    #[must_use]
    pub fn header_len(&self) -> usize {
        match self {
            Self::V4 { .. } => IPV4_HEADER_LEN,
            Self::V6 { .. } => IPV6_HEADER_LEN,
        }
    }
}

impl Vlan {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Tagged(_) => VLAN_TAG_LEN,
            Self::QinQ { .. } => 2 * VLAN_TAG_LEN,
        }
    }
}

impl VlanTag {
    /// The tag control information as it goes into the frame.
    ///
    /// # Errors
    /// An identifier above 4094 or a priority above 7.
    pub(super) fn tci(self) -> Result<u16> {
        let Self { id, priority } = self;
        if id > 4094 {
            return Err(Error::usage(format!("use VLAN {id}"), "a VLAN identifier is 0 to 4094"));
        }
        if priority > 7 {
            return Err(Error::usage(format!("use VLAN priority {priority}"), "a priority code point is 0 to 7"));
        }
        Ok(u16::from(priority) << 13 | id)
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let byte = |part: &&str| {
            let two_digits = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            two_digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
        let bytes: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .ok_or_else(|| Error::usage(format!("read the MAC address {text:?}"), "it is written as 02:00:00:00:00:01"))
    }
}

impl TryFrom<String> for MacAddr {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> Self {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_reads_back_as_written() {
        let mac: MacAddr = "02:ab:00:00:00:Ff".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 0xab, 0, 0, 0, 0xff]));
        assert_eq!(mac.to_string(), "02:ab:00:00:00:ff");
    }

    #[test]
    fn what_is_no_mac_address_is_refused_with_the_form_expected() {
        for text in ["", "02", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:+1", "02-00-00-00-00-01"] {
            let error = text.parse::<MacAddr>().unwrap_err().to_string();
            assert!(error.contains("02:00:00:00:00:01"), "{error}");
        }
    }

    #[test]
    fn a_flow_survives_json() {
        let mut flow = FlowSpec::lab_v6();
        flow.vlan = Vlan::QinQ { outer: VlanTag { id: 100, priority: 3 }, inner: VlanTag { id: 7, priority: 0 } };
        flow.payload = PayloadPattern::Counting;
        let json = serde_json::to_string(&flow).unwrap();
        assert!(json.contains(r#""src_mac":"02:00:00:00:00:01""#), "{json}");
        assert_eq!(serde_json::from_str::<FlowSpec>(&json).unwrap(), flow);
    }

    #[test]
    fn a_vlan_tag_out_of_range_is_refused_with_the_range() {
        assert_eq!(VlanTag { id: 4094, priority: 7 }.tci().unwrap(), 0xeffe);
        let error = VlanTag { id: 4095, priority: 0 }.tci().unwrap_err();
        assert_eq!(error.to_string(), "can't use VLAN 4095: a VLAN identifier is 0 to 4094");
        let error = VlanTag { id: 1, priority: 8 }.tci().unwrap_err();
        assert_eq!(error.to_string(), "can't use VLAN priority 8: a priority code point is 0 to 7");
    }
}
