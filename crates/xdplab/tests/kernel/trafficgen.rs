//! `xdplab trafficgen udp`, `xsk-udp` and `probe`, run as a user runs them: what arrives is what was asked for, to the byte.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use xdplab::device::{Action, Attachment, DutProgram, Operation, ProgramSpec};
use xdplab::netlink::XdpMode;
use xdplab::topology::{Lab, LabSpec, Placement};

use crate::counts::{attach, lab, rx_packets};
use crate::live::{Ended, Live, command, programs};
use crate::support::capture::{Capture, Packet, decode};
use crate::support::{
    BPF, NETNS, REAL_TIME, TWO_CPUS, XDP_FEATURES, XSK_FRAGS, eventually, patience, refuses_redirects_to_deaf_peers,
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("trafficgen::udp_sends_what_every_option_asks_for", &[&NETNS, &BPF], udp_content),
        test("trafficgen::xsk_udp_sends_what_every_option_asks_for", &[&NETNS, &BPF], xsk_content),
        test("trafficgen::packets_longer_than_a_frame_go_in_several", &[&NETNS, &BPF, &XSK_FRAGS], several_frames),
        test("trafficgen::sockets_send_with_the_ttl_asked_for", &[&NETNS, &BPF], socket_ttl),
        test("trafficgen::counts_are_exact_over_threads", &[&NETNS, &BPF, &TWO_CPUS], exact),
        test("trafficgen::a_rate_is_kept_and_its_gaps_are_told", &[&NETNS, &BPF, &REAL_TIME], rates),
        test("trafficgen::threads_are_told_and_compared_with_one", &[&NETNS, &BPF, &TWO_CPUS], threads),
        test("trafficgen::nothing_is_sent_where_nothing_would_arrive", &[&NETNS, &BPF, &XDP_FEATURES], refusals),
        test("trafficgen::an_empty_interval_ends_it_with_the_errno", &[&NETNS, &BPF], emptied),
        test("trafficgen::a_signal_ends_it_with_the_totals_and_leaves_nothing", &[&NETNS, &BPF], signals),
        test("trafficgen::lines_are_those_that_scripts_know", &[&NETNS, &BPF], lines),
        test("trafficgen::json_and_record_tell_the_same", &[&NETNS, &BPF], json_and_record),
        test("trafficgen::probe_says_what_is_there", &[&NETNS, &BPF, &XDP_FEATURES], probe),
    ]
}

/// Runs the command to its end, in the namespace of the lab's generator.
fn ended(lab: &Lab, args: &[&str]) -> Ended {
    Live::spawn(&lab.generator, command(&[&["trafficgen"], args].concat())).wait()
}

/// The same, done.
pub(crate) fn done(lab: &Lab, args: &[&str]) -> Ended {
    let ended = ended(lab, args);
    assert_eq!(ended.status.code(), Some(0), "{args:?}: {}{}", ended.stdout, ended.stderr);
    ended
}

const COUNT: &str = "37";

/// What arrives of [`COUNT`] packets.
fn arrived(lab: &Lab, capture: &mut Capture, args: &[&str], count: &str) -> Vec<Packet> {
    capture.take();
    done(lab, &[args, &[count, COUNT]].concat());
    let mut frames = Vec::new();
    eventually(&format!("{args:?}: all have arrived"), 5, || {
        frames.extend(capture.take());
        frames.len() >= 37
    });
    thread::sleep(Duration::from_millis(5));
    frames.extend(capture.take());
    assert_eq!(frames.len(), 37, "{args:?}");
    frames.iter().map(|frame| decode(frame)).collect()
}

pub(crate) fn dropping(lab: &Lab) -> (Attachment, DutProgram) {
    let program = DutProgram::load(ProgramSpec::new(Action::Drop, Operation::NoTouch), 4).unwrap();
    (attach(program.fd(), &lab.dut, XdpMode::Native), program)
}

