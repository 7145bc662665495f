//! Counts are exact: a bounded number of packets is sent, and every counter on its way shows that number.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use libtest_mimic::Trial;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use xdplab::device::{Action, Attachment, Counts, DutProgram, LoadMode, Operation, ProgramSpec};
use xdplab::generator::{LiveFrames, LiveFramesSpec, Rewrite, Sent, Sink};
use xdplab::netlink::XdpMode;
use xdplab::observe::{Interface, Observers, Watch};
use xdplab::packet::{FlowSpec, FrameSize, build_udp_frame};
use xdplab::sys::ethtool::EthtoolIoctl;
use xdplab::topology::{Lab, LabSpec, Placement, Port};

use crate::support::{BPF, NETNS, TWO_CPUS, eventually, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("counts::every_dropped_packet_is_counted_once", &[&NETNS, &BPF], || every_operation(Action::Drop)),
        test("counts::every_passed_packet_is_counted_once_and_delivered", &[&NETNS, &BPF], || {
            every_operation(Action::Pass);
        }),
        test("counts::every_packet_sent_back_is_counted_once_and_comes_back", &[&NETNS, &BPF], || {
            every_operation(Action::Tx);
        }),
        test("counts::odd_numbers_are_exact_to_the_packet", &[&NETNS, &BPF], || odd_numbers(&[0])),
        test("counts::two_threads_send_the_number_in_all", &[&NETNS, &BPF, &TWO_CPUS], || odd_numbers(&[0, 1])),
        test("counts::each_rx_queue_counts_its_own", &[&NETNS, &BPF, &TWO_CPUS], each_queue),
    ]
}

/// A lab whose DUT takes redirected frames in either mode: without a native program, a veth end has NAPI if GRO is on.
pub(crate) fn lab(queues: u16) -> Lab {
    let offloads = [("gro", true), ("gso", false), ("tso", false), ("tx", false)].map(|(name, on)| (name.into(), on));
    let spec = LabSpec::new(Placement::Same { cpu: 0 });
    Lab::build(&LabSpec { queues, offloads: offloads.to_vec(), ..spec }).unwrap()
}

pub(crate) fn attach(program: BorrowedFd<'_>, port: &Port, mode: XdpMode) -> Attachment {
    port.netns.run(|| Attachment::attach(program, port.ifindex, mode)).unwrap()
}

/// A frame of the flow, addressed to the lab's DUT.
pub(crate) fn frame(lab: &Lab, flow: FlowSpec) -> Vec<u8> {
    let flow = FlowSpec { src_mac: lab.generator.mac, dst_mac: lab.dut.mac, ..flow };
    build_udp_frame(&flow, FrameSize::shortest(&flow)).unwrap()
}

/// Sends exactly `count` frames from the generator's end.
pub(crate) fn send(lab: &Lab, frame: Vec<u8>, cpus: &[usize], count: u64) -> Sent {
    let spec = LiveFramesSpec {
        frame,
        ifindex: lab.generator.ifindex,
        cpus: cpus.to_vec(),
        batch: LiveFramesSpec::DEFAULT_BATCH,
        count: Some(count),
        rewrite: Rewrite::default(),
    };
    let sent = LiveFrames::start(&spec, &lab.generator.netns).unwrap().wait().unwrap();
    assert_eq!(sent.packets, count);
    assert_eq!(sent.per_cpu.iter().sum::<u64>(), count);
    for (cpu, packets) in sent.per_cpu.iter().enumerate() {
        let thread = cpus.iter().position(|used| *used == cpu);
        let threads = cpus.len() as u64;
        let share = thread.map_or(0, |thread| count / threads + u64::from((thread as u64) < count % threads));
        assert_eq!(*packets, share, "CPU {cpu}: {sent:?}");
    }
    sent
}

/// Waits until the counter shows `count`, and a little longer, to see that it stops there.
pub(crate) fn settles_at(what: &str, count: u64, read: impl Fn() -> u64) {
    eventually(&format!("{what}: {count}"), 5, || read() >= count);
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(read(), count, "{what}");
}

pub(crate) fn rx_packets(port: &Port) -> u64 {
    port.netns.rtnl().unwrap().link_by_index(port.ifindex).unwrap().stats.unwrap().rx_packets
}

/// Fewer than the 256 places of a veth ring (`VETH_RING_SIZE`), so that none can be lost however late NAPI comes; and less
/// than a batch, since the generator's frames after the first batch are recycled pages with what programs wrote into them.
const FEW: u64 = 63;

fn every_operation(action: Action) {
    let lab = lab(1);
    let sink = Sink::load().unwrap();
    let _sink = (action == Action::Tx).then(|| attach(sink.fd().unwrap(), &lab.generator, XdpMode::Native));
    // A kernel may be without IPv6; its XDP programs see the frames all the same.
    let with_ipv6 = lab.dut.describe().unwrap().ipv6.known().is_some();
    let sockets = [Some(receiver(&lab.dut, lab.dut.ipv4)), with_ipv6.then(|| receiver(&lab.dut, lab.dut.ipv6))];
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for operation in [Operation::NoTouch, Operation::ReadData, Operation::ParseIp, Operation::SwapMacs] {
            for load_mode in [LoadMode::Dpa, LoadMode::LoadBytes] {
                if (operation, load_mode) == (Operation::NoTouch, LoadMode::LoadBytes) {
                    continue; // one program, which loads nothing
                }
                let program =
                    DutProgram::load(ProgramSpec { load_mode, ..ProgramSpec::new(action, operation) }, 1).unwrap();
                let attachment = attach(program.fd(), &lab.dut, mode);
                assert_eq!(attachment.mode(), mode);
                for (flow, socket) in [FlowSpec::lab_v4(), FlowSpec::lab_v6()].into_iter().zip(&sockets) {
                    exactly(&lab, &program, frame(&lab, flow), mode, &sink, socket.as_ref());
                }
            }
        }
    }
}

