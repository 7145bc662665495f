//! `xdplab trafficgen socket`: TCP streams and UDP datagrams from plain sockets.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use clap::Args;

use super::elsewhere::{Elsewhere, Lacks, Refused};
use super::quantity::{one_size, quantity};
use super::traffic::CpuList;
use super::{Reporting, send};
use crate::cli::{Ending, live};
use crate::error::{Error, Result};
use crate::generator::Rate;
use crate::generator::socket::{DEFAULT_PORT, Protocol, SocketSpec};
use crate::live::{SocketLayout, SocketSender, SocketStart, Start};

/// Options of `socket`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Options {
    /// Where xdplab trafficgen sink waits: a name or an address
    #[arg(value_name = "HOST")]
    host: String,
    /// Its port
    #[arg(short = 'p', long, visible_alias = "dst-port", value_name = "PORT", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Send UDP datagrams instead of TCP streams
    #[arg(short, long)]
    udp: bool,
    /// Streams at the same time, each with a thread at either end
    #[arg(short = 'P', long, value_name = "STREAMS", default_value = "1")]
    streams: usize,
    /// CPUs that sending threads stay on, in turn, such as 0,2-3 [default: any]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuList>,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = live::seconds)]
    duration: Option<Duration>,
    /// End when so many bytes of payload have been sent, by all streams together (10M, 64Mi)
    #[arg(long, value_name = "BYTES", value_parser = quantity)]
    bytes: Option<u64>,
    /// End when so many datagrams have been sent, by all streams together
    #[arg(short = 'n', long, visible_alias = "num-packets", value_name = "DATAGRAMS", requires = "udp", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Send so many bits of payload (100Mbit), or datagrams (10k, 1.5Mpps), a second, by all streams together
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Bytes of a call, or of a datagram's payload [default: 128 KiB, or what the interface's MTU takes]
    #[arg(short = 's', long, value_name = "BYTES", value_parser = one_size)]
    size: Option<u64>,
    /// Messages of a call
    #[arg(short, long, value_name = "MESSAGES", requires = "udp", default_value_t = SocketSpec::BATCH)]
    batch_size: usize,
    /// Datagrams that the kernel or the device makes of a message (GSO)
    #[arg(long, value_name = "DATAGRAMS", requires = "udp", default_value = "1")]
    gso: usize,
    /// The receiver takes datagrams together (GRO)
    #[arg(long, requires = "udp")]
    gro: bool,
    /// The receiver throws what it receives away without copying it
    #[arg(long, conflicts_with = "udp")]
    discard: bool,
    /// Largest segment in bytes (TCP_MAXSEG)
    #[arg(long, value_name = "BYTES", conflicts_with = "udp")]
    mss: Option<u32>,
    /// Congestion control, such as cubic or reno
    #[arg(long, value_name = "NAME", conflicts_with = "udp")]
    congestion: Option<String>,
    /// Send small segments at once (TCP_NODELAY)
    #[arg(long, conflicts_with = "udp")]
    no_delay: bool,
    /// Hand over pages of a file instead of copying bytes (sendfile)
    #[arg(short = 'Z', long, visible_alias = "zerocopy", conflicts_with = "udp")]
    zero_copy: bool,
    /// IPv4 time to live or IPv6 hop limit [default: the kernel's]
    #[arg(long, visible_alias = "ttl", value_name = "HOPS", value_parser = clap::value_parser!(u8).range(1..))]
    hop_limit: Option<u8>,
    /// Bytes of the sender's socket buffer (SO_SNDBUF)
    #[arg(long, value_name = "BYTES", value_parser = quantity)]
    send_buffer: Option<u64>,
    /// Bytes of the receiver's (SO_RCVBUF)
    #[arg(long, value_name = "BYTES", value_parser = quantity)]
    receive_buffer: Option<u64>,
    /// Send out of this interface alone
    #[arg(short, long, value_name = "IFNAME")]
    interface: Option<String>,
    /// There is no sink: send to any server that reads, or with UDP to wherever
    #[arg(long)]
    no_sink: bool,
    /// Seconds from one line to the next; fractions are taken too
    #[arg(short = 'I', long, value_name = "SECONDS", default_value = "1", value_parser = live::seconds)]
    interval: Duration,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    elsewhere: Elsewhere<Self>,
}

impl Lacks for Options {
    const REFUSED: &[Refused] = &[
        ("threads", "each stream has a thread of its own: --streams"),
        ("queue", "the network stack chooses the queue"),
        ("vlan", "tags are those of the VLAN interface that the route leads through"),
        ("dyn-ports", ONE_EACH),
        ("src-ports", ONE_EACH),
        ("dst-addrs", "all streams go to the sink"),
        ("src-addrs", "the network stack chooses the address"),
        ("burst", "a call sends what has become due, of UDP no more than --batch-size"),
        ("pcap", "sockets send payload, and the network stack makes the frames: udp or xsk-udp"),
    ];
}

/// Why ports do not vary.
const ONE_EACH: &str = "each stream is a flow with a port of its own: --streams";

pub(crate) fn run(options: &Options) -> Result<Ending> {
    options.elsewhere.refuse()?;
    // What ends it is found out by the streams; looked at often only with a count, of which there may be any.
    let common = options.reporting.live(options.interval, None, Some(u64::MAX));
    let (to, spec) = (resolve(&options.host, options.port)?, options.spec());
    let cpus = options.cpus.as_ref().map_or_else(Vec::new, |CpuList(cpus)| cpus.clone());
    let open = || SocketSender::open(to, &spec, &cpus, options.interval, options.reporting.keep_going);
    send(&common, open, |_start| SocketLayout::new(spec.protocol, to), start_text)
}

impl Options {
    fn spec(&self) -> SocketSpec {
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        SocketSpec {
            protocol: if self.udp { Protocol::Udp } else { Protocol::Tcp },
            streams: self.streams,
            duration: self.duration,
            bytes: self.bytes,
            count: self.count,
            rate: self.rate,
            size: bytes(self.size),
            batch: self.batch_size,
            segments: self.gso,
            gro: self.gro,
            discard: self.discard,
            max_segment: self.mss,
            congestion: self.congestion.clone(),
            no_delay: self.no_delay,
            send_buffer: bytes(self.send_buffer),
            receive_buffer: bytes(self.receive_buffer),
            interface: self.interface.clone(),
            ttl: self.hop_limit,
            zero_copy: self.zero_copy,
            sink: !self.no_sink,
        }
    }
}

/// The first address that a name stands for.
pub(super) fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let what = || format!("resolve the host name {host:?}");
    let mut addresses =
        (host, port).to_socket_addrs().map_err(|error| Error::invalid(what(), format!("getaddrinfo: {error}")))?;
    addresses.next().ok_or_else(|| Error::invalid(what(), "it has no address"))
}

fn start_text(start: &Start) -> String {
    let Some(SocketStart { spec, to, size, cpus }) = &start.socket else { return String::new() };
    let streams = if spec.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", spec.streams) };
    let what = match spec.protocol {
        Protocol::Tcp => format!("{streams} of TCP, {size} bytes a call"),
        Protocol::Udp => format!("{streams} of UDP, {size} bytes of payload a datagram"),
    };
    let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let cpus = if cpus.is_empty() { "any CPU".into() } else { format!("CPU {}", cpus.join(",")) };
    format!("Sending to {to} from {cpus}: {what}")
}
