//! A sequence of frames, and the fields that change from one to the next.

use serde::{Deserialize, Serialize};

use super::{Addresses, FCS_LEN, FlowSpec, FrameLengths, FrameSize, UDP_HEADER_LEN, build_udp_frame, checksum};
use crate::error::{Error, Result};

/// Frames in the order in which they are sent, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The frames; at least one.
    templates: Vec<Template>,
    /// Fields that change from frame to frame, whichever template it is made of.
    variation: Option<Fields>,
    /// Bytes of all templates up to each, without FCS.
    bytes_up_to: Vec<u64>,
}

/// One frame of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The frame without FCS.
    pub frame: Vec<u8>,
    /// So many bytes from the beginning are to be written into a buffer that holds the longest of the templates, or what a
    /// receiver made of one.
    pub written: usize,
    /// One's complement sum of all that the UDP checksum covers but the fields that vary, which are 0 in it (RFC 1071).
    pub udp_sum: u16,
    /// The same of the IPv4 header; 0 for IPv6.
    pub ip_sum: u16,
}

/// How many values in turn each field of a UDP packet takes, upwards from the flow's own; 1: it stays. All go on with each
/// packet, so that the number of flows is the least common multiple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variation {
    /// UDP destination ports; after 65535 comes 0.
    pub dst_ports: u32,
    /// UDP source ports; after 65535 comes 0.
    pub src_ports: u32,
    /// IP destination addresses, by their last 32 bits.
    pub dst_addrs: u32,
    /// IP source addresses, by their last 32 bits.
    pub src_addrs: u32,
}

/// Fields that vary, and where they are in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// How they vary.
    pub variation: Variation,
    /// The first UDP destination port.
    pub first_dst_port: u16,
    /// The first UDP source port.
    pub first_src_port: u16,
    /// The last 32 bits of the first IP destination address.
    pub first_dst_addr: u32,
    /// The last 32 bits of the first IP source address.
    pub first_src_addr: u32,
    /// Where the UDP header begins.
    pub udp_offset: usize,
    /// Where the last 4 bytes of the IP destination address are.
    pub dst_addr_offset: usize,
    /// Where the last 4 bytes of the IP source address are.
    pub src_addr_offset: usize,
    /// Where the checksum of the IPv4 header is.
    pub ip_check_offset: Option<usize>,
}

/// Writes the fields that vary into one frame after the other.
#[derive(Clone, Debug)]
pub struct Variator {
    fields: Fields,
    at: [u32; 4],
}

/// Length of the header that the kernel's pktgen puts into the payload.
const PKTGEN_HEADER_LEN: usize = 16;
/// `PKTGEN_MAGIC`, net/core/pktgen.c.
const PKTGEN_MAGIC: u32 = 0xbe9b_e955;
/// Offset of the checksum in a UDP header (RFC 768).
const UDP_CHECK: usize = 6;
/// Offset of the checksum in an IPv4 header (RFC 791).
const IPV4_CHECK: usize = 10;

/// Nothing varies.
impl Default for Variation {
    fn default() -> Self {
        Self { dst_ports: 1, src_ports: 1, dst_addrs: 1, src_addrs: 1 }
    }
}

impl Variation {
    /// The number of flows.
    #[must_use]
    pub fn flows(&self) -> u64 {
        let Self { dst_ports, src_ports, dst_addrs, src_addrs } = *self;
        [dst_ports, src_ports, dst_addrs, src_addrs].into_iter().map(|count| u64::from(count.max(1))).fold(1, lcm)
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut gcd, mut rest) = (a, b);
    while rest != 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    (a / gcd).saturating_mul(b)
}

impl Traffic {
    /// The most frames of a sequence, which are held ready in locked memory of some kilobytes each.
    pub const MAX_TEMPLATES: usize = 16_384;

