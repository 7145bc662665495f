//! What a measuring process holds of the kernel, seen from outside, and whether it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd as _;

use super::eventually;
use crate::topology::Tether;

/// What a process holds while it measures on a lab.
pub(crate) struct Held {
    programs: BTreeSet<u32>,
    links: BTreeSet<u32>,
    namespaces: Vec<Tether>,
}

impl Held {
    /// What process `pid` holds now: programs, links (the dispatcher's, the observers'), and both namespaces.
    pub(crate) fn by(pid: u32) -> Self {
        let (programs, links) = (ids(pid, "prog_id"), ids(pid, "link_id"));
        assert!(programs.len() > 8 && links.len() > 2, "{programs:?} {links:?}");
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|fd| fd.unwrap().path());
        let namespaces: BTreeMap<_, _> = fds
            .filter_map(|fd| Some((fs::read_link(&fd).ok()?, fd)))
            .filter(|(link, _)| link.to_string_lossy().starts_with("net:"))
            .collect();
        assert_eq!(namespaces.len(), 2, "{namespaces:?}");
        let namespaces: Vec<_> = namespaces.values().map(|fd| Tether::to(File::open(fd).unwrap().as_fd())).collect();
        assert!(namespaces.iter().all(Tether::holds));
        Self { programs, links, namespaces }
    }

    /// Waits until the kernel has nothing of it any more.
    pub(crate) fn is_gone(&self) {
        eventually("every program is gone", 20, || {
            !aya::programs::loaded_programs()
                .filter_map(Result::ok)
                .any(|program| self.programs.contains(&program.id()))
        });
        eventually("every link is gone", 20, || {
            !aya::programs::loaded_links().filter_map(Result::ok).any(|link| self.links.contains(&link.id()))
        });
        eventually("both namespaces are gone", 20, || !self.namespaces.iter().any(Tether::holds));
    }
}

/// The numbers that a process's file descriptors show under `field` in /proc/PID/fdinfo.
fn ids(pid: u32, field: &str) -> BTreeSet<u32> {
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let infos: Vec<String> = infos.filter_map(|info| fs::read_to_string(info.unwrap().path()).ok()).collect();
    let lines = infos.iter().flat_map(|info| info.lines());
    lines.filter_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok()).collect()
}
