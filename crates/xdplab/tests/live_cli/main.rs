//! The command line of `drop`, `pass` and `tx`: what they take, and what they say to what they don't. Nothing is attached:
//! the interface asked for has a name that none can have.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod trafficgen;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use assert_cmd::assert::OutputAssertExt as _;

/// Longer than any interface name (`IFNAMSIZ`).
const NO_INTERFACE: &str = "no-interface-can-have-this-name";
/// The user and group that own nothing.
const NOBODY: u32 = 65_534;

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let assert = Command::new(env!("CARGO_BIN_EXE_xdplab")).args(args).assert();
    let output = assert.get_output();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Whether the arguments were understood: then it is the interface that is wrong, or the rights that are missing.
fn is_understood(args: &[&str]) -> bool {
    let (code, stdout, stderr) = run(args);
    assert_eq!((code, &*stdout), (Some(2), ""), "{args:?}: {stderr}");
    let understood = stderr.starts_with("xdplab: can't ");
    assert!(!understood || stderr.lines().count() == 1, "{args:?}: {stderr}");
    understood
}

#[test]
fn every_option_and_value_of_the_peer_is_taken() {
    for command in ["drop", "pass", "tx"] {
        for options in [
            &[][..],
            &["-p", "no-touch"],
            &["--packet-operation", "read-data"],
            &["--packet-operation=parse-ip"],
            &["--program-mode", "swap-macs"],
            &["-l", "dpa"],
            &["--load-mode", "load-bytes"],
            &["-r"],
            &["--rxq-stats"],
            &["-i", "2"],
            &["--interval", "1"],
            &["-i0.5"],
            &["-e"],
            &["--extended"],
            &["-m", "native"],
            &["--xdp-mode", "skb"],
            &["-v"],
            &["-vv"],
            &["--verbose"],
            &["-rei1", "-mskb", "-pread-data", "-lload-bytes"],
        ] {
            let before = [&[command][..], options, &[NO_INTERFACE]].concat();
            let after = [&[command, NO_INTERFACE][..], options].concat();
            assert!(is_understood(&before), "{before:?}");
            assert!(is_understood(&after), "{after:?}");
        }
    }
}

#[test]
fn every_option_and_value_of_the_redirecting_commands_is_taken() {
    let all = [
        &[][..],
        &["-s"],
        &["--stats"],
        &["-i", "2"],
        &["--interval", "1"],
        &["-i0.5"],
        &["-e"],
        &["--extended"],
        &["-m", "native"],
        &["--mode", "skb"],
        &["-mskb"],
        &["-v"],
        &["-vv"],
        &["--verbose"],
        &["-sei1"],
        &["--st", "--mo=skb", "--int", "1", "--ext"],
        &["--duration", "0.5", "--count", "10", "--json", "--force"],
    ];
    let load = [&["-l", "dpa"][..], &["--load-mode", "load-bytes"], &["--l=dpa"]];
    let egress = [
        &["-X"][..],
        &["--load-egress"],
        &["-X", "-A", "forward"],
        &["-A", "drop", "-X"],
        &["-XA", "drop"],
        &["--load", "--egress", "drop"],
        &["--load-egress", "--egress-action=forward"],
    ];
    let names = [NO_INTERFACE, "b", "c", "d"];
    for (command, interfaces, more) in
        [("redirect", 2, &load[..]), ("redirect-map", 2, &egress), ("redirect-multi", 4, &egress)]
    {
        let interfaces = &names[..interfaces];
        for options in all.iter().chain(more) {
            let before = [&[command], *options, interfaces].concat();
            let after = [&[command], interfaces, *options].concat();
            assert!(is_understood(&before), "{before:?}");
            assert!(is_understood(&after), "{after:?}");
        }
    }
    let most: Vec<&str> = std::iter::once("redirect-multi").chain([NO_INTERFACE; 32]).collect();
    assert!(is_understood(&most));
}

#[test]
fn a_command_is_taken_by_any_beginning_that_tells_it_apart() {
    assert!(is_understood(&["dr", NO_INTERFACE]));
    assert!(is_understood(&["redirect-ma", NO_INTERFACE, "b", "-X"]));
    assert!(is_understood(&["redirect", NO_INTERFACE, "b"]), "the whole name, though others begin with it");
    assert!(!is_understood(&["redirect-m", NO_INTERFACE, "b"]), "redirect-map or redirect-multi");
}

#[test]
fn long_options_are_taken_by_any_beginning_that_tells_them_apart() {
    for option in
        [&["--packet", "no-touch"][..], &["--l=dpa"], &["--r"], &["--rx"], &["--i", "1"], &["--ext"], &["--x", "skb"]]
    {
        assert!(is_understood(&[&["drop", NO_INTERFACE][..], option].concat()), "{option:?}");
    }
    assert!(!is_understood(&["drop", NO_INTERFACE, "--ver"]), "--verbose or --version");
}