fn udp_content() {
    let lab = lab(1);
    let mut capture = Capture::on(&lab, false);
    let plain = Packet {
        macs: (lab.generator.mac.0, [0; 6]),
        tags: vec![],
        addresses: ("fe80::1".into(), "fe80::2".into()),
        ttl: 1,
        ports: (1, 1),
        payload: vec![],
        l2: 62,
    };
    let v4 =
        Packet { addresses: ("198.18.0.1".into(), "10.0.0.9".into()), payload: vec![0; 18], l2: 60, ..plain.clone() };
    let sized = |wire: usize| Packet { payload: vec![0; wire - 66], l2: wire - 4, ..plain.clone() };
    let tagged = |tags: &[(u16, u8, u16)]| Packet { tags: tags.to_vec(), l2: 62 + 4 * tags.len(), ..plain.clone() };
    type Expect = Box<dyn Fn(usize) -> Packet>;
    let always = |packet: Packet| -> Expect { Box::new(move |_| packet.clone()) };
    let turns = |packets: Vec<Packet>| -> Expect { Box::new(move |index| packets[index % packets.len()].clone()) };
    let port = {
        let plain = plain.clone();
        move |dst: u16, src: u16| Packet { ports: (src, dst), ..plain.clone() }
    };
    let cases: Vec<(&[&str], Expect)> = vec![
        (&[], always(plain.clone())),
        (
            &["-m", "02:00:00:00:00:09", "-M", "02:00:00:00:00:08"],
            always(Packet { macs: ([2, 0, 0, 0, 0, 8], [2, 0, 0, 0, 0, 9]), ..plain.clone() }),
        ),
        (
            &["--dst-addr", "2001:db8::1", "-A", "2001:db8::2"],
            always(Packet { addresses: ("2001:db8::2".into(), "2001:db8::1".into()), ..plain.clone() }),
        ),
        (&["-a", "10.0.0.9"], always(v4.clone())),
        (&["-p", "7", "-P", "9"], always(port(7, 9))),
        (&["-d", "3"], turns(vec![port(1, 1), port(2, 1), port(3, 1)])),
        (
            &["--dyn-ports=2", "-p", "65535", "--src-ports", "3"],
            turns((0..6).map(|i: u16| port(65535_u16.wrapping_add(i % 2), 1 + i % 3)).collect()),
        ),
        (&["-a", "10.0.0.9", "--dst-addrs", "2", "--src-addrs", "3"], {
            let v4 = v4.clone();
            Box::new(move |index| Packet {
                addresses: (format!("198.18.0.{}", 1 + index % 3), format!("10.0.0.{}", 9 + index % 2)),
                ..v4.clone()
            })
        }),
        (&["--dst-addrs", "5"], {
            let plain = plain.clone();
            Box::new(move |index| Packet {
                addresses: ("fe80::1".into(), format!("fe80::{}", 2 + index % 5)),
                ..plain.clone()
            })
        }),
        (&["-s", "64"], always(plain.clone())),
        (&["-s", "1518"], always(sized(1518))),
        (&["--pkt-size", "100,66,77"], turns(vec![sized(100), sized(66), sized(77)])),
        (&["-s", "66..70:2"], turns(vec![sized(66), sized(68), sized(70)])),
        (&["-s", "imix"], turns([66, 594, 66, 66, 594, 66, 594, 66, 66, 594, 66, 1518].map(sized).to_vec())),
        (&["-s", "100,66", "-d", "2"], {
            let (a, b) = (sized(100), sized(66));
            turns(vec![a, Packet { ports: (1, 2), ..b }])
        }),
        (&["-l", "200"], always(Packet { ttl: 200, ..plain.clone() })),
        (&["--ttl", "64"], always(Packet { ttl: 64, ..plain.clone() })),
        (&["--vlan", "5:3"], always(tagged(&[(0x8100, 3, 5)]))),
        (&["--vlan", "100:1", "--vlan", "7"], always(tagged(&[(0x88a8, 1, 100), (0x8100, 0, 7)]))),
        (&["-t", "1", "-I", "5", "--interval", "0.5", "-v", "-vv", "-e"], always(plain.clone())),
        (&["-b", "1"], always(plain.clone())),
        (&["--batch-size", "256"], always(plain.clone())),
        (&["--restore-headers"], always(plain.clone())),
        (&["--restore-headers", "-d", "2"], turns(vec![port(1, 1), port(2, 1)])),
        (&["--rate", "5k"], always(plain.clone())),
        (&["--rate", "10Mbit", "--burst", "5", "-d", "2"], turns(vec![port(1, 1), port(2, 1)])),
        (&["--cpus", "0", "--duration", "60", "--json", "--force", "--keep-going"], always(plain.clone())),
    ];
    for (options, expect) in cases {
        let packets = arrived(&lab, &mut capture, &[&["udp", "gen0"], options].concat(), "-n");
        for (index, packet) in packets.into_iter().enumerate() {
            assert_eq!(packet, expect(index), "{options:?}, packet {index}");
        }
    }
    replayed(&lab, &mut capture);
}

