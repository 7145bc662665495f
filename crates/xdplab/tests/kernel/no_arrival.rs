//! `xdplab trafficgen` where nothing arrives, each kind of it: one sentence says why, by the errno's name, and the exit status is 2
//! unless the command was told to go on.

use std::net::{IpAddr, TcpListener};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use xdplab::device::{Action, Attachment, DutProgram, Operation, ProgramSpec};
use xdplab::netlink::{Ethtool, Rtnl, VethEnd, XdpMode};
use xdplab::packet::MacAddr;
use xdplab::topology::{Lab, LabSpec, Placement, Port};

use crate::counts::{attach, lab};
use crate::live::{Ended, Live, command, programs};
use crate::support::tap::tap;
use crate::support::{BPF, NETNS, TAP, TWO_CPUS, XDP_FEATURES, eventually, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "no_arrival::a_peer_without_napi_can_be_sent_to_if_told_to_go_on",
            &[&NETNS, &BPF, &XDP_FEATURES],
            no_napi,
        ),
        test("no_arrival::a_peer_that_is_down_is_told", &[&NETNS, &BPF], peer_down),
        test("no_arrival::an_interface_without_ndo_xdp_xmit_is_told", &[&NETNS, &BPF, &XDP_FEATURES], no_ndo_xdp_xmit),
        test("no_arrival::a_receiver_that_stalls_is_told_as_a_full_ring", &[&NETNS, &BPF, &TAP], stalled),
        test("no_arrival::an_address_that_nobody_has_is_told", &[&NETNS, &BPF], wrong_address),
        test("no_arrival::an_interface_that_is_set_down_midway_is_told", &[&NETNS, &BPF], set_down),
        test("no_arrival::a_receiver_s_namespace_that_goes_away_is_told", &[&NETNS, &BPF], receiver_gone),
        test("no_arrival::threads_that_share_a_ring_are_told_so", &[&NETNS, &BPF, &TWO_CPUS], shared_ring),
    ]
}

fn trafficgen(port: &Port, args: &[&str]) -> Ended {
    Live::spawn(port, command(&[&["trafficgen"], args].concat())).wait()
}

/// The one line that says why it ended with status 2, after the totals if it had begun.
fn fails(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(2), "{}{}", ended.stdout, ended.stderr);
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("xdplab: ")).collect();
    assert_eq!(lines.len(), 1, "{}", ended.stderr);
    for word in words {
        assert!(lines[0].contains(word), "{word:?} is not in {}", lines[0]);
    }
}

fn bare() -> Lab {
    Lab::build(&LabSpec::new(Placement::Same { cpu: 0 })).unwrap()
}

fn dropping(port: &Port) -> (Attachment, DutProgram) {
    let program = DutProgram::load(ProgramSpec::new(Action::Drop, Operation::NoTouch), 4).unwrap();
    (attach(program.fd(), port, XdpMode::Native), program)
}

fn no_napi() {
    let lab = bare();
    let ended = trafficgen(&lab.generator, &["udp", "gen0", "--keep-going", "--duration", "0.3", "-I", "0.1"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("no NAPI (EOPNOTSUPP)"), "{}", ended.stderr);
    assert!(ended.stdout.contains("not redirected (EOPNOTSUPP)"), "{}", ended.stdout);
}

fn peer_down() {
    let lab = lab(1);
    let (attachment, _program) = dropping(&lab.dut);
    lab.dut.netns.rtnl().unwrap().set_down(lab.dut.ifindex).unwrap();
    for (engine, errno) in [("udp", "ENXIO"), ("xsk-udp", "EBUSY")] {
        let ended = trafficgen(&lab.generator, &[engine, "gen0"]);
        fails(&ended, &["gen0 has no carrier, since its peer is down", errno]);
    }
    let to = lab.dut.ipv4.to_string();
    let ended = trafficgen(&lab.generator, &["tcp", "-i", "gen0", &to, "-t", "0.3"]);
    fails(&ended, &["ETIMEDOUT"]);
    drop(attachment);
    // Ours down: nobody is asked for anything.
    lab.generator.netns.rtnl().unwrap().set_down(lab.generator.ifindex).unwrap();
    fails(&trafficgen(&lab.generator, &["tcp", "-i", "gen0", &to]), &["it is down (ENETDOWN)"]);
    fails(&trafficgen(&lab.generator, &["socket", &to]), &["ENETUNREACH"]);
}

fn no_ndo_xdp_xmit() {
    let lab = lab(1);
    let mut rtnl = lab.generator.netns.rtnl().unwrap();
    rtnl.add_bridge("br0").unwrap();
    let bridge = rtnl.link_by_name("br0").unwrap().ifindex;
    rtnl.set_up(bridge).unwrap();
    let sentence = "Interface br0 does not support sending packets via XDP.";
    fails(&trafficgen(&lab.generator, &["udp", "br0"]), &[sentence, "EOPNOTSUPP", "use xsk-udp or socket"]);
    let ended = trafficgen(&lab.generator, &["tcp", "-i", "br0", "-m", "skb", &lab.dut.ipv4.to_string()]);
    fails(&ended, &[sentence, "EOPNOTSUPP"]);
    let probed = trafficgen(&lab.generator, &["probe", "-i", "br0", "--json"]);
    assert_eq!(probed.status.code(), Some(1));
    let lines: Vec<serde_json::Value> = probed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["supported"], false, "{}", probed.stdout);
    assert!(lines[0]["detail"].as_str().unwrap().contains(sentence), "{}", probed.stdout);
    assert_eq!(lines[1]["supported"], true, "{}", probed.stdout);
}

