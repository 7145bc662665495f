//! Options that say what is sent, how fast and from where, the same for every way of sending frames.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::warn;
use crate::error::{Error, Result};
use crate::generator::Rate;
use crate::packet::{
    Addresses, FCS_LEN, FlowSpec, FrameSize, MIN_L2_LEN, MacAddr, Sizes, Traffic, Variation, Vlan, VlanTag, read_frames,
};
use crate::sys::affinity;

/// What is sent, how fast and from where.
#[derive(Args, Debug)]
pub(crate) struct TrafficOptions {
    /// So many UDP source ports in turn, from the source port on
    #[arg(long, value_name = "PORTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    src_ports: Option<u32>,
    /// So many destination addresses in turn, from the destination address on
    #[arg(long, value_name = "ADDRESSES", value_parser = clap::value_parser!(u32).range(1..))]
    dst_addrs: Option<u32>,
    /// So many source addresses in turn, from the source address on
    #[arg(long, value_name = "ADDRESSES", value_parser = clap::value_parser!(u32).range(1..))]
    src_addrs: Option<u32>,
    /// A VLAN tag; twice for QinQ, the service tag (0x88a8) first
    #[arg(long, value_name = "ID[:PRIORITY]")]
    vlan: Vec<VlanOption>,
    /// Write the headers anew into each packet, for a receiver on this machine that changes packets: they are used again
    #[arg(long)]
    restore_headers: bool,
    /// Send so many packets (10k, 1.5Mpps) or bits (100Mbit; FCS counted) a second, of all threads together
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Packets that leave back to back where there is a rate [default: 1; more above 1.5 million a second
    /// and thread, of sockets 0.4 million]
    #[arg(long, value_name = "PACKETS", requires = "rate", value_parser = clap::value_parser!(u32).range(1..=256))]
    burst: Option<u32>,
    /// CPUs that threads stay on, such as 0,2-3 [default: the first ones]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuList>,
    /// Send the frames of a pcap or pcapng file again and again, as they are and in their order
    #[arg(long, value_name = "FILE", conflicts_with_all = ["src_ports", "dst_addrs", "src_addrs", "vlan", "restore_headers"])]
    pcap: Option<PathBuf>,
}

/// CPU numbers in the order of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(pub(super) Vec<usize>);

/// A VLAN tag as a user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VlanOption(VlanTag);

/// What is sent, made of all options.
pub(crate) struct Made {
    pub(crate) traffic: Traffic,
    /// Bytes before the UDP payload; `None` for frames of a file.
    pub(crate) headers_len: Option<usize>,
}

impl TrafficOptions {
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    pub(crate) fn burst(&self) -> Option<u32> {
        self.burst
    }

    /// VLAN tags, or else those that another option gives.
    pub(crate) fn vlan(&self, otherwise: Vlan) -> Result<Vlan> {
        vlan(&self.vlan, otherwise)
    }

    /// A CPU for each of so many threads.
    pub(crate) fn cpus(&self, threads: usize) -> Result<Vec<usize>> {
        let cpus = match &self.cpus {
            Some(CpuList(cpus)) => cpus.clone(),
            None => affinity::allowed()?,
        };
        if threads > cpus.len() {
            warn(&format!("{threads} threads share {} CPUs", cpus.len()));
        }
        Ok(cpus.into_iter().cycle().take(threads).collect())
    }