/// Frames of a file arrive as they are, again and again in their order.
fn replayed(lab: &Lab, capture: &mut Capture) {
    let frames: Vec<Vec<u8>> = (0..5_u8).map(|index| vec![index; 60 + usize::from(index) * 100]).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = Vec::new();
    bytes.extend([0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat());
    for frame in &frames {
        let len = frame.len() as u32;
        bytes.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        bytes.extend(frame);
    }
    file.write_all(&bytes).unwrap();
    for (engine, count) in [("udp", "-n"), ("xsk-udp", "-c")] {
        capture.take();
        done(lab, &[engine, "gen0", "--pcap", file.path().to_str().unwrap(), count, "12"]);
        let mut got = Vec::new();
        eventually("all have arrived", 5, || {
            got.extend(capture.take());
            got.len() == 12
        });
        for (index, frame) in got.iter().enumerate() {
            assert_eq!(frame, &frames[index % 5], "{engine}: packet {index}");
        }
    }
}

fn xsk_content() {
    let lab = lab(1);
    let mut capture = Capture::on(&lab, false);
    let plain = Packet {
        macs: (lab.generator.mac.0, [0; 6]),
        tags: vec![],
        addresses: ("10.10.10.16".into(), "10.10.10.32".into()),
        ttl: 64,
        ports: (0x1000, 0x1000),
        payload: vec![0; 18],
        l2: 60,
    };
    let sized = |wire: usize| Packet { payload: vec![0; wire - 46], l2: wire - 4, ..plain.clone() };
    let cases: Vec<(&[&str], Vec<Packet>)> = vec![
        (&[], vec![plain.clone()]),
        (
            &["-m", "02:00:00:00:00:09", "-M", "02:00:00:00:00:08"],
            vec![Packet { macs: ([2, 0, 0, 0, 0, 8], [2, 0, 0, 0, 0, 9]), ..plain.clone() }],
        ),
        (&["-V"], vec![Packet { tags: vec![(0x8100, 0, 1)], payload: vec![0; 14], ..plain.clone() }]),
        (
            &["-V", "-J", "9", "-K", "5"],
            vec![Packet { tags: vec![(0x8100, 5, 9)], payload: vec![0; 14], ..plain.clone() }],
        ),
        (
            &["--vlan", "9:5", "--vlan", "8", "-s", "100"],
            vec![Packet { tags: vec![(0x88a8, 5, 9), (0x8100, 0, 8)], payload: vec![0; 46], l2: 96, ..plain.clone() }],
        ),
        (
            &["-P", "0x01020304"],
            vec![Packet { payload: [1, 2, 3, 4].into_iter().cycle().take(18).collect(), ..plain.clone() }],
        ),
        (&["-T", "1000"], vec![plain.clone()]),
        (&["-T", "200", "-b", "5", "-a"], vec![plain.clone()]),
        (&["-q", "0"], vec![plain.clone()]),
        (&["-i", "1"], vec![plain.clone()]),
        (&["-O", "1"], vec![plain.clone()]),
        (&["-f", "2048"], vec![plain.clone()]),
        (&["-s", "1024"], vec![sized(1024)]),
        (&["-s", "100,64,90"], vec![sized(100), sized(64), sized(90)]),
        (&["-s", "imix"], [64, 594, 64, 64, 594, 64, 594, 64, 64, 594, 64, 1518].map(sized).to_vec()),
        (&["-d", "60"], vec![plain.clone()]),
        (&["-b", "32"], vec![plain.clone()]),
        (&["-b", "1"], vec![plain.clone()]),
        (&["-p"], vec![plain.clone()]),
        (&["--no-need-wakeup"], vec![plain.clone()]),
        (&["-u", "-f", "3000"], vec![plain.clone()]),
        (&["--shared-umem", "-b", "4"], vec![plain.clone()]),
        (&["-x", "-a", "-Q"], vec![plain.clone()]),
        (&["-C", "copy"], vec![plain.clone()]),
        (&["-w", "BOOTTIME"], vec![plain.clone()]),
        (&["-W", "SCHED_OTHER", "-U", "0"], vec![plain.clone()]),
        (&["-A", "skb"], vec![plain.clone()]),
        (&["--rate", "10k", "--burst", "2"], vec![plain.clone()]),
        (
            &["--dyn-ports", "2", "--src-ports", "3"],
            (0..6).map(|i: u16| Packet { ports: (0x1000 + i % 3, 0x1000 + i % 2), ..plain.clone() }).collect(),
        ),
        (
            &["--src-addr", "fe80::7", "-s", "66", "--ttl", "3", "--src-port", "5", "--dst-port", "6"],
            vec![Packet {
                addresses: ("fe80::7".into(), "fe80::2".into()),
                ttl: 3,
                ports: (5, 6),
                payload: vec![],
                l2: 62,
                ..plain.clone()
            }],
        ),
        (
            &["--dst-addrs", "2", "--src-addrs", "2"],
            (0..2)
                .map(|i| Packet {
                    addresses: (format!("10.10.10.{}", 16 + i), format!("10.10.10.{}", 32 + i)),
                    ..plain.clone()
                })
                .collect(),
        ),
        (
            &["-t", "1", "--cpus", "0", "-e", "-v", "--json", "--keep-going", "--force", "--restore-headers"],
            vec![plain.clone()],
        ),
    ];
    for (options, expect) in cases {
        let packets = arrived(&lab, &mut capture, &[&["xsk-udp", "gen0"], options].concat(), "-c");
        for (index, packet) in packets.into_iter().enumerate() {
            assert_eq!(packet, expect[index % expect.len()], "{options:?}, packet {index}");
        }
    }
    let stamped = arrived(&lab, &mut capture, &["xsk-udp", "gen0", "-y"], "-c");
    for (index, packet) in stamped.iter().enumerate() {
        assert_eq!(packet.payload[..4], [0xbe, 0x9b, 0xe9, 0x55]);
        assert_eq!(packet.payload[4..8], (index as u32).to_be_bytes());
        let seconds = u32::from_be_bytes(packet.payload[8..12].try_into().unwrap());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(seconds.into()) < 60, "{seconds}");
    }
}

