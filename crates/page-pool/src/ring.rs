//! The return ring: the kernel's ptr_ring (include/linux/ptr_ring.h) for frame indices.
//!
//! A slot holds an index + 1, or 0 when it is free. Full and empty are judged from the slot itself, so producer and
//! consumer share no position. The consumer frees slots in groups, each backwards, so that the producer finds whole cache
//! lines free: when the first slot of a group is free, all of it is, and the producer looks at no other.
#![expect(unsafe_code, reason = "the producer's and the consumer's side are exclusive by contract")]

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, zeroed_slots};

/// Frames that are returned at once.
pub(crate) const BATCH: usize = 16;
/// Slots of a group, which the consumer frees at once: 16 slots of 4 bytes are a cache line. (Loom tries all interleavings of
/// their stores.)
const GROUP: usize = if cfg!(loom) { 2 } else { 16 };

#[derive(Debug)]
pub(crate) struct Ring {
    /// A power of two, at least one group.
    slots: Box<[AtomicU32]>,
    /// Frames ever pushed. Written by the producer only.
    produced: CachePadded<AtomicU64>,
    /// Frames ever popped.
    popped: CachePadded<UnsafeCell<u64>>,
}

impl Ring {
    /// A ring that takes at least `capacity` frames (rounded up to a power of two, at least a group).
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            slots: zeroed_slots(capacity.next_power_of_two().max(GROUP)),
            produced: CachePadded::new(AtomicU64::new(0)),
            popped: CachePadded::new(UnsafeCell::new(0)),
        }
    }

    /// A ring that can never be full when there are only `frames` frames: the consumer may lag by one group less one
    /// slot in freeing what it has popped.
    pub(crate) fn never_full(frames: usize) -> Self {
        Self::new(frames + GROUP - 1)
    }

    /// The slots from `position` to the end of its group.
    #[inline(always)]
    fn rest_of_group(&self, position: u64) -> &[AtomicU32] {
        let start = position as usize & (self.slots.len() - 1);
        let end = (start | (GROUP - 1)) + 1;
        // SAFETY: the number of slots is a power of two and at least a group, so the masked position is below it, and so is
        // the rest of its group.
        unsafe { self.slots.get_unchecked(start..end) }
    }

    /// Pushes frames until the ring is full; how many it took.
    ///
    /// # Safety
    /// Only one thread may push at a time, and pushes must be ordered by happens-before.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, frames: &[u32]) -> usize {
        let start = self.produced.load(Ordering::Relaxed);
        let mut pushed = 0;
        while pushed < frames.len() {
            let slots = self.rest_of_group(start + pushed as u64);
            // Within a group this was seen at its start.
            // Acquire: what the consumer read from the group came before it freed the first slot, which it did last.
            if slots.len() == GROUP && slots[0].load(Ordering::Acquire) != 0 {
                break;
            }
            for (slot, &frame) in slots.iter().zip(&frames[pushed..]) {
                // Release: the frame's contents go with it.
                slot.store(frame + 1, Ordering::Release);
            }
            pushed += slots.len().min(frames.len() - pushed);
        }
        self.produced.store(start + pushed as u64, Ordering::Relaxed);
        pushed
    }

    /// Pops up to `out.len()` frames, oldest first; how many it got.
    ///
    /// # Safety
    /// Only one thread may pop at a time, and pops must be ordered by happens-before.
    #[inline]
    pub(crate) unsafe fn pop(&self, out: &mut [u32]) -> usize {
        self.popped.with_mut(|popped| {
            // SAFETY: the caller is the only consumer.
            let popped = unsafe { &mut *popped };
            let mut got = 0;
            while got < out.len() {
                let slots = self.rest_of_group(*popped);
                let mut n = 0;
                for (out, slot) in out[got..].iter_mut().zip(slots) {
                    let frame = slot.load(Ordering::Acquire);
                    if frame == 0 {
                        break;
                    }
                    *out = frame - 1;
                    n += 1;
                }
                got += n;
                if n == slots.len() {
                    self.free_group(*popped);
                }
                *popped += n as u64;
                if n < slots.len() {
                    break;
                }
            }
            got
        })
    }

    /// Frees the group `position` is in, its first slot last.
    #[inline(always)]
    fn free_group(&self, position: u64) {
        let slots = self.rest_of_group(position & !(GROUP as u64 - 1));
        for slot in slots.iter().rev() {
            slot.store(0, Ordering::Release);
        }
    }

    /// Frames ever pushed.
    pub(crate) fn produced(&self) -> u64 {
        self.produced.load(Ordering::Relaxed)
    }

    /// Frames in the ring; exact while nobody pushes.
    ///
    /// # Safety
    /// As for [`Ring::pop`].
    pub(crate) unsafe fn len(&self) -> usize {
        // SAFETY: the caller is the only consumer.
        let popped = self.popped.with(|popped| unsafe { *popped });
        self.produced().wrapping_sub(popped) as usize
    }
}

