//! The ioctl `SIOCETHTOOL`: driver information and statistics, which the `ethtool` netlink family does not give.

#![expect(unsafe_code, reason = "the ioctl reads and writes memory through a pointer in its argument")]

use std::ffi::c_char;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Numbers of `include/uapi/linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;
/// Room for counters beyond those announced. The kernel writes as many as there are at the time of the call, without
/// knowing the size of the memory it is given; there are more only if channels were added since they were counted.
const SPARE_STATS: usize = 4096;

/// Who drives an interface (`struct ethtool_drvinfo`); an empty text where the driver says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverInfo {
    /// The driver's name, e.g. `veth`.
    pub driver: String,
    /// The driver's version, for most drivers the kernel's.
    pub version: String,
    /// The version of the NIC's firmware.
    pub firmware_version: String,
    /// The NIC's place on its bus, e.g. `0000:03:00.0`.
    pub bus_info: String,
}

/// A counter of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistic {
    /// The driver's name for it, e.g. `rx_queue_0_xdp_drops`.
    pub name: String,
    /// Its value since the driver began to count.
    pub value: u64,
}

/// A socket for `SIOCETHTOOL` in one network namespace.
#[derive(Debug)]
pub struct EthtoolIoctl {
    socket: OwnedFd,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DrvInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    fw_version: [u8; 32],
    bus_info: [u8; 32],
    erom_version: [u8; 32],
    reserved2: [u8; 12],
    n_priv_flags: u32,
    n_stats: u32,
    testinfo_len: u32,
    eedump_len: u32,
    regdump_len: u32,
}

impl EthtoolIoctl {
    /// Opens a socket in the calling thread's network namespace; it keeps belonging to it.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn open() -> Result<Self> {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
            .map_err(|errno| Error::syscall("open a socket for ethtool", "socket(AF_INET)", errno))?;
        Ok(Self { socket })
    }

    /// Who drives the interface called `name`.
    ///
    /// # Errors
    /// If there is none, or the driver does not tell.
    pub fn driver_info(&self, name: &str) -> Result<DriverInfo> {
        let info = self.drv_info(name)?;
        Ok(DriverInfo {
            driver: text(&info.driver),
            version: text(&info.version),
            firmware_version: text(&info.fw_version),
            bus_info: text(&info.bus_info),
        })
    }

    /// The driver's counters of the interface called `name`, in its order; none where it has none.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn statistics(&self, name: &str) -> Result<Vec<Statistic>> {
        let what = format!("read the driver's statistics of {name}");
        let announced = self.drv_info(name)?.n_stats as usize;
        if announced == 0 {
            return Ok(Vec::new());
        }
        let room = announced + SPARE_STATS;
        // struct ethtool_gstrings { cmd, string_set, len, data[] } and struct ethtool_stats { cmd, n_stats, data[] }, in
        // units that give each its alignment.
        let mut strings = vec![0_u32; 3 + room * ETH_GSTRING_LEN / 4];
        strings[..2].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS]);
        // SAFETY: the kernel writes the header and `len` names of 32 bytes each; `room` is for more than there can be.
        unsafe { self.ioctl(&what, "ioctl(ETHTOOL_GSTRINGS)", name, strings.as_mut_ptr().cast()) }?;
        let mut stats = vec![0_u64; 1 + room];
        stats[0] = u64::from_ne_bytes(header(ETHTOOL_GSTATS, 0));
        // SAFETY: the kernel writes the header and `n_stats` values of 8 bytes each; `room` is for more than there can be.
        unsafe { self.ioctl(&what, "ioctl(ETHTOOL_GSTATS)", name, stats.as_mut_ptr().cast()) }?;
        let names = strings[3..].chunks(ETH_GSTRING_LEN / 4).take(strings[2] as usize);
        let [.., a, b, c, d] = stats[0].to_ne_bytes();
        let values = &stats[1..=(u32::from_ne_bytes([a, b, c, d]) as usize).min(room)];
        if names.len() != values.len() {
            return Err(Error::invalid(what, "their number changed while they were read").remedy("try again"));
        }
        Ok(names.zip(values).map(|(name, &value)| Statistic { name: name_of(name), value }).collect())
    }

    fn drv_info(&self, name: &str) -> Result<DrvInfo> {
        let what = format!("read the driver of {name}");
        let mut info = DrvInfo {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            version: [0; 32],
            fw_version: [0; 32],
            bus_info: [0; 32],
            erom_version: [0; 32],
            reserved2: [0; 12],
            n_priv_flags: 0,
            n_stats: 0,
            testinfo_len: 0,
            eedump_len: 0,
            regdump_len: 0,
        };
        // SAFETY: ETHTOOL_GDRVINFO writes one struct ethtool_drvinfo, which `info` is.
        unsafe { self.ioctl(&what, "ioctl(ETHTOOL_GDRVINFO)", name, (&raw mut info).cast()) }?;
        Ok(info)
    }

    /// # Safety
    /// `data` must point to a command and memory for all that the kernel answers it with.
    unsafe fn ioctl(&self, what: &str, call: &'static str, name: &str, data: *mut c_char) -> Result<()> {
        let mut request =
            libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: data } };
        if name.len() >= libc::IFNAMSIZ {
            return Err(Error::usage(what, format!("an interface name has at most {} bytes", libc::IFNAMSIZ - 1)));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        // SAFETY: SIOCETHTOOL takes a struct ifreq, whose ifru_data is valid by this function's contract.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
        Errno::result(result).map(|_| ()).map_err(|errno| Error::syscall(what, call, errno))
    }
}

fn header(first: u32, second: u32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    [a, b, c, d, e, f, g, h]
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn name_of(words: &[u32]) -> String {
    text(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
}