/// A tap whose program does not read is a receiver that has stalled: its ring of 1,000 packets at most fills.
fn stalled() {
    let lab = lab(1);
    let port = &lab.generator;
    let tap = port.netns.run(|| Ok(tap("tap0"))).unwrap();
    let ifindex = port.netns.rtnl().unwrap().link_by_name("tap0").unwrap().ifindex;
    port.netns.rtnl().unwrap().set_up(ifindex).unwrap();
    let full = "since the receiver's ring was full";
    let ended = trafficgen(port, &["udp", "tap0", "-I", "0.3"]);
    fails(&ended, &["none came to its driver", full]);
    let sent = ended.total("Packets transmitted").unwrap();
    assert!(sent > 0 && sent <= 1_000, "what the ring held is told: {}", ended.stdout);
    assert!(ended.stdout.contains("Limited by          : the receiver"), "{}", ended.stdout);
    let ended = trafficgen(port, &["udp", "tap0", "-I", "0.1", "--keep-going", "--duration", "0.3"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    fails(&trafficgen(port, &["xsk-udp", "tap0", "-i", "0.3"]), &["dropped", "EBUSY"]);
    drop(tap);
}

fn wrong_address() {
    let lab = lab(1);
    let _listener = lab.dut.netns.run(|| Ok(TcpListener::bind((lab.dut.ipv4, 10_000)).unwrap())).unwrap();
    let to = IpAddr::from(lab.dut.ipv4);
    let nobody = MacAddr([2, 0, 0, 0, 0, 0x77]);
    lab.generator.netns.rtnl().unwrap().add_neighbour(lab.generator.ifindex, to, nobody).unwrap();
    let host = to.to_string();
    fails(&trafficgen(&lab.generator, &["tcp", "-i", "gen0", &host, "-t", "0.3"]), &["connect: ETIMEDOUT"]);
    fails(&trafficgen(&lab.generator, &["socket", &host]), &["connect: ETIMEDOUT"]);
    assert_eq!(programs(&lab.generator), 0);
    // Frames arrive whatever their address, and then it depends on who takes them.
    let _pair = pair(&lab.generator);
    let count = ["-n", "10"];
    let ended = trafficgen(&lab.generator, &[&["udp", "a0"], &count[..]].concat());
    assert!(ended.stderr.contains("a1 has no XDP program, and its stack ignores what is sent to 00:00:00:00:00:00"));
    let ended = trafficgen(&lab.generator, &[&["udp", "a0", "-m", "02:00:00:00:00:a1"], &count[..]].concat());
    assert!(!ended.stderr.contains("ignores"), "{}", ended.stderr);
}

/// A veth pair of one queue whose ends are both in this namespace, up, the second with NAPI.
fn pair(port: &Port) -> Rtnl {
    use std::os::fd::AsFd as _;
    let mut rtnl = port.netns.rtnl().unwrap();
    let netns = port.netns.run(|| Ok(std::fs::File::open("/proc/thread-self/ns/net").unwrap())).unwrap();
    let end =
        |name, last| VethEnd { name, netns: netns.as_fd(), mac: MacAddr([2, 0, 0, 0, 0, last]), queues: 1, mtu: 1500 };
    rtnl.add_veth([end("a0", 0xa0), end("a1", 0xa1)]).unwrap();
    for name in ["a0", "a1"] {
        let ifindex = rtnl.link_by_name(name).unwrap().ifindex;
        rtnl.set_up(ifindex).unwrap();
    }
    let a1 = rtnl.link_by_name("a1").unwrap().ifindex;
    port.netns.run(|| Ethtool::open()?.set_offloads(a1, &[("gro", true)])).unwrap().keep();
    rtnl
}

/// Midway: what is sent is refused from then on.
fn set_down() {
    let lab = lab(1);
    let (_attachment, program) = dropping(&lab.dut);
    let (generator, ifindex) = (&lab.generator, lab.generator.ifindex);
    for (args, word) in
        [(&["udp", "gen0", "-I", "0.3"][..], "ENETDOWN"), (&["xsk-udp", "gen0", "-i", "0.3"], "ENETDOWN")]
    {
        let before = program.total().unwrap().packets;
        let live = Live::start(generator, &[&["trafficgen"], args].concat());
        eventually("packets arrive", 20, || program.total().unwrap().packets > before + 1_000);
        generator.netns.rtnl().unwrap().set_down(ifindex).unwrap();
        let ended = live.wait();
        fails(&ended, &[word]);
        assert!(ended.total("Packets sent").unwrap() > 0, "the totals are told all the same: {}", ended.stdout);
        generator.netns.rtnl().unwrap().set_up(ifindex).unwrap();
        thread::sleep(Duration::from_millis(50));
    }
}

/// With the namespace go its end of the pair and ours.
fn receiver_gone() {
    for engine in ["udp", "xsk-udp", "tcp", "socket"] {
        let lab = lab(1);
        let port = lab.dut.ipv4.to_string();
        let sink = Live::spawn(&lab.dut, command(&["trafficgen", "sink"]));
        eventually("the sink waits", 20, || sink.stderr.so_far().contains("Waiting for senders"));
        let args: &[&str] = match engine {
            "tcp" => &["tcp", "-i", "gen0", &port, "-I", "0.6"],
            "socket" => &["socket", &port, "-I", "0.6"],
            _ => &[engine, "gen0"],
        };
        let live = Live::spawn(&lab.generator, command(&[&["trafficgen"], args].concat()));
        eventually("it sends", 20, || {
            let told = live.stderr.so_far();
            told.contains("Transmitting on") || told.contains("Sending to")
        });
        thread::sleep(Duration::from_millis(50));
        lab.dut.netns.rtnl().unwrap().delete_link(lab.dut.ifindex).unwrap();
        let ended = live.wait();
        let words: &[&str] =
            if engine == "socket" { &["nothing arrived", "ENETUNREACH"] } else { &["the interface is gone"] };
        fails(&ended, words);
        let told = if engine == "xsk-udp" { "Totals:" } else { "Duration" };
        assert!(ended.stdout.contains(told), "{engine}: {}", ended.stdout);
    }
}

fn shared_ring() {
    let lab = lab(1);
    let mut rtnl = pair(&lab.generator);
    let a1 = rtnl.link_by_name("a1").unwrap();
    let program = DutProgram::load(ProgramSpec::new(Action::Drop, Operation::NoTouch), 4).unwrap();
    let attach = || Attachment::attach(program.fd(), a1.ifindex, XdpMode::Native);
    let _attachment = lab.generator.netns.run(attach).unwrap();
    let ended = trafficgen(&lab.generator, &["udp", "a0", "-t", "2", "--duration", "0.5"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let line = ended.stdout.lines().find(|line| line.starts_with("  Threads ")).unwrap();
    println!("{line}");
    let times: f64 = line.split("send ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let shares = "2 threads wait for each other at 1 RX queue of a1, whose ring one at a time can fill";
    // On a busy machine it may as well be others that are the reason.
    let why = line.contains(" ns of CPU time") && (line.contains(shares) || line.contains("others ran there"));
    assert!(why == (times < 0.995) || (times - 1.0).abs() < 0.006, "{line}");
}
