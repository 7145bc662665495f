//! Labs with a name, which outlive the process that makes them: their namespaces are where `ip netns` looks for them.
//!
//! A file for each lab says what belongs to it, and is there before anything is made. It is locked while the lab is made or
//! taken down, so that a lab whose maker was killed shows: its file is not locked, and does not say that the lab is complete.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use rustix::fs::fstatfs;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use serde::{Deserialize, Serialize};

use super::netns::NetNs;
use super::network::Network;
use super::network_file::{NetworkSpec, check_name};
use crate::error::{Error, Result};
use crate::record::now;

/// The schema of a lab's file.
const SCHEMA: &str = "xdplab.lab/1";
/// Where the files of labs are, unless `XDPLAB_RUN_DIR` names another folder.
const FOLDER: &str = "/run/xdplab/labs";
/// Where `ip netns` keeps namespaces (`NETNS_RUN_DIR` of iproute2).
const NETNS_FOLDER: &str = "/run/netns";
/// The number of the loopback interface (`LOOPBACK_IFINDEX`, `include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;
/// `NSFS_MAGIC`, `include/uapi/linux/magic.h`: the file system of namespaces.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// The named labs of this machine.
#[derive(Clone, Debug)]
pub struct NamedLabs {
    folder: PathBuf,
}

/// A lab as its file tells it; the first line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedLab {
    schema: String,
    /// Its name.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// When somebody began to make it, RFC 3339.
    pub started: String,
    /// Its namespaces.
    pub namespaces: Vec<NamedNamespace>,
}

/// A namespace of a named lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedNamespace {
    /// Its name in the lab.
    pub name: String,
    /// Its name for `ip netns`.
    pub netns: String,
    /// The interfaces that were made in it.
    pub interfaces: Vec<String>,
}

/// The second line of a lab's file.
#[derive(Serialize, Deserialize)]
struct Complete {
    /// When it was complete, RFC 3339.
    complete: String,
}

/// A lab that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// What belongs to it.
    #[serde(flatten)]
    pub lab: NamedLab,
    /// How it is.
    pub status: Status,
}

/// How a lab is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All of it is there.
    Up,
    /// A process is making it or taking it down.
    Changing,
    /// It is not whole, for this reason.
    Stale(String),
}

/// What was taken down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenDown {
    /// Processes that are still in one of its namespaces, which lives on without a name and without links until they end.
    pub processes: Vec<u32>,
    /// Names of `ip netns` that the lab's file claims and that are somebody else's; they were left alone.
    pub foreign: Vec<String>,
}

impl NamedLabs {
    /// Those of this machine: files in `$XDPLAB_RUN_DIR` or `/run/xdplab/labs`.
    #[must_use]
    pub fn of_machine() -> Self {
        let folder = std::env::var_os("XDPLAB_RUN_DIR").filter(|folder| !folder.is_empty());
        Self { folder: folder.map_or(FOLDER.into(), PathBuf::from) }
    }

    /// Those whose files are in this folder.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Makes a lab.
    ///
    /// # Errors
    /// There is one of this name, one of its namespaces is there already, or the kernel can't hold what `spec` asks for;
    /// then nothing is left behind.
    pub fn up(&self, name: &str, spec: &NetworkSpec) -> Result<NamedLab> {
        let what = || format!("make the lab {name}");
        check_name(name).map_err(|why| Error::usage(what(), why))?;
        let lab = NamedLab::planned(name, spec);
        for namespace in &lab.namespaces {
            if namespace.path().symlink_metadata().is_ok() {
                let why = format!("there is a network namespace {} already", namespace.netns);
                return Err(Error::usage(what(), why).remedy("give the lab another name, or see ip netns"));
            }
        }
        let folders = [self.folder.as_path(), Path::new(NETNS_FOLDER)];
        for folder in folders {
            fs::create_dir_all(folder).map_err(|error| {
                Error::io(format!("make the folder {}", folder.display()), "mkdir", &error).remedy("run as root")
            })?;
        }
        let mut file = self.create(name)?;
        let making = Making { labs: self, lab: &lab };
        append(&mut file, &lab)?;
        lab.make(spec)?;
        append(&mut file, &Complete { complete: now() })?;
        std::mem::forget(making);
        Ok(lab)
    }

