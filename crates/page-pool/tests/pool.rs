//! What a pool promises, on one thread and across threads.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "plays the kernel, and lends memory")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::thread;

use page_pool::{Builder, ErrorKind, Frame, Holder, Ledger, Owner, ReturnPath};

fn heap(frames: u32) -> Owner {
    Builder::heap(frames).build().unwrap().bind()
}

fn umem(frames: u32) -> Owner {
    Builder::umem(frames).build().unwrap().bind()
}

fn take(owner: &Owner, n: usize) -> Vec<Frame> {
    (0..n).map(|_| owner.alloc().unwrap().into_shared()).collect()
}

fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|s| s.spawn(f).join().unwrap())
}

fn balanced(owner: &Owner) -> Ledger {
    let l = owner.ledger();
    assert_eq!(l.system + l.cache + l.ring + l.lanes + l.frag + l.batched + l.kernel + l.user, l.frames, "{l:?}");
    assert_eq!(owner.inflight(), (l.frames - l.system) as i32);
    l
}

#[test]
fn the_cache_is_last_in_first_out() {
    let owner = heap(256);
    let (a, b) = (owner.alloc().unwrap(), owner.alloc().unwrap());
    let (a_index, b_index) = (a.index(), b.index());
    drop(a);
    drop(b);
    assert_eq!(owner.alloc().unwrap().index(), b_index);
    let _b = owner.alloc().unwrap();
    assert_eq!(owner.alloc().unwrap().index(), a_index);
}

#[test]
fn the_first_allocation_takes_64_frames_from_the_system() {
    let owner = heap(1000);
    let frame = owner.alloc().unwrap();
    assert_eq!(owner.inflight(), 64);
    assert_eq!(balanced(&owner).cache, 63);
    let stats = owner.stats().alloc;
    assert_eq!((stats.slow, stats.empty, stats.fast, stats.refill), (1, 1, 0, 0));
    drop(frame);
}

#[test]
fn frames_above_a_page_are_taken_one_at_a_time() {
    let owner = Builder::heap(8).frame_size(8192).build().unwrap().bind();
    let _frame = owner.alloc().unwrap();
    assert_eq!(owner.inflight(), 1);
    assert_eq!(owner.stats().alloc.slow_high_order, 1);
    assert_eq!(owner.stats().alloc.slow, 0);
}

#[test]
fn a_pool_hands_out_all_its_frames_once_and_then_none() {
    let owner = umem(100);
    let frames = take(&owner, 100);
    assert!(owner.alloc().is_none());
    let mut indices: Vec<_> = frames.iter().map(Frame::index).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..100).collect::<Vec<_>>());
    assert_eq!(owner.stats().alloc.successful(), 100);
}

#[test]
fn a_drop_elsewhere_goes_through_the_ring_and_refills_the_cache() {
    let owner = umem(64);
    let frames = take(&owner, 64);
    elsewhere(move || drop(frames));
    assert_eq!(balanced(&owner).ring, 64);
    let frame = owner.alloc().unwrap();
    let stats = owner.stats();
    assert_eq!((stats.recycle.ring, stats.recycle.cached, stats.alloc.refill), (64, 0, 1));
    drop(frame);
    assert_eq!(owner.stats().recycle.cached, 1);
}

#[test]
fn a_full_cache_overflows_into_the_ring_and_both_are_counted() {
    let owner = umem(200);
    drop(take(&owner, 200));
    let stats = owner.stats().recycle;
    assert_eq!((stats.cached, stats.cache_full, stats.ring, stats.ring_full), (128, 72, 72, 0));
    assert_eq!(balanced(&owner).ring, 72);
}

#[test]
fn a_full_ring_of_a_heap_pool_gives_frames_back_to_the_system() {
    let owner = Builder::heap(256).ring_size(32).build().unwrap().bind();
    let frames = take(&owner, 256);
    elsewhere(move || drop(frames));
    let stats = owner.stats().recycle;
    assert_eq!((stats.ring, stats.ring_full), (32, 224));
    assert_eq!(balanced(&owner).system, 224);
    assert_eq!(take(&owner, 256).len(), 256, "they can be had again");
}

