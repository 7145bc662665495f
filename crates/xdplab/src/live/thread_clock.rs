//! How long threads have run.

use std::fs;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::reading::Reading;

/// A thread whose run time is read.
#[derive(Clone, Debug)]
pub(super) struct ThreadClock {
    /// The directory of the thread in `/proc`.
    proc: String,
}

impl ThreadClock {
    /// A thread of this process.
    pub(super) fn of_thread(tid: i32) -> Self {
        Self { proc: format!("/proc/self/task/{tid}") }
    }

    /// The first thread of a process, as those of the kernel have no other.
    pub(super) fn of_process(pid: u32) -> Self {
        Self { proc: format!("/proc/{pid}") }
    }

    /// The kernel thread that takes packets out of the queue to `cpu` of the cpumap with this id (kernel/bpf/cpumap.c).
    pub(super) fn of_cpumap(cpu: u32, map_id: u32) -> Reading<Self> {
        Self::named(&format!("cpumap/{cpu}/map:{map_id}"))
    }

    fn named(name: &str) -> Reading<Self> {
        // Before 5.17 the kernel keeps 15 characters of a name (TASK_COMM_LEN); which thread is meant is unsure then.
        let entries = match fs::read_dir("/proc") {
            Ok(entries) => entries,
            Err(error) => return Reading::not_available(format!("/proc: {error}")),
        };
        let found = entries
            .filter_map(|entry| entry.ok()?.path().to_str().map(str::to_owned))
            .find(|proc| fs::read_to_string(format!("{proc}/comm")).is_ok_and(|comm| comm.trim_end() == name));
        found.map(|proc| Self { proc }).ok_or_else(|| format!("there is no thread {name}")).into()
    }

    /// How long it has run.
    pub(super) fn run_time(&self) -> Result<Duration> {
        let path = format!("{}/schedstat", self.proc);
        let text = fs::read_to_string(&path).map_err(|error| Error::io(format!("read {path}"), "read", &error))?;
        let run = text.split(' ').next().and_then(|field| field.parse().ok());
        run.map(Duration::from_nanos)
            .ok_or_else(|| Error::invalid(format!("read {path}"), format!("unexpected {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_clock_of_a_thread_runs_with_it_and_stands_while_it_sleeps() {
        let clock = ThreadClock::of_thread(nix::unistd::gettid().as_raw());
        let begin = clock.run_time().unwrap();
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until && clock.run_time().unwrap() - begin < Duration::from_millis(20) {}
        let busy = clock.run_time().unwrap() - begin;
        assert!(busy >= Duration::from_millis(10), "{busy:?}");
        std::thread::sleep(Duration::from_millis(200));
        let slept = clock.run_time().unwrap() - begin - busy;
        assert!(slept < Duration::from_millis(100), "{slept:?}");
    }

    #[test]
    fn a_thread_that_is_not_there_has_no_clock() {
        assert!(ThreadClock::of_cpumap(9999, u32::MAX).known().is_none());
    }
}
