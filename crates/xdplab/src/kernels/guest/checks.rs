//! What depends on the scheduler, and is only seen to work: nothing here is counted.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use xsk::BindMode;

use super::cases::{CPU, attach, frame, lab};
use super::meter::await_packets;
use crate::device::{
    CpumapProgram, CpumapSpec, Handling, Remote, Selection, XskAction, XskProgram, XskSockets, XskSpec,
};
use crate::error::{Error, Result};
use crate::generator::{LiveFrames, LiveFramesSpec, Rewrite};
use crate::kernels::protocol::CheckName;
use crate::netlink::XdpMode;
use crate::packet::FlowSpec;
use crate::topology::Lab;

/// Fewer than the rings on the way hold (256 of veth, 2048 of AF_XDP), and than a socket's receive buffer of 208 KiB, in which
/// each takes the page that it came in; so none is lost however late it is taken.
const FEW: u64 = 32;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the stream: more than any buffer on its way.
const STREAM: usize = 1 << 20;

pub(super) fn run(check: CheckName) -> Result<()> {
    match check {
        CheckName::Cpumap => cpumap(),
        CheckName::AfXdp => af_xdp(),
        CheckName::TcpStream => tcp_stream(),
    }
}

fn send(lab: &Lab) -> Result<()> {
    let spec = LiveFramesSpec {
        frame: frame(lab)?,
        ifindex: lab.generator.ifindex,
        cpus: vec![CPU],
        batch: LiveFramesSpec::DEFAULT_BATCH,
        count: Some(FEW),
        rewrite: Rewrite::default(),
    };
    LiveFrames::start(&spec, &lab.generator.netns)?.wait().map(drop)
}

/// The frames are given to the network stack on the CPU that they are redirected to, and end in a UDP socket.
fn cpumap() -> Result<()> {
    let lab = lab(XdpMode::Native, None)?;
    let spec = CpumapSpec { selection: Selection::NoTouch, cpus: vec![0], qsize: 2048, remote: Remote::Pass };
    let program = CpumapProgram::load(spec, 1)?;
    let _attached = attach(program.fd(), &lab.dut, XdpMode::Native)?;
    let what = "receive what the cpumap passed on";
    let socket = lab.dut.netns.run(|| {
        let socket = UdpSocket::bind((IpAddr::from(lab.dut.ipv4), FlowSpec::lab_v4().dst_port));
        let ready = socket.and_then(|socket| socket.set_read_timeout(Some(PATIENCE)).map(|()| socket));
        ready.map_err(|error| Error::io(what, "bind", &error))
    })?;
    send(&lab)?;
    let mut datagram = [0; 64];
    for received in 0..FEW {
        socket
            .recv(&mut datagram)
            .map_err(|error| Error::io(format!("{what}: {received} of {FEW} frames came"), "recv", &error))?;
    }
    Ok(())
}

fn af_xdp() -> Result<()> {
    let lab = lab(XdpMode::Native, None)?;
    let spec = XskSpec {
        sockets: vec![Handling { action: XskAction::Drop, batch: 64, poll: true }],
        queue: 0,
        frame_size: 4096,
        need_wakeup: true,
        unaligned: false,
        busy_poll: false,
        frags: false,
        mode: BindMode::Copy,
        fifo: None,
        cpu: None,
        rest_after: None,
    };
    let sockets = lab.dut.netns.run(|| XskSockets::open(spec, &lab.dut.name, lab.dut.ifindex))?;
    let program = XskProgram::load(0, sockets.fds(), 1)?;
    let _attached = attach(program.fd(), &lab.dut, XdpMode::Native)?;
    send(&lab)?;
    await_packets(FEW, || Ok(sockets.readings()?.iter().map(|socket| socket.counts.rx_packets).sum()))
}

fn tcp_stream() -> Result<()> {
    let lab = lab(XdpMode::Native, None)?;
    let what = "send a TCP stream through the lab";
    let io = |call| move |error| Error::io(what, call, &error);
    let listener = lab.dut.netns.run(|| TcpListener::bind((lab.dut.ipv4, 0)).map_err(io("bind")))?;
    let address = listener.local_addr().map_err(io("getsockname"))?;
    let bytes: Vec<u8> = (0..STREAM).map(|index| (index % 251) as u8).collect();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut received = Vec::new();
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.read_to_end(&mut received).map(|_| received)
        });
        lab.generator.netns.run(|| {
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(io("connect"))?;
            stream.write_all(&bytes).map_err(io("write"))
        })?;
        let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        received.map_err(io("read"))
    })?;
    if received == bytes {
        return Ok(());
    }
    Err(Error::invalid(what, format!("{} of {STREAM} bytes came, or others", received.len())))
}
