//! The `netdev` family (`Documentation/netlink/specs/netdev.yaml`): XDP features, NAPI instances, queues and page_pools.

use netlink_packet_core::NLM_F_DUMP;
use serde::{Deserialize, Serialize};

use super::attributes::{Attributes, u32_attribute};
use super::generic::{Family, Message};
use crate::error::{Error, Result};

/// Numbers of `include/uapi/linux/netdev.h`.
mod uapi {
    pub(super) const CMD_DEV_GET: u8 = 1;
    pub(super) const CMD_PAGE_POOL_GET: u8 = 5;
    pub(super) const CMD_PAGE_POOL_STATS_GET: u8 = 9;
    pub(super) const CMD_QUEUE_GET: u8 = 10;
    pub(super) const CMD_NAPI_GET: u8 = 11;

    pub(super) const DEV_IFINDEX: u16 = 1;
    pub(super) const DEV_XDP_FEATURES: u16 = 3;
    pub(super) const DEV_XDP_ZC_MAX_SEGS: u16 = 4;

    pub(super) const NAPI_IFINDEX: u16 = 1;
    pub(super) const NAPI_ID: u16 = 2;
    pub(super) const NAPI_IRQ: u16 = 3;
    pub(super) const NAPI_PID: u16 = 4;
    pub(super) const NAPI_THREADED: u16 = 8;

    pub(super) const QUEUE_ID: u16 = 1;
    pub(super) const QUEUE_IFINDEX: u16 = 2;
    pub(super) const QUEUE_TYPE: u16 = 3;
    pub(super) const QUEUE_NAPI_ID: u16 = 4;
    pub(super) const QUEUE_TYPE_RX: u32 = 0;
    pub(super) const QUEUE_TYPE_TX: u32 = 1;

    pub(super) const PAGE_POOL_ID: u16 = 1;
    pub(super) const PAGE_POOL_IFINDEX: u16 = 2;
    pub(super) const PAGE_POOL_NAPI_ID: u16 = 3;
    pub(super) const PAGE_POOL_INFLIGHT: u16 = 4;
    pub(super) const PAGE_POOL_INFLIGHT_MEM: u16 = 5;
    pub(super) const PAGE_POOL_DETACH_TIME: u16 = 6;

    pub(super) const STATS_INFO: u16 = 1;
    pub(super) const STATS_ALLOC_FAST: u16 = 8;
    pub(super) const STATS_ALLOC_SLOW: u16 = 9;
    pub(super) const STATS_ALLOC_SLOW_HIGH_ORDER: u16 = 10;
    pub(super) const STATS_ALLOC_EMPTY: u16 = 11;
    pub(super) const STATS_ALLOC_REFILL: u16 = 12;
    pub(super) const STATS_ALLOC_WAIVE: u16 = 13;
    pub(super) const STATS_RECYCLE_CACHED: u16 = 14;
    pub(super) const STATS_RECYCLE_CACHE_FULL: u16 = 15;
    pub(super) const STATS_RECYCLE_RING: u16 = 16;
    pub(super) const STATS_RECYCLE_RING_FULL: u16 = 17;
    pub(super) const STATS_RECYCLE_RELEASED_REFCNT: u16 = 18;
}

/// A socket of the `netdev` family (Linux 6.3 and later).
pub struct Netdev {
    family: Family,
}

/// Something XDP can do on an interface (`enum netdev_xdp_act`); printed as the kernel's specification spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum XdpFeature {
    /// `XDP_ABORTED`, `XDP_DROP`, `XDP_PASS` and `XDP_TX`.
    Basic,
    /// `XDP_REDIRECT` out of this interface.
    Redirect,
    /// Frames redirected here are transmitted (`ndo_xdp_xmit`). On veth only while the peer has NAPI.
    NdoXmit,
    /// AF_XDP in zero-copy mode.
    XskZerocopy,
    /// Programs run in the NIC.
    HwOffload,
    /// Received frames of several buffers.
    RxSg,
    /// Redirected frames of several buffers are transmitted.
    NdoXmitSg,
}

impl XdpFeature {
    /// All of them, in the order of their bits.
    const ALL: [Self; 7] =
        [Self::Basic, Self::Redirect, Self::NdoXmit, Self::XskZerocopy, Self::HwOffload, Self::RxSg, Self::NdoXmitSg];

    fn of_bits(bits: u64) -> Vec<Self> {
        Self::ALL.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, feature)| feature).collect()
    }
}

/// What XDP can do on an interface now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetdevXdp {
    /// The features; a driver may change them while it runs.
    pub features: Vec<XdpFeature>,
    /// The most buffers of one zero-copy AF_XDP frame; `None` where the kernel says none (Linux 6.6 and later).
    pub zc_max_segs: Option<u32>,
}