fn socket_ttl() {
    let lab = lab(1);
    let mut capture = Capture::on(&lab, false);
    for to in [lab.dut.ipv4.to_string(), lab.dut.ipv6.to_string()] {
        let args = ["socket", &to, "--udp", "--no-sink", "--rate", "20k", "--ttl", "9", "-s", "33"];
        for packet in arrived(&lab, &mut capture, &args, "-n") {
            assert_eq!((packet.ttl, packet.payload.len(), &packet.addresses.1), (9, 33, &to));
        }
    }
}

/// Packets longer than a frame of the umem go in several.
fn several_frames() {
    let lab = lab(1);
    let mut capture = Capture::on(&lab, true);
    for port in [&lab.generator, &lab.dut] {
        port.netns.rtnl().unwrap().set_mtu(port.ifindex, 3400).unwrap();
    }
    let packets = arrived(&lab, &mut capture, &["xsk-udp", "gen0", "-f", "2048", "-s", "3000", "-P", "a1b2c3d4"], "-c");
    for packet in packets {
        let payload: Vec<u8> = [0xa1, 0xb2, 0xc3, 0xd4].into_iter().cycle().take(2954).collect();
        assert_eq!((packet.l2, packet.payload == payload), (2996, true));
    }
}

/// What the end says was sent, by all threads and by each.
fn sent(ended: &Ended) -> (u64, Vec<u64>) {
    let end = ended.events("end").remove(0);
    let sent = &end["total"]["sent"];
    let senders = sent["senders"].as_array().unwrap().iter().map(|sender| sender["packets"].as_u64().unwrap());
    (sent["packets"].as_u64().unwrap(), senders.collect())
}