    /// UDP frames of `flow` in these sizes in turn. With `restore` the headers are written anew into each frame even if all
    /// are the same, for receivers on this machine that change the frames they get.
    ///
    /// # Errors
    /// A size that the flow can't have, none or too many of them, or a VLAN tag out of range.
    pub fn udp(flow: &FlowSpec, sizes: &[FrameSize], variation: Variation, restore: bool) -> Result<Self> {
        let varies = variation.flows() > 1;
        let written = if sizes.len() > 1 || restore { flow.headers_len() } else { 0 };
        let base = if varies { without_varied(flow, variation) } else { flow.clone() };
        let template = |size: &FrameSize| {
            let frame = build_udp_frame(flow, *size)?;
            let sums = if varies { build_udp_frame(&base, *size)? } else { frame.clone() };
            let word = |at: usize| u16::from_be_bytes([sums[at], sums[at + 1]]);
            let ip_check = ip_check_offset(flow);
            Ok(Template {
                frame,
                written,
                udp_sum: !word(flow.headers_len() - UDP_HEADER_LEN + UDP_CHECK),
                ip_sum: ip_check.map_or(0, |at| !word(at)),
            })
        };
        let templates = sizes.iter().map(template).collect::<Result<Vec<_>>>()?;
        Self::new(templates, varies.then(|| Fields::of(flow, variation)))
    }

    /// These frames as they are, without FCS.
    ///
    /// # Errors
    /// None or too many of them, or one without a whole Ethernet header.
    pub fn replay(frames: Vec<Vec<u8>>) -> Result<Self> {
        let several = frames.len() > 1;
        let template = |frame: Vec<u8>| {
            let written = if several { frame.len() } else { 0 };
            Template { frame, written, udp_sum: 0, ip_sum: 0 }
        };
        Self::new(frames.into_iter().map(template).collect(), None)
    }

    fn new(templates: Vec<Template>, variation: Option<Fields>) -> Result<Self> {
        let what = "make a sequence of frames";
        if templates.is_empty() || templates.len() > Self::MAX_TEMPLATES {
            let why = format!("{} frames are none of 1 to {}", templates.len(), Self::MAX_TEMPLATES);
            return Err(Error::usage(what, why));
        }
        if let Some(short) = templates.iter().find(|template| template.frame.len() < super::ETHERNET_HEADER_LEN) {
            return Err(Error::usage(what, format!("{} bytes are no Ethernet frame", short.frame.len())));
        }
        let bytes_up_to = templates
            .iter()
            .scan(0, |sum, template| {
                *sum += template.frame.len() as u64;
                Some(*sum)
            })
            .collect();
        Ok(Self { templates, variation, bytes_up_to })
    }

    /// The same with the header of the kernel's pktgen at the beginning of each UDP payload, which is at `at` in every frame:
    /// a magic number, a sequence number and the time (`struct pktgen_hdr`, net/core/pktgen.c), which
    /// [`Traffic::write_stamp`] writes.
    ///
    /// # Errors
    /// A frame has no room for it.
    pub fn with_pktgen_header(mut self, at: usize) -> Result<Self> {
        for template in &mut self.templates {
            let bytes = template.frame.len();
            let Some(header) = template.frame.get_mut(at..at + PKTGEN_HEADER_LEN) else {
                let wire = at + PKTGEN_HEADER_LEN + FCS_LEN;
                return Err(Error::usage("stamp packets", format!("frames of {} bytes have no room", bytes + FCS_LEN))
                    .remedy(format!("send at least {wire} bytes on the wire")));
            };
            let mut new = [0; PKTGEN_HEADER_LEN];
            new[..4].copy_from_slice(&PKTGEN_MAGIC.to_be_bytes());
            let without =
                checksum::fold(sum(header).map(|word| u64::from(!word)).sum::<u64>() + u64::from(template.udp_sum));
            header.copy_from_slice(&new);
            template.udp_sum = checksum::fold(u64::from(without) + sum(&new).map(u64::from).sum::<u64>());
            put(&mut template.frame, at - 2, checksum::never_zero(!template.udp_sum));
            // The stamp of another packet must not stay.
            template.written = if template.written > 0 { at + PKTGEN_HEADER_LEN } else { 0 };
        }
        Ok(self)
    }

    /// Writes sequence number and time into the pktgen header at `at` and returns `udp_sum` with them in it.
    #[must_use]
    pub fn write_stamp(
        &self,
        frame: &mut [u8],
        at: usize,
        udp_sum: u16,
        sequence: u32,
        time: std::time::Duration,
    ) -> u16 {
        // 32 bits of seconds are what the header has.
        #[expect(clippy::cast_possible_truncation, reason = "the kernel's header cuts the time too")]
        let words = [sequence, time.as_secs() as u32, time.subsec_micros()];
        for (index, word) in words.into_iter().enumerate() {
            frame[at + 4 + index * 4..at + 8 + index * 4].copy_from_slice(&word.to_be_bytes());
        }
        let halves = words.into_iter().map(|word| u64::from(word >> 16) + u64::from(word & 0xffff));
        checksum::fold(halves.sum::<u64>() + u64::from(udp_sum))
    }

