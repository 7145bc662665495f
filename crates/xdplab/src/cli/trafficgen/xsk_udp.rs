//! `xdplab trafficgen xsk-udp`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use xsk::BindMode;

use super::traffic::{Made, TrafficOptions, addresses, source_mac};
use super::udp::start_text;
use super::{Reporting, send};
use crate::cli::xsk::{Clock, Limit, Policy, bind_mode, fifo, seconds_or_never};
use crate::cli::{Ending, live};
use crate::device::CopyMode;
use crate::error::{Error, Result};
use crate::generator::{Rate, XskTxSpec};
use crate::live::{SentXskLayout, Start, XskLayout, XskSendSpec, XskSender};
use crate::packet::{Addresses, FlowSpec, MacAddr, PayloadPattern, Sizes, Vlan, VlanTag};

/// Options of `xsk-udp`.
#[derive(Args, Debug)]
#[command(args_override_self = true, disable_version_flag = true)]
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
    /// Destination address, IPv4 or IPv6 [default: 10.10.10.32, or fe80::2 with an IPv6 source]
    #[arg(long, value_name = "ADDRESS")]
    dst_addr: Option<IpAddr>,
    /// Source address [default: 10.10.10.16, or fe80::1 with an IPv6 destination]
    #[arg(long, value_name = "ADDRESS")]
    src_addr: Option<IpAddr>,
    /// UDP destination port, the first of several
    #[arg(long, value_name = "PORT", default_value = "4096")]
    dst_port: u16,
    /// UDP source port, the first of several
    #[arg(long, value_name = "PORT", default_value = "4096")]
    src_port: u16,
    /// So many UDP destination ports in turn, from the destination port on
    #[arg(long, value_name = "PORTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    dyn_ports: Option<u32>,
    /// IPv4 time to live or IPv6 hop limit
    #[arg(long, visible_alias = "ttl", value_name = "HOPS", default_value = "64")]
    hop_limit: u8,
    /// Put sequence number and time into each packet, as the header of the kernel's pktgen
    #[arg(short = 'y', long)]
    timestamp: bool,
    /// Put a VLAN tag into packets
    #[arg(short = 'V', long, conflicts_with = "vlan")]
    vlan_tag: bool,
    /// VLAN identifier of the tag, 0 to 4094
    #[arg(short = 'J', long, value_name = "ID", default_value = "1", value_parser = clap::value_parser!(u16).range(0..=4094))]
    vlan_id: u16,
    /// Priority of the tag, 0 to 7
    #[arg(short = 'K', long, value_name = "PRIORITY", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=7))]
    vlan_pri: u8,
    /// 32 bits in hexadecimal that fill the payload
    #[arg(short = 'P', long, value_name = "PATTERN", default_value = "0", value_parser = hexadecimal)]
    fill_pattern: u32,
    /// Microseconds from one batch to the next; 0 is as fast as can be
    #[arg(short = 'T', long, value_name = "US", default_value = "0", conflicts_with = "rate")]
    tx_cycle_time: u64,
    /// Queue to send to; further threads have the next ones
    #[arg(short, long, value_name = "QUEUE", default_value = "0")]
    queue: u32,
    /// Seconds from one line to the next; fractions are taken too
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = live::seconds)]
    interval: Duration,
    /// Seconds to wait for the last packets to be sent, where they are counted
    #[arg(short = 'O', long, value_name = "SECONDS", default_value = "3")]
    retries: u32,
    /// Bytes a frame of the umem: a power of two from 2048 on, or any size with -u
    #[arg(short, long, value_name = "SIZE", default_value = "4096")]
    frame_size: u32,
    /// Sizes on the wire in bytes, FCS counted: 64, a list 64,128,1518, imix, or a sweep 64..1518 or 64..1518:64
    #[arg(short = 's', long, value_name = "SIZE", default_value = "64")]
    pkt_size: Sizes,
    /// End after this time; 0 is never
    #[arg(short, long, value_name = "SECONDS", default_value = "0", value_parser = seconds_or_never)]
    duration: Limit,
    /// End when so many packets have been sent, by all threads together; 0 is never
    #[arg(short = 'c', long, visible_alias = "count", value_name = "PACKETS", default_value = "0")]
    pkt_count: u64,
    /// Packets given to the ring at once
    #[arg(short, long, value_name = "PACKETS", default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Threads, each on a CPU and a queue of its own
    #[arg(short = 't', long, value_name = "THREADS", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Count the interrupts of the first line of /proc/interrupts with this text
    #[arg(short = 'I', long, value_name = "TEXT")]
    irq_string: Option<String>,
    /// Wait for room in poll(2) instead of looking for it all the time
    #[arg(short, long, conflicts_with_all = ["tx_cycle_time", "rate"])]
    poll: bool,
    /// Bind without XDP_USE_NEED_WAKEUP
    #[arg(long)]
    no_need_wakeup: bool,
    /// Frames of any size that may cross pages, on huge pages if any are set aside
    #[arg(short, long)]
    unaligned: bool,
    /// Four sockets with one umem on each queue, which send in turn
    #[arg(long)]
    shared_umem: bool,
    /// Start with the kernel's statistics of each socket (Ctrl-\ toggles)
    #[arg(short = 'x', long)]
    extra_stats: bool,
    /// Show nothing before the end
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Show the calls that are made
    #[arg(short, long)]
    app_stats: bool,
    /// How packets get to the device
    #[arg(short = 'C', long, value_name = "MODE", default_value = "auto")]
    copy_mode: CopyMode,
    /// Taken for compatibility: time is read from the monotonic clock, whose rates no setting of a clock bends
    #[arg(short = 'w', long, value_name = "CLOCK", default_value = "MONOTONIC")]
    clock: Clock,
    /// Scheduling policy of the sending threads
    #[arg(short = 'W', long, value_name = "POLICY", default_value = "SCHED_OTHER")]
    policy: Policy,
    /// Their priority, 1 to 99 with SCHED_FIFO
    #[arg(short = 'U', long = "schpri", value_name = "PRIORITY", default_value = "0")]
    priority: u32,
    /// Nothing is attached in order to send; skb stands for copy mode
    #[arg(short = 'A', long, value_name = "MODE", default_value = "native")]
    attach_mode: AttachMode,
    /// Print version
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
    #[command(flatten)]
    traffic: TrafficOptions,
    #[command(flatten)]
    reporting: Reporting,
}