    /// Every lab.
    ///
    /// # Errors
    /// The folder or a file in it can't be read.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for name in self.names()? {
            let Some(file) = self.open(&name)? else { continue };
            let changing = is_locked(&file)?;
            let (lab, is_complete) = read(&name, &file)?;
            let status = match lab.missing() {
                _ if changing => Status::Changing,
                _ if !is_complete => Status::Stale("the process that made it was killed".into()),
                Some(netns) => Status::Stale(format!("its namespace {netns} is gone")),
                None => Status::Up,
            };
            listed.push(Listed { lab, status });
        }
        Ok(listed)
    }

    /// Takes a lab down, whole or not.
    ///
    /// # Errors
    /// There is none of this name, or it is being made or taken down.
    pub fn down(&self, name: &str) -> Result<TakenDown> {
        let what = format!("take the lab {name} down");
        let file = self.open(name)?.ok_or_else(|| self.none(&what, name))?;
        if !lock(&file)? {
            return Err(Error::invalid(what, "another process is making it or taking it down").remedy("try again"));
        }
        let down = read(name, &file)?.0.remove()?;
        self.forget(name)?;
        Ok(down)
    }

    /// Removes what is left of labs whose makers were killed, and of those whose namespaces are all gone; their names.
    ///
    /// # Errors
    /// A file can't be read, or something can't be removed.
    pub fn remove_stale(&self) -> Result<Vec<String>> {
        let mut removed = Vec::new();
        for name in self.names()? {
            let Some(file) = self.open(&name)? else { continue };
            if !lock(&file)? {
                continue;
            }
            let (lab, is_complete) = read(&name, &file)?;
            if is_complete && lab.namespaces.iter().any(|namespace| namespace.path().exists()) {
                continue;
            }
            lab.remove()?;
            self.forget(&name)?;
            removed.push(name);
        }
        Ok(removed)
    }

    /// A namespace of a lab.
    ///
    /// # Errors
    /// There is no such lab, it has no such namespace, or it is not whole.
    pub fn namespace(&self, lab: &str, name: &str) -> Result<NetNs> {
        let what = format!("find the namespace {name} of the lab {lab}");
        let file = self.open(lab)?.ok_or_else(|| self.none(&what, lab))?;
        let (lab, _) = read(lab, &file)?;
        let Some(namespace) = lab.namespaces.iter().find(|namespace| namespace.name == name) else {
            let known: Vec<&str> = lab.namespaces.iter().map(|namespace| namespace.name.as_str()).collect();
            return Err(Error::usage(what, format!("it has only {}", known.join(", "))));
        };
        namespace.open()?.ok_or_else(|| Error::invalid(what, format!("{} is not there", namespace.path().display())))
    }

    fn names(&self) -> Result<Vec<String>> {
        let what = || format!("list the folder {}", self.folder.display());
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| Error::io(what(), "openat", &error))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| Error::io(what(), "getdents", &error))?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// The file of a lab; none where there is no such lab.
    fn open(&self, name: &str) -> Result<Option<File>> {
        check_name(name).map_err(|why| Error::usage("find the lab", why))?;
        let path = self.path(name);
        match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("open {}", path.display()), "openat", &error)),
        }
    }

    /// A new file, locked.
    fn create(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        let what = || format!("make the file {}", path.display());
        loop {
            let file = match OpenOptions::new().append(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    let remedy = format!("give it another name, or first: xdplab lab down {name}");
                    return Err(
                        Error::usage(format!("make the lab {name}"), "there is one of this name").remedy(remedy)
                    );
                }
                file => file.map_err(|error| Error::io(what(), "openat", &error))?,
            };
            // Whoever took it for a stale one before it was locked removes it.
            file.lock().map_err(|error| Error::io(what(), "flock", &error))?;
            if is_linked(&file)? {
                return Ok(file);
            }
        }
    }

    fn forget(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        fs::remove_file(&path).map_err(|error| Error::io(format!("remove {}", path.display()), "unlink", &error))
    }

    fn none(&self, what: &str, name: &str) -> Error {
        let known = self.names().unwrap_or_default();
        let known =
            if known.is_empty() { "there is none".into() } else { format!("there is only {}", known.join(", ")) };
        Error::usage(what, format!("no lab is called {name}; {known}"))
    }
}

