//! The owner's cache of frames: last in, first out, and its counters.

/// Entries (PP_ALLOC_CACHE_SIZE): one NAPI budget of 64 and room for as many direct returns.
pub(crate) const CACHE_SIZE: usize = 128;
/// Up to here an empty cache is refilled (PP_ALLOC_CACHE_REFILL).
pub(crate) const CACHE_REFILL: usize = 64;

/// One taken frame in `Cache::state`: it counts in the upper 56 bits and lowers the length in the lower 8 bits.
const TAKE_ONE: u64 = (1 << 8) - 1;

#[derive(Debug)]
pub(crate) struct Cache {
    /// The number of frames (lower 8 bits) and how many were ever taken (upper 56 bits, two years at 1 ns each). In one
    /// word, because a counter beside it cost a quarter of an allocation with its return.
    state: u64,
    frames: [u32; CACHE_SIZE],
    /// Frames ever put in by refilling, less those that left uncounted.
    filled: i64,
}

impl Cache {
    pub(crate) const fn new() -> Self {
        Self { state: 0, frames: [0; CACHE_SIZE], filled: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        (self.state & 0xff) as usize
    }

    /// Frames ever taken, the kernel's `fast`.
    pub(crate) fn taken(&self) -> u64 {
        self.state >> 8
    }

    /// Frames ever returned to the cache, the kernel's `cached`: what is there and was taken did not all come from refills.
    pub(crate) fn returned(&self) -> u64 {
        (self.len() as u64 + self.taken()).wrapping_sub(self.filled.cast_unsigned())
    }

    pub(crate) fn frames(&self) -> &[u32] {
        &self.frames[..self.len()]
    }

    /// Takes the last frame. Without `COUNT` it is not counted.
    #[inline(always)]
    pub(crate) fn take<const COUNT: bool>(&mut self) -> Option<u32> {
        let frame = *self.frames.get(self.len().wrapping_sub(1))?;
        self.state = if COUNT { self.state + TAKE_ONE } else { self.state - 1 };
        Some(frame)
    }

    /// Takes up to `n` frames, the last ones.
    #[inline]
    pub(crate) fn take_many(&mut self, n: usize) -> &[u32] {
        let n = n.min(self.len());
        self.state += TAKE_ONE * n as u64;
        &self.frames[self.len()..self.len() + n]
    }

    /// Puts a frame on top; false if there is no room.
    #[inline(always)]
    pub(crate) fn put(&mut self, frame: u32) -> bool {
        // Read once: the compiler can't know that the frame is not stored over it.
        let state = self.state;
        let Some(slot) = self.frames.get_mut((state & 0xff) as usize) else { return false };
        *slot = frame;
        self.state = state + 1;
        true
    }

    /// Puts as many frames on top as there is room for; how many.
    #[inline]
    pub(crate) fn put_many(&mut self, frames: &[u32]) -> usize {
        let len = self.len();
        let n = frames.len().min(CACHE_SIZE - len);
        self.frames[len..len + n].copy_from_slice(&frames[..n]);
        self.state += n as u64;
        n
    }

    /// Refills the empty cache: `fill` puts frames into the slots and tells how many.
    pub(crate) fn refill(&mut self, slots: usize, fill: impl FnOnce(&mut [u32]) -> usize) -> usize {
        debug_assert_eq!(self.len(), 0);
        let n = fill(&mut self.frames[..slots]);
        self.state += n as u64;
        self.filled += n as i64;
        n
    }

    /// Lets `keep` move the frames that stay to the front, and forgets the others; it tells how many stay. Uncounted.
    pub(crate) fn keep(&mut self, keep: impl FnOnce(&mut [u32]) -> usize) {
        let len = self.len();
        let gone = len - keep(&mut self.frames[..len]);
        self.state -= gone as u64;
        self.filled -= gone as i64;
    }

    /// Takes a frame that is handed out by a refill, not from the cache; uncounted.
    pub(crate) fn take_refilled(&mut self) -> Option<u32> {
        let frame = self.take::<false>()?;
        self.filled -= 1;
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::{CACHE_SIZE, Cache};

    #[test]
    fn the_counters_follow_from_the_state() {
        let mut cache = Cache::new();
        assert_eq!(cache.take::<true>(), None);
        cache.refill(64, |slots| {
            slots[..3].copy_from_slice(&[1, 2, 3]);
            3
        });
        assert_eq!(cache.take_refilled(), Some(3));
        assert_eq!((cache.len(), cache.taken(), cache.returned()), (2, 0, 0));
        assert_eq!(cache.take::<true>(), Some(2));
        assert!(cache.put(9));
        assert_eq!((cache.len(), cache.taken(), cache.returned()), (2, 1, 1));
        assert_eq!(cache.take_many(5), [1, 9]);
        assert_eq!((cache.len(), cache.taken(), cache.returned()), (0, 3, 1));
        assert_eq!(cache.put_many(&[5; 200]), CACHE_SIZE);
        assert!(!cache.put(6));
        assert_eq!((cache.len(), cache.taken(), cache.returned()), (CACHE_SIZE, 3, 129));
        cache.keep(|frames| {
            frames[0] = 8;
            1
        });
        assert_eq!((cache.len(), cache.taken(), cache.returned()), (1, 3, 129));
        assert_eq!(cache.take::<true>(), Some(8));
    }
}