/// How a program would be attached, if one were.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AttachMode {
    /// In the driver
    Native,
    /// On socket buffers
    Skb,
    /// In the NIC; refused
    Hw,
}

fn hexadecimal(text: &str) -> std::result::Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_no_number| "not 32 bits in hexadecimal".to_owned())
}

pub(crate) fn run(options: &Options) -> Result<Ending> {
    let mut common = options.reporting.live(options.interval, options.duration.0, options.count());
    common.extended |= options.extra_stats;
    let open = || XskSender::open(options.spec()?);
    let lines = |start: &Start| {
        let threads = start.sending.as_ref().map_or_else(Vec::new, |sending| sending.threads.clone());
        let layout = XskLayout {
            interface: options.interface.clone(),
            queue: options.queue,
            receives: false,
            sends: true,
            frags: start.sending.as_ref().is_some_and(|sending| sending.longest.l2 > options.frame_size as usize),
            calls: options.app_stats,
            quiet: options.quiet,
        };
        SentXskLayout::new(layout, threads)
    };
    send(&common, open, lines, |start| {
        let mode = start.xsk.as_ref().map_or("", |xsk| xsk.mode.as_str());
        format!("{}; from AF_XDP sockets in {mode} mode", start_text(start))
    })
}

impl Options {
    fn count(&self) -> Option<u64> {
        (self.pkt_count > 0).then_some(self.pkt_count)
    }

    /// A batch each cycle is a rate too.
    fn schedule(&self) -> (Option<Rate>, Option<u32>) {
        if self.tx_cycle_time == 0 {
            return (self.traffic.rate(), self.traffic.burst());
        }
        let packets = f64::from(self.batch_size) * f64::from(self.threads);
        (Some(Rate::PacketsPerSec(packets * 1e6 / self.tx_cycle_time as f64)), Some(self.batch_size))
    }

    fn spec(&self) -> Result<XskSendSpec> {
        let flow = self.flow()?;
        let Made { mut traffic, headers_len } =
            self.traffic.traffic(&flow, Some(&self.pkt_size), self.dyn_ports.unwrap_or(1))?;
        let pktgen_header = headers_len.filter(|_| self.timestamp);
        if self.timestamp && pktgen_header.is_none() {
            return Err(Error::usage("stamp packets", "those of a file are sent as they are"));
        }
        if let Some(at) = pktgen_header {
            traffic = traffic.with_pktgen_header(at)?;
        }
        let (rate, burst) = self.schedule();
        Ok(XskSendSpec {
            interface: self.interface.clone(),
            headers_len,
            rate,
            burst,
            irq_string: self.irq_string.clone(),
            keep_going: self.reporting.keep_going,
            force: self.reporting.force,
            sockets: XskTxSpec {
                traffic,
                pktgen_header,
                pace: None,
                ifindex: 0,
                queue: self.queue,
                cpus: self.traffic.cpus(self.threads.into())?,
                batch: self.batch_size,
                count: self.count(),
                completion: Duration::from_secs(self.retries.into()),
                frame_size: self.frame_size,
                unaligned: self.unaligned,
                shared: self.shared_umem,
                poll: self.poll,
                need_wakeup: !self.no_need_wakeup,
                mode: self.mode()?,
                fifo: fifo(self.policy, self.priority)?,
            },
        })
    }

    fn mode(&self) -> Result<BindMode> {
        let attach_mode = match self.attach_mode {
            AttachMode::Native => live::Mode::Native,
            AttachMode::Skb => live::Mode::Skb,
            AttachMode::Hw => {
                return Err(Error::unsupported("send in hw mode", "nothing is offloaded to NICs by this tool")
                    .remedy("leave -A out"));
            }
        };
        bind_mode(attach_mode, self.copy_mode)
    }

    fn flow(&self) -> Result<FlowSpec> {
        let tag = VlanTag { id: self.vlan_id, priority: self.vlan_pri };
        let vlan = if self.vlan_tag { Vlan::Tagged(tag) } else { Vlan::None };
        let v4 = Addresses::V4 { src: Ipv4Addr::new(10, 10, 10, 16), dst: Ipv4Addr::new(10, 10, 10, 32) };
        let v6 = super::udp::link_local();
        let is_default = self.src_addr.is_none() && self.dst_addr.is_none();
        Ok(FlowSpec {
            src_mac: source_mac(self.src_mac, &self.interface)?,
            dst_mac: self.dst_mac,
            vlan: self.traffic.vlan(vlan)?,
            addresses: if is_default { v4 } else { addresses(self.src_addr, self.dst_addr, v4, v6)? },
            ttl: self.hop_limit,
            src_port: self.src_port,
            dst_port: self.dst_port,
            payload: PayloadPattern::Word(self.fill_pattern),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_hexadecimal_with_or_without_its_mark() {
        assert_eq!((hexadecimal("0x12345678"), hexadecimal("ff")), (Ok(0x1234_5678), Ok(255)));
        for bad in ["", "0x", "123456789", "g", "-1"] {
            assert!(hexadecimal(bad).is_err(), "{bad}");
        }
    }
}
