//! `xdplab trafficgen udp`.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use clap::Args;

use super::elsewhere::{Elsewhere, Lacks, Refused};
use super::traffic::{Made, TrafficOptions, addresses, source_mac};
use super::{QUEUE_BY_CPU, Reporting, send};
use crate::cli::{Ending, live};
use crate::error::Result;
use crate::generator::Pace;
use crate::live::{LiveSender, SendSpec, Sending, SentLayout, Start, sizes_text, trial_text};
use crate::packet::{Addresses, FlowSpec, MacAddr, PayloadPattern, Sizes, Vlan};

/// Options of `udp`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Interface to send out of
    #[arg(value_name = "IFNAME")]
    interface: String,
    /// Destination MAC address
    #[arg(short = 'm', long, value_name = "MAC", default_value = "00:00:00:00:00:00")]
    dst_mac: MacAddr,
    /// Source MAC address [default: that of the interface]
    #[arg(short = 'M', long, value_name = "MAC")]
    src_mac: Option<MacAddr>,
    /// Destination address, IPv4 or IPv6 [default: fe80::2, or 198.18.0.2 with an IPv4 source]
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    dst_addr: Option<IpAddr>,
    /// Source address [default: fe80::1, or 198.18.0.1 with an IPv4 destination]
    #[arg(short = 'A', long, value_name = "ADDRESS")]
    src_addr: Option<IpAddr>,
    /// UDP destination port, the first of several
    #[arg(short = 'p', long, value_name = "PORT", default_value = "1")]
    dst_port: u16,
    /// UDP source port, the first of several
    #[arg(short = 'P', long, value_name = "PORT", default_value = "1")]
    src_port: u16,
    /// So many UDP destination ports in turn, from the destination port on
    #[arg(short = 'd', long, value_name = "PORTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    dyn_ports: Option<u32>,
    /// End when so many packets have been sent, by all threads together
    #[arg(short = 'n', long, visible_alias = "count", value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    num_packets: Option<u64>,
    /// Sizes on the wire in bytes, FCS counted: 66, a list 66,128,1518, imix, or a sweep 66..1518 or 66..1518:64 [default: the
    /// shortest]
    #[arg(short = 's', long, value_name = "BYTES")]
    pkt_size: Option<Sizes>,
    /// Threads, each on a CPU of its own as far as there are some
    #[arg(short = 't', long, value_name = "THREADS", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Seconds from one line to the next; fractions are taken too
    #[arg(short = 'I', long, value_name = "SECONDS", default_value = "1", value_parser = live::seconds)]
    interval: Duration,
    /// IPv4 time to live or IPv6 hop limit
    #[arg(short = 'l', long, visible_alias = "ttl", value_name = "HOPS", default_value = "1")]
    hop_limit: u8,
    /// Packets that the kernel makes at once, where there is no rate; 128 is 4 % faster than its own 64 on a veth whose
    /// receiver drops
    #[arg(short, long, value_name = "PACKETS", default_value = "128", value_parser = clap::value_parser!(u32).range(1..=256))]
    batch_size: u32,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = live::seconds)]
    duration: Option<Duration>,
    #[command(flatten)]
    traffic: TrafficOptions,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    elsewhere: Elsewhere<Self>,
}

impl Lacks for Options {
    const REFUSED: &[Refused] = &[("queue", QUEUE_BY_CPU)];
}

pub(crate) fn run(options: &Options) -> Result<Ending> {
    options.elsewhere.refuse()?;
    let common = options.reporting.live(options.interval, options.duration, options.num_packets);
    let open = || LiveSender::open(options.spec()?);
    let lines = |start: &Start| {
        let threads = start.sending.as_ref().map_or_else(Vec::new, |sending| sending.threads.clone());
        SentLayout::new(&options.interface, threads)
    };
    send(&common, open, lines, start_text)
}

impl Options {
    fn spec(&self) -> Result<SendSpec> {
        let Made { traffic, headers_len } =
            self.traffic.traffic(&self.flow()?, self.pkt_size.as_ref(), self.dyn_ports.unwrap_or(1))?;
        Ok(SendSpec {
            interface: self.interface.clone(),
            traffic,
            headers_len,
            cpus: self.traffic.cpus(self.threads.into())?,
            rate: self.traffic.rate(),
            burst: self.traffic.burst(),
            batch: self.batch_size,
            count: self.num_packets,
            keep_going: self.reporting.keep_going,
            force: self.reporting.force,
        })
    }

    fn flow(&self) -> Result<FlowSpec> {
        Ok(FlowSpec {
            src_mac: source_mac(self.src_mac, &self.interface)?,
            dst_mac: self.dst_mac,
            vlan: self.traffic.vlan(Vlan::None)?,
            addresses: addresses(self.src_addr, self.dst_addr, FlowSpec::lab_v4().addresses, link_local())?,
            ttl: self.hop_limit,
            src_port: self.src_port,
            dst_port: self.dst_port,
            payload: PayloadPattern::Fill(0),
        })
    }
}

/// From fe80::1 to fe80::2.
pub(super) fn link_local() -> Addresses {
    let address = |last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);
    Addresses::V6 { src: address(1), dst: address(2) }
}

/// What is sent where: the first line is one that scripts know.
pub(super) fn start_text(start: &Start) -> String {
    let Some((target, sending)) = start.targets.first().zip(start.sending.as_ref()) else { return String::new() };
    let mut text = format!("Transmitting on {} (ifindex {})\n", target.interface, target.ifindex);
    text += &format!("{}; {}", sizes_text(sending), trial_text(&sending.trial));
    if sending.flows > 1 {
        text += &format!("; {} flows", sending.flows);
    }
    text + &pace_text(sending)
}

/// The schedule, if there is one.
pub(super) fn pace_text(sending: &Sending) -> String {
    let Some(Pace { pps, burst }) = sending.pace else { return String::new() };
    let bursts = if burst > 1 { format!(" in bursts of {burst}") } else { String::new() };
    format!("; {pps} packets/s{bursts}")
}
