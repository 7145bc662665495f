//! The kernel's page_frag_cache (mm/page_frag_cache.c), to compare with fragments of a pool.
#![expect(unsafe_code, reason = "allocates, cuts up and frees memory by reference counts")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::slice;

use crate::frag::{FRAG_ALIGN, Frag};
use crate::owner::Owner;
use crate::sync::{AtomicU32, Ordering};

/// Bytes of a chunk (PAGE_FRAG_CACHE_MAX_SIZE, order 3).
const CHUNK: usize = 32 << 10;
/// Bytes of a chunk when the larger one can't be had (order 0).
const FALLBACK: usize = 4 << 10;
/// References a chunk starts with (PAGE_FRAG_CACHE_MAX_SIZE + 1 in the kernel): more than there can be fragments.
const BIAS: u32 = CHUNK as u32 + 1;

/// What hands out fragments: a pool's [`Owner`], or a [`FragCache`].
pub trait FragAlloc {
    /// A refcounted part of a larger piece of memory.
    type Frag: FragBuf;

    /// A fragment of at least `size` bytes. None if there is no memory or `size` is too large.
    fn frag_alloc(&self, size: usize) -> Option<Self::Frag>;
}

/// The bytes of a fragment.
pub trait FragBuf: Send {
    /// To read.
    fn data(&self) -> &[u8];
    /// To write.
    fn data_mut(&mut self) -> &mut [u8];
}

impl FragAlloc for Owner {
    type Frag = Frag;

    #[inline]
    fn frag_alloc(&self, size: usize) -> Option<Frag> {
        Self::frag_alloc(self, size)
    }
}

impl FragBuf for Frag {
    #[inline]
    fn data(&self) -> &[u8] {
        Self::data(self)
    }

    #[inline]
    fn data_mut(&mut self) -> &mut [u8] {
        Self::data_mut(self)
    }
}

/// Cuts fragments from chunks of 32 KiB, or of 4 KiB when the allocator has no more. A used-up chunk is used again if all
/// its fragments have come back by then; otherwise it is abandoned, and its last fragment frees it. Nothing is recycled,
/// which is what a pool does better.
///
/// ```
/// let cache = page_pool::FragCache::new();
/// let mut frag = cache.frag_alloc(1500).expect("there is memory");
/// frag.data_mut().fill(1);
/// std::thread::spawn(move || drop(frag));
/// ```
#[derive(Debug, Default)]
pub struct FragCache {
    chunk: Cell<Option<NonNull<Chunk>>>,
    /// The end of what is still free; fragments are cut from the front, as the kernel does since 6.13.
    offset: Cell<usize>,
    /// References not handed out.
    bias: Cell<u32>,
}

/// A piece of memory and its count, kept apart as in the kernel's `struct page`.
#[derive(Debug)]
struct Chunk {
    refs: AtomicU32,
    base: NonNull<u8>,
    layout: Layout,
}

impl Chunk {
    fn new() -> Option<NonNull<Self>> {
        [CHUNK, FALLBACK].into_iter().find_map(|bytes| {
            let layout = Layout::from_size_align(bytes, FALLBACK).ok()?;
            // SAFETY: the size is not zero.
            let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            Some(NonNull::from(Box::leak(Box::new(Self { refs: AtomicU32::new(BIAS), base, layout }))))
        })
    }

    /// Ends `n` references; the last one frees the chunk.
    ///
    /// # Safety
    /// The caller has `n` references and does not use them again.
    #[inline(always)]
    unsafe fn put(chunk: NonNull<Self>, n: u32) {
        // SAFETY: the caller's references keep the chunk.
        if unsafe { (*chunk.as_ptr()).refs.fetch_sub(n, Ordering::AcqRel) } == n {
            // SAFETY: those were the last ones; the chunk was leaked and the memory allocated in `new`.
            unsafe {
                let chunk = Box::from_raw(chunk.as_ptr());
                dealloc(chunk.base.as_ptr(), chunk.layout);
            }
        }
    }
}