    /// The frames of the file, or those of `flow` in these sizes in turn.
    pub(crate) fn traffic(&self, flow: &FlowSpec, sizes: Option<&Sizes>, dst_ports: u32) -> Result<Made> {
        if let Some(path) = &self.pcap {
            let traffic = Traffic::replay(read_frames(path)?)
                .map_err(|error| error.concerning(format!("send the frames of {}", path.display())))?;
            return Ok(Made { traffic, headers_len: None });
        }
        let variation = Variation {
            dst_ports,
            src_ports: self.src_ports.unwrap_or(1),
            dst_addrs: self.dst_addrs.unwrap_or(1),
            src_addrs: self.src_addrs.unwrap_or(1),
        };
        let sizes = frame_sizes(flow, sizes);
        let traffic = Traffic::udp(flow, &sizes, variation, self.restore_headers)?;
        Ok(Made { traffic, headers_len: Some(flow.headers_len()) })
    }
}

/// Tags as given, or else others.
pub(crate) fn vlan(tags: &[VlanOption], otherwise: Vlan) -> Result<Vlan> {
    match *tags {
        [] => Ok(otherwise),
        [VlanOption(tag)] => Ok(Vlan::Tagged(tag)),
        [VlanOption(outer), VlanOption(inner)] => Ok(Vlan::QinQ { outer, inner }),
        _ => Err(Error::usage("tag packets", "more than two VLAN tags").remedy("give --vlan once or twice")),
    }
}

/// Sizes of frames of the flow in turn; the shortest without any given. 64 and 65 become the shortest possible, as they
/// are known to.
fn frame_sizes(flow: &FlowSpec, sizes: Option<&Sizes>) -> Vec<FrameSize> {
    let shortest = flow.headers_len().max(MIN_L2_LEN) + FCS_LEN;
    let Some(sizes) = sizes else { return vec![FrameSize::Wire(shortest)] };
    let mut clamped = false;
    let mut clamp = |size: usize| {
        let clamp = matches!(size, 64 | 65) && size < shortest;
        clamped |= clamp;
        FrameSize::Wire(if clamp { shortest } else { size })
    };
    let sizes = sizes.wire(shortest).into_iter().map(&mut clamp).collect();
    if clamped {
        warn(&format!("Sizes of 64 and 65 bytes are {shortest} bytes: these headers and the FCS alone have so many"));
    }
    sizes
}

/// Addresses of one family: those given, and for the other end the default of their family.
pub(crate) fn addresses(src: Option<IpAddr>, dst: Option<IpAddr>, v4: Addresses, v6: Addresses) -> Result<Addresses> {
    let is_v4 = match (src, dst) {
        (Some(src), Some(dst)) if src.is_ipv4() != dst.is_ipv4() => {
            return Err(Error::usage(format!("send packets from {src} to {dst}"), "one is IPv4 and the other IPv6"));
        }
        (Some(address), _) | (None, Some(address)) => address.is_ipv4(),
        (None, None) => return Ok(v6),
    };
    let mut addresses = if is_v4 { v4 } else { v6 };
    match &mut addresses {
        Addresses::V4 { src: default_src, dst: default_dst } => {
            if let Some(IpAddr::V4(src)) = src {
                *default_src = src;
            }
            if let Some(IpAddr::V4(dst)) = dst {
                *default_dst = dst;
            }
        }
        Addresses::V6 { src: default_src, dst: default_dst } => {
            if let Some(IpAddr::V6(src)) = src {
                *default_src = src;
            }
            if let Some(IpAddr::V6(dst)) = dst {
                *default_dst = dst;
            }
        }
    }
    Ok(addresses)
}

/// The source address of frames: the one given, or that of the interface.
pub(crate) fn source_mac(given: Option<MacAddr>, interface: &str) -> Result<MacAddr> {
    if let Some(mac) = given {
        return Ok(mac);
    }
    let link = crate::netlink::Rtnl::open()?.link_by_name(interface)?;
    link.mac.ok_or_else(|| {
        Error::unsupported(format!("send Ethernet frames out of {interface}"), "it has no Ethernet address")
            .remedy("give one: --src-mac 02:00:00:00:00:01")
    })
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.parse::<usize>().map_err(|_no_number| format!("{text:?} is no CPU number"));
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            // More than any machine has: a slip, not a list to fill the memory with.
            if first > last || last > 65_535 {
                return Err(format!("{part:?} is no range of CPUs"));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl FromStr for VlanOption {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (id, priority) = text.split_once(':').unwrap_or((text, "0"));
        let id = id.parse().ok().filter(|id| *id <= 4094).ok_or("a VLAN identifier is 0 to 4094")?;
        let priority = priority.parse().ok().filter(|priority| *priority <= 7).ok_or("a priority is 0 to 7")?;
        Ok(Self(VlanTag { id, priority }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read_in_their_order() {
        assert_eq!("0,2-3,1".parse(), Ok(CpuList(vec![0, 2, 3, 1])));
        for bad in ["", "a", "1-", "3-2", "0-99999999", "1,,2"] {
            assert!(bad.parse::<CpuList>().is_err(), "{bad}");
        }
    }

    #[test]
    fn vlan_tags_have_a_priority_or_none() {
        assert_eq!("100:3".parse(), Ok(VlanOption(VlanTag { id: 100, priority: 3 })));
        assert_eq!("7".parse(), Ok(VlanOption(VlanTag { id: 7, priority: 0 })));
        for bad in ["", "4095", "1:8", "1:", "x:1"] {
            assert!(bad.parse::<VlanOption>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_other_end_has_the_default_of_the_family() {
        let (FlowSpec { addresses: v4, .. }, FlowSpec { addresses: v6, .. }) = (FlowSpec::lab_v4(), FlowSpec::lab_v6());
        let of = |src: Option<&str>, dst: Option<&str>| {
            let parse = |text: Option<&str>| text.map(|text| text.parse::<IpAddr>().unwrap());
            addresses(parse(src), parse(dst), v4, v6)
        };
        assert_eq!(of(None, None).unwrap(), v6);
        let expected = Addresses::V4 { src: [198, 18, 0, 1].into(), dst: [10, 0, 0, 1].into() };
        assert_eq!(of(None, Some("10.0.0.1")).unwrap(), expected);
        assert!(of(Some("::1"), Some("10.0.0.1")).unwrap_err().to_string().contains("one is IPv4"));
    }

    #[test]
    fn sizes_that_were_once_allowed_become_the_shortest() {
        let sizes: Sizes = "64,65,70".parse().unwrap();
        let wire = |flow: &FlowSpec| frame_sizes(flow, Some(&sizes));
        assert_eq!(wire(&FlowSpec::lab_v6()), [66, 66, 70].map(FrameSize::Wire));
        assert_eq!(wire(&FlowSpec::lab_v4()), [64, 65, 70].map(FrameSize::Wire));
        assert_eq!(frame_sizes(&FlowSpec::lab_v4(), None), [FrameSize::Wire(64)]);
    }
}