#[test]
fn an_option_given_twice_counts_the_last_time() {
    assert!(is_understood(&[
        "drop",
        NO_INTERFACE,
        "-i",
        "1",
        "-i",
        "3",
        "-e",
        "-e",
        "-p",
        "no-touch",
        "-p",
        "read-data"
    ]));
}

#[test]
fn our_own_options_are_taken_too() {
    assert!(is_understood(&["drop", NO_INTERFACE, "--duration", "0.5", "--count", "10", "--json", "--force"]));
}

#[test]
fn bad_values_are_refused_with_what_is_allowed() {
    for (args, words) in [
        (&["drop"][..], &["IFNAME"][..]),
        (&["drop", "a", "b"], &["unexpected argument 'b'"]),
        (&["drop", "a", "-p", "touch"], &["no-touch, read-data, parse-ip, swap-macs"]),
        (&["drop", "a", "-l", "bytes"], &["dpa, load-bytes"]),
        (&["drop", "a", "-m", "generic"], &["native, skb"]),
        (&["drop", "a", "-i", "0"], &["from 0.001 to 4294967295 seconds"]),
        (&["drop", "a", "-i", "-1"], &["-1"]),
        (&["drop", "a", "-i", "nan"], &["from 0.001 to 4294967295 seconds"]),
        (&["drop", "a", "-i", "1e300"], &["from 0.001 to 4294967295 seconds"]),
        (&["drop", "a", "-i", "2s"], &["not a number of seconds"]),
        (&["drop", "a", "--duration", "0"], &["from 0.001"]),
        (&["drop", "a", "--count", "0"], &["0 is not in 1.."]),
        (&["drop", "a", "--frob"], &["--frob"]),
        (&["redirect", "a"], &["IFNAME_OUT"]),
        (&["redirect", "a", "b", "c"], &["unexpected argument 'c'"]),
        (&["redirect", "a", "b", "-l", "bytes"], &["dpa, load-bytes"]),
        (&["redirect", "a", "b", "-X"], &["-X"]),
        (&["redirect", "a", "b", "-m", "generic"], &["native, skb"]),
        (&["redirect-map", "a", "b", "-A", "drop"], &["--load-egress"]),
        (&["redirect-map", "a", "b", "-X", "-A", "pass"], &["forward, drop"]),
        (&["redirect-map", "a", "b", "-l", "dpa"], &["-l"]),
        (&["redirect-multi", "a"], &["IFNAME"]),
        (&["redirect-multi", "a", "b", "-A", "forward"], &["--load-egress"]),
        (&["monitor", "a"], &["unexpected argument 'a'"]),
        (&["monitor", "-m", "skb"], &["-m"]),
        (&["monitor", "-i", "0"], &["from 0.001"]),
        (&["monitor", "--count", "5"], &["monitor attaches no program", "--duration"]),
    ] {
        let (code, stdout, stderr) = run(args);
        assert_eq!((code, &*stdout), (Some(2), ""), "{args:?}");
        for word in words {
            assert!(stderr.contains(word), "{args:?}: {stderr}");
        }
    }
}

#[test]
fn help_and_version_are_on_standard_output() {
    for command in ["drop", "pass", "tx"] {
        let (code, help, stderr) = run(&[command, "-h"]);
        assert_eq!((code, &*stderr), (Some(0), ""));
        for option in [
            "-p, --packet-operation <ACTION>",
            "-l, --load-mode <MODE>",
            "-r, --rxq-stats",
            "-i, --interval <SECONDS>",
            "-e, --extended",
            "-m, --xdp-mode <MODE>",
            "-v, --verbose",
            "--duration <SECONDS>",
            "--count <PACKETS>",
            "--json",
            "--record <FILE>",
            "--force",
            "[default: 2]",
            "[default: dpa]",
            "[default: native]",
        ] {
            assert!(help.contains(option), "{option} is not in {help}");
        }
        assert!(!help.contains("program-mode"), "{help}");
        let (code, version, _) = run(&[command, "--version"]);
        assert_eq!(code, Some(0));
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    }
}

#[test]
fn help_of_the_redirecting_commands_has_their_options_and_defaults() {
    let all = ["-s, --stats", "-i, --interval <SECONDS>", "-e, --extended", "[default: 2]"];
    let egress =
        ["-X, --load-egress", "-A, --egress-action <ACTION>", "[default: forward]", "[possible values: forward, drop]"];
    let mode = ["-m, --mode <MODE>", "[default: native]"];
    for (command, more) in [
        ("redirect", &["-l, --load-mode <MODE>", "[default: dpa]", "<IFNAME_IN> <IFNAME_OUT>"][..]),
        ("redirect-map", &egress),
        ("redirect-multi", &egress),
        ("monitor", &[]),
    ] {
        let (code, help, stderr) = run(&[command, "-h"]);
        assert_eq!((code, &*stderr), (Some(0), ""));
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let mode = mode.iter().filter(|_| command != "monitor");
        for option in all.iter().chain(mode).chain(more) {
            assert!(help.contains(option), "{command}: {option} is not in {help}");
        }
    }
}

