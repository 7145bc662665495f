//! `xdplab trafficgen tcp`, run as a user runs it, against real TCP servers in the network namespace of a lab.

use std::io::Read as _;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::thread::JoinHandle;

use libtest_mimic::Trial;
use nix::libc::linger;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use tempfile::TempDir;
use xdplab::record::Record;
use xdplab::topology::{Lab, LabSpec, Placement};

use crate::counts::lab;
use crate::live::{Ended, Live, command, programs};
use crate::support::{BPF, NETNS, TWO_CPUS, XDP_FEATURES, eventually, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("tcp::what_is_acknowledged_is_what_the_server_reads", &[&NETNS, &BPF], every_byte),
        test("tcp::a_number_of_segments_is_exact", &[&NETNS, &BPF], count),
        test("tcp::every_option_is_carried_out", &[&NETNS, &BPF], options),
        test("tcp::a_rate_is_kept_and_its_gaps_are_told", &[&NETNS, &BPF], rates),
        test("tcp::losses_are_made_up_for_and_counted", &[&NETNS, &BPF], losses),
        test("tcp::a_server_that_closes_or_resets_ends_it", &[&NETNS, &BPF], peer_ends),
        test("tcp::a_window_that_is_closed_is_waited_for", &[&NETNS, &BPF], closed_window),
        test("tcp::signals_and_time_end_it_and_leave_nothing_behind", &[&NETNS, &BPF, &TWO_CPUS], ends),
        test("tcp::json_and_record_tell_the_same", &[&NETNS, &BPF], json),
        test("tcp::immediate_exit_connects_and_ends_at_once", &[&NETNS, &BPF], immediate_exit),
        test("tcp::what_can_t_be_is_one_line_and_leaves_nothing_behind", &[&NETNS, &BPF], refused),
        test("tcp::nothing_is_sent_where_nothing_would_arrive", &[&NETNS, &BPF, &XDP_FEATURES], deaf),
    ]
}

/// A server in the DUT's namespace that reads one connection to its end; the number of bytes, or the error.
struct Server {
    port: String,
    thread: JoinHandle<std::io::Result<u64>>,
}

impl Server {
    fn start(lab: &Lab, to: IpAddr) -> Self {
        Self::with(lab, to, |mut stream| std::io::copy(&mut stream, &mut std::io::sink()))
    }

    fn with(lab: &Lab, to: IpAddr, serve: impl FnOnce(TcpStream) -> std::io::Result<u64> + Send + 'static) -> Self {
        let listener = lab.dut.netns.run(|| Ok(TcpListener::bind((to, 0)).unwrap())).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        Self { port, thread: std::thread::spawn(move || serve(listener.accept().unwrap().0)) }
    }

    fn end(self) -> std::io::Result<u64> {
        self.thread.join().unwrap()
    }
}

fn spawn(lab: &Lab, args: &[&str]) -> Live {
    Live::spawn(&lab.generator, command(&[&["trafficgen", "tcp", "-i", "gen0"][..], args].concat()))
}

fn succeed(live: Live) -> Ended {
    let ended = live.wait();
    assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    ended
}

/// The number of bytes that were acknowledged.
fn acknowledged(ended: &Ended) -> u64 {
    let line = ended.stdout.lines().find(|line| line.contains(" bytes acknowledged")).unwrap();
    line.split(", ").nth(1).unwrap().split(' ').next().unwrap().replace(',', "").parse().unwrap()
}

