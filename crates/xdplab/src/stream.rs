//! TCP streams through the chain of three namespaces, whose middle forwards by XDP or by its stack.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::device::RedirectBy;
use crate::error::{Error, Result};
use crate::generator::socket::{self, End, Outcome, Protocol, SocketSpec};
use crate::live::{self, Counters, EndedBy, Interval, RedirectDevice, RedirectSpec, Source as _, WallClock};
use crate::netlink::XdpMode;
use crate::run::Progress;
use crate::topology::{NetNs, Network, NetworkSpec};

/// The server's address in the topology `chain`.
const SERVER: std::net::Ipv4Addr = std::net::Ipv4Addr::new(198, 18, 1, 2);

/// What forwards in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// XDP_REDIRECT in the driver (native XDP).
    Native,
    /// XDP_REDIRECT on sk_buffs (generic XDP).
    Skb,
    /// The IP stack, without XDP.
    Stack,
}

/// What to measure, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamPlan {
    /// What forwards.
    pub forwarding: Forwarding,
    /// MTU of every link in bytes.
    pub mtu: u32,
    /// RX and TX queues of every end.
    pub queues: u16,
    /// TCP connections.
    pub streams: usize,
    /// CPU of the sending threads.
    pub client_cpu: usize,
    /// CPU of the receiving threads.
    pub server_cpu: usize,
    /// Seconds of sending.
    pub seconds: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamCase {
    /// What was planned.
    pub plan: StreamPlan,
    /// What the streams did.
    pub outcome: Outcome,
    /// What the program in the middle counted, handshakes and acknowledgements among it; absent where the stack forwards.
    pub forwarded: Option<live::End>,
}

impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native XDP",
            Self::Skb => "generic XDP",
            Self::Stack => "IP stack",
        })
    }
}

impl StreamPlan {
    /// From the least MTU of IPv6 (RFC 8200) to the largest of a veth (`ETH_MAX_MTU`).
    pub const MTUS: std::ops::RangeInclusive<u32> = 1280..=65_535;
}

impl Forwarding {
    fn xdp_mode(self) -> Option<XdpMode> {
        match self {
            Self::Native => Some(XdpMode::Native),
            Self::Skb => Some(XdpMode::Generic),
            Self::Stack => None,
        }
    }
}

/// Measures.
///
/// # Errors
/// The lab can't be built, the program can't be attached at this MTU, nothing arrives, or packets that the program redirected
/// did not take that way.
pub fn measure(plan: &StreamPlan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<StreamCase> {
    progress.stage("building the lab");
    let spec = NetworkSpec::builtin("chain")?.with(Some(plan.queues), Some(plan.mtu), [])?;
    let network = Network::build(&spec)?;
    let mut forwarder = plan.forwarding.xdp_mode().map(|mode| Forwarder::attach(&network, mode)).transpose()?;
    progress.stage("sending");
    let sender = End { netns: network.namespace("ns0")?, cpus: &[plan.client_cpu] };
    let receiver = End { netns: network.namespace("ns2")?, cpus: &[plan.server_cpu] };
    let tcp = SocketSpec {
        duration: Some(Duration::from_secs_f64(plan.seconds)),
        streams: plan.streams,
        ..SocketSpec::new(Protocol::Tcp)
    };
    let outcome = socket::between(&sender, &receiver, SERVER.into(), &tcp, &|| stop.load(Ordering::Relaxed))?;
    let forwarded = forwarder.as_mut().map(Forwarder::end).transpose()?;
    if let Some(end) = &forwarded {
        must_have_forwarded(end, &outcome)?;
    }
    Ok(StreamCase { plan: plan.clone(), outcome, forwarded })
}

/// The program in the middle, its network namespace, in which it looks for its interfaces, and its first reading.
struct Forwarder<'a> {
    device: RedirectDevice,
    netns: &'a NetNs,
    first: Counters,
}

impl<'a> Forwarder<'a> {
    fn attach(network: &'a Network, mode: XdpMode) -> Result<Self> {
        let both = || vec!["v01".to_owned(), "v10".to_owned()];
        // By broadcast over the devmap, which leaves the frame as it is: the topology gives it the addresses for that.
        let spec = RedirectSpec {
            by: RedirectBy::Broadcast,
            inputs: both(),
            targets: both(),
            egress: None,
            mode,
            stats: false,
            force: false,
        };
        let netns = network.namespace("ns1")?;
        let mut device = netns.run(|| RedirectDevice::attach(spec))?;
        let first = netns.run(|| device.read())?;
        Ok(Self { device, netns, first })
    }

    fn end(&mut self) -> Result<live::End> {
        let Self { device, netns, first } = self;
        netns.run(|| {
            let total = Interval::between(first, &device.read()?, false, &WallClock::start(first.at));
            device.end(total, EndedBy::Duration)
        })
    }
}

/// Refuses a result for which the data did not go through the program.
fn must_have_forwarded(end: &live::End, outcome: &Outcome) -> Result<()> {
    let received = end.total.received.as_ref().map_or(0, |received| received.packets);
    let segments: u64 = outcome.sent.streams.iter().filter_map(|stream| Some(u64::from(stream.tcp?.segments))).sum();
    if received > 0 && segments > 0 {
        return Ok(());
    }
    Err(Error::invalid(
        "measure a stream through XDP",
        format!("the program saw {received} packets, and {segments} segments were sent"),
    ))
}
