//! `xdplab redirect`, `redirect-map`, `redirect-multi` and `monitor`, run as a user runs them: a sender in a network namespace
//! of its own, the redirecting interfaces in a second, and each receiver in another.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use serde_json::Value;
use tempfile::TempDir;
use xdplab::device::Attachment;
use xdplab::generator::Sink;
use xdplab::live::Account;
use xdplab::netlink::{VethEnd, XdpMode};
use xdplab::packet::{FlowSpec, MacAddr};
use xdplab::record::Record;
use xdplab::topology::{Lab, NetNs};

use crate::counts::{frame, lab, send, settles_at};
use crate::live::{Ended, FEW, Live, add_default_route, command, generator, programs};
use crate::support::xdp::{self, XDP_PASS};
use crate::support::{BPF, NETNS, XDP_FEATURES, eventually, refuses_redirects_to_deaf_peers, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("redirect::every_way_counts_to_the_packet", &[&NETNS, &BPF], every_way),
        test("redirect::frames_have_the_macs_that_were_promised", &[&NETNS, &BPF], macs),
        test("redirect::a_broadcast_reaches_three_receivers", &[&NETNS, &BPF], broadcast),
        test("redirect::what_finds_a_ring_full_is_in_the_ledger", &[&NETNS, &BPF], full_ring),
        test("redirect::a_receiver_that_goes_away_is_told_by_errno", &[&NETNS, &BPF], receiver_gone),
        test("redirect::a_target_that_goes_down_is_told_by_errno", &[&NETNS, &BPF], target_down),
        test("redirect::a_target_that_takes_no_frames_is_refused", &[&NETNS, &BPF, &XDP_FEATURES], deaf),
        test("redirect::other_starts_that_fail_leave_nothing_behind", &[&NETNS, &BPF], refusals),
        test("redirect::what_a_signal_ends_is_told_whole", &[&NETNS, &BPF], signal),
        test("redirect::it_ends_when_a_target_is_gone", &[&NETNS, &BPF], target_gone),
        test("redirect::immediate_exit_takes_every_option", &[&NETNS, &BPF], immediate_exit),
        test("redirect::json_and_record_tell_the_same", &[&NETNS, &BPF], json_and_record),
        test("redirect::extended_lines", &[&NETNS, &BPF], extended),
        test("monitor::it_sees_every_redirect_of_the_machine", &[&NETNS, &BPF], monitor),
        test("monitor::it_sees_every_cpumap_of_the_machine", &[&NETNS, &BPF], monitor_cpumap),
        test("monitor::errors_are_told_by_errno", &[&NETNS, &BPF], monitor_errors),
        test("monitor::immediate_exit_and_options", &[&NETNS, &BPF], monitor_options),
    ]
}

/// A veth pair from the DUT's namespace to one of its own.
pub(crate) struct Exit {
    name: String,
    out: u32,
    mac: MacAddr,
    netns: NetNs,
    sink: Sink,
    /// The sink's program, which gives this end its NAPI.
    attachment: Option<Attachment>,
    inner: u32,
}

impl Exit {
    fn new(lab: &Lab, number: u8, mtu: u32) -> Self {
        let (name, inner_name, netns) = (format!("out{number}"), format!("sink{number}"), NetNs::new().unwrap());
        let mac = |end| MacAddr([2, 0x58, 0x44, 0x50, 0x10 + number, end]);
        let end = |name, netns, mac| VethEnd { name, netns, mac, queues: 1, mtu };
        let mut rtnl = lab.dut.netns.rtnl().unwrap();
        let ends = [end(&name, lab.dut.netns.as_fd(), mac(1)), end(&inner_name, netns.as_fd(), mac(2))];
        rtnl.add_veth(ends).unwrap();
        let mut inner_rtnl = netns.rtnl().unwrap();
        let (out, inner) =
            (rtnl.link_by_name(&name).unwrap().ifindex, inner_rtnl.link_by_name(&inner_name).unwrap().ifindex);
        for (rtnl, ifindex) in [(&mut rtnl, out), (&mut inner_rtnl, inner)] {
            rtnl.set_no_arp(ifindex).unwrap();
            rtnl.set_no_link_local_address(ifindex).unwrap();
            rtnl.set_up(ifindex).unwrap();
        }
        eventually("it carries frames", 5, || rtnl.link_by_index(out).unwrap().oper_up);
        Self { name, out, mac: mac(1), netns, sink: Sink::load().unwrap(), attachment: None, inner }
    }

