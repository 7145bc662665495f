//! `xdplab redirect-cpu`: every packet is accounted for, on the CPU that was meant, in every mode.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use xdplab::device::{Attachment, CpumapSpec, Remote, Selection};
use xdplab::generator::Sink;
use xdplab::live::{Counters, CpumapDevice, Source as _};
use xdplab::netlink::XdpMode;
use xdplab::packet::{Addresses, FlowSpec, Vlan, VlanTag};
use xdplab::topology::Lab;

use crate::counts::{attach, frame, lab, rx_packets, send, settles_at};
use crate::live::{Ended, FEW, Live, command, programs};
use crate::support::xdp::{self, XDP_PASS};
use crate::support::{BPF, NETNS, TWO_CPUS, XDP_FEATURES, eventually, is_before, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("cpumap::the_cpu_follows_from_the_packet_in_every_selection", &[&NETNS, &BPF, &TWO_CPUS], distribution),
        test("cpumap::both_directions_and_all_fragments_go_the_same_way", &[&NETNS, &BPF, &TWO_CPUS], symmetry),
        test("cpumap::flows_are_spread_by_address_and_by_port", &[&NETNS, &BPF, &TWO_CPUS], spread),
        test("cpumap::every_packet_is_in_the_ledger_whatever_the_other_cpu_does", &[&NETNS, &BPF], ledger),
        test("cpumap::packets_that_find_the_queue_full_are_in_the_ledger", &[&NETNS, &BPF, &TWO_CPUS], full_queue),
        test("cpumap::a_redirect_that_fails_is_told_by_errno", &[&NETNS, &BPF, &XDP_FEATURES], failed_redirect),
        test("cpumap::a_target_that_takes_no_frames_is_refused", &[&NETNS, &BPF, &XDP_FEATURES], deaf),
        test("cpumap::lines_in_extended_mode", &[&NETNS, &BPF], extended),
        test("cpumap::what_other_cpus_transmit_has_its_lines", &[&NETNS, &BPF], transmitted),
        test("cpumap::queues_made_anew_lose_no_packet", &[&NETNS, &BPF, &TWO_CPUS], stress),
        test("cpumap::what_can_t_be_is_refused_in_a_line_and_leaves_nothing", &[&NETNS, &BPF], refusals),
        test("cpumap::sigkill_leaves_neither_program_nor_threads", &[&NETNS, &BPF], sigkill),
        test("cpumap::immediate_exit_ends_at_once", &[&NETNS, &BPF], immediate_exit),
    ]
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

fn v4(protocol: u8) -> impl Fn(&Lab, FlowSpec) -> Vec<u8> {
    move |lab, flow| with_byte(frame(lab, flow), 14 + 9, protocol)
}

fn v6(protocol: u8) -> impl Fn(&Lab, FlowSpec) -> Vec<u8> {
    move |lab, flow| {
        let addresses = Addresses::V6 { src: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), dst: Ipv6Addr::LOCALHOST };
        with_byte(frame(lab, FlowSpec { addresses, ..flow }), 14 + 6, protocol)
    }
}

/// The frame with another byte at this place; checksums are not looked at by any program.
fn with_byte(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[at] = byte;
    frame
}

fn flow(src_port: u16, dst_port: u16) -> FlowSpec {
    FlowSpec { src_port, dst_port, ..FlowSpec::lab_v4() }
}

/// An Ethernet frame that is neither IPv4 nor IPv6.
fn arp(lab: &Lab) -> Vec<u8> {
    with_byte(frame(lab, FlowSpec::lab_v4()), 13, 0x06)
}

/// A frame with a length where others have their type.
fn ieee_802_3(lab: &Lab) -> Vec<u8> {
    let frame = with_byte(frame(lab, FlowSpec::lab_v4()), 12, 0);
    with_byte(frame, 13, 46)
}

struct Device<'a> {
    lab: &'a Lab,
    device: CpumapDevice,
}

impl<'a> Device<'a> {
    fn attach(lab: &'a Lab, selection: Selection, cpus: &[u32]) -> Self {
        let spec = CpumapSpec { selection, cpus: cpus.to_vec(), qsize: 2048, remote: Remote::Drop };
        let attach = || CpumapDevice::attach("dut0", spec, XdpMode::Native, None, false);
        Self { lab, device: lab.dut.netns.run(attach).unwrap() }
    }

