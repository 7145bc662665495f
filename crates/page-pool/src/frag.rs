//! Fragments: parts of frames counted by a reference bias, and the tables of multi-buffer frames.
#![expect(unsafe_code, reason = "a fragment gives access to its part of a frame")]

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::slice;

use crate::owner::Owner;
use crate::pool::{Pool, unref};
use crate::sync::Ordering;

/// Most fragments of one frame (MAX_SKB_FRAGS); with the head that is 18 buffers.
pub const MAX_FRAGS: usize = 17;
/// References a frame starts with when it is cut into fragments (BIAS_MAX is LONG_MAX / 2 in the kernel).
const BIAS: u32 = 1 << 30;
/// Fragments start at cache lines.
pub(crate) const FRAG_ALIGN: usize = 64;

/// The frame that fragments are being cut from.
#[derive(Debug)]
pub(crate) struct FragPage {
    pub(crate) index: u32,
    offset: u32,
    /// Fragments handed out; the frame's count is `BIAS` less those that came back.
    users: u32,
}

impl FragPage {
    /// Takes back the references never handed out. True if all fragments are back already.
    pub(crate) fn drain(&self, pool: Pool) -> bool {
        unref(pool.refs(self.index), BIAS - self.users)
    }
}

impl Owner {
    /// Cuts a fragment of at least `size` bytes (rounded up to 64) from a frame that several fragments share.
    ///
    /// The frame is recycled when the last of its fragments is dropped, wherever that is. Above half a frame the
    /// fragment is a whole frame; what is left behind the last fragment that fits belongs to that fragment, so that the
    /// lengths tell the memory really used. None if `size` is more than a frame or the pool has no frame left.
    #[must_use]
    pub fn frag_alloc(&self, size: usize) -> Option<Frag> {
        let pool = self.pool();
        let frame_size = pool.frame_size();
        let size = size.max(1).checked_next_multiple_of(FRAG_ALIGN)?;
        if size > frame_size {
            return None;
        }
        if size > frame_size / 2 {
            let index = self.alloc()?.into_index();
            // SAFETY: the only reference to the frame is passed on with all its bytes.
            return Some(unsafe { Frag::new(pool, index, 0, frame_size) });
        }
        // SAFETY: an `Owner` is on its thread, and no code of the user runs inside.
        let mut page = unsafe { pool.with_own(|own| own.frag.take()) };
        if page.as_ref().is_some_and(|page| page.offset as usize + size > frame_size) {
            page = page.filter(|page| page.drain(pool)).map(|page| start_page(pool, page.index));
        }
        let mut page = match page {
            Some(page) => page,
            None => start_page(pool, self.alloc()?.into_index()),
        };
        let offset = page.offset as usize;
        let end = if offset + 2 * size > frame_size { frame_size } else { offset + size };
        page.offset = end as u32;
        page.users += 1;
        let index = page.index;
        // SAFETY: as above.
        unsafe { pool.with_own(|own| own.frag = Some(page)) };
        // SAFETY: one of the BIAS references goes with these bytes, which no other fragment got.
        Some(unsafe { Frag::new(pool, index, offset, end - offset) })
    }
}

fn start_page(pool: Pool, index: u32) -> FragPage {
    // Relaxed: a reference reaches another thread with a fragment, which carries this along.
    pool.refs(index).store(BIAS, Ordering::Relaxed);
    FragPage { index, offset: 0, users: 0 }
}

/// A refcounted part of a frame.
pub struct Frag {
    pool: Pool,
    index: u32,
    offset: u32,
    len: u32,
}

// SAFETY: a fragment is the only one to use its bytes, and all it shares with the pool is atomic or under the lock.
unsafe impl Send for Frag {}
// SAFETY: a shared fragment can only be read.
unsafe impl Sync for Frag {}

impl Frag {
    /// # Safety
    /// The caller passes on one reference to the frame and the bytes from `offset` on for `len`.
    #[inline(always)]
    pub(crate) unsafe fn new(pool: Pool, index: u32, offset: usize, len: usize) -> Self {
        Self { pool, index, offset: offset as u32, len: len as u32 }
    }

    /// Ends this reference without returning the frame; the index, if it was the last one.
    #[inline(always)]
    pub(crate) fn unref(self) -> Option<u32> {
        let frag = std::mem::ManuallyDrop::new(self);
        unref(frag.pool.refs(frag.index), 1).then_some(frag.index)
    }

    #[inline(always)]
    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }

    /// The number of its frame in the pool.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The first byte within the frame.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Bytes.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a fragment is never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the bytes are this fragment's alone and lie within the frame.
        unsafe { slice::from_raw_parts(self.pool.chunk(self.index).add(self.offset()), self.len()) }
    }

    /// Its bytes, to write.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`.
        unsafe { slice::from_raw_parts_mut(self.pool.chunk(self.index).add(self.offset()), self.len()) }
    }
}

impl Drop for Frag {
    #[inline(always)]
    fn drop(&mut self) {
        self.pool.put(self.index);
    }
}

impl fmt::Debug for Frag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frag")
            .field("index", &self.index)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The fragments of all head frames of a pool: how many a frame has, densely, and elsewhere which.
///
/// A pool of plain frames touches neither, for a frame knows by itself whether it has any.
pub(crate) struct FragTables {
    counts: Box<[UnsafeCell<u8>]>,
    frags: Box<[UnsafeCell<[MaybeUninit<Frag>; MAX_FRAGS]>]>,
}

impl FragTables {
    /// For `n` frames without fragments, in memory that is not touched.
    pub(crate) fn empty(n: usize) -> Self {
        // SAFETY: zero bytes are counts of 0, and fragments that are not initialized.
        unsafe {
            Self { counts: Box::new_zeroed_slice(n).assume_init(), frags: Box::new_zeroed_slice(n).assume_init() }
        }
    }

    /// How many fragments a frame has.
    ///
    /// # Safety
    /// Nobody changes them meanwhile: the caller has the head frame of this index.
    #[inline(always)]
    pub(crate) unsafe fn count(&self, head: u32) -> usize {
        // SAFETY: passed on to the caller; the index of a frame is below their number.
        usize::from(unsafe { *self.counts.get_unchecked(head as usize).get() })
    }

    /// # Safety
    /// Nobody changes them while they are borrowed: the caller has borrowed the head frame of this index.
    #[inline(always)]
    pub(crate) unsafe fn frags(&self, head: u32) -> &[Frag] {
        // SAFETY: as many as are counted are initialized.
        unsafe { slice::from_raw_parts(self.frags[head as usize].get().cast(), self.count(head)) }
    }

    /// # Safety
    /// Nobody else uses them meanwhile: the caller has the head frame of this index for writing.
    pub(crate) unsafe fn push(&self, head: u32, frag: Frag) -> Result<(), Frag> {
        // SAFETY: passed on to the caller.
        let (count, frags) = unsafe { (&mut *self.counts[head as usize].get(), &mut *self.frags[head as usize].get()) };
        let Some(slot) = frags.get_mut(usize::from(*count)) else { return Err(frag) };
        slot.write(frag);
        *count += 1;
        Ok(())
    }

    /// # Safety
    /// As for [`FragTables::push`].
    pub(crate) unsafe fn pop(&self, head: u32) -> Option<Frag> {
        // SAFETY: passed on to the caller.
        let (count, frags) = unsafe { (&mut *self.counts[head as usize].get(), &mut *self.frags[head as usize].get()) };
        *count = count.checked_sub(1)?;
        // SAFETY: the entry was initialized and is not counted any more.
        Some(unsafe { frags[usize::from(*count)].assume_init_read() })
    }
}
