//! Plain sockets between two network namespaces: what one end sent is what the other received, to the byte, or it is told.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use xdplab::generator::Rate;
use xdplab::generator::socket::{End, Outcome, Protocol, Sink, SinkSpec, SocketRun, SocketSpec, between};
use xdplab::netlink::XdpMode;
use xdplab::reading::Reading;
use xdplab::topology::{Lab, LabSpec, Placement};

use crate::counts::attach;
use crate::support::xdp::{self, XDP_DROP};
use crate::support::{BPF, NETNS, REAL_TIME, TWO_CPUS, emulated, patience, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("sockets::every_byte_of_tcp_is_received_over_either_family", &[&NETNS], || every_byte(Protocol::Tcp)),
        test("sockets::every_datagram_is_received_over_either_family", &[&NETNS], || every_byte(Protocol::Udp)),
        test("sockets::streams_share_a_number_of_bytes_and_cpus_are_kept", &[&NETNS, &TWO_CPUS], streams),
        test("sockets::every_option_of_tcp_reaches_the_connection", &[&NETNS], tcp_options),
        test("sockets::datagrams_made_and_taken_together_are_counted_one_by_one", &[&NETNS], segments),
        test("sockets::a_larger_mtu_makes_larger_datagrams", &[&NETNS], jumbo),
        test("sockets::the_rate_is_kept", &[&NETNS, &REAL_TIME], rates),
        test("sockets::a_duration_and_a_stop_end_it_soon", &[&NETNS], ends),
        test("sockets::what_a_full_socket_drops_is_told_apart", &[&NETNS], full_socket),
        test("sockets::what_is_lost_on_the_way_is_a_residual", &[&NETNS, &BPF], lost),
        test("sockets::without_a_sink_the_peer_s_kernel_or_the_interface_counts", &[&NETNS], without_sink),
        test("sockets::a_sink_takes_bare_streams_too", &[&NETNS], bare),
        test("sockets::a_peer_that_goes_away_ends_a_stream_with_the_errno", &[&NETNS], peer_gone),
        test("sockets::a_receiver_that_can_t_be_reached_is_one_line", &[&NETNS], unreachable),
    ]
}

fn lab_with(mtu: u32) -> Lab {
    Lab::build(&LabSpec { mtu, offloads: Vec::new(), ..LabSpec::new(Placement::Same { cpu: 0 }) }).unwrap()
}

fn lab() -> Lab {
    lab_with(1500)
}

fn tcp() -> SocketSpec {
    SocketSpec::new(Protocol::Tcp)
}

/// Slow enough that no receiver, however late it comes, has a full buffer.
fn udp(count: u64) -> SocketSpec {
    let receive_buffer = Some(4 << 20);
    let rate = if emulated() { 500.0 } else { 20_000.0 };
    SocketSpec {
        count: Some(count),
        rate: Some(Rate::PacketsPerSec(rate)),
        receive_buffer,
        ..SocketSpec::new(Protocol::Udp)
    }
}

fn never() -> bool {
    false
}

fn run_on(lab: &Lab, cpus: [&[usize]; 2], to: IpAddr, spec: &SocketSpec) -> xdplab::Result<Outcome> {
    let sender = End { netns: &lab.generator.netns, cpus: cpus[0] };
    let receiver = End { netns: &lab.dut.netns, cpus: cpus[1] };
    between(&sender, &receiver, to, spec, &never)
}

fn run(lab: &Lab, spec: &SocketSpec) -> Outcome {
    run_on(lab, [&[], &[]], lab.dut.ipv4.into(), spec).unwrap()
}

fn residual(outcome: &Outcome) -> i64 {
    outcome.ledger.clone().into_result().unwrap().residual
}