    /// How many of the packets went to which CPU; the rest did not go to any.
    fn cpus_of(&mut self, frame: Vec<u8>, count: u64) -> BTreeMap<u32, u64> {
        let received = |counters: &Counters| {
            counters.received.as_ref().unwrap().rows.values().map(|counts| counts.packets).sum::<u64>()
        };
        let before = self.device.read().unwrap();
        send(self.lab, frame, &[0], count);
        let mut after = before.clone();
        eventually("all are received", 5, || {
            after = self.device.read().unwrap();
            received(&after) == received(&before) + count
        });
        // The verdict comes before the bulk is given to the queue.
        let redirected = |counters: &Counters| {
            counters.cpumap.as_ref().unwrap().verdicts.rows.values().map(|verdicts| verdicts.redirected).sum::<u64>()
        };
        let to = |counters: &Counters| {
            let enqueued = counters.cpumap.clone().unwrap().enqueued.into_result().unwrap();
            let mut to = BTreeMap::<u32, u64>::new();
            enqueued.rows.iter().for_each(|((_, cpu), counts)| *to.entry(*cpu).or_default() += counts.processed);
            to
        };
        let expected = redirected(&after) - redirected(&before);
        let before = to(&before);
        let mut cpus = BTreeMap::new();
        eventually("all are given to queues", 5, || {
            let after = to(&self.device.read().unwrap());
            cpus = after.into_iter().map(|(cpu, packets)| (cpu, packets - before.get(&cpu).unwrap_or(&0))).collect();
            cpus.retain(|_, packets| *packets > 0);
            cpus.values().sum::<u64>() == expected
        });
        cpus
    }
}

fn distribution() {
    const COUNT: u64 = 21;
    let lab = lab(1);
    let all = |cpu| BTreeMap::from([(cpu, COUNT)]);
    let none = BTreeMap::new;
    // Third of the list is CPU 1, where the machine has but two: what goes to the first goes to CPU 0 alone.
    let (l4_of_three, l4_of_two) = ([0, 0, 1], [0, 1]);
    let protocols = |device: &mut Device<'_>, tcp, udp, icmp| {
        for (protocol, cpu) in [(TCP, tcp), (UDP, udp), (ICMP, icmp), (47, 0), (132, 0)] {
            for (src, dst) in [(1, 65_535), (4_097, 80), (53, 54_321)] {
                assert_eq!(device.cpus_of(v4(protocol)(&lab, flow(src, dst)), COUNT), all(cpu), "IPv4 {protocol}");
            }
        }
        for (protocol, cpu) in [(TCP, tcp), (UDP, udp), (ICMPV6, icmp), (47, 0)] {
            assert_eq!(device.cpus_of(v6(protocol)(&lab, flow(4_097, 81)), COUNT), all(cpu), "IPv6 {protocol}");
        }
        assert_eq!(device.cpus_of(arp(&lab), COUNT), all(0), "ARP");
        let vlan = Vlan::QinQ { outer: VlanTag { id: 7, priority: 0 }, inner: VlanTag { id: 8, priority: 0 } };
        let tagged = frame(&lab, FlowSpec { vlan, ..flow(1, 2) });
        assert_eq!(device.cpus_of(tagged, COUNT), all(udp), "UDP in two VLAN tags");
        assert_eq!(device.cpus_of(ieee_802_3(&lab), COUNT), none(), "passed");
    };
    let mut device = Device::attach(&lab, Selection::L4Proto, &l4_of_two);
    protocols(&mut device, 0, 1, 0);
    assert_eq!(device.cpus_of(v4(UDP)(&lab, flow(1, 9)), COUNT), all(1));
    drop(device);
    protocols(&mut Device::attach(&lab, Selection::L4Proto, &l4_of_three), 0, 0, 1);
    let mut device = Device::attach(&lab, Selection::L4Filter, &l4_of_two);
    protocols(&mut device, 0, 1, 0);
    for frame in [v4(UDP)(&lab, flow(1, 9)), v6(UDP)(&lab, flow(1, 9))] {
        assert_eq!(device.cpus_of(frame, COUNT), none(), "dropped");
    }
    assert_eq!(device.cpus_of(v4(TCP)(&lab, flow(1, 9)), COUNT), all(0));
    drop(device);

    let mut device = Device::attach(&lab, Selection::NoTouch, &[1, 0]);
    assert_eq!(device.cpus_of(ieee_802_3(&lab), COUNT), all(1));
    drop(device);
    let mut device = Device::attach(&lab, Selection::Touch, &[1, 0]);
    assert_eq!(device.cpus_of(v4(UDP)(&lab, flow(1, 2)), COUNT), all(1));
    assert_eq!(device.cpus_of(ieee_802_3(&lab), COUNT), none(), "dropped");
    drop(device);
    let mut device = Device::attach(&lab, Selection::RoundRobin, &[1, 0]);
    assert_eq!(device.cpus_of(v4(UDP)(&lab, flow(1, 2)), 21), BTreeMap::from([(1, 11), (0, 10)]));
    assert_eq!(device.cpus_of(v4(UDP)(&lab, flow(1, 2)), 21), BTreeMap::from([(1, 10), (0, 11)]), "it goes on");
    drop(device);

    for selection in [Selection::L4Sport, Selection::L4Dport] {
        let mut device = Device::attach(&lab, selection, &[0, 1, 1]);
        for port in [0u16, 1, 2, 3, 79, 80, 4_096, 4_097, 65_533, 65_534, 65_535] {
            let flow = if selection == Selection::L4Sport { flow(port, 2) } else { flow(2, port) };
            let cpu = [0, 1, 1][usize::from(port % 3)];
            for frame in [v4(UDP), v4(TCP)].map(|of| of(&lab, flow.clone())) {
                assert_eq!(device.cpus_of(frame, COUNT), all(cpu), "{selection} {port}");
            }
            for frame in [v6(UDP), v6(TCP)].map(|of| of(&lab, flow.clone())) {
                assert_eq!(device.cpus_of(frame, COUNT), all(cpu), "{selection} {port}, IPv6");
            }
        }
        for frame in [v4(ICMP)(&lab, flow(1, 1)), v6(ICMPV6)(&lab, flow(1, 1)), arp(&lab)] {
            assert_eq!(device.cpus_of(frame, COUNT), all(0), "{selection} without ports");
        }
    }
}