#[test]
fn the_rings_of_a_umem_pool_are_never_full() {
    let (sizes, rounds): (&[u32], _) = if cfg!(miri) { (&[17], 3) } else { (&[1, 15, 16, 17, 49, 64, 300], 40) };
    for &frames in sizes {
        let owner = umem(frames);
        for path in [ReturnPath::Ring, ReturnPath::Lane] {
            let mut returner = owner.returner(path).unwrap();
            for round in 0..rounds {
                let mut all = take(&owner, frames as usize);
                // Leaves the consumer at every possible distance from a batch's end.
                let kept = all.split_off(round % frames as usize);
                returner = elsewhere(move || {
                    all.into_iter().for_each(|frame| returner.put(frame));
                    kept.into_iter().for_each(|frame| returner.put(frame));
                    returner.flush();
                    returner
                });
            }
        }
        assert_eq!(owner.stats().recycle.ring_full, 0);
        assert!(owner.close().is_clean());
    }
}

#[test]
fn a_returner_gives_frames_back_in_batches_of_16() {
    let owner = umem(64);
    for path in [ReturnPath::Ring, ReturnPath::Lane] {
        let mut returner = owner.returner(path).unwrap();
        let frames = take(&owner, 20);
        returner = elsewhere(move || {
            frames.into_iter().for_each(|frame| returner.put(frame));
            returner
        });
        let ledger = balanced(&owner);
        assert_eq!((ledger.ring + ledger.lanes, ledger.batched), (16, 4), "{path:?}");
        elsewhere(move || drop(returner));
        let ledger = balanced(&owner);
        assert_eq!((ledger.ring + ledger.lanes, ledger.batched), (20, 0), "{path:?}");
        drop(take(&owner, 64));
    }
}

#[test]
fn a_returner_on_the_owners_thread_returns_to_the_cache() {
    let owner = umem(64);
    let mut returner = owner.returner(ReturnPath::Lane).unwrap();
    take(&owner, 16).into_iter().for_each(|frame| returner.put(frame));
    assert_eq!(owner.stats().recycle.cached, 16);
}

#[test]
fn there_are_no_more_returners_than_the_pool_was_built_for() {
    let owner = Builder::umem(64).returners(2).build().unwrap().bind();
    let first = owner.returner(ReturnPath::Lane).unwrap();
    let _second = owner.returner(ReturnPath::Ring).unwrap();
    assert_eq!(owner.returner(ReturnPath::Ring).unwrap_err().kind(), ErrorKind::NoReturner);
    drop(first);
    assert!(owner.returner(ReturnPath::Ring).is_ok());
}

#[test]
fn bulk_allocation_and_return_keep_every_frame() {
    let owner = umem(300);
    let mut frames = Vec::new();
    assert_eq!(owner.alloc_bulk(&mut frames, 250), 250);
    assert_eq!(owner.alloc_bulk(&mut frames, 100), 50);
    assert_eq!(owner.alloc_bulk(&mut frames, 1), 0);
    assert_eq!(owner.stats().alloc.successful(), 300);
    owner.recycle_bulk(&mut frames);
    let ledger = balanced(&owner);
    assert_eq!((ledger.cache, ledger.ring, ledger.user), (128, 172, 0));
}

#[test]
fn bulk_return_of_mixed_pools_sends_each_frame_home() {
    let (a, b) = (umem(64), umem(64));
    let mut frames = Vec::new();
    for i in 0..60 {
        let owner = if i % 7 < 3 { &a } else { &b };
        frames.push(owner.alloc().unwrap().into_shared());
    }
    let (user_a, user_b) = (a.ledger().user, b.ledger().user);
    assert_eq!(user_a + user_b, 60);
    Frame::put_bulk(&mut frames);
    assert_eq!((a.ledger().user, b.ledger().user), (0, 0));
    assert_eq!((a.stats().recycle.cached, b.stats().recycle.cached), (u64::from(user_a), u64::from(user_b)));

    let mut local = Vec::new();
    a.alloc_bulk(&mut local, 5);
    b.alloc_bulk(&mut local, 5);
    a.recycle_bulk(&mut local);
    assert_eq!((a.ledger().user, b.ledger().user), (0, 0));
}

#[test]
fn a_frame_still_held_is_not_recycled_and_counted() {
    let owner = heap(64);
    let mut frame = owner.alloc().unwrap().into_shared();
    frame.data_mut().unwrap()[0] = 42;
    let hold = frame.hold();
    assert!(frame.data_mut().is_none(), "nobody may write to a frame that is held");
    drop(frame);
    assert_eq!(balanced(&owner).user, 1);
    assert_eq!(hold.data()[0], 42);
    elsewhere(move || drop(hold));
    let stats = owner.stats().recycle;
    assert_eq!((stats.released_refcnt, stats.cached, stats.ring), (1, 0, 0));
    assert_eq!(balanced(&owner).user, 0);
    assert_eq!(owner.inflight(), 63, "it left the pool");
}

