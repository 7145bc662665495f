//! The command line of `trafficgen`. Nothing is sent: the interface asked for has a name that none can have.

use super::{NO_INTERFACE, is_understood, run};

#[test]
fn every_option_and_value_of_trafficgen_udp_is_taken() {
    for options in [
        &[][..],
        &["-m", "02:00:00:00:00:01", "-M", "02:00:00:00:00:02"],
        &["--dst-mac", "02:00:00:00:00:01", "--src-mac=02:00:00:00:00:02"],
        &["-a", "fe80::9", "-A", "fe80::8"],
        &["--dst-addr", "10.0.0.1", "--src-addr", "10.0.0.2"],
        &["-p", "65535", "-P", "0"],
        &["--dst-port", "9", "--src-port", "9"],
        &["-d", "100"],
        &["--dyn-ports", "65536"],
        &["-n", "4294967296"],
        &["--num-packets", "1"],
        &["--count", "1", "--duration", "0.5"],
        &["-s", "66"],
        &["--pkt-size", "64,1518"],
        &["-s", "imix"],
        &["-s64..1518:64"],
        &["-t", "2"],
        &["--threads", "64"],
        &["-I", "5"],
        &["--interval", "0.5"],
        &["-l", "255"],
        &["--hop-limit", "0"],
        &["--ttl", "64"],
        &["-v"],
        &["-vv"],
        &["--verbose"],
        &["--src-ports", "2", "--dst-addrs", "3", "--src-addrs", "4"],
        &["--vlan", "1", "--vlan", "2:7", "--restore-headers"],
        &["--rate", "10k", "--burst", "4"],
        &["--rate=1.5Gbit"],
        &["--cpus", "0-1,3"],
        &["-b", "256"],
        &["--batch-size", "1"],
        &["-e", "--json", "--record", "/nonexistent/record.json", "--keep-going", "--force"],
        &["--num", "1", "--thr", "2", "--hop", "3"],
        &["-I", "1", "-I", "2", "-n", "1", "-n", "2"],
    ] {
        let before = [&["trafficgen", "udp"][..], options, &[NO_INTERFACE]].concat();
        let after = [&["trafficgen", "udp", NO_INTERFACE][..], options].concat();
        assert!(is_understood(&before), "{before:?}");
        assert!(is_understood(&after), "{after:?}");
    }
    for bad in [
        &["-m", "02"][..],
        &["-a", "example.org"],
        &["-p", "65536"],
        &["-d", "0"],
        &["-n", "0"],
        &["-s", "big"],
        &["-t", "0"],
        &["-I", "0"],
        &["-l", "256"],
        &["--vlan", "4095"],
        &["--vlan", "1:8"],
        &["--rate", "0"],
        &["--burst", "2"],
        &["--cpus", "3-1"],
        &["-b", "257"],
        &["--pcap", "x", "--vlan", "1"],
    ] {
        assert!(!is_understood(&[&["trafficgen", "udp", NO_INTERFACE][..], bad].concat()), "{bad:?}");
    }
    assert!(is_understood(&["traf", "u", NO_INTERFACE]));
}