/// A UDP socket on the discard port of an address, whose buffer has room for all that is sent.
fn receiver(port: &Port, address: impl Into<IpAddr> + Send) -> UdpSocket {
    let socket = port.netns.run(|| Ok(UdpSocket::bind((address.into(), 9)).unwrap())).unwrap();
    setsockopt(&socket, RcvBufForce, &(8 << 20)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Sends [`FEW`] packets and finds as many at every counter.
fn exactly(lab: &Lab, program: &DutProgram, frame: Vec<u8>, mode: XdpMode, sink: &Sink, socket: Option<&UdpSocket>) {
    let ProgramSpec { action, operation, .. } = program.spec();
    let what = format!("{} in {mode} mode", program.spec());
    let driver = |counter: &str| {
        let statistics = lab.dut.netns.run(EthtoolIoctl::open).unwrap().statistics(&lab.dut.name).unwrap();
        statistics.iter().find(|statistic| statistic.name == format!("rx_queue_0_{counter}")).unwrap().value
    };
    let before = (program.total().unwrap(), rx_packets(&lab.dut), sink.packets().unwrap());
    let driver_before = (driver("xdp_drops"), driver("xdp_tx"));
    send(lab, frame, &[0], FEW);
    settles_at(&what, FEW, || (program.total().unwrap() - before.0).packets);
    assert_eq!(program.total().unwrap() - before.0, Counts { packets: FEW, aborted: 0 }, "{what}");
    settles_at(&format!("{what}: interface"), FEW, || rx_packets(&lab.dut) - before.1);
    let native = u64::from(mode == XdpMode::Native);
    let dropped = if action == Action::Drop { native * FEW } else { 0 };
    let sent_back = if action == Action::Tx { native * FEW } else { 0 };
    settles_at(&format!("{what}: the driver's drops"), dropped, || driver("xdp_drops") - driver_before.0);
    settles_at(&format!("{what}: sent back by the driver"), sent_back, || driver("xdp_tx") - driver_before.1);
    let returned = if action == Action::Tx { FEW } else { 0 };
    settles_at(&format!("{what}: sink"), returned, || sink.packets().unwrap() - before.2);
    let Some(socket) = socket else { return };
    // With its addresses exchanged a frame is for the generator, so no socket gets it.
    let delivered = if action == Action::Pass && operation != Operation::SwapMacs { FEW } else { 0 };
    let mut received = 0;
    eventually(&format!("{what}: {delivered} datagrams"), 5, || {
        received += std::iter::from_fn(|| socket.recv(&mut [0; 64]).ok()).count() as u64;
        received >= delivered
    });
    assert_eq!(received, delivered, "{what}");
}

fn odd_numbers(cpus: &[usize]) {
    let lab = lab(1);
    let program = DutProgram::load(ProgramSpec::new(Action::Drop, Operation::ParseIp), 1).unwrap();
    let _attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
    let interface = |port: &Port| Interface { ifindex: port.ifindex, netns: port.netns.inode() };
    let watch = Watch { device: interface(&lab.dut), xmit_to: interface(&lab.generator) };
    let observers = Observers::attach(watch).unwrap();
    let (mut received, mut dropped) = (0, 0);
    for count in [1, 63, 64, 65, 1000, 100_003] {
        send(&lab, frame(&lab, FlowSpec::lab_v4()), cpus, count);
        // A ring that was full when NAPI came late is counted by the driver, frame by frame.
        let xmit = observers.xmit().into_result().unwrap();
        assert!(xmit.errors.is_empty(), "{xmit:?}");
        let lost = xmit.drops - dropped;
        assert!(count > 256 || lost == 0, "{count} fit into the ring, and {lost} were lost");
        (dropped, received) = (xmit.drops, received + count - lost);
        assert_eq!(xmit.sent, received, "of {count}");
        settles_at(&format!("{count} packets, {lost} lost"), received, || program.total().unwrap().packets);
        assert_eq!(rx_packets(&lab.dut), received);
        let napi = || observers.napi().into_result().unwrap().work;
        settles_at(&format!("NAPI's work for {count}"), received, napi);
    }
}

fn each_queue() {
    const COUNT: u64 = 101;
    for queues in [2, 4] {
        let lab = lab(queues);
        let program = DutProgram::load(ProgramSpec::new(Action::Drop, Operation::NoTouch), queues.into()).unwrap();
        let _attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
        for cpu in [0, 1] {
            let before = program.counts().unwrap();
            send(&lab, frame(&lab, FlowSpec::lab_v4()), &[cpu], COUNT);
            let new = || -> Vec<u64> {
                let after = program.counts().unwrap();
                let sum = |queue: &[Counts]| queue.iter().map(|counts| counts.packets).sum::<u64>();
                after.iter().zip(&before).map(|(after, before)| sum(after) - sum(before)).collect()
            };
            settles_at(&format!("CPU {cpu}, {queues} queues"), COUNT, || new().iter().sum());
            // veth_select_rxq(), drivers/net/veth.c: the sending CPU modulo the number of queues.
            let expected: Vec<u64> = (0..usize::from(queues))
                .map(|queue| if queue == cpu % usize::from(queues) { COUNT } else { 0 })
                .collect();
            assert_eq!(new(), expected, "CPU {cpu}, {queues} queues");
        }
    }
}
