//! `xdplab trafficgen tcp`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::elsewhere::{Elsewhere, Lacks, Refused};
use super::quantity::{one_size, quantity};
use super::socket::resolve;
use super::traffic::CpuList;
use super::udp::pace_text;
use super::{QUEUE_BY_CPU, Reporting, send};
use crate::cli::{Ending, live};
use crate::error::{Error, Result};
use crate::generator::socket::DEFAULT_PORT;
use crate::generator::tcp::TcpFlowSpec;
use crate::generator::{LiveFramesSpec, Rate};
use crate::live::{Attached, Start, TcpLayout, TcpSendSpec, TcpSender, TcpStart, sizes_text};
use crate::netlink::{Rtnl, XdpMode};
use crate::sys::affinity;

/// Options of `tcp`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Whom to connect to: a name or an address, IPv6 or IPv4
    #[arg(value_name = "HOST")]
    host: String,
    /// Interface to connect through and to send out of
    #[arg(short, long = "interface", visible_alias = "ifname", value_name = "IFNAME")]
    interface: String,
    /// TCP port to connect to
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    dst_port: u16,
    /// How to attach the program that takes acknowledgements; a mode that is refused is never exchanged for another
    #[arg(short, long, value_name = "MODE", default_value = "native")]
    mode: Mode,
    /// End when so many segments have been sent, those sent again among them
    #[arg(short = 'n', long, visible_alias = "count", value_name = "SEGMENTS", value_parser = clap::value_parser!(u64).range(1..))]
    num_packets: Option<u64>,
    /// End when so many bytes of payload have been acknowledged, rounded up to whole segments (10M, 64Mi)
    #[arg(long, value_name = "BYTES", value_parser = quantity)]
    bytes: Option<u64>,
    /// Seconds that the connection may take
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = live::seconds)]
    timeout: Duration,
    /// Seconds from one line to the next; fractions are taken too
    #[arg(short = 'I', long, value_name = "SECONDS", default_value = "1", value_parser = live::seconds)]
    interval: Duration,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = live::seconds)]
    duration: Option<Duration>,
    /// Bytes of payload of a segment [default: as many as the peer, the MTU and a page take]
    #[arg(short = 's', long, value_name = "BYTES", value_parser = one_size)]
    size: Option<u64>,
    /// Send so many segments (10k, 1.5Mpps) or bits (100Mbit; FCS counted) a second, as far as the windows allow
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Segments that leave back to back where there is a rate [default: 1; more above 1.5 million a second]
    #[arg(long, value_name = "SEGMENTS", requires = "rate", value_parser = clap::value_parser!(u32).range(1..=256))]
    burst: Option<u32>,
    /// IPv4 time to live or IPv6 hop limit
    #[arg(short = 'l', long, visible_alias = "ttl", value_name = "HOPS", default_value = "64", value_parser = clap::value_parser!(u8).range(1..))]
    hop_limit: u8,
    /// CPU that the sending thread stays on [default: the first]
    #[arg(long, value_name = "CPU")]
    cpus: Option<CpuList>,
    /// Frames that the kernel makes at once
    #[arg(short, long, value_name = "FRAMES", default_value_t = LiveFramesSpec::DEFAULT_BATCH, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch_size: u32,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    elsewhere: Elsewhere<Self>,
}

impl Lacks for Options {
    const REFUSED: &[Refused] = &[
        ("threads", "a flow is one sequence of bytes, which one thread sends; for several: socket -P"),
        ("queue", QUEUE_BY_CPU),
        ("vlan", "the kernel makes the connection, whose tags are those of the VLAN interface that it goes through"),
        ("dyn-ports", ONE_FLOW),
        ("src-ports", ONE_FLOW),
        ("dst-addrs", ONE_FLOW),
        ("src-addrs", ONE_FLOW),
        ("pcap", "what a segment holds follows from what the peer has acknowledged"),
    ];
}

/// Why fields do not vary.
const ONE_FLOW: &str = "it is one flow, the connection's; for several: socket -P";

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// In the driver
    Native,
    /// On socket buffers (generic XDP)
    Skb,
    /// On the NIC, which this tool does not do
    Hw,
}

pub(crate) fn run(options: &Options) -> Result<Ending> {
    options.elsewhere.refuse()?;
    // The programs count the segments; they are looked at often, since the peer can end it at any time.
    let common = options.reporting.live(options.interval, options.duration, Some(u64::MAX));
    let open = || TcpSender::open(options.spec()?);
    send(&common, open, |_start| TcpLayout::new(&options.interface), start_text)
}

impl Options {
    fn spec(&self) -> Result<TcpSendSpec> {
        let cpus = match &self.cpus {
            Some(CpuList(cpus)) => cpus.clone(),
            None => affinity::allowed()?,
        };
        let flow = TcpFlowSpec {
            to: self.address()?,
            interface: self.interface.clone(),
            ifindex: 0,
            mtu: 0,
            cpu: cpus.first().copied().unwrap_or(0),
            batch: self.batch_size,
            count: self.num_packets,
            bytes: self.bytes,
            payload: self.size.map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
            rate: self.rate,
            burst: self.burst,
            ttl: self.hop_limit,
            timeout: self.timeout,
        };
        Ok(TcpSendSpec {
            flow,
            mode: match self.mode {
                Mode::Native => XdpMode::Native,
                Mode::Skb => XdpMode::Generic,
                Mode::Hw => XdpMode::Offload,
            },
            keep_going: self.reporting.keep_going,
            force: self.reporting.force,
        })
    }

    /// Where the name leads; a link-local address is one of the interface.
    fn address(&self) -> Result<SocketAddr> {
        let mut address = resolve(&self.host, self.dst_port)?;
        if let SocketAddr::V6(v6) = &mut address
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(Rtnl::open()?.link_by_name(&self.interface)?.ifindex);
        }
        if address.ip().is_loopback() {
            return Err(Error::usage(format!("send to {address}"), "it is this machine")
                .remedy("choose an address that is reached through the interface"));
        }
        Ok(address)
    }
}

/// The first line is one that scripts know.
fn start_text(start: &Start) -> String {
    let Some(TcpStart { from, to, payload, cpu }) = &start.tcp else { return String::new() };
    let more = start
        .sending
        .as_ref()
        .map_or_else(String::new, |sending| format!(" ({})", sizes_text(sending)) + &pace_text(sending));
    let attached = start.attached.as_ref();
    let on = attached.map_or_else(String::new, |Attached { interface, ifindex, xdp_mode, .. }| {
        format!("Transmitting on {interface} (ifindex {ifindex}), acknowledgements taken in {xdp_mode} mode; ")
    });
    format!(
        "Connected to {} port {} from {} port {}\n{on}{payload} bytes of payload a segment{more}, from CPU {cpu}",
        to.ip(),
        to.port(),
        from.ip(),
        from.port()
    )
}
