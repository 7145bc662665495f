//! The state all handles of a pool share, and the paths of a frame through it: cache, ring, system.
#![expect(unsafe_code, reason = "handles point to the shared state without counting references")]

use std::ptr::NonNull;

use crossbeam_utils::CachePadded;

use crate::cache::{CACHE_REFILL, CACHE_SIZE, Cache};
use crate::frag::{FragPage, FragTables};
use crate::numa::Strays;
use crate::region::Region;
use crate::ring::Ring;
use crate::stats::{AllocStats, RecycleStats, Stats};
use crate::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Lock, Ordering, UnsafeCell, thread_id};

/// Frames above this size are taken from the system one at a time (the kernel's order > 0).
const PAGE_SIZE: usize = 4096;

/// What the handles of one pool share.
///
/// It dies when the pool is closed and nothing that points to it is left; see [`Pool::close`](crate::close).
pub(crate) struct Shared {
    /// The thread whose returns may go to the cache ([`thread_id`]), the kernel's `napi->list_owner`.
    pub(crate) owner: AtomicU64,
    pub(crate) base: *mut u8,
    pub(crate) frame_shift: u32,
    /// Bytes before the data of a frame.
    pub(crate) headroom: u32,
    /// Number of 64-byte offsets over which the data starts are spread, less one.
    pub(crate) color_mask: u32,
    /// References per frame, the kernel's pp_ref_count. 1 while the frame is in the pool.
    pub(crate) refs: Box<[AtomicU32]>,
    /// Frames whose address was handed to the kernel.
    pub(crate) in_kernel: Box<[AtomicBool]>,
    /// Fragments of head frames. Untouched memory unless frames get some.
    pub(crate) frag_tables: FragTables,
    pub(crate) own: CachePadded<UnsafeCell<Own>>,
    /// Guards `locked` and the producer's side of `ring`.
    pub(crate) lock: CachePadded<Lock>,
    pub(crate) locked: UnsafeCell<Locked>,
    pub(crate) ring: Ring,
    pub(crate) returners: Box<[CachePadded<ReturnerSlot>]>,
    /// Set once, with `locked.closed`: an in-use lane has passed from the owner to its returner.
    pub(crate) closed: AtomicBool,
    /// After closing: frames and returners that still point here. Late returns may count it below zero before the
    /// closing thread has added their number.
    pub(crate) remaining: AtomicI64,
    /// Whether the memory must stay where it is: it is a umem's, or the caller's.
    pub(crate) fixed: bool,
    pub(crate) region: Region,
    /// Dropped last of all; [`Closed::is_freed`](crate::Closed::is_freed) watches it.
    pub(crate) alive: std::sync::Arc<()>,
}

/// What only the owner touches.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) cache: Cache,
    /// All allocation counters but `fast`, which the cache has.
    pub(crate) slow: AllocStats,
    pub(crate) cache_full: u64,
    /// Frames from this index on were never obtained from the system.
    pub(crate) unused: u32,
    /// Frames ever obtained from the system (pages_state_hold_cnt); wraps.
    pub(crate) hold: u32,
    /// Lanes ever opened, as bits.
    pub(crate) lanes: u64,
    pub(crate) frag: Option<FragPage>,
    pub(crate) strays: Strays,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) closed: bool,
    /// Returners in use, as bits.
    pub(crate) in_use: u64,
    /// Frames given back to the system. Has room for all frames, so that nothing is allocated under the lock.
    pub(crate) system: Vec<u32>,
    /// Frames ever given back to the system (pages_state_release_cnt); wraps.
    pub(crate) release: u32,
    pub(crate) ring_full: u64,
    pub(crate) released_refcnt: u64,
}

/// One returner's place in the pool.
pub(crate) struct ReturnerSlot {
    pub(crate) lane: Ring,
    /// Frames in the returner's batch. Written by the returner only.
    pub(crate) batched: AtomicU32,
}

// SAFETY: `own` is reached by the owner's thread only (or by whoever closes the pool, when there is no owner any more),
// `locked` under the lock, the fragments of a head frame by the one who has it; `base` points to memory that threads
// share by disjoint frames.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a thread but `own`, whose thread is named by `owner`.
unsafe impl Send for Shared {}

/// A pointer to a pool's shared state. Whoever holds one is counted: an owner, a live returner or an outstanding frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool(NonNull<Shared>);

