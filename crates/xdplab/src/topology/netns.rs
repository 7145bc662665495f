//! Network namespaces without a name: an open file descriptor is all that holds one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

use super::sysfs::Sysfs;
use crate::error::{Error, Result};
use crate::netlink::Rtnl;

/// The number of the loopback interface, the first of every namespace (`LOOPBACK_IFINDEX`, `include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;

/// A network namespace. Those made by [`NetNs::new`] have no name and no mount: the kernel removes them, and every virtual
/// interface in them, once the last file descriptor, socket and thread is gone, also after SIGKILL.
#[derive(Debug)]
pub struct NetNs {
    file: File,
    inode: u64,
}

impl NetNs {
    /// Makes an empty namespace with its loopback interface up.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub fn new() -> Result<Self> {
        let what = "make a network namespace";
        // A thread of its own enters the new namespace, so that no other thread ever leaves the one it is in.
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| needs_root(Error::syscall(what, "unshare(CLONE_NEWNET)", errno)))?;
            Rtnl::open()?.set_up(LOOPBACK_IFINDEX)?;
            Self::current()
        })
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// If `/proc` is not there.
    pub fn current() -> Result<Self> {
        let path = "/proc/thread-self/ns/net";
        let open = || -> io::Result<Self> {
            let file = File::open(path)?;
            let inode = file.metadata()?.ino();
            Ok(Self { file, inode })
        };
        open().map_err(|error| Error::io(format!("open {path}"), "openat", &error))
    }

    /// The namespace that an open file stands for.
    ///
    /// # Errors
    /// The file can't be looked at.
    pub(super) fn from_file(file: File) -> Result<Self> {
        let metadata = file.metadata().map_err(|error| Error::io("open a network namespace", "fstat", &error))?;
        Ok(Self { file, inode: metadata.ino() })
    }

    /// The number that tells this namespace from every other, as `readlink /proc/PID/ns/net` and `lsns` show it.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// A second handle on the same namespace, which lives as long as one of them does.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn try_clone(&self) -> Result<Self> {
        let what = || format!("hold network namespace {} once more", self.inode);
        let file = self.file.try_clone().map_err(|error| Error::io(what(), "fcntl(F_DUPFD_CLOEXEC)", &error))?;
        Ok(Self { file, inode: self.inode })
    }

    /// Moves the calling thread into the namespace for good. Sockets made before stay where they were made.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
            needs_root(Error::syscall(format!("enter network namespace {}", self.inode), "setns(CLONE_NEWNET)", errno))
        })
    }

    /// Runs `work` on a thread that has entered the namespace, and waits for it. The thread starts with the CPU affinity
    /// of the calling one.
    ///
    /// # Errors
    /// What `work` returns, or that the namespace can't be entered.
    ///
    /// # Panics
    /// If `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// A netlink socket of the namespace; it can be used from any thread.
    ///
    /// # Errors
    /// If the namespace can't be entered or the kernel gives no socket.
    pub fn rtnl(&self) -> Result<Rtnl> {
        self.run(Rtnl::open)
    }

    /// The sysfs that shows the namespace's interfaces.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, or before Linux 5.2.
    pub fn sysfs(&self) -> Result<Sysfs> {
        self.run(Sysfs::mount)
    }
}

impl AsRawFd for NetNs {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs `work` on a thread of its own, for what changes the thread it runs on.
pub(super) fn on_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .spawn_scoped(scope, work)
            .map_err(|error| Error::io("start a thread", "pthread_create", &error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn needs_root(error: Error) -> Error {
    if error.errno() == Some(Errno::EPERM) { error.remedy("run as root, or with CAP_SYS_ADMIN") } else { error }
}