#[test]
fn every_option_and_value_of_trafficgen_xsk_udp_is_taken() {
    for options in [
        &[][..],
        &["-m", "02:00:00:00:00:01", "-M", "02:00:00:00:00:02"],
        &["-y"],
        &["--timestamp"],
        &["-V", "-J", "4094", "-K", "7"],
        &["--vlan-tag", "--vlan-id", "1", "--vlan-pri", "0"],
        &["-P", "0xdeadbeef"],
        &["--fill-pattern", "12345678"],
        &["-T", "1000"],
        &["--tx-cycle-time", "0"],
        &["-q", "3"],
        &["--queue", "0"],
        &["-i", "2"],
        &["--interval", "0.5"],
        &["-O", "3"],
        &["--retries", "0"],
        &["-f", "2048"],
        &["--frame-size", "4096"],
        &["-s", "9728"],
        &["--pkt-size", "imix"],
        &["-d", "0"],
        &["--duration", "3"],
        &["-c", "0"],
        &["--pkt-count", "1000"],
        &["--count", "7"],
        &["-b", "32"],
        &["--batch-size", "1"],
        &["-I", "virtio"],
        &["--irq-string", "edge"],
        &["-p"],
        &["--poll"],
        &["--no-need-wakeup"],
        &["-u"],
        &["--unaligned"],
        &["--shared-umem"],
        &["-x"],
        &["--extra-stats"],
        &["-Q"],
        &["--quiet"],
        &["-a"],
        &["--app-stats"],
        &["-C", "auto"],
        &["-C", "copy"],
        &["--copy-mode", "zero-copy"],
        &["-w", "MONOTONIC"],
        &["-w", "REALTIME"],
        &["--clock", "TAI"],
        &["-w", "BOOTTIME"],
        &["-W", "SCHED_OTHER"],
        &["--policy", "SCHED_FIFO", "--schpri", "50"],
        &["-A", "native"],
        &["-A", "skb"],
        &["--attach-mode", "hw"],
        &["-v"],
        &["--vlan", "9", "--vlan", "8", "--src-ports", "2", "--dyn-ports", "2", "--dst-addrs", "2", "--src-addrs", "2"],
        &["--rate", "100Mbit", "--burst", "2", "--cpus", "0", "-t", "2"],
        &["--dst-addr", "::1", "--src-addr", "::2", "--dst-port", "1", "--src-port", "2", "--hop-limit", "3"],
        &["--json", "--record", "/nonexistent/record.json", "--keep-going", "--force", "-e", "--restore-headers"],
    ] {
        let args = [&["trafficgen", "xsk-udp", NO_INTERFACE][..], options].concat();
        assert!(is_understood(&args), "{args:?}");
    }
    for bad in [
        &["-J", "4095"][..],
        &["-K", "8"],
        &["-P", "xyz"],
        &["-p", "-T", "5"],
        &["--rate", "1k", "-T", "5"],
        &["-V", "--vlan", "1"],
        &["-C", "zc"],
        &["-A", "driver"],
        &["-b", "0"],
    ] {
        assert!(!is_understood(&[&["trafficgen", "xsk-udp", NO_INTERFACE][..], bad].concat()), "{bad:?}");
    }
    assert!(is_understood(&["trafficgen", "probe", "-i", NO_INTERFACE, "-v"]));
    assert!(is_understood(&["trafficgen", "probe", "--interface", NO_INTERFACE]));
    for command in ["udp", "xsk-udp", "tcp", "probe"] {
        let (code, stdout, _) = run(&["trafficgen", command, "--version"]);
        assert_eq!((code, stdout.lines().count()), (Some(0), 1), "{command}");
        let (code, stdout, _) = run(&["trafficgen", command, "-h"]);
        assert!(code == Some(0) && stdout.contains("--verbose"), "{command}");
    }
}

#[test]
fn every_option_and_value_of_trafficgen_tcp_is_taken() {
    for options in [
        &[][..],
        &["-p", "65535", "-m", "native", "-n", "4294967295", "-I", "5", "-t", "3", "-v"],
        &["--dst-port", "1", "--mode", "skb", "--num-packets", "1", "--interval", "0.5", "--timeout", "2", "-vv"],
        &["--mode=hw", "--count", "7", "--bytes", "10M", "--duration", "0.5", "--verbose"],
        &["--rate", "10k", "--burst", "4", "-l", "255", "--hop-limit", "1"],
        &["--rate=1.5Gbit", "--ttl", "64", "-s", "1000", "-b", "256", "--batch-size", "1", "--cpus", "0"],
        &["-e", "--json", "--record", "/nonexistent/record.json", "--keep-going", "--force"],
    ] {
        let args = [&["trafficgen", "tcp", "-i", NO_INTERFACE, "198.18.0.2"][..], options].concat();
        assert!(is_understood(&args), "{args:?}");
        let args = [&["trafficgen", "tcp", "--interface", NO_INTERFACE][..], options, &["::1"]].concat();
        assert!(is_understood(&args), "{args:?}");
    }
    for bad in [
        &["-p", "65536"][..],
        &["-m", "auto"],
        &["-n", "0"],
        &["-I", "0"],
        &["-t", "x"],
        &["-l", "0"],
        &["--rate", "0"],
        &["--burst", "2"],
        &["-s", "imix"],
        &["-b", "257"],
    ] {
        let args = [&["trafficgen", "tcp", "-i", NO_INTERFACE, "198.18.0.2"][..], bad].concat();
        assert!(!is_understood(&args), "{bad:?}");
    }
}

