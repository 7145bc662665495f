//! Frames in the user's hands: local to the owner, anywhere, and held beyond their return.
#![expect(unsafe_code, reason = "a frame gives access to its part of the pool's memory")]

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::frag::{Frag, MAX_FRAGS};
use crate::owner::Owner;
use crate::pool::{Pool, unref};
use crate::ring::BATCH;
use crate::sync::Ordering;
use crate::umem::UmemAddr;

/// The frame has fragments; its table must be looked at (the kernel's XDP_FLAGS_HAS_FRAGS).
const HAS_FRAGS: u64 = 1 << 32;
/// The frame was held at some time; its count must be looked at. Without it, this is the only reference.
const WAS_HELD: u64 = 1 << 33;
/// More references than this to one frame abort the process, as `Arc` does: forgotten holds could wrap the count.
const MAX_REFS: u32 = i32::MAX as u32;

/// A frame on its owner's thread. Dropping it puts it into the owner's cache without any check: that it may go there is
/// proved by the compiler, for this type can't leave the thread (it is not `Send`) and borrows the owner, which can
/// neither leave the thread nor be closed meanwhile.
///
/// ```compile_fail,E0277
/// let owner = page_pool::Builder::heap(64).build().unwrap().bind();
/// let frame = owner.alloc().unwrap();
/// std::thread::scope(|s| {
///     s.spawn(move || drop(frame)); // `LocalFrame` can't be sent
/// });
/// ```
///
/// ```compile_fail,E0505
/// let owner = page_pool::Builder::heap(64).build().unwrap().bind();
/// let frame = owner.alloc().unwrap();
/// let seed = owner.unbind(); // the frame still borrows the owner
/// drop(frame);
/// ```
///
/// ```compile_fail,E0505
/// let owner = page_pool::Builder::heap(64).build().unwrap().bind();
/// let frame = owner.alloc().unwrap();
/// owner.close(); // the frame still borrows the owner
/// drop(frame);
/// ```
pub struct LocalFrame<'o> {
    pool: Pool,
    index: u32,
    _owner: PhantomData<&'o Owner>,
}

impl<'o> LocalFrame<'o> {
    /// # Safety
    /// The caller is on the owner's thread for `'o`, and passes on the only reference to the frame.
    #[inline(always)]
    pub(crate) unsafe fn new(pool: Pool, index: u32) -> Self {
        Self { pool, index, _owner: PhantomData }
    }

    /// Its number in the pool, counted from 0.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The bytes behind the headroom.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: this is the frame's only reference.
        unsafe { data(self.pool, self.index) }
    }

    /// The bytes behind the headroom, to write.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: this is the frame's only reference.
        unsafe { data_mut(self.pool, self.index) }
    }

    /// All bytes of the frame, headroom included.
    #[inline]
    pub fn chunk_mut(&mut self) -> &mut [u8] {
        // SAFETY: this is the frame's only reference, and `chunk` points to that many initialized bytes.
        unsafe { slice::from_raw_parts_mut(self.pool.chunk(self.index), self.pool.frame_size()) }
    }

    /// Lets the frame leave the thread.
    #[inline(always)]
    #[must_use]
    pub fn into_shared(self) -> Frame {
        let frame = ManuallyDrop::new(self);
        // SAFETY: the only reference is passed on.
        unsafe { Frame::new(frame.pool, frame.index) }
    }

    /// Hands the frame to the kernel, e.g. to a fill or TX ring: its address in the umem.
    #[inline]
    #[must_use]
    pub fn into_kernel(self) -> UmemAddr {
        UmemAddr::hand_out(self.pool, self.into_index())
    }

    /// Keeps the index alone.
    #[inline(always)]
    pub(crate) fn into_index(self) -> u32 {
        ManuallyDrop::new(self).index
    }

    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }
}

impl Drop for LocalFrame<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the type can't leave the owner's thread, and no code of the user runs inside of `with_own`.
        unsafe { self.pool.recycle_direct(self.index) }
    }
}

impl fmt::Debug for LocalFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalFrame").field("index", &self.index).finish_non_exhaustive()
    }
}

/// A frame that may be anywhere. Dropping it on the owner's thread puts it into the owner's cache, and into the return
/// ring otherwise; that is tested when it is dropped. It may outlive the owner: the pool's memory stays until the last
/// frame is gone.
///
/// A frame may carry up to [`MAX_FRAGS`] fragments (a multi-buffer packet). They are kept beside the frames, in a table
/// that is looked at only if the frame has any.
///
/// ```
/// # fn main() -> page_pool::Result<()> {
/// let owner = page_pool::Builder::heap(1024).build()?.bind();
/// let mut frame = owner.alloc().expect("the pool is new").into_shared();
/// frame.data_mut().expect("nobody else holds it")[0] = 7;
/// std::thread::spawn(move || drop(frame)).join().expect("the thread ends well"); // through the ring
/// assert_eq!(owner.stats().recycle.ring, 1);
/// # Ok(())
/// # }
/// ```
pub struct Frame {
    pool: Pool,
    /// The index (lower half) and the flags: one word, so that a frame is passed in two registers. Relaxed throughout:
    /// where a flag matters the frame is borrowed for writing or owned, which orders it.
    word: AtomicU64,
}

