//! `xdplab ab` with AF_XDP sockets: what they cost, where every packet went, and what is refused.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use nix::errno::Errno;
use serde_json::Value;
use xdplab::device::{Handling, SlicedDevice, VariantSpec, XskAction, XskSockets, XskSpec};
use xdplab::netlink::XdpMode;
use xdplab::packet::FlowSpec;
use xdplab::sample::Schedule;
use xdplab::topology::{Lab, LabSpec, Placement};

use crate::ab::{ab, error_of, handed_on, lab_generator, measured, no_program_is_left, number, on};
use crate::counts::{attach, frame, lab, send, settles_at};
use crate::support::{BPF, NETNS, TWO_CPUS, eventually, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("ab_xsk::packets_are_handed_to_sockets_as_the_schedule_says", &[&NETNS, &BPF], planted),
        test("ab_xsk::sockets_are_measured_and_every_packet_is_accounted_for", &[&NETNS, &BPF, &TWO_CPUS], sockets),
        test("ab_xsk::sockets_in_skb_mode_are_too", &[&NETNS, &BPF, &TWO_CPUS], skb),
        test("ab_xsk::the_thread_may_share_the_device_s_cpu", &[&NETNS, &BPF], same_cpu),
        test("ab_xsk::a_thread_that_stalls_is_told", &[&NETNS, &BPF, &TWO_CPUS], stalled),
        test("ab_xsk::an_interface_with_traffic_from_outside_is_measured", &[&NETNS, &BPF, &TWO_CPUS], interface),
        test("ab_xsk::a_socket_on_a_queue_without_packets_is_told", &[&NETNS, &BPF, &TWO_CPUS], other_queue),
        test("ab_xsk::what_can_t_be_is_refused_in_a_line", &[&NETNS, &BPF], refusals),
    ]
}

/// A known number of packets: whose slices they fell into is drawn beforehand, and the socket gets those and no others.
fn planted() {
    const SLICES: usize = 12;
    let cut = (40, 10);
    let lab = lab(1);
    let variants: Vec<VariantSpec> = ["drop:no-touch", "xsk-drop"].map(|text| text.parse().unwrap()).into();
    let spec = XskSpec {
        sockets: vec![Handling { action: XskAction::Drop, batch: 64, poll: false }],
        queue: 0,
        frame_size: 4096,
        need_wakeup: true,
        unaligned: false,
        busy_poll: false,
        frags: false,
        mode: xsk::BindMode::Auto,
        fifo: None,
        cpu: Some(0),
        rest_after: Some(Duration::from_millis(1)),
    };
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let schedule = Schedule::draw(2, 2, 7).unwrap();
        let of_socket = schedule.entries()[..SLICES].iter().filter(|entry| entry.variant == 1).count() as u64;
        let sockets = lab.dut.netns.run(|| XskSockets::open(spec.clone(), &lab.dut.name, lab.dut.ifindex)).unwrap();
        let (device, _reader) = SlicedDevice::load(&variants, &schedule, cut, 1, Some(&sockets), 7).unwrap();
        let attachment = attach(device.fd().unwrap(), &lab.dut, mode);
        let slice = u64::from(cut.0 + cut.1);
        // Few at a time, so that neither ring can be full however late NAPI and the thread come.
        for sent in 1..=SLICES as u64 {
            send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], slice);
            let handled = || device.counts().into_result().unwrap().iter().flatten().map(|cpu| cpu.packets).sum();
            settles_at(&format!("{mode}: slice {sent}"), sent * slice, handled);
        }
        let received = || sockets.readings().unwrap()[0].counts.rx_packets;
        settles_at(&format!("{mode}: received by the socket"), of_socket * slice, received);
        let handed_on = device.handed_on().into_result().unwrap();
        assert_eq!((handed_on.to_sockets, handed_on.to_cpus), (of_socket * slice, 0));
        let busy = sockets.busy(&spec.sockets[0]);
        assert!(busy > Duration::ZERO && busy == sockets.busy_in_all(), "{busy:?}");
        drop(attachment);
    }
}

/// Sums up a count of all sockets.
fn sum(onwards: &Value, of: impl Fn(&Value) -> &Value) -> u64 {
    onwards["sockets"]["each"].as_array().unwrap().iter().map(|socket| number(of(socket))).sum()
}

/// Whatever was handed to sockets was received or is told.
fn accounted_for(case: &Value) -> Value {
    let onwards = handed_on(case);
    let received = sum(&onwards, |socket| &socket["rx_packets"]);
    let full = sum(&onwards, |socket| &socket["kernel"]["rx_ring_full"]);
    let dropped = sum(&onwards, |socket| &socket["kernel"]["rx_dropped"]);
    assert_eq!(number(&onwards["handed_on"]["to_sockets"]), received + full + dropped, "{onwards}");
    assert!(received > 0, "{onwards}");
    onwards
}

