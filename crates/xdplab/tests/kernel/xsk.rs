//! `xdplab xsk-drop` and `xsk-tx`: every packet of the queue is accounted for, with every option.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use xdplab::device::Attachment;
use xdplab::generator::Sink;
use xdplab::netlink::XdpMode;
use xdplab::packet::{FlowSpec, FrameSize, build_udp_frame};
use xdplab::topology::Lab;

use crate::counts::{attach, frame, lab, rx_packets, send, settles_at};
use crate::live::{Ended, FEW, Live, command, programs};
use crate::support::xdp::{self, XDP_PASS};
use crate::support::{BPF, NETNS, TWO_CPUS, XSK_FRAGS, emulated, eventually, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("xsk::drop_accounts_for_every_packet_with_every_option", &[&NETNS, &BPF], || {
            every_option("xsk-drop", &OPTIONS);
        }),
        test("xsk::tx_accounts_for_every_packet_with_every_option", &[&NETNS, &BPF], || {
            every_option("xsk-tx", &OPTIONS);
        }),
        test("xsk::with_frags_every_packet_is_accounted_for_too", &[&NETNS, &BPF, &XSK_FRAGS], || {
            every_option("xsk-drop", &FRAGS_OPTIONS);
            every_option("xsk-tx", &FRAGS_OPTIONS);
        }),
        test("xsk::what_is_sent_back_has_its_macs_exchanged_and_arrives", &[&NETNS, &BPF], || {
            sent_back(&[&[], &["-p"], &["-M", "-p"], &["-A", "skb"]]);
        }),
        test("xsk::what_is_sent_back_with_frags_arrives_too", &[&NETNS, &BPF, &XSK_FRAGS], || sent_back(&[&["-F"]])),
        test("xsk::many_packets_are_received_or_in_the_ledger", &[&NETNS, &BPF], || {
            many(&[&["xsk-drop", "dut0"], &["xsk-drop", "dut0", "-p", "-A", "skb"], &["xsk-tx", "dut0"]]);
        }),
        test("xsk::many_packets_with_frags_are_too", &[&NETNS, &BPF, &XSK_FRAGS], || {
            many(&[&["xsk-tx", "dut0", "-p", "-F"]]);
        }),
        test("xsk::sockets_that_share_the_umem_get_packets_in_turn", &[&NETNS, &BPF], shared),
        test("xsk::other_queues_are_left_to_the_stack", &[&NETNS, &BPF, &TWO_CPUS], queues),
        test("xsk::packets_of_several_frames_are_taken_whole", &[&NETNS, &BPF, &XSK_FRAGS], frags),
        test("xsk::lines_and_their_toggle", &[&NETNS, &BPF, &XSK_FRAGS], lines),
        test("xsk::the_thread_runs_with_the_policy_asked_for", &[&NETNS, &BPF], policy),
        test("xsk::what_can_t_be_is_refused_in_a_line_and_leaves_nothing", &[&NETNS, &BPF], refusals),
        test("xsk::it_ends_with_everything_gone", &[&NETNS, &BPF], endings),
    ]
}

fn sink(lab: &Lab) -> (Attachment, Sink) {
    let sink = Sink::load().unwrap();
    (attach(sink.fd().unwrap(), &lab.generator, XdpMode::Native), sink)
}

/// The accounts of the end, as `of: part: packets`; none has a residual.
fn balanced(ended: &Ended) -> BTreeMap<String, BTreeMap<String, u64>> {
    let end = ended.events("end").remove(0);
    let account = |account: &Value| {
        assert_eq!(account["residual"], 0, "{end}");
        let parts = account["parts"].as_array().unwrap().iter();
        let mut parts: BTreeMap<String, u64> =
            parts.map(|part| (part["to"].as_str().unwrap().to_owned(), part["packets"].as_u64().unwrap())).collect();
        parts.insert("all".into(), account["packets"].as_u64().unwrap());
        (account["of"].as_str().unwrap().to_owned(), parts)
    };
    end["ledger"].as_array().unwrap().iter().map(account).collect()
}