#[test]
fn a_hold_that_ends_before_the_frame_changes_nothing() {
    let owner = heap(64);
    let mut frame = owner.alloc().unwrap().into_shared();
    drop(frame.hold());
    assert!(frame.data_mut().is_some());
    drop(frame);
    assert_eq!((owner.stats().recycle.released_refcnt, owner.stats().recycle.cached), (0, 1));
}

#[test]
fn a_held_frame_can_neither_go_to_the_kernel_nor_become_local_nor_a_fragment() {
    let owner = umem(64);
    let frame = owner.alloc().unwrap().into_shared();
    let hold = frame.hold();
    let frame = frame.into_kernel().unwrap_err();
    let frame = frame.into_local(&owner).unwrap_err();
    let frame = frame.into_frag().unwrap_err();
    drop(hold);
    assert!(frame.into_local(&owner).is_ok());
}

#[test]
fn a_frame_becomes_local_only_with_its_own_owner() {
    let (a, b) = (umem(64), umem(64));
    let frame = a.alloc().unwrap().into_shared();
    let frame = frame.into_local(&b).unwrap_err();
    drop(frame.into_local(&a).unwrap());
    assert_eq!(a.stats().recycle.cached, 1);
}

#[test]
fn a_moved_pool_takes_its_cache_along_and_revokes_the_direct_return() {
    let owner = umem(64);
    let frame = owner.alloc().unwrap().into_shared();
    let seed = owner.unbind();
    drop(frame); // nobody owns the pool: the ring
    let (ledger, stats) = elsewhere(move || {
        let owner = seed.bind();
        (owner.ledger(), owner.stats())
    });
    assert_eq!((ledger.cache, ledger.ring), (63, 1));
    assert_eq!(stats.recycle.ring, 1);
}

#[test]
fn a_forgotten_owner_leaks_but_its_frames_stay_usable_everywhere() {
    let frame = elsewhere(|| {
        let owner = umem(64);
        let frames = take(&owner, 2);
        std::mem::forget(owner);
        let mut frames = frames.into_iter();
        drop(frames.next()); // still this thread's cache
        frames.next().unwrap()
    });
    drop(frame); // the owner's thread is gone: the ring
}

#[test]
fn the_leak_report_names_what_is_outstanding() {
    let owner = umem(64);
    let mut frames = take(&owner, 4);
    let kernel = frames.pop().unwrap();
    let kernel_index = kernel.index();
    kernel.into_kernel().unwrap();
    let hold = frames[0].hold();
    let returner = owner.returner(ReturnPath::Ring).unwrap();
    let user: Vec<_> = frames.iter().map(Frame::index).collect();

    let closed = owner.close();
    assert!(!closed.is_clean());
    assert_eq!((closed.frames, closed.returners, closed.outstanding.len()), (64, 1, 4));
    for left in &closed.outstanding {
        let expected = if left.index == kernel_index { Holder::Kernel } else { Holder::User };
        assert_eq!(left.holder, expected);
        assert_eq!(left.references, if left.index == hold.index() { 2 } else { 1 });
        assert!(left.index == kernel_index || user.contains(&left.index));
    }
    let text = closed.to_string();
    assert!(text.starts_with("page_pool closed, 4 of 64 frames outstanding; user 3:"), "{text}");
    assert!(text.contains(&format!("{} (2 references)", hold.index())), "{text}");
    assert!(text.ends_with(&format!("kernel 1: {kernel_index}; live returners: 1")), "{text}");
    drop((frames, hold, returner));
    assert!(!closed.is_freed(), "the kernel may still write to its frame");
}

#[test]
fn frames_outlive_the_pool_and_the_last_one_frees_it() {
    for path in [ReturnPath::Ring, ReturnPath::Lane] {
        let owner = umem(64);
        let mut frames = take(&owner, 40);
        let mut returner = owner.returner(path).unwrap();
        let early: Vec<_> = frames.drain(..20).collect();
        let mut returner = elsewhere(move || {
            early.into_iter().for_each(|frame| returner.put(frame));
            returner
        });
        let closed = owner.close();
        assert_eq!(closed.returners, 1);
        frames[0].data_mut().unwrap().fill(1);
        assert!(!closed.is_freed());
        frames.drain(..18).for_each(|frame| returner.put(frame));
        drop(returner);
        assert!(!closed.is_freed());
        elsewhere(|| drop(frames.pop()));
        assert!(!closed.is_freed());
        drop(frames.pop());
        assert!(closed.is_freed());
    }
}

