//! The synchronization primitives, from the standard library or from loom (`RUSTFLAGS="--cfg loom"`).
#![expect(unsafe_code, reason = "slots of zero bytes are made without touching them")]

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// [`std::cell::UnsafeCell`] with the interface of loom's.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Zeroed slots. Outside of loom the memory is not touched, so an unused lane costs address space only.
pub(crate) fn zeroed_slots(n: usize) -> Box<[AtomicU32]> {
    #[cfg(loom)]
    return (0..n).map(|_| AtomicU32::new(0)).collect();
    #[cfg(not(loom))]
    // SAFETY: an AtomicU32 of zero bytes is the valid value 0.
    return unsafe { Box::new_zeroed_slice(n).assume_init() };
}

/// Waits a little for another thread; after a short while it lets the scheduler run that thread, because in user
/// space the holder of a spinlock can be preempted.
pub(crate) fn relax(turn: u32) {
    #[cfg(loom)]
    {
        let _: u32 = turn;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if turn < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// A spinlock without data and without a guard: after [`SpinLock::release`] the memory it lives in may be freed by the
/// next holder, so nothing may be left to run behind it.
#[derive(Debug)]
pub(crate) struct SpinLock(AtomicBool);

#[cfg_attr(all(loom, not(test)), expect(dead_code, reason = "tested alone; see `Lock`"))]
impl SpinLock {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    #[inline(always)]
    pub(crate) fn acquire(&self) {
        if !self.try_acquire() {
            self.wait();
        }
    }

    #[inline(always)]
    fn try_acquire(&self) -> bool {
        self.0.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut turn = 0;
        while !self.try_acquire() {
            // Waiting only reads, so that the line is not torn from the holder. Loom would try every stale value.
            while cfg!(not(loom)) && self.0.load(Ordering::Relaxed) {
                relax(turn);
                turn += 1;
            }
            relax(turn);
        }
    }

    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The lock of a pool: [`SpinLock`]. Under loom it is loom's mutex, which blocks: of three threads two can spin for ever
/// while loom never runs the third. The spinlock has a model of its own.
#[cfg(not(loom))]
pub(crate) use SpinLock as Lock;
#[cfg(loom)]
pub(crate) use blocking::Lock;

#[cfg(loom)]
mod blocking {
    use std::cell::UnsafeCell;
    use std::mem::transmute;

    use loom::sync::{Mutex, MutexGuard};

    pub(crate) struct Lock {
        guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
        mutex: Box<Mutex<()>>,
    }

    impl Lock {
        pub(crate) fn new() -> Self {
            Self { guard: UnsafeCell::new(None), mutex: Box::new(Mutex::new(())) }
        }

        pub(crate) fn acquire(&self) {
            let Ok(guard) = self.mutex.lock() else { unreachable!("no thread panics under the lock") };
            // SAFETY: the guard is dropped in `release`, before the mutex; the cell is reached under the lock only.
            unsafe { *self.guard.get() = Some(transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(guard)) };
        }

        pub(crate) fn release(&self) {
            // SAFETY: the lock is held.
            let guard = unsafe { (*self.guard.get()).take() };
            drop(guard);
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use std::sync::Arc;

    use super::{SpinLock, UnsafeCell};

    #[test]
    fn the_spinlock_excludes_and_hands_over() {
        struct Counter(SpinLock, UnsafeCell<u32>);
        // SAFETY: the cell is reached under the lock only; loom checks it.
        unsafe impl Sync for Counter {}
        // SAFETY: as above.
        unsafe impl Send for Counter {}

        fn count(counter: &Counter) {
            counter.0.acquire();
            // SAFETY: the lock is held; loom checks it.
            counter.1.with_mut(|n| unsafe { *n += 1 });
            counter.0.release();
        }

        let mut model = loom::model::Builder::new();
        // Unbounded, loom would preempt the holder by the spinner for ever.
        model.preemption_bound = Some(4);
        model.check(|| {
            let counter = Arc::new(Counter(SpinLock::new(), UnsafeCell::new(0)));
            let other = Arc::clone(&counter);
            let thread = loom::thread::spawn(move || {
                count(&other);
                count(&other);
            });
            count(&counter);
            thread.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(counter.1.with(|n| unsafe { *n }), 3);
        });
    }
}

/// Names the threads that own a pool.
pub(crate) mod thread_id {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The id of no thread: the owner of a pool that is not bound.
    pub(crate) const NONE: u64 = u64::MAX;

    static NEXT: AtomicU64 = AtomicU64::new(1);

    // An id is a number that is never used twice, not the address of something thread-local: a forgotten `Owner`
    // stays bound to its thread after that thread has ended, and a later thread could get the same address. The value
    // is const and has no destructor, so it can be read at any point of a thread's life.
    #[cfg(not(loom))]
    thread_local! { static ID: Cell<u64> = const { Cell::new(0) }; }
    #[cfg(loom)]
    loom::thread_local! { static ID: Cell<u64> = Cell::new(0); }

    /// The id of this thread; 0 if it never owned a pool.
    #[inline(always)]
    pub(crate) fn current() -> u64 {
        ID.with(Cell::get)
    }

    /// The id of this thread, given now if it has none.
    pub(crate) fn assign() -> u64 {
        ID.with(|id| {
            if id.get() == 0 {
                id.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            id.get()
        })
    }
}
