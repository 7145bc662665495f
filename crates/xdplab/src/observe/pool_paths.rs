//! Ways of pages through the page pools of an interface, as a kernel with `CONFIG_PAGE_POOL_STATS` counts them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::netlink::{Netdev, PagePoolStats};
use crate::reading::Reading;
use crate::sys::ethtool::{EthtoolIoctl, Statistic};
use crate::topology::NetNs;

/// What the names of a driver's counters begin with that has page pools tell them (`page_pool_ethtool_stats_get_strings`,
/// net/core/page_pool.c).
const PREFIX: &str = "rx_pp_";

/// How pages came out of page pools and how they came back (Documentation/networking/page_pool.rst). Every page given out is in
/// one `alloc` field, every page that came back in one `recycle` field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPaths {
    /// Out of the pool's cache.
    pub alloc_fast: u64,
    /// Out of the ring.
    pub alloc_refill: u64,
    /// From the page allocator, of order 0 and above.
    pub alloc_slow: u64,
    /// Into the cache.
    pub recycle_cached: u64,
    /// Into the ring.
    pub recycle_ring: u64,
    /// To the page allocator, since the ring was full.
    pub recycle_ring_full: u64,
    /// To the page allocator, since somebody else still used the page.
    pub recycle_released_refcnt: u64,
}

impl PoolPaths {
    /// What was counted so far of an interface: by its driver, or by the kernel's list of page pools (Linux 6.8 and later).
    #[must_use]
    pub fn read(netns: &NetNs, ifindex: u32) -> Reading<Self> {
        let name = netns.rtnl().and_then(|mut rtnl| Ok(rtnl.link_by_index(ifindex)?.name));
        name.and_then(|name| netns.run(|| Self::of_interface(&name, ifindex))).into()
    }

    fn of_interface(name: &str, ifindex: u32) -> Result<Self> {
        if let Some(paths) = Self::of_driver(&EthtoolIoctl::open()?.statistics(name)?) {
            return Ok(paths);
        }
        Self::of_pools(&Netdev::open()?.page_pool_stats()?, ifindex).ok_or_else(|| {
            let why = "neither its driver nor the kernel's list of page pools tells any";
            Error::unsupported(format!("read the page pools of {name}"), why)
        })
    }

    /// The sum that a driver tells; `None` where it has no such counter.
    fn of_driver(statistics: &[Statistic]) -> Option<Self> {
        let known = || statistics.iter().filter_map(|one| Some((one.name.strip_prefix(PREFIX)?, one.value)));
        let sum = |names: &[&str]| known().filter(|(name, _)| names.contains(name)).map(|(_, value)| value).sum();
        known().next().map(|_| Self {
            alloc_fast: sum(&["alloc_fast"]),
            alloc_refill: sum(&["alloc_refill"]),
            alloc_slow: sum(&["alloc_slow", "alloc_slow_ho"]),
            recycle_cached: sum(&["recycle_cached"]),
            recycle_ring: sum(&["recycle_ring"]),
            recycle_ring_full: sum(&["recycle_ring_full"]),
            recycle_released_refcnt: sum(&["recycle_released_ref"]),
        })
    }

    /// The sum over the interface's pools; `None` where it has none.
    fn of_pools(pools: &[PagePoolStats], ifindex: u32) -> Option<Self> {
        let own = || pools.iter().filter(|pool| pool.ifindex == Some(ifindex));
        let sum = |count: fn(&PagePoolStats) -> Option<u64>| own().filter_map(count).sum();
        own().next().map(|_| Self {
            alloc_fast: sum(|pool| pool.alloc_fast),
            alloc_refill: sum(|pool| pool.alloc_refill),
            alloc_slow: sum(|pool| pool.alloc_slow) + sum(|pool| pool.alloc_slow_high_order),
            recycle_cached: sum(|pool| pool.recycle_cached),
            recycle_ring: sum(|pool| pool.recycle_ring),
            recycle_ring_full: sum(|pool| pool.recycle_ring_full),
            recycle_released_refcnt: sum(|pool| pool.recycle_released_refcnt),
        })
    }

    /// What was counted since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let since = |of: fn(&Self) -> u64| of(&self).saturating_sub(of(&earlier));
        Self {
            alloc_fast: since(|paths| paths.alloc_fast),
            alloc_refill: since(|paths| paths.alloc_refill),
            alloc_slow: since(|paths| paths.alloc_slow),
            recycle_cached: since(|paths| paths.recycle_cached),
            recycle_ring: since(|paths| paths.recycle_ring),
            recycle_ring_full: since(|paths| paths.recycle_ring_full),
            recycle_released_refcnt: since(|paths| paths.recycle_released_refcnt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: PoolPaths = PoolPaths {
        alloc_fast: 10,
        alloc_refill: 20,
        alloc_slow: 33,
        recycle_cached: 40,
        recycle_ring: 50,
        recycle_ring_full: 60,
        recycle_released_refcnt: 70,
    };

    #[test]
    fn the_counters_of_a_driver_are_found_among_its_others() {
        let statistic = |(name, value): (&str, u64)| Statistic { name: name.into(), value };
        let all = [
            ("rx_queue_0_xdp_drops", 9),
            ("rx_pp_alloc_fast", 10),
            ("rx_pp_alloc_slow", 30),
            ("rx_pp_alloc_slow_ho", 3),
            ("rx_pp_alloc_empty", 5),
            ("rx_pp_alloc_refill", 20),
            ("rx_pp_recycle_cached", 40),
            ("rx_pp_recycle_cache_full", 1),
            ("rx_pp_recycle_ring", 50),
            ("rx_pp_recycle_ring_full", 60),
            ("rx_pp_recycle_released_ref", 70),
            ("rx0_pp_alloc_fast", 10),
        ];
        assert_eq!(PoolPaths::of_driver(&all.map(statistic)), Some(PATHS));
        assert_eq!(PoolPaths::of_driver(&all[..1].iter().copied().map(statistic).collect::<Vec<_>>()), None);
    }

    #[test]
    fn the_pools_of_an_interface_add_up_and_those_of_others_do_not() {
        let pool = |id, ifindex, factor| PagePoolStats {
            id,
            ifindex: Some(ifindex),
            alloc_fast: Some(5 * factor),
            alloc_slow: Some(15 * factor),
            alloc_slow_high_order: Some(factor),
            alloc_empty: Some(7),
            alloc_refill: Some(10 * factor),
            alloc_waive: None,
            recycle_cached: Some(20 * factor),
            recycle_cache_full: Some(7),
            recycle_ring: Some(25 * factor),
            recycle_ring_full: Some(30 * factor),
            recycle_released_refcnt: Some(35 * factor),
        };
        let pools = [pool(1, 4, 1), pool(2, 5, 100), pool(3, 4, 1)];
        assert_eq!(PoolPaths::of_pools(&pools, 4), Some(PoolPaths { alloc_slow: 32, ..PATHS }));
        assert_eq!(PoolPaths::of_pools(&pools, 6), None);
    }

    #[test]
    fn what_was_there_before_is_taken_off() {
        let before = PoolPaths { alloc_fast: 1, recycle_ring: 2, ..PoolPaths::default() };
        assert_eq!(PATHS.since(before), PoolPaths { alloc_fast: 9, recycle_ring: 48, ..PATHS });
    }
}