#[test]
fn without_rights_it_is_one_line() {
    // Opened beforehand, since a user without rights may not reach the folder that this was built in.
    let program = File::open(env!("CARGO_BIN_EXE_xdplab")).unwrap();
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.args(["drop", "lo"]);
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let assert = command.assert().code(2).stdout("");
    let stderr = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert_eq!(
        stderr,
        "xdplab: can't load and attach XDP programs: this process lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON; run it as root\n"
    );
}

#[test]
fn redirect_cpu_takes_every_option_and_value_of_the_peer() {
    for options in [
        &["-c", "0"][..],
        &["--cpu", "0", "--cpu=1", "-c1"],
        &["-c0", "-p", "no-touch"],
        &["-c0", "-p", "touch"],
        &["-c0", "-p", "round-robin"],
        &["-c0", "-p", "l4-proto"],
        &["-c0", "-p", "l4-filter"],
        &["-c0", "--program-mode", "l4-hash"],
        &["-c0", "-p", "l4-sport"],
        &["-c0", "-p", "l4-dport"],
        &["-c0", "-r", "disabled"],
        &["-c0", "-r", "drop"],
        &["-c0", "--remote-action", "pass"],
        &["-c0", "-r", "redirect", "-D", "lo"],
        &["-c0", "-r", "redirect", "--redirect-device", "lo"],
        &["-c0", "-q", "64"],
        &["-c0", "--qsize", "192"],
        &["-c0", "-x"],
        &["-c0", "--stress-mode"],
        &["-c0", "-s"],
        &["-c0", "--stats"],
        &["-c0", "-i", "1"],
        &["-c0", "--interval", "1"],
        &["-c0", "-e"],
        &["-c0", "--extended"],
        &["-c0", "-m", "native"],
        &["-c0", "--xdp-mode", "skb"],
        &["-c0", "-v"],
        &["-c0", "--rem", "drop", "--st", "--int", "1"],
    ] {
        let args = [&["redirect-cpu", NO_INTERFACE][..], options].concat();
        // `--st` is --stats or --stress-mode.
        assert_eq!(is_understood(&args), !options.contains(&"--st"), "{args:?}");
    }
    assert!(!is_understood(&["redirect-cpu", NO_INTERFACE]), "-c is required");
    for bad in
        [&["-c", "x"][..], &["-c0", "-p", "l4"], &["-c0", "-r", "tx"], &["-c0", "-q", "-1"], &["-c0", "-m", "hw"]]
    {
        assert!(!is_understood(&[&["redirect-cpu", NO_INTERFACE][..], bad].concat()), "{bad:?}");
    }
}

#[test]
fn xsk_commands_take_every_option_and_value_of_the_peer() {
    for command in ["xsk-drop", "xsk-tx"] {
        for options in [
            &[][..],
            &["-q", "1"],
            &["--queue", "1"],
            &["-i", "1"],
            &["--interval", "1"],
            &["-f", "2048"],
            &["--frame-size", "2048"],
            &["-d", "0"],
            &["--duration", "3"],
            &["-b", "32"],
            &["--batch-size", "32"],
            &["-p"],
            &["--poll"],
            &["-m"],
            &["--no-need-wakeup"],
            &["-u"],
            &["--unaligned"],
            &["-M"],
            &["--shared-umem"],
            &["-x"],
            &["--extra-stats"],
            &["-Q"],
            &["--quiet"],
            &["-a"],
            &["--app-stats"],
            &["-B"],
            &["--busy-poll"],
            &["-F"],
            &["--frags"],
            &["-C", "auto"],
            &["-C", "copy"],
            &["--copy-mode", "zero-copy"],
            &["-w", "MONOTONIC"],
            &["-w", "REALTIME"],
            &["--clock", "TAI"],
            &["-w", "BOOTTIME"],
            &["-W", "SCHED_OTHER"],
            &["--policy", "SCHED_FIFO", "--schpri", "3"],
            &["-A", "native"],
            &["--attach-mode", "skb"],
            &["-v"],
            &["-pmuMxQaBF", "-q0", "-Cauto"],
            &["--dur", "1", "--extra", "--shared"],
        ] {
            let args = [&[command, NO_INTERFACE][..], options].concat();
            assert!(is_understood(&args), "{args:?}");
        }
        for bad in
            [&["-q", "x"][..], &["-e"], &["-C", "zc"], &["-w", "monotonic"], &["-W", "RR"], &["-A", "hw"], &["-i", "0"]]
        {
            assert!(!is_understood(&[&[command, NO_INTERFACE][..], bad].concat()), "{bad:?}");
        }
    }
}
