//! The owner of a pool, bound to one thread.
#![expect(unsafe_code, reason = "an owner is on its thread, which is what the owner's paths ask for")]

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crate::close::Closed;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::LocalFrame;
use crate::ledger::Ledger;
use crate::pool::Pool;
use crate::returner::{ReturnPath, Returner};
use crate::ring::BATCH;
use crate::stats::Stats;
use crate::sync::{Ordering, thread_id};
use crate::umem::UmemAddr;

/// A pool that no thread owns yet. It can be sent to the thread that will.
///
/// While nobody owns the pool, frames return through the ring. Dropping the seed closes the pool.
#[derive(Debug)]
pub struct Seed(Pool);

// SAFETY: what only the owner touches goes along; nobody touches it while there is no owner.
unsafe impl Send for Seed {}

impl Seed {
    pub(crate) fn new(pool: Pool) -> Self {
        Self(pool)
    }

    /// Makes this thread the pool's owner.
    #[must_use]
    pub fn bind(self) -> Owner {
        let pool = ManuallyDrop::new(self).0;
        // Relaxed: only this thread will find its own id.
        pool.shared().owner.store(thread_id::assign(), Ordering::Relaxed);
        Owner { pool, _not_send: PhantomData }
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        // SAFETY: nobody owns the pool, and this was the way to own it.
        drop(unsafe { self.0.close() });
    }
}

/// A pool on the thread that allocates from it: the one side that needs no lock. There is one owner per pool, as there
/// is one NAPI instance per kernel page_pool.
///
/// It can't leave its thread, so that whatever it lends out ([`LocalFrame`]) is on that thread too. To move a pool,
/// [unbind](Owner::unbind) it. Dropping the owner closes the pool; see [`Owner::close`].
///
/// ```compile_fail,E0277
/// let owner = page_pool::Builder::heap(64).build().unwrap().bind();
/// std::thread::spawn(move || drop(owner)); // `Owner` can't be sent
/// ```
///
/// ```compile_fail,E0277
/// let owner = page_pool::Builder::heap(64).build().unwrap().bind();
/// std::thread::scope(|s| {
///     s.spawn(|| owner.alloc().is_some()); // `Owner` can't be shared
/// });
/// ```
#[derive(Debug)]
pub struct Owner {
    pool: Pool,
    _not_send: PhantomData<*const ()>,
}