// SAFETY: a frame is the only writer of its bytes, and all it shares with the pool is atomic or under the lock. The
// direct way into the cache is taken on the owner's thread only.
unsafe impl Send for Frame {}
// SAFETY: a shared frame can only be read, or held, which is atomic.
unsafe impl Sync for Frame {}

impl Frame {
    /// # Safety
    /// The caller passes on the only reference to the frame.
    #[inline(always)]
    pub(crate) unsafe fn new(pool: Pool, index: u32) -> Self {
        Self { pool, word: AtomicU64::new(u64::from(index)) }
    }

    /// Its number in the pool, counted from 0.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u32 {
        self.word.load(Relaxed) as u32
    }

    /// The bytes behind the headroom.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: nobody writes while this borrow lives: writing needs `&mut self` and that there is no hold.
        unsafe { data(self.pool, self.index()) }
    }

    /// The bytes behind the headroom, to write. None while somebody [holds](Frame::hold) the frame.
    #[inline]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: there is no other reference, and none can be made while this borrow lives.
        self.is_unique().then(|| unsafe { data_mut(self.pool, self.index()) })
    }

    /// Takes another reference to the frame, as `get_page()` does. A frame that is still held when it is dropped is not
    /// recycled: when the last hold ends it goes back to the system, counted in
    /// [`released_refcnt`](crate::RecycleStats::released_refcnt).
    #[must_use]
    pub fn hold(&self) -> Hold {
        // Relaxed: the new reference is made from an existing one.
        if self.pool.refs(self.index()).fetch_add(1, Ordering::Relaxed) > MAX_REFS {
            std::process::abort();
        }
        self.word.fetch_or(WAS_HELD, Relaxed);
        Hold { pool: self.pool, index: self.index() }
    }

    /// Back to a frame without checks, if it is `owner`'s, has no fragments and nobody else holds it.
    ///
    /// # Errors
    /// The frame itself, otherwise.
    #[inline]
    pub fn into_local(self, owner: &Owner) -> Result<LocalFrame<'_>, Self> {
        if self.pool != owner.pool() || !self.is_plain() {
            return Err(self);
        }
        let frame = ManuallyDrop::new(self);
        // SAFETY: the only reference is passed on, and `owner` is on its thread.
        Ok(unsafe { LocalFrame::new(frame.pool, frame.index()) })
    }

    /// Hands the frame to the kernel: its address in the umem.
    ///
    /// # Errors
    /// The frame itself, if it has fragments or somebody holds it: the kernel may write to it.
    #[inline]
    pub fn into_kernel(self) -> Result<UmemAddr, Self> {
        if !self.is_plain() {
            return Err(self);
        }
        let frame = ManuallyDrop::new(self);
        Ok(UmemAddr::hand_out(frame.pool, frame.index()))
    }

    /// Turns the data of the whole frame into a fragment, to append it to another frame.
    ///
    /// # Errors
    /// The frame itself, if it has fragments or somebody holds it.
    pub fn into_frag(self) -> Result<Frag, Self> {
        if !self.is_plain() {
            return Err(self);
        }
        let frame = ManuallyDrop::new(self);
        let offset = frame.pool.data_offset(frame.index());
        // SAFETY: the reference is passed on with all of the frame's data.
        Ok(unsafe { Frag::new(frame.pool, frame.index(), offset, frame.pool.frame_size() - offset) })
    }

    /// Appends a fragment, which may be of another pool.
    ///
    /// # Errors
    /// The fragment itself, if there are [`MAX_FRAGS`] already.
    pub fn push_frag(&mut self, frag: Frag) -> Result<(), Frag> {
        // SAFETY: this frame is the head of its index, and borrowed for writing.
        unsafe { self.pool.frag_tables().push(self.index(), frag)? };
        *self.word.get_mut() |= HAS_FRAGS;
        Ok(())
    }

    /// Takes the last fragment off.
    pub fn pop_frag(&mut self) -> Option<Frag> {
        if !self.has_frags() {
            return None;
        }
        // SAFETY: this frame is the head of its index, and borrowed for writing.
        let (frag, left) = unsafe {
            let tables = self.pool.frag_tables();
            (tables.pop(self.index()), tables.count(self.index()))
        };
        if left == 0 {
            *self.word.get_mut() &= !HAS_FRAGS;
        }
        frag
    }

    /// The fragments, in the order they were appended.
    #[inline]
    #[must_use]
    pub fn frags(&self) -> &[Frag] {
        if !self.has_frags() {
            return &[];
        }
        // SAFETY: this frame is the head of its index, and borrowed.
        unsafe { self.pool.frag_tables().frags(self.index()) }
    }

    /// Does it have fragments? Known without looking at the table.
    #[inline(always)]
    #[must_use]
    pub fn has_frags(&self) -> bool {
        self.word.load(Relaxed) & HAS_FRAGS != 0
    }

    /// Returns many frames at once, of any pools. Runs of one pool, up to 16 frames, cost one owner test and one hold
    /// of the ring's lock.
    pub fn put_bulk(frames: &mut Vec<Self>) {
        let mut batch = [0; BATCH];
        let mut n = 0;
        let mut of: Option<Pool> = None;
        for frame in frames.drain(..) {
            if of != Some(frame.pool) || n == BATCH {
                flush(of, &batch[..n]);
                n = 0;
                of = Some(frame.pool);
            }
            if let Some(index) = frame.unref() {
                batch[n] = index;
                n += 1;
            }
        }
        flush(of, &batch[..n]);
    }

    /// Ends this reference without returning the frame; the index, if it was the last one.
    #[inline(always)]
    pub(crate) fn unref(self) -> Option<u32> {
        let mut frame = ManuallyDrop::new(self);
        let word = *frame.word.get_mut();
        end_reference(frame.pool, word).then_some(word as u32)
    }

    #[inline(always)]
    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }

    fn is_unique(&self) -> bool {
        // Acquire: what ended holds did comes before.
        self.word.load(Relaxed) & WAS_HELD == 0 || self.pool.refs(self.index()).load(Ordering::Acquire) == 1
    }

    fn is_plain(&self) -> bool {
        !self.has_frags() && self.is_unique()
    }
}