    /// The same, with a receiver that counts.
    pub(crate) fn with_sink(lab: &Lab, number: u8) -> Self {
        let mut exit = Self::new(lab, number, 1500);
        let fd = exit.sink.fd().unwrap();
        let attachment = exit.netns.run(|| Attachment::attach(fd, exit.inner, XdpMode::Native)).unwrap();
        exit.attachment = Some(attachment);
        exit
    }

    fn received(&self) -> u64 {
        self.sink.packets().unwrap()
    }
}

fn send_few(lab: &Lab) {
    send(lab, frame(lab, FlowSpec::lab_v4()), &[0], FEW);
}

fn programs_on(lab: &Lab, ifindex: u32) -> usize {
    lab.dut.netns.rtnl().unwrap().link_by_index(ifindex).unwrap().xdp.len()
}

/// Every account balances.
fn balances(stdout: &str) {
    let residuals: Vec<&str> = stdout.lines().filter_map(|line| line.split(", residual ").nth(1)).collect();
    assert!(!residuals.is_empty() && residuals.iter().all(|residual| *residual == "0"), "{stdout}");
}

/// An account of the ledger in the end event.
fn account(ended: &Ended, of: &str) -> Account {
    let ledger = ended.events("end").remove(0)["ledger"].clone();
    let accounts: Vec<Account> = serde_json::from_value(ledger.clone()).unwrap();
    assert!(accounts.iter().all(|account| account.residual == 0), "{ledger}");
    accounts.into_iter().find(|account| account.of == of).unwrap_or_else(|| panic!("no {of:?} in {ledger}"))
}

fn part(account: &Account, to: &str) -> u64 {
    account.parts.iter().find(|part| part.to == to).map_or(0, |part| part.packets)
}

const WAYS: [&[&str]; 6] = [
    &["redirect"],
    &["redirect", "-l", "load-bytes"],
    &["redirect-map"],
    &["redirect-map", "-X"],
    &["redirect-map", "-X", "-A", "forward"],
    &["redirect-map", "--load-egress", "--egress-action", "drop"],
];

fn every_way() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    for mode in ["native", "skb"] {
        for way in WAYS {
            let args = [way, &["dut0", "out0", "-m", mode, "-s", "-i", "100"]].concat();
            let live = Live::start(&lab.dut, &args);
            let before = exit.received();
            send_few(&lab);
            let drops = way.contains(&"drop");
            settles_at(&format!("{args:?}"), if drops { 0 } else { FEW }, || exit.received() - before);
            thread::sleep(Duration::from_millis(20));
            let ended = live.end();
            let out = &ended.stdout;
            assert!(out.contains("\ndut0->out0 "), "{args:?}: {out}");
            assert_eq!(ended.total("Packets received"), Some(FEW), "{args:?}: {out}");
            assert_eq!(ended.total("Packets redirected"), Some(FEW), "{args:?}: {out}");
            assert_eq!(ended.total("Errors recorded"), None, "{args:?}: {out}");
            let native = mode == "native";
            assert_eq!(ended.total("Packets transmitted"), (native && !drops).then_some(FEW), "{args:?}: {out}");
            assert_eq!(ended.total("Tx dropped"), (native && drops).then_some(FEW), "{args:?}: {out}");
            balances(out);
            let arrived = if drops { 0 } else { FEW };
            let counter = "(tx_packets of out0, since its peer is in another network namespace)";
            let dropped = if drops { " + 63 dropped by the egress program" } else { "" };
            if native {
                for stage in [
                    "63 received = 63 handed to out0,".to_owned(),
                    format!("63 handed to out0 = {arrived} sent{dropped},"),
                    format!("{arrived} sent by out0 = {arrived} received {counter},"),
                ] {
                    assert!(out.contains(&stage), "{args:?}: {stage} is not in {out}");
                }
            } else {
                let dropped = if drops { " + 63 dropped by the egress program of out0" } else { "" };
                let stage = format!("63 received = {arrived} received behind out0 {counter}{dropped},");
                assert!(out.contains(&stage), "{args:?}: {stage} is not in {out}");
            }
            assert_eq!((programs(&lab.dut), programs_on(&lab, exit.out)), (0, 0));
        }
    }
}