// SAFETY: the consumer's count is reached by one thread at a time, as `pop` and `len` demand; the rest is atomic.
unsafe impl Sync for Ring {}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::{BATCH, Ring};

    #[test]
    fn frames_come_out_in_the_order_they_went_in() {
        let ring = Ring::new(64);
        let mut out = [0; 40];
        for round in 0..50 {
            let frames: Vec<_> = (round..round + 40).collect();
            // SAFETY: there is one thread.
            unsafe {
                assert_eq!(ring.push(&frames), 40);
                assert_eq!(ring.len(), 40);
                assert_eq!(ring.pop(&mut out), 40);
            }
            assert_eq!(out[..], frames[..]);
        }
        assert_eq!(ring.produced(), 2000);
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let ring = Ring::new(32);
        // SAFETY: there is one thread.
        unsafe {
            assert_eq!(ring.push(&[7; 40]), 32);
            assert_eq!(ring.push(&[7]), 0);
            let mut out = [0; BATCH - 1];
            assert_eq!(ring.pop(&mut out), 15);
            assert_eq!(ring.push(&[7]), 0, "the consumer frees slots in batches");
            assert_eq!(ring.pop(&mut out[..1]), 1);
            assert_eq!(ring.push(&[7; 40]), 16);
        }
    }

    #[test]
    fn a_ring_for_n_frames_is_never_full_wherever_the_consumer_stands() {
        for frames in 1..70_u32 {
            let ring = Ring::never_full(frames as usize);
            let all: Vec<_> = (0..frames).collect();
            let mut out = vec![0; frames as usize];
            // SAFETY: there is one thread.
            unsafe {
                for step in 1..=frames as usize {
                    assert_eq!(ring.push(&all), all.len());
                    assert_eq!(ring.pop(&mut out[..step]), step);
                    assert_eq!(ring.push(&all[..step]), step);
                    assert_eq!(ring.pop(&mut out), all.len());
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use std::sync::Arc;

    use super::{Ring, UnsafeCell};
    use crate::pool::unref;
    use crate::sync::AtomicU32;

    /// A ring and what the frames contain. Loom checks every access to the contents.
    struct Frames<const N: usize>(Ring, [UnsafeCell<u32>; N]);
    // SAFETY: a frame's content is reached by whoever has its index; loom checks it.
    unsafe impl<const N: usize> Sync for Frames<N> {}
    // SAFETY: as above.
    unsafe impl<const N: usize> Send for Frames<N> {}

    impl<const N: usize> Frames<N> {
        fn add(&self, frame: u32) -> u32 {
            // SAFETY: the caller has the frame; loom checks it.
            self.1[frame as usize].with_mut(|n| unsafe {
                *n += 1;
                *n
            })
        }
    }

    /// Sends each of `N` frames once through a ring that is smaller: the producer meets a full ring and goes round it.
    fn contents_go_with_the_frame<const N: usize>(slots: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(4);
        model.check(move || {
            let frames = Arc::new(Frames(Ring::new(slots), [(); N].map(|()| UnsafeCell::new(0))));
            let producer = Arc::clone(&frames);
            let thread = loom::thread::spawn(move || {
                for frame in 0..N as u32 {
                    producer.add(frame);
                    // SAFETY: this is the only producer.
                    while unsafe { producer.0.push(&[frame]) } == 0 {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut out = [0];
            for expected in 0..N as u32 {
                // SAFETY: this is the only consumer.
                while unsafe { frames.0.pop(&mut out) } == 0 {
                    loom::thread::yield_now();
                }
                assert_eq!(out[0], expected);
                assert_eq!(frames.add(out[0]), 2);
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn contents_go_with_the_frame_and_slots_are_reused_safely() {
        contents_go_with_the_frame::<4>(2); // one group: the producer waits until all of it is free
        contents_go_with_the_frame::<6>(4);
    }

    #[test]
    fn the_last_reference_sees_what_the_others_wrote() {
        loom::model(|| {
            let shared = Arc::new((AtomicU32::new(2), Frames(Ring::new(2), [UnsafeCell::new(0), UnsafeCell::new(0)])));
            let other = Arc::clone(&shared);
            let end = |shared: &(AtomicU32, Frames<2>), own: u32| {
                shared.1.add(own);
                if unref(&shared.0, 1) {
                    assert_eq!((shared.1.add(0), shared.1.add(1)), (2, 2));
                    true
                } else {
                    false
                }
            };
            let thread = loom::thread::spawn(move || end(&other, 0));
            let here = end(&shared, 1);
            assert!(here ^ thread.join().unwrap(), "one of them is the last");
        });
    }
}
