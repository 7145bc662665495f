//! `xdplab trafficgen pktgen`: the options of the kernel's samples/pktgen scripts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::elsewhere::{Elsewhere, Lacks, Refused};
use super::quantity::one_size;
use super::traffic::{VlanOption, vlan};
use super::{Reporting, send};
use crate::cli::{Ending, live};
use crate::error::Result;
use crate::generator::Rate;
use crate::generator::pktgen::{PktgenSpec, XmitMode};
use crate::live::{PktgenLayout, PktgenSender, Start};
use crate::packet::{FCS_LEN, MacAddr, Vlan};

/// Options of `pktgen`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Interface to send out of
    #[arg(short, long, value_name = "IFNAME")]
    interface: String,
    /// Bytes of a frame without FCS
    #[arg(short, long, value_name = "BYTES", default_value = "60", value_parser = one_size)]
    size: u64,
    /// Destination address, or a range of them as ADDRESS/LENGTH [default: 198.18.0.42, with -6 fd00::1]
    #[arg(short, long, value_name = "ADDRESS")]
    dest: Option<Range>,
    /// Destination Ethernet address
    #[arg(short = 'm', long, value_name = "MAC", default_value = "90:e2:ba:ff:ff:ff")]
    dst_mac: MacAddr,
    /// Destination port, or a range of them as FIRST-LAST
    #[arg(short = 'p', long, value_name = "PORTS", value_parser = ports)]
    dst_port: Option<(u16, u16)>,
    /// Fill in UDP checksums
    #[arg(short = 'k', long)]
    udp_csum: bool,
    /// Threads, each on the CPU of its number
    #[arg(short, long, value_name = "THREADS", default_value = "1")]
    threads: u32,
    /// Number of the first thread
    #[arg(short, long, value_name = "THREAD", default_value = "0")]
    first_thread: u32,
    /// How often a packet is sent again before another is made
    #[arg(short, long, value_name = "TIMES", default_value = "0")]
    clone: u32,
    /// Packets of each thread; 0 until stopped
    #[arg(short = 'n', long, value_name = "PACKETS", default_value = "0")]
    count: u64,
    /// Packets that the driver gets at once
    #[arg(short, long, value_name = "PACKETS", default_value = "1")]
    burst: u32,
    /// Nanoseconds from packet to packet
    #[arg(short = 'w', long, value_name = "NS", default_value = "0")]
    delay: u64,
    /// IPv6 where no destination is given
    #[arg(short = '6', long)]
    ipv6: bool,
    /// UDP source ports at random, so many; 1 is a single flow
    #[arg(long, value_name = "FLOWS", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    flows: u16,
    /// Send so many packets (10k, 1.5Mpps) or bits (100Mbit; FCS counted) a second, each thread
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// A VLAN tag; twice for QinQ, the service tag (0x88a8) first
    #[arg(long, value_name = "ID[:PRIORITY]")]
    vlan: Vec<VlanOption>,
    /// How packets are given to the interface
    #[arg(long, value_name = "MODE", default_value = "start_xmit")]
    xmit_mode: XmitMode,
    /// Seconds from one line to the next; fractions are taken too
    #[arg(short = 'I', long, value_name = "SECONDS", default_value = "1", value_parser = live::seconds)]
    interval: Duration,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = live::seconds)]
    duration: Option<Duration>,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    elsewhere: Elsewhere<Self>,
}

impl Lacks for Options {
    const REFUSED: &[Refused] = &[
        ("hop-limit", HOPS),
        ("ttl", HOPS),
        ("cpus", "pktgen's thread of each number is on the CPU of that number: --threads and --first-thread"),
        ("queue", "each thread sends to the queue of its number: --first-thread"),
        ("batch-size", "pktgen makes packets one by one, and gives the driver several at once: --burst"),
        ("dyn-ports", "give the destination ports as --dst-port FIRST-LAST"),
        ("src-ports", "give their number as --flows"),
        ("dst-addrs", "give the destination as --dest ADDRESS/LENGTH"),
        ("src-addrs", "pktgen sends from the interface's address"),
        ("pcap", "pktgen makes its packets itself: udp or xsk-udp"),
    ];
}

/// Why there is no TTL (`fill_packet_ipv4()`, net/core/pktgen.c).
const HOPS: &str = "pktgen writes 32 into every packet";

