//! What host and guest tell each other: a plan in the initramfs, and lines of JSON on a serial port.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::host::Environment;

/// The plan's path in the initramfs, without the leading slash.
pub(super) const PLAN: &str = "plan.json";
/// The folder of modules in the initramfs, without the leading slash.
pub(super) const MODULES: &str = "modules";
/// The port that ends QEMU (`isa-debug-exit`), and the value written there; QEMU then exits with `value << 1 | 1`.
pub(super) const EXIT_PORT: u16 = 0xf4;
pub(super) const EXIT_VALUE: u8 = 0x10;
/// Rounds of a case. The first finds caches of the kernel (slabs, page pools, translated blocks) empty, and is not used.
pub(super) const ROUNDS: usize = 2;

/// Packets of the short and the long call of a case, for `packets` between them. pktgen's packets cost ten times as much to make,
/// so it sends a fifth.
pub(super) fn sizes(case: CaseName, packets: u64) -> [u64; 2] {
    let packets = if case.needs_pktgen() { packets / 5 } else { packets }.max(1);
    [packets / 5, packets / 5 + packets]
}

/// What is counted: a number of packets on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CaseName {
    /// A program that drops, by `BPF_PROG_TEST_RUN` alone: no frame, no driver
    ProgramAlone,
    /// Live frames that the program under `BPF_PROG_TEST_RUN` drops itself
    LiveDrop,
    /// Live frames redirected to a veth, whose peer drops them natively
    VethRedirect,
    /// Live frames redirected by a devmap entry that has a program of its own, to a veth whose peer drops them
    DevmapEgress,
    /// Live frames redirected to a veth, whose peer sends them back by XDP_TX to be dropped
    VethTx,
    /// Live frames redirected to a veth, whose peer drops them in generic (skb) mode
    Generic,
    /// pktgen's 60-byte packets over a veth, whose peer drops them natively
    Pktgen,
    /// pktgen's 9000-byte packets over a veth, whose peer drops them natively: each is converted to several buffers
    MultiBuffer,
}

impl CaseName {
    /// Every case, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::ProgramAlone,
        Self::LiveDrop,
        Self::VethRedirect,
        Self::DevmapEgress,
        Self::VethTx,
        Self::Generic,
        Self::Pktgen,
        Self::MultiBuffer,
    ];

    /// Whether pktgen sends, which takes its module.
    #[must_use]
    pub fn needs_pktgen(self) -> bool {
        matches!(self, Self::Pktgen | Self::MultiBuffer)
    }
}

/// What depends on the scheduler, and is run only to see that it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CheckName {
    /// Frames go through a cpumap to the network stack and are received by a socket
    Cpumap,
    /// An `AF_XDP` socket receives every frame
    AfXdp,
    /// A TCP stream arrives whole
    TcpStream,
}

impl CheckName {
    /// Every check.
    pub const ALL: [Self; 3] = [Self::Cpumap, Self::AfXdp, Self::TcpStream];
}

macro_rules! named {
    ($($name:ty),*) => {$(
        /// The name on the command line and in the record.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = self.to_possible_value();
                f.pad(value.as_ref().map_or("", |value| value.get_name()))
            }
        }
    )*};
}

named!(CaseName, CheckName);

/// One call that sent packets, and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Packets sent; every one was counted where it arrived.
    pub packets: u64,
    /// Guest instructions: virtual nanoseconds of CPU time of the thread that sent (with the interrupts and softirqs that ran
    /// on it) and of `ksoftirqd/0`.
    pub instructions: u64,
    /// Of these, those of `ksoftirqd/0`.
    pub ksoftirqd: u64,
    /// The kernel's own mean for a packet in virtual nanoseconds, rounded down; `None` where it tells none.
    pub kernel_ns: Option<u64>,
    /// Timer interrupts meanwhile; each takes some thousand instructions.
    pub timer_interrupts: u64,
}

/// A short call and a long one: what a call costs beside its packets is in both, and cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The short call.
    pub short: Call,
    /// The long call.
    pub long: Call,
}

impl Round {
    /// Instructions and packets that the long call has beyond the short one; `None` where that makes no sense.
    #[must_use]
    pub fn marginal(&self) -> Option<(u64, u64)> {
        let instructions = self.long.instructions.checked_sub(self.short.instructions)?;
        let packets = self.long.packets.checked_sub(self.short.packets).filter(|packets| *packets > 0)?;
        Some((instructions, packets))
    }
}

/// What the guest is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GuestPlan {
    /// Modules to load, in this order, by their file names below [`MODULES`].
    pub(super) modules: Vec<String>,
    pub(super) job: Job,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Job {
    /// Count the cases; send the symbols at the end if asked.
    Count { cases: Vec<CaseName>, packets: u64, symbols: bool },
    /// See whether these work.
    Check(Vec<CheckName>),
    /// Run a program, and send what it prints.
    Execute { command: Vec<String>, environment: Vec<(String, String)> },
}

/// A line that the guest writes to its serial port.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The guest's kernel and machine.
    Booted(Box<Environment>),
    /// A case with its rounds, or why it could not be counted.
    Counted { case: CaseName, rounds: Result<Vec<Round>, String> },
    /// A check, and why it failed.
    Checked { check: CheckName, outcome: Result<(), String> },
    /// A line that the program printed.
    Output(String),
    /// How the program ended: its exit status, or how else.
    Exited(Result<u8, String>),
    /// That many bytes follow behind the line's end: `/proc/kallsyms`, gzipped.
    Symbols { bytes: usize },
    /// The guest gave up.
    Failed(String),
    /// The last line of all.
    Done,
}