/// A socket that sees every frame that comes into the namespace.
fn tap(netns: &NetNs) -> OwnedFd {
    let open = || socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll);
    netns.run(|| Ok(open().unwrap())).unwrap()
}

fn macs() {
    let lab = lab(1);
    let exit = Exit::new(&lab, 0, 1500);
    let _pass = exit.netns.run(|| Ok(xdp::attach(exit.inner, XDP_PASS, 0))).unwrap().unwrap();
    let swapped = [lab.generator.mac.0, lab.dut.mac.0].concat();
    let sent_by_exit = [lab.generator.mac.0, exit.mac.0].concat();
    for (way, expected) in [(WAYS[0], &swapped), (WAYS[1], &swapped), (WAYS[2], &swapped), (WAYS[3], &sent_by_exit)] {
        for mode in ["native", "skb"] {
            let live = Live::start(&lab.dut, &[way, &["dut0", "out0", "-m", mode]].concat());
            let tap = tap(&exit.netns);
            send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], 1);
            let mut bytes = [0; 64];
            eventually("a frame", 5, || recv(tap.as_raw_fd(), &mut bytes, MsgFlags::empty()).is_ok());
            assert_eq!(bytes[..12], **expected, "{way:?} in {mode} mode");
            live.end();
        }
    }
}

fn broadcast() {
    let lab = lab(1);
    let exits = [0, 1, 2].map(|number| Exit::with_sink(&lab, number));
    for mode in ["native", "skb"] {
        for (egress, dropped) in [(&[][..], false), (&["-X"], false), (&["-X", "-A", "drop"], true)] {
            let args = ["redirect-multi", "dut0", "out0", "out1", "out2", "-s", "--json", "-m", mode];
            let live = Live::start(&lab.dut, &[&args, egress].concat());
            let before = exits.each_ref().map(Exit::received);
            send_few(&lab);
            let arrives = if dropped { 0 } else { FEW };
            for (exit, before) in exits.iter().zip(before) {
                settles_at(&format!("{}, {mode} mode, {egress:?}", exit.name), arrives, || exit.received() - before);
            }
            thread::sleep(Duration::from_millis(20));
            let ended = live.end();
            assert_eq!(part(&account(&ended, "received"), "redirected"), FEW);
            let copies = account(&ended, "3 copies of each");
            assert_eq!((copies.packets, copies.residual), (3 * FEW, 0), "{copies:?}");
            for exit in exits.iter().filter(|_| mode == "native") {
                let handed = account(&ended, &format!("handed to {}", exit.name));
                assert_eq!((handed.packets, part(&handed, "sent")), (FEW, arrives), "{handed:?}");
                let drops = part(&handed, "dropped by the egress program");
                assert_eq!(drops, if dropped { FEW } else { 0 }, "{handed:?}");
                assert_eq!(account(&ended, &format!("sent by {}", exit.name)).packets, arrives);
            }
            if mode == "native" {
                assert_eq!(account(&ended, "handed to dut0").packets, 0, "no copy for where it came from");
            }
            assert_eq!(ended.events("end")[0]["total"]["redirects"]["packets"], FEW);
        }
    }
}

fn full_ring() {
    const COUNT: u64 = 300_000;
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    for way in [WAYS[0], WAYS[2], WAYS[3]] {
        let before = exit.received();
        let live = Live::start(&lab.dut, &[way, &["dut0", "out0", "--json"]].concat());
        send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], COUNT);
        thread::sleep(Duration::from_millis(50));
        let ended = live.end();
        let received = account(&ended, "received").packets;
        assert!(received > 0 && received <= COUNT, "{received}");
        let handed = account(&ended, "handed to out0");
        let (sent, full) = (part(&handed, "sent"), part(&handed, "dropped, its ring was full"));
        assert_eq!((handed.packets, sent + full, sent), (received, received, exit.received() - before), "{handed:?}");
    }
}

