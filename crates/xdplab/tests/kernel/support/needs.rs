//! What tests need of the kernel, of the machine, and of how they are run.

use std::fs;
use std::process::Command;

use nix::errno::Errno;
use xdplab::ErrorKind;
use xdplab::generator::{LiveFrames, LiveFramesSpec, Rewrite};
use xdplab::netlink::Netdev;
use xdplab::topology::NetNs;
use xsk::{Config, Socket, Umem, UmemConfig};

use super::emulated;

/// The first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// Something that a test can't do without.
pub(crate) struct Need {
    pub(crate) name: &'static str,
    pub(crate) probe: fn() -> Probe,
}

/// Whether a need is met.
pub(crate) enum Probe {
    Met,
    /// This process can't do it: want of rights, a limit, anything that is a matter of how the tests are run.
    Prevented(String),
    /// The kernel or the machine can't do it, whoever asks.
    Lacking(String),
}

impl Probe {
    /// Judges an attempt: only the errors by which the kernel says that it does not know a thing count as its lack.
    pub(crate) fn of<T>(attempt: xdplab::Result<T>) -> Self {
        const UNKNOWN: [Errno; 5] =
            [Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::EINVAL, Errno::ENOENT, Errno::EAFNOSUPPORT];
        let Err(error) = attempt else { return Self::Met };
        let lacking = matches!(error.kind(), ErrorKind::Unsupported(_))
            || error.errno().is_some_and(|errno| UNKNOWN.contains(&errno));
        if lacking { Self::Lacking(error.to_string()) } else { Self::Prevented(error.to_string()) }
    }
}

/// Network namespaces can be made.
pub(crate) const NETNS: Need = Need { name: "network namespaces", probe: || Probe::of(NetNs::new()) };

/// XDP programs can be loaded, and the kernel makes live frames.
pub(crate) const BPF: Need = Need { name: "live frames", probe: || Probe::of(send_one()) };

/// Sends a frame to the loopback interface of an empty namespace, which takes none.
fn send_one() -> xdplab::Result<()> {
    let rewrite = Rewrite::default();
    let spec = LiveFramesSpec { frame: vec![0; 60], ifindex: 1, cpus: vec![0], batch: 1, count: Some(1), rewrite };
    LiveFrames::start(&spec, &NetNs::new()?)?.wait().map(|_sent| ())
}

/// There are tap interfaces.
pub(crate) const TAP: Need = Need {
    name: "tap interfaces",
    probe: || match fs::exists("/dev/net/tun") {
        Ok(true) => Probe::Met,
        _ => Probe::Lacking("there is no /dev/net/tun".to_owned()),
    },
};

/// The machine has two CPUs.
pub(crate) const TWO_CPUS: Need = Need {
    name: "two CPUs",
    probe: || match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() >= 2 => Probe::Met,
        _ => Probe::Lacking("there is one".to_owned()),
    },
};

/// Live frames may be given back by another CPU than the one that sends them, in numbers.
pub(crate) const RETURNS_BY_OTHERS: Need = Need {
    name: "live frames given back by another CPU",
    probe: || match is_before(6, 2) {
        true => Probe::Lacking("Linux 6.1 was seen to crash in page_pool_refill_alloc_cache()".to_owned()),
        false => Probe::Met,
    },
};

/// Times mean something.
pub(crate) const REAL_TIME: Need = Need {
    name: "real time",
    probe: || if emulated() { Probe::Lacking("timing under emulation means nothing".to_owned()) } else { Probe::Met },
};

/// Commands can be given to a shell.
pub(crate) const SHELL: Need = Need {
    name: "a shell",
    probe: || match Command::new("sh").args(["-c", ":"]).status() {
        Ok(status) if status.success() => Probe::Met,
        Ok(status) => Probe::Prevented(status.to_string()),
        Err(error) => Probe::Lacking(format!("sh: {error}")),
    },
};

/// The kernel tells what XDP can do on an interface (the netlink family `netdev`, Linux 6.3).
pub(crate) const XDP_FEATURES: Need =
    Need { name: "what XDP can do on an interface", probe: || Probe::of(Netdev::open()) };

/// Whether redirects to a peer that takes none are refused (`EOPNOTSUPP`). Before Linux 6.3, which has no features to look at, frames
/// get to its driver, which refuses them (`ENXIO`).
pub(crate) fn refuses_redirects_to_deaf_peers() -> bool {
    Netdev::open().is_ok()
}

/// The kernel lists queues and NAPI instances, with their threads (Linux 6.8).
pub(crate) const NAPI_LIST: Need = Need {
    name: "a list of NAPI instances",
    probe: || Probe::of(NetNs::new().and_then(|netns| netns.run(|| Netdev::open()?.napis(LOOPBACK)))),
};

/// AF_XDP sockets take packets of several frames (`XDP_USE_SG`, Linux 6.6).
pub(crate) const XSK_FRAGS: Need = Need {
    name: "AF_XDP packets of several frames",
    probe: || {
        let umem = Umem::new(UmemConfig { frames: 2, ..UmemConfig::default() }).unwrap();
        let config = Config { multi_buffer: true, ..Config::default() };
        let bind = || NetNs::new()?.run(|| Ok(Socket::bind(&umem, LOOPBACK, 0, &config).map(drop)));
        match bind() {
            Ok(Ok(())) => Probe::Met,
            // The answer to a flag that the kernel does not know.
            Ok(Err(error)) if error.errno() == Some(Errno::EINVAL as i32) => Probe::Lacking(error.to_string()),
            Ok(Err(error)) => Probe::Prevented(error.to_string()),
            Err(error) => Probe::of::<()>(Err(error)),
        }
    },
};

/// The kernel's own packet generator is loaded.
pub(crate) const PKTGEN: Need = Need {
    name: "pktgen",
    probe: || match NetNs::new().and_then(|netns| netns.run(|| Ok(fs::exists("/proc/thread-self/net/pktgen/pgctrl")))) {
        Ok(Ok(true)) => Probe::Met,
        Ok(_) if module_is_installed("pktgen") => Probe::Prevented("modprobe pktgen".to_owned()),
        Ok(_) => Probe::Lacking("there is no such module".to_owned()),
        Err(error) => Probe::of::<()>(Err(error)),
    },
};

/// Whether the kernel comes before this release, for what no probe can tell.
pub(crate) fn is_before(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap()) < (major, minor)
}

fn module_is_installed(name: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let modules = fs::read_to_string(format!("/lib/modules/{}/modules.dep", release.trim())).unwrap_or_default();
    modules.lines().any(|line| line.contains(&format!("/{name}.ko")))
}
