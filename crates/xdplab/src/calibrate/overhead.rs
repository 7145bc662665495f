//! What the instrument itself costs for each packet: the dispatcher, and the counter in a program.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::device::{Action, Attachment, DutProgram, Operation, ProgramSpec, SlicedDevice};
use crate::error::{Error, Result};
use crate::netlink::XdpMode;
use crate::packet::{FlowSpec, FrameSize, build_udp_frame};
use crate::run::Plan;
use crate::sample::Schedule;
use crate::stats::{self, Difference, Level, Slice};
use crate::sys::affinity::Pinned;
use crate::sys::bpf::run_alone;
use crate::topology::{Lab, LabSpec, Placement, Port};
use crate::units::whole_nanos;

const WHAT: &str = "measure what the dispatcher costs";
/// Everything is loaded anew for each round.
const ROUNDS: u64 = 8;
/// Blocks of a round; each has a slice of each of three programs.
const BLOCKS: u64 = 200;
/// Runs of a slice, and runs before it that are taken off.
const RUNS: u32 = 2048;
const WARMUP: u32 = 64;

/// What the instrument costs, in ns per packet, by `BPF_PROG_TEST_RUN`: program only, no driver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// An empty program behind the dispatcher, less the empty program itself. It is in every variant of a comparison.
    pub dispatcher: Difference,
    /// A program that counts its packets and does nothing else, less an empty program. Programs of ours count.
    pub counter: Difference,
}

/// The three programs: the empty one, the same behind the dispatcher, and the one that counts.
const EMPTY: u16 = 0;
const DISPATCHED: u16 = 1;
const COUNTING: u16 = 2;

/// Measures it on the CPU of the device.
///
/// A test run of a program that is attached to no interface changes the kernel's XDP dispatcher twice, which takes tens of
/// milliseconds a call (`bpf_prog_change_xdp`); so the programs are attached to interfaces of labs through which nothing is
/// sent. The cost of a call is taken off by a short call of the same program right before.
///
/// # Errors
/// A lab could not be built, or the kernel refused a program.
pub fn measure(placement: Placement, seed: u64) -> Result<Overhead> {
    let labs = [Lab::build(&LabSpec::new(placement))?, Lab::build(&LabSpec::new(placement))?];
    let flow = FlowSpec::lab_v4();
    let frame = build_udp_frame(&flow, FrameSize::shortest(&flow))?;
    let cpu = placement.dut_cpu().ok_or_else(|| Error::usage(WHAT, "no CPU is planned for the device"))?;
    let rounds = (0..ROUNDS)
        .map(|round| take_round(&labs, cpu, &frame, seed.wrapping_add(round)))
        .collect::<Result<Vec<_>>>()?;
    let rounds: Vec<&[Slice]> = rounds.iter().map(Vec::as_slice).collect();
    let difference = |variant| {
        stats::compare_rounds(&rounds, EMPTY, variant, Level::default())
            .map(|comparison| comparison.difference)
            .map_err(|reason| Error::invalid(WHAT, reason.to_string()))
    };
    Ok(Overhead { dispatcher: difference(DISPATCHED)?, counter: difference(COUNTING)? })
}

fn take_round(labs: &[Lab; 2], cpu: usize, frame: &[u8], seed: u64) -> Result<Vec<Slice>> {
    let spec = |operation| ProgramSpec::new(Action::Drop, operation);
    let empty = DutProgram::load(spec(Operation::Uncounted), 1)?;
    let counting = DutProgram::load(spec(Operation::NoTouch), 1)?;
    let behind = Schedule::draw(1, 1, seed)?;
    let cut = (Plan::SLICE_PACKETS, Plan::WARMUP_PACKETS);
    let (device, mut reader) = SlicedDevice::load(&[spec(Operation::Uncounted).into()], &behind, cut, 1, None, seed)?;
    let attach = |port: &Port, program: BorrowedFd<'_>| {
        port.netns.run(|| Attachment::attach(program, port.ifindex, XdpMode::Native))
    };
    let _attached = [
        attach(&labs[0].dut, empty.fd())?,
        attach(&labs[0].generator, device.fd()?)?,
        attach(&labs[1].dut, counting.fd())?,
    ];
    let programs = [empty.fd(), device.fd()?, counting.fd()];
    let order = Schedule::draw(3, 1, seed)?;
    let _pinned = Pinned::to(cpu)?;
    let begin = Instant::now();
    let mut slices = Vec::new();
    for position in 0..BLOCKS * 3 {
        let (entry, block) = order.at(position);
        let program = programs[usize::from(entry.variant)];
        let short = Instant::now();
        run_alone(program, frame, WARMUP, WHAT)?;
        let start = Instant::now();
        run_alone(program, frame, WARMUP + RUNS, WHAT)?;
        let stop = Instant::now();
        let ns = |at: Instant| whole_nanos(at - begin);
        slices.push(Slice {
            // The call's own cost and the first runs are what the short call took.
            start_ns: ns(start + (start - short)),
            stop_ns: ns(stop),
            packets: RUNS,
            cpu: u16::try_from(cpu).unwrap_or(u16::MAX),
            variant: entry.variant,
            copy: entry.copy,
            slot: entry.slot,
            block: u32::try_from(block).unwrap_or(u32::MAX),
        });
        reader.drain(&mut Vec::new());
    }
    Ok(slices)
}