/// A NAPI instance (Linux 6.8 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Napi {
    /// Its number, as sockets report it (`SO_INCOMING_NAPI_ID`).
    pub id: u32,
    /// The interrupt that schedules it; `None` for virtual interfaces.
    pub irq: Option<u32>,
    /// The process id of the kernel thread that polls it, in the initial pid namespace; `None` where softirq does.
    pub pid: Option<u32>,
    /// Whether it is polled by a kernel thread of its own; `None` before Linux 6.17, where only `pid` tells.
    pub threaded: Option<bool>,
}

/// The direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

/// A queue in use (Linux 6.8 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Its number among those of its kind, from 0.
    pub id: u32,
    /// Its direction.
    pub kind: QueueKind,
    /// The NAPI instance that serves it; `None` where the driver tells none.
    pub napi_id: Option<u32>,
}

/// A page_pool that belongs to an interface (Linux 6.8 and later). A driver that does not name its interface when it makes
/// a page_pool (veth) is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PagePool {
    /// Its number.
    pub id: u64,
    /// The interface; `None` once it is gone.
    pub ifindex: Option<u32>,
    /// The NAPI instance it serves.
    pub napi_id: Option<u64>,
    /// Pages given out and not back yet, with those in the caches.
    pub inflight: Option<u64>,
    /// The memory of these pages in bytes.
    pub inflight_mem: Option<u64>,
    /// When its driver gave it up, in seconds of `CLOCK_BOOTTIME`; until the last page is back it stays.
    pub detach_time: Option<u64>,
}

/// The events of one page_pool since it was made (Linux 6.8 and later, with `CONFIG_PAGE_POOL_STATS`); each field is the
/// counter of this name in `Documentation/networking/page_pool.rst`, `None` where the kernel left it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the kernel's, told in Documentation/networking/page_pool.rst")]
pub struct PagePoolStats {
    pub id: u64,
    pub ifindex: Option<u32>,
    pub alloc_fast: Option<u64>,
    pub alloc_slow: Option<u64>,
    pub alloc_slow_high_order: Option<u64>,
    pub alloc_empty: Option<u64>,
    pub alloc_refill: Option<u64>,
    pub alloc_waive: Option<u64>,
    pub recycle_cached: Option<u64>,
    pub recycle_cache_full: Option<u64>,
    pub recycle_ring: Option<u64>,
    pub recycle_ring_full: Option<u64>,
    pub recycle_released_refcnt: Option<u64>,
}

impl Netdev {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// Before Linux 6.3.
    pub fn open() -> Result<Self> {
        Ok(Self { family: Family::open("netdev", "6.3 or later")? })
    }

    /// What XDP can do on the interface.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn xdp(&mut self, ifindex: u32) -> Result<NetdevXdp> {
        let what = format!("read the XDP features of the interface with ifindex {ifindex}");
        let call = "netlink(NETDEV_CMD_DEV_GET)";
        let filter = [u32_attribute(uapi::DEV_IFINDEX, ifindex)];
        let answers = self.family.request(call, &what, uapi::CMD_DEV_GET, &filter, 0)?;
        let attributes = answers.first().map(Message::attributes);
        let bits = attributes.and_then(|attributes| attributes.uint(uapi::DEV_XDP_FEATURES));
        let bits = bits.ok_or_else(|| Error::invalid(what, format!("{call}: the kernel named no XDP features")))?;
        Ok(NetdevXdp {
            features: XdpFeature::of_bits(bits),
            zc_max_segs: attributes.and_then(|attributes| attributes.u32(uapi::DEV_XDP_ZC_MAX_SEGS)),
        })
    }

    /// The NAPI instances of the interface, in the order of their numbers.
    ///
    /// # Errors
    /// If there is no such interface, or before Linux 6.8.
    pub fn napis(&mut self, ifindex: u32) -> Result<Vec<Napi>> {
        let what = format!("list the NAPI instances of the interface with ifindex {ifindex}");
        let filter = [u32_attribute(uapi::NAPI_IFINDEX, ifindex)];
        let answers =
            self.family.request("netlink(NETDEV_CMD_NAPI_GET)", &what, uapi::CMD_NAPI_GET, &filter, NLM_F_DUMP)?;
        let mut napis: Vec<_> = answers.iter().filter_map(|answer| napi_of(answer.attributes())).collect();
        napis.sort_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// The queues of the interface that are in use; none while it is down.
    ///
    /// # Errors
    /// If there is no such interface, or before Linux 6.8.
    pub fn queues(&mut self, ifindex: u32) -> Result<Vec<Queue>> {
        let what = format!("list the queues of the interface with ifindex {ifindex}");
        let filter = [u32_attribute(uapi::QUEUE_IFINDEX, ifindex)];
        let answers =
            self.family.request("netlink(NETDEV_CMD_QUEUE_GET)", &what, uapi::CMD_QUEUE_GET, &filter, NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(|answer| queue_of(answer.attributes())).collect())
    }

    /// The page_pools of the namespace's interfaces.
    ///
    /// # Errors
    /// Before Linux 6.8, or where the kernel was built without `CONFIG_PAGE_POOL`.
    pub fn page_pools(&mut self) -> Result<Vec<PagePool>> {
        let call = "netlink(NETDEV_CMD_PAGE_POOL_GET)";
        let answers = self.family.request(call, "list the page_pools", uapi::CMD_PAGE_POOL_GET, &[], NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(|answer| page_pool_of(answer.attributes())).collect())
    }

    /// The events of the page_pools of the namespace's interfaces.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the kernel was built without `CONFIG_PAGE_POOL_STATS`, or before Linux 6.8.
    pub fn page_pool_stats(&mut self) -> Result<Vec<PagePoolStats>> {
        let call = "netlink(NETDEV_CMD_PAGE_POOL_STATS_GET)";
        let what = "read the statistics of the page_pools";
        let answers = self.family.request(call, what, uapi::CMD_PAGE_POOL_STATS_GET, &[], NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(|answer| page_pool_stats_of(answer.attributes())).collect())
    }
}

