//! sysfs of one network namespace, through a mount that is attached nowhere.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::{Error, Result};

/// A mounted sysfs that no path leads to; it goes with its file descriptor. `class/net/` below it shows the interfaces
/// of the namespace it was mounted in, which `/sys` of another mount namespace does not.
#[derive(Debug)]
pub struct Sysfs {
    root: OwnedFd,
}

impl Sysfs {
    /// Mounts the sysfs of the calling thread's network namespace (Linux 5.2 and later).
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, or on an older kernel.
    pub fn mount() -> Result<Self> {
        let mount = || -> rustix::io::Result<OwnedFd> {
            let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        let root = mount().map_err(|errno| {
            Error::syscall("mount sysfs", "fsmount", Errno::from_raw(errno.raw_os_error()))
                .remedy("run as root on Linux 5.2 or later")
        })?;
        Ok(Self { root })
    }

    /// The text of the attribute at `path` (relative, e.g. `class/net/dut0/threaded`) without the newline at its end.
    ///
    /// # Errors
    /// If it is not there or can't be read.
    pub fn read(&self, path: &str) -> Result<String> {
        let read = || -> io::Result<String> {
            let mut text = String::new();
            File::from(openat(&self.root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
                .read_to_string(&mut text)?;
            Ok(text.trim_end().to_owned())
        };
        read().map_err(|error| Error::io(format!("read /sys/{path}"), "read", &error))
    }

    /// Writes `value` to the attribute at `path`.
    ///
    /// # Errors
    /// If it is not there or the kernel refuses the value.
    pub fn write(&self, path: &str, value: &str) -> Result<()> {
        let write = || -> io::Result<()> {
            File::from(openat(&self.root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
                .write_all(value.as_bytes())
        };
        write().map_err(|error| Error::io(format!("write {value:?} to /sys/{path}"), "write", &error))
    }
}