/// A lab that is being made; dropping it removes what there is of it.
struct Making<'a> {
    labs: &'a NamedLabs,
    lab: &'a NamedLab,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        // Whatever stays is found as a stale lab: the file goes last.
        drop(self.lab.remove().and_then(|_| self.labs.forget(&self.lab.name)));
    }
}

impl NamedLab {
    fn planned(name: &str, spec: &NetworkSpec) -> Self {
        let interfaces = |namespace: &str| {
            let ends = spec.ends().filter(|end| end.namespace.get_ref() == namespace).map(|end| &end.interface);
            let bridges = spec.bridges.iter().filter(|(_, bridge)| bridge.namespace.get_ref() == namespace);
            ends.chain(bridges.map(|(name, _)| name)).map(|name| name.get_ref().clone()).collect()
        };
        let namespaces = spec.namespaces.keys().map(|namespace| NamedNamespace {
            name: namespace.get_ref().clone(),
            netns: format!("{name}-{namespace}"),
            interfaces: interfaces(namespace.get_ref()),
        });
        Self {
            schema: SCHEMA.into(),
            name: name.into(),
            about: spec.about.clone(),
            started: now(),
            namespaces: namespaces.collect(),
        }
    }

    fn make(&self, spec: &NetworkSpec) -> Result<()> {
        let mut namespaces = BTreeMap::new();
        for namespace in &self.namespaces {
            namespaces.insert(namespace.name.clone(), namespace.make(&self.name)?);
        }
        Network::build_in(spec, namespaces)?.keep();
        Ok(())
    }

    /// The first namespace that is not there, by its name for `ip netns`.
    fn missing(&self) -> Option<&str> {
        let is_there =
            |namespace: &NamedNamespace| namespace.open().is_ok_and(|netns| is_of(netns.as_ref(), &self.name));
        self.namespaces.iter().find(|namespace| !is_there(namespace)).map(|namespace| namespace.netns.as_str())
    }

    /// Removes what there is of it.
    fn remove(&self) -> Result<TakenDown> {
        let mut down = TakenDown::default();
        for namespace in &self.namespaces {
            let path = namespace.path();
            match namespace.open()? {
                Some(netns) if is_of(Some(&netns), &self.name) => {
                    namespace.delete_links(&netns)?;
                    down.processes.extend(processes_in(&netns));
                    unmount_all(&path)?;
                }
                Some(_) => {
                    down.foreign.push(namespace.netns.clone());
                    continue;
                }
                None => {} // The maker was killed before the namespace was there.
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => {
                    removed.map_err(|error| Error::io(format!("remove {}", path.display()), "unlink", &error))?;
                }
            }
        }
        Ok(down)
    }
}

impl NamedNamespace {
    fn path(&self) -> PathBuf {
        Path::new(NETNS_FOLDER).join(&self.netns)
    }

    /// Makes the namespace, marks it as the lab's and gives it its name.
    fn make(&self, lab: &str) -> Result<NetNs> {
        let netns = NetNs::new()?;
        netns.rtnl()?.set_alias(LOOPBACK_IFINDEX, &mark(lab))?;
        let path = self.path();
        let what = || format!("give the network namespace the name {}", path.display());
        let created = OpenOptions::new().write(true).create_new(true).open(&path);
        created.map_err(|error| Error::io(what(), "openat", &error))?;
        mount_bind(format!("/proc/self/fd/{}", netns.as_raw_fd()), &path)
            .map_err(|errno| Error::syscall(what(), "mount", Errno::from_raw(errno.raw_os_error())))?;
        Ok(netns)
    }

