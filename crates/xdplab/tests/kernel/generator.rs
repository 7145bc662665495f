//! The generator: it sends what it was asked to, stops when it is told to, and does not send where frames vanish.

use std::fs;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use xdplab::device::{Action, DutProgram, Operation, ProgramSpec};
use xdplab::generator::{LiveFrames, LiveFramesSpec, Rewrite};
use xdplab::netlink::XdpMode;
use xdplab::packet::FlowSpec;
use xdplab::rig::must_take_redirected;
use xdplab::sys::ethtool::EthtoolIoctl;
use xdplab::topology::{Lab, LabSpec, Placement};

use crate::counts::{attach, frame, rx_packets, settles_at};
use crate::support::child::{self, Part};
use crate::support::{BPF, NETNS, XDP_FEATURES, eventually, patience, test};

pub(crate) const CHILDREN: &[Part] =
    &[("drop a generator", drop_a_generator), ("send through signals", send_through_signals)];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("generator::it_stops_within_a_call_and_its_count_stays", &[&NETNS, &BPF], stops),
        test("generator::a_dropped_generator_leaves_no_thread", &[&NETNS, &BPF], dropped),
        test("generator::a_signal_to_its_threads_costs_no_packet", &[&NETNS, &BPF], signals),
        test("generator::it_will_not_send_to_a_peer_without_napi", &[&NETNS, &BPF, &XDP_FEATURES], preflight),
        test("generator::a_cpu_that_is_not_there_is_an_error", &[&NETNS, &BPF], absent_cpu),
    ]
}

fn lab() -> Lab {
    Lab::build(&LabSpec::new(Placement::Same { cpu: 0 })).unwrap()
}

fn dropping() -> DutProgram {
    DutProgram::load(ProgramSpec::new(Action::Drop, Operation::NoTouch), 1).unwrap()
}

fn generator(lab: &Lab, cpu: usize, count: Option<u64>) -> LiveFrames {
    let spec = LiveFramesSpec {
        frame: frame(lab, FlowSpec::lab_v4()),
        ifindex: lab.generator.ifindex,
        cpus: vec![cpu],
        batch: LiveFramesSpec::DEFAULT_BATCH,
        count,
        rewrite: Rewrite::default(),
    };
    LiveFrames::start(&spec, &lab.generator.netns).unwrap()
}

fn stops() {
    let lab = lab();
    let program = dropping();
    let _attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
    let mut sent = 0;
    for _ in 0..3 {
        let generator = generator(&lab, 0, None);
        eventually("packets are sent", 5, || generator.sent().unwrap().packets > 10_000);
        assert!(generator.is_running());
        let asked = Instant::now();
        let sent_now = generator.stop().unwrap().packets;
        let took = asked.elapsed();
        println!("the generator stopped after {took:?}");
        // 100 ms on a machine of its own; this one may be busy.
        assert!(took < patience(1), "{took:?}");
        assert!(sent_now > 10_000);
        sent += sent_now;
    }
    let received = sent - driver_drops(&lab);
    settles_at("what was sent is received", received, || program.total().unwrap().packets);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(program.total().unwrap().packets, received, "nothing is sent after the stop");
    assert_eq!(rx_packets(&lab.dut), received);
}

fn dropped() {
    let (mut child, line) = child::start("drop a generator");
    assert!(child.wait().unwrap().success());
    assert_eq!(line, "before 0, while 2");
}

/// How many threads of this process belong to a generator.
fn generator_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // A thread may end between the two readings.
    tasks.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("generator/"))).count()
}

fn drop_a_generator() {
    let lab = lab();
    let program = dropping();
    let _attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
    let before = generator_threads();
    let generators = [generator(&lab, 0, None), generator(&lab, 0, Some(1 << 40))];
    eventually("both send", 5, || generators.iter().all(|generator| generator.sent().unwrap().packets > 10_000));
    let threads = generator_threads();
    drop(generators);
    // The kernel wakes who joins a thread shortly before the thread leaves /proc.
    eventually("its threads are gone", 1, || generator_threads() == 0);
    println!("before {before}, while {threads}");
}

fn signals() {
    let (mut child, line) = child::start("send through signals");
    assert!(child.wait().unwrap().success());
    assert_eq!(line, "sent 1000003, received and lost 1000003");
}

fn send_through_signals() {
    const COUNT: u64 = 1_000_003;
    let lab = lab();
    let program = dropping();
    let _attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
    let generator = generator(&lab, 0, Some(COUNT));
    // Whichever thread of the process wants a signal gets it; now that is the generator's alone.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGUSR2);
    signals.thread_block().unwrap();
    while generator.is_running() {
        std::thread::sleep(Duration::from_millis(40));
        kill(Pid::this(), Signal::SIGUSR2).unwrap();
    }
    let sent = generator.wait().unwrap().packets;
    let dropped = driver_drops(&lab);
    settles_at("received", sent - dropped, || program.total().unwrap().packets);
    println!("sent {sent}, received and lost {}", program.total().unwrap().packets + dropped);
}

/// Frames that found the DUT's ring full: veth counts them at the end that receives.
fn driver_drops(lab: &Lab) -> u64 {
    let statistics = lab.generator.netns.run(EthtoolIoctl::open).unwrap().statistics(&lab.generator.name).unwrap();
    let drops = statistics.iter().filter(|statistic| statistic.name.ends_with("xdp_xmit_errors"));
    drops.map(|statistic| statistic.value).sum()
}

fn preflight() {
    let lab = lab();
    let error = must_take_redirected(&lab.generator).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "can't redirect frames to gen0 (ifindex {}): the kernel's XDP features of the interface lack \
             NETDEV_XDP_ACT_NDO_XMIT; a veth has it only while its peer has NAPI; attach an XDP program to the peer of a \
             veth in native mode, or turn its GRO on; to another interface attach one itself",
            lab.generator.ifindex
        )
    );
    let program = dropping();
    let attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
    must_take_redirected(&lab.generator).unwrap();
    drop(attachment);
    let _attachment = attach(program.fd(), &lab.dut, XdpMode::Generic);
    must_take_redirected(&lab.generator).unwrap_err();
    // The other remedy of the two.
    must_take_redirected(&crate::counts::lab(1).generator).unwrap();
}

fn absent_cpu() {
    let lab = lab();
    let error = generator(&lab, 1023, Some(1)).wait().unwrap_err().to_string();
    assert!(error.starts_with("can't run on CPU 1023 alone: sched_setaffinity: EINVAL"), "{error}");
    let error = generator(&lab, 1_000_000, Some(1)).wait().unwrap_err().to_string();
    assert!(error.starts_with("can't run on CPU 1000000 alone"), "{error}");
}