/// Those of `xdp-trafficgen`, as its manual page has them.
#[test]
fn defaults_of_trafficgen_are_those_of_the_peer() {
    for (command, defaults) in [
        (
            "udp",
            &[
                ("--dst-mac <", "[default: 00:00:00:00:00:00]"),
                ("--src-mac <", "[default: that of the interface]"),
                ("--dst-addr <", "[default: fe80::2,"),
                ("--src-addr <", "[default: fe80::1,"),
                ("--dst-port <", "[default: 1]"),
                ("--src-port <", "[default: 1]"),
                ("--pkt-size <", "[default: the shortest]"),
                ("--threads <", "[default: 1]"),
                ("--interval <", "[default: 1]"),
                ("--hop-limit <", "[default: 1]"),
            ][..],
        ),
        (
            "xsk-udp",
            &[
                ("--dst-mac <", "[default: 00:00:00:00:00:00]"),
                ("--src-mac <", "[default: that of the interface]"),
                ("--vlan-id <", "[default: 1]"),
                ("--vlan-pri <", "[default: 0]"),
                ("--fill-pattern <", "[default: 0]"),
                ("--tx-cycle-time <", "[default: 0]"),
                ("--queue <", "[default: 0]"),
                ("--interval <", "[default: 1]"),
                ("--retries <", "[default: 3]"),
                ("--frame-size <", "[default: 4096]"),
                ("--pkt-size <", "[default: 64]"),
                ("--duration <", "[default: 0]"),
                ("--pkt-count <", "[default: 0]"),
                ("--batch-size <", "[default: 64]"),
                ("--copy-mode <", "[default: auto]"),
                ("--clock <", "[default: MONOTONIC]"),
                ("--policy <", "[default: SCHED_OTHER]"),
                ("--schpri <", "[default: 0]"),
                ("--attach-mode <", "[default: native]"),
            ],
        ),
        (
            "tcp",
            &[
                ("--dst-port <", "[default: 10000]"),
                ("--mode <", "[default: native]"),
                ("--timeout <", "[default: 2]"),
                ("--interval <", "[default: 1]"),
            ],
        ),
    ] {
        let (code, help, _) = run(&["trafficgen", command, "--help"]);
        assert_eq!(code, Some(0));
        for (option, default) in defaults {
            let of_option = help.split_once(option).unwrap_or_else(|| panic!("{command}: {option} is not in {help}")).1;
            let of_option = of_option.split("\n  -").next().unwrap().split("\n      -").next().unwrap();
            let words = of_option.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(default), "{command} {option}: {words}");
        }
    }
}