fn sockets() {
    let specs = ["xsk-drop", "xsk-tx", "xsk-drop:poll:batch=8"];
    let candidates = specs.iter().flat_map(|spec| ["--candidate", spec]);
    let arguments: Vec<&str> =
        ["--baseline", "drop:no-touch", "--seconds", "4"].into_iter().chain(candidates).collect();
    let (lines, case) = measured(&arguments);
    assert_eq!(lines.len(), 3);
    let device = number(&case["plan"]["placement"]["cpu"]);
    for (index, line) in lines.iter().enumerate() {
        assert!(line["compared"]["estimate"].is_object(), "{line}");
        assert_ne!(number(&case["plan"]["candidates"][index]["cpu"]), device, "the thread is not on the device's CPU");
        let remote = &line["candidate"]["remote"];
        assert!(remote["ns_per_packet"].as_f64().is_some_and(|ns| ns > 0.0), "{line}");
        assert!(remote["interval"]["not_available"].as_str().unwrap().contains("1 round"), "{line}");
        assert!(remote["by"].as_str().unwrap().starts_with("AF_XDP thread on CPU "), "{line}");
        assert!(line["limiter"].is_string(), "{line}");
    }
    assert_eq!(lines[0]["baseline"]["remote"], Value::Null);
    let onwards = accounted_for(&case);
    // Three of five: there are two baselines.
    let share =
        number(&onwards["handed_on"]["to_sockets"]) as f64 / number(&case["observed"]["ledger"]["handled"]) as f64;
    assert!((0.55..0.65).contains(&share), "{share} of the packets were handed to sockets");
    let sockets = &onwards["sockets"];
    let actions: Vec<&Value> = sockets["each"].as_array().unwrap().iter().map(|socket| &socket["xsk"]).collect();
    assert_eq!(actions, ["drop", "tx", "drop"]);
    assert_eq!((&sockets["mode"], &sockets["queue"]), (&"copy".into(), &0.into()));
    let sent = sum(&onwards, |socket| &socket["tx_packets"]);
    assert_eq!((sent, number(&sockets["completed"])), (number(&sockets["each"][1]["rx_packets"]), sent));
    let back = number(&case["observed"]["ledger"]["returned"]);
    assert_eq!(back, sent - number(&sockets["tx_dropped"]), "what is sent back arrives at the generator's end");
    assert!(number(&sockets["each"][2]["opt_polls"]) > 0, "{sockets}");
}

fn skb() {
    let (_, case) =
        measured(&["--baseline", "xsk-drop", "--candidate", "xsk-tx", "--xdp-mode", "skb", "--seconds", "3"]);
    let onwards = accounted_for(&case);
    assert_eq!(onwards["handed_on"]["to_sockets"], case["observed"]["ledger"]["handled"], "every program does that");
}

fn same_cpu() {
    let Placement::Same { cpu } = Placement::same().unwrap() else { panic!() };
    let spec = format!("xsk-drop:cpu={cpu}:frame-size=2048:no-need-wakeup");
    let (lines, case) = measured(&["--baseline", "drop:no-touch", "--candidate", &spec, "--seconds", "3", "--explain"]);
    let onwards = accounted_for(&case);
    assert_eq!(onwards["sockets"]["cpu"], cpu);
    let alone = lines[1]["explain"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|part| part["source"].as_str().unwrap().contains("TEST_RUN"));
    let alone: Vec<bool> = alone.map(|part| part["ns"].is_number()).collect();
    assert_eq!(alone, [true, false], "only what needs no driver is run alone: {}", lines[1]);
}

/// The thread is stopped as by a debugger for a part of the run.
fn stalled() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_xdplab"))
        .args(["ab", "--baseline", "drop:no-touch", "--candidate", "xsk-drop", "--seconds", "3", "--rounds", "1"])
        .args(["--json", "--record", record.path().to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut thread = None;
    eventually("the thread of the sockets", 20, || {
        thread = thread_called(child.id(), "af_xdp");
        thread.is_some()
    });
    thread::sleep(Duration::from_millis(800));
    let stopped = stop::Stopped::thread(thread.unwrap()).unwrap();
    thread::sleep(Duration::from_millis(800));
    drop(stopped);
    assert!(child.wait().unwrap().success());
    let record: Value = serde_json::from_slice(&fs::read(record.path()).unwrap()).unwrap();
    let case = &record["cases"][0];
    let onwards = accounted_for(case);
    // The one socket has as many frames as its Rx ring has places, so that the fill ring is empty first.
    let empty = number(&onwards["sockets"]["each"][0]["kernel"]["fill_ring_empty"]);
    assert!(empty > 10_000, "{onwards}");
    let guards = case["guards"].as_array().unwrap();
    let guard = guards.iter().find(|guard| guard["id"] == "redirects").unwrap();
    assert_eq!(guard["outcome"], "warn");
    let told = format!(
        "{empty} packets found the empty fill ring of an AF_XDP socket, which its thread did not see to in time"
    );
    assert!(guard["reason"].as_str().unwrap().contains(&told), "{guard}");
    assert_eq!(
        case["limiter"],
        "the AF_XDP thread, which left the fill ring empty at times, or packets too long for a frame"
    );
    let aborted = guards.iter().find(|guard| guard["id"] == "no-aborted").unwrap();
    assert_eq!(aborted["outcome"], "pass", "a full ring is no error of the program: {aborted}");
}

/// The number of a process's thread with this name.
fn thread_called(pid: u32, name: &str) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let named =
        |task: &std::path::Path| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    let task = tasks.filter_map(|task| Some(task.ok()?.path())).find(|task| named(task))?;
    task.file_name()?.to_str()?.parse().ok()
}