fn receiver_gone() {
    let lab = lab(1);
    for way in [WAYS[0], WAYS[2], WAYS[5]] {
        let mut exit = Exit::with_sink(&lab, 0);
        let live = Live::start(&lab.dut, &[way, &["dut0", "out0", "-i", "100"]].concat());
        exit.attachment = None;
        send_few(&lab);
        thread::sleep(Duration::from_millis(20));
        let ended = live.end();
        let out = &ended.stdout;
        assert_eq!(ended.total("Packets received"), Some(FEW), "{way:?}: {out}");
        balances(out);
        if refuses_redirects_to_deaf_peers() {
            assert_eq!(ended.total("Errors recorded"), Some(FEW), "{way:?}: {out}");
            assert!(out.contains("63 received = 0 handed to out0 + 63 not redirected, EOPNOTSUPP,"), "{way:?}: {out}");
            assert!(out.contains("\n    EOPNOTSUPP "), "in terse mode too: {out}");
        } else {
            // The egress program comes before the driver.
            let why = if way.contains(&"drop") { " by the egress program" } else { ", its driver said ENXIO" };
            assert!(out.contains(&format!("63 handed to out0 = 0 sent + 63 dropped{why}")), "{way:?}: {out}");
        }
        lab.dut.netns.rtnl().unwrap().delete_link(exit.out).unwrap();
    }
}

fn target_down() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    lab.dut.netns.rtnl().unwrap().set_down(exit.out).unwrap();
    let live = Live::start(&lab.dut, &["redirect-map", "dut0", "out0"]);
    assert!(live.stderr.so_far().contains("out0 is down: redirects to it fail with ENETDOWN"));
    send_few(&lab);
    thread::sleep(Duration::from_millis(20));
    let ended = live.end();
    assert!(ended.stdout.contains("63 not redirected, ENETDOWN"), "{}", ended.stdout);
}

fn deaf() {
    let lab = lab(1);
    let exit = Exit::new(&lab, 0, 1500);
    for args in [
        &["redirect", "dut0", "out0"][..],
        &["redirect-map", "dut0", "out0", "-X", "-A", "drop"],
        &["redirect-multi", "dut0", "out0"],
    ] {
        let ended = Live::spawn(&lab.dut, command(args)).wait();
        ended.refused(&["out0", "its peer takes no redirected frames (EOPNOTSUPP)", "ethtool -K PEER gro on"]);
        assert_eq!((programs(&lab.dut), programs_on(&lab, exit.out)), (0, 0), "{args:?}");
    }
    // What the remedy says, works.
    exit.netns.run(|| xdplab::netlink::Ethtool::open()?.set_offloads(exit.inner, &[("gro", true)])).unwrap().keep();
    Live::start(&lab.dut, &["redirect-map", "dut0", "out0", "-X", "-A", "drop"]).end();
    // In skb mode no NAPI is needed.
    Live::start(&lab.dut, &["redirect", "dut0", "out0", "-m", "skb"]).end();
}

fn refusals() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    let refused = |args: &[&str], words: &[&str]| {
        Live::spawn(&lab.dut, command(args)).wait().refused(words);
        assert_eq!(programs_on(&lab, exit.out), 0, "{args:?}");
    };
    refused(&["redirect", "dut0", "out7"], &["out7", "ENODEV", "there are here: lo, dut0, out0"]);
    refused(&["redirect-multi", "dut0", "out0", "dut0"], &["dut0", "it is named twice"]);
    let link = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap().unwrap();
    for mode in ["native", "skb"] {
        refused(&["redirect-map", "dut0", "out0", "-m", mode], &["a program is there already"]);
        refused(&["redirect-multi", "out0", "dut0", "-m", mode], &["a program is there already"]);
    }
    drop(link);
    lab.dut
        .netns
        .run(|| {
            add_default_route(exit.out);
            Ok(())
        })
        .unwrap();
    for args in [&["redirect", "dut0", "out0"][..], &["redirect-multi", "dut0", "out0"]] {
        refused(args, &["out0", "default route", "--force"]);
    }
    Live::start(&lab.dut, &["redirect", "dut0", "out0", "--force"]).end();
}

fn signal() {
    let lab = lab(1);
    let _exit = Exit::with_sink(&lab, 0);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let live = Live::start(&lab.dut, &["redirect", "dut0", "out0", "-i", "100"]);
        let generator = generator(&lab);
        thread::sleep(Duration::from_millis(300));
        live.signal(signal);
        let ended = live.wait();
        generator.stop().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains(" s, partial"), "{}", ended.stdout);
        balances(&ended.stdout);
        assert_eq!(programs(&lab.dut), 0);
    }
}

fn target_gone() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    let live = Live::start(&lab.dut, &["redirect-map", "dut0", "out0", "-i", "0.2"]);
    lab.dut.netns.rtnl().unwrap().delete_link(exit.out).unwrap();
    let ended = live.wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.contains("count packets of out0"), "{}", ended.stderr);
    assert_eq!(programs(&lab.dut), 0);
}

