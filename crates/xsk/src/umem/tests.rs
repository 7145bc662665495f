//! Layouts, and who may have a frame.

use proptest::prelude::*;

use super::*;
use crate::{FramePool, FrameSource};

fn umem(frames: u32) -> Umem {
    Umem::new(UmemConfig { frames, frame_size: 2048, ..UmemConfig::default() }).unwrap()
}

#[test]
fn layouts_the_kernel_would_refuse_are_named_with_a_remedy() {
    let refused = |change: fn(&mut UmemConfig)| {
        let mut config = UmemConfig::default();
        change(&mut config);
        Umem::new(config).unwrap_err().to_string()
    };
    assert_eq!(refused(|c| c.frames = 0), "umem frames: 0 frames are too few; ask for at least one");
    assert!(refused(|c| c.frame_size = 1024).starts_with("umem frame_size: 1024 bytes; choose 2048 to "));
    assert!(refused(|c| c.frame_size = 8192).starts_with("umem frame_size: 8192 bytes; choose 2048 to "));
    assert!(
        refused(|c| c.frame_size = 3000).ends_with("is not a power of two; choose a power of two, or unaligned frames")
    );
    assert!(refused(|c| c.headroom = 3840).ends_with("stay below 3840"));
    assert!(refused(|c| (c.frame_size, c.unaligned) = (3001, true)).contains("a multiple of 8"));
}

#[test]
fn every_frame_is_taken_once_and_free_again_when_dropped() {
    let umem = umem(8);
    let frames: Vec<_> = umem.take_free().collect();
    assert_eq!(frames.iter().map(Frame::index).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert_eq!(umem.take_free().count(), 0);
    assert_eq!(umem.ledger(), Ledger { frames: 8, user: 8, ..Ledger::default() });
    drop(frames);
    assert_eq!(umem.ledger(), Ledger { frames: 8, free: 8, ..Ledger::default() });
}

#[test]
fn frames_do_not_overlap() {
    for config in [
        UmemConfig { frames: 8, frame_size: 2048, ..UmemConfig::default() },
        UmemConfig { frames: 8, frame_size: 2104, unaligned: true, ..UmemConfig::default() },
    ] {
        let umem = Umem::new(config).unwrap();
        let mut frames: Vec<_> = umem.take_free().collect();
        for frame in &mut frames {
            let fill = frame.index() as u8;
            frame.bytes_mut().fill(fill);
        }
        assert!(frames.iter().all(|frame| frame.bytes().iter().all(|&byte| byte == frame.index() as u8)));
    }
}

#[test]
fn a_parked_frame_comes_back_once_and_only_by_its_address() {
    let umem = umem(4);
    let mut pool = FramePool::new(&umem);
    let addr = pool.take().unwrap().park();
    assert_eq!(umem.ledger().parked, 1);
    assert_eq!(pool.collect(), 0, "a parked frame is not free");
    assert!(umem.unpark(addr + 1).is_none());
    assert!(umem.unpark(1 << 40).is_none());
    assert_eq!(umem.unpark(addr).map(|frame| frame.addr()), Some(addr));
    assert!(umem.unpark(addr).is_none());
}

#[test]
fn a_frame_outlives_its_umem() {
    let umem = umem(2);
    let mut frames: Vec<_> = umem.take_free().collect();
    drop(umem);
    frames[1].bytes_mut().fill(7);
    assert!(frames[1].bytes().iter().all(|&byte| byte == 7));
}

#[test]
fn frames_are_claimed_by_one_thread_only() {
    let umem = umem(1000);
    let taken: usize = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..2).map(|_| scope.spawn(|| umem.take_free().map(Frame::park).count())).collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).sum()
    });
    assert_eq!((taken, umem.ledger().parked), (1000, 1000));
}

proptest! {
    #[test]
    fn any_address_is_located_inside_the_umem_or_refused(addr: u64, unaligned: bool) {
        let frame_size = if unaligned { 3000 } else { 2048 };
        let umem = Umem::new(UmemConfig { frames: 16, frame_size, unaligned, ..UmemConfig::default() }).unwrap();
        for addr in [addr, addr % (16 * u64::from(frame_size)), addr & (0xffff << 48 | 0xffff)] {
            if let Some((index, offset)) = umem.shared().locate(addr) {
                prop_assert!(index < 16 && offset < frame_size);
                let full = if unaligned { (addr & ((1 << 48) - 1)) + (addr >> 48) } else { addr };
                prop_assert_eq!(umem.shared().addr(index) + u64::from(offset), full);
            }
        }
    }

    #[test]
    fn segments_stay_within_their_frame(offset: u32, len: u32) {
        let umem = umem(1);
        let frame = umem.take_free().next().unwrap();
        let fits = len > 0 && u64::from(offset) + u64::from(len) <= 2048;
        match frame.into_segment(offset, len) {
            Ok(segment) => prop_assert!(fits && segment.data().len() == len as usize),
            Err(_) => prop_assert!(!fits),
        }
        prop_assert_eq!(umem.ledger().free, 1);
    }
}
