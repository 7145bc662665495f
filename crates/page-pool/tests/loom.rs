//! Every interleaving of returns, refills and the closing of a pool.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p page-pool --test loom`
#![cfg(loom)]
#![expect(unsafe_code, reason = "lends memory that tells when it is freed")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use page_pool::{Builder, Frame, Owner, ReturnPath};

/// Memory that counts how often it was let go.
struct Memory(#[expect(dead_code, reason = "it is kept, not read")] Vec<u8>, Arc<AtomicU32>);

impl Drop for Memory {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn pool(frames: u32) -> (Owner, Arc<AtomicU32>) {
    pool_of(frames, 64)
}

fn pool_of(frames: u32, frame_size: u32) -> (Owner, Arc<AtomicU32>) {
    let freed = Arc::new(AtomicU32::new(0));
    let mut memory = vec![0_u8; (frames * frame_size) as usize];
    let (base, bytes) = (memory.as_mut_ptr(), memory.len());
    let builder = Builder::umem(frames).frame_size(frame_size).headroom(0).returners(1);
    // SAFETY: the memory is valid until it is dropped, and nobody else uses it.
    let seed = unsafe { builder.build_in(base, bytes, Box::new(Memory(memory, Arc::clone(&freed)))) };
    (seed.unwrap().bind(), freed)
}

/// Marks a frame; panics if it was freed or if another thread's mark is half written.
fn mark(frame: &mut Frame, freed: &AtomicU32) {
    assert_eq!(freed.load(Ordering::Relaxed), 0, "the memory is gone while a frame lives");
    frame.data_mut().unwrap()[0] += 1;
}

#[test]
fn a_drop_elsewhere_is_found_by_the_owner() {
    loom::model(|| {
        let (owner, freed) = pool(1);
        let mut frame = owner.alloc().unwrap().into_shared();
        let seen = Arc::clone(&freed);
        let other = thread::spawn(move || {
            mark(&mut frame, &seen);
        });
        if let Some(frame) = owner.alloc() {
            assert_eq!(frame.data()[0], 1, "the other thread's write came along");
        }
        other.join().unwrap();
        assert_eq!(owner.alloc().unwrap().data()[0], 1);
        assert!(owner.close().is_clean());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn two_threads_return_at_once_and_nothing_is_lost() {
    loom::model(|| {
        let (owner, freed) = pool(2);
        let returns: Vec<_> = (0..2)
            .map(|_| {
                let mut frame = owner.alloc().unwrap().into_shared();
                let freed = Arc::clone(&freed);
                thread::spawn(move || mark(&mut frame, &freed))
            })
            .collect();
        let early = owner.alloc();
        let got = usize::from(early.is_some());
        drop(early);
        for thread in returns {
            thread.join().unwrap();
        }
        let mut frames = Vec::new();
        assert_eq!(owner.alloc_bulk(&mut frames, 3), 2, "{got} came early");
        assert!(frames.iter().all(|frame| frame.data()[0] == 1));
        drop(frames);
        assert!(owner.close().is_clean());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn closing_while_two_frames_return_frees_once_and_after_both() {
    loom::model(|| {
        let (owner, freed) = pool(2);
        let returns: Vec<_> = (0..2)
            .map(|_| {
                let mut frame = owner.alloc().unwrap().into_shared();
                let freed = Arc::clone(&freed);
                thread::spawn(move || mark(&mut frame, &freed))
            })
            .collect();
        let closed = owner.close();
        assert!(closed.outstanding.len() <= 2);
        for thread in returns {
            thread.join().unwrap();
        }
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

fn closing_while_a_returner_works(path: ReturnPath) {
    loom::model(move || {
        let (owner, freed) = pool(2);
        let mut frames = [owner.alloc().unwrap().into_shared(), owner.alloc().unwrap().into_shared()];
        let mut returner = owner.returner(path).unwrap();
        let seen = Arc::clone(&freed);
        let other = thread::spawn(move || {
            for frame in &mut frames {
                mark(frame, &seen);
            }
            let [first, second] = frames;
            returner.put(first);
            returner.flush();
            returner.put(second);
        });
        drop(owner);
        other.join().unwrap();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn closing_while_a_lane_is_in_use_frees_once_and_after_all() {
    closing_while_a_returner_works(ReturnPath::Lane);
}

#[test]
fn closing_while_a_ring_returner_works_frees_once_and_after_all() {
    closing_while_a_returner_works(ReturnPath::Ring);
}

#[test]
fn a_lane_hands_frames_over_with_their_contents() {
    loom::model(|| {
        let (owner, freed) = pool(2);
        let mut frames = [owner.alloc().unwrap().into_shared(), owner.alloc().unwrap().into_shared()];
        let mut returner = owner.returner(ReturnPath::Lane).unwrap();
        let seen = Arc::clone(&freed);
        let other = thread::spawn(move || {
            for frame in &mut frames {
                mark(frame, &seen);
            }
            let [first, second] = frames;
            returner.put(first);
            returner.flush();
            returner.put(second);
        });
        if let Some(frame) = owner.alloc() {
            assert_eq!(frame.data()[0], 1);
        }
        other.join().unwrap();
        let mut frames = Vec::new();
        assert_eq!(owner.alloc_bulk(&mut frames, 3), 2);
        assert!(frames.iter().all(|frame| frame.data()[0] == 1));
        drop(frames);
        assert!(owner.close().is_clean());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn the_last_of_frame_and_hold_ends_the_frame_once() {
    loom::model(|| {
        let (owner, freed) = pool(1);
        let frame = owner.alloc().unwrap().into_shared();
        let hold = frame.hold();
        let other = thread::spawn(move || drop(frame));
        drop(hold);
        other.join().unwrap();
        let stats = owner.stats().recycle;
        assert_eq!(stats.released_refcnt + stats.ring, 1);
        assert!(owner.close().is_clean());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn fragments_returned_elsewhere_return_their_frame_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4); // unbounded it passes too, in 80 s
    model.check(|| {
        let (owner, freed) = pool_of(1, 256);
        let first = owner.frag_alloc(64).unwrap();
        let second = owner.frag_alloc(64).unwrap();
        assert_eq!(first.index(), second.index());
        let threads = [first, second].map(|frag| thread::spawn(move || drop(frag)));
        let closed = owner.close();
        assert!(closed.outstanding.len() <= 1);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn the_owner_reuses_a_fragmented_frame_only_after_its_fragments() {
    loom::model(|| {
        let (owner, freed) = pool_of(2, 256);
        let mut first = owner.frag_alloc(128).unwrap();
        let index = first.index();
        let seen = Arc::clone(&freed);
        let other = thread::spawn(move || {
            assert_eq!(seen.load(Ordering::Relaxed), 0);
            first.data_mut()[0] += 1;
        });
        drop(owner.frag_alloc(128).unwrap());
        let next = owner.frag_alloc(128).unwrap();
        if next.index() == index {
            assert_eq!(next.data()[0], 1, "the write of the first fragment's thread came along");
        }
        other.join().unwrap();
        drop(next);
        assert!(owner.close().is_clean());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}
