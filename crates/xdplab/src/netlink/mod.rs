//! Synchronous netlink: the kernel's `rtnetlink`, `ethtool` and `netdev` families.
//!
//! Every socket belongs to the network namespace of the thread that opened it and keeps belonging to it, whichever thread
//! uses it later; [`crate::topology::NetNs::run`] opens one elsewhere. No background thread, no shelling out.

mod attributes;
mod ethtool;
mod generic;
mod netdev;
mod route;
mod socket;

pub use ethtool::{Channels, Ethtool, Feature, OffloadGuard, Rings};
pub use netdev::{Napi, Netdev, NetdevXdp, PagePool, PagePoolStats, Queue, QueueKind, XdpFeature};
pub use route::{LinkInfo, LinkStats, Peer, Rtnl, VethEnd, XdpAttached, XdpMode};
