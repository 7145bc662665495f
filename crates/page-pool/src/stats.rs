//! The counters, with the kernel's names (include/net/page_pool/types.h, `page-pool-stats-get` of the netdev family).

/// Where frames came from. Successful allocations are `fast + refill + slow + slow_high_order`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Allocations from the owner's cache.
    pub fast: u64,
    /// Allocations that took new frames from the system.
    pub slow: u64,
    /// The same for frames larger than 4 KiB, which are taken one at a time.
    pub slow_high_order: u64,
    /// Times the return ring and all lanes were found empty, so that the slow path was taken (whether it had a frame or not).
    pub empty: u64,
    /// Allocations that refilled the cache from the return ring or a lane.
    pub refill: u64,
    /// Frames from the return ring or a lane that were let go because their memory was on another NUMA node than the
    /// pool's.
    pub waive: u64,
}

/// Where frames went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecycleStats {
    /// Frames put into the owner's cache.
    pub cached: u64,
    /// Returns of the owner that found the cache full; they are counted in `ring` or `ring_full` too.
    pub cache_full: u64,
    /// Frames put into the return ring or a lane.
    pub ring: u64,
    /// Frames given back to the system because the ring was full.
    pub ring_full: u64,
    /// Frames given back to the system because somebody still held them when the pool's reference ended. Counted, and
    /// the frame free again, when the last hold ends.
    pub released_refcnt: u64,
}

/// All counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Allocations.
    pub alloc: AllocStats,
    /// Returns.
    pub recycle: RecycleStats,
}

impl AllocStats {
    /// Frames handed out.
    #[must_use]
    pub fn successful(&self) -> u64 {
        self.fast + self.refill + self.slow + self.slow_high_order
    }
}