fn exact() {
    const COUNT: u64 = 100_003;
    let lab = lab(2);
    let (_attachment, _program) = dropping(&lab);
    for (args, parts) in [
        (&["udp", "gen0", "-n", "100003"][..], vec![COUNT]),
        (&["udp", "gen0", "-n", "100003", "-t", "2"], vec![50_002, 50_001]),
        (&["udp", "gen0", "--count", "100003", "-t", "2", "--rate", "500k", "-d", "7"], vec![50_002, 50_001]),
        (&["udp", "gen0", "-n", "100003", "--rate", "1M", "--burst", "10"], vec![COUNT]),
        (&["xsk-udp", "gen0", "-c", "100003"], vec![COUNT]),
        (&["xsk-udp", "gen0", "-c", "100003", "-t", "2"], vec![50_002, 50_001]),
    ] {
        let before = rx_packets(&lab.dut);
        let ended = done(&lab, &[args, &["--json"]].concat());
        assert_eq!(sent(&ended), (COUNT, parts), "{args:?}");
        let end = ended.events("end").remove(0);
        assert_eq!(end["ended_by"], "count");
        for account in end["ledger"].as_array().unwrap() {
            assert_eq!(account["residual"], 0, "{args:?}: {end}");
        }
        let lost = end["total"]["xmit"]["drops"].as_u64().unwrap_or(0);
        let dropped_by_device: u64 = end["ledger"].to_string().matches("dropped by the device").count() as u64;
        let received = rx_packets(&lab.dut) - before;
        assert!(received == COUNT - lost || dropped_by_device > 0, "{args:?}: {received} received, {end}");
    }
}