/// As test suites made for the peer run it: the ends of pairs that are down, redirected to each other.
fn immediate_exit() {
    let netns = NetNs::new().unwrap();
    let end =
        |name, end| VethEnd { name, netns: netns.as_fd(), mac: MacAddr([2, 0, 0, 0, 0, end]), queues: 1, mtu: 1500 };
    netns.rtnl().unwrap().add_veth([end("btest0", 0), end("btest1", 1)]).unwrap();
    netns.rtnl().unwrap().add_veth([end("btest2", 2), end("btest3", 3)]).unwrap();
    let two = ["btest0", "btest1"];
    let four = ["btest0", "btest1", "btest2", "btest3"];
    let options: [&[&str]; 5] =
        [&["-vv"], &["-s"], &["-m", "skb"], &["-e"], &["--stats", "--mode", "native", "-i", "1"]];
    let egress: [&[&str]; 3] = [&["-X"], &["-X", "-A", "forward"], &["-X", "-A", "drop"]];
    let load: [&[&str]; 2] = [&["-l", "load-bytes"], &["-l", "dpa", "-m", "skb"]];
    for (command_name, interfaces, more) in
        [("redirect", &two[..], &load[..]), ("redirect-map", &two, &egress), ("redirect-multi", &four, &egress)]
    {
        for options in options.iter().chain(more) {
            let args = [&[command_name], interfaces, options].concat();
            let mut command = command(&args);
            command.env("XDP_SAMPLE_IMMEDIATE_EXIT", "1").stdin(std::process::Stdio::null());
            let output = netns.run(|| Ok(command.output().unwrap())).unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
            assert!(output.stdout.starts_with(b"  Duration            : 0."), "{args:?}: {stderr}");
            assert!(stderr.contains("Redirecting "), "{stderr}");
        }
    }
    assert!(netns.rtnl().unwrap().links().unwrap().iter().all(|link| link.xdp.is_empty()));
}

fn json_and_record() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("live.json");
    let args = ["redirect-map", "dut0", "out0", "-X", "-s", "--json", "-i", "0.3", "--record", file.to_str().unwrap()];
    let live = Live::start(&lab.dut, &args);
    send_few(&lab);
    settles_at("received", FEW, || exit.received());
    eventually("two lines", 5, || live.lines("interval") > 1);
    let ended = live.end();
    let run = Record::read(&file).unwrap().live_runs.remove(0);
    let strip = |mut told: Value| {
        told.as_object_mut().unwrap().retain(|name, _| name != "schema" && name != "event");
        told
    };
    assert_eq!(strip(ended.events("start").remove(0)), serde_json::to_value(&run.start).unwrap());
    assert_eq!(strip(ended.events("end").remove(0)), serde_json::to_value(&run.end).unwrap());
    let told: Vec<Value> = ended.events("interval").into_iter().map(strip).collect();
    assert_eq!(Value::from(told), serde_json::to_value(&run.intervals).unwrap());
    let start = &ended.events("start")[0];
    assert_eq!((&start["command"], &start["program"]), (&"redirect-map".into(), &"redirect-map:egress-forward".into()));
    assert_eq!((&start["targets"][0]["interface"], &start["targets"][0]["passes"]), (&"out0".into(), &true.into()));
    let flow = &ended.events("end")[0]["total"]["xmit"]["flows"]["dut0->out0"];
    assert_eq!((&flow["sent"], &flow["drops"]), (&FEW.into(), &0.into()), "{flow}");
}

fn extended() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    let live = Live::start(&lab.dut, &["redirect", "dut0", "out0", "-s", "-e", "-i", "100"]);
    send_few(&lab);
    settles_at("received", FEW, || exit.received());
    let ended = live.end();
    let labels = ended.stdout.lines().map(|line| line.chars().take(24).collect::<String>().trim_end().to_owned());
    let labels: Vec<String> = labels.take_while(|label| !label.contains("period per packet")).collect();
    let cpu = labels.iter().find(|label| label.starts_with("    cpu:")).unwrap().trim().to_owned();
    let expected = [
        "".to_owned(),
        "dut0->out0".into(),
        "  receive total".into(),
        format!("    {cpu}"),
        "  redirect total".into(),
        format!("    {cpu}"),
        "  redirect_err".into(),
        "  xdp_exception".into(),
        "  xmit dut0->out0".into(),
        format!("     {cpu}"),
    ];
    assert_eq!(labels, expected, "{}", ended.stdout);
    let terse = ended.stdout.lines().nth(1).unwrap();
    let units: Vec<&str> = terse.split_whitespace().filter(|word| word.contains("/s")).collect();
    assert_eq!(units, ["rx/s", "redir/s", "err,drop/s", "xmit/s"], "{terse}");
}