fn every_byte(protocol: Protocol) {
    const COUNT: u64 = 1_001;
    const BYTES: u64 = 12_345_679;
    let lab = lab();
    for to in [IpAddr::from(lab.dut.ipv4), lab.dut.ipv6.into()] {
        let spec = match protocol {
            Protocol::Tcp => SocketSpec { bytes: Some(BYTES), ..tcp() },
            Protocol::Udp => udp(COUNT),
        };
        let outcome = run_on(&lab, [&[], &[]], to, &spec).unwrap();
        let received = outcome.received.clone().into_result().unwrap();
        assert_eq!((outcome.sent.bytes, outcome.sent.datagrams), (received.bytes, received.datagrams));
        assert_eq!(residual(&outcome), 0, "{outcome:?}");
        match protocol {
            Protocol::Tcp => {
                assert_eq!(received.bytes, BYTES);
                let tcp = outcome.sent.streams[0].tcp.unwrap();
                assert_eq!((tcp.acked_bytes, tcp.pmtu), (BYTES, 1500));
                assert!(outcome.retransmits.is_some() && received.streams[0].complete);
            }
            Protocol::Udp => {
                let size = if to.is_ipv4() { 1472 } else { 1452 };
                assert_eq!((outcome.size, received.datagrams), (size, COUNT));
                assert_eq!((received.bytes, outcome.retransmits), (COUNT * size as u64, None));
            }
        }
        assert!(outcome.goodput_bps.into_result().unwrap() > 0.0);
        for end in [&outcome.sent, &received] {
            assert!(end.cpu_ns_per_byte.unwrap() > 0.0 && end.period_s > 0.0, "{end:?}");
        }
    }
}

fn streams() {
    const BYTES: u64 = 10_000_003;
    let lab = lab();
    let spec = SocketSpec { streams: 4, bytes: Some(BYTES), ..tcp() };
    let outcome = run_on(&lab, [&[0], &[1, 0]], lab.dut.ipv4.into(), &spec).unwrap();
    let received = outcome.received.clone().into_result().unwrap();
    assert_eq!((received.bytes, residual(&outcome)), (BYTES, 0));
    let bytes: Vec<u64> = outcome.sent.streams.iter().map(|stream| stream.bytes).collect();
    assert_eq!(bytes, [2_500_001, 2_500_001, 2_500_001, 2_500_000]);
    let cpus =
        |end: &xdplab::generator::socket::EndReport| end.streams.iter().map(|stream| stream.cpu).collect::<Vec<_>>();
    assert_eq!(cpus(&outcome.sent), vec![Some(0); 4]);
    assert_eq!(cpus(&received), [Some(1), Some(0), Some(1), Some(0)]);
    let absent = run_on(&lab, [&[99_999], &[]], lab.dut.ipv4.into(), &spec).unwrap_err().to_string();
    assert!(absent.contains("run on CPU 99999 alone"), "{absent}");
    let absent = run_on(&lab, [&[], &[99_999]], lab.dut.ipv4.into(), &spec).unwrap_err().to_string();
    assert!(absent.contains("run on CPU 99999 alone"), "{absent}");
}

fn tcp_options() {
    const BYTES: u64 = 3_000_000;
    let lab = lab();
    let spec = SocketSpec {
        bytes: Some(BYTES),
        size: Some(10_000),
        max_segment: Some(700),
        congestion: Some("reno".into()),
        no_delay: true,
        discard: true,
        send_buffer: Some(100_000),
        receive_buffer: Some(200_000),
        interface: Some(lab.generator.name.clone()),
        ..tcp()
    };
    let outcome = run(&lab, &spec);
    let received = outcome.received.clone().into_result().unwrap();
    assert_eq!((received.bytes, residual(&outcome)), (BYTES, 0));
    let (sent, tcp) = (&outcome.sent.streams[0], outcome.sent.streams[0].tcp.unwrap());
    assert!(sent.calls >= BYTES / 10_000, "{sent:?}");
    assert!((600..=700).contains(&tcp.snd_mss) && u64::from(tcp.segments) >= BYTES / 700, "{tcp:?}");
    let refused = |spec| run_on(&lab, [&[], &[]], lab.dut.ipv4.into(), &spec).unwrap_err().to_string();
    let error = refused(SocketSpec { congestion: Some("nosuch".into()), ..spec.clone() });
    assert!(error.contains("use the congestion control nosuch: setsockopt(TCP_CONGESTION): ENOENT"), "{error}");
    let error = refused(SocketSpec { interface: Some("nosuch0".into()), ..spec });
    assert!(error.contains("nosuch0"), "{error}");
}