impl Owner {
    /// Takes a frame: from the cache (last in, first out), else from the ring, else from the system. None if all frames
    /// of the pool are outstanding.
    #[inline(always)]
    #[must_use]
    pub fn alloc(&self) -> Option<LocalFrame<'_>> {
        // SAFETY: an `Owner` is on its thread; the frame is new, so this is its only reference.
        unsafe { self.pool.alloc::<true>().map(|index| LocalFrame::new(self.pool, index)) }
    }

    /// Appends up to `n` frames to `frames`; how many there were.
    pub fn alloc_bulk<'o>(&'o self, frames: &mut Vec<LocalFrame<'o>>, n: usize) -> usize {
        // First, because an allocator is code of the user.
        frames.reserve(n);
        let pool = self.pool;
        let mut got = 0;
        while got < n {
            // SAFETY: an `Owner` is on its thread; each index left the cache, so this is its only reference. The vector
            // has room, so no code of the user runs inside.
            got += unsafe {
                pool.with_own(|own| {
                    let taken = own.cache.take_many(n - got);
                    frames.extend(taken.iter().map(|&index| LocalFrame::new(pool, index)));
                    taken.len()
                })
            };
            if got < n {
                let Some(frame) = self.alloc() else { break };
                frames.push(frame);
                got += 1;
            }
        }
        got
    }

    /// Returns all of `frames` to the cache, and to the ring what does not fit. Quicker than dropping them one by one.
    pub fn recycle_bulk(&self, frames: &mut Vec<LocalFrame<'_>>) {
        let mut batch = [0; BATCH];
        let mut n = 0;
        for frame in frames.drain(..) {
            if frame.pool() != self.pool {
                continue; // dropped: it goes to its own pool
            }
            batch[n] = frame.into_index();
            n += 1;
            if n == BATCH {
                // SAFETY: an `Owner` is on its thread, and no code of the user runs inside.
                unsafe { self.pool.recycle_direct_bulk(&batch) };
                n = 0;
            }
        }
        // SAFETY: as above.
        unsafe { self.pool.recycle_direct_bulk(&batch[..n]) };
    }

    /// A handle for another thread to return frames in batches.
    ///
    /// # Errors
    /// [`ErrorKind::NoReturner`] if as many as the pool was [built for](crate::Builder::returners) are in use.
    pub fn returner(&self, path: ReturnPath) -> Result<Returner> {
        let slot = self.pool.with_locked(|shared, locked| {
            let free = (!locked.in_use).trailing_zeros();
            ((free as usize) < shared.returners.len()).then(|| {
                locked.in_use |= 1 << free;
                free
            })
        });
        let slot = slot.ok_or_else(|| {
            let max = self.pool.shared().returners.len();
            Error::new(ErrorKind::NoReturner, format!("all {max} returners of the pool are in use"))
        })?;
        if path == ReturnPath::Lane {
            // SAFETY: an `Owner` is on its thread.
            unsafe { self.pool.with_own(|own| own.lanes |= 1 << slot) };
        }
        Ok(Returner::new(self.pool, slot, path))
    }

    /// Takes a frame back from the kernel, e.g. from an RX or completion ring. Any address within the frame will do.
    ///
    /// # Errors
    /// [`ErrorKind::NotInKernel`] if the frame at this address is not in the kernel's hands: it came back twice.
    ///
    /// # Safety
    /// The kernel must have finished with the frame: its descriptor was taken from a ring the kernel fills.
    #[inline]
    pub unsafe fn from_kernel(&self, addr: impl Into<UmemAddr>) -> Result<LocalFrame<'_>> {
        let index = addr.into().take_back(self.pool)?;
        // SAFETY: the address was the frame's only reference and is used up; an `Owner` is on its thread.
        Ok(unsafe { LocalFrame::new(self.pool, index) })
    }

    /// Takes back every frame the kernel has, e.g. those left in a fill ring; how many there were.
    ///
    /// # Safety
    /// The kernel must have given up the whole umem: every socket that uses it is closed.
    pub unsafe fn reclaim_from_kernel(&self) -> usize {
        let frames = self.pool.shared().refs.len() as u32;
        let back = (0..frames).filter_map(|index| UmemAddr::reclaim(self.pool, index));
        // SAFETY: as in `from_kernel`.
        back.map(|index| drop(unsafe { LocalFrame::new(self.pool, index) })).count()
    }

    /// Where all frames are.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        // SAFETY: an `Owner` is on its thread.
        unsafe { Ledger::of(self.pool) }
    }

    /// Frames obtained from the system and not given back, wherever they are (the kernel's `inflight`).
    #[must_use]
    pub fn inflight(&self) -> i32 {
        // SAFETY: an `Owner` is on its thread.
        unsafe { self.pool.inflight() }
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        // SAFETY: an `Owner` is on its thread.
        unsafe { self.pool.stats() }
    }

    /// Bytes of a frame.
    #[must_use]
    pub fn frame_size(&self) -> usize {
        self.pool.frame_size()
    }

    /// Frames of the pool.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.pool.shared().refs.len() as u32
    }

    /// The memory, to register it as a umem: its start and its length in bytes. The start is aligned to a page; frame
    /// *i* starts `i * frame_size` bytes from it.
    #[must_use]
    pub fn memory(&self) -> (*mut u8, usize) {
        let shared = self.pool.shared();
        (shared.base, shared.refs.len() << shared.frame_shift)
    }

    /// Lets the pool's memory follow its thread to another NUMA node, as the kernel's page_pool_nid_changed() does; how many
    /// frames are still on others.
    ///
    /// Those are released instead of recycled: the ones in the cache at once, others when they come through the ring or a
    /// lane and the cache is refilled ([`waive`](crate::AllocStats::waive)). A released frame's memory goes back to the
    /// kernel, and comes from the preferred node when the frame is next obtained. As in the kernel, a frame returned on the
    /// owner's thread is recycled wherever it is.
    ///
    /// Do not call it while the memory is registered with the kernel, which would go on using the old pages.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a umem pool, for memory of the caller, and for frames smaller than a page;
    /// [`ErrorKind::Syscall`] if there is no such node or the frames' nodes can't be found out. Nothing changes then.
    pub fn set_numa_node(&self, node: u32) -> Result<u32> {
        // SAFETY: an `Owner` is on its thread.
        unsafe { self.pool.change_node(node) }
    }

    /// Gives up the pool, so that another thread can own it. Frames return through the ring meanwhile.
    #[must_use]
    pub fn unbind(self) -> Seed {
        let pool = ManuallyDrop::new(self).pool;
        pool.shared().owner.store(thread_id::NONE, Ordering::Relaxed);
        Seed::new(pool)
    }

    /// Closes the pool and tells which frames are still outstanding.
    ///
    /// They stay valid: the memory is freed when the last of them, and the last [`Returner`], is gone. Frames in the
    /// kernel's hands keep it for good; [reclaim](Owner::reclaim_from_kernel) them first, after closing the socket.
    pub fn close(self) -> Closed {
        let pool = ManuallyDrop::new(self).pool;
        // SAFETY: this was the only owner.
        unsafe { pool.close() }
    }

    #[inline(always)]
    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: this was the only owner.
        drop(unsafe { self.pool.close() });
    }
}
