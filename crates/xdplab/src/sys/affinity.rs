//! The CPUs that a thread may use.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// The CPUs that the calling thread may use, in their order.
///
/// # Errors
/// The kernel does not say.
pub(crate) fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))
        .map_err(|errno| Error::syscall("read the CPUs of this thread", "sched_getaffinity", errno))?;
    Ok((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
}

/// Keeps the calling thread on one CPU; dropping it gives the thread its CPUs back. Drop it on the same thread.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// # Errors
    /// The CPU is not there, offline or not in the cpuset.
    pub(crate) fn to(cpu: usize) -> Result<Self> {
        let this_thread = Pid::from_raw(0);
        let error = |call, errno| {
            Error::syscall(format!("run on CPU {cpu} alone"), call, errno)
                .remedy("choose a CPU that is present, online and allowed")
        };
        let before = sched_getaffinity(this_thread).map_err(|errno| error("sched_getaffinity", errno))?;
        let mut set = CpuSet::new();
        set.set(cpu)
            .and_then(|()| sched_setaffinity(this_thread, &set))
            .map_err(|errno| error("sched_setaffinity", errno))?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The CPUs were allowed before; if they no longer are, the kernel has chosen others and nothing can be done.
        sched_setaffinity(Pid::from_raw(0), &self.before).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_cpus_back_and_an_absent_cpu_is_refused() {
        let cpus = || sched_getaffinity(Pid::from_raw(0)).unwrap();
        let before = cpus();
        let first = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu).unwrap()).unwrap();
        let pinned = Pinned::to(first).unwrap();
        assert_eq!((0..CpuSet::count()).filter(|cpu| cpus().is_set(*cpu).unwrap()).collect::<Vec<_>>(), [first]);
        drop(pinned);
        assert_eq!(cpus(), before);
        assert!(Pinned::to(99_999).unwrap_err().to_string().contains("run on CPU 99999 alone"));
        assert_eq!(cpus(), before);
    }
}