fn rates() {
    let lab = lab(1);
    let (_attachment, _program) = dropping(&lab);
    for (args, pps, burst) in [
        (&["udp", "gen0", "--rate", "20k"][..], 20_000.0, 1.0),
        (&["udp", "gen0", "--rate", "1000"], 1_000.0, 1.0),
        (&["udp", "gen0", "--rate", "52.8Mbit"], 100_000.0, 1.0),
        (&["udp", "gen0", "--rate", "100k", "--burst", "10"], 100_000.0, 10.0),
        (&["xsk-udp", "gen0", "--rate", "5kpps"], 5_000.0, 1.0),
        (&["xsk-udp", "gen0", "-T", "1000", "-b", "16"], 16_000.0, 16.0),
    ] {
        let mut end = Value::Null;
        // 0.1 % on a machine of its own; this one may be busy, and what it has missed is sent in haste.
        eventually(&format!("{args:?}: the rate is kept"), 20, || {
            end = done(&lab, &[args, &["--json", "--duration", "0.6"]].concat()).events("end").remove(0);
            let achieved = end["total"]["sent"]["gaps"]["departures_per_s"].as_f64().unwrap_or(0.0) * burst;
            assert!(achieved < pps * 1.1, "{args:?}: {end}");
            (achieved / pps - 1.0).abs() < 0.1
        });
        let sent = &end["total"]["sent"];
        let gaps = &sent["gaps"];
        let (median, expected) = (gaps["p50_ns"].as_f64().unwrap(), burst / pps * 1e9);
        assert!(median < expected * 1.2 && gaps["max_ns"].as_f64().unwrap() > expected * 0.9, "{args:?}: {gaps}");
        let bursts = sent["packets"].as_f64().unwrap() / burst;
        assert!((gaps["count"].as_f64().unwrap() + 1.0 - bursts).abs() <= 2.0, "{args:?}: {sent}");
        assert!(gaps["p99_ns"].as_f64() >= gaps["p50_ns"].as_f64(), "{gaps}");
        assert_eq!(end["sending"]["asked"].as_f64().map(f64::round), Some(pps), "{end}");
        let share = end["cpus"][0]["share"].as_f64().unwrap();
        assert!((0.0..=1.05).contains(&share), "{end}");
    }
    let ended = done(&lab, &["udp", "gen0", "--rate", "1000", "--duration", "0.5"]);
    assert!(ended.stdout.contains("packets/s asked for") && ended.stdout.contains("Gaps "), "{}", ended.stdout);
}

fn threads() {
    let lab = lab(1);
    let (_attachment, _program) = dropping(&lab);
    let ended = done(&lab, &["udp", "gen0", "-t", "2", "--duration", "0.5", "-I", "0.2", "-e"]);
    for line in ["    thread:0 cpu:", "    thread:1 cpu:"] {
        assert!(ended.stdout.contains(line), "{}", ended.stdout);
    }
    let threads = ended.stdout.lines().find(|line| line.starts_with("  Threads ")).unwrap();
    assert!(threads.contains("2 together send"), "{threads}");
    // Both ends of the lab are in namespaces of their own, so that the peer's queues can't be seen.
    let slower = threads.contains("can't be seen from here") || threads.contains("others ran there");
    let times: f64 = threads.split("send ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(slower == (times < 0.995) || (times - 1.0).abs() < 0.006, "{threads}");
    let ended = done(&lab, &["xsk-udp", "gen0", "--duration", "0.3", "-e", "-i", "0.1"]);
    assert!(ended.stdout.contains("    txq:0 "), "{}", ended.stdout);
}

fn refusals() {
    let bare = Lab::build(&LabSpec::new(Placement::Same { cpu: 0 })).unwrap();
    let refused = |lab: &Lab, args: &[&str], words: &[&str]| {
        let began = Instant::now();
        ended(lab, args).refused(words);
        assert!(began.elapsed() < patience(15), "{args:?}");
        assert_eq!(programs(&lab.generator), 0);
    };
    for args in [&["udp", "gen0"][..], &["udp", "gen0", "-n", "1"]] {
        let sentence = "Interface gen0 does not support sending packets via XDP.";
        refused(&bare, args, &[sentence, "no NAPI (EOPNOTSUPP)", "gro on"]);
    }
    let lab = lab(1);
    let (attachment, _program) = dropping(&lab);
    refused(&lab, &["udp", "gen0", "-s", "1600"], &["EMSGSIZE", "MTU is 1500", "ip link set gen0 mtu"]);
    refused(&lab, &["xsk-udp", "gen0", "-s", "1600"], &["EMSGSIZE"]);
    refused(&lab, &["xsk-udp", "gen0", "-q", "7"], &["queue 7"]);
    refused(&lab, &["xsk-udp", "gen0", "-C", "zero-copy"], &["the driver has no zero-copy"]);
    refused(&lab, &["xsk-udp", "gen0", "-y", "--vlan", "1", "--vlan", "2"], &["frames of 64 bytes"]);
    refused(&lab, &["udp", "gen0", "--cpus", "1023"], &["can't run on CPU 1023 alone"]);
    drop(attachment);
    lab.generator.netns.rtnl().unwrap().set_down(lab.generator.ifindex).unwrap();
    for engine in ["udp", "xsk-udp"] {
        refused(&lab, &[engine, "gen0"], &["it is down (ENETDOWN)", "ip link set gen0 up"]);
    }
}

/// Midway the receiver loses what makes it one.
fn emptied() {
    let lab = Lab::build(&LabSpec::new(Placement::Same { cpu: 0 })).unwrap();
    let (attachment, program) = dropping(&lab);
    let live = Live::start(&lab.generator, &["trafficgen", "udp", "gen0", "-I", "0.3"]);
    eventually("packets arrive", 10, || program.total().unwrap().packets > 1000);
    drop(attachment);
    let ended = live.wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stdout);
    let last = ended.stderr.lines().last().unwrap();
    let errno = if refuses_redirects_to_deaf_peers() { "EOPNOTSUPP" } else { "ENXIO" };
    assert!(last.contains("none came to its driver") && last.contains(errno), "{last}");
    assert!(ended.stdout.contains("Packets sent "), "the totals are told all the same: {}", ended.stdout);
    // Told to go on it goes on.
    let ended = done(&lab, &["xsk-udp", "gen0", "--keep-going", "--duration", "0.3", "-i", "0.1"]);
    assert!(ended.stdout.contains("Packets sent "), "{}", ended.stdout);
}

