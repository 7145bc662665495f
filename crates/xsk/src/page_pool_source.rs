//! Frames of a umem kept by the `page-pool` crate, recycled as a driver recycles its pages.
#![expect(unsafe_code, reason = "lends the umem's memory to the pool, and takes frames back from the kernel for it")]

use page_pool::{Builder, Owner};

use crate::error::{Error, Result};
use crate::frame::Frame;
use crate::pool::FrameSource;
use crate::umem::Umem;

/// All frames of one umem in a [`page_pool`] of a fixed size: its cache first, then its return ring. Feature `page-pool`.
///
/// The pool knows its frames by address ([`Frame::park`]); a frame taken out is "in the kernel's hands" to it until it
/// is given back, wherever it is. It belongs to the thread that made it.
#[derive(Debug)]
pub struct PagePool {
    owner: Owner,
    umem: Umem,
}

impl PagePool {
    /// A pool of all frames of `umem`.
    ///
    /// # Errors
    ///
    /// Some frame is not free, or the umem is unaligned, which page pools are not.
    pub fn new(umem: &Umem) -> Result<Self> {
        let layout = umem.layout();
        if layout.unaligned {
            return Err(Error::config("page pool", "the umem is unaligned", "use aligned frames, or a FramePool"));
        }
        let frames: Vec<_> = umem.take_free().collect();
        if frames.len() as u32 != layout.frames {
            return Err(Error::config(
                "page pool",
                format!("{} of {} frames are free", frames.len(), layout.frames),
                "make the pool before frames are taken",
            ));
        }
        let builder = Builder::umem(layout.frames).frame_size(layout.frame_size);
        let base = umem.shared().memory().start().as_ptr();
        let bytes = layout.frames as usize * layout.frame_size as usize;
        // SAFETY: the memory is initialised and mapped while the clone of the umem lives. Every frame is parked below, so
        // that the pool alone has it; it gives the ones it hands out to `unpark`, as if to the kernel.
        let seed = unsafe { builder.build_in(base, bytes, Box::new(umem.clone())) }
            .map_err(|error| Error::config("page pool", error.to_string(), "choose another layout of the umem"))?;
        // The pool counts its frames from 0 as the umem does, so the addresses are known already.
        frames.into_iter().map(Frame::park).for_each(drop);
        Ok(Self { owner: seed.bind(), umem: umem.clone() })
    }

    /// Takes in the frames that became free since: dropped, or left over from closed sockets. Returns their number.
    pub fn collect(&mut self) -> usize {
        let umem = self.umem.clone();
        umem.take_free().map(|frame| self.give(frame)).count()
    }

    /// Where the pool's frames are, by its own books. Those taken out are `kernel` there.
    #[must_use]
    pub fn ledger(&self) -> page_pool::Ledger {
        self.owner.ledger()
    }

    /// Which ways frames were allocated and recycled.
    #[must_use]
    pub fn stats(&self) -> page_pool::Stats {
        self.owner.stats()
    }
}

impl FrameSource for PagePool {
    fn take(&mut self) -> Option<Frame> {
        loop {
            let addr = u64::from(self.owner.alloc()?.into_kernel());
            // None if somebody else took the frame by its address: theirs, then, until it is free again.
            if let Some(frame) = self.umem.unpark(addr) {
                return Some(frame);
            }
        }
    }

    fn give(&mut self, frame: Frame) {
        if !self.umem.owns(&frame) {
            // Not this pool's: dropping it makes it free in its own umem.
            return;
        }
        let addr = frame.park();
        // SAFETY: the frame was the user's alone until it was parked, so the kernel has finished with it.
        let back = unsafe { self.owner.from_kernel(addr) };
        // An error if the frame was taken by its address while the pool had it: then the pool has it again.
        drop(back);
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        // SAFETY: the pool's frames are addresses only, and no more is taken out of it: it touches none of the memory
        // from here on, whoever has the frames. Without this it would wait for them, and keep the umem, for good.
        unsafe { self.owner.reclaim_from_kernel() };
        let frame_size = u64::from(self.umem.layout().frame_size);
        for index in 0..u64::from(self.umem.layout().frames) {
            // The ones in the pool become free; the others have an owner already.
            drop(self.umem.unpark(index * frame_size));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UmemConfig;

    fn umem() -> Umem {
        Umem::new(UmemConfig { frames: 300, frame_size: 2048, ..UmemConfig::default() }).unwrap()
    }

    #[test]
    fn the_books_of_pool_and_umem_agree_at_every_step() {
        let umem = umem();
        let mut pool = PagePool::new(&umem).unwrap();
        let check = |pool: &PagePool, out: u32| {
            assert_eq!((umem.ledger().parked, umem.ledger().user, umem.ledger().free), (300 - out, out, 0));
            assert_eq!((pool.ledger().kernel, pool.ledger().user), (out, 0));
        };
        check(&pool, 0);
        let mut frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(frames.len(), 300);
        check(&pool, 300);
        frames[7].bytes_mut().fill(1);
        for frame in frames.drain(..100) {
            pool.give(frame);
        }
        check(&pool, 200);
        drop(frames);
        assert_eq!(pool.collect(), 200);
        check(&pool, 0);
    }

    #[test]
    fn frames_taken_by_address_behind_the_pool_are_neither_lost_nor_doubled() {
        let umem = umem();
        let mut pool = PagePool::new(&umem).unwrap();
        let (stolen, returned) = (umem.unpark(0).unwrap(), umem.unpark(2048).unwrap());
        pool.give(returned);
        let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(frames.len(), 299, "all but the one that is out");
        frames.into_iter().for_each(|frame| pool.give(frame));
        drop(stolen);
        assert_eq!(pool.collect(), 1);
        assert_eq!((umem.ledger().parked, pool.ledger().outstanding()), (300, 0));
    }

    #[test]
    fn a_dropped_pool_frees_its_frames_but_not_those_taken_out() {
        let umem = umem();
        let mut pool = PagePool::new(&umem).unwrap();
        let mut frame = pool.take().unwrap();
        drop(pool);
        assert_eq!((umem.ledger().free, umem.ledger().user), (299, 1));
        frame.bytes_mut().fill(1);
        drop(frame);
        let pool = PagePool::new(&umem).unwrap();
        assert_eq!(pool.umem.ledger().parked, 300);
    }

    #[test]
    fn a_pool_needs_all_frames_of_an_aligned_umem() {
        let umem = umem();
        let _frame = umem.take_free().next();
        let error = PagePool::new(&umem).unwrap_err().to_string();
        assert_eq!(error, "page pool: 299 of 300 frames are free; make the pool before frames are taken");
        assert_eq!(umem.ledger().free, 299);
        let unaligned = UmemConfig { frames: 8, frame_size: 3000, unaligned: true, ..UmemConfig::default() };
        assert!(PagePool::new(&Umem::new(unaligned).unwrap()).is_err());
    }

    #[test]
    fn a_foreign_frame_is_freed_in_its_own_umem() {
        let (umem, other) = (umem(), umem());
        let mut pool = PagePool::new(&umem).unwrap();
        pool.give(other.take_free().next().unwrap());
        assert_eq!((other.ledger().free, umem.ledger().parked), (300, 300));
    }
}