/// A live command on the lab's DUT whose sockets have got so many packets, ended.
fn run(lab: &Lab, args: &[&str], packets: u64) -> Ended {
    let live = Live::start(&lab.dut, &[args, &["--json", "-i", "0.1"]].concat());
    send(lab, frame(lab, FlowSpec::lab_v4()), &[0], packets);
    let received = || -> u64 {
        let told = live.stdout.so_far();
        let intervals = told.lines().filter(|line| line.contains(r#""event":"interval""#));
        let sockets = intervals.flat_map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["xsk"]["sockets"].as_array().unwrap().clone()
        });
        sockets.map(|socket| socket["rx_packets"].as_u64().unwrap()).sum()
    };
    eventually(&format!("{args:?}"), 10, || received() == packets);
    live.end()
}

const OPTIONS: [&[&str]; 18] = [
    &[],
    &["-q", "0", "-i", "1"],
    &["-f", "2048"],
    &["-b", "1"],
    &["-b", "512"],
    &["-p"],
    &["-m"],
    &["-u", "-f", "3000"],
    &["-M"],
    &["-x"],
    &["-Q"],
    &["-a"],
    &["-B"],
    &["-C", "copy"],
    &["-w", "BOOTTIME"],
    &["-W", "SCHED_OTHER", "-U", "0"],
    &["-A", "skb"],
    &["-pmMxaB", "-A", "skb", "-C", "copy", "-b", "7", "-u"],
];
const FRAGS_OPTIONS: [&[&str]; 2] = [&["-F"], &["-pmMxaBF", "-A", "skb", "-C", "copy", "-b", "7", "-u"]];

fn every_option(name: &str, every: &[&[&str]]) {
    let lab = lab(1);
    let _sink = sink(&lab);
    for options in every {
        let args = [&[name, "dut0"], *options].concat();
        let has = |option| options.iter().any(|given| given.starts_with('-') && given.contains(option));
        let ended = run(&lab, &args, FEW);
        let accounts = balanced(&ended);
        let all = |of: &str, part: &str| {
            assert_eq!((accounts[of]["all"], accounts[of][part]), (FEW, FEW), "{args:?}: {accounts:?}");
        };
        all("received", "redirected");
        all("redirected", "received by sockets");
        if name == "xsk-tx" {
            all("received by sockets", "sent");
            all("frames sent", "completed");
        }
        let start = ended.events("start").remove(0);
        assert_eq!((&start["xsk"]["mode"], &start["xsk"]["queue"]), (&"copy".into(), &0.into()), "{start}");
        assert_eq!(start["xsk"]["sockets"], if has("M") { 4 } else { 1 }, "{start}");
        let end = ended.events("end").remove(0);
        assert_eq!(end["total"]["received"]["packets"], FEW, "{end}");
        let cost = &end["cpus"][0];
        assert!(cost["busy_ns"].as_u64().unwrap() > 0 && cost["packets"] == FEW, "{end}");
        // Looking for packets that do not come is not being busy with them.
        assert!(has("B") || emulated() || cost["share"].as_f64().unwrap() < 0.5, "{args:?}: {end}");
        assert!(end["limiter"].is_string() || end["limiter"]["not_available"].is_string(), "{end}");
        let calls: u64 = sockets(&end).iter().map(|socket| socket["opt_polls"].as_u64().unwrap()).sum();
        assert_eq!(calls > 0, has("p"), "{args:?}: {end}");
    }
}

fn sockets(end: &Value) -> Vec<Value> {
    end["total"]["xsk"]["sockets"].as_array().unwrap().clone()
}

