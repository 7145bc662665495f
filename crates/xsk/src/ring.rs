//! The single-producer single-consumer rings of AF_XDP, apart from what they carry.
//!
//! Memory ordering (kernel: net/xdp/xsk_queue.h, "the xsk ring's barriers"): the producer writes entries, then
//! stores the producer index with release; the consumer loads it with acquire before it reads them, and stores the
//! consumer index with release after it has; the producer loads that with acquire before it overwrites them.
//!
//! The peer is not trusted: indices are masked before they touch memory, and a peer index that claims more entries
//! than the ring has counts as "nothing".
#![expect(unsafe_code, reason = "entries lie in memory shared with the kernel")]

use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::Mapping;
use crate::uapi::xdp_ring_offset;

#[cfg(test)]
pub(crate) mod tests;

/// The words and entries of one ring. The tests have one that loom watches.
pub(crate) trait Memory {
    type Entry: Copy;

    /// Number of entries, a power of two; or 0, of a ring that is never used.
    fn capacity(&self) -> u32;
    fn load_producer(&self, order: Ordering) -> u32;
    fn store_producer(&self, value: u32, order: Ordering);
    fn load_consumer(&self, order: Ordering) -> u32;
    fn store_consumer(&self, value: u32, order: Ordering);
    fn flags(&self) -> u32;

    /// Reads the entry at `index` modulo the capacity.
    ///
    /// # Safety
    ///
    /// The caller is the consumer and the producer has published the entry.
    unsafe fn read(&self, index: u32) -> Self::Entry;

    /// Writes the entry at `index` modulo the capacity.
    ///
    /// # Safety
    ///
    /// The caller is the producer and the consumer has released the entry.
    unsafe fn write(&self, index: u32, entry: Self::Entry);
}

/// A ring in memory shared with the kernel.
#[derive(Debug)]
pub(crate) struct Mapped<E> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    capacity: u32,
    entry: PhantomData<E>,
}

impl<E: Copy> Mapped<E> {
    /// The bytes to map for a ring.
    pub(crate) fn len(offset: &xdp_ring_offset, capacity: u32) -> usize {
        offset.desc as usize + capacity as usize * size_of::<E>()
    }

