//! Signals while `xdplab trafficgen` commands are still set up: each ends, in order, and leaves nothing behind.

use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use xdplab::topology::{Lab, Port};

use crate::counts::{lab, rx_packets};
use crate::live::{Ended, Live, command, programs};
use crate::support::{BPF, NETNS, TWO_CPUS, eventually, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("early_signals::udp_ends_in_order", &[&NETNS, &BPF, &TWO_CPUS], || {
            each(&["udp", "gen0", "-t", "2"]);
            each(&["udp", "gen0", "--rate", "1000"]);
        }),
        test("early_signals::xsk_udp_ends_in_order", &[&NETNS, &BPF], || each(&["xsk-udp", "gen0"])),
        test("early_signals::tcp_ends_in_order", &[&NETNS, &BPF], || each(&["tcp", "-i", "gen0", "198.18.0.2"])),
        test("early_signals::tcp_to_nobody_ends_in_order", &[&NETNS, &BPF], || {
            each(&["tcp", "-i", "gen0", "198.18.0.77"]);
        }),
        test("early_signals::socket_ends_in_order", &[&NETNS], || each(&["socket", "198.18.0.2"])),
        test("early_signals::sink_ends_in_order", &[&NETNS], || each(&["sink", "-p", "7000"])),
    ]
}

/// After the start, in milliseconds.
const MOMENTS: [u64; 4] = [0, 50, 200, 500];

fn each(args: &[&str]) {
    let lab = lab(1);
    let sink = Live::spawn(&lab.dut, command(&["trafficgen", "sink"]));
    eventually("the sink waits", 20, || sink.stderr.so_far().contains("Waiting for senders"));
    let state = state(&lab.generator);
    for after in MOMENTS {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let live = Live::spawn(&lab.generator, command(&[&["trafficgen"], args].concat()));
            thread::sleep(Duration::from_millis(after));
            let signalled = Instant::now();
            live.signal(signal);
            let ended = live.wait();
            println!("{args:?}: {signal} after {after} ms, ended {:?} later", signalled.elapsed());
            in_order(&ended, args, signal);
            assert_eq!(programs(&lab.generator), 0, "{args:?} after {after} ms");
            assert_eq!(self::state(&lab.generator), state, "{args:?} after {after} ms");
            is_silent(&lab);
        }
    }
    sink.signal(Signal::SIGTERM);
    assert_eq!(sink.wait().status.code(), Some(0));
}

/// With its totals and status 0; or before a signal means anything but the end of a process, by it; or before there is a connection,
/// with that and status 2.
fn in_order(ended: &Ended, args: &[&str], signal: Signal) {
    if ended.status.signal() == Some(signal as i32) {
        assert_eq!((&*ended.stdout, &*ended.stderr), ("", ""), "{args:?}");
        return;
    }
    let interrupted = ended.stderr.starts_with("xdplab: interrupted: ");
    assert!(!interrupted || ["tcp", "socket"].contains(&args[0]), "{args:?}: {}", ended.stderr);
    let expected = if interrupted { 2 } else { 0 };
    assert_eq!(ended.status.code(), Some(expected), "{args:?}: {}{}", ended.stdout, ended.stderr);
    let told = interrupted || args[0] == "sink" || ended.stdout.contains("Duration            : ") || is_xsk(ended);
    assert!(told, "{args:?}: the totals are not told: {}", ended.stdout);
}

fn is_xsk(ended: &Ended) -> bool {
    ended.stdout.contains("Totals:")
}

/// What a command could have changed and left.
fn state(port: &Port) -> String {
    let link = port.netns.rtnl().unwrap().link_by_index(port.ifindex).unwrap();
    format!("{:?} {} {:?}", port.describe().unwrap(), link.up, link.xdp)
}

fn is_silent(lab: &Lab) {
    // What was on its way arrives; the kernel itself says something now and then.
    let quiet = || {
        let before = rx_packets(&lab.dut);
        thread::sleep(Duration::from_millis(10));
        rx_packets(&lab.dut) - before < 3
    };
    eventually("nothing is sent any more", 20, quiet);
}