    /// The frames.
    #[must_use]
    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    /// Fields that change from frame to frame.
    #[must_use]
    pub fn fields(&self) -> Option<&Fields> {
        self.variation.as_ref()
    }

    /// The longest frame, the first of several.
    #[must_use]
    pub fn longest(&self) -> &[u8] {
        let longer = |longest: &'_ [u8], template: &'_ Template| template.frame.len() > longest.len();
        self.templates.iter().fold(
            &[][..],
            |longest, template| {
                if longer(longest, template) { &template.frame } else { longest }
            },
        )
    }

    /// Bytes of the first `packets` packets of the sequence, without FCS.
    #[must_use]
    pub fn bytes_of(&self, packets: u64) -> u64 {
        let count = self.templates.len() as u64;
        let all = self.bytes_up_to.last().copied().unwrap_or(0);
        let rest = usize::try_from(packets % count).unwrap_or(0);
        packets / count * all + if rest > 0 { self.bytes_up_to[rest - 1] } else { 0 }
    }

    /// The mean length of a frame on the wire, FCS counted.
    #[must_use]
    pub fn mean_wire_len(&self) -> f64 {
        let count = self.templates.len();
        self.bytes_of(count as u64) as f64 / count as f64 + FCS_LEN as f64
    }

    /// Lengths of the shortest and the longest frame by every count; of the payload where it is UDP built here.
    #[must_use]
    pub fn lengths(&self, headers_len: Option<usize>) -> (FrameLengths, FrameLengths) {
        let lengths = |l2: usize| FrameLengths {
            payload: headers_len.map_or(0, |headers| l2.saturating_sub(headers)),
            l2,
            wire: l2 + FCS_LEN,
        };
        let all = || self.templates.iter().map(|template| template.frame.len());
        (lengths(all().min().unwrap_or(0)), lengths(all().max().unwrap_or(0)))
    }
}