/// More fragments, and a fragment offset.
const MORE_FRAGMENTS: u8 = 0x20;

fn symmetry() {
    let lab = lab(1);
    let mut device = Device::attach(&lab, Selection::L4Hash, &[0, 1]);
    let mut cpus_seen = BTreeMap::<u32, u64>::new();
    for last in 1..30u8 {
        let addresses =
            |src, dst| Addresses::V4 { src: Ipv4Addr::new(198, 18, 0, src), dst: Ipv4Addr::new(198, 18, 0, dst) };
        let there = FlowSpec { addresses: addresses(last, 200), ..flow(1_000 + u16::from(last), 80) };
        let back = FlowSpec { addresses: addresses(200, last), ..flow(80, 1_000 + u16::from(last)) };
        let to = device.cpus_of(v4(TCP)(&lab, there.clone()), 3);
        assert_eq!(to, device.cpus_of(v4(TCP)(&lab, back), 3), "{last}");
        cpus_seen.extend(to);
        // All fragments of a datagram go one way, though only the first has ports.
        let first = with_byte(frame(&lab, there.clone()), 14 + 6, MORE_FRAGMENTS);
        let second = with_byte(frame(&lab, FlowSpec { src_port: 7, dst_port: 8, ..there }), 14 + 7, 100);
        assert_eq!(device.cpus_of(first, 3), device.cpus_of(second, 3), "{last}");
    }
    assert_eq!(cpus_seen.len(), 2, "both CPUs are used");
}

fn spread() {
    const FLOWS: u64 = 60;
    let lab = lab(1);
    let mut device = Device::attach(&lab, Selection::L4Hash, &[0, 1]);
    let port = |number: u64| 1_000 + u16::try_from(number).unwrap();
    let by_port = |number: u64| flow(port(number), 9);
    let by_address = |number: u64| FlowSpec {
        addresses: Addresses::V4 {
            src: Ipv4Addr::new(198, 18, 1, u8::try_from(number).unwrap()),
            dst: Ipv4Addr::new(198, 18, 0, 2),
        },
        ..FlowSpec::lab_v4()
    };
    let mut both = |name: &str, frame_of: &dyn Fn(u64) -> Vec<u8>| {
        let of_cpu_0: u64 =
            (0..FLOWS).map(|number| device.cpus_of(frame_of(number), 1).get(&0).copied().unwrap_or(0)).sum();
        // Five standard deviations of a fair coin thrown 60 times are 19.4.
        assert!((11..=49).contains(&of_cpu_0), "{name}: {of_cpu_0} of {FLOWS} went to CPU 0");
    };
    both("UDP ports", &|number| frame(&lab, by_port(number)));
    both("IPv6 TCP ports", &|number| v6(TCP)(&lab, by_port(number)));
    both("IPv4 addresses", &|number| frame(&lab, by_address(number)));
}

