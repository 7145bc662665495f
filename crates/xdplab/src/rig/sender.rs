//! What sends on a lab: frames that the kernel makes, or a socket.

use std::net::{IpAddr, SocketAddr};

use super::{Bench, Traffic};
use crate::error::{Error, Result};
use crate::generator::LiveFrames;
use crate::generator::socket::{End, Protocol, SocketRun, SocketSpec};
use crate::netlink::LinkStats;
use crate::observe::Xmit;
use crate::packet::Addresses;
use crate::run::{FrameSource, Plan};
use crate::topology::{Lab, Port};

/// A generator under way. Dropping it stops it.
pub(crate) enum Sender {
    LiveFrames(LiveFrames),
    Socket(Box<Datagrams>),
}

/// What was sent.
pub(crate) struct Sent {
    /// Packets handed to the kernel.
    pub(crate) generated: u64,
    /// What the driver's transmit function made of them, where observers of redirects do not see it.
    pub(crate) xmit: Option<Xmit>,
}

impl Sender {
    /// Starts the generator of the plan.
    pub(crate) fn start(plan: &Plan, bench: &Bench, frame: Vec<u8>, restored: usize) -> Result<Self> {
        match plan.traffic {
            FrameSource::LiveFrames => {
                let spec = bench.traffic(plan, frame, restored);
                LiveFrames::start(&spec, &bench.lab.generator.netns).map(Self::LiveFrames)
            }
            FrameSource::Socket => Datagrams::start(plan, &bench.lab).map(Box::new).map(Self::Socket),
        }
    }

    /// Stops it.
    pub(crate) fn stop(self, lab: &Lab) -> Result<Sent> {
        match self {
            Self::LiveFrames(frames) => Ok(Sent { generated: frames.stop()?.packets, xmit: None }),
            Self::Socket(datagrams) => datagrams.stop(&lab.generator),
        }
    }
}

impl Traffic for Sender {
    fn check(&self, _seconds: f64, _packets: u64) -> Result<()> {
        let is_running = match self {
            Self::LiveFrames(frames) => frames.is_running(),
            Self::Socket(datagrams) => datagrams.run.is_running(),
        };
        if is_running {
            return Ok(());
        }
        Err(Error::invalid("keep the generator running", "its threads ended before their time"))
    }
}

/// A UDP socket that sends as fast as it goes, and the counters of its interface before.
pub(crate) struct Datagrams {
    run: SocketRun,
    before: LinkStats,
}

impl Datagrams {
    fn start(plan: &Plan, lab: &Lab) -> Result<Self> {
        let address: IpAddr = match plan.flow.addresses {
            Addresses::V4 { .. } => lab.dut.ipv4.into(),
            Addresses::V6 { .. } => lab.dut.ipv6.into(),
        };
        let size = Some(plan.size.lengths(&plan.flow)?.payload);
        let spec = SocketSpec { size, sink: false, ..SocketSpec::new(Protocol::Udp) };
        let cpus: Vec<usize> = plan.placement.generator_cpu().into_iter().collect();
        let end = End { netns: &lab.generator.netns, cpus: &cpus };
        let mut run = SocketRun::connect(&end, SocketAddr::new(address, plan.flow.dst_port), &spec, &|| false)?;
        let before = stats(&lab.generator)?;
        run.start()?;
        Ok(Self { run, before })
    }

    /// Each datagram is a call of the driver for one frame; what it did not take it dropped.
    fn stop(self, port: &Port) -> Result<Sent> {
        let generated = self.run.finish()?.sent.datagrams;
        let after = stats(port)?;
        let sent = after.tx_packets - self.before.tx_packets;
        let drops = after.tx_dropped - self.before.tx_dropped;
        Ok(Sent { generated, xmit: Some(Xmit { sent, drops, bulks: sent + drops, ..Xmit::default() }) })
    }
}

fn stats(port: &Port) -> Result<LinkStats> {
    let link = port.netns.rtnl()?.link_by_index(port.ifindex)?;
    link.stats.ok_or_else(|| {
        Error::unsupported(format!("read the statistics of {}", link.name), "the kernel left IFLA_STATS64 out")
    })
}