impl Pool {
    pub(crate) fn new(shared: Shared) -> Self {
        Self(NonNull::from(Box::leak(Box::new(shared))))
    }

    /// The shared state, for as long as the caller is counted in it.
    ///
    /// Functions that end that time take `self` by value and make this reference inside, so that no argument refers to
    /// memory that another thread may already have freed.
    #[inline(always)]
    pub(crate) fn shared<'a>(self) -> &'a Shared {
        // SAFETY: the state lives until everything counted in it is gone, and the caller is counted.
        unsafe { self.0.as_ref() }
    }

    /// Frees the shared state and its memory.
    ///
    /// # Safety
    /// Nothing may point to it any more.
    pub(crate) unsafe fn free(self) {
        // SAFETY: the pointer came from a leaked Box and the caller is the last one to have it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// Does this thread own the pool?
    ///
    /// Relaxed is enough: a thread that reads its own id wrote it itself, in `bind`.
    #[inline(always)]
    pub(crate) fn is_owner(self) -> bool {
        self.shared().owner.load(Ordering::Relaxed) == thread_id::current()
    }

    /// Runs `f` on what only the owner touches. No code of the user may run in it.
    ///
    /// # Safety
    /// Only for the owner's thread, and not inside another `with_own` of this pool.
    #[inline(always)]
    pub(crate) unsafe fn with_own<R>(self, f: impl FnOnce(&mut Own) -> R) -> R {
        // SAFETY: the owner's thread is the only one to come here, and it does not nest.
        self.shared().own.with_mut(|own| f(unsafe { &mut *own }))
    }

    /// Runs `f` under the lock. No code of the user may run in it, and `f` must not panic.
    #[inline(always)]
    pub(crate) fn with_locked<R>(self, f: impl FnOnce(&Shared, &mut Locked) -> R) -> R {
        let shared = self.shared();
        shared.lock.acquire();
        // SAFETY: the lock is held.
        let result = shared.locked.with_mut(|locked| f(shared, unsafe { &mut *locked }));
        shared.lock.release();
        result
    }

    /// Takes a frame from the cache, the ring or the system.
    ///
    /// # Safety
    /// As for [`Pool::with_own`].
    #[inline(always)]
    pub(crate) unsafe fn alloc<const STATS: bool>(self) -> Option<u32> {
        // SAFETY: passed on to the caller.
        let cached = unsafe { self.with_own(|own| own.cache.take::<STATS>()) };
        match cached {
            Some(index) => Some(index),
            // SAFETY: passed on to the caller.
            None => unsafe { self.alloc_slow() },
        }
    }

    /// Refills the empty cache up to [`CACHE_REFILL`] and hands out the last one.
    ///
    /// # Safety
    /// As for [`Pool::with_own`].
    #[cold]
    #[inline(never)]
    unsafe fn alloc_slow(self) -> Option<u32> {
        // SAFETY: passed on to the caller.
        unsafe {
            self.with_own(|own| {
                if self.refill(own) > 0 {
                    own.slow.refill += 1;
                } else if self.obtain(own) == 0 {
                    return None;
                } else if self.is_high_order() {
                    own.slow.slow_high_order += 1;
                } else {
                    own.slow.slow += 1;
                }
                own.cache.take_refilled()
            })
        }
    }

    fn is_high_order(self) -> bool {
        (1_usize << self.shared().frame_shift) > PAGE_SIZE
    }

    /// Fills the empty cache from the lanes and the ring; how many frames came. Those on another NUMA node are let go.
    ///
    /// # Safety
    /// `own` is this pool's, so the caller is the only consumer.
    unsafe fn refill(self, own: &mut Own) -> usize {
        let shared = self.shared();
        let mut lanes = own.lanes;
        let Own { cache, slow, strays, .. } = own;
        cache.refill(CACHE_REFILL, |slots| {
            let mut count = 0;
            while lanes != 0 && count < slots.len() {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                // SAFETY: the owner is the only consumer of the lanes until it closes the pool.
                count += unsafe { shared.returners[lane].lane.pop(&mut slots[count..]) };
            }
            // SAFETY: the owner is the only consumer of the ring.
            count += unsafe { shared.ring.pop(&mut slots[count..]) };
            slow.empty += u64::from(count == 0);
            if strays.any() {
                let kept = self.release_strays_of(strays, &mut slots[..count]);
                slow.waive += (count - kept) as u64;
                return kept;
            }
            count
        })
    }

    /// Fills the empty cache from the system: frames given back before, then frames never used.
    fn obtain(self, own: &mut Own) -> usize {
        let wanted = if self.is_high_order() { 1 } else { CACHE_REFILL };
        let frames = self.shared().refs.len() as u32;
        let unused = &mut own.unused;
        let count = own.cache.refill(wanted, |slots| {
            let again = self.with_locked(|_, locked| {
                let rest = locked.system.len().saturating_sub(slots.len());
                let again = locked.system.len() - rest;
                slots[..again].copy_from_slice(&locked.system[rest..]);
                locked.system.truncate(rest);
                again
            });
            let new = (slots.len() - again).min((frames - *unused) as usize);
            for slot in &mut slots[again..again + new] {
                *slot = *unused;
                *unused += 1;
            }
            again + new
        });
        own.hold = own.hold.wrapping_add(count as u32);
        count
    }

    /// Puts a frame nobody refers to any more into the cache, or into the ring if the cache is full.
    ///
    /// # Safety
    /// As for [`Pool::with_own`].
    #[inline(always)]
    pub(crate) unsafe fn recycle_direct(self, index: u32) {
        // SAFETY: passed on to the caller.
        let cached = unsafe { self.with_own(|own| own.cache.put(index)) };
        if !cached {
            // SAFETY: passed on to the caller.
            unsafe { self.recycle_overflow(&[index]) }
        }
    }

    /// Puts up to [`BATCH`](crate::ring::BATCH) frames nobody refers to any more into the cache, and what does not fit into the ring.
    ///
    /// # Safety
    /// As for [`Pool::with_own`].
    #[inline(always)]
    pub(crate) unsafe fn recycle_direct_bulk(self, frames: &[u32]) {
        // SAFETY: passed on to the caller.
        let cached = unsafe { self.with_own(|own| own.cache.put_many(frames)) };
        if cached < frames.len() {
            // SAFETY: passed on to the caller.
            unsafe { self.recycle_overflow(&frames[cached..]) }
        }
    }

    /// # Safety
    /// As for [`Pool::with_own`].
    #[cold]
    #[inline(never)]
    unsafe fn recycle_overflow(self, frames: &[u32]) {
        // SAFETY: passed on to the caller.
        unsafe { self.with_own(|own| own.cache_full += frames.len() as u64) };
        self.recycle_in_ring(frames);
    }

    /// Ends one reference to a frame; the last one returns the frame to the pool.
    #[inline(always)]
    pub(crate) fn put(self, index: u32) {
        if unref(self.refs(index), 1) {
            self.recycle(index);
        }
    }

    /// Returns a frame nobody refers to any more: to the cache on the owner's thread, else to the ring.
    #[inline(always)]
    pub(crate) fn recycle(self, index: u32) {
        if self.is_owner() {
            // SAFETY: this is the owner's thread, and no code of the user runs inside of `with_own`.
            unsafe { self.recycle_direct(index) }
        } else {
            self.recycle_one_in_ring(index);
        }
    }

    /// Returns up to [`BATCH`](crate::ring::BATCH) frames nobody refers to any more, with one owner test.
    #[inline]
    pub(crate) fn recycle_bulk(self, frames: &[u32]) {
        if self.is_owner() {
            // SAFETY: this is the owner's thread, and no code of the user runs inside of `with_own`.
            unsafe { self.recycle_direct_bulk(frames) }
        } else {
            self.recycle_in_ring(frames);
        }
    }

    /// Returns a frame nobody refers to any more through the ring.
    #[inline(never)]
    pub(crate) fn recycle_one_in_ring(self, index: u32) {
        self.push(&[index]);
    }

    /// Returns frames nobody refers to any more through the ring.
    #[inline(never)]
    pub(crate) fn recycle_in_ring(self, frames: &[u32]) {
        self.push(frames);
    }

    /// Pushes frames into the ring. What does not fit goes back to the system.
    #[inline(always)]
    fn push(self, frames: &[u32]) {
        let taken = self.with_locked(|shared, locked| {
            if locked.closed {
                return false;
            }
            // SAFETY: the lock is held, so this is the only producer.
            let pushed = unsafe { shared.ring.push(frames) };
            if pushed < frames.len() {
                locked.ring_is_full(&frames[pushed..]);
            }
            true
        });
        if !taken {
            self.late(frames.len() as i64);
        }
    }

    /// Returns a frame whose last reference was a foreign one: it is not recycled but goes back to the system.
    #[cold]
    pub(crate) fn release_held(self, index: u32) {
        let taken = self.with_locked(|_, locked| {
            if locked.closed {
                return false;
            }
            locked.released_refcnt += 1;
            locked.give_back(&[index]);
            true
        });
        if !taken {
            self.late(1);
        }
    }

    /// Uncounts `n` frames or returners after the pool was closed; the last one frees it.
    #[cold]
    pub(crate) fn late(self, n: i64) {
        // Before the closing thread has added their number the old value is not above zero.
        if self.shared().remaining.fetch_sub(n, Ordering::AcqRel) == n {
            // SAFETY: everything counted has been uncounted, this caller last; AcqRel orders their accesses before.
            unsafe { self.free() }
        }
    }

    #[inline(always)]
    pub(crate) fn refs<'a>(self, index: u32) -> &'a AtomicU32 {
        // SAFETY: an index is made by `obtain` only, below the number of frames.
        unsafe { self.shared().refs.get_unchecked(index as usize) }
    }

    #[inline(always)]
    pub(crate) fn frag_tables<'a>(self) -> &'a FragTables {
        &self.shared().frag_tables
    }

    /// The first byte of a frame.
    #[inline(always)]
    pub(crate) fn chunk(self, index: u32) -> *mut u8 {
        let shared = self.shared();
        // SAFETY: an index is below the number of frames, and all frames lie within the region.
        unsafe { shared.base.add((index as usize) << shared.frame_shift) }
    }

    #[inline(always)]
    pub(crate) fn frame_size(self) -> usize {
        1 << self.shared().frame_shift
    }

    /// Bytes from the start of a frame to its data.
    #[inline(always)]
    pub(crate) fn data_offset(self, index: u32) -> usize {
        let shared = self.shared();
        (shared.headroom + (index & shared.color_mask) * 64) as usize
    }

    /// The counters. Exact while nobody returns.
    ///
    /// # Safety
    /// As for [`Pool::with_own`].
    pub(crate) unsafe fn stats(self) -> Stats {
        // SAFETY: passed on to the caller.
        let (alloc, cached, cache_full) = unsafe {
            self.with_own(|own| {
                let alloc = AllocStats { fast: own.cache.taken(), ..own.slow };
                (alloc, own.cache.returned(), own.cache_full)
            })
        };
        let lanes: u64 = self.shared().returners.iter().map(|slot| slot.lane.produced()).sum();
        self.with_locked(|shared, locked| {
            let recycle = RecycleStats {
                cached,
                cache_full,
                ring: lanes + shared.ring.produced(),
                ring_full: locked.ring_full,
                released_refcnt: locked.released_refcnt,
            };
            Stats { alloc, recycle }
        })
    }
}

impl Locked {
    #[cold]
    #[inline(never)]
    fn ring_is_full(&mut self, frames: &[u32]) {
        self.ring_full += frames.len() as u64;
        self.give_back(frames);
    }

    pub(crate) fn give_back(&mut self, frames: &[u32]) {
        self.release = self.release.wrapping_add(frames.len() as u32);
        self.system.extend_from_slice(frames);
    }
}

/// Ends `n` references. True if they were the last ones: then the count is 1 again, for the next user.
#[inline(always)]
pub(crate) fn unref(refs: &AtomicU32, n: u32) -> bool {
    // Whoever holds all references that are left needs no read-modify-write, for nobody else can add one.
    // Acquire, and the Release of the subtraction: what the others did with the frame comes before its reuse.
    if refs.load(Ordering::Acquire) == n {
        if n != 1 {
            refs.store(1, Ordering::Relaxed);
        }
        return true;
    }
    if refs.fetch_sub(n, Ordering::AcqRel) != n {
        return false;
    }
    refs.store(1, Ordering::Relaxed);
    true
}

const _: () = assert!(CACHE_REFILL <= CACHE_SIZE && CACHE_SIZE < 256);