fn every_byte() {
    let lab = lab(1);
    for (to, payload) in [(IpAddr::from(lab.dut.ipv4), 1460), (lab.dut.ipv6.into(), 1440)] {
        let server = Server::start(&lab, to);
        let host = to.to_string();
        let ended = succeed(spawn(&lab, &[&host, "-p", &server.port, "--bytes", "20M"]));
        let bytes = 20_000_000_u64.div_ceil(payload) * payload;
        assert_eq!((server.end().unwrap(), acknowledged(&ended)), (bytes, bytes), "{}", ended.stdout);
        let connected = format!("Connected to {host} port ");
        assert!(
            ended.stderr.starts_with(&connected) && ended.stderr.contains("Transmitting on gen0"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains(&format!("{payload} bytes of payload a segment")), "{}", ended.stderr);
        let line = ended.stdout.lines().next().unwrap();
        for column in ["lo->gen0  ", " err/s ", " xmit/s ", " Mbit/s acked ", " retrans/s"] {
            assert!(line.contains(column), "{column:?} is not in {line:?}");
        }
        assert!(ended.total("Segments sent").unwrap() >= bytes / payload, "{}", ended.stdout);
        assert!(ended.stdout.contains("payload bytes sent once = "), "{}", ended.stdout);
        assert_eq!(programs(&lab.generator), 0);
    }
}

fn count() {
    let lab = lab(1);
    for count in [1, 2_001] {
        let server = Server::start(&lab, lab.dut.ipv6.into());
        let (to, number) = (lab.dut.ipv6.to_string(), count.to_string());
        let ended = succeed(spawn(&lab, &[&to, "-p", &server.port, "-n", &number]));
        assert_eq!(ended.total("Segments sent"), Some(count), "{}", ended.stdout);
        assert_eq!(ended.total("Packets transmitted"), Some(count), "{}", ended.stdout);
        assert_eq!(server.end().unwrap(), acknowledged(&ended), "{}", ended.stdout);
    }
}

fn options() {
    let lab = lab(1);
    let to = lab.dut.ipv4.to_string();
    for options in [
        &["--mode", "skb"][..],
        &["-m", "native", "-I", "0.1"],
        &["--size", "100", "--batch-size", "1", "--cpus", "0", "--ttl", "9"],
        &["-s", "1Ki", "-b", "256", "--timeout", "5", "-e"],
        &["-t", "1", "--interval", "1", "-v", "--force", "--keep-going", "--duration", "60"],
    ] {
        let server = Server::start(&lab, lab.dut.ipv4.into());
        let args = [&[&to, "--dst-port", &server.port, "--bytes", "1M"], options].concat();
        let ended = succeed(spawn(&lab, &args));
        assert_eq!(server.end().unwrap(), acknowledged(&ended), "{options:?}: {}", ended.stdout);
        assert!(acknowledged(&ended) >= 1_000_000, "{options:?}: {}", ended.stdout);
    }
}

fn rates() {
    let lab = lab(1);
    let to = lab.dut.ipv4.to_string();
    // 1,000 bytes of payload are 1,058 on the wire.
    for (rate, burst, pps) in [("2k", "1", 2_000.0), ("33.856Mbit", "4", 4_000.0)] {
        let mut end = serde_json::Value::Null;
        // What a busy machine has missed is sent in haste.
        eventually(&format!("{rate}: the rate is kept"), 20, || {
            let server = Server::start(&lab, lab.dut.ipv4.into());
            let args =
                ["-p", &server.port, "-s", "1000", "--rate", rate, "--burst", burst, "--duration", "0.6", "--json"];
            let ended = succeed(spawn(&lab, &[&[&*to], &args[..]].concat()));
            let start = ended.events("start").remove(0);
            assert_eq!(start["sending"]["longest"], serde_json::json!({"payload": 1000, "l2": 1054, "wire": 1058}));
            end = ended.events("end").remove(0);
            assert_eq!(server.end().unwrap(), end["total"]["tcp"]["acked_bytes"].as_u64().unwrap());
            let departures = end["total"]["sent"]["gaps"]["departures_per_s"].as_f64().unwrap_or(0.0);
            let achieved = departures * burst.parse::<f64>().unwrap();
            assert!(achieved < pps * 1.1, "{end}");
            (achieved / pps - 1.0).abs() < 0.1
        });
        assert_eq!(end["sending"]["asked"].as_f64().map(f64::round), Some(pps), "{end}");
        let sent = end["total"]["sent"]["packets"].as_f64().unwrap();
        assert!(sent > 0.3 * pps, "{end}");
    }
    let server = Server::start(&lab, lab.dut.ipv4.into());
    let ended = succeed(spawn(&lab, &[&to, "-p", &server.port, "--rate", "1k", "-n", "200", "-e", "-I", "0.1"]));
    assert_eq!(ended.total("Segments sent"), Some(200), "{}", ended.stdout);
    for words in ["packets/s asked for", "  Gaps                : p50 ", "    gap                p50 "] {
        assert!(ended.stdout.contains(words), "{words:?} is not in {}", ended.stdout);
    }
    server.end().unwrap();
}

/// The receiver's window is far larger than the ring of 256 frames between the two ends: with NAPI in a thread that has to
/// share its CPU, some are lost.
fn losses() {
    let lab = lab(1);
    lab.dut.netns.sysfs().unwrap().write("class/net/dut0/threaded", "1").unwrap();
    let server = Server::start(&lab, lab.dut.ipv4.into());
    let ended = succeed(spawn(&lab, &[&lab.dut.ipv4.to_string(), "-p", &server.port, "--bytes", "40M", "--cpus", "0"]));
    let read = server.end().unwrap();
    assert_eq!(read, acknowledged(&ended), "{}", ended.stdout);
    let retransmits = ended.stdout.lines().find_map(|line| line.strip_prefix("  Retransmits         : ")).unwrap();
    println!("retransmits: {retransmits}");
    let retransmits: u64 = retransmits.split(' ').next().unwrap().replace(',', "").parse().unwrap();
    let segments = ended.total("Segments sent").unwrap();
    assert!(segments >= read / 1460 + retransmits.min(1), "{}", ended.stdout);
}

fn peer_ends() {
    let lab = lab(1);
    let to = lab.dut.ipv4.to_string();
    let ends = |reset: bool| {
        let server = Server::with(&lab, lab.dut.ipv4.into(), move |mut stream| {
            let mut block = vec![0; 1 << 20];
            stream.read_exact(&mut block)?;
            if reset {
                setsockopt(&stream.as_fd(), sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 }).unwrap();
            } else {
                stream.shutdown(std::net::Shutdown::Write)?;
                // Read on until the sender has heard of it.
                std::io::copy(&mut stream, &mut std::io::sink()).ok();
            }
            Ok(block.len() as u64)
        });
        let ended = succeed(spawn(&lab, &[&to, "-p", &server.port]));
        server.end().unwrap();
        assert!(acknowledged(&ended) >= 1 << 20, "{}", ended.stdout);
        ended.stdout
    };
    let closed = ends(false);
    assert!(closed.contains("  Ended by            : the peer, who closed the connection (FIN)"), "{closed}");
    let reset = ends(true);
    assert!(reset.contains("  Ended by            : the peer, who reset the connection (RST)"), "{reset}");
    assert_eq!(programs(&lab.generator), 0);
}