fn sent_back(every: &[&[&str]]) {
    let lab = lab(1);
    let _sink = sink(&lab);
    for options in every {
        let args = [&["xsk-tx", "dut0", "--json"], *options].concat();
        let before = rx_packets(&lab.generator);
        let live = Live::start(&lab.dut, &args);
        send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], FEW);
        settles_at(&format!("{args:?}: back"), FEW, || rx_packets(&lab.generator) - before);
        balanced(&live.end());
    }
}

fn many(every: &[&[&str]]) {
    const COUNT: u64 = 200_003;
    let lab = lab(1);
    let _sink = sink(&lab);
    for args in every {
        let live = Live::start(&lab.dut, &[*args, &["--json"]].concat());
        let sent = send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], COUNT);
        thread::sleep(Duration::from_millis(200));
        let ended = live.end();
        let accounts = balanced(&ended);
        let received = accounts["received"]["all"];
        assert!(received > 0 && received <= sent.packets, "{accounts:?}");
        let end = ended.events("end").remove(0);
        let full: u64 = sockets(&end).iter().map(|socket| socket["kernel"]["rx_ring_full"].as_u64().unwrap()).sum();
        if full > 0 {
            assert_eq!(end["limiter"], "the AF_XDP thread, whose Rx ring was full at times", "{end}");
        }
    }
}

fn shared() {
    let lab = lab(1);
    let ended = run(&lab, &["xsk-drop", "dut0", "-M"], 62);
    let packets: Vec<u64> =
        sockets(&ended.events("end")[0]).iter().map(|socket| socket["rx_packets"].as_u64().unwrap()).collect();
    assert_eq!(packets, [16, 16, 15, 15]);
}

fn queues() {
    let lab = lab(2);
    let live = Live::start(&lab.dut, &["xsk-drop", "dut0", "-q", "1", "--json"]);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], 20);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[1], 33);
    settles_at("received", 53, || rx_packets(&lab.dut));
    let ended = live.end();
    // veth_select_rxq(), drivers/net/veth.c: the sending CPU modulo the number of queues.
    assert_eq!(balanced(&ended)["redirected"]["received by sockets"], 33);
    assert_eq!(ended.events("end")[0]["total"]["received"]["rx_queues"]["1"]["packets"], 33);
}

fn frags() {
    const LENGTH: usize = 6_000;
    let offloads = [("gro", true), ("gso", false), ("tso", false), ("tx", false)].map(|(name, on)| (name.into(), on));
    let spec = xdplab::topology::LabSpec::new(xdplab::topology::Placement::Same { cpu: 0 });
    let lab = Lab::build(&xdplab::topology::LabSpec { mtu: 9_000, offloads: offloads.to_vec(), ..spec }).unwrap();
    let _link =
        lab.generator.netns.run(|| Ok(xdp::attach(lab.generator.ifindex, XDP_PASS, xdp::HAS_FRAGS))).unwrap().unwrap();
    let flow = FlowSpec { src_mac: lab.generator.mac, dst_mac: lab.dut.mac, ..FlowSpec::lab_v4() };
    let long = build_udp_frame(&flow, FrameSize::L2(LENGTH)).unwrap();
    for name in ["xsk-drop", "xsk-tx"] {
        let live = Live::start(&lab.dut, &[name, "dut0", "-F", "--json"]);
        packet_socket::send(&lab, &long, 20);
        thread::sleep(Duration::from_millis(200));
        let ended = live.end();
        let accounts = balanced(&ended);
        assert_eq!(accounts["redirected"]["received by sockets"], 20, "{accounts:?}");
        let socket = &sockets(&ended.events("end")[0])[0];
        assert_eq!((&socket["rx_packets"], &socket["rx_frags"]), (&20.into(), &40.into()), "{socket}");
        // Without -F a packet that is too long for a frame is dropped by the socket, and told.
        let live = Live::start(&lab.dut, &[name, "dut0", "--json"]);
        packet_socket::send(&lab, &long, 20);
        thread::sleep(Duration::from_millis(200));
        let accounts = balanced(&live.end());
        assert_eq!(accounts["redirected"]["dropped by sockets"], 20, "{accounts:?}");
    }
}