    /// The namespace of this name; none where there is no such file, or it is no namespace.
    fn open(&self) -> Result<Option<NetNs>> {
        let path = self.path();
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| Error::io(format!("open {}", path.display()), "openat", &error))?,
        };
        let is_namespace = fstatfs(&file).is_ok_and(|system| u64::try_from(system.f_type) == Ok(NSFS_MAGIC));
        if is_namespace { NetNs::from_file(file).map(Some) } else { Ok(None) }
    }

    /// The namespace goes with its last process; its links are to go now.
    fn delete_links(&self, netns: &NetNs) -> Result<()> {
        let mut rtnl = netns.rtnl()?;
        for link in rtnl.links()?.into_iter().filter(|link| self.interfaces.contains(&link.name)) {
            match rtnl.delete_link(link.ifindex) {
                Err(error) if error.errno() == Some(Errno::ENODEV) => {} // It went with its other end.
                deleted => deleted?,
            }
        }
        Ok(())
    }
}

/// The alias of the loopback interface in each namespace of a lab.
fn mark(lab: &str) -> String {
    format!("xdplab lab {lab}")
}

fn is_of(netns: Option<&NetNs>, lab: &str) -> bool {
    let alias = netns.and_then(|netns| netns.rtnl().ok()?.link_by_index(LOOPBACK_IFINDEX).ok()?.alias);
    alias == Some(mark(lab))
}

/// Unmounts whatever is mounted there, once for each mount.
fn unmount_all(path: &Path) -> Result<()> {
    loop {
        match unmount(path, UnmountFlags::DETACH) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(errno) => {
                let errno = Errno::from_raw(errno.raw_os_error());
                return Err(Error::syscall(format!("unmount {}", path.display()), "umount2", errno));
            }
        }
    }
}

/// The processes that are in a namespace, as far as this process may see that.
fn processes_in(netns: &NetNs) -> Vec<u32> {
    let own = std::process::id();
    let link = format!("net:[{}]", netns.inode());
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(io::Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_in = |pid: &u32| fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|found| found == Path::new(&link));
    pids.filter(|pid| *pid != own && is_in(pid)).collect()
}

/// Locks a lab's file; not where somebody else has it locked, or removed it meanwhile.
fn lock(file: &File) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => is_linked(file),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(Error::io("lock the file of a lab", "flock", &error)),
    }
}

fn is_locked(file: &File) -> Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(Error::io("look whether a lab is being made", "flock", &error)),
    }
}

/// Whether the file is still in its folder.
fn is_linked(file: &File) -> Result<bool> {
    let metadata = file.metadata().map_err(|error| Error::io("look at the file of a lab", "fstat", &error))?;
    Ok(metadata.nlink() > 0)
}

/// Adds a line.
fn append(file: &mut File, value: &impl Serialize) -> Result<()> {
    let what = "write the file of a lab";
    let mut line = serde_json::to_vec(value).map_err(|error| Error::invalid(what, error.to_string()))?;
    line.push(b'\n');
    file.write_all(&line).map_err(|error| Error::io(what, "write", &error))
}

/// What a file tells, and whether it says that the lab is complete. One whose maker was killed before it had written a line
/// has nothing that belongs to it.
fn read(name: &str, mut file: &File) -> Result<(NamedLab, bool)> {
    let what = || format!("read the file of the lab {name}");
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| Error::io(what(), "read", &error))?;
    let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let Some(first) = lines.next() else {
        let nothing = NamedLab {
            schema: SCHEMA.into(),
            name: name.into(),
            about: String::new(),
            started: String::new(),
            namespaces: Vec::new(),
        };
        return Ok((nothing, false));
    };
    let lab: NamedLab = serde_json::from_str(first).map_err(|error| Error::invalid(what(), error.to_string()))?;
    if lab.schema != SCHEMA {
        let why = format!("its schema is `{}`, and this version reads {SCHEMA}", lab.schema);
        return Err(Error::usage(what(), why).remedy("take it down with the version that made it"));
    }
    Ok((lab, lines.next().is_some_and(|line| serde_json::from_str::<Complete>(line).is_ok())))
}