fn closed_window() {
    let lab = lab(1);
    let server = Server::with(&lab, lab.dut.ipv4.into(), |mut stream| {
        std::thread::sleep(std::time::Duration::from_millis(600));
        std::io::copy(&mut stream, &mut std::io::sink())
    });
    let args = [&lab.dut.ipv4.to_string(), "-p", &server.port, "--bytes", "30M", "-I", "0.1", "--keep-going"];
    let ended = succeed(spawn(&lab, &args));
    assert_eq!(server.end().unwrap(), acknowledged(&ended), "{}", ended.stdout);
    assert!(acknowledged(&ended) >= 30_000_000, "{}", ended.stdout);
    // While it is closed nothing is acknowledged, and without --keep-going that ends it.
    let server = Server::with(&lab, lab.dut.ipv4.into(), |mut stream| {
        std::thread::sleep(std::time::Duration::from_secs(2));
        std::io::copy(&mut stream, &mut std::io::sink())
    });
    let ended = spawn(&lab, &[&lab.dut.ipv4.to_string(), "-p", &server.port, "-I", "0.6"]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stdout);
    assert!(ended.stderr.contains("nothing was acknowledged in "), "{}", ended.stderr);
    drop(server.end());
}

fn ends() {
    let lab = lab(1);
    let to = lab.dut.ipv4.to_string();
    for signal in [Some(Signal::SIGINT), Some(Signal::SIGTERM), None] {
        let server = Server::start(&lab, lab.dut.ipv4.into());
        let time: &[&str] = if signal.is_none() { &["--duration", "2"] } else { &[] };
        let live = spawn(&lab, &[&[&to, "-p", &server.port, "-I", "0.1"], time].concat());
        if let Some(signal) = signal {
            let acked = |line: &&str| !line.contains("  0.0 Mbit/s acked");
            eventually("it sends", 20, || live.stdout.so_far().lines().filter(acked).count() > 2);
            live.signal(signal);
        }
        let ended = succeed(live);
        let read = server.end().unwrap();
        assert!(read > 0 && read == acknowledged(&ended), "{read}: {}", ended.stdout);
        assert_eq!(programs(&lab.generator), 0);
        // What the programs say was sent is what the driver was given, and what the interface sent, whose stack may have sent a
        // router solicitation or two of its own.
        let ledgers: Vec<&str> = ended.stdout.lines().filter(|line| line.contains("  Ledger  ")).collect();
        let residual = |line: &str| line.rsplit_once("residual ").unwrap().1.parse::<i64>().unwrap();
        assert!(ledgers.len() == 3 && residual(ledgers[0]) == 0, "{ledgers:?}");
        assert!((-3..=0).contains(&residual(ledgers[1])), "{ledgers:?}");
    }
}