/// The accounts of the end, as `of: packets = part: packets, …`; none has a residual.
fn balanced(ended: &Ended) -> BTreeMap<String, BTreeMap<String, u64>> {
    let end = ended.events("end").remove(0);
    let accounts = end["ledger"].as_array().unwrap();
    let available = |account: &&Value| account["not_available"].is_null();
    let account = |account: &Value| {
        assert_eq!(account["residual"], 0, "{end}");
        let parts = account["parts"].as_array().unwrap().iter();
        let mut parts: BTreeMap<String, u64> =
            parts.map(|part| (part["to"].as_str().unwrap().to_owned(), part["packets"].as_u64().unwrap())).collect();
        parts.insert("all".into(), account["packets"].as_u64().unwrap());
        (account["of"].as_str().unwrap().to_owned(), parts)
    };
    accounts.iter().filter(available).map(account).collect()
}

/// A live command on the lab's DUT that has got so many packets, ended.
fn run(lab: &Lab, options: &[&str], packets: u64) -> Ended {
    let args = [&["redirect-cpu", "dut0", "--json"], options].concat();
    let live = Live::start(&lab.dut, &args);
    let before = rx_packets(&lab.dut);
    send(lab, frame(lab, flow(1, 2)), &[0], packets);
    settles_at(&format!("{args:?}"), packets, || rx_packets(&lab.dut) - before);
    live.end()
}

/// Gives the generator's end the NAPI that it needs to be sent to.
fn sink(lab: &Lab) -> (Attachment, Sink) {
    let sink = Sink::load().unwrap();
    (attach(sink.fd().unwrap(), &lab.generator, XdpMode::Native), sink)
}

fn ledger() {
    let lab = lab(1);
    let _sink = sink(&lab);
    for mode in ["native", "skb"] {
        for (remote, kept, to) in [
            (&["-r", "disabled"][..], "passed", None),
            (&["-r", "drop"], "dropped", None),
            (&["-r", "pass"], "passed", None),
            (&["-r", "redirect", "-D", "dut0"], "redirected", Some("redirected by kthreads")),
        ] {
            let options = [&["-c", "0", "-m", mode, "-q", "512", "-s", "-i", "1"], remote].concat();
            let ended = run(&lab, &options, FEW);
            let accounts = balanced(&ended);
            let expect = |of: &str, part: &str| {
                assert_eq!((accounts[of]["all"], accounts[of][part]), (FEW, FEW), "{options:?}: {accounts:?}");
            };
            expect("received", "redirected");
            expect("redirected", "queued");
            expect("queued", "taken by kthreads");
            match to {
                // The kernel counts nothing that it passes behind a program, more than one packet of a batch among it.
                _ if mode == "skb" && remote[1] != "disabled" && is_before(6, 15) => {
                    assert!(accounts.len() >= 3, "{accounts:?}");
                }
                Some(of) if mode == "native" => {
                    expect("taken by kthreads", kept);
                    expect(of, "transmitted");
                }
                _ => {
                    expect("taken by kthreads", kept);
                    assert_eq!(accounts.len(), 4, "{accounts:?}");
                }
            }
            let end = ended.events("end").remove(0);
            assert_eq!(end["total"]["received"]["packets"], FEW, "{end}");
            let cost = &end["cpus"][0];
            assert_eq!((cost["role"].as_str(), cost["packets"].as_u64()), (Some("remote CPU 0"), Some(FEW)), "{end}");
            assert!(cost["cpu"]["idle"].as_f64().is_some(), "{end}");
            assert!(cost["busy_ns"].as_u64().unwrap() > FEW && cost["ns_per_packet"].as_f64().unwrap() > 1.0, "{end}");
        }
    }
}

