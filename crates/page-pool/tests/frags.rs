//! Fragments, frames of several buffers, and the page_frag_cache design beside them.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::thread;

use page_pool::{Builder, FragAlloc, FragBuf, FragCache, Frame, MAX_FRAGS, Owner, ReturnPath};

fn pool(frames: u32) -> Owner {
    Builder::umem(frames).build().unwrap().bind()
}

fn frame(owner: &Owner) -> Frame {
    owner.alloc().unwrap().into_shared()
}

#[test]
fn fragments_share_a_frame_until_it_is_used_up() {
    let owner = pool(64);
    let frags: Vec<_> = (0..5).map(|_| owner.frag_alloc(1000).unwrap()).collect();
    let index = frags[0].index();
    assert_eq!(frags.iter().map(|frag| frag.offset()).collect::<Vec<_>>(), [0, 1024, 2048, 3072, 0]);
    assert!(frags[..4].iter().all(|frag| frag.index() == index));
    assert_ne!(frags[4].index(), index);
}

#[test]
fn the_rest_of_a_frame_belongs_to_its_last_fragment() {
    let owner = pool(64);
    let (first, second) = (owner.frag_alloc(1536).unwrap(), owner.frag_alloc(1536).unwrap());
    assert_eq!((first.len(), second.len()), (1536, 4096 - 1536));
}

#[test]
fn more_than_half_a_frame_is_a_whole_frame_and_more_than_a_frame_is_none() {
    let owner = pool(64);
    let frag = owner.frag_alloc(2049).unwrap();
    assert_eq!((frag.offset(), frag.len()), (0, 4096));
    assert_eq!(owner.ledger().frag, 0);
    assert!(owner.frag_alloc(4097).is_none());
    assert!(owner.frag_alloc(usize::MAX).is_none());
}

#[test]
fn a_frame_is_recycled_with_its_last_fragment_wherever_that_is() {
    let owner = pool(64);
    let mut frags: Vec<_> = (0..4).map(|_| owner.frag_alloc(1024).unwrap()).collect();
    let next = owner.frag_alloc(1024).unwrap(); // leaves the first frame to its fragments
    assert_eq!((owner.ledger().frag, owner.ledger().user), (1, 1));
    let last = frags.pop().unwrap();
    drop(frags);
    assert_eq!(owner.stats().recycle.cached, 0);
    thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(owner.stats().recycle.ring, 1);
    drop(next);
    assert!(owner.close().is_clean());
}

#[test]
fn a_frame_whose_fragments_are_all_back_is_used_again_in_place() {
    let owner = pool(1);
    for _ in 0..100 {
        let frag = owner.frag_alloc(2048).unwrap();
        assert_eq!(frag.index(), 0);
    }
    let stats = owner.stats();
    assert_eq!((stats.alloc.successful(), stats.recycle.cached), (1, 0));
}

#[test]
fn a_pool_without_frames_has_no_fragment_and_loses_none() {
    let owner = pool(1);
    let (a, b) = (owner.frag_alloc(2048).unwrap(), owner.frag_alloc(2048).unwrap());
    assert!(owner.frag_alloc(64).is_none());
    assert!(owner.frag_alloc(4096).is_none());
    drop((a, b));
    assert_eq!(owner.frag_alloc(64).unwrap().index(), 0);
    assert!(owner.close().is_clean());
}

#[test]
fn fragments_do_not_overlap() {
    let owner = pool(64);
    let mut frags: Vec<_> =
        (0..if cfg!(miri) { 20 } else { 200 }).map(|i| owner.frag_alloc(64 + i * 7).unwrap()).collect();
    for (i, frag) in frags.iter_mut().enumerate() {
        frag.data_mut().fill(i as u8);
    }
    for (i, frag) in frags.iter().enumerate() {
        assert!(frag.data().iter().all(|&byte| byte == i as u8), "fragment {i} was written by another");
    }
}

