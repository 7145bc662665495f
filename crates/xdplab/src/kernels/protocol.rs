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
/// Rounds of a case. The first finds caches of the kernel (slabs, page pools) and of QEMU empty, and is not used.
pub(super) const ROUNDS: usize = 6;

/// Packets of the short and the long call of a case, for `packets` between them over a veth. Paths that cost less get more, and
/// those that cost more get fewer: with [`KernelsPlan::PACKETS`](super::KernelsPlan::PACKETS) every call takes 1 to 3 million
/// instructions, so that it can end before the next timer interrupt, 4 million after the last (`CONFIG_HZ=250`).
pub(super) fn sizes(case: CaseName, packets: u64) -> [u64; 2] {
    let packets = match case {
        CaseName::ProgramAlone => packets * 8,
        CaseName::LiveDrop => packets * 2,
        CaseName::VethRedirect | CaseName::DevmapEgress | CaseName::VethTx => packets,
        CaseName::Generic => packets / 4,
        CaseName::Pktgen => packets / 8,
        CaseName::MultiBuffer => packets / 16,
    };
    [packets / 4, packets / 4 + packets]
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

/// The calls of a case that count: of each size the one that took least. The same work is done each time, and what comes between
/// (timer interrupts with what they entail) only adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Least {
    /// In which rounds the short and the long call are.
    pub(super) rounds: [usize; 2],
    /// The long call.
    pub(super) long: Call,
    /// Instructions and packets that the long call has beyond the short one.
    pub(super) instructions: u64,
    pub(super) packets: u64,
    /// How many instructions more the second best calls took, short and long together: what differs between rounds of the same
    /// work.
    pub(super) spread: u64,
}

impl Least {
    /// Among all rounds but the first.
    ///
    /// # Errors
    /// There are too few, or the long call does not take more than the short one.
    pub(super) fn of(rounds: &[Round]) -> Result<Self, &'static str> {
        let [short, long] =
            [(|round: &Round| round.short) as fn(&Round) -> Call, |round: &Round| round.long].map(|of| {
                let mut calls: Vec<(usize, Call)> = rounds.iter().map(of).enumerate().skip(1).collect();
                calls.sort_by_key(|(_, call)| call.instructions);
                calls
            });
        let ([(first, short), next_short, ..], [(second, long), next_long, ..]) = (&short[..], &long[..]) else {
            return Err("the guest counted too few rounds");
        };
        let difference = |less: u64, more: u64| more.checked_sub(less).filter(|difference| *difference > 0);
        let packets = difference(short.packets, long.packets);
        let (Some(packets), Some(instructions)) = (packets, difference(short.instructions, long.instructions)) else {
            return Err("the long call took no more than the short one");
        };
        let spread = next_short.1.instructions - short.instructions + next_long.1.instructions - long.instructions;
        Ok(Self { rounds: [*first, *second], long: *long, instructions, packets, spread })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn round(short: u64, long: u64) -> Round {
        let call =
            |packets, instructions| Call { packets, instructions, ksoftirqd: 0, kernel_ns: None, timer_interrupts: 0 };
        Round { short: call(100, short), long: call(500, long) }
    }

    #[test]
    fn of_each_size_the_call_that_took_least_counts_but_none_of_the_first_round() {
        let rounds = [round(1, 2), round(70_100, 354_000), round(70_000, 350_000), round(75_000, 350_040)];
        let least = Least::of(&rounds).unwrap();
        assert_eq!((least.rounds, least.instructions, least.packets), ([2, 2], 280_000, 400));
        assert_eq!(least.spread, 100 + 40);
        let apart = Least::of(&[round(0, 0), round(70_000, 354_000), round(75_000, 350_000)]).unwrap();
        assert_eq!((apart.rounds, apart.instructions, apart.spread), ([1, 2], 280_000, 9_000));
    }

    #[test]
    fn too_few_rounds_and_a_long_call_that_took_no_more_give_no_number() {
        assert_eq!(Least::of(&[]), Err("the guest counted too few rounds"));
        assert_eq!(Least::of(&[round(1, 2), round(1, 2)]), Err("the guest counted too few rounds"));
        assert!(Least::of(&[round(1, 2), round(5, 5), round(6, 6)]).is_err());
    }

    #[test]
    fn costly_paths_get_fewer_packets_and_every_call_some() {
        assert_eq!(sizes(CaseName::VethRedirect, 2048), [512, 2560]);
        for case in CaseName::ALL {
            let [short, long] = sizes(case, 256);
            assert!(0 < short && short < long, "{case}");
        }
    }
}
