//! Builds UDP frames.

use super::{Addresses, FlowSpec, FrameSize, IPV4_HEADER_LEN, PayloadPattern, UDP_HEADER_LEN, Vlan, VlanTag, checksum};
use crate::error::Result;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const IPPROTO_UDP: u8 = 17;

/// The bytes of an Ethernet frame of `flow` that is `size` long, without FCS, every checksum in place.
///
/// The IPv4 header says "don't fragment" with identification 0 (RFC 6864); traffic class and flow label are 0.
///
/// # Errors
/// A size outside of what [`FrameSize::lengths`] allows, or a VLAN tag out of range.
pub fn build_udp_frame(flow: &FlowSpec, size: FrameSize) -> Result<Vec<u8>> {
    let lengths = size.lengths(flow)?;
    let mut frame = Vec::with_capacity(lengths.l2);
    frame.extend(flow.dst_mac.0);
    frame.extend(flow.src_mac.0);
    push_vlan_tags(&mut frame, flow.vlan)?;
    // FrameSize::lengths refused what does not fit 16 bits.
    let udp_len = (UDP_HEADER_LEN + lengths.payload) as u16;
    push_ip(&mut frame, flow, udp_len);
    push_udp(&mut frame, flow, udp_len);
    Ok(frame)
}

fn push_vlan_tags(frame: &mut Vec<u8>, vlan: Vlan) -> Result<()> {
    let mut push = |ethertype: u16, tag: VlanTag| -> Result<()> {
        frame.extend(ethertype.to_be_bytes());
        frame.extend(tag.tci()?.to_be_bytes());
        Ok(())
    };
    match vlan {
        Vlan::None => Ok(()),
        Vlan::Tagged(tag) => push(ETHERTYPE_VLAN, tag),
        Vlan::QinQ { outer, inner } => {
            push(ETHERTYPE_SERVICE_VLAN, outer)?;
            push(ETHERTYPE_VLAN, inner)
        }
    }
}