#[test]
fn a_clean_pool_is_freed_when_it_is_closed() {
    let owner = umem(64);
    drop(take(&owner, 10));
    let closed = owner.close();
    assert!(closed.is_clean() && closed.is_freed());
    assert_eq!(closed.to_string(), "page_pool closed, 0 of 64 frames outstanding");
}

#[test]
fn an_address_returned_twice_by_the_kernel_is_refused() {
    let owner = umem(64);
    let frame = owner.alloc().unwrap();
    let index = frame.index();
    let addr = u64::from(frame.into_kernel());
    assert_eq!(addr, u64::from(index) * 4096);
    assert_eq!(balanced(&owner).kernel, 1);
    // SAFETY: there is no kernel here that could use the frame.
    let back = unsafe { owner.from_kernel(addr + 256) }.unwrap();
    assert_eq!(back.index(), index);
    // SAFETY: as above.
    let error = unsafe { owner.from_kernel(addr) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInKernel);
    assert!(error.to_string().contains("returned twice"), "{error}");
    // SAFETY: as above.
    let error = unsafe { owner.from_kernel(u64::MAX) }.unwrap_err();
    assert!(error.to_string().contains("only 64 frames"), "{error}");
    drop(back);
    assert_eq!(balanced(&owner).kernel, 0);
}

#[test]
fn frames_left_in_the_kernel_can_be_reclaimed_after_the_socket() {
    let owner = umem(64);
    let mut kernel = Vec::new();
    for _ in 0..30 {
        kernel.push(owner.alloc().unwrap().into_kernel());
    }
    assert_eq!((kernel.len(), balanced(&owner).kernel), (30, 30));
    // SAFETY: there is no kernel here that could use the frames.
    assert_eq!(unsafe { owner.reclaim_from_kernel() }, 30);
    assert!(owner.close().is_clean());
}

#[test]
fn memory_of_the_caller_is_used_and_let_go_once() {
    struct Memory(#[expect(dead_code, reason = "it is kept, not read")] Vec<u8>, std::sync::mpsc::Sender<()>);
    impl Drop for Memory {
        fn drop(&mut self) {
            self.1.send(()).unwrap();
        }
    }
    let (dropped, seen) = std::sync::mpsc::channel();
    let mut memory = vec![0_u8; 64 * 4096];
    let (base, bytes) = (memory.as_mut_ptr(), memory.len());
    let memory = Box::new(Memory(memory, dropped));
    // SAFETY: the vector's memory is valid until `memory` is dropped, and nobody else uses it.
    let owner = unsafe { Builder::umem(64).build_in(base, bytes, memory) }.unwrap().bind();
    assert_eq!(owner.memory(), (base, bytes));
    let mut frame = owner.alloc().unwrap();
    frame.chunk_mut().fill(9);
    let frame = frame.into_shared();
    drop(owner);
    assert!(seen.try_recv().is_err());
    assert_eq!(frame.data()[0], 9);
    drop(frame);
    assert_eq!(seen.iter().count(), 1);
}

#[test]
fn headroom_and_colors_move_the_data() {
    let owner = Builder::heap(64).headroom(128).colors(4).build().unwrap().bind();
    let mut frames = Vec::new();
    owner.alloc_bulk(&mut frames, 64);
    for frame in &mut frames {
        let offset = frame.data().as_ptr() as usize - frame.chunk_mut().as_ptr() as usize;
        assert_eq!(offset, 128 + (frame.index() as usize % 4) * 64);
        assert_eq!(frame.data().len(), 4096 - offset);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for builder in [
        Builder::heap(0),
        Builder::heap(u32::MAX),
        Builder::heap(64).frame_size(3000),
        Builder::heap(64).frame_size(32),
        Builder::heap(64).frame_size(2048).headroom(2048),
        Builder::heap(64).frame_size(2048).headroom(0).colors(64),
        Builder::heap(64).colors(3),
        Builder::heap(64).ring_size(0),
        Builder::heap(64).ring_size(1000),
        Builder::heap(64).returners(65),
        Builder::heap(64).numa_node(64),
    ] {
        let error = builder.clone().build().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{builder:?}");
    }
    // SAFETY: the memory is too short, so it is never used.
    let short = unsafe { Builder::umem(2).build_in(std::ptr::null_mut(), 4096, Box::new(())) };
    assert!(short.map(drop).unwrap_err().to_string().contains("need 8192 bytes"));
}