fn full_queue() {
    const COUNT: u64 = 20_003;
    let lab = lab(1);
    for mode in ["native", "skb"] {
        let args = ["redirect-cpu", "dut0", "--json", "-c", "1", "-q", "1", "-p", "no-touch", "-m", mode];
        let live = Live::start(&lab.dut, &args);
        send(&lab, frame(&lab, flow(1, 2)), &[0], COUNT);
        thread::sleep(Duration::from_millis(100));
        let ended = live.end();
        let accounts = balanced(&ended);
        let received = accounts["received"]["all"];
        assert!(received > 0 && received <= COUNT, "{accounts:?}");
        let redirected = &accounts["redirected"];
        assert_eq!(redirected["queued"] + redirected["queue full"], received, "{accounts:?}");
        assert!(redirected["queue full"] > 0, "{accounts:?}");
        let end = ended.events("end").remove(0);
        assert_eq!(end["limiter"], "remote CPU 1, whose queue was full at times", "{end}");
    }
    let live = Live::start(&lab.dut, &["redirect-cpu", "dut0", "-c", "1", "-q", "1", "-p", "no-touch", "-i", "0.3"]);
    send(&lab, frame(&lab, flow(1, 2)), &[0], COUNT);
    eventually("the drops in terse mode", 5, || live.lines("  enqueue to cpu 1     ") > 0);
    live.end();
}

fn failed_redirect() {
    let lab = Lab::build(&xdplab::topology::LabSpec::new(xdplab::topology::Placement::Same { cpu: 0 })).unwrap();
    // The generator's end gets NAPI only once it has a program, and frames can be sent from the other side then.
    let sink = sink(&lab);
    let live = Live::start(&lab.dut, &["redirect-cpu", "dut0", "--json", "-c", "0", "-r", "redirect", "-D", "dut0"]);
    drop(sink);
    send(&lab, frame(&lab, flow(1, 2)), &[0], FEW);
    thread::sleep(Duration::from_millis(100));
    let accounts = balanced(&live.end());
    assert_eq!(accounts["received"]["all"], FEW, "{accounts:?}");
    assert_eq!(accounts["redirected"]["queued"], FEW, "the first redirect is no failure: {accounts:?}");
    assert_eq!(accounts["taken by kthreads"]["EOPNOTSUPP"], FEW, "{accounts:?}");
}

fn deaf() {
    let lab = Lab::build(&xdplab::topology::LabSpec::new(xdplab::topology::Placement::Same { cpu: 0 })).unwrap();
    let args = ["redirect-cpu", "dut0", "-c", "0", "-r", "redirect", "-D", "dut0"];
    Live::spawn(&lab.dut, command(&args)).wait().refused(&["dut0", "EOPNOTSUPP", "ethtool -K PEER gro on"]);
    let in_skb_mode = [&args[..], &["-m", "skb", "--duration", "0.2"]].concat();
    let ended = Live::spawn(&lab.dut, command(&in_skb_mode)).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert_eq!(programs(&lab.dut), 0);
}

fn transmitted() {
    let lab = lab(1);
    let _sink = sink(&lab);
    let args = ["redirect-cpu", "dut0", "-e", "-i", "0.3", "-c", "0", "-r", "redirect", "-D", "dut0"];
    let live = Live::start(&lab.dut, &args);
    send(&lab, frame(&lab, flow(1, 2)), &[0], FEW);
    eventually("lines of the flow", 5, || live.lines("  xmit dut0->dut0") > 0);
    let ended = live.end();
    assert!(ended.stdout.contains(" xmit/s "), "{}", ended.stdout);
    assert_eq!(ended.total("Packets transmitted"), Some(FEW), "{}", ended.stdout);
}

fn extended() {
    let lab = lab(1);
    let live =
        Live::start(&lab.dut, &["redirect-cpu", "dut0", "-e", "-i", "0.5", "-c", "0", "-r", "pass", "-p", "touch"]);
    send(&lab, frame(&lab, flow(1, 2)), &[0], 40);
    send(&lab, ieee_802_3(&lab), &[0], 20);
    eventually("the kthread's line", 5, || live.lines("      cpu:0 ") > 0);
    thread::sleep(Duration::from_millis(600));
    let ended = live.end();
    let has = |line: &str| assert!(ended.stdout.lines().any(|told| told.starts_with(line)), "{line}: {}", ended.stdout);
    for line in [
        "dut0->?                ",
        "  receive total        ",
        "    cpu:0              ",
        "  enqueue to cpu 0     ",
        "    cpu:0->0           ",
        "  kthread total        ",
        "    xdp_stats          ",
        "      cpu:0            ",
        "  xdp_exception        ",
    ] {
        has(line);
    }
    assert_eq!((ended.total("Packets received"), ended.total("Rx dropped")), (Some(60), Some(20)), "{}", ended.stdout);
    assert!(ended.stdout.contains(": 60 received = 40 redirected + 20 dropped, residual 0\n"), "{}", ended.stdout);
    let ended = run(&lab, &["-c", "0", "-p", "l4-filter", "-e", "-v"], FEW);
    assert!(ended.stderr.contains("program redirect-cpu:l4-filter, id "), "{}", ended.stderr);
    assert_eq!(balanced(&ended)["received"]["redirected"], FEW);
}