/// The monitor of one namespace sees what goes on in all.
fn monitor() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    let elsewhere = crate::counts::lab(1);
    let label = format!("dut0@{0}->out0@{0}", lab.dut.netns.inode());
    for (port, label) in [(&lab.dut, "dut0->out0".to_owned()), (&elsewhere.dut, label)] {
        let watching = Live::start(port, &["monitor", "-s", "--json"]);
        let live = Live::start(&lab.dut, &["redirect-map", "dut0", "out0"]);
        let before = exit.received();
        send_few(&lab);
        settles_at("received", FEW, || exit.received() - before);
        live.end();
        let ended = watching.end();
        let total = &ended.events("end")[0]["total"];
        assert_eq!(total["xmit"]["flows"][&label]["sent"], FEW, "{label}: {total}");
        // The generator's redirects to gen0, and the program's.
        assert!(total["redirects"]["packets"].as_u64().unwrap() >= 2 * FEW, "{total}");
        assert!(total["received"].is_null() && ended.events("end")[0]["ledger"].is_null(), "{total}");
    }
}

fn monitor_cpumap() {
    let (lab, elsewhere) = (lab(1), crate::counts::lab(1));
    let watching = Live::start(&elsewhere.dut, &["monitor", "--json"]);
    let live = Live::start(&lab.dut, &["redirect-cpu", "dut0", "-c", "0", "-p", "no-touch", "-r", "drop"]);
    send_few(&lab);
    thread::sleep(Duration::from_millis(50));
    live.end();
    let ended = watching.end();
    let cpumap = &ended.events("end")[0]["total"]["cpumap"];
    // Others on the machine may add some.
    let from = cpumap["enqueued"]["to"]["0"].as_object().unwrap().values();
    assert!(from.map(|counts| counts["processed"].as_u64().unwrap()).sum::<u64>() >= FEW, "{cpumap}");
    assert!(cpumap["kthreads"]["cpus"]["0"]["drop"].as_u64().unwrap() >= FEW, "{cpumap}");
}

fn monitor_errors() {
    let lab = lab(1);
    let exit = Exit::with_sink(&lab, 0);
    let watching = Live::start(&lab.dut, &["monitor", "-i", "100"]);
    let live = Live::start(&lab.dut, &["redirect-map", "dut0", "out0"]);
    drop(exit.attachment);
    send_few(&lab);
    thread::sleep(Duration::from_millis(20));
    live.end();
    let ended = watching.end();
    let (label, errno) = match refuses_redirects_to_deaf_peers() {
        true => ("Errors recorded", "EOPNOTSUPP"),
        false => ("Tx dropped", "ENXIO"),
    };
    assert!(ended.total(label) >= Some(FEW), "others on the machine may add some: {}", ended.stdout);
    assert!(ended.stdout.contains(&format!("\n    {errno} ")), "{}", ended.stdout);
    assert!(ended.stderr.contains("-s (--stats)"), "{}", ended.stderr);
}

fn monitor_options() {
    let lab = lab(1);
    for options in [&[][..], &["-s"], &["--stats", "-e"], &["--extended", "--interval", "1"], &["-i1", "-v"]] {
        let mut command = command(&[&["monitor"], options].concat());
        command.env("XDP_SAMPLE_IMMEDIATE_EXIT", "1");
        let ended = Live::spawn(&lab.dut, command).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        // Others on the machine may redirect meanwhile.
        assert!(ended.stdout.starts_with("  Duration            : 0."), "{}", ended.stdout);
    }
    let live = Live::start(&lab.dut, &["monitor", "-s", "-e", "-i", "0.2"]);
    eventually("an extended interval", 5, || live.lines("  devmap_xmit") > 0);
    let ended = live.end();
    for label in ["Summary ", "  kthread", "  redirect", "  redirect_err", "  xdp_exception", "  devmap_xmit"] {
        assert!(
            ended.stdout.contains(&format!("\n{label}")) || ended.stdout.starts_with(label),
            "{label}: {}",
            ended.stdout
        );
    }
}
