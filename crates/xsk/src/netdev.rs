//! What the kernel says a device can do, from the `netdev` family of generic netlink
//! (Documentation/netlink/specs/netdev.yaml).

use std::io;

use crate::error::{Error, Result};
use crate::sys;
use crate::uapi::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL, NETDEV_A_DEV_IFINDEX,
    NETDEV_A_DEV_XDP_FEATURES, NETDEV_A_DEV_XDP_ZC_MAX_SEGS, NETDEV_A_DEV_XSK_FEATURES, NETDEV_CMD_DEV_GET,
    NETDEV_FAMILY_NAME, NETDEV_XDP_ACT_BASIC, NETDEV_XDP_ACT_REDIRECT, NETDEV_XDP_ACT_RX_SG,
    NETDEV_XDP_ACT_XSK_ZEROCOPY, NETDEV_XSK_FLAGS_TX_CHECKSUM, NETDEV_XSK_FLAGS_TX_LAUNCH_TIME_FIFO,
    NETDEV_XSK_FLAGS_TX_TIMESTAMP,
};

/// Bytes of `nlmsghdr` and `genlmsghdr`.
const HEADERS: usize = 16 + 4;

/// What a device and its driver can do for AF_XDP. Linux 6.3; the Tx features 6.8.
///
/// They are the driver's. In copy mode the kernel itself answers Tx requests, whatever the device can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFeatures {
    /// The driver runs XDP programs (native mode).
    pub xdp: bool,
    /// The driver carries out XDP_REDIRECT, which is what brings packets to a socket.
    pub redirect: bool,
    /// The driver receives packets of several buffers into XDP programs.
    pub rx_multi_buffer: bool,
    /// The driver has zero-copy.
    pub zero_copy: bool,
    /// Most segments of a packet in zero-copy mode; 1 is no multi-buffer. `None` where the kernel does not say.
    pub zero_copy_segments: Option<u32>,
    /// The device can report when a packet was sent.
    pub tx_timestamp: bool,
    /// The device can compute checksums.
    pub tx_checksum: bool,
    /// The device can send at a given time. Linux 6.14.
    pub tx_launch_time: bool,
}

impl DeviceFeatures {
    /// Asks the kernel about an interface of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// There is no such interface, or the kernel is older than 6.3.
    pub fn of(ifindex: u32) -> Result<Self> {
        let family = netdev_family().map_err(|source| error(ifindex, "use Linux 6.3 or later", source))?;
        let request = request(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
        let answer =
            ask(&request).map_err(|source| error(ifindex, "check the interface and the network namespace", source))?;
        Ok(Self::from_answer(&answer))
    }

    fn from_answer(answer: &[u8]) -> Self {
        let word = |kind| attribute(answer, kind).and_then(<[u8]>::first_chunk).map(|word| u64::from_ne_bytes(*word));
        let segments = attribute(answer, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(<[u8]>::first_chunk);
        let xdp = word(NETDEV_A_DEV_XDP_FEATURES).unwrap_or_default();
        let xsk = word(NETDEV_A_DEV_XSK_FEATURES).unwrap_or_default();
        Self {
            xdp: xdp & NETDEV_XDP_ACT_BASIC != 0,
            redirect: xdp & NETDEV_XDP_ACT_REDIRECT != 0,
            rx_multi_buffer: xdp & NETDEV_XDP_ACT_RX_SG != 0,
            zero_copy: xdp & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0,
            zero_copy_segments: segments.map(|segments| u32::from_ne_bytes(*segments)),
            tx_timestamp: xsk & NETDEV_XSK_FLAGS_TX_TIMESTAMP != 0,
            tx_checksum: xsk & NETDEV_XSK_FLAGS_TX_CHECKSUM != 0,
            tx_launch_time: xsk & NETDEV_XSK_FLAGS_TX_LAUNCH_TIME_FIFO != 0,
        }
    }
}

fn error(ifindex: u32, remedy: &str, source: io::Error) -> Error {
    Error::Call { subject: format!("ifindex {ifindex}"), call: "netlink(netdev)", remedy: remedy.into(), source }
}

fn netdev_family() -> io::Result<u16> {
    let answer = ask(&request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, NETDEV_FAMILY_NAME))?;
    let id = attribute(&answer, CTRL_ATTR_FAMILY_ID).and_then(<[u8]>::first_chunk);
    id.map(|id| u16::from_ne_bytes(*id)).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A generic netlink request with one attribute.
fn request(family: u16, command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute_len = 4 + value.len();
    let len = HEADERS + attribute_len.next_multiple_of(4);
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([command, 1, 0, 0]);
    bytes.extend((attribute_len as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(len, 0);
    bytes
}

/// Sends a request and returns the attributes of the answer.
fn ask(request: &[u8]) -> io::Result<Vec<u8>> {
    let answer = sys::generic_netlink(request)?;
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let kind = u16::from_ne_bytes(*answer.get(4..).and_then(<[u8]>::first_chunk).ok_or_else(short)?);
    if i32::from(kind) == libc::NLMSG_ERROR {
        let errno = i32::from_ne_bytes(*answer.get(16..).and_then(<[u8]>::first_chunk).ok_or_else(short)?);
        return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
    }
    answer.get(HEADERS..).map(<[u8]>::to_vec).ok_or_else(short)
}

/// The value of the first attribute of a kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let [l0, l1, k0, k1] = *attributes.first_chunk()?;
        let (len, kind) = (usize::from(u16::from_ne_bytes([l0, l1])), u16::from_ne_bytes([k0, k1]));
        if len < 4 {
            return None;
        }
        if kind == wanted {
            return attributes.get(4..len);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn features_are_read_from_the_attributes_of_an_answer() {
        let mut answer = request(0, 0, NETDEV_A_DEV_XDP_FEATURES, &(1u64 | 8 | 32).to_ne_bytes())[HEADERS..].to_vec();
        answer.extend(&request(0, 0, NETDEV_A_DEV_XDP_ZC_MAX_SEGS, &5u32.to_ne_bytes())[HEADERS..]);
        answer.extend(&request(0, 0, NETDEV_A_DEV_XSK_FEATURES, &2u64.to_ne_bytes())[HEADERS..]);
        let expected = DeviceFeatures {
            xdp: true,
            zero_copy: true,
            rx_multi_buffer: true,
            zero_copy_segments: Some(5),
            tx_checksum: true,
            ..DeviceFeatures::default()
        };
        assert_eq!(DeviceFeatures::from_answer(&answer), expected);
        assert_eq!(DeviceFeatures::from_answer(&[]), DeviceFeatures::default());
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(answer: Vec<u8>, wanted in 0u16..8) {
            attribute(&answer, wanted);
            DeviceFeatures::from_answer(&answer);
        }
    }
}
