//! The cases: each has a lab, programs and a sender of its own.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::meter::{Sender, rounds};
use super::pktgen;
use crate::device::{
    Action, Attachment, DutProgram, EgressAction, Operation, ProgramSpec, RedirectBy, RedirectProgram, RedirectTarget,
};
use crate::error::{Error, Result};
use crate::generator::{FrameSource, LiveFramesSpec, Rewrite, Sink};
use crate::kernels::protocol::{CaseName, Round, sizes};
use crate::netlink::XdpMode;
use crate::packet::{FlowSpec, FrameSize, build_udp_frame};
use crate::sys::bpf::{run_alone, run_live_frames};
use crate::topology::{Lab, LabSpec, Placement, Port};

/// The only CPU.
pub(super) const CPU: usize = 0;
/// A frame that does not fit into a page, and the MTU for it.
const JUMBO: u32 = 9000;

/// What stays loaded after its case.
type Kept = Vec<Box<dyn Any>>;

/// Counts a case.
pub(super) fn count(case: CaseName, packets: u64, kept: &mut Kept) -> Result<Vec<Round>> {
    let sizes = sizes(case, packets);
    match case {
        CaseName::ProgramAlone => alone(sizes, kept, |program, frame, packets| {
            run_alone(program, frame, packets, "run a program alone").map(|run| run.duration_ns)
        }),
        CaseName::LiveDrop => alone(sizes, kept, |program, frame, packets| {
            run_live_frames(program, frame, packets, "drop live frames").map(|run| run.duration_ns)
        }),
        CaseName::VethRedirect => redirect(sizes, Action::Drop, XdpMode::Native, kept),
        CaseName::VethTx => redirect(sizes, Action::Tx, XdpMode::Native, kept),
        CaseName::Generic => redirect(sizes, Action::Drop, XdpMode::Generic, kept),
        CaseName::DevmapEgress => devmap(sizes, kept),
        CaseName::Pktgen => over_veth(sizes, None, kept),
        CaseName::MultiBuffer => over_veth(sizes, Some(JUMBO), kept),
    }
}

/// A program that counts its packets and gives them a verdict.
fn dut(action: Action) -> Result<DutProgram> {
    DutProgram::load(ProgramSpec::new(action, Operation::NoTouch), 1)
}

/// A lab whose device is looked at in this mode: without a native program a veth end takes redirected frames only if GRO
/// gives it NAPI.
pub(super) fn lab(mode: XdpMode, mtu: Option<u32>) -> Result<Lab> {
    let mut spec = LabSpec::new(Placement::Same { cpu: CPU });
    for (offload, on) in &mut spec.offloads {
        *on = offload == "gro" && mode == XdpMode::Generic;
    }
    spec.mtu = mtu.unwrap_or(spec.mtu);
    Lab::build(&spec)
}

/// The shortest frame from one end of the lab to the other.
pub(super) fn frame(lab: &Lab) -> Result<Vec<u8>> {
    let flow = FlowSpec { src_mac: lab.generator.mac, dst_mac: lab.dut.mac, ..FlowSpec::lab_v4() };
    build_udp_frame(&flow, FrameSize::shortest(&flow))
}

pub(super) fn attach(program: BorrowedFd<'_>, port: &Port, mode: XdpMode) -> Result<Attachment> {
    port.netns.run(|| Attachment::attach(program, port.ifindex, mode))
}

/// A program under `BPF_PROG_TEST_RUN` that drops what it gets.
fn alone(
    sizes: [u64; 2],
    kept: &mut Kept,
    call: impl Fn(BorrowedFd<'_>, &[u8], u32) -> Result<u32>,
) -> Result<Vec<Round>> {
    let program = dut(Action::Drop)?;
    let flow = FlowSpec::lab_v4();
    let frame = build_udp_frame(&flow, FrameSize::shortest(&flow))?;
    let send = |packets| {
        let mean = call(program.fd(), &frame, repeat(packets)?)?;
        Ok(Some(Duration::from_nanos(mean.into())))
    };
    let counted = rounds(Sender::Caller, sizes, send, || Ok(program.total()?.packets))?;
    kept.push(Box::new(program));
    Ok(counted)
}

fn repeat(packets: u64) -> Result<u32> {
    u32::try_from(packets).map_err(|error| Error::usage(format!("send {packets} packets in a call"), error.to_string()))
}

/// Live frames out of the generator's end.
fn redirect(sizes: [u64; 2], action: Action, mode: XdpMode, kept: &mut Kept) -> Result<Vec<Round>> {
    let lab = lab(mode, None)?;
    let (program, sink) = (dut(action)?, Sink::load()?);
    let _attached = attach(program.fd(), &lab.dut, mode)?;
    // What is sent back needs NAPI on the generator's end, and is counted there.
    let returns = action == Action::Tx;
    let _sink = returns.then(|| attach(sink.fd()?, &lab.generator, XdpMode::Native)).transpose()?;
    let spec = LiveFramesSpec {
        frame: frame(&lab)?,
        ifindex: lab.generator.ifindex,
        cpus: vec![CPU],
        batch: LiveFramesSpec::DEFAULT_BATCH,
        count: None,
        rewrite: Rewrite::default(),
    };
    let source = FrameSource::load(&spec)?;
    let send = |packets| source.send(repeat(packets)?).map(Some);
    let received = || if returns { sink.packets() } else { Ok(program.total()?.packets) };
    let counted = lab.generator.netns.run(|| rounds(Sender::Caller, sizes, send, received))?;
    kept.extend([Box::new(program) as Box<dyn Any>, Box::new(sink), Box::new(source)]);
    Ok(counted)
}

/// Live frames by way of a devmap entry that has a program.
fn devmap(sizes: [u64; 2], kept: &mut Kept) -> Result<Vec<Round>> {
    let lab = lab(XdpMode::Native, None)?;
    let program = dut(Action::Drop)?;
    let _attached = attach(program.fd(), &lab.dut, XdpMode::Native)?;
    let target = RedirectTarget { ifindex: lab.generator.ifindex, mac: lab.generator.mac };
    let frame = frame(&lab)?;
    let (redirecting, counted) = lab.generator.netns.run(|| {
        let redirecting = RedirectProgram::load(RedirectBy::Map, &[target], Some(EgressAction::Forward), 1)?;
        let send = |packets| {
            let run = run_live_frames(redirecting.fd(), &frame, repeat(packets)?, "redirect live frames")?;
            Ok(Some(Duration::from_nanos(run.duration_ns.into())))
        };
        let counted = rounds(Sender::Caller, sizes, send, || Ok(program.total()?.packets))?;
        Ok((redirecting, counted))
    })?;
    kept.extend([Box::new(program) as Box<dyn Any>, Box::new(redirecting)]);
    Ok(counted)
}

/// Packets of pktgen, the shortest or of this MTU.
fn over_veth(sizes: [u64; 2], mtu: Option<u32>, kept: &mut Kept) -> Result<Vec<Round>> {
    let lab = lab(XdpMode::Native, mtu)?;
    let program = dut(Action::Drop)?;
    let _attached = attach(program.fd(), &lab.dut, XdpMode::Native)?;
    pktgen::prepare()?;
    let send = |packets| pktgen::send(&lab.generator, &lab.dut, mtu, packets).map(|()| None);
    let received = || Ok(program.total()?.packets);
    let counted = lab.generator.netns.run(|| rounds(Sender::Pktgen, sizes, send, received))?;
    kept.push(Box::new(program));
    Ok(counted)
}