    /// Lays a ring over a mapping; `None` where the offsets do not fit it.
    pub(crate) fn new(mapping: Mapping, offset: &xdp_ring_offset, capacity: u32) -> Option<Self> {
        let word_fits = |at: u64| {
            at.is_multiple_of(align_of::<AtomicU32>() as u64) && at as usize + size_of::<AtomicU32>() <= mapping.len()
        };
        let fits = (capacity.is_power_of_two() || capacity == 0)
            && word_fits(offset.producer)
            && word_fits(offset.consumer)
            && word_fits(offset.flags)
            && offset.desc.is_multiple_of(align_of::<E>() as u64)
            && Self::len(offset, capacity) <= mapping.len();
        fits.then_some(Self {
            producer: offset.producer as usize,
            consumer: offset.consumer as usize,
            flags: offset.flags as usize,
            entries: offset.desc as usize,
            mapping,
            capacity,
            entry: PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` checked that the word lies aligned inside the mapping, which lives as long as `self`; the
        // kernel changes it with single-copy atomic accesses only.
        unsafe { self.mapping.start().add(at).cast::<AtomicU32>().as_ref() }
    }

    fn slot(&self, index: u32) -> *mut E {
        let at = self.entries + (index & self.capacity.wrapping_sub(1)) as usize * size_of::<E>();
        // SAFETY: `new` checked that `capacity` entries lie inside the mapping, and the index is masked.
        unsafe { self.mapping.start().add(at) }.cast().as_ptr()
    }
}

impl<E: Copy> Memory for Mapped<E> {
    type Entry = E;

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn load_producer(&self, order: Ordering) -> u32 {
        self.word(self.producer).load(order)
    }

    fn store_producer(&self, value: u32, order: Ordering) {
        self.word(self.producer).store(value, order);
    }

    fn load_consumer(&self, order: Ordering) -> u32 {
        self.word(self.consumer).load(order)
    }

    fn store_consumer(&self, value: u32, order: Ordering) {
        self.word(self.consumer).store(value, order);
    }

    fn flags(&self) -> u32 {
        self.word(self.flags).load(Ordering::Relaxed)
    }

    unsafe fn read(&self, index: u32) -> E {
        // SAFETY: inside the mapping, aligned, and by the caller's promise not being written. Volatile, so that what is
        // checked afterwards is what was read, even if the peer breaks its promise.
        unsafe { self.slot(index).read_volatile() }
    }

    unsafe fn write(&self, index: u32, entry: E) {
        // SAFETY: inside the mapping, aligned, and by the caller's promise not being read.
        unsafe { self.slot(index).write(entry) }
    }
}

/// The writing end of a ring. Entries become visible to the peer with [`Producer::publish`].
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    /// Next entry to write.
    next: u32,
    /// The consumer index last seen.
    consumer: u32,
}

impl<M: Memory> Producer<M> {
    pub(crate) fn new(memory: M) -> Self {
        let next = memory.load_producer(Ordering::Relaxed);
        let consumer = memory.load_consumer(Ordering::Acquire);
        Self { memory, next, consumer }
    }

    /// Free entries; asks the peer's index only if fewer than `wanted` are known to be free.
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        if self.known_free() < wanted {
            self.consumer = self.memory.load_consumer(Ordering::Acquire);
        }
        self.known_free()
    }

    fn known_free(&self) -> u32 {
        self.memory.capacity().saturating_sub(self.pending_seen())
    }

    fn pending_seen(&self) -> u32 {
        self.next.wrapping_sub(self.consumer)
    }

    /// Entries the peer has not consumed yet, by its index of now.
    pub(crate) fn pending(&mut self) -> u32 {
        self.consumer = self.memory.load_consumer(Ordering::Acquire);
        self.pending_seen().min(self.memory.capacity())
    }

    /// Writes one entry; `false` if the ring is full.
    #[must_use]
    pub(crate) fn push(&mut self, entry: M::Entry) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        // SAFETY: this is the producer, and the entry is free.
        unsafe { self.memory.write(self.next, entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Lets the peer see every entry written.
    pub(crate) fn publish(&self) {
        self.memory.store_producer(self.next, Ordering::Release);
    }

    pub(crate) fn flags(&self) -> u32 {
        self.memory.flags()
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.memory.capacity()
    }
}

/// The reading end of a ring. Entries go back to the peer with [`Consumer::release`].
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    /// Next entry to read.
    next: u32,
    /// The producer index last seen.
    producer: u32,
}

impl<M: Memory> Consumer<M> {
    pub(crate) fn new(memory: M) -> Self {
        let next = memory.load_consumer(Ordering::Relaxed);
        let producer = memory.load_producer(Ordering::Acquire);
        Self { memory, next, producer }
    }

    /// Entries to read; asks the peer's index only if fewer than `wanted` are known.
    pub(crate) fn available(&mut self, wanted: u32) -> u32 {
        if self.known_available() < wanted {
            self.producer = self.memory.load_producer(Ordering::Acquire);
        }
        self.known_available()
    }

    fn known_available(&self) -> u32 {
        let available = self.producer.wrapping_sub(self.next);
        if available > self.memory.capacity() { 0 } else { available }
    }

    /// Reads one entry of those seen by [`Consumer::available`].
    pub(crate) fn pop(&mut self) -> Option<M::Entry> {
        if self.known_available() == 0 {
            return None;
        }
        // SAFETY: this is the consumer, and the producer has published the entry.
        let entry = unsafe { self.memory.read(self.next) };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives every entry read back to the peer.
    pub(crate) fn release(&self) {
        self.memory.store_consumer(self.next, Ordering::Release);
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.memory.capacity()
    }
}
