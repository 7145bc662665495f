//! Where the frames of a pool are.
#![expect(unsafe_code, reason = "reads what only the owner touches")]

use crate::pool::Pool;
use crate::sync::Ordering;

/// How many frames are at each place. Every frame is at exactly one, so the places add up to `frames`. Exact while no
/// other thread returns frames; a return that is under way shows up as outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All frames of the pool.
    pub frames: u32,
    /// Not obtained from the system, or given back to it.
    pub system: u32,
    /// In the owner's cache.
    pub cache: u32,
    /// In the return ring.
    pub ring: u32,
    /// In the lanes of returners.
    pub lanes: u32,
    /// Being cut into fragments: 0 or 1.
    pub frag: u32,
    /// In batches of returners, not yet returned.
    pub batched: u32,
    /// In the kernel's hands.
    pub kernel: u32,
    /// In the user's hands, as frames, fragments or holds.
    pub user: u32,
}

impl Ledger {
    /// Frames that are neither in the pool nor in the system.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.batched + self.kernel + self.user
    }

    /// # Safety
    /// Only for the owner's thread.
    pub(crate) unsafe fn of(pool: Pool) -> Self {
        let shared = pool.shared();
        let frames = shared.refs.len() as u32;
        // SAFETY: passed on to the caller.
        let (cache, frag) = unsafe { pool.with_own(|own| (own.cache.len() as u32, u32::from(own.frag.is_some()))) };
        // SAFETY: the owner is the only consumer of the ring and the lanes.
        let (ring, lanes, inflight) = unsafe {
            let lanes: usize = shared.returners.iter().map(|slot| slot.lane.len()).sum();
            (shared.ring.len() as u32, lanes as u32, pool.inflight() as u32)
        };
        let batched = shared.returners.iter().map(|slot| slot.batched.load(Ordering::Relaxed)).sum();
        let kernel = shared.in_kernel.iter().filter(|flag| flag.load(Ordering::Relaxed)).count() as u32;
        // Saturating, because a frame that moves while this is read may be seen twice.
        let user = inflight.saturating_sub(cache + frag + ring + lanes + batched + kernel);
        Self { frames, system: frames.saturating_sub(inflight), cache, ring, lanes, frag, batched, kernel, user }
    }
}

impl Pool {
    /// Frames held less frames released, as the kernel's page_pool_inflight(): right as long as fewer than 2³¹ are
    /// outstanding, however often the counters wrapped.
    ///
    /// # Safety
    /// Only for the owner's thread.
    pub(crate) unsafe fn inflight(self) -> i32 {
        // SAFETY: passed on to the caller.
        let held = unsafe { self.with_own(|own| own.hold) };
        inflight(held, self.with_locked(|_, locked| locked.release))
    }
}

pub(crate) fn inflight(held: u32, released: u32) -> i32 {
    held.wrapping_sub(released) as i32
}

#[cfg(test)]
mod tests {
    use super::inflight;

    #[test]
    fn inflight_is_right_when_the_counters_have_wrapped() {
        assert_eq!(inflight(5, 3), 2);
        assert_eq!(inflight(2, u32::MAX), 3);
        assert_eq!(inflight(u32::MAX, u32::MAX - 7), 7);
        assert_eq!(inflight(3, 5), -2, "more released than held shows as a negative number");
    }
}
