//! `xdplab trafficgen socket` and `sink`, run as a user runs them, in the network namespaces of a lab.

use std::net::TcpListener;
use std::process::Command;

use indicatif::HumanCount;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use xdplab::live::EndedBy;
use xdplab::record::Record;
use xdplab::topology::{Lab, LabSpec, Placement};

use crate::live::{Ended, Live, command};
use crate::support::{NETNS, eventually, seconds, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("socket_cli::both_ends_tell_the_same_bytes_in_text", &[&NETNS], text),
        test("socket_cli::json_and_record_tell_the_same", &[&NETNS], json),
        test("socket_cli::every_option_of_udp_is_carried_out", &[&NETNS], udp_options),
        test("socket_cli::every_option_of_tcp_is_carried_out", &[&NETNS], tcp_options),
        test("socket_cli::a_signal_ends_sender_and_sink_with_their_totals", &[&NETNS], signals),
        test("socket_cli::a_sink_that_goes_away_is_told", &[&NETNS], sink_gone),
        test("socket_cli::nothing_that_arrives_is_no_success", &[&NETNS], nothing_arrives),
        test("socket_cli::what_can_t_be_is_one_line", &[&NETNS], refused),
    ]
}

fn lab() -> Lab {
    Lab::build(&LabSpec { offloads: Vec::new(), ..LabSpec::new(Placement::Same { cpu: 0 }) }).unwrap()
}

/// A sink in the DUT's namespace that waits.
fn sink(lab: &Lab, args: &[&str]) -> Live {
    let sink = Live::spawn(&lab.dut, command(&[&["trafficgen", "sink"][..], args].concat()));
    eventually("the sink waits", 20, || sink.stderr.so_far().contains("Waiting for senders at"));
    sink
}

fn socket(args: &[&str]) -> Command {
    command(&[&["trafficgen", "socket"][..], args].concat())
}

/// Sends as the arguments say, and waits for the end.
fn send(lab: &Lab, args: &[&str]) -> Ended {
    let ended = Live::spawn(&lab.generator, socket(args)).wait();
    assert_eq!(ended.status.code(), Some(0), "{args:?}: {}{}", ended.stdout, ended.stderr);
    ended
}

fn text() {
    let lab = lab();
    let to = lab.dut.ipv4.to_string();
    let sink = sink(&lab, &["--sessions", "2"]);
    let ended = send(&lab, &[&to, "--bytes", "30M"]);
    assert!(ended.stderr.contains(&format!("Sending to {to}:10000 from any CPU: 1 stream of TCP")), "{}", ended.stderr);
    assert_eq!((ended.total("Bytes sent"), ended.total("Bytes received")), (Some(30_000_000), Some(30_000_000)));
    assert!(ended.stdout.contains("30,000,000 bytes sent = 30,000,000 read, residual 0"), "{}", ended.stdout);
    for label in ["  Goodput             : ", "  Retransmits         : ", "    CPU ns per byte   : "] {
        assert!(ended.stdout.contains(label), "{label:?} is not in {}", ended.stdout);
    }
    let line = ended.stdout.lines().next().unwrap();
    assert!(line.starts_with(&format!("tcp->{to}:10000 ")) && line.contains("Mbit/s got"), "{line}");
    send(&lab, &[&to, "--udp", "-n", "10", "--rate", "1000pps"]);
    let ended = sink.wait();
    assert_eq!(ended.status.code(), Some(0));
    let received: Vec<&str> = ended.stdout.lines().filter(|line| line.contains("Bytes received")).collect();
    assert!(received[0].contains(": 30,000,000 in ") && received[1].contains(": 14,720 in "), "{}", ended.stdout);
    assert!(ended.stdout.contains("  Datagrams received  : 10\n"), "{}", ended.stdout);
}

