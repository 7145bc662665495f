//! What every live command reads of programs, observers and interfaces.

use std::collections::BTreeMap;
use std::time::Instant;

use nix::errno::Errno;

use super::counters::{Group, Hop, Named, Place, XmitCounts};
use super::event::InterfaceCounted;
use crate::device::Counts;
use crate::error::{Error, Result};
use crate::netlink::{Channels, Ethtool, LinkInfo, LinkStats, Rtnl};
use crate::observe::{Flow, FlowXmit, Interface, Observers};
use crate::reading::Reading;
use crate::sys::ethtool::EthtoolIoctl;

/// Counts for each RX queue and each possible CPU, read at `at`.
pub(super) fn received(at: Instant, queues: Vec<Vec<Counts>>) -> Group<Place, Counts> {
    let places = (0u32..)
        .zip(queues)
        .flat_map(|(queue, cpus)| (0u32..).zip(cpus).map(move |(cpu, counts)| (Place { queue, cpu }, counts)));
    Group { at, rows: places.collect() }
}

/// Counts by name for each possible CPU, which `read` reads now.
pub(super) fn named(read: impl FnOnce() -> Reading<BTreeMap<String, Vec<u64>>>) -> Reading<Named> {
    Group::read(|| {
        read().map(|names| {
            let rows = names
                .into_iter()
                .flat_map(|(name, cpus)| (0u32..).zip(cpus).map(move |(cpu, count)| ((name.clone(), cpu), count)));
            rows.collect()
        })
    })
}

/// Counts for each possible CPU, which `read` reads now.
pub(super) fn per_cpu(read: impl FnOnce() -> Reading<Vec<u64>>) -> Reading<Group<u32, u64>> {
    Group::read(|| read().map(|cpus| (0u32..).zip(cpus).collect()))
}

/// Frames that redirects gave to drivers, of the flows that `wanted` tells, read now from the namespace `netns`.
pub(super) fn xmit(
    observers: &Observers,
    netns: u64,
    wanted: impl Fn(&Flow) -> bool,
) -> Reading<Group<Hop, XmitCounts>> {
    Group::read(|| {
        observers.flows().map(|flows| {
            let wanted = flows.into_iter().filter(|xmit| wanted(&xmit.flow));
            wanted.flat_map(|xmit| hops(&xmit, netns)).collect()
        })
    })
}

fn hops(FlowXmit { flow, errno, per_cpu }: &FlowXmit, netns: u64) -> Vec<(Hop, XmitCounts)> {
    let name = |name: &str, interface: Interface| match interface.netns {
        there if there == netns => name.to_owned(),
        there => format!("{name}@{there}"),
    };
    let label = format!("{}->{}", name(&flow.from_name, flow.from), name(&flow.to_name, flow.to));
    let hop = |(cpu, &[sent, drops, bulks]): (u32, &[u64; 3])| {
        let error_bulks = if errno.is_some() { bulks } else { 0 };
        (Hop { flow: label.clone(), errno: errno.clone(), cpu }, XmitCounts { sent, drops, bulks, error_bulks })
    };
    (0u32..).zip(per_cpu).map(hop).collect()
}

pub(super) fn channels(ifindex: u32) -> Reading<Channels> {
    Ethtool::open().and_then(|mut ethtool| ethtool.channels(ifindex)).into()
}

pub(super) fn driver(name: &str) -> Reading<String> {
    EthtoolIoctl::open().and_then(|ioctl| ioctl.driver_info(name)).map(|info| info.driver).into()
}

/// The RX queues that packets can come from: those the interface was made with, of which the channels in use are a part
/// that can change while a program is attached.
pub(super) fn rx_queues(link: &LinkInfo, channels: &Reading<Channels>) -> u32 {
    let in_use = channels.known().map_or(0, |channels| channels.rx.unwrap_or(0) + channels.combined.unwrap_or(0));
    link.rx_queues.unwrap_or(1).max(in_use).max(1)
}

/// Succeeds as long as the interface is there.
pub(super) fn check_there(rtnl: &mut Rtnl, link: &LinkInfo) -> Result<()> {
    rtnl.link_by_index(link.ifindex).map(|_| ()).map_err(|error| match error.errno() {
        Some(Errno::ENODEV) => {
            let what = format!("count packets of {} (ifindex {})", link.name, link.ifindex);
            Error::invalid(what, "the interface is gone")
        }
        _ => error,
    })
}

/// What an interface itself has counted since `before` was read.
pub(super) fn counted_since(rtnl: &mut Rtnl, before: &LinkInfo) -> Reading<InterfaceCounted> {
    let now = match rtnl.link_by_index(before.ifindex) {
        Ok(link) => link.stats,
        Err(error) => return Reading::not_available(error.to_string()),
    };
    let not_told = || Reading::not_available("the kernel left IFLA_STATS64 out");
    now.zip(before.stats).map_or_else(not_told, |(now, before): (LinkStats, LinkStats)| {
        Reading::Known(InterfaceCounted {
            rx_packets: now.rx_packets.saturating_sub(before.rx_packets),
            tx_packets: now.tx_packets.saturating_sub(before.tx_packets),
        })
    })
}