fn segments() {
    const COUNT: u64 = 1_003;
    let lab = lab();
    for gro in [false, true] {
        let spec = SocketSpec { size: Some(100), segments: 16, batch: 4, gro, ..udp(COUNT) };
        let outcome = run(&lab, &spec);
        let received = outcome.received.clone().into_result().unwrap();
        assert_eq!((outcome.sent.datagrams, received.datagrams, residual(&outcome)), (COUNT, COUNT, 0), "{outcome:?}");
        assert_eq!(received.bytes, COUNT * 100);
        assert!(outcome.sent.streams[0].calls < COUNT / 4, "many in a call: {outcome:?}");
    }
    let spec = SocketSpec { size: Some(2_000), segments: 2, ..udp(10) };
    let error = run_on(&lab, [&[], &[]], lab.dut.ipv4.into(), &spec).unwrap_err().to_string();
    assert!(error.contains("sendmmsg: EMSGSIZE") || error.contains("sendmmsg: EINVAL"), "{error}");
    let fragments = run(&lab, &SocketSpec { size: Some(2_000), ..udp(100) });
    assert_eq!((fragments.size, residual(&fragments)), (2_000, 0), "longer ones go in IP fragments");
}

fn jumbo() {
    let lab = lab_with(9_000);
    let outcome = run(&lab, &udp(200));
    assert_eq!((outcome.size, residual(&outcome)), (8_972, 0));
    let outcome = run(&lab, &SocketSpec { bytes: Some(5_000_000), ..tcp() });
    assert_eq!((outcome.sent.streams[0].tcp.unwrap().pmtu, residual(&outcome)), (9_000, 0));
    let bytes = run(&lab, &SocketSpec { bytes: Some(10_001), size: Some(1_000), count: None, ..udp(0) });
    assert_eq!(bytes.sent.datagrams, 11, "rounded up to whole datagrams");
}

fn rates() {
    let lab = lab();
    let duration = Some(Duration::from_millis(500));
    let slow = |rate, spec| SocketSpec { duration, rate: Some(rate), ..spec };
    for (spec, most_bytes) in [
        (slow(Rate::BitsPerSec(80e6), tcp()), 5_000_000.0),
        (SocketSpec { streams: 2, ..slow(Rate::BitsPerSec(80e6), SocketSpec::new(Protocol::Udp)) }, 5_000_000.0),
        (slow(Rate::PacketsPerSec(2_000.0), SocketSpec::new(Protocol::Udp)), 1_472_000.0),
    ] {
        let outcome = run(&lab, &spec);
        // What a busy machine delays is made up for, but not more than was asked for.
        let most = most_bytes * outcome.sent.period_s / 0.5 + 2.0 * 1_472.0;
        let bytes = outcome.sent.bytes as f64;
        assert!(bytes <= most && bytes > most * 0.7, "{bytes} of {most}: {outcome:?}");
        for stream in &outcome.sent.streams {
            let gaps = stream.gaps.unwrap();
            assert_eq!(gaps.count + 1, stream.calls, "{outcome:?}");
            assert!(gaps.p50_ns <= gaps.p99_ns && gaps.mean_ns > 0.0, "{outcome:?}");
        }
    }
}