/// Frames longer than a page, which live frames can't be.
mod packet_socket {
    use nix::sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike as _, sendto, socket,
    };
    use std::os::fd::AsRawFd as _;
    use xdplab::topology::Lab;

    pub(super) fn send(lab: &Lab, frame: &[u8], count: usize) {
        lab.generator
            .netns
            .run(|| {
                let socket =
                    socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).unwrap();
                let address = address(lab.generator.ifindex);
                for _ in 0..count {
                    sendto(socket.as_raw_fd(), frame, &address, MsgFlags::empty()).unwrap();
                }
                Ok(())
            })
            .unwrap();
    }

    #[expect(unsafe_code, reason = "nix makes no link address of its parts")]
    fn address(ifindex: u32) -> LinkAddr {
        let raw = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_IP as u16).to_be(),
            sll_ifindex: ifindex.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0; 8],
        };
        // SAFETY: a whole sockaddr_ll of the family that the length is for.
        unsafe { LinkAddr::from_raw((&raw const raw).cast(), Some(size_of_val(&raw) as u32)) }.unwrap()
    }
}

fn lines() {
    let lab = lab(1);
    let _sink = sink(&lab);
    let live = Live::start(&lab.dut, &["xsk-tx", "dut0", "-i", "0.3", "-a", "-F"]);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], FEW);
    eventually("a line", 5, || live.lines("dut0:0 ") > 3 && live.lines("  Opt polls ") > 0);
    assert_eq!(live.lines("  Queue full "), 0);
    live.signal(Signal::SIGQUIT);
    eventually("extra statistics", 5, || live.lines("  Queue full ") > 0);
    let ended = live.end();
    let has = |line: &str| assert!(ended.stdout.contains(line), "{line:?} is not in {}", ended.stdout);
    for line in [
        " xmit frag/s\n",
        "\nTotals:\n RX                             63 pkts             63 frags\n TX                             63 pkts ",
        "\n sock0:\n  RX                             63 pkts ",
        "\n  RX queue full                   0 pkts\n",
        "\n  Till fail polls                 0 calls\n",
        ": 63 received = 63 redirected, residual 0\n",
        " s, partial\n",
    ] {
        has(line);
    }
    let live = Live::start(&lab.dut, &["xsk-drop", "dut0", "-i", "0.1", "-Q"]);
    thread::sleep(Duration::from_millis(500));
    let ended = live.end();
    assert_eq!(ended.stdout.matches("dut0:0 ").count(), 1, "the last alone: {}", ended.stdout);
    // The last interval is told although its time is over.
    let ended = Live::start(&lab.dut, &["xsk-drop", "dut0", "-i", "0.1", "-Q", "--duration", "0.3"]).wait();
    assert_eq!(ended.stdout.matches("dut0:0 ").count(), 1, "the last alone: {}", ended.stdout);
    let Some(interrupt) = interrupt() else { return };
    let live = Live::start(&lab.dut, &["xsk-drop", "dut0", "-i", "0.1", "-I", &interrupt]);
    eventually("interrupts", 5, || live.lines(" IRQs ") > 0);
    assert!(live.end().stdout.contains(" intrs\n sock0:\n"));
}

/// The name of an interrupt of the machine that the kernel counts by number.
fn interrupt() -> Option<String> {
    let text = fs::read_to_string("/proc/interrupts").unwrap();
    let line = text.lines().find(|line| {
        let number = line.split(':').next().and_then(|number| number.trim().parse::<u32>().ok());
        number.is_some_and(|number| fs::exists(format!("/sys/kernel/irq/{number}/per_cpu_count")).unwrap())
    })?;
    Some(line.trim().to_owned())
}

