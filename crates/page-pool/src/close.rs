//! Shutting a pool down while frames may be in flight.
//!
//! The closing thread sets `closed` under the lock every return through the ring takes, so each of them comes either
//! before (and is found in the ring) or after (and counts `remaining` down instead). Lanes have no lock: a lane in use is
//! left to its returner, which empties it when it sees `closed`, at the latest when it is dropped.
#![expect(unsafe_code, reason = "ends the life of the shared state")]

use std::fmt;
use std::sync::Weak;

use crate::pool::Pool;
use crate::ring::{BATCH, Ring};
use crate::stats::Stats;
use crate::sync::{Ordering, thread_id};

/// What was left of a pool when it was closed.
#[derive(Clone, Debug)]
pub struct Closed {
    /// Frames of the pool.
    pub frames: u32,
    /// Frames that were neither in the pool nor in the system.
    pub outstanding: Vec<Outstanding>,
    /// Returners still alive. Frames in their batches and lanes are among the outstanding ones.
    pub returners: u32,
    /// Frames found in the pool twice: something was returned twice through an unsafe function.
    pub doubled: Vec<u32>,
    /// The counters at the end.
    pub stats: Stats,
    alive: Weak<()>,
}

/// A frame that had not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Its number in the pool.
    pub index: u32,
    /// Who has it.
    pub holder: Holder,
    /// References to it: more than one if it is cut into fragments or held.
    pub references: u32,
}

/// Who has an outstanding frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A frame, fragment, hold or live returner in user space.
    User,
    /// The kernel, which got its umem address.
    Kernel,
}

impl Closed {
    /// Did every frame come back?
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.outstanding.is_empty() && self.doubled.is_empty()
    }

    /// Is the pool's memory freed by now? It is as soon as the last outstanding frame and the last returner are gone.
    #[must_use]
    pub fn is_freed(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

/// One line that names what is outstanding, up to 16 frames of each holder.
impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page_pool closed, {} of {} frames outstanding", self.outstanding.len(), self.frames)?;
        for (holder, name) in [(Holder::User, "user"), (Holder::Kernel, "kernel")] {
            let held: Vec<_> = self.outstanding.iter().filter(|frame| frame.holder == holder).collect();
            if held.is_empty() {
                continue;
            }
            write!(f, "; {name} {}:", held.len())?;
            for frame in held.iter().take(16) {
                write!(f, " {}", frame.index)?;
                if frame.references > 1 {
                    write!(f, " ({} references)", frame.references)?;
                }
            }
            if held.len() > 16 {
                write!(f, " …")?;
            }
        }
        if self.returners > 0 {
            write!(f, "; live returners: {}", self.returners)?;
        }
        if !self.doubled.is_empty() {
            write!(f, "; returned twice: {:?}", self.doubled)?;
        }
        Ok(())
    }
}

/// Marks the frames that were found, and keeps those found twice.
struct Found {
    seen: Vec<bool>,
    doubled: Vec<u32>,
}

impl Found {
    fn add(&mut self, index: u32) {
        if std::mem::replace(&mut self.seen[index as usize], true) {
            self.doubled.push(index);
        }
    }

    /// # Safety
    /// The caller is the ring's only consumer.
    unsafe fn drain(&mut self, ring: &Ring) {
        let mut frames = [0; BATCH];
        loop {
            // SAFETY: passed on to the caller.
            let n = unsafe { ring.pop(&mut frames) };
            if n == 0 {
                return;
            }
            frames[..n].iter().for_each(|&index| self.add(index));
        }
    }
}

impl Pool {
    /// Closes the pool; frees it unless something still points to it.
    ///
    /// # Safety
    /// The caller is the owner or has the seed, uses neither any more, and closes once.
    pub(crate) unsafe fn close(self) -> Closed {
        let shared = self.shared();
        shared.owner.store(thread_id::NONE, Ordering::Relaxed);
        let frames = shared.refs.len() as u32;
        let mut found = Found { seen: vec![false; frames as usize], doubled: Vec::new() };

        // SAFETY: there is no owner any more but the caller.
        unsafe {
            self.with_own(|own| {
                own.cache.frames().iter().for_each(|&index| found.add(index));
                (own.unused..frames).for_each(|index| found.add(index));
                if let Some(page) = own.frag.take()
                    && page.drain(self)
                {
                    found.add(page.index);
                }
            });
        }
        // SAFETY: as above.
        let stats = unsafe { self.stats() };
        let (in_use, system) = self.with_locked(|shared, locked| {
            locked.closed = true;
            // Release: a returner that sees it also sees how far the owner has emptied its lane.
            shared.closed.store(true, Ordering::Release);
            (locked.in_use, std::mem::take(&mut locked.system))
        });
        system.into_iter().for_each(|index| found.add(index));
        // SAFETY: the owner was the only consumer, and lanes in use now belong to their returners.
        unsafe {
            found.drain(&shared.ring);
            for (slot, returner) in shared.returners.iter().enumerate() {
                if in_use & (1 << slot) == 0 {
                    found.drain(&returner.lane);
                }
            }
        }

        let missing = (0..frames).filter(|&index| !found.seen[index as usize]);
        let outstanding: Vec<_> = missing.map(|index| self.outstanding(index)).collect();
        let closed = Closed {
            frames,
            returners: in_use.count_ones(),
            doubled: found.doubled,
            stats,
            alive: std::sync::Arc::downgrade(&shared.alive),
            outstanding,
        };
        let remaining = closed.outstanding.len() as i64 + i64::from(closed.returners);
        if shared.remaining.fetch_add(remaining, Ordering::AcqRel) + remaining == 0 {
            // SAFETY: everything counted has been uncounted, and the caller does not use the pool any more.
            unsafe { self.free() };
        }
        closed
    }

    fn outstanding(self, index: u32) -> Outstanding {
        let in_kernel = self.shared().in_kernel[index as usize].load(Ordering::Relaxed);
        Outstanding {
            index,
            holder: if in_kernel { Holder::Kernel } else { Holder::User },
            references: self.refs(index).load(Ordering::Relaxed),
        }
    }
}