fn json() {
    let lab = lab();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("record.json");
    let sink_path = folder.path().join("sink.json");
    let to = lab.dut.ipv6.to_string();
    let sink_record = sink_path.to_str().unwrap();
    let args = ["-p", "5000", "--json", "-n", "1", "--cpus", "0", "-B", &to, "--record", sink_record];
    let sink = sink(&lab, &args);
    let record = path.to_str().unwrap();
    let ended = send(
        &lab,
        &[&to, "-p", "5000", "--duration", &seconds(0.6), "-I", "0.2", "--cpus", "0", "--json", "--record", record],
    );
    let (start, intervals, end) = (ended.events("start"), ended.events("interval"), ended.events("end").remove(0));
    assert_eq!(start[0]["socket"]["to"], format!("[{to}]:5000"));
    assert!(intervals.len() >= 3, "{}", ended.stdout);
    let sum = |name: &str| intervals.iter().map(|interval| interval["socket"][name].as_u64().unwrap()).sum::<u64>();
    let outcome = &end["socket"];
    let bytes = outcome["sent"]["bytes"].as_u64().unwrap();
    assert!(bytes > 0);
    assert_eq!((sum("sent_bytes"), sum("received_bytes")), (bytes, bytes));
    assert_eq!((outcome["received"]["bytes"].as_u64(), outcome["ledger"]["residual"].as_i64()), (Some(bytes), Some(0)));
    assert_eq!((outcome["sent"]["streams"][0]["cpu"].as_u64(), end["ended_by"].as_str()), (Some(0), Some("duration")));
    let record = Record::read(&path).unwrap();
    let run = &record.live_runs[0];
    assert_eq!(run.end.as_ref().unwrap().socket.as_ref().unwrap().sent.bytes, bytes);
    assert_eq!(run.intervals.len(), intervals.len());
    let session = sink.wait().events("session").remove(0);
    assert_eq!((session["received"]["bytes"].as_u64(), session["bare"].as_bool()), (Some(bytes), Some(false)));
    assert_eq!(session["received"]["streams"][0]["cpu"].as_u64(), Some(0));
    let record = Record::read(&sink_path).unwrap();
    let run = &record.live_runs[0];
    let start = run.start.sink.as_ref().unwrap();
    assert_eq!((start.address.to_string(), &*start.cpus), (format!("[{to}]:5000"), &[0][..]));
    assert_eq!(run.end.as_ref().unwrap().ended_by, EndedBy::Count);
    assert_eq!(run.sessions.len(), 1);
    assert_eq!(serde_json::to_value(&run.sessions[0]).unwrap()["received"], session["received"]);
    let report = command(&["report", sink_record]).output().unwrap();
    let report = String::from_utf8(report.stdout).unwrap();
    let told = HumanCount(bytes).to_string();
    assert!(report.contains("trafficgen sink") && report.contains(&told) && report.contains(&to), "{report}");
}

fn udp_options() {
    let lab = lab();
    let _sink = sink(&lab, &["-e"]);
    let to = lab.dut.ipv4.to_string();
    let rate = ["--rate", "20k", "--receive-buffer", "4Mi"];
    for options in [
        &["--count", "333"][..],
        &["--num-packets", "333", "--size", "100"],
        &["-n", "333", "-s", "100", "--gso", "8", "--gro", "--batch-size", "2"],
        &["-n", "333", "-b", "1", "--streams", "3", "--send-buffer", "1Mi"],
        &["-n", "333", "-P", "2", "-i", "gen0"],
        &["--bytes", "33300", "-s", "100"],
    ] {
        let ended = send(&lab, &[&[&to, "-u"], &rate[..], options].concat());
        let totals = ["Datagrams sent", "Datagrams received"].map(|label| ended.total(label));
        assert_eq!(totals, [Some(333); 2], "{options:?}: {}", ended.stdout);
        assert!(ended.stdout.contains("residual 0"), "{options:?}: {}", ended.stdout);
    }
    let ended = send(&lab, &[&to, "--udp", "--dst-port", "9", "--no-sink", "-n", "50", "--rate", "80Mbit"]);
    assert!(ended.stdout.contains("transmitted by the interface"), "{}", ended.stdout);
    assert!(ended.stdout.contains("not available (there is no sink at the other end)"), "{}", ended.stdout);
}

