//! A segment of the flow as it stands in a frame.

use std::net::SocketAddr;

use crate::packet::{ETHERNET_HEADER_LEN, IPV4_HEADER_LEN, IPV6_HEADER_LEN, checksum};

/// Length of a TCP header without options (RFC 9293).
const TCP_HEADER_LEN: usize = 20;

/// Flags of the TCP header.
pub(super) const FIN: u8 = 1;
pub(super) const RST: u8 = 1 << 2;
pub(super) const ACK: u8 = 1 << 4;

/// A segment of the flow.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) peer_mac: [u8; 6],
    pub(super) own_mac: [u8; 6],
    pub(super) local: SocketAddr,
    pub(super) to: SocketAddr,
    /// Time to live, or hop limit.
    pub(super) ttl: u8,
}

impl Template {
    /// Bytes before the TCP header.
    pub(super) fn tcp_offset(&self) -> usize {
        Self::headers_len(self.to) - TCP_HEADER_LEN
    }

    pub(super) fn headers_len(to: SocketAddr) -> usize {
        ETHERNET_HEADER_LEN + if to.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN } + TCP_HEADER_LEN
    }

    /// A whole frame, with its checksums, and zeros as payload.
    pub(super) fn frame(&self, payload: usize, seq: u32, ack_seq: u32, flags: u8) -> Vec<u8> {
        let mut frame = [self.peer_mac, self.own_mac].concat();
        let tcp_len = TCP_HEADER_LEN + payload;
        match (self.local, self.to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                frame.extend(0x0800_u16.to_be_bytes());
                let total = ((IPV4_HEADER_LEN + tcp_len) as u16).to_be_bytes();
                // Version and length, no class, the length, no id, not to be fragmented, TTL, TCP.
                let mut ip = [&[0x45, 0][..], &total, &[0, 0, 0x40, 0, self.ttl, 6, 0, 0]].concat();
                ip.extend([from.ip().octets(), to.ip().octets()].concat());
                let sum = checksum::internet(&[&ip]);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(ip);
            }
            (from, to) => {
                frame.extend(0x86dd_u16.to_be_bytes());
                // Version, no class and label, the length, TCP, hop limit.
                frame.extend([&[0x60, 0, 0, 0][..], &(tcp_len as u16).to_be_bytes(), &[6, self.ttl]].concat());
                frame.extend([octets(from), octets(to)].concat());
            }
        }
        let ports = [self.local.port(), self.to.port()].map(u16::to_be_bytes).concat();
        let numbers = [seq, ack_seq].map(u32::to_be_bytes).concat();
        // The header's length, flags, the widest window without a scale, no checksum yet, nothing urgent.
        let mut tcp = [&ports[..], &numbers, &[0x50, flags, 0xff, 0xff, 0, 0, 0, 0]].concat();
        tcp.resize(tcp_len, 0);
        let sum = checksum::internet(&[&self.pseudo_header(tcp_len), &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        frame.extend(tcp);
        frame
    }

    /// RFC 9293, section 3.1; the parts of the IPv6 one (RFC 8200, section 8.1) have the same sum.
    fn pseudo_header(&self, tcp_len: usize) -> Vec<u8> {
        [&octets(self.local)[..], &octets(self.to), &(tcp_len as u32).to_be_bytes(), &[0, 6]].concat()
    }

    /// The sum that the checksum of `frame` is the complement of, in the order of bytes of this machine: the programs add
    /// sequence numbers to it as they stand in the frame (RFC 1071, section 2 (B)).
    pub(super) fn partial_sum(&self, frame: &[u8]) -> u64 {
        let at = self.tcp_offset() + 16;
        let sum = u16::from_be_bytes([frame[at], frame[at + 1]]);
        u16::from_ne_bytes((!sum).to_be_bytes()).into()
    }
}

fn octets(address: SocketAddr) -> Vec<u8> {
    match address {
        SocketAddr::V4(address) => address.ip().octets().to_vec(),
        SocketAddr::V6(address) => address.ip().octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(from: &str, to: &str) -> Template {
        let (local, to) = (from.parse().unwrap(), to.parse().unwrap());
        Template { peer_mac: [2, 0, 0, 0, 0, 2], own_mac: [2, 0, 0, 0, 0, 1], local, to, ttl: 9 }
    }

    const FLOWS: [(&str, &str); 2] =
        [("198.18.0.1:40000", "198.18.0.2:10000"), ("[2001:2::1]:40000", "[2001:2::2]:10000")];

    #[test]
    fn another_decoder_finds_the_segment_and_its_checksums_right() {
        for (from, to) in FLOWS {
            let frame = template(from, to).frame(1000, 0xfedc_ba98, 0x0123_4567, FIN | ACK);
            let packet = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else { panic!("{packet:?}") };
            let header = tcp.to_header();
            assert_eq!((header.source_port, header.destination_port), (40_000, 10_000));
            assert_eq!((header.sequence_number, header.acknowledgment_number), (0xfedc_ba98, 0x0123_4567));
            assert!(header.fin && header.ack && !header.syn && !header.rst);
            assert_eq!(tcp.payload(), vec![0; 1000]);
            let expected = match packet.net.unwrap() {
                etherparse::NetSlice::Ipv4(ip) => {
                    assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
                    assert_eq!(ip.header().ttl(), 9);
                    header.calc_checksum_ipv4(&ip.header().to_header(), tcp.payload()).unwrap()
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    assert_eq!(ip.header().hop_limit(), 9);
                    header.calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap()
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(header.checksum, expected);
        }
    }

    /// The same arithmetic as in `checksum()` of `bpf/tcp.bpf.c`.
    fn by_difference(partial: u64, seq: u32, ack_seq: u32) -> u16 {
        let (seq, ack_seq) = (u32::from_ne_bytes(seq.to_be_bytes()), u32::from_ne_bytes(ack_seq.to_be_bytes()));
        let mut sum = partial as u32 + (seq & 0xffff) + (seq >> 16) + (ack_seq & 0xffff) + (ack_seq >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        !((sum + (sum >> 16)) as u16)
    }

    proptest::proptest! {
        #[test]
        fn the_checksum_by_difference_is_that_of_the_whole_segment(seq: u32, ack_seq: u32, payload in 0_usize..1400) {
            for (from, to) in FLOWS {
                let template = template(from, to);
                let partial = template.partial_sum(&template.frame(payload, 0, 0, ACK));
                let whole = template.frame(payload, seq, ack_seq, ACK);
                let at = template.tcp_offset() + 16;
                let in_frame = u16::from_ne_bytes([whole[at], whole[at + 1]]);
                proptest::prop_assert_eq!(by_difference(partial, seq, ack_seq), in_frame);
            }
        }
    }
}
