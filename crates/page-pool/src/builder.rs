//! How a pool is made.
#![expect(unsafe_code, reason = "takes over memory of the caller")]

use std::any::Any;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::frag::FragTables;
use crate::numa::Strays;
use crate::owner::Seed;
use crate::pool::{Locked, Own, Pool, ReturnerSlot, Shared};
use crate::region::{HugePages, Region};
use crate::ring::Ring;
use crate::stats::AllocStats;
use crate::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Lock, UnsafeCell, thread_id};

/// Slots of a heap pool's ring unless it is [set](Builder::ring_size) (the kernel's default).
const RING_SIZE: u32 = 1024;
/// Bounds of a heap pool's ring; the upper one is the kernel's.
const RING_SIZES: std::ops::RangeInclusive<u32> = 32..=16384;
/// XDP_PACKET_HEADROOM.
const HEADROOM: u32 = 256;
const MAX_FRAMES: u32 = 1 << 30;
const FRAME_SIZES: std::ops::RangeInclusive<u32> = 64..=1 << 30;

/// Describes a pool.
///
/// ```
/// use page_pool::{Builder, HugePages};
/// # fn main() -> page_pool::Result<()> {
/// let seed = Builder::umem(4096).frame_size(2048).huge_pages(HugePages::Transparent).build()?;
/// let worker = std::thread::spawn(move || {
///     let owner = seed.bind();
///     owner.alloc().map(|frame| frame.data().len())
/// });
/// assert_eq!(worker.join().expect("the thread ends well"), Some(2048 - 256));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    frames: u32,
    ring_size: Option<u32>,
    frame_size: u32,
    headroom: u32,
    colors: u32,
    huge: HugePages,
    numa_node: Option<u32>,
    returners: u32,
}

impl Builder {
    /// A pool that grows up to `max_frames` frames. Address space for them is set aside at once, memory is committed when
    /// a frame is first touched. A frame that finds the return ring full goes back to the system, i.e. to the frames the
    /// pool may grow by.
    pub fn heap(max_frames: u32) -> Self {
        Self {
            frames: max_frames,
            ring_size: Some(RING_SIZE),
            frame_size: 4096,
            headroom: HEADROOM,
            colors: 1,
            huge: HugePages::No,
            numa_node: None,
            returners: 4,
        }
    }

    /// A pool of `frames` frames for a umem. Its rings have room for all of them, so that no return can fail.
    pub fn umem(frames: u32) -> Self {
        Self { ring_size: None, ..Self::heap(frames) }
    }