fn napi_of(attributes: Attributes<'_>) -> Option<Napi> {
    Some(Napi {
        id: attributes.u32(uapi::NAPI_ID)?,
        irq: attributes.u32(uapi::NAPI_IRQ),
        pid: attributes.u32(uapi::NAPI_PID),
        threaded: attributes.uint(uapi::NAPI_THREADED).map(|threaded| threaded != 0),
    })
}

fn queue_of(attributes: Attributes<'_>) -> Option<Queue> {
    let kind = match attributes.u32(uapi::QUEUE_TYPE)? {
        uapi::QUEUE_TYPE_RX => QueueKind::Rx,
        uapi::QUEUE_TYPE_TX => QueueKind::Tx,
        _ => return None,
    };
    Some(Queue { id: attributes.u32(uapi::QUEUE_ID)?, kind, napi_id: attributes.u32(uapi::QUEUE_NAPI_ID) })
}

fn page_pool_of(attributes: Attributes<'_>) -> Option<PagePool> {
    Some(PagePool {
        id: attributes.uint(uapi::PAGE_POOL_ID)?,
        ifindex: attributes.u32(uapi::PAGE_POOL_IFINDEX),
        napi_id: attributes.uint(uapi::PAGE_POOL_NAPI_ID),
        inflight: attributes.uint(uapi::PAGE_POOL_INFLIGHT),
        inflight_mem: attributes.uint(uapi::PAGE_POOL_INFLIGHT_MEM),
        detach_time: attributes.uint(uapi::PAGE_POOL_DETACH_TIME),
    })
}

fn page_pool_stats_of(attributes: Attributes<'_>) -> Option<PagePoolStats> {
    let info = attributes.nested(uapi::STATS_INFO)?;
    let counter = |kind| attributes.uint(kind);
    Some(PagePoolStats {
        id: info.uint(uapi::PAGE_POOL_ID)?,
        ifindex: info.u32(uapi::PAGE_POOL_IFINDEX),
        alloc_fast: counter(uapi::STATS_ALLOC_FAST),
        alloc_slow: counter(uapi::STATS_ALLOC_SLOW),
        alloc_slow_high_order: counter(uapi::STATS_ALLOC_SLOW_HIGH_ORDER),
        alloc_empty: counter(uapi::STATS_ALLOC_EMPTY),
        alloc_refill: counter(uapi::STATS_ALLOC_REFILL),
        alloc_waive: counter(uapi::STATS_ALLOC_WAIVE),
        recycle_cached: counter(uapi::STATS_RECYCLE_CACHED),
        recycle_cache_full: counter(uapi::STATS_RECYCLE_CACHE_FULL),
        recycle_ring: counter(uapi::STATS_RECYCLE_RING),
        recycle_ring_full: counter(uapi::STATS_RECYCLE_RING_FULL),
        recycle_released_refcnt: counter(uapi::STATS_RECYCLE_RELEASED_REFCNT),
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{DefaultNla, Emitable as _};

    use super::super::attributes::nested_attribute;
    use super::*;

    #[test]
    fn feature_bits_have_the_names_of_the_kernel() {
        let names = serde_json::to_string(&XdpFeature::of_bits(0b110_0111)).unwrap();
        assert_eq!(names, r#"["basic","redirect","ndo-xmit","rx-sg","ndo-xmit-sg"]"#);
        assert_eq!(XdpFeature::of_bits(u64::MAX), XdpFeature::ALL);
    }

    #[test]
    fn statistics_the_kernel_left_out_are_absent_instead_of_zero() {
        let attributes = [
            nested_attribute(uapi::STATS_INFO, &[u32_attribute(uapi::PAGE_POOL_ID, 7)]),
            DefaultNla::new(uapi::STATS_RECYCLE_RING, 5_u64.to_ne_bytes().to_vec()),
        ];
        let mut bytes = vec![0; attributes.as_slice().buffer_len()];
        attributes.as_slice().emit(&mut bytes);
        let stats = page_pool_stats_of(Attributes::new(&bytes)).unwrap();
        assert_eq!((stats.id, stats.recycle_ring, stats.recycle_cached), (7, Some(5), None));
    }
}