fn json() {
    let lab = lab(1);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("record.json");
    let server = Server::start(&lab, lab.dut.ipv4.into());
    let args =
        [&lab.dut.ipv4.to_string(), "-p", &server.port, "--bytes", "5M", "--json", "--record", path.to_str().unwrap()];
    let ended = succeed(spawn(&lab, &args));
    let (start, end) = (ended.events("start").remove(0), ended.events("end").remove(0));
    assert_eq!((start["tcp"]["payload"].as_u64(), start["command"].as_str()), (Some(1460), Some("trafficgen tcp")));
    assert_eq!(end["ended_by"], "count");
    let acked = end["total"]["tcp"]["acked_bytes"].as_u64().unwrap();
    assert_eq!(server.end().unwrap(), acked);
    let sum: u64 = ended.events("interval").iter().map(|i| i["tcp"]["acked_bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, acked);
    let record = Record::read(&path).unwrap();
    assert_eq!(record.live_runs[0].end.as_ref().unwrap().total.tcp.unwrap().counts.acked_bytes, acked);
}

fn immediate_exit() {
    let lab = lab(1);
    let server = Server::start(&lab, lab.dut.ipv6.into());
    let to = lab.dut.ipv6.to_string();
    let mut command = command(&["trafficgen", "tcp", "-i", "gen0", &to, "-p", &server.port, "-n", "1"]);
    command.env("XDP_SAMPLE_IMMEDIATE_EXIT", "1");
    succeed(Live::spawn(&lab.generator, command));
    server.end().unwrap();
    assert_eq!(programs(&lab.generator), 0);
}

fn refused() {
    let lab = lab(1);
    let to = lab.dut.ipv4.to_string();
    let refused = |args: &[&str], words: &[&str]| {
        spawn(&lab, args).wait().refused(words);
        assert_eq!(programs(&lab.generator), 0, "{args:?}");
    };
    refused(&[&to, "-p", "1"], &["connect to 198.18.0.2:1 out of gen0: connect: ECONNREFUSED", "trafficgen sink"]);
    refused(&["198.18.0.77", "-t", "0.1"], &["connect: ETIMEDOUT", "-t gives it more time"]);
    refused(&["no.such.host.invalid"], &["resolve the host name"]);
    refused(&["127.0.0.1"], &["it is this machine"]);
    refused(&[&to, "-m", "hw"], &["programs are not offloaded"]);
    let server = Server::start(&lab, lab.dut.ipv4.into());
    refused(&[&to, "-p", &server.port, "--size", "1461"], &["1461 bytes of payload are more than the 1460"]);
    refused(&[&to, "-p", &server.port, "--size", "31"], &["31 bytes of payload"]);
    let absent = command(&["trafficgen", "tcp", &to, "-i", "nosuch0"]);
    Live::spawn(&lab.generator, absent).wait().refused(&["nosuch0"]);
    drop(server.end());
}

/// The peer takes no redirected frames: said before anybody is spoken to.
fn deaf() {
    let deaf = Lab::build(&LabSpec::new(Placement::Same { cpu: 0 })).unwrap();
    let to = deaf.dut.ipv4.to_string();
    spawn(&deaf, &[&to]).wait().refused(&["Interface gen0 does not support sending packets via XDP", "gro on"]);
}
