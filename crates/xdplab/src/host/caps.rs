//! The capabilities of this process (capabilities(7)).

use std::fmt;
use std::fs;

use crate::error::{Error, Result};

const STATUS: &str = "/proc/thread-self/status";

/// A capability that some part of xdplab needs; the number is its bit (`include/uapi/linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// `CAP_NET_ADMIN`: attach XDP programs, configure interfaces.
    NetAdmin = 12,
    /// `CAP_NET_RAW`: open AF_XDP and packet sockets.
    NetRaw = 13,
    /// `CAP_SYS_ADMIN`: make and enter network namespaces. Stands for `CAP_BPF` and `CAP_PERFMON` too.
    SysAdmin = 21,
    /// `CAP_SYS_RESOURCE`: raise hard resource limits; xdplab does not need it.
    SysResource = 24,
    /// `CAP_PERFMON` (Linux 5.8): attach to tracepoints, read kernel memory in BPF programs.
    Perfmon = 38,
    /// `CAP_BPF` (Linux 5.8): load BPF programs, make maps.
    Bpf = 39,
}

/// The effective capabilities of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveCaps(u64);

impl Capability {
    /// All that are known here, in the order of the kernel's numbers.
    pub const ALL: [Self; 6] =
        [Self::NetAdmin, Self::NetRaw, Self::SysAdmin, Self::SysResource, Self::Perfmon, Self::Bpf];

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl EffectiveCaps {
    /// Those of the calling thread.
    ///
    /// # Errors
    /// `/proc/thread-self/status` can't be read or has no `CapEff` line.
    pub fn read() -> Result<Self> {
        let status = fs::read_to_string(STATUS).map_err(|error| Error::io(format!("read {STATUS}"), "read", &error))?;
        Self::parse(&status).ok_or_else(|| Error::invalid(format!("read {STATUS}"), "it has no CapEff line"))
    }

    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self(0)
    }

    fn parse(status: &str) -> Option<Self> {
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(mask.trim(), 16).ok().map(Self)
    }

    /// Whether the thread may do what `capability` allows. `CAP_SYS_ADMIN` stands for `CAP_BPF` and `CAP_PERFMON`, as
    /// in the kernel's `bpf_capable()` and `perfmon_capable()`.
    #[must_use]
    pub fn allows(self, capability: Capability) -> bool {
        let by_admin = matches!(capability, Capability::Bpf | Capability::Perfmon) && self.holds(Capability::SysAdmin);
        self.holds(capability) || by_admin
    }

    fn holds(self, capability: Capability) -> bool {
        self.0 >> capability as u8 & 1 == 1
    }

    /// Succeeds if all that `what` needs is allowed.
    ///
    /// # Errors
    /// One line that names what is missing.
    pub fn require(self, what: &str, needed: &[Capability]) -> Result<()> {
        let missing: Vec<_> =
            needed.iter().filter(|&&capability| !self.allows(capability)).map(|capability| capability.name()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(what, format!("this process lacks {}", missing.join(", "))).remedy("run it as root"))
    }
}

/// Succeeds if this thread may load, attach and trace: `CAP_BPF`, `CAP_NET_ADMIN`, `CAP_PERFMON`.
///
/// # Errors
/// One line that names what is missing, or the capabilities can't be read.
pub fn require_privileges() -> Result<()> {
    EffectiveCaps::read()?
        .require("load and attach XDP programs", &[Capability::Bpf, Capability::NetAdmin, Capability::Perfmon])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(mask: &str) -> EffectiveCaps {
        EffectiveCaps::parse(&format!("Name:\tx\nCapPrm:\tffff\nCapEff:\t{mask}\nCapBnd:\t0\n")).unwrap()
    }

    #[test]
    fn what_is_missing_is_named_in_one_line_with_the_remedy() {
        let needed = [Capability::Bpf, Capability::NetAdmin, Capability::Perfmon];
        let error = caps("0000000000001000").require("load and attach XDP programs", &needed).unwrap_err();
        assert_eq!(
            error.to_string(),
            "can't load and attach XDP programs: this process lacks CAP_BPF, CAP_PERFMON; run it as root"
        );
        caps("000000c000001000").require("load", &needed).unwrap();
    }

    #[test]
    fn cap_sys_admin_stands_for_bpf_and_perfmon_and_nothing_else() {
        let admin = caps("0000000000200000");
        let allowed: Vec<_> = Capability::ALL.into_iter().filter(|&capability| admin.allows(capability)).collect();
        assert_eq!(allowed, [Capability::SysAdmin, Capability::Perfmon, Capability::Bpf]);
    }

    #[test]
    fn a_status_without_capabilities_is_no_empty_set() {
        assert_eq!(EffectiveCaps::parse("Name:\tx\n"), None);
        assert_eq!(EffectiveCaps::parse("CapEff:\tzz\n"), None);
    }

    #[test]
    fn this_thread_has_a_readable_set() {
        EffectiveCaps::read().unwrap();
    }
}
