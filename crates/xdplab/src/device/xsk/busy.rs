//! How long a thread has had something to do, and for which socket.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::units::whole_nanos;

/// For none of the sockets: the thread looks for packets and finds none.
const NONE: usize = usize::MAX;

/// The run time of a thread by the socket that it spent it on. Time without packets is nobody's, where the thread says so.
#[derive(Debug)]
pub(super) struct Busy {
    /// What each socket took, up to the moment when the thread last turned to another.
    totals: Vec<AtomicU64>,
    /// The socket that the thread is busy with.
    current: AtomicUsize,
    /// Its run time when it turned to that one, in ns.
    since: AtomicU64,
}

impl Busy {
    /// Nothing so far, of so many sockets.
    pub(super) fn new(sockets: usize) -> Self {
        let totals = (0..sockets).map(|_| AtomicU64::new(0)).collect();
        Self { totals, current: AtomicUsize::new(NONE), since: AtomicU64::new(0) }
    }

    /// Tells that the calling thread turns to this socket, or to none. The clock is read when that is a change: never while
    /// packets of one socket keep coming.
    pub(super) fn turn_to(&self, socket: Option<usize>) {
        let (socket, current) = (socket.unwrap_or(NONE), self.current.load(Ordering::Relaxed));
        if socket == current {
            return;
        }
        let now = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
        if let Some(total) = self.totals.get(current) {
            total.fetch_add(now.saturating_sub(self.since.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        self.since.store(now, Ordering::Relaxed);
        self.current.store(socket, Ordering::Release);
    }

    /// The time that a socket took so far of the thread with this number, which is one of this process.
    pub(super) fn of(&self, socket: usize, tid: i32) -> Duration {
        let clock = thread_clock(tid);
        let now = || {
            let (current, since) = (self.current.load(Ordering::Acquire), self.since.load(Ordering::Relaxed));
            let total = self.totals[socket].load(Ordering::Relaxed);
            (current, since, total)
        };
        // The thread may turn to another socket meanwhile; it does not do so all the time.
        for _ in 0..100 {
            let before = now();
            let run = clock_ns(clock);
            if now() != before {
                continue;
            }
            let (current, since, total) = before;
            let running = if current == socket { run.saturating_sub(since) } else { 0 };
            return Duration::from_nanos(total + running);
        }
        Duration::from_nanos(self.totals[socket].load(Ordering::Relaxed))
    }
}

/// The CPU clock of a thread of this process (`make_thread_cpuclock`, include/linux/posix-timers_types.h: `CPUCLOCK_PERTHREAD`
/// and `CPUCLOCK_SCHED`), which is as exact as the thread's own.
fn thread_clock(tid: i32) -> ClockId {
    ClockId::from_raw((!tid << 3) | 4 | 2)
}

fn clock_ns(clock: ClockId) -> u64 {
    // Since Linux 2.6.12; a process may always read those of its threads.
    whole_nanos(clock_gettime(clock).map(Duration::from).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_what_a_thread_ran_for_a_socket() {
        let busy = Busy::new(2);
        let tid = nix::unistd::gettid().as_raw();
        run_for(Duration::from_millis(3));
        assert_eq!(busy.of(0, tid), Duration::ZERO, "nothing has come yet");
        busy.turn_to(Some(0));
        run_for(Duration::from_millis(3));
        busy.turn_to(Some(0));
        let so_far = busy.of(0, tid);
        assert!((Duration::from_millis(3)..Duration::from_millis(30)).contains(&so_far), "{so_far:?}");
        busy.turn_to(Some(1));
        let first = busy.of(0, tid);
        assert!(first >= so_far, "{first:?}");
        run_for(Duration::from_millis(3));
        busy.turn_to(None);
        let second = busy.of(1, tid);
        assert!((Duration::from_millis(3)..Duration::from_millis(30)).contains(&second), "{second:?}");
        run_for(Duration::from_millis(3));
        assert_eq!((busy.of(0, tid), busy.of(1, tid)), (first, second), "there were none meanwhile");
    }

    #[test]
    fn another_thread_s_clock_stands_while_that_sleeps() {
        let busy = Busy::new(1);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            scope.spawn({
                let busy = &busy;
                move || {
                    busy.turn_to(Some(0));
                    run_for(Duration::from_millis(3));
                    tell.send(nix::unistd::gettid().as_raw()).unwrap();
                    ended.recv().unwrap_or_default();
                }
            });
            let tid = told.recv().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let before = busy.of(0, tid);
            assert!(before >= Duration::from_millis(3), "{before:?}");
            std::thread::sleep(Duration::from_millis(50));
            let after = busy.of(0, tid);
            assert!(after - before < Duration::from_millis(10), "{before:?} {after:?}");
            drop(end);
        });
    }

    /// Runs for this time of the thread's own.
    fn run_for(time: Duration) {
        let until = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) + u64::try_from(time.as_nanos()).unwrap();
        while clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) < until {}
    }
}
