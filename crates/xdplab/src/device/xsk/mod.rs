//! AF_XDP: sockets on a queue, the thread that drops their packets or sends them back, and the program that gives packets to
//! them.

mod busy;
mod counts;
mod program;
mod sockets;
mod variant;
mod worker;

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use xsk::{BindMode, BusyPoll, Config, Pages, Umem, UmemConfig};

pub use counts::{KernelCounts, SocketCounts, SocketReading};
pub use program::{XskCounts, XskProgram};
pub use sockets::XskSockets;
pub use variant::XskVariant;

use crate::error::{Error, Result};

/// Frames of the umem where they are sent too, or several sockets receive; the fill ring has room for all of them.
const FRAMES: u32 = 4096;
/// Entries of every other ring.
const RING: u32 = 2048;

/// What to do with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum XskAction {
    /// Give the frames back to the kernel to receive into.
    Drop,
    /// Exchange the MAC addresses and send them back out of the queue.
    Tx,
}

impl XskAction {
    /// The name of the command, and of the specification.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::Drop => "xsk-drop",
            Self::Tx => "xsk-tx",
        }
    }
}

/// How packets get between device and umem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CopyMode {
    /// Zero-copy where the driver has it
    #[default]
    Auto,
    /// The kernel copies each packet
    Copy,
    /// The device reads and writes the umem
    ZeroCopy,
}

impl From<CopyMode> for BindMode {
    fn from(mode: CopyMode) -> Self {
        match mode {
            CopyMode::Auto => Self::Auto,
            CopyMode::Copy => Self::Copy,
            CopyMode::ZeroCopy => Self::ZeroCopy,
        }
    }
}

/// What the thread does with the packets of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handling {
    /// What to do with packets.
    pub action: XskAction,
    /// Most packets handled at once.
    pub batch: u32,
    /// Wait in poll(2) for packets, instead of looking for them all the time.
    pub poll: bool,
}

/// How the sockets of a queue are set up, and their thread. What a setting needs of the kernel is in [`xsk::Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own on the command line")]
pub struct XskSpec {
    /// The sockets, at least one; several share the umem.
    pub sockets: Vec<Handling>,
    /// The RX queue, whose packets alone are taken.
    pub queue: u32,
    /// Bytes a frame of the umem.
    pub frame_size: u32,
    /// The kernel says when it must be woken.
    pub need_wakeup: bool,
    /// Frames of any size, on huge pages if any are set aside.
    pub unaligned: bool,
    /// Busy polling of 20 us with a budget of one batch.
    pub busy_poll: bool,
    /// Packets of several frames.
    pub frags: bool,
    /// Copy or zero-copy.
    pub mode: BindMode,
    /// Run the thread as SCHED_FIFO with this priority.
    pub fifo: Option<u32>,
    /// Run the thread on this CPU alone.
    pub cpu: Option<u32>,
    /// After so long without a packet wait in poll(2) for the next one, even where the thread looks for packets all the time.
    pub rest_after: Option<Duration>,
}

impl XskSpec {
    /// Whether one of the sockets sends.
    fn sends(&self) -> bool {
        self.sockets.iter().any(|socket| socket.action == XskAction::Tx)
    }

    /// The largest batch.
    fn batch(&self) -> u32 {
        self.sockets.iter().map(|socket| socket.batch).max().unwrap_or(0)
    }

    fn check(&self) -> Result<()> {
        let most = if self.busy_poll { u32::from(u16::MAX) } else { u32::MAX };
        match self.sockets.iter().find(|socket| !(1..=most).contains(&socket.batch)) {
            Some(Handling { batch, .. }) => {
                Err(Error::usage("set up AF_XDP sockets", format!("a batch of {batch} packets is none"))
                    .remedy(format!("choose 1 to {most}")))
            }
            None => Ok(()),
        }
    }

    fn refused(&self, name: &str, error: &xsk::Error) -> Error {
        let what = format!("open AF_XDP sockets on {name} queue {}", self.queue);
        if self.mode == BindMode::ZeroCopy && error.errno() == Some(nix::libc::EOPNOTSUPP) {
            let why =
                format!("the driver has no zero-copy{}", if self.frags { " with several frames a packet" } else { "" });
            return Error::unsupported(what, why).remedy("use copy mode, or leave the choice to the kernel (-C auto)");
        }
        Error::invalid(what, error.to_string())
    }

    /// Frames go round in turn, each on pages of its own. One socket that drops has use for no more than its Rx ring holds; the
    /// others only spread packets over more cache lines and pages (17 ns a packet on the receiving CPU of the reference
    /// machine).
    fn frames(&self) -> u32 {
        if self.sockets.len() == 1 && !self.sends() { RING } else { FRAMES }
    }

    fn umem(&self) -> xsk::Result<Umem> {
        let layout = UmemConfig {
            frames: self.frames(),
            frame_size: self.frame_size,
            unaligned: self.unaligned,
            ..UmemConfig::default()
        };
        // Frames that cross pages are fine on base pages too as long as packets are copied.
        let huge = self.unaligned.then(|| Umem::new(UmemConfig { pages: Pages::Huge2M, ..layout.clone() }));
        huge.and_then(xsk::Result::ok).map_or_else(|| Umem::new(layout), Ok)
    }

    fn config(&self) -> Config {
        let busy_poll = BusyPoll { budget: u16::try_from(self.batch()).unwrap_or(u16::MAX), ..BusyPoll::default() };
        Config {
            fill_ring: FRAMES,
            rx_ring: RING,
            tx_ring: if self.sends() { RING } else { 0 },
            completion_ring: RING,
            // Without it a call sends 32 packets, and a batch takes several calls.
            tx_budget: self.sends().then(|| self.batch().clamp(32, RING)),
            mode: self.mode,
            need_wakeup: self.need_wakeup,
            multi_buffer: self.frags,
            busy_poll: self.busy_poll.then_some(busy_poll),
            ..Config::default()
        }
    }
}
