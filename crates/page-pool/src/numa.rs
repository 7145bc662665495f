//! Following the owner's thread to another NUMA node, as the kernel's page_pool_update_nid() does.
#![expect(unsafe_code, reason = "gives back the memory of frames that nobody has")]

use crate::error::{Error, ErrorKind, Result};
use crate::pool::Pool;
use crate::region;

/// Frames whose memory is on another node than the pool prefers.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    /// By index; empty if the node was never changed.
    is_stray: Vec<bool>,
    left: u32,
}

impl Strays {
    fn new(is_stray: Vec<bool>) -> Self {
        let left = is_stray.iter().filter(|stray| **stray).count() as u32;
        Self { is_stray, left }
    }

    pub(crate) fn any(&self) -> bool {
        self.left > 0
    }

    /// Is the frame a stray? It is none any more, because the caller gives its memory back.
    pub(crate) fn take(&mut self, index: u32) -> bool {
        let stray = self.is_stray.get_mut(index as usize).is_some_and(std::mem::take);
        self.left -= u32::from(stray);
        stray
    }
}

impl Pool {
    /// Prefers another node from now on; how many frames are still on others.
    ///
    /// # Safety
    /// As for [`Pool::with_own`].
    pub(crate) unsafe fn change_node(self, node: u32) -> Result<u32> {
        let shared = self.shared();
        if shared.fixed {
            return Err(config("its memory is a umem's or the caller's, which stays where it is"));
        }
        if !self.frame_size().is_multiple_of(shared.region.page_size()) {
            return Err(config("its frames share pages; let a frame be a page or more"));
        }
        // SAFETY: passed on to the caller.
        let obtained = unsafe { self.with_own(|own| own.unused) };
        let frames: Vec<_> = (0..obtained).map(|index| self.chunk(index)).collect();
        let nodes = region::nodes(&frames)?;
        shared.region.prefer_node(node)?;
        let strays = nodes.into_iter().map(|of| of.is_some_and(|of| of != node)).collect();
        // SAFETY: passed on to the caller.
        Ok(unsafe { self.release_strays(strays) })
    }

    /// Gives back the memory of those strays that are in the cache or in the system, and knows the others from now on; how
    /// many they are.
    ///
    /// # Safety
    /// As for [`Pool::with_own`].
    unsafe fn release_strays(self, is_stray: Vec<bool>) -> u32 {
        let mut strays = Strays::new(is_stray);
        let mut system = Vec::with_capacity(self.shared().refs.len());
        self.with_locked(|_, locked| std::mem::swap(&mut locked.system, &mut system));
        system.iter().filter(|index| strays.take(**index)).for_each(|&index| self.discard(index));
        self.with_locked(|_, locked| locked.system.extend_from_slice(&system));
        // SAFETY: passed on to the caller.
        unsafe {
            self.with_own(|own| {
                own.cache.keep(|frames| self.release_strays_of(&mut strays, frames));
                own.strays = strays;
                own.strays.left
            })
        }
    }

    /// Gives those of the frames back to the system that are strays, and moves the others to the front; how many they are.
    #[cold]
    pub(crate) fn release_strays_of(self, strays: &mut Strays, frames: &mut [u32]) -> usize {
        let mut kept = 0;
        for i in 0..frames.len() {
            if !self.release_stray(strays, frames[i]) {
                frames[kept] = frames[i];
                kept += 1;
            }
        }
        kept
    }

    /// Gives a frame that nobody has back to the system if it is a stray; was it one?
    fn release_stray(self, strays: &mut Strays, index: u32) -> bool {
        let stray = strays.take(index);
        if stray {
            self.discard(index);
            self.with_locked(|_, locked| locked.give_back(&[index]));
        }
        stray
    }

    /// Lets the frame's memory come from the preferred node when it is next touched.
    fn discard(self, index: u32) {
        // SAFETY: the frame lies within the region, is whole pages, and nobody has it. Its bytes are zero from here on.
        unsafe { self.shared().region.discard(self.chunk(index), self.frame_size()) };
    }
}