fn ends() {
    let lab = lab();
    let begin = Instant::now();
    let outcome = run(&lab, &SocketSpec { duration: Some(Duration::from_millis(300)), ..tcp() });
    assert!(outcome.sent.period_s >= 0.3 && begin.elapsed() < patience(3), "{:?}", begin.elapsed());
    assert_eq!(residual(&outcome), 0);
    let machine = outcome.sent.machine.into_result().unwrap();
    assert!(machine.busy_ns >= machine.softirq_ns && machine.busy_ns > 0, "{machine:?}");
    let sink = Sink::start(&lab.dut.netns, &sink_spec(&lab)).unwrap();
    let sender = End { netns: &lab.generator.netns, cpus: &[] };
    let mut run = SocketRun::connect(&sender, sink.address(), &SocketSpec { streams: 2, ..tcp() }, &never).unwrap();
    run.start().unwrap();
    let stop = AtomicBool::new(false);
    while run.counts(true, &never).unwrap().received_bytes.unwrap() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::Relaxed);
    let asked = Instant::now();
    let outcome = run.wait(&|| stop.load(Ordering::Relaxed)).unwrap();
    println!("ended after {:?}", asked.elapsed());
    // 100 ms on a machine of its own; this one may be busy.
    assert!(asked.elapsed() < patience(1), "{:?}", asked.elapsed());
    assert_eq!(residual(&outcome), 0, "{outcome:?}");
    let session = sink.ended(patience(5)).unwrap();
    assert_eq!(session.report.unwrap().bytes, outcome.received.into_result().unwrap().bytes);
    assert!(!session.bare);
}

fn sink_spec(lab: &Lab) -> SinkSpec {
    SinkSpec { address: SocketAddr::new(lab.dut.ipv4.into(), 0), cpus: Vec::new() }
}

fn full_socket() {
    let lab = lab();
    let spec =
        SocketSpec { count: Some(20_000), receive_buffer: Some(4_096), streams: 1, ..SocketSpec::new(Protocol::Udp) };
    // One CPU for both ends: a batch fills the buffer before the receiver runs again.
    let outcome = run_on(&lab, [&[0], &[0]], lab.dut.ipv4.into(), &spec).unwrap();
    let ledger = outcome.ledger.clone().into_result().unwrap();
    let dropped = &ledger.parts[1];
    assert_eq!((dropped.0.as_str(), ledger.residual), ("dropped by full sockets", 0), "{outcome:?}");
    assert!(dropped.1 > 0, "{outcome:?}");
}

fn lost() {
    let lab = lab();
    let sink = Sink::start(&lab.dut.netns, &sink_spec(&lab)).unwrap();
    let sender = End { netns: &lab.generator.netns, cpus: &[] };
    let mut run = SocketRun::connect(&sender, sink.address(), &udp(500), &never).unwrap();
    // After the trial datagrams: everything is dropped, the question to the sink too.
    let drop_all = xdp::load(XDP_DROP, 0).unwrap();
    let attachment = attach(drop_all.as_fd(), &lab.dut, XdpMode::Generic);
    run.start().unwrap();
    while run.is_running() {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(attachment);
    let outcome = run.finish().unwrap();
    assert_eq!((outcome.sent.datagrams, outcome.arrived()), (500, Reading::Known(0)));
    assert_eq!(residual(&outcome), 500);
}

fn without_sink() {
    const BYTES: u64 = 1_234_567;
    let lab = lab();
    let listener = lab.dut.netns.run(|| Ok(TcpListener::bind((lab.dut.ipv4, 0)).unwrap())).unwrap();
    let to = listener.local_addr().unwrap();
    let reader = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
    });
    let sender = End { netns: &lab.generator.netns, cpus: &[] };
    let send = |to, spec: &SocketSpec| {
        let mut run = SocketRun::connect(&sender, to, spec, &never).unwrap();
        run.start().unwrap();
        run.wait(&never).unwrap()
    };
    let outcome = send(to, &SocketSpec { sink: false, bytes: Some(BYTES), ..tcp() });
    assert_eq!((outcome.arrived(), residual(&outcome)), (Reading::Known(BYTES), 0));
    assert!(outcome.received.known().is_none() && outcome.goodput_bps.known().is_some());
    assert_eq!(reader.join().unwrap(), BYTES);
    // Nobody waits there: the interface alone tells what it sent.
    let outcome = send(SocketAddr::new(lab.dut.ipv4.into(), 9), &SocketSpec { sink: false, ..udp(2_000) });
    assert_eq!((outcome.sent.datagrams, residual(&outcome)), (2_000, 0), "{outcome:?}");
    assert!(outcome.arrived().known().is_none() && outcome.goodput_bps.known().is_none());
}