fn signals() {
    let lab = lab(1);
    let (_attachment, _program) = dropping(&lab);
    for args in [
        &["udp", "gen0", "-I", "100"][..],
        &["udp", "gen0", "-I", "100", "--rate", "2", "--keep-going"],
        &["xsk-udp", "gen0", "-i", "100"],
        &["xsk-udp", "gen0", "-i", "100", "--rate", "2"],
        &["xsk-udp", "gen0", "-i", "100", "-p"],
    ] {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let before = rx_packets(&lab.dut);
            let live = Live::start(&lab.generator, &[&["trafficgen"], args].concat());
            // After the trial frame, if there was one.
            eventually("it sends", 20, || rx_packets(&lab.dut) > before + 1);
            let began = Instant::now();
            live.signal(signal);
            let ended = live.wait();
            let took = began.elapsed();
            println!("{args:?} ended {took:?} after {signal}");
            // 100 ms on a machine of its own; this one may be busy.
            assert!(took < patience(2), "{took:?}");
            assert_eq!(ended.status.code(), Some(0), "{args:?}: {}", ended.stderr);
            assert!(
                ended.total("Packets sent").is_some_and(|sent| sent > 0 || args.contains(&"2")),
                "{}",
                ended.stdout
            );
            assert_eq!(programs(&lab.generator), 0);
        }
    }
    let live = Live::start(&lab.generator, &["trafficgen", "udp", "gen0"]);
    live.signal(Signal::SIGKILL);
    live.wait();
    let before = rx_packets(&lab.dut);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(rx_packets(&lab.dut), before, "nothing is sent after the end");
}