/// The EtherType and the IP header (RFC 791, RFC 8200).
fn push_ip(frame: &mut Vec<u8>, flow: &FlowSpec, udp_len: u16) {
    match flow.addresses {
        Addresses::V4 { src, dst } => {
            frame.extend(ETHERTYPE_IPV4.to_be_bytes());
            let mut header = [0; IPV4_HEADER_LEN];
            let total_len = udp_len + IPV4_HEADER_LEN as u16;
            header[0] = 0x45; // version 4, 5 words of header
            header[2..4].copy_from_slice(&total_len.to_be_bytes());
            header[6] = 0x40; // don't fragment
            header[8] = flow.ttl;
            header[9] = IPPROTO_UDP;
            header[12..16].copy_from_slice(&src.octets());
            header[16..20].copy_from_slice(&dst.octets());
            let checksum = checksum::internet(&[&header]);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend(header);
        }
        Addresses::V6 { src, dst } => {
            frame.extend(ETHERTYPE_IPV6.to_be_bytes());
            frame.extend([0x60, 0, 0, 0]); // version 6
            frame.extend(udp_len.to_be_bytes());
            frame.extend([IPPROTO_UDP, flow.ttl]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
        }
    }
}

fn push_udp(frame: &mut Vec<u8>, flow: &FlowSpec, udp_len: u16) {
    let start = frame.len();
    for field in [flow.src_port, flow.dst_port, udp_len, 0] {
        frame.extend(field.to_be_bytes());
    }
    let payload_len = usize::from(udp_len) - UDP_HEADER_LEN;
    match flow.payload {
        PayloadPattern::Fill(byte) => frame.resize(frame.len() + payload_len, byte),
        PayloadPattern::Counting => frame.extend((0..=u8::MAX).cycle().take(payload_len)),
        PayloadPattern::Word(word) => frame.extend(word.to_be_bytes().into_iter().cycle().take(payload_len)),
    }
    let checksum = checksum::udp(&[&pseudo_header(&flow.addresses, udp_len), &frame[start..]]);
    frame[start + 6..start + 8].copy_from_slice(&checksum.to_be_bytes());
}

/// What the UDP checksum covers of the IP header (RFC 768; RFC 8200, section 8.1).
fn pseudo_header(addresses: &Addresses, udp_len: u16) -> Vec<u8> {
    let mut header = Vec::with_capacity(40);
    match addresses {
        Addresses::V4 { src, dst } => {
            header.extend(src.octets());
            header.extend(dst.octets());
            header.extend([0, IPPROTO_UDP]);
            header.extend(udp_len.to_be_bytes());
        }
        Addresses::V6 { src, dst } => {
            header.extend(src.octets());
            header.extend(dst.octets());
            header.extend(u32::from(udp_len).to_be_bytes());
            header.extend([0, 0, 0, IPPROTO_UDP]);
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use etherparse::{
        Ethernet2Header, IpNumber, Ipv4Header, Ipv6Header, LinkExtHeader, LinkHeader, NetHeaders, PacketHeaders,
        PayloadSlice, SingleVlanHeader, TransportHeader, UdpHeader,
    };
    use proptest::prelude::*;

    use super::super::MacAddr;
    use super::*;

    fn vlan_tag() -> impl Strategy<Value = VlanTag> {
        (0..=4094_u16, 0..=7_u8).prop_map(|(id, priority)| VlanTag { id, priority })
    }

    fn flow() -> impl Strategy<Value = FlowSpec> {
        let addresses = prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(src, dst)| Addresses::V4 { src: src.into(), dst: dst.into() }),
            any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| Addresses::V6 { src: src.into(), dst: dst.into() }),
        ];
        let vlan = prop_oneof![
            Just(Vlan::None),
            vlan_tag().prop_map(Vlan::Tagged),
            (vlan_tag(), vlan_tag()).prop_map(|(outer, inner)| Vlan::QinQ { outer, inner }),
        ];
        let payload = prop_oneof![
            any::<u8>().prop_map(PayloadPattern::Fill),
            Just(PayloadPattern::Counting),
            any::<u32>().prop_map(PayloadPattern::Word)
        ];
        (any::<([u8; 6], [u8; 6], u8, u16, u16)>(), addresses, vlan, payload).prop_map(
            |((src_mac, dst_mac, ttl, src_port, dst_port), addresses, vlan, payload)| FlowSpec {
                src_mac: MacAddr(src_mac),
                dst_mac: MacAddr(dst_mac),
                vlan,
                addresses,
                ttl,
                src_port,
                dst_port,
                payload,
            },
        )
    }

    /// Sizes around both limits and between them, in bytes of payload.
    fn payload_len() -> impl Strategy<Value = usize> {
        prop_oneof![0..100_usize, 0..3000_usize, 65_400..65_536_usize]
    }

    /// Tags of the frame as (TPID, priority, identifier), outermost first.
    fn decoded_tags(headers: &PacketHeaders) -> Vec<(u16, u8, u16)> {
        let Some(LinkHeader::Ethernet2(ethernet)) = &headers.link else { panic!("no Ethernet header") };
        let mut tpid = ethernet.ether_type;
        let mut tags = Vec::new();
        for tag in &headers.link_exts {
            let LinkExtHeader::Vlan(SingleVlanHeader { pcp, drop_eligible_indicator, vlan_id, ether_type }) = tag
            else {
                panic!("{tag:?}")
            };
            assert!(!drop_eligible_indicator);
            tags.push((tpid.0, pcp.value(), vlan_id.value()));
            tpid = *ether_type;
        }
        tags
    }

    proptest! {
        #[test]
        fn another_decoder_reads_back_every_field_and_agrees_on_every_checksum(
            flow in flow(),
            payload_len in payload_len(),
        ) {
            let size = FrameSize::Payload(payload_len);
            let Ok(lengths) = size.lengths(&flow) else {
                prop_assert!(build_udp_frame(&flow, size).is_err());
                return Ok(());
            };
            let frame = build_udp_frame(&flow, size).unwrap();
            prop_assert_eq!(frame.len(), lengths.l2);

            let headers = PacketHeaders::from_ethernet_slice(&frame).unwrap();
            let Some(LinkHeader::Ethernet2(Ethernet2Header { source, destination, .. })) = headers.link else { panic!() };
            prop_assert_eq!((source, destination), (flow.src_mac.0, flow.dst_mac.0));
            let expected_tags = match flow.vlan {
                Vlan::None => vec![],
                Vlan::Tagged(tag) => vec![(0x8100, tag.priority, tag.id)],
                Vlan::QinQ { outer, inner } => {
                    vec![(0x88a8, outer.priority, outer.id), (0x8100, inner.priority, inner.id)]
                }
            };
            prop_assert_eq!(decoded_tags(&headers), expected_tags);

            let PayloadSlice::Udp(payload) = headers.payload else { panic!("{:?}", headers.payload) };
            let expected_payload: Vec<u8> = match flow.payload {
                PayloadPattern::Fill(byte) => vec![byte; payload_len],
                PayloadPattern::Counting => (0..payload_len).map(|index| (index % 256) as u8).collect(),
                PayloadPattern::Word(word) => (0..payload_len).map(|index| word.to_be_bytes()[index % 4]).collect(),
            };
            prop_assert_eq!(payload, expected_payload);

            let Some(TransportHeader::Udp(udp)) = headers.transport else { panic!("{:?}", headers.transport) };
            let udp_checksum = match (headers.net.unwrap(), flow.addresses) {
                (NetHeaders::Ipv4(header, _), Addresses::V4 { src, dst }) => {
                    let mut expected =
                        Ipv4Header::new((8 + payload_len) as u16, flow.ttl, IpNumber::UDP, src.octets(), dst.octets())
                            .unwrap();
                    expected.dont_fragment = true;
                    expected.header_checksum = expected.calc_header_checksum();
                    prop_assert_eq!(&header, &expected);
                    udp.calc_checksum_ipv4(&header, payload).unwrap()
                }
                (NetHeaders::Ipv6(header, _), Addresses::V6 { src, dst }) => {
                    let expected = Ipv6Header {
                        payload_length: (8 + payload_len) as u16,
                        next_header: IpNumber::UDP,
                        hop_limit: flow.ttl,
                        source: src.octets(),
                        destination: dst.octets(),
                        ..Ipv6Header::default()
                    };
                    prop_assert_eq!(&header, &expected);
                    udp.calc_checksum_ipv6(&header, payload).unwrap()
                }
                (net, _) => panic!("{net:?} from {:?}", flow.addresses),
            };
            let expected = UdpHeader {
                source_port: flow.src_port,
                destination_port: flow.dst_port,
                length: (8 + payload_len) as u16,
                checksum: udp_checksum,
            };
            prop_assert_eq!(udp, expected);
        }
    }

    #[test]
    fn the_lab_ipv4_frame_is_these_sixty_bytes() {
        let frame = build_udp_frame(&FlowSpec::lab_v4(), FrameSize::Wire(64)).unwrap();
        let mut expected = vec![
            0x02, 0x00, 0x00, 0x00, 0x00, 0x02, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, // Ethernet
            0x45, 0x00, 0x00, 0x2e, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xae, 0x97, // IPv4
            0xc6, 0x12, 0x00, 0x01, 0xc6, 0x12, 0x00, 0x02, // 198.18.0.1 to 198.18.0.2
            0x00, 0x09, 0x00, 0x09, 0x00, 0x1a, 0x73, 0x80, // UDP
        ];
        expected.extend([0; 18]);
        assert_eq!(frame, expected);
    }

    #[test]
    fn a_double_tagged_ipv6_frame_is_these_bytes() {
        let mut flow = FlowSpec::lab_v6();
        flow.vlan = Vlan::QinQ { outer: VlanTag { id: 100, priority: 3 }, inner: VlanTag { id: 7, priority: 0 } };
        flow.payload = PayloadPattern::Counting;
        let frame = build_udp_frame(&flow, FrameSize::Payload(3)).unwrap();
        let expected = [
            0x02, 0x00, 0x00, 0x00, 0x00, 0x02, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, // MAC addresses
            0x88, 0xa8, 0x60, 0x64, 0x81, 0x00, 0x00, 0x07, 0x86, 0xdd, // tags, EtherType
            0x60, 0x00, 0x00, 0x00, 0x00, 0x0b, 0x11, 0x40, // IPv6
            0x20, 0x01, 0x00, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, // 2001:2::1
            0x20, 0x01, 0x00, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, // 2001:2::2
            0x00, 0x09, 0x00, 0x09, 0x00, 0x0b, 0xbd, 0xbc, // UDP
            0x00, 0x01, 0x02, // payload
        ];
        assert_eq!(frame, expected);
    }

    #[test]
    fn a_udp_checksum_that_comes_to_zero_is_sent_as_ffff_in_both_families() {
        for mut flow in [FlowSpec::lab_v4(), FlowSpec::lab_v6()] {
            let field = flow.headers_len() - 2;
            let checksum_of = |flow: &FlowSpec| {
                let frame = build_udp_frame(flow, FrameSize::Payload(18)).unwrap();
                u16::from_be_bytes([frame[field], frame[field + 1]])
            };
            // A source port higher by the checksum brings the sum to 0xffff, its complement to 0.
            flow.src_port += checksum_of(&flow);
            assert_eq!(checksum_of(&flow), 0xffff);
        }
    }

    #[test]
    fn a_vlan_tag_out_of_range_builds_no_frame() {
        let mut flow = FlowSpec::lab_v4();
        flow.vlan = Vlan::QinQ { outer: VlanTag { id: 1, priority: 0 }, inner: VlanTag { id: 4095, priority: 0 } };
        let error = build_udp_frame(&flow, FrameSize::Wire(64)).unwrap_err();
        assert_eq!(error.to_string(), "can't use VLAN 4095: a VLAN identifier is 0 to 4094");
    }
}