fn bare() {
    let lab = lab();
    let sink = Sink::start(&lab.dut.netns, &sink_spec(&lab)).unwrap();
    let sender = End { netns: &lab.generator.netns, cpus: &[] };
    let spec = SocketSpec { sink: false, bytes: Some(777_777), ..tcp() };
    let mut run = SocketRun::connect(&sender, sink.address(), &spec, &never).unwrap();
    run.start().unwrap();
    run.wait(&never).unwrap();
    let session = sink.ended(patience(5)).unwrap();
    assert!(session.bare);
    let report = session.report.unwrap();
    assert_eq!((report.bytes, report.streams[0].complete), (777_777, true));
    // One that is reset has a time too: from its first byte to its last.
    let address = sink.address();
    lab.generator
        .netns
        .run(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            for _ in 0..2 {
                stream.write_all(&[0; 1_000]).unwrap();
                std::thread::sleep(Duration::from_millis(60));
            }
            let at_once = linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&stream.as_fd(), sockopt::Linger, &at_once).unwrap();
            Ok(())
        })
        .unwrap();
    let report = sink.ended(patience(5)).unwrap().report.unwrap();
    assert_eq!((report.bytes, report.streams[0].complete), (2_000, false));
    assert!(report.period_s >= 0.05 && report.errors().contains_key("ECONNRESET"), "{report:?}");
    // Words that are none of the sink's end the connection, and it goes on.
    lab.generator
        .netns
        .run(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"{\"message\":\"open\",\"schema\":\"other\"}\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("refused"), "{answer}");
            Ok(())
        })
        .unwrap();
    assert!(sink.ended(patience(5)).unwrap().report.is_err());
    assert_eq!(residual(&run_again(&sender, address)), 0);
}

fn run_again(sender: &End<'_>, to: SocketAddr) -> Outcome {
    let mut run = SocketRun::connect(sender, to, &SocketSpec { bytes: Some(1_000), ..tcp() }, &never).unwrap();
    run.start().unwrap();
    run.wait(&never).unwrap()
}

fn peer_gone() {
    let lab = lab();
    let listener = lab.dut.netns.run(|| Ok(TcpListener::bind((lab.dut.ipv4, 0)).unwrap())).unwrap();
    let to = listener.local_addr().unwrap();
    let sender = End { netns: &lab.generator.netns, cpus: &[] };
    let mut run = SocketRun::connect(&sender, to, &SocketSpec { sink: false, ..tcp() }, &never).unwrap();
    let peer = listener.accept().unwrap().0;
    run.start().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    // Closed with something unread: the kernel resets the connection.
    setsockopt(&peer, sockopt::ReuseAddr, &true).unwrap();
    drop(peer);
    let outcome = run.wait(&never).unwrap();
    let errors = outcome.sent.errors();
    assert!(errors.contains_key("ECONNRESET") || errors.contains_key("EPIPE"), "{errors:?}");
    assert!(!outcome.sent.streams[0].complete);
}

fn unreachable() {
    let lab = lab();
    let sender = End { netns: &lab.generator.netns, cpus: &[] };
    let connect = |to: &str, stop: &(dyn Fn() -> bool + Sync)| {
        let begin = Instant::now();
        let error = SocketRun::connect(&sender, to.parse().unwrap(), &tcp(), stop).err().unwrap().to_string();
        (error, begin.elapsed())
    };
    let (error, _) = connect(&format!("{}:1", lab.dut.ipv4), &never);
    assert!(error.contains("connect: ECONNREFUSED") && error.contains("start xdplab trafficgen sink"), "{error}");
    let (error, _) = connect("192.0.2.1:1", &never);
    assert!(error.contains("ENETUNREACH"), "{error}");
    // Nobody has this address: no answer ever comes.
    let (error, took) = connect("198.18.0.77:1", &|| true);
    assert!(error.starts_with("interrupted: connect to 198.18.0.77:1") && took < patience(1), "{error}");
}