/// Drops a frame's fragments and ends its reference; was it the last one? Most frames have no fragments and were never held:
/// known without looking anywhere else. By value, so that the usual frame need not be in memory.
#[inline(always)]
fn end_reference(pool: Pool, word: u64) -> bool {
    word <= u64::from(u32::MAX) || end_flagged_reference(pool, word)
}

/// Ends the reference of a frame that has fragments or was held.
#[cold]
#[inline(never)]
fn end_flagged_reference(pool: Pool, word: u64) -> bool {
    let index = word as u32;
    if word & HAS_FRAGS != 0 {
        // SAFETY: the frame that ends here is the head of its index, so nobody else uses its fragments.
        while let Some(frag) = unsafe { pool.frag_tables().pop(index) } {
            drop(frag);
        }
    }
    unref(pool.refs(index), 1)
}

/// Returns frames nobody refers to any more.
///
/// The frames keep their pool alive until here: they are counted, and this call ends that.
fn flush(pool: Option<Pool>, frames: &[u32]) {
    let Some(pool) = pool else { return };
    if !frames.is_empty() {
        pool.recycle_bulk(frames);
    }
}

impl Drop for Frame {
    #[inline(always)]
    fn drop(&mut self) {
        let word = *self.word.get_mut();
        if end_reference(self.pool, word) {
            self.pool.recycle(word as u32);
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("index", &self.index())
            .field("frags", &self.frags().len())
            .finish_non_exhaustive()
    }
}

/// An additional reference to a frame, to read it after the [`Frame`] was returned.
pub struct Hold {
    pool: Pool,
    index: u32,
}

// SAFETY: it only reads the frame's bytes, which nobody writes while there is a hold; its end is atomic.
unsafe impl Send for Hold {}
// SAFETY: as above.
unsafe impl Sync for Hold {}

impl Hold {
    /// Its number in the pool, counted from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The bytes behind the headroom.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: nobody writes to a frame while it is held.
        unsafe { data(self.pool, self.index) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if unref(self.pool.refs(self.index), 1) {
            self.pool.release_held(self.index);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("index", &self.index).finish_non_exhaustive()
    }
}

/// # Safety
/// Nobody may write to the frame's data for `'a`, and the frame must stay counted.
#[inline(always)]
unsafe fn data<'a>(pool: Pool, index: u32) -> &'a [u8] {
    let offset = pool.data_offset(index);
    // SAFETY: the offset is below the frame's size (checked when the pool was built) and all its bytes are initialized.
    unsafe { slice::from_raw_parts(pool.chunk(index).add(offset), pool.frame_size() - offset) }
}

/// # Safety
/// Nobody else may use the frame's data for `'a`, and the frame must stay counted.
#[inline(always)]
unsafe fn data_mut<'a>(pool: Pool, index: u32) -> &'a mut [u8] {
    let offset = pool.data_offset(index);
    // SAFETY: as in `data`.
    unsafe { slice::from_raw_parts_mut(pool.chunk(index).add(offset), pool.frame_size() - offset) }
}

const _: () = assert!(size_of::<Frame>() == 16 && size_of::<LocalFrame<'_>>() == 16 && MAX_FRAGS == 17);