/// Each by one sentence, whose reason is told to the user and in docs/trafficgen.md.
#[test]
fn options_that_make_no_sense_for_a_command_are_refused_by_one_sentence() {
    let interface = ["-i", NO_INTERFACE];
    for (command, needed, refused) in [
        ("udp", &[NO_INTERFACE][..], &["queue"][..]),
        (
            "tcp",
            &["-i", NO_INTERFACE, "198.18.0.2"],
            &["threads", "queue", "vlan", "dyn-ports", "src-ports", "dst-addrs", "src-addrs", "pcap"],
        ),
        (
            "socket",
            &["198.18.0.2"],
            &["threads", "queue", "vlan", "dyn-ports", "src-ports", "dst-addrs", "src-addrs", "burst", "pcap"],
        ),
        (
            "sink",
            &[],
            &[
                "rate",
                "size",
                "pkt-size",
                "batch-size",
                "ttl",
                "vlan",
                "src-ports",
                "pcap",
                "threads",
                "queue",
                "interval",
            ],
        ),
        ("pktgen", &interface, &["ttl", "hop-limit", "cpus", "queue", "batch-size", "src-ports", "src-addrs", "pcap"]),
        ("probe", &[], &["duration", "count", "rate", "vlan", "ttl", "pkt-size", "threads", "pcap", "record"]),
    ] {
        for option in refused {
            let option = format!("--{option}");
            for args in [vec![&*option, "7"], vec![&*format!("{option}=7")]] {
                let args = [&["trafficgen", command], needed, &args].concat();
                let (code, stdout, stderr) = run(&args);
                assert_eq!((code, &*stdout, stderr.lines().count()), (Some(2), "", 1), "{args:?}: {stderr}");
                let sentence = stderr.strip_prefix(&format!("xdplab: can't take {option}: "));
                assert!(sentence.is_some_and(|why| why.len() > 20), "{args:?}: {stderr}");
            }
        }
        let (_, help, _) = run(&["trafficgen", command, "--help"]);
        for option in refused {
            assert!(!help.contains(&format!("--{option} ")), "{command}: {option} is no option of its own");
        }
    }
    for (command, more) in
        [("tcp", &["-i", NO_INTERFACE, "198.18.0.2"][..]), ("socket", &["198.18.0.2"]), ("pktgen", &interface)]
    {
        let (code, _, stderr) = run(&[&["trafficgen", command], more, &["--size", "imix"]].concat());
        assert!(code == Some(2) && stderr.contains("udp and xsk-udp send sizes in turn"), "{command}: {stderr}");
    }
}

#[test]
fn every_option_and_value_of_trafficgen_pktgen_is_taken() {
    for options in [
        &[][..],
        &["-s", "1514", "-d", "10.0.0.1", "-m", "02:00:00:00:00:01", "-p", "433-444", "-k"],
        &["--size", "60", "--dest", "198.18.0.0/15", "--dst-mac=02:00:00:00:00:01", "--dst-port", "9", "--udp-csum"],
        &["-t", "2", "-f", "1", "-c", "100", "-n", "1000", "-b", "32", "-w", "100", "-6"],
        &[
            "--threads",
            "1",
            "--first-thread",
            "0",
            "--clone",
            "1",
            "--count",
            "0",
            "--burst",
            "1",
            "--delay",
            "0",
            "--ipv6",
        ],
        &["--flows", "8000", "--rate", "1000", "--xmit-mode", "netif_receive"],
        &["--rate", "100Mbit", "--vlan", "1", "--vlan", "2:7"],
        &["--xmit-mode", "queue_xmit", "-I", "0.5", "--duration", "1", "--json", "-e", "-v", "--keep-going", "--force"],
        &["--record", "/nonexistent/record.json", "--interval", "2"],
    ] {
        let args = [&["trafficgen", "pktgen", "-i", NO_INTERFACE][..], options].concat();
        assert!(is_understood(&args), "{args:?}");
    }
    for bad in [
        &["-d", "10.0.0.1/33"][..],
        &["-p", "9-8"],
        &["-m", "x"],
        &["--flows", "0"],
        &["--rate", "0"],
        &["--xmit-mode", "fast"],
        &["-I", "0"],
    ] {
        assert!(!is_understood(&[&["trafficgen", "pktgen", "-i", NO_INTERFACE][..], bad].concat()), "{bad:?}");
    }
    let pktgen = ["trafficgen", "pktgen", "-i", "lo"];
    if !std::fs::exists("/proc/net/pktgen/pgctrl").unwrap() {
        let (code, stdout, stderr) = run(&pktgen);
        assert_eq!((code, &*stdout, stderr.lines().count()), (Some(2), "", 1));
        assert!(
            stderr.contains("/proc/thread-self/net/pktgen is not there: the module is not loaded; modprobe pktgen"),
            "{stderr}"
        );
    }
}