#[test]
fn a_frame_carries_up_to_17_fragments_in_order() {
    let owner = pool(64);
    let mut head = frame(&owner);
    assert!(!head.has_frags());
    for i in 0..MAX_FRAGS {
        let mut frag = owner.frag_alloc(256).unwrap();
        frag.data_mut()[0] = i as u8;
        head.push_frag(frag).unwrap();
    }
    let refused = head.push_frag(owner.frag_alloc(256).unwrap()).unwrap_err();
    assert_eq!(refused.len(), 256);
    let order: Vec<_> = head.frags().iter().map(|frag| frag.data()[0]).collect();
    assert_eq!(order, (0..17).collect::<Vec<u8>>());
    assert_eq!(head.pop_frag().unwrap().data()[0], 16);
    drop((head, refused));
    let closed = owner.close();
    assert!(closed.is_clean(), "{closed}");
}

#[test]
fn a_jumbo_frame_of_whole_frames_returns_all_its_buffers_from_elsewhere() {
    let owner = pool(64);
    let other_pool = pool(8);
    let mut head = frame(&owner);
    for _ in 0..3 {
        head.push_frag(frame(&owner).into_frag().unwrap()).unwrap();
    }
    head.push_frag(frame(&other_pool).into_frag().unwrap()).unwrap();
    assert_eq!(head.frags()[0].len(), 4096 - 256);
    let mut returner = owner.returner(ReturnPath::Lane).unwrap();
    thread::spawn(move || returner.put(head)).join().unwrap();
    assert_eq!((owner.ledger().user, owner.stats().recycle.ring), (0, 4));
    assert_eq!((other_pool.ledger().user, other_pool.stats().recycle.ring), (0, 1));
}

#[test]
fn a_frame_with_fragments_is_not_plain_until_they_are_taken_off() {
    let owner = pool(64);
    let mut head = frame(&owner);
    head.push_frag(owner.frag_alloc(64).unwrap()).unwrap();
    let head = head.into_frag().unwrap_err();
    let head = head.into_kernel().unwrap_err();
    let mut head = head.into_local(&owner).unwrap_err();
    drop(head.pop_frag());
    assert!(head.pop_frag().is_none());
    assert!(!head.has_frags());
    assert!(head.into_local(&owner).is_ok());
}

#[test]
fn bulk_return_of_frames_with_fragments_returns_the_fragments_too() {
    let owner = pool(64);
    let mut frames: Vec<_> = (0..10).map(|_| frame(&owner)).collect();
    for head in &mut frames {
        head.push_frag(owner.frag_alloc(1024).unwrap()).unwrap();
    }
    Frame::put_bulk(&mut frames);
    assert_eq!(owner.ledger().user, 0);
    assert!(owner.close().is_clean());
}

fn cuts_what_is_asked_for(source: &impl FragAlloc) {
    let mut kept = Vec::new();
    for round in 0..3_u8 {
        for size in [1, 64, 65, 256, 1500, 2048, 4096] {
            let mut frag = source.frag_alloc(size).unwrap();
            assert!(frag.data().len() >= size);
            assert_eq!(frag.data().as_ptr() as usize % 64, 0);
            frag.data_mut().fill(round);
            kept.push((round, frag));
        }
    }
    assert!(kept.iter().all(|(round, frag)| frag.data().iter().all(|byte| byte == round)));
    thread::scope(|s| s.spawn(move || drop(kept)).join().unwrap());
}

#[test]
fn a_pool_and_a_frag_cache_have_the_same_interface() {
    cuts_what_is_asked_for(&pool(64));
    cuts_what_is_asked_for(&FragCache::new());
}

#[test]
fn a_frag_cache_uses_a_chunk_again_only_if_all_came_back() {
    let cache = FragCache::new();
    let first = cache.frag_alloc(16384).unwrap().data().as_ptr();
    let second = cache.frag_alloc(16384).unwrap();
    assert_eq!(second.data().as_ptr() as usize, first as usize + 16384);
    let elsewhere = cache.frag_alloc(16384).unwrap(); // `second` is out: its chunk is abandoned
    assert_ne!(elsewhere.data().as_ptr(), first);
    let base = elsewhere.data().as_ptr();
    drop((elsewhere, second, cache.frag_alloc(16384).unwrap()));
    assert_eq!(cache.frag_alloc(64).unwrap().data().as_ptr(), base);
    assert!(cache.frag_alloc(32769).is_none());
}

#[test]
fn fragments_outlive_their_cache() {
    let cache = FragCache::new();
    let mut frag = cache.frag_alloc(100).unwrap();
    drop(cache);
    frag.data_mut().fill(3);
    assert_eq!(frag.data(), [3; 128]);
}