fn config(why: &str) -> Error {
    Error::new(ErrorKind::Config, format!("change the NUMA node of the pool: {why}"))
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests {
    use crate::{Builder, ErrorKind, Owner};

    fn pool() -> Owner {
        Builder::heap(128).build().unwrap().bind()
    }

    /// Plays a change to a node that no frame obtained so far is on but those `at_home`.
    fn change_node(owner: &Owner, at_home: &[u32]) -> u32 {
        // SAFETY: an `Owner` is on its thread.
        unsafe {
            let obtained = owner.pool().with_own(|own| own.unused);
            owner.pool().release_strays((0..obtained).map(|index| !at_home.contains(&index)).collect())
        }
    }

    fn dirty(owner: &Owner, n: usize) -> Vec<crate::Frame> {
        let mut frames = Vec::new();
        owner.alloc_bulk(&mut frames, n);
        frames.iter_mut().for_each(|frame| frame.chunk_mut().fill(0xaa));
        frames.into_iter().map(crate::LocalFrame::into_shared).collect()
    }

    #[test]
    fn the_cache_is_released_at_once_and_its_memory_is_new() {
        let owner = pool();
        drop(dirty(&owner, 64));
        let home = owner.alloc().unwrap().index();
        assert_eq!((owner.ledger().cache, owner.inflight()), (64, 64));
        assert_eq!(change_node(&owner, &[home]), 0, "all were in the cache");
        assert_eq!((owner.ledger().cache, owner.inflight()), (1, 1));
        let stats = owner.stats();
        assert_eq!((stats.alloc.waive, stats.recycle.cached), (0, 65), "a flushed cache is not counted");
        let old = owner.alloc().unwrap();
        assert_eq!((old.index(), old.data()[0]), (home, 0xaa));
        let mut new = Vec::new();
        assert_eq!(owner.alloc_bulk(&mut new, 128), 127);
        assert!(new.iter().all(|frame| frame.data().iter().all(|&byte| byte == 0)), "fresh memory");
    }

    #[test]
    fn frames_from_the_ring_and_the_lanes_are_waived_when_the_cache_is_refilled() {
        for path in [crate::ReturnPath::Ring, crate::ReturnPath::Lane] {
            let owner = pool();
            let mut returner = owner.returner(path).unwrap();
            let frames = dirty(&owner, 64);
            let home: Vec<_> = frames[..10].iter().map(crate::Frame::index).collect();
            std::thread::scope(|s| {
                s.spawn(|| frames.into_iter().for_each(|frame| returner.put(frame)));
            });
            assert_eq!(change_node(&owner, &home), 54);
            assert_eq!(owner.inflight(), 64, "nothing was in the cache");
            let frame = owner.alloc().unwrap();
            let stats = owner.stats().alloc;
            assert_eq!((stats.waive, stats.refill, stats.slow, stats.empty), (54, 1, 1, 1), "{path:?}");
            assert_eq!((owner.ledger().cache, owner.inflight()), (9, 10));
            drop(frame);
            assert!(owner.close().is_clean());
        }
    }

    #[test]
    fn a_refill_of_strays_alone_goes_to_the_system_without_an_empty_ring() {
        let owner = pool();
        let frames = dirty(&owner, 64);
        std::thread::scope(|s| {
            s.spawn(|| drop(frames));
        });
        assert_eq!(change_node(&owner, &[]), 64);
        let frame = owner.alloc().unwrap();
        let stats = owner.stats().alloc;
        assert_eq!((stats.waive, stats.refill, stats.slow, stats.empty), (64, 0, 2, 1));
        assert_eq!(frame.data()[0], 0, "fresh memory");
        drop(frame);
        // What was released is no stray any more.
        drop(dirty(&owner, 128));
        assert_eq!(owner.stats().alloc.waive, 64);
        assert!(owner.close().is_clean());
    }

    #[test]
    fn the_frames_nodes_are_read_from_the_kernel() {
        let owner = pool();
        let frames = dirty(&owner, 3);
        let here = crate::region::nodes(&[owner.pool().chunk(frames[0].index())]).unwrap()[0];
        let others = owner.set_numa_node(here.expect("the frame was touched")).unwrap();
        assert_eq!(others, 0, "they are where the first of them is");
        let (base, bytes) = owner.memory();
        // SAFETY: within the mapping.
        let untouched = unsafe { base.add(bytes - 4096) };
        assert_eq!(crate::region::nodes(&[untouched]).unwrap(), [None]);
        assert!(matches!(owner.set_numa_node(63).unwrap_err().kind(), ErrorKind::Syscall { call: "mbind(2)", .. }));
    }

    #[test]
    fn memory_that_cannot_move_is_refused() {
        let umem = Builder::umem(64).build().unwrap().bind();
        assert!(umem.set_numa_node(0).unwrap_err().to_string().contains("stays where it is"));
        let halves = Builder::heap(64).frame_size(2048).build().unwrap().bind();
        assert!(halves.set_numa_node(0).unwrap_err().to_string().contains("share pages"));
    }
}