impl Fields {
    fn of(flow: &FlowSpec, variation: Variation) -> Self {
        let l3 = flow.l3_offset();
        let (src, dst, src_at, dst_at) = match flow.addresses {
            Addresses::V4 { src, dst } => (src.to_bits(), dst.to_bits(), 12, 16),
            Addresses::V6 { src, dst } => (low(src), low(dst), 20, 36),
        };
        Self {
            variation,
            first_dst_port: flow.dst_port,
            first_src_port: flow.src_port,
            first_dst_addr: dst,
            first_src_addr: src,
            udp_offset: flow.headers_len() - UDP_HEADER_LEN,
            dst_addr_offset: l3 + dst_at,
            src_addr_offset: l3 + src_at,
            ip_check_offset: ip_check_offset(flow),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the last 32 bits are wanted")]
fn low(address: std::net::Ipv6Addr) -> u32 {
    address.to_bits() as u32
}

fn ip_check_offset(flow: &FlowSpec) -> Option<usize> {
    matches!(flow.addresses, Addresses::V4 { .. }).then(|| flow.l3_offset() + IPV4_CHECK)
}

/// The flow with 0 in the fields that vary.
fn without_varied(flow: &FlowSpec, variation: Variation) -> FlowSpec {
    let (no_dst, no_src) = (variation.dst_addrs > 1, variation.src_addrs > 1);
    let v6 = |address: std::net::Ipv6Addr, clear| {
        if clear { (address.to_bits() & !u128::from(u32::MAX)).into() } else { address }
    };
    let v4 = |address: std::net::Ipv4Addr, clear| if clear { 0.into() } else { address };
    FlowSpec {
        dst_port: if variation.dst_ports > 1 { 0 } else { flow.dst_port },
        src_port: if variation.src_ports > 1 { 0 } else { flow.src_port },
        addresses: match flow.addresses {
            Addresses::V4 { src, dst } => Addresses::V4 { src: v4(src, no_src), dst: v4(dst, no_dst) },
            Addresses::V6 { src, dst } => Addresses::V6 { src: v6(src, no_src), dst: v6(dst, no_dst) },
        },
        ..flow.clone()
    }
}

impl Variator {
    /// Begins with the first values.
    #[must_use]
    pub fn new(fields: Fields) -> Self {
        Self { fields, at: [0; 4] }
    }

    /// Writes the next values into a frame made of `template`, with the checksums that cover them. `udp_sum` is
    /// [`Template::udp_sum`], with what else was changed in the frame.
    ///
    /// # Panics
    /// If the frame is shorter than its headers.
    pub fn write(&mut self, frame: &mut [u8], udp_sum: u16, ip_sum: u16) {
        let Fields { variation, .. } = self.fields;
        let mut sum = 0;
        let addrs = [
            (variation.dst_addrs, self.fields.first_dst_addr, self.fields.dst_addr_offset),
            (variation.src_addrs, self.fields.first_src_addr, self.fields.src_addr_offset),
        ];
        for (index, (count, first, offset)) in addrs.into_iter().enumerate().filter(|(_, (count, ..))| *count > 1) {
            let value = first.wrapping_add(next(&mut self.at[index], count));
            frame[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
            sum += (value >> 16) + (value & 0xffff);
        }
        let addrs_vary = variation.dst_addrs > 1 || variation.src_addrs > 1;
        if let Some(at) = self.fields.ip_check_offset.filter(|_| addrs_vary) {
            put(frame, at, !checksum::fold(u64::from(sum + u32::from(ip_sum))));
        }
        let udp = self.fields.udp_offset;
        let ports = [
            (variation.dst_ports, self.fields.first_dst_port, udp + 2),
            (variation.src_ports, self.fields.first_src_port, udp),
        ];
        for (index, (count, first, offset)) in ports.into_iter().enumerate().filter(|(_, (count, ..))| *count > 1) {
            let value = (u32::from(first) + next(&mut self.at[2 + index], count)) as u16; // After 65535 comes 0.
            put(frame, offset, value);
            sum += u32::from(value);
        }
        put(frame, udp + UDP_CHECK, checksum::never_zero(!checksum::fold(u64::from(sum + u32::from(udp_sum)))));
    }
}

/// The 16-bit words of an even number of bytes.
fn sum(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks::<2>().0.iter().map(|word| u16::from_be_bytes(*word))
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn next(at: &mut u32, count: u32) -> u32 {
    let value = *at;
    *at = if value + 1 < count { value + 1 } else { 0 };
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Vlan, VlanTag};
    use super::*;

    fn flow(v6: bool, tagged: bool, ports: (u16, u16)) -> FlowSpec {
        let flow = if v6 { FlowSpec::lab_v6() } else { FlowSpec::lab_v4() };
        let vlan = if tagged { Vlan::Tagged(VlanTag { id: 7, priority: 1 }) } else { Vlan::None };
        FlowSpec { vlan, dst_port: ports.0, src_port: ports.1, ..flow }
    }

    /// What is built for the values that the `index`th packet has.
    fn built(flow: &FlowSpec, size: FrameSize, variation: Variation, index: u32) -> Vec<u8> {
        let add = |count: u32| index % count;
        let Variation { dst_ports, src_ports, dst_addrs, src_addrs } = variation;
        let flow = FlowSpec {
            dst_port: flow.dst_port.wrapping_add(add(dst_ports) as u16),
            src_port: flow.src_port.wrapping_add(add(src_ports) as u16),
            addresses: match flow.addresses {
                Addresses::V4 { src, dst } => Addresses::V4 {
                    src: (src.to_bits() + add(src_addrs)).into(),
                    dst: (dst.to_bits() + add(dst_addrs)).into(),
                },
                Addresses::V6 { src, dst } => Addresses::V6 {
                    src: (src.to_bits() + u128::from(add(src_addrs))).into(),
                    dst: (dst.to_bits() + u128::from(add(dst_addrs))).into(),
                },
            },
            ..flow.clone()
        };
        build_udp_frame(&flow, size).unwrap()
    }

    proptest! {
        #[test]
        fn a_varied_frame_is_the_one_that_is_built_for_its_values(
            v6 in any::<bool>(),
            tagged in any::<bool>(),
            ports in any::<(u16, u16)>(),
            counts in (1u32..9, 1u32..9, 1u32..9, 1u32..9),
            sizes in prop::collection::vec(80usize..200, 1..4),
        ) {
            let flow = flow(v6, tagged, ports);
            let variation =
                Variation { dst_ports: counts.0, src_ports: counts.1, dst_addrs: counts.2, src_addrs: counts.3 };
            let sizes: Vec<FrameSize> = sizes.into_iter().map(FrameSize::Wire).collect();
            let traffic = Traffic::udp(&flow, &sizes, variation, false).unwrap();
            let mut variator = traffic.fields().copied().map(Variator::new);
            let mut buffer = traffic.longest().to_vec();
            for index in 0..40 {
                let size = index % sizes.len();
                let template = &traffic.templates()[size];
                buffer[..template.written].copy_from_slice(&template.frame[..template.written]);
                let frame = &mut buffer[..template.frame.len()];
                if let Some(variator) = &mut variator {
                    variator.write(frame, template.udp_sum, template.ip_sum);
                }
                prop_assert_eq!(&*frame, &built(&flow, sizes[size], variation, index as u32)[..]);
            }
        }
    }

    #[test]
    fn a_stamped_frame_has_the_checksum_of_its_content() {
        for flow in [flow(false, true, (1, 2)), flow(true, false, (3, 4))] {
            let at = flow.headers_len();
            let traffic = Traffic::udp(&flow, &[FrameSize::Wire(101)], Variation::default(), false).unwrap();
            let traffic = traffic.with_pktgen_header(at).unwrap();
            let template = &traffic.templates()[0];
            let mut frame = template.frame.clone();
            let time = std::time::Duration::new(1_700_000_000, 999_999_000);
            let sum = traffic.write_stamp(&mut frame, at, template.udp_sum, 0xfffe_0007, time);
            put(&mut frame, at - 2, checksum::never_zero(!sum));
            assert_eq!(frame[at..at + 8], [0xbe, 0x9b, 0xe9, 0x55, 0xff, 0xfe, 0, 7]);
            for frame in [&frame, &template.frame] {
                let headers = etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap();
                let etherparse::PayloadSlice::Udp(payload) = headers.payload else { panic!() };
                let Some(etherparse::TransportHeader::Udp(udp)) = headers.transport else { panic!() };
                let check = match headers.net.unwrap() {
                    etherparse::NetHeaders::Ipv4(header, _) => udp.calc_checksum_ipv4(&header, payload).unwrap(),
                    etherparse::NetHeaders::Ipv6(header, _) => udp.calc_checksum_ipv6(&header, payload).unwrap(),
                    other => panic!("{other:?}"),
                };
                assert_eq!(udp.checksum, check);
            }
        }
        let short =
            Traffic::udp(&FlowSpec::lab_v4(), &[FrameSize::Payload(15 + 3)], Variation::default(), false).unwrap();
        assert!(short.clone().with_pktgen_header(42).is_ok(), "18 bytes");
        assert!(short.with_pktgen_header(46).unwrap_err().to_string().contains("at least 66 bytes"));
    }

    #[test]
    fn flows_are_the_least_common_multiple_of_the_counts() {
        let variation = Variation { dst_ports: 4, src_ports: 6, ..Variation::default() };
        assert_eq!((variation.flows(), Variation::default().flows()), (12, 1));
    }

    #[test]
    fn bytes_are_those_of_whole_turns_and_the_begun_one() {
        let sizes = [64, 128, 100].map(FrameSize::Wire);
        let traffic = Traffic::udp(&FlowSpec::lab_v4(), &sizes, Variation::default(), false).unwrap();
        let naive = |packets: usize| (0..packets).map(|index| [60, 124, 96][index % 3]).sum::<u64>();
        for packets in 0..20 {
            assert_eq!(traffic.bytes_of(packets as u64), naive(packets));
        }
        assert_eq!(traffic.longest().len(), 124);
        assert!((traffic.mean_wire_len() - 292.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn one_frame_is_never_written_unless_it_shall_be_restored() {
        let written = |sizes: &[FrameSize], restore| {
            Traffic::udp(&FlowSpec::lab_v4(), sizes, Variation::default(), restore).unwrap().templates()[0].written
        };
        assert_eq!(written(&[FrameSize::Wire(64)], false), 0);
        assert_eq!(written(&[FrameSize::Wire(64)], true), 42);
        assert_eq!(written(&[FrameSize::Wire(64), FrameSize::Wire(99)], false), 42);
    }

    #[test]
    fn no_frame_and_too_short_a_frame_are_refused() {
        assert!(Traffic::replay(Vec::new()).unwrap_err().to_string().contains("0 frames"));
        assert!(Traffic::replay(vec![vec![0; 13]]).unwrap_err().to_string().contains("13 bytes are no Ethernet frame"));
        let replay = Traffic::replay(vec![vec![1; 14], vec![2; 60]]).unwrap();
        assert_eq!(replay.templates()[0].written, 14);
    }
}