/// Addresses from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range(IpAddr, IpAddr);

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_other| format!("{address:?} is no address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(most), str::parse::<u32>).ok().filter(|length| *length <= most);
        let host_bits = most - length.ok_or_else(|| format!("a length is 0 to {most}"))?;
        let ones = u128::MAX.checked_shr(128 - host_bits).unwrap_or(0);
        Ok(match address {
            IpAddr::V4(address) => {
                let (bits, ones) = (u32::from(address), ones as u32);
                Self(Ipv4Addr::from(bits & !ones).into(), Ipv4Addr::from(bits | ones).into())
            }
            IpAddr::V6(address) => {
                let bits = u128::from(address);
                Self(Ipv6Addr::from(bits & !ones).into(), Ipv6Addr::from(bits | ones).into())
            }
        })
    }
}

fn ports(text: &str) -> std::result::Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().map_err(|_other| format!("{text:?} is no port"));
    let (first, last) = (port(first)?, port(last)?);
    if first > last { Err("the first port is above the last".into()) } else { Ok((first, last)) }
}

pub(crate) fn run(options: &Options) -> Result<Ending> {
    options.elsewhere.refuse()?;
    let spec = options.spec()?;
    // The threads end by themselves; they are looked at often.
    let common = options.reporting.live(options.interval, options.duration, Some(u64::MAX));
    let Reporting { keep_going, force, .. } = options.reporting;
    let open = || PktgenSender::open(spec, keep_going, force);
    send(&common, open, |_start| PktgenLayout::new(&options.interface), start_text)
}

impl Options {
    fn spec(&self) -> Result<PktgenSpec> {
        let usual: IpAddr = if self.ipv6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into()
        } else {
            Ipv4Addr::new(198, 18, 0, 42).into()
        };
        let Range(first, last) = self.dest.unwrap_or(Range(usual, usual));
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let wire = f64::from(size) + FCS_LEN as f64;
        Ok(PktgenSpec {
            interface: self.interface.clone(),
            size,
            vlan: vlan(&self.vlan, Vlan::None)?,
            destination: (first, last),
            dst_mac: self.dst_mac,
            dst_ports: self.dst_port,
            udp_checksum: self.udp_csum,
            threads: self.threads,
            first_thread: self.first_thread,
            clones: self.clone,
            burst: self.burst,
            count_per_thread: self.count,
            delay_ns: self.delay,
            rate_pps: self.rate.map(|rate| whole(rate.pps(wire))),
            flows: self.flows,
            mode: self.xmit_mode,
        })
    }
}

/// pktgen takes whole packets a second.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 up, and limited by the type")]
fn whole(pps: f64) -> u64 {
    pps.round().max(1.0) as u64
}

fn start_text(start: &Start) -> String {
    let Some(spec) = &start.pktgen else { return String::new() };
    let PktgenSpec { interface, size, destination: (first, last), threads, flows, burst, .. } = spec;
    let to = if first == last { first.to_string() } else { format!("{first} to {last}") };
    format!(
        "Transmitting on {interface} by pktgen: {threads} threads, {size} bytes without FCS to {to}, {flows} flows, bursts of {burst}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_the_range_of_its_addresses() {
        let range = |text: &str| text.parse::<Range>().map(|Range(first, last)| format!("{first} {last}"));
        assert_eq!(range("198.18.0.42").unwrap(), "198.18.0.42 198.18.0.42");
        assert_eq!(range("198.18.0.0/15").unwrap(), "198.18.0.0 198.19.255.255");
        assert_eq!(range("0.0.0.0/0").unwrap(), "0.0.0.0 255.255.255.255");
        assert_eq!(range("2001:2::9/120").unwrap(), "2001:2:: 2001:2::ff");
        assert!(range("::/0").unwrap().ends_with("ffff:ffff"));
        for bad in ["", "10.0.0.1/33", "::1/129", "example.org", "10.0.0.1/x"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ports_are_one_or_a_range() {
        assert_eq!((ports("9"), ports("433-444")), (Ok((9, 9)), Ok((433, 444))));
        for bad in ["", "65536", "9-8", "a"] {
            assert!(ports(bad).is_err(), "{bad}");
        }
    }
}
