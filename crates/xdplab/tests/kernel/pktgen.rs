//! `xdplab trafficgen pktgen` with the kernel's own generator, where it is: every packet is counted by it, by the program that
//! drops them, and by the interface.

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use xdplab::topology::Lab;

use crate::counts::{lab, rx_packets, settles_at};
use crate::live::{Live, command};
use crate::support::{BPF, NETNS, PKTGEN, TWO_CPUS, eventually, test};
use crate::trafficgen::{done, dropping};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("pktgen::every_packet_of_a_number_is_counted_on_its_way", &[&NETNS, &BPF, &PKTGEN], one_thread),
        test("pktgen::each_thread_sends_the_number", &[&NETNS, &BPF, &PKTGEN, &TWO_CPUS], two_threads),
        test("pktgen::a_signal_stops_it_and_takes_its_devices_away", &[&NETNS, &BPF, &PKTGEN], signal),
        test("pktgen::what_the_kernel_refuses_is_one_line_and_leaves_nothing", &[&NETNS, &BPF, &PKTGEN], refused),
    ]
}

/// Sends so many packets of each thread to a program that drops them, and finds as many at every counter; gives how many the
/// driver dropped, because the ring was full, without a word to pktgen.
fn exactly(lab: &Lab, options: &[&str], count: u64, threads: u64) -> u64 {
    let (_attachment, program) = dropping(lab);
    let before = rx_packets(&lab.dut);
    let number = count.to_string();
    let args = [&["pktgen", "-i", "gen0", "--json", "-n", &number], options].concat();
    let ended = done(lab, &args);
    let end = ended.events("end").remove(0);
    let all = count * threads;
    assert_eq!((&end["ended_by"], &end["total"]["sent"]["packets"]), (&"count".into(), &all.into()), "{end}");
    let account = &end["ledger"][0];
    assert_eq!((&account["packets"], &account["residual"]), (&all.into(), &0.into()), "{end}");
    let results = end["pktgen"].as_array().unwrap();
    assert_eq!(results.len() as u64, threads, "{end}");
    assert!(results.iter().all(|result| result["packets"] == count), "{end}");
    let lost = account["parts"][1]["packets"].as_u64().unwrap_or(0);
    settles_at(&format!("{args:?}: dropped by the program"), all - lost, || program.total().unwrap().packets);
    assert_eq!(rx_packets(&lab.dut) - before, all - lost, "{args:?}");
    lost
}

fn one_thread() {
    let lab = lab(1);
    let mac = lab.dut.mac.to_string();
    for options in [&[][..], &["-s", "1000", "-m", &mac], &["-6", "-s", "90"], &["--flows", "7"]] {
        exactly(&lab, options, 10_007, 1);
    }
    assert_eq!(exactly(&lab, &["-w", "200000"], 1_001, 1), 0, "NAPI comes between the packets");
}

fn two_threads() {
    exactly(&lab(2), &["-t", "2"], 5_003, 2);
}

fn signal() {
    let lab = lab(1);
    let (attachment, program) = dropping(&lab);
    let live = Live::start(&lab.generator, &["trafficgen", "pktgen", "-i", "gen0", "-I", "0.2"]);
    eventually("packets arrive", 10, || program.total().unwrap().packets > 1000);
    live.signal(Signal::SIGINT);
    let ended = live.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let sent = ended.total("Packets sent").unwrap();
    let stats = lab.generator.netns.rtnl().unwrap().link_by_index(lab.generator.ifindex).unwrap().stats.unwrap();
    settles_at("all that was sent", sent - stats.tx_dropped, || program.total().unwrap().packets);
    drop(attachment);
    exactly(&lab, &[], 100, 1);
}

/// The kernel would start all devices together. veth's packets can't be sent twice, so that it takes no bursts.
fn refused() {
    let lab = lab(1);
    let live = Live::start(&lab.generator, &["trafficgen", "pktgen", "-i", "gen0", "--rate", "10"]);
    let second = Live::spawn(&lab.generator, command(&["trafficgen", "pktgen", "-i", "gen0", "-n", "1"])).wait();
    second.refused(&["has the device gen0@0 already"]);
    live.end();
    Live::spawn(&lab.generator, command(&["trafficgen", "pktgen", "-i", "gen0", "-b", "8"]))
        .wait()
        .refused(&["burst 8"]);
    exactly(&lab, &[], 100, 1);
}