    /// Bytes of a frame, a power of two. 4096 unless set.
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.frame_size = bytes;
        self
    }

    /// Bytes kept free before the data of a frame. 256 unless set.
    pub fn headroom(mut self, bytes: u32) -> Self {
        self.headroom = bytes;
        self
    }

    /// Lets the data of neighbouring frames start at this many different cache lines (a power of two): headers at the
    /// same offset of every frame would compete for the same cache sets. 1 unless set.
    pub fn colors(mut self, colors: u32) -> Self {
        self.colors = colors;
        self
    }

    /// Slots of the return ring and of each lane of a heap pool: a power of two from 32 to 16384, 1024 unless set. The
    /// rings of a umem pool are as large as it takes.
    pub fn ring_size(mut self, slots: u32) -> Self {
        self.ring_size = self.ring_size.map(|_| slots);
        self
    }

    /// The pages behind the frames.
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.huge = huge;
        self
    }

    /// Prefers memory of this NUMA node. The thread's own policy holds unless set. Can be
    /// [changed](crate::Owner::set_numa_node) later.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// How many [`Returner`](crate::Returner)s there may be at a time, up to 64. 4 unless set.
    pub fn returners(mut self, returners: u32) -> Self {
        self.returners = returners;
        self
    }

    /// Makes the pool in memory of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a size or count that does not fit, [`ErrorKind::Syscall`] if the memory can't be had.
    pub fn build(self) -> Result<Seed> {
        let bytes = self.check()?;
        let region = Region::map(bytes, self.huge, self.numa_node)?;
        Ok(self.build_in_region(region))
    }

    /// Makes the pool in memory of the caller, e.g. a umem that is already registered. `keepalive` is dropped when the
    /// pool does not need the memory any more. [`huge_pages`](Builder::huge_pages) and
    /// [`numa_node`](Builder::numa_node) are the caller's affair.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a size or count that does not fit, or if the memory is too short.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `bytes` initialized bytes, which nobody else uses (but the kernel, for
    /// the frames handed to it) until `keepalive` is dropped.
    pub unsafe fn build_in(self, base: *mut u8, bytes: usize, keepalive: Box<dyn Any + Send>) -> Result<Seed> {
        let needed = self.check()?;
        if bytes < needed {
            return Err(config(format!("{} frames need {needed} bytes, the memory has {bytes}", self.frames)));
        }
        // SAFETY: passed on to the caller.
        Ok(self.build_in_region(unsafe { Region::borrow(base, bytes, keepalive) }))
    }

    /// Checks sizes and counts; the bytes all frames take.
    fn check(&self) -> Result<usize> {
        if !(1..=MAX_FRAMES).contains(&self.frames) {
            return Err(config(format!("{} frames: a pool has 1 to {MAX_FRAMES}", self.frames)));
        }
        if !self.frame_size.is_power_of_two() || !FRAME_SIZES.contains(&self.frame_size) {
            let size = self.frame_size;
            return Err(config(format!("frame size {size}: it must be a power of two from 64 to 2^30")));
        }
        if !self.colors.is_power_of_two() {
            return Err(config(format!("{} colors: the number must be a power of two", self.colors)));
        }
        let spread = (u64::from(self.colors) - 1) * 64;
        if u64::from(self.headroom) + spread >= u64::from(self.frame_size) {
            let Self { headroom, frame_size, .. } = self;
            return Err(config(format!(
                "a headroom of {headroom} and {spread} bytes of colors leave no data in frames of {frame_size} bytes"
            )));
        }
        if self.ring_size.is_some_and(|slots| !slots.is_power_of_two() || !RING_SIZES.contains(&slots)) {
            return Err(config("the ring size must be a power of two from 32 to 16384"));
        }
        if self.returners > u64::BITS {
            return Err(config(format!("{} returners: a pool has at most 64", self.returners)));
        }
        (self.frames as usize)
            .checked_mul(self.frame_size as usize)
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or_else(|| config("the frames exceed the address space"))
    }

    fn build_in_region(self, region: Region) -> Seed {
        let frames = self.frames as usize;
        let ring = || self.ring_size.map_or_else(|| Ring::never_full(frames), |slots| Ring::new(slots as usize));
        let slot = |_| CachePadded::new(ReturnerSlot { lane: ring(), batched: AtomicU32::new(0) });
        Seed::new(Pool::new(Shared {
            owner: AtomicU64::new(thread_id::NONE),
            base: region.base(),
            frame_shift: self.frame_size.trailing_zeros(),
            headroom: self.headroom,
            color_mask: self.colors - 1,
            refs: (0..frames).map(|_| AtomicU32::new(1)).collect(),
            in_kernel: (0..frames).map(|_| AtomicBool::new(false)).collect(),
            frag_tables: FragTables::empty(frames),
            own: CachePadded::new(UnsafeCell::new(Own {
                cache: Cache::new(),
                slow: AllocStats::default(),
                cache_full: 0,
                unused: 0,
                hold: 0,
                lanes: 0,
                frag: None,
                strays: Strays::default(),
            })),
            lock: CachePadded::new(Lock::new()),
            locked: UnsafeCell::new(Locked {
                closed: false,
                in_use: 0,
                system: Vec::with_capacity(frames),
                release: 0,
                ring_full: 0,
                released_refcnt: 0,
            }),
            ring: ring(),
            returners: (0..self.returners).map(slot).collect(),
            closed: AtomicBool::new(false),
            remaining: AtomicI64::new(0),
            alive: Arc::new(()),
            fixed: self.ring_size.is_none() || !region.is_own(),
            region,
        }))
    }
}

fn config(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, context)
}