/// Threads stopped by ptrace(2).
mod stop {
    #![expect(unsafe_code, reason = "ptrace(2) has arguments of any kind")]

    use super::Errno;

    /// A thread of another process that stands still; to be dropped by the thread that made it.
    pub(super) struct Stopped(i32);

    impl Stopped {
        pub(super) fn thread(tid: i32) -> Result<Self, Errno> {
            request(libc::c_long::from(libc::PTRACE_SEIZE), tid)?;
            let stopped = Self(tid);
            request(libc::c_long::from(libc::PTRACE_INTERRUPT), tid)?;
            // SAFETY: nothing is to be written to.
            Errno::result(unsafe { libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL) })?;
            Ok(stopped)
        }
    }

    impl Drop for Stopped {
        fn drop(&mut self) {
            // If it has gone there is nothing to let go.
            request(libc::c_long::from(libc::PTRACE_DETACH), self.0).unwrap_or_default();
        }
    }

    fn request(request: libc::c_long, tid: i32) -> Result<(), Errno> {
        // SAFETY: these requests take no address and no data.
        Errno::result(unsafe { libc::syscall(libc::SYS_ptrace, request, libc::c_long::from(tid), 0_u64, 0_u64) })
            .map(drop)
    }
}

fn interface() {
    let lab = Lab::build(&LabSpec::new(Placement::same().unwrap())).unwrap();
    let generator = lab_generator(&lab);
    let (output, record) =
        on(&lab, &["--baseline", "drop:no-touch", "--candidate", "xsk-drop:cpu=0", "--seconds", "2"]);
    assert!(output.status.success(), "{output:?}");
    let case = record.unwrap()["cases"][0].clone();
    accounted_for(&case);
    let (output, _) = on(&lab, &["--baseline", "drop:no-touch", "--candidate", "xsk-drop", "--seconds", "2"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("it names no CPU; name one: xsk-drop:cpu=N") && error.lines().count() == 1, "{error}");
    generator.stop().unwrap();
    no_program_is_left(&lab);
}

fn other_queue() {
    // veth_select_rxq(), drivers/net/veth.c: the sending CPU modulo the number of queues.
    let Placement::Same { cpu } = Placement::same().unwrap() else { panic!() };
    let queues = cpu + 2;
    let guard = |queue: usize| {
        let spec = format!("xsk-drop:queue={queue}");
        let (output, record) = ab(&[
            "--baseline",
            "drop:no-touch",
            "--candidate",
            &spec,
            "--queues",
            &queues.to_string(),
            "--seconds",
            "2",
        ]);
        assert!(output.status.success(), "{output:?}");
        let guards = record.unwrap()["cases"][0]["guards"].clone();
        guards.as_array().unwrap().iter().find(|guard| guard["id"] == "redirects").unwrap().clone()
    };
    let nothing = guard(cpu + 1);
    assert_eq!((&nothing["outcome"], &nothing["value"]), (&"fail".into(), &"0 of 0 found no room".into()));
    assert!(nothing["remedy"].as_str().unwrap().contains("queue=N"), "{nothing}");
    assert_ne!(guard(cpu)["outcome"], "fail");
}

fn refusals() {
    for (candidate, options, told) in [
        ("xsk-drop:frame-size=2048", &[][..], "their frame size differs, and the sockets of a queue have one umem"),
        ("xsk-tx:cpu=9999", &[], "their CPU differs"),
        ("xsk-tx:poll:no-need-wakeup", &[], "their need-wakeup differs"),
    ] {
        let error = error_of(&[&["--baseline", "xsk-drop", "--candidate", candidate], options].concat());
        assert!(error.contains(told), "{error}");
    }
    for (candidate, options, told) in [
        ("xsk-drop:cpu=9999", &[][..], "can't run on CPU 9999 alone"),
        ("xsk-drop:queue=7", &[], "queue 7 is out of range"),
        ("xsk-drop:frame-size=3000", &[], "3000 bytes is not a power of two"),
        ("xsk-drop:batch=0", &[], "a batch of 0 packets is none; choose 1 to 4294967295"),
        ("xsk-drop:zero-copy", &[], "the driver has no zero-copy"),
        ("xsk-drop:zero-copy", &["--xdp-mode", "skb"], "in skb mode every packet is copied"),
        ("xsk-drop", &["--engine", "test-run"], "without a driver there is no queue to open a socket on"),
    ] {
        let error = error_of(&[&["--baseline", "drop:no-touch", "--candidate", candidate], options].concat());
        assert!(error.contains(told), "{candidate}: {error}");
    }
}
