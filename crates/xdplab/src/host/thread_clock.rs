//! How long threads have run.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::reading::Reading;

/// A thread whose run time is read.
#[derive(Clone, Debug)]
pub(crate) struct ThreadClock {
    /// The directory of the thread in `/proc`.
    proc: String,
}

impl ThreadClock {
    /// The thread with this number, such as one of the kernel's.
    pub(crate) fn of_process(pid: u32) -> Self {
        Self { proc: format!("/proc/{pid}") }
    }

    /// The kernel thread that takes packets out of the queue to `cpu` of the cpumap with this id.
    pub(crate) fn of_cpumap(cpu: u32, map_id: u32) -> Reading<Self> {
        Self::of_cpumaps().and_then(|mut threads| {
            let clock = threads.remove(&(map_id, cpu));
            clock.ok_or_else(|| format!("there is no thread cpumap/{cpu}/map:{map_id}")).into()
        })
    }

    /// The kernel threads that take packets out of the queues of cpumaps, by the map's id and the CPU (kernel/bpf/cpumap.c,
    /// `__cpu_map_entry_alloc`). Before 5.17 the kernel keeps 15 characters of a name (`TASK_COMM_LEN`), and those of maps
    /// with long ids are not found.
    pub(crate) fn of_cpumaps() -> Reading<BTreeMap<(u32, u32), Self>> {
        let entries = match fs::read_dir("/proc") {
            Ok(entries) => entries,
            Err(error) => return Reading::not_available(format!("/proc: {error}")),
        };
        let threads = entries.filter_map(|entry| {
            let proc = entry.ok()?.path().to_str()?.to_owned();
            let name = fs::read_to_string(format!("{proc}/comm")).ok()?;
            Some((cpumap_of(name.trim_end())?, Self { proc }))
        });
        Reading::Known(threads.collect())
    }

    /// How long it has run.
    pub(crate) fn run_time(&self) -> Result<Duration> {
        let path = format!("{}/schedstat", self.proc);
        let text = fs::read_to_string(&path).map_err(|error| Error::io(format!("read {path}"), "read", &error))?;
        let run = text.split(' ').next().and_then(|field| field.parse().ok());
        run.map(Duration::from_nanos)
            .ok_or_else(|| Error::invalid(format!("read {path}"), format!("unexpected {text:?}")))
    }
}

/// Map and CPU of a thread's name, such as `cpumap/1/map:42`.
fn cpumap_of(name: &str) -> Option<(u32, u32)> {
    let (cpu, map_id) = name.strip_prefix("cpumap/")?.split_once("/map:")?;
    Some((map_id.parse().ok()?, cpu.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_clock_of_a_thread_runs_with_it_and_stands_while_it_sleeps() {
        let clock = ThreadClock::of_process(nix::unistd::gettid().as_raw().cast_unsigned());
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
    fn the_name_of_a_cpumap_s_thread_tells_its_map_and_its_cpu() {
        assert_eq!(cpumap_of("cpumap/12/map:345"), Some((345, 12)));
        for other in ["cpumap/1", "cpumap/x/map:1", "kworker/0:1", ""] {
            assert_eq!(cpumap_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_thread_that_is_not_there_has_no_clock() {
        assert!(ThreadClock::of_cpumap(9999, u32::MAX).known().is_none());
    }
}
