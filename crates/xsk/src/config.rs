//! How a socket is bound.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::uapi;

/// How packets get between the device and the umem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindMode {
    /// Zero-copy where the driver has it, else copy. [`crate::Socket::mode`] says which it became.
    #[default]
    Auto,
    /// The kernel copies each packet (`XDP_COPY`); any interface.
    #[doc(alias = "XDP_COPY")]
    Copy,
    /// The device reads and writes the umem (`XDP_ZEROCOPY`); bind fails if the driver cannot.
    #[doc(alias = "XDP_ZEROCOPY")]
    ZeroCopy,
}

/// The mode a socket was bound in, as the kernel tells (`XDP_OPTIONS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "XDP_OPTIONS")]
pub enum Mode {
    /// The kernel copies each packet.
    Copy,
    /// The device reads and writes the umem.
    ZeroCopy,
}

/// Busy polling: the application's calls run the driver instead of interrupts. Linux 5.11.
///
/// [`crate::FillRing::wake`] is the call that polls. To keep interrupts off, also set the interface's `napi_defer_hard_irqs`
/// and `gro_flush_timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long a call polls without packets (`SO_BUSY_POLL`), to the microsecond.
    #[doc(alias = "SO_BUSY_POLL")]
    pub time: Duration,
    /// Most packets of one poll (`SO_BUSY_POLL_BUDGET`).
    #[doc(alias = "SO_BUSY_POLL_BUDGET")]
    pub budget: u16,
    /// Let interrupts wait while the application polls (`SO_PREFER_BUSY_POLL`).
    #[doc(alias = "SO_PREFER_BUSY_POLL")]
    pub prefer: bool,
}

impl Default for BusyPoll {
    /// 20 µs, 64 packets, preferred: the values of the kernel's documentation (networking/af_xdp.rst).
    fn default() -> Self {
        Self { time: Duration::from_micros(20), budget: 64, prefer: true }
    }
}

/// How a socket is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Entries of the fill ring, a power of two.
    pub fill_ring: u32,
    /// Entries of the Rx ring, a power of two; 0 for a socket that only sends.
    pub rx_ring: u32,
    /// Entries of the Tx ring, a power of two; 0 for a socket that only receives.
    pub tx_ring: u32,
    /// Entries of the completion ring, a power of two.
    pub completion_ring: u32,
    /// Copy or zero-copy. A socket that shares a umem takes over the mode of the first.
    pub mode: BindMode,
    /// The kernel says when it must be woken (`XDP_USE_NEED_WAKEUP`).
    #[doc(alias = "XDP_USE_NEED_WAKEUP")]
    pub need_wakeup: bool,
    /// Packets may span several frames (`XDP_USE_SG`). Linux 6.6. The XDP program must take fragments as well.
    #[doc(alias = "XDP_USE_SG")]
    pub multi_buffer: bool,
    /// Most packets that one [`crate::TxRing::wake`] call sends in copy mode (`XDP_MAX_TX_SKB_BUDGET`), from 32, which it
    /// is without, up to the entries of the Tx ring. Linux 6.17; older ones stay at 32.
    #[doc(alias = "XDP_MAX_TX_SKB_BUDGET")]
    pub tx_budget: Option<u32>,
    /// Busy polling.
    pub busy_poll: Option<BusyPoll>,
    /// How long to retry while another socket holds the queue; the kernel frees a queue some milliseconds after its
    /// socket was closed.
    pub bind_timeout: Duration,
}

impl Default for Config {
    /// 2048 entries a ring, mode `Auto`, need-wakeup, single buffers, no busy polling, one second for the bind.
    fn default() -> Self {
        Self {
            fill_ring: 2048,
            rx_ring: 2048,
            tx_ring: 2048,
            completion_ring: 2048,
            mode: BindMode::Auto,
            need_wakeup: true,
            multi_buffer: false,
            tx_budget: None,
            busy_poll: None,
            bind_timeout: Duration::from_secs(1),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("fill ring", self.fill_ring, false),
            ("Rx ring", self.rx_ring, true),
            ("Tx ring", self.tx_ring, true),
            ("completion ring", self.completion_ring, false),
        ];
        for (ring, size, optional) in sizes {
            if !(size.is_power_of_two() || optional && size == 0) {
                return Err(Error::config(ring, format!("{size} entries"), "choose a power of two"));
            }
        }
        if self.rx_ring == 0 && self.tx_ring == 0 {
            return Err(Error::config("Rx ring, Tx ring", "both have no entries", "give one of them entries"));
        }
        Ok(())
    }

    pub(crate) fn bind_flags(&self) -> u16 {
        let mode = match self.mode {
            BindMode::Auto => 0,
            BindMode::Copy => uapi::XDP_COPY,
            BindMode::ZeroCopy => uapi::XDP_ZEROCOPY,
        };
        let need_wakeup = if self.need_wakeup { uapi::XDP_USE_NEED_WAKEUP } else { 0 };
        let multi_buffer = if self.multi_buffer { uapi::XDP_USE_SG } else { 0 };
        mode | need_wakeup | multi_buffer
    }
}
