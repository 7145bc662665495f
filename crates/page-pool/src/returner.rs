//! Returning frames from other threads, in batches.
#![expect(unsafe_code, reason = "a returner is its lane's only producer, and points to its place in the pool")]

use std::fmt;
use std::ptr::NonNull;

use crate::error::Result;
use crate::frag::Frag;
use crate::frame::Frame;
use crate::pool::{Pool, ReturnerSlot};
use crate::ring::BATCH;
use crate::sync::Ordering;
use crate::umem::UmemAddr;

/// Which way a [`Returner`]'s frames go back to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnPath {
    /// A ring of this returner alone (single producer, no lock).
    Lane,
    /// The pool's return ring (many producers, one hold of its lock per batch).
    Ring,
}

/// Collects frames and returns them 16 at a time: to the owner's cache if it is used on the owner's thread, else by its
/// [path](ReturnPath). Frames it collected but has not returned yet are outstanding; dropping it returns them.
pub struct Returner {
    pool: Pool,
    /// The number of its place in the pool, and the place.
    slot: u32,
    place: NonNull<ReturnerSlot>,
    path: ReturnPath,
    len: u32,
    batch: [u32; BATCH],
}

// SAFETY: it is the only user of its slot's producer side, whichever thread it is on; the pool's state lives as long as
// it does, because a live returner is counted.
unsafe impl Send for Returner {}

impl Returner {
    /// The caller has marked `slot` as in use.
    pub(crate) fn new(pool: Pool, slot: u32, path: ReturnPath) -> Self {
        let place = NonNull::from(&*pool.shared().returners[slot as usize]);
        Self { pool, slot, place, path, len: 0, batch: [0; BATCH] }
    }

    /// Takes a frame to return. A frame of another pool goes there directly.
    #[inline]
    pub fn put(&mut self, frame: Frame) {
        if frame.pool() != self.pool {
            drop(frame);
        } else if let Some(index) = frame.unref() {
            self.push(index);
        }
    }

    /// Takes a fragment to return; its frame is returned with its last fragment.
    #[inline]
    pub fn put_frag(&mut self, frag: Frag) {
        if frag.pool() != self.pool {
            drop(frag);
        } else if let Some(index) = frag.unref() {
            self.push(index);
        }
    }

    /// Takes a frame back from the kernel, as [`Owner::from_kernel`](crate::Owner::from_kernel) does.
    ///
    /// # Errors
    /// [`ErrorKind::NotInKernel`](crate::ErrorKind::NotInKernel) if the frame at this address is not in the kernel's
    /// hands.
    ///
    /// # Safety
    /// The kernel must have finished with the frame.
    #[inline]
    pub unsafe fn from_kernel(&self, addr: impl Into<UmemAddr>) -> Result<Frame> {
        let index = addr.into().take_back(self.pool)?;
        // SAFETY: the address was the frame's only reference and is used up.
        Ok(unsafe { Frame::new(self.pool, index) })
    }

    /// Returns the frames collected so far.
    pub fn flush(&mut self) {
        let frames = &self.batch[..self.len as usize];
        self.len = 0;
        self.slot().batched.store(0, Ordering::Relaxed);
        if frames.is_empty() {
            return;
        }
        if self.path == ReturnPath::Ring || self.pool.is_owner() {
            self.pool.recycle_bulk(frames);
        } else if self.pool.shared().closed.load(Ordering::Acquire) {
            self.pool.recycle_in_ring(frames);
            self.abandon_lane();
        } else {
            // SAFETY: a returner is its lane's only producer. If the pool is being closed right now, these frames stay
            // in the lane until the next flush or the drop.
            let pushed = unsafe { self.slot().lane.push(frames) };
            if pushed < frames.len() {
                self.pool.recycle_in_ring(&frames[pushed..]);
            }
        }
    }

    #[inline(always)]
    fn push(&mut self, index: u32) {
        self.batch[self.len as usize] = index;
        self.len += 1;
        if self.len as usize == BATCH {
            self.flush();
        } else {
            self.slot().batched.store(self.len, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn slot(&self) -> &ReturnerSlot {
        // SAFETY: the pool's state lives as long as the returner, which is counted, and its places do not move.
        unsafe { self.place.as_ref() }
    }

    /// Uncounts the frames in the lane of a closed pool, which the owner has left to its returner.
    #[cold]
    fn abandon_lane(&self) {
        let mut frames = [0; BATCH];
        loop {
            // SAFETY: the pool is closed, seen by Acquire or under the lock, so the owner does not pop any more.
            let n = unsafe { self.slot().lane.pop(&mut frames) };
            if n == 0 {
                return;
            }
            // The returner itself is still counted, so the pool lives on.
            self.pool.late(n as i64);
        }
    }
}

impl Drop for Returner {
    fn drop(&mut self) {
        self.flush();
        let slot = self.slot;
        let open = self.pool.with_locked(|_, locked| {
            if !locked.closed {
                // What is in the lane stays there for the owner.
                locked.in_use &= !(1 << slot);
            }
            !locked.closed
        });
        if !open {
            self.abandon_lane();
            self.pool.late(1);
        }
    }
}

impl fmt::Debug for Returner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returner").field("path", &self.path).field("batched", &self.len).finish_non_exhaustive()
    }
}