fn lines() {
    let lab = lab(1);
    let (_attachment, _program) = dropping(&lab);
    let ended = done(&lab, &["udp", "gen0", "-I", "0.2", "--duration", "0.5"]);
    let first = ended.stdout.lines().next().unwrap();
    assert!(
        first.starts_with("lo->gen0               ") && first.contains(" err/s ") && first.contains(" xmit/s"),
        "{first}"
    );
    assert!(ended.stderr.contains(&format!("Transmitting on gen0 (ifindex {})\n", lab.generator.ifindex)));
    assert!(ended.stderr.contains("66 bytes on the wire with FCS, 62 without"), "{}", ended.stderr);
    assert!(ended.stderr.contains("a trial frame arrived ("), "{}", ended.stderr);
    for label in ["Packets transmitted", "Average transmit/s", "Packets sent", "ns per packet"] {
        assert!(ended.stdout.contains(&format!("  {label:<20}: ")), "{label}: {}", ended.stdout);
    }
    let sizes = done(&lab, &["udp", "gen0", "-n", "9", "-s", "64,100"]);
    assert!(sizes.stderr.contains("Sizes of 64 and 65 bytes are 66 bytes"), "{}", sizes.stderr);
    let ended = done(&lab, &["xsk-udp", "gen0", "-i", "0.2", "--duration", "0.5", "-x", "-a", "-T", "1000"]);
    for line in [
        "gen0:0 ",
        " xmit/s\n",
        " sock0 ",
        "  TX ring empty ",
        "Copy tx sendtos",
        " Cyclic TX          period:1000000",
        "Totals:\n TX  ",
    ] {
        assert!(ended.stdout.contains(line), "{line:?}: {}", ended.stdout);
    }
    assert!(!ended.stdout.contains("rx/s\n"), "{}", ended.stdout);
    let interrupts = std::fs::read_to_string("/proc/interrupts").unwrap();
    let is_numbered = |line: &&str| line.split(':').next().is_some_and(|number| number.trim().parse::<u32>().is_ok());
    let device = interrupts.lines().find(is_numbered).unwrap().split_whitespace().last().unwrap();
    let ended = done(&lab, &["xsk-udp", "gen0", "-I", device, "-i", "0.2", "--duration", "0.5"]);
    assert!(ended.stdout.contains(" IRQs "), "{}", ended.stdout);
    let mut at_once = command(&["trafficgen", "udp", "gen0", "-n", "1"]);
    at_once.env("XDP_SAMPLE_IMMEDIATE_EXIT", "1");
    let ended = Live::spawn(&lab.generator, at_once).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
}

fn json_and_record() {
    let lab = lab(1);
    let (_attachment, _program) = dropping(&lab);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let args = ["udp", "gen0", "-I", "0.2", "--duration", "0.5", "-s", "imix", "-d", "4", "--json", "--record", path];
    let ended = done(&lab, &args);
    let (start, end) = (ended.events("start").remove(0), ended.events("end").remove(0));
    assert_eq!(start["sending"]["flows"], 4);
    assert_eq!(start["sending"]["shortest"], serde_json::json!({"payload": 0, "l2": 62, "wire": 66}));
    assert_eq!(start["sending"]["longest"]["wire"], 1518);
    assert_eq!(start["targets"][0]["interface"], "gen0");
    let number = |value: &Value| value["sent"]["packets"].as_u64().unwrap();
    let sum: u64 = ended.events("interval").iter().map(number).sum();
    assert_eq!(sum, number(&end["total"]), "{end}");
    let record: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let run = &record["live_runs"][0];
    assert_eq!((&run["end"]["total"], &run["start"]["sending"]), (&end["total"], &start["sending"]));
}

fn probe() {
    let lab = lab(1);
    let (attachment, _program) = dropping(&lab);
    let ended = done(&lab, &["probe", "-i", "gen0"]);
    assert!(ended.stdout.contains("Kernel supports live packet mode for XDP BPF_PROG_RUN.\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("ndo-xmit"), "{}", ended.stdout);
    done(&lab, &["probe"]);
    drop(attachment);
    let bare = Lab::build(&LabSpec::new(Placement::Same { cpu: 0 })).unwrap();
    let lacking = super::trafficgen::ended(&bare, &["probe", "--interface", "gen0", "-v"]);
    assert_eq!(lacking.status.code(), Some(1));
    assert!(lacking.stderr.contains("Interface gen0 does not support sending packets via XDP."), "{}", lacking.stderr);
    let absent = super::trafficgen::ended(&lab, &["probe", "-i", "nothing0"]);
    assert_eq!(absent.status.code(), Some(2));
    assert!(absent.stderr.contains("nothing0"), "{}", absent.stderr);
}