fn tcp_options() {
    let lab = lab();
    let _sink = sink(&lab, &[]);
    let to = lab.dut.ipv4.to_string();
    for options in [
        &["--streams", "3", "--size", "64Ki"][..],
        &["-s", "1000", "--no-delay", "--discard"],
        &["-Z", "--ttl", "9"],
        &["--zero-copy", "-s", "7000", "--hop-limit", "255", "-P", "2"],
        &["--mss", "500", "--congestion", "reno"],
        &["--send-buffer", "65536", "--receive-buffer", "65536"],
        &["--interface", "gen0", "--rate", "400Mbit"],
        &["--no-sink", "--keep-going", "-e", "-v"],
    ] {
        let ended = send(&lab, &[&[&to, "--bytes", "2000003"], options].concat());
        assert_eq!(ended.total("Bytes sent"), Some(2_000_003), "{options:?}: {}", ended.stdout);
        assert!(ended.stdout.contains("residual 0"), "{options:?}: {}", ended.stdout);
    }
}

fn signals() {
    let lab = lab();
    let sink = sink(&lab, &["--duration", "60"]);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let live = Live::spawn(&lab.generator, socket(&[&lab.dut.ipv4.to_string(), "-I", "0.05", "-P", "2"]));
        eventually("it sends", 20, || live.lines("Mbit/s got") > 2);
        live.signal(signal);
        let ended = live.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        let (sent, received) = (ended.total("Bytes sent"), ended.total("Bytes received"));
        assert!(sent == received && sent > Some(0), "{}", ended.stdout);
        assert!(ended.stdout.contains("residual 0"), "{}", ended.stdout);
    }
    sink.signal(Signal::SIGTERM);
    let ended = sink.wait();
    assert_eq!((ended.status.code(), ended.stdout.matches("Bytes received").count()), (Some(0), 2), "{}", ended.stdout);
}

fn sink_gone() {
    let lab = lab();
    let sink = sink(&lab, &[]);
    let live = Live::spawn(&lab.generator, socket(&[&lab.dut.ipv4.to_string(), "-I", "0.05"]));
    eventually("it sends", 20, || live.lines("Mbit/s got") > 2);
    sink.signal(Signal::SIGKILL);
    drop(sink.wait());
    let ended = live.wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stdout);
    assert!(ended.total("Bytes sent").unwrap() > 0, "the totals are told all the same: {}", ended.stdout);
    assert_eq!(ended.stderr.lines().count(), 2, "{}", ended.stderr);
}

fn nothing_arrives() {
    let lab = lab();
    // A server that takes the connection and never reads: its kernel acknowledges until the window is full.
    let listener = lab.dut.netns.run(|| Ok(TcpListener::bind((lab.dut.ipv4, 10_000)).unwrap())).unwrap();
    let to = lab.dut.ipv4.to_string();
    let ended = Live::spawn(&lab.generator, socket(&[&to, "--no-sink", "-I", "0.6"])).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stdout);
    assert!(ended.stderr.contains("nothing arrived in 0.6 s"), "{}", ended.stderr);
    assert!(ended.total("Bytes sent").unwrap() > 0, "{}", ended.stdout);
    let going =
        Live::spawn(&lab.generator, socket(&[&to, "--no-sink", "--keep-going", "--duration", "1.5", "-I", "0.6"]));
    let ended = going.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    drop(listener);
}

fn refused() {
    let lab = lab();
    let refused = |args: &[&str], words: &[&str]| Live::spawn(&lab.generator, socket(args)).wait().refused(words);
    let to = lab.dut.ipv4.to_string();
    refused(&[&to], &[&format!("connect to {to}:10000: connect: ECONNREFUSED"), "start xdplab trafficgen sink there"]);
    refused(&["no.such.host.invalid"], &["resolve the host name"]);
    refused(&[&to, "-P", "0"], &["0 streams"]);
    refused(&[&to, "--rate", "5kpps"], &["no rate in packets"]);
    refused(&[&to, "-i", "nosuch0"], &["nosuch0"]);
    let _first = sink(&lab, &[]);
    refused(&[&to, "--congestion", "nosuch"], &["nosuch"]);
    let second = Live::spawn(&lab.dut, command(&["trafficgen", "sink"])).wait();
    second.refused(&["bind: EADDRINUSE", "--port"]);
}