fn policy() {
    let lab = lab(1);
    let live = Live::start(&lab.dut, &["xsk-drop", "dut0", "-p", "-W", "SCHED_FIFO", "-U", "7"]);
    let tasks = fs::read_dir(format!("/proc/{}/task", live.child.id())).unwrap();
    // proc_pid_stat(5): rt_priority and policy are fields 40 and 41; SCHED_FIFO is 1.
    let policies: Vec<(String, String)> = tasks
        .map(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
            (fields[37].to_owned(), fields[38].to_owned())
        })
        .collect();
    assert!(policies.contains(&("7".into(), "1".into())), "{policies:?}");
    live.end();
}

fn refusals() {
    let lab = lab(2);
    for (options, words) in [
        (&["-q", "2"][..], &["queue 2 is out of range", "the interface has 2"][..]),
        (&["-C", "zero-copy"], &["the driver has no zero-copy", "-C auto"]),
        (&["-C", "zero-copy", "-A", "skb"], &["in skb mode every packet is copied", "leave -C out"]),
        (&["-f", "3000"], &["3000 bytes is not a power of two", "unaligned"]),
        (&["-f", "1024"], &["1024 bytes", "choose 2048 to 4096"]),
        (&["-b", "0"], &["a batch of 0 packets", "choose 1 to 4294967295"]),
        (&["-B", "-b", "65536"], &["a batch of 65536 packets", "choose 1 to 65535"]),
        (&["-W", "SCHED_FIFO"], &["0 is none of SCHED_FIFO", "-U with 1 to 99"]),
        (&["-W", "SCHED_FIFO", "-U", "100"], &["100 is none of SCHED_FIFO"]),
        (&["-U", "3"], &["3 is none of SCHED_OTHER", "-W SCHED_FIFO"]),
        (&["-I", "no such interrupt"], &["no such interrupt", "/proc/interrupts"]),
    ] {
        for name in ["xsk-drop", "xsk-tx"] {
            let args = [&[name, "dut0"], options].concat();
            Live::spawn(&lab.dut, command(&args)).wait().refused(words);
            assert_eq!(programs(&lab.dut), 0, "{args:?}");
        }
    }
    let live = Live::start(&lab.dut, &["xsk-drop", "dut0", "-q", "1"]);
    let ended = Live::spawn(&lab.dut, command(&["xsk-drop", "dut0", "-q", "1"])).wait();
    ended.refused(&["another AF_XDP socket holds the queue"]);
    let ended = Live::spawn(&lab.dut, command(&["xsk-drop", "dut0", "-q", "0"])).wait();
    ended.refused(&["a program is there already"]);
    live.end();
    let _link = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap().unwrap();
    Live::spawn(&lab.dut, command(&["xsk-tx", "dut0"])).wait().refused(&["a program is there already"]);
}

fn endings() {
    let lab = lab(1);
    let mut live = Live::start(&lab.dut, &["xsk-tx", "dut0"]);
    live.child.kill().unwrap();
    live.child.wait().unwrap();
    eventually("the program is gone", 5, || programs(&lab.dut) == 0);
    // The queue is free again.
    let ended = Live::start(&lab.dut, &["xsk-drop", "dut0", "-d", "0.3"]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let mut at_once = command(&["xsk-drop", "dut0"]);
    at_once.env("XDP_SAMPLE_IMMEDIATE_EXIT", "1");
    let ended = Live::spawn(&lab.dut, at_once).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stdout.starts_with("\nTotals:\n RX  "), "{}", ended.stdout);
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let live = Live::start(&lab.dut, &["xsk-drop", "dut0", "-p"]);
        live.signal(signal);
        assert_eq!(live.wait().status.code(), Some(0));
        assert_eq!(programs(&lab.dut), 0);
    }
    let live = Live::start(&lab.dut, &["xsk-drop", "dut0", "-i", "0.2"]);
    lab.dut.netns.rtnl().unwrap().delete_link(lab.dut.ifindex).unwrap();
    let ended = live.wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.lines().last().unwrap().contains("the interface is gone"), "{}", ended.stderr);
}