fn stress() {
    const COUNT: u64 = 300_001;
    let lab = lab(1);
    let live = Live::start(&lab.dut, &["redirect-cpu", "dut0", "--json", "-x", "-i", "0.05", "-c", "0", "-c", "1"]);
    send(&lab, frame(&lab, flow(1, 2)), &[0], COUNT);
    thread::sleep(Duration::from_millis(200));
    let ended = live.end();
    let accounts = balanced(&ended);
    assert!(accounts["received"]["all"] > 0, "{accounts:?}");
    let end = ended.events("end").remove(0);
    assert!(end["cpus"][0]["not_available"].as_str().unwrap().contains("made anew"), "{end}");
}

fn refusals() {
    let lab = lab(1);
    for (options, words) in [
        (&["-c", "4095"][..], &["CPU 4095", "not present", "choose from those present: 0"][..]),
        (&["-c", "0", "-q", "0"], &["queue of 0 packets", "1 to 16384"]),
        (&["-c", "0", "-q", "16385"], &["queue of 16385 packets", "1 to 16384"]),
        (&["-c", "0", "-r", "redirect"], &["-r redirect needs an interface", "add -D"]),
        (&["-c", "0", "-D", "dut0"], &["-D is for -r redirect alone", "leave -D out"]),
        (&["-c", "0", "-r", "pass", "-D", "dut0"], &["-D is for -r redirect alone"]),
        (&["-c", "0", "-r", "redirect", "-D", "nowhere"], &["nowhere", "ENODEV", "dut0"]),
    ] {
        let args = [&["redirect-cpu", "dut0"], options].concat();
        let ended = Live::spawn(&lab.dut, command(&args)).wait();
        ended.refused(words);
        assert_eq!(programs(&lab.dut), 0, "{args:?}");
    }
    let _link = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap().unwrap();
    Live::spawn(&lab.dut, command(&["redirect-cpu", "dut0", "-c", "0"]))
        .wait()
        .refused(&["a program is there already"]);
}

/// The cpumap kthreads of the machine, by name.
fn kthreads() -> Vec<String> {
    let comms =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("comm")).ok());
    comms.filter(|comm| comm.starts_with("cpumap/")).collect()
}

fn sigkill() {
    let lab = lab(1);
    let before = kthreads();
    let mut live = Live::start(&lab.dut, &["redirect-cpu", "dut0", "-c", "0", "-r", "drop"]);
    let new: Vec<String> = kthreads().into_iter().filter(|name| !before.contains(name)).collect();
    assert!(!new.is_empty() && programs(&lab.dut) == 1, "{new:?}");
    live.child.kill().unwrap();
    live.child.wait().unwrap();
    // Those of other tests among them go as well.
    eventually("program and threads are gone", 60, || {
        let now = kthreads();
        programs(&lab.dut) == 0 && new.iter().all(|name| !now.contains(name))
    });
    let live = Live::start(&lab.dut, &["redirect-cpu", "dut0", "-c", "0"]);
    live.signal(Signal::SIGTERM);
    assert_eq!(live.wait().status.code(), Some(0));
    assert_eq!(programs(&lab.dut), 0);
}

fn immediate_exit() {
    let lab = lab(1);
    let mut at_once = command(&["redirect-cpu", "dut0", "-c", "0", "--stress-mode"]);
    at_once.env("XDP_SAMPLE_IMMEDIATE_EXIT", "1");
    let ended = Live::spawn(&lab.dut, at_once).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stdout.starts_with("  Duration            : 0."), "{}", ended.stdout);
    assert!(ended.stderr.contains("to CPU 0 by l4-hash"), "{}", ended.stderr);
    let ended = Live::start(&lab.dut, &["redirect-cpu", "dut0", "-c", "0", "--duration", "0.3"]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
}