impl FragCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts a fragment of `size` bytes, rounded up to 64. None if there is no memory, or not in one chunk: at most 32 KiB,
    /// and 4 KiB when only small chunks can be had.
    #[inline]
    pub fn frag_alloc(&self, size: usize) -> Option<CacheFrag> {
        let size = size.max(1).checked_next_multiple_of(FRAG_ALIGN)?;
        let chunk = match self.chunk.get() {
            Some(chunk) if self.offset.get() + size <= Self::bytes(chunk) => chunk,
            _ => self.refill(size)?,
        };
        let offset = self.offset.get();
        self.offset.set(offset + size);
        self.bias.set(self.bias.get() - 1);
        // SAFETY: the chunk has `size` bytes from there, and the reference just taken keeps it.
        let base = unsafe { (*chunk.as_ptr()).base.add(offset) };
        Some(CacheFrag { chunk, base, len: size as u32 })
    }

    /// A chunk with room for `size` bytes from its start: the one there is, if it came back whole, or a new one.
    #[cold]
    fn refill(&self, size: usize) -> Option<NonNull<Chunk>> {
        if let Some(chunk) = self.chunk.get() {
            if size > Self::bytes(chunk) {
                return None;
            }
            // SAFETY: the references not handed out keep the chunk.
            let refs = unsafe { &(*chunk.as_ptr()).refs };
            // Acquire: what the fragments' users did comes before the memory's next use.
            if refs.load(Ordering::Acquire) == self.bias.get() {
                refs.store(BIAS, Ordering::Relaxed);
                self.start(chunk);
                return Some(chunk);
            }
            self.abandon();
        }
        if size > CHUNK {
            return None;
        }
        let chunk = Chunk::new()?;
        self.start(chunk);
        (size <= Self::bytes(chunk)).then_some(chunk)
    }

    fn start(&self, chunk: NonNull<Chunk>) {
        self.chunk.set(Some(chunk));
        self.offset.set(0);
        self.bias.set(BIAS);
    }

    fn abandon(&self) {
        if let Some(chunk) = self.chunk.take() {
            // SAFETY: these are the references not handed out, and the cache forgets the chunk.
            unsafe { Chunk::put(chunk, self.bias.get()) };
        }
    }

    fn bytes(chunk: NonNull<Chunk>) -> usize {
        // SAFETY: the cache's references keep the chunk.
        unsafe { (*chunk.as_ptr()).layout.size() }
    }
}

impl FragAlloc for FragCache {
    type Frag = CacheFrag;

    #[inline]
    fn frag_alloc(&self, size: usize) -> Option<CacheFrag> {
        Self::frag_alloc(self, size)
    }
}

impl Drop for FragCache {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// A fragment of a [`FragCache`].
pub struct CacheFrag {
    chunk: NonNull<Chunk>,
    base: NonNull<u8>,
    len: u32,
}

// SAFETY: a fragment is the only one to use its bytes; the count it shares is atomic.
unsafe impl Send for CacheFrag {}
// SAFETY: a shared fragment can only be read.
unsafe impl Sync for CacheFrag {}

impl CacheFrag {
    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the bytes are this fragment's alone, initialized, and kept by its reference.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len as usize) }
    }

    /// Its bytes, to write.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len as usize) }
    }
}

impl FragBuf for CacheFrag {
    #[inline]
    fn data(&self) -> &[u8] {
        Self::data(self)
    }

    #[inline]
    fn data_mut(&mut self) -> &mut [u8] {
        Self::data_mut(self)
    }
}

impl Drop for CacheFrag {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this is the fragment's reference, and its end.
        unsafe { Chunk::put(self.chunk, 1) }
    }
}

impl fmt::Debug for CacheFrag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheFrag").field("len", &self.len).finish_non_exhaustive()
    }
}
