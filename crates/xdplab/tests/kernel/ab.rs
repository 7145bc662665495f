//! `xdplab ab` with users' objects: what they cost, what they are refused for, and what is left behind.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::Trial;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde_json::Value;
use xdplab::device::{Action, Attachment, DutProgram, Operation, ProgramSpec, UserObject, VariantSpec};
use xdplab::generator::{LiveFrames, LiveFramesSpec, Rewrite, Sink};
use xdplab::netlink::XdpMode;
use xdplab::packet::{FlowSpec, FrameSize, UDP_HEADER_LEN, build_udp_frame};
use xdplab::topology::{Lab, LabSpec, Placement};

use crate::counts::{attach, frame};
use crate::live::add_default_route;
use crate::support::{BPF, NETNS, REAL_TIME, RETURNS_BY_OTHERS, TWO_CPUS, XDP_FEATURES, emulated, seconds, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("ab::a_planted_cost_in_a_user_s_program_is_found", &[&NETNS, &BPF, &REAL_TIME], planted_cost),
        test("ab::a_test_run_finds_the_same_cost_without_a_driver", &[&NETNS, &BPF, &REAL_TIME], alone),
        test("ab::the_same_object_twice_is_called_an_a_a", &[&NETNS, &BPF], same_twice),
        test("ab::what_a_user_s_program_sends_back_is_taken_and_counted", &[&NETNS, &BPF], sends_back),
        test("ab::a_user_s_program_may_pass_packets_to_the_stack", &[&NETNS, &BPF], passes),
        test("ab::what_a_program_changes_in_a_frame_is_restored", &[&NETNS, &BPF], restored),
        test("ab::a_program_that_aborts_packets_fails_with_their_count", &[&NETNS, &BPF], aborts),
        test("ab::a_map_left_to_the_loader_gets_the_size_that_is_given", &[&NETNS, &BPF], map_entries),
        test("ab::a_table_that_the_object_fills_in_works", &[&NETNS, &BPF], tail_call),
        test("ab::a_pinned_map_leaves_no_pin", &[&NETNS, &BPF], pinned),
        test("ab::programs_with_and_without_frags_are_not_mixed", &[&NETNS, &BPF], frags),
        test("ab::a_refused_program_is_told_in_a_line_and_in_full_when_asked", &[&NETNS, &BPF], refused),
        test("ab::too_few_slices_are_an_error", &[&NETNS, &BPF], too_short),
        test("ab::several_flows_arrive_in_turn_with_right_checksums", &[&NETNS, &BPF], flows),
        test("ab::an_interface_with_traffic_from_outside_is_measured", &[&NETNS, &BPF], interface),
        test("ab::an_interface_without_traffic_is_an_error", &[&NETNS, &BPF], no_traffic),
        test("ab::an_interface_in_use_or_occupied_is_refused", &[&NETNS, &BPF], in_use),
        test("ab::redirects_are_measured_and_every_packet_is_accounted_for", &[&NETNS, &BPF], redirects),
        test("ab::redirects_in_skb_mode_are_too", &[&NETNS, &BPF], redirects_skb),
        test(
            "ab::redirects_to_cpus_are_measured_and_every_packet_is_accounted_for",
            &[&NETNS, &BPF, &TWO_CPUS, &RETURNS_BY_OTHERS],
            cpumaps,
        ),
        test("ab::redirects_on_an_interface_go_where_they_are_told", &[&NETNS, &BPF], redirects_on),
        test("ab::a_target_that_takes_no_frames_is_refused", &[&NETNS, &BPF, &XDP_FEATURES], deaf),
        test("ab::redirects_are_run_alone_too", &[&NETNS, &BPF], redirects_alone),
        test("ab::a_cpu_that_is_not_there_is_refused", &[&NETNS, &BPF], no_such_cpu),
        test("ab::a_resolution_ends_the_run_when_it_is_reached", &[&NETNS, &BPF, &REAL_TIME], resolve),
    ]
}

/// The committed object of `bpf/tests/NAME.bpf.c`.
pub(crate) fn object(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("bpf/objects/tests-{name}.bpf.o"))
}

/// `OBJECT:PROGRAM` of a test object.
fn program(name: &str, program: &str) -> String {
    format!("{}:{program}", object(name).display())
}

/// One round, and short slices so that a busy machine has enough of them, or an emulated one.
fn quick() -> [&'static str; 3] {
    ["--rounds=1", "--copies=4", if emulated() { "--slice-packets=64" } else { "--slice-packets=256" }]
}

/// Runs `xdplab ab --json` with a record of its own.
pub(crate) fn ab(arguments: &[&str]) -> (Output, Option<Value>) {
    let record = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xdplab"))
        .args(["ab", "--json", "--record", record.path().to_str().unwrap()])
        .args(if arguments.contains(&"--resolve") { Vec::new() } else { quick().into() })
        .args(arguments)
        .output()
        .unwrap();
    (output, serde_json::from_slice(&std::fs::read(record.path()).unwrap()).ok())
}

/// Runs `xdplab ab --on` the DUT's end of a lab that is not the tool's own, in its namespace.
pub(crate) fn on(lab: &Lab, arguments: &[&str]) -> (Output, Option<Value>) {
    lab.dut.netns.run(|| Ok(ab(&[&["--on", "dut0"], arguments].concat()))).unwrap()
}

/// The lines and the case of a run that went well.
pub(crate) fn measured(arguments: &[&str]) -> (Vec<Value>, Value) {
    let longer = arguments.iter().map(|argument| argument.parse().map_or((*argument).to_owned(), seconds));
    let longer: Vec<String> = longer.collect();
    let (output, record) = ab(&longer.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["schema"] == "xdplab.ab/1"));
    (lines, record.unwrap()["cases"][0].clone())
}

/// The one line of an ending with status 2.
pub(crate) fn error_of(arguments: &[&str]) -> String {
    let (output, _) = ab(arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

fn delta(line: &Value) -> f64 {
    line["compared"]["estimate"]["delta"]["estimate_ns"].as_f64().unwrap()
}

fn planted_cost() {
    let work = program("user", "work");
    let arguments =
        ["--baseline", &work, "--candidate", &work, "--global", "candidate:multiplications=64", "--seconds", "3"];
    let (lines, case) = measured(&arguments);
    assert_eq!(lines[0]["compared"]["verdict"], "slower", "{}", lines[0]);
    // So many can't hide behind the rest of a packet's work. A multiplication takes 3 cycles or more on every CPU there is.
    assert!((10.0..200.0).contains(&delta(&lines[0])), "64 multiplications cost {} ns", delta(&lines[0]));
    let candidate = &case["plan"]["candidates"][0];
    assert_eq!(candidate["globals"]["multiplications"], 64);
    assert_eq!(candidate["sha256"].as_str().unwrap().len(), 64);
    assert!(case["observed"]["ledger"]["handled"]["not_available"].is_string(), "a user's program counts nothing");
    assert_eq!(case["observed"]["ledger"]["generated"], case["observed"]["ledger"]["received"]);

    let (output, _) = ab(&[&arguments[..], &["--fail-on", "slower"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

fn alone() {
    let work = program("user", "work");
    let arguments = ["--baseline", &work, "--candidate", &work, "--global", "candidate:multiplications=64"];
    let (lines, case) = measured(&[&arguments[..], &["--engine", "test-run", "--seconds", "3"]].concat());
    assert_eq!(lines[0]["engine"]["test_run"]["cold"], false);
    assert!((10.0..200.0).contains(&delta(&lines[0])), "64 multiplications cost {} ns", delta(&lines[0]));
    assert!(lines[0]["candidate"]["program_alone"]["delta"]["estimate_ns"].is_number(), "{}", lines[0]);
    assert_eq!(case["observed"]["napi"]["not_available"], "program only, no driver");
    let error = {
        let (output, _) = ab(&[&arguments[..], &["--engine", "test-run", "--flows", "2"]].concat());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error.contains("cannot be used with"), "{error}");
}

fn same_twice() {
    let copy = tempfile::Builder::new().suffix(".o").tempfile().unwrap();
    std::fs::copy(object("user"), copy.path()).unwrap();
    let other_name = format!("{}:work", copy.path().display());
    let (lines, _) = measured(&["--baseline", &program("user", "work"), "--candidate", &other_name, "--seconds", "1"]);
    assert_eq!(lines[0]["same_program"], true);
}

fn sends_back() {
    let work = program("user", "work");
    let (_, case) =
        measured(&["--baseline", "drop:no-touch", "--candidate", &work, "--global", "verdict=3", "--seconds", "1"]);
    let observed = &case["observed"];
    assert_eq!(observed["tried"][0]["returns"], "XDP_TX");
    assert_eq!(observed["tried"][0]["changes_until"], 0);
    let (returned, received) = (observed["ledger"]["returned"].as_u64(), observed["ledger"]["received"].as_u64());
    // A third of the packets: there are two baselines and one candidate.
    let share = returned.unwrap() as f64 / received.unwrap() as f64;
    assert!((0.3..0.37).contains(&share), "{share} of the packets came back");
}

fn passes() {
    let work = program("user", "work");
    let (lines, case) =
        measured(&["--baseline", "pass:no-touch", "--candidate", &work, "--global", "verdict=2", "--seconds", "1"]);
    assert_eq!(case["observed"]["tried"][0]["returns"], "XDP_PASS");
    assert!(lines[0]["compared"]["estimate"].is_object(), "{}", lines[0]);
}

/// The program aborts a frame that it has seen 64 times.
fn restored() {
    let (_, case) =
        measured(&["--baseline", "drop:no-touch", "--candidate", &program("user", "count_down"), "--seconds", "1"]);
    assert_eq!(case["observed"]["tried"][0]["changes_until"], 23, "the time to live is byte 22");
    assert_eq!(case["observed"]["restored_bytes"], 24);
    assert_eq!(case["observed"]["exceptions"], serde_json::json!({}));
}

fn aborts() {
    let file = object("single");
    let arguments = ["--baseline", "drop:no-touch", "--candidate", file.to_str().unwrap(), "--seconds", "1"];
    let (_, record) = ab(&arguments);
    let error = error_of(&arguments);
    assert!(error.starts_with("xdplab: can't compare the programs: "), "{error}");
    let count: u64 = error.split(": ").nth(2).unwrap().strip_suffix(" packets").unwrap().parse().unwrap();
    assert!(count > 1000 && error.contains(&format!("XDP_ABORTED {count}")), "{error}");
    let case = &record.unwrap()["cases"][0];
    assert_eq!(case["comparisons"][0]["verdict"], "inconclusive", "the record is written all the same");
}

fn map_entries() {
    let sized = program("user", "sized");
    let arguments = ["--baseline", "drop:no-touch", "--candidate", &sized, "--seconds", "1"];
    let error = error_of(&arguments);
    assert!(error.contains("leaves the size of these maps to its loader: left_to_loader;"), "{error}");
    // The program aborts unless there are three.
    measured(&[&arguments[..], &["--map-entries", "candidate:left_to_loader=3"]].concat());
    let error = error_of(&[&arguments[..], &["--map-entries", "left_to_loader=2"]].concat());
    assert!(error.contains("XDP_ABORTED"), "{error}");
}

fn tail_call() {
    let (lines, case) = measured(&[
        "--baseline",
        &program("plain", "last"),
        "--candidate",
        &program("plain", "tail_call"),
        "--candidate",
        "drop:read-data",
        "--seconds",
        "1",
    ]);
    assert_eq!(case["observed"]["exceptions"], serde_json::json!({}), "where the call fails the program aborts");
    assert_eq!(lines.len(), 2, "one of ours runs beside them, without frags too");
}

fn pinned() {
    let name = program("user", "pinned");
    measured(&["--baseline", "drop:no-touch", "--candidate", &name, "--seconds", "1"]);
    assert!(!Path::new("/sys/fs/bpf/xdplab_test_pinned").exists());
}

fn frags() {
    let error =
        error_of(&["--baseline", &program("user", "work"), "--candidate", &program("plain", "last"), "--seconds", "1"]);
    assert!(error.contains("one dispatcher can't call both"), "{error}");

    // The kernel would refuse it as well.
    let lab = Lab::build(&LabSpec { mtu: 4000, ..LabSpec::new(Placement::same().unwrap()) }).unwrap();
    let load = |spec: String| match spec.parse().unwrap() {
        VariantSpec::Object(spec) => UserObject::open(&spec).unwrap(),
        other => panic!("{other}"),
    };
    for (spec, frags) in [(program("user", "work"), true), (program("plain", "last"), false)] {
        let object = load(spec);
        assert_eq!(object.frags(), frags);
        let copy = object.load().unwrap();
        let attach = || Attachment::attach(copy.fd(), lab.dut.ifindex, XdpMode::Native).map(drop);
        assert_eq!(lab.dut.netns.run(attach).is_ok(), frags, "frames of 4000 bytes need frags");
    }
}

fn refused() {
    let name = program("plain", "refused");
    let arguments = ["--baseline", "drop:no-touch", "--candidate", &name, "--seconds", "1"];
    let error = error_of(&arguments);
    assert!(error.contains("EACCES"), "{error}");
    assert!(error.contains("kernel says: R1 offset is outside of the packet"), "{error}");
    let (output, _) = ab(&[&arguments[..], &["-v"]].concat());
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.lines().count() > 3 && log.contains("processed ") && log.ends_with(&error), "{log}");
}

fn too_short() {
    let error = error_of(&["--baseline", "drop:no-touch", "--candidate", "drop:read-data", "--seconds", "0.01"]);
    assert!(error.contains("are needed; run longer"), "{error}");
}

/// Every frame that arrives is what a frame of its own port is when it is built, checksum and all.
fn flows() {
    for flow in [FlowSpec::lab_v4(), FlowSpec::lab_v6()] {
        let lab = Lab::build(&LabSpec::new(Placement::Same { cpu: 0 })).unwrap();
        let program = DutProgram::load(ProgramSpec::new(Action::Pass, Operation::NoTouch), 1).unwrap();
        let _attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
        let tap = lab.dut.netns.run(|| Ok(packet_socket())).unwrap();
        // Addressed to another host's MAC, so that nobody answers.
        let size = FrameSize::shortest(&flow);
        let of_port = |src_port| build_udp_frame(&FlowSpec { src_port, ..flow.clone() }, size).unwrap();
        let udp_offset = flow.headers_len() - UDP_HEADER_LEN;
        // Restoring puts back what was there before the port is written.
        for restored in [0, 64] {
            let spec = LiveFramesSpec {
                frame: of_port(65_534),
                ifindex: lab.generator.ifindex,
                cpus: vec![0],
                batch: LiveFramesSpec::DEFAULT_BATCH,
                count: Some(20),
                rewrite: Rewrite { restored, flows: 5, udp_offset },
            };
            LiveFrames::start(&spec, &lab.generator.netns).unwrap().wait().unwrap();
            for number in 0..20 {
                let port = [65_534, 65_535, 0, 1, 2][number % 5];
                let mut received = [0; 128];
                let len = recv(tap.as_raw_fd(), &mut received, MsgFlags::empty()).unwrap();
                assert_eq!(received[..len], of_port(port), "frame {number} of {flow:?}, {restored} bytes restored");
            }
        }
    }
}

/// Sees every frame that comes in to the namespace's interfaces.
fn packet_socket() -> OwnedFd {
    let tap = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).unwrap();
    setsockopt(&tap, sockopt::ReceiveTimeout, &TimeVal::seconds(5)).unwrap();
    tap
}

fn resolve() {
    let arguments =
        ["--baseline", "drop:no-touch", "--candidate", "drop:read-data", "--rounds", "3", "--max-seconds", "60"];
    let (_, case) = measured(&[&arguments[..], &["--resolve", "100ns"]].concat());
    assert_eq!(case["observed"]["rounds"].as_array().unwrap().len(), 3, "100 ns are resolved at the first look");
    assert_eq!(case["plan"]["resolve_ns"], 100.0);
}

const CANDIDATES: [&str; 4] = ["--baseline", "drop:no-touch", "--candidate", "drop:no-touch:mul=16"];

fn lab() -> Lab {
    Lab::build(&LabSpec::new(Placement::same().unwrap())).unwrap()
}

pub(crate) fn no_program_is_left(lab: &Lab) {
    let link = lab.dut.netns.rtnl().unwrap().link_by_index(lab.dut.ifindex).unwrap();
    assert!(link.xdp.is_empty(), "{:?}", link.xdp);
}

/// What became of the packets that programs handed on: the ledger's part, whose guard has passed.
pub(crate) fn handed_on(case: &Value) -> Value {
    let ledger = case["guards"].as_array().unwrap().iter().find(|guard| guard["id"] == "ledger").unwrap();
    assert_eq!(ledger["outcome"], "pass", "{ledger}");
    let onwards = case["observed"]["ledger"]["onwards"].clone();
    assert_eq!(onwards["failed"], 0);
    onwards
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn redirects() {
    let (lines, case) = measured(&[
        "--baseline",
        "redirect-map",
        "--candidate",
        "redirect-map:egress-forward",
        "--candidate",
        "redirect-map:egress-drop",
        "--candidate",
        "redirect",
        "--candidate",
        "redirect-multi",
        "--seconds",
        "4",
    ]);
    assert!(lines.iter().all(|line| line["compared"]["estimate"].is_object()), "{lines:?}");
    let onwards = handed_on(&case);
    let (handed_on, xmit) = (&onwards["handed_on"], &onwards["xmit"]);
    assert_eq!(number(&handed_on["to_interfaces"]), number(&case["observed"]["ledger"]["handled"]));
    assert_eq!((number(&handed_on["to_cpus"]), &onwards["enqueued"]), (0, &Value::Null));
    // A sixth of the packets: there are two baselines and four candidates.
    let dropped = number(&handed_on["egress_drops"]) as f64 / number(&handed_on["to_interfaces"]) as f64;
    assert!((0.15..0.19).contains(&dropped), "{dropped} of the packets were dropped by the egress program");
    assert_eq!(number(&xmit["sent"]), number(&onwards["received"]));
    assert_eq!(case["observed"]["lab_after"]["exit"][0]["name"], "out0");
    assert_eq!(case["plan"]["candidates"][1], serde_json::json!({"redirect": "map", "egress": "drop"}));
}

fn redirects_skb() {
    let (_, case) = measured(&[
        "--baseline",
        "redirect",
        "--candidate",
        "redirect-map:egress-drop",
        "--xdp-mode",
        "skb",
        "--seconds",
        "3",
    ]);
    let onwards = handed_on(&case);
    assert!(onwards["xmit"]["not_available"].is_string());
    let handed_on = &onwards["handed_on"];
    assert_eq!(
        number(&handed_on["to_interfaces"]),
        number(&handed_on["egress_drops"]) + number(&onwards["received"]),
        "{onwards}"
    );
}

fn cpumaps() {
    let (lines, case) = measured(&[
        "--baseline",
        "redirect-cpu:qsize=64",
        "--candidate",
        "redirect-cpu:qsize=192",
        "--candidate",
        "redirect-cpu:qsize=192:remote-drop",
        "--candidate",
        "redirect-cpu:no-touch:remote-redirect",
        "--seconds",
        "5",
    ]);
    assert_eq!(lines.len(), 3);
    let remote = |cost: &Value| {
        let remote = &cost["remote"];
        assert!(remote["by"].as_str().unwrap().starts_with("kthread on CPU "), "{cost}");
        assert!(remote["ns_per_packet"].as_f64().is_some_and(|ns| (10.0..100_000.0).contains(&ns)), "{cost}");
        number(&remote["packets"])
    };
    let taken: u64 = remote(&lines[0]["baseline"]) + lines.iter().map(|line| remote(&line["candidate"])).sum::<u64>();
    assert!(lines[0]["limiter"].is_string(), "{}", lines[0]);
    let placement = number(&case["plan"]["placement"]["cpu"]);
    let cpu = number(&case["plan"]["baseline"]["cpus"][0]);
    assert_ne!(cpu, placement, "packets go to another CPU than the device's");
    let onwards = handed_on(&case);
    let (handed_on, enqueued, kthreads) = (&onwards["handed_on"], &onwards["enqueued"], &onwards["kthreads"]);
    assert_eq!(number(&handed_on["to_cpus"]), number(&case["observed"]["ledger"]["handled"]));
    assert_eq!(number(&handed_on["to_cpus"]), number(&enqueued["processed"]));
    assert_eq!(number(&enqueued["processed"]) - number(&enqueued["drops"]), number(&kthreads["processed"]));
    assert!(number(&kthreads["drop"]) > 0 && number(&kthreads["redirect"]) > 0, "{kthreads}");
    // All but the baseline's control, which is a fifth of them.
    let share = taken as f64 / number(&kthreads["processed"]) as f64;
    assert!((0.6..0.95).contains(&share), "{share} of the packets that kthreads took are in the costs");
    let xmit = &onwards["xmit"];
    assert_eq!(number(&kthreads["redirect"]), number(&xmit["sent"]) + number(&xmit["drops"]));
}

const TO_OUT: [&str; 6] =
    ["--baseline", "redirect-map:out0", "--candidate", "redirect-map:out0:egress-drop", "--seconds", "2"];

fn deaf() {
    let lab = Lab::build(&LabSpec { exit: true, ..LabSpec::new(Placement::same().unwrap()) }).unwrap();
    let (output, _) = on(&lab, &TO_OUT);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("can't redirect frames to out0") && error.contains("NETDEV_XDP_ACT_NDO_XMIT"), "{error}");
    no_program_is_left(&lab);
}

/// The tool's own lab is not needed: packets come from one namespace, and go to a third.
fn redirects_on() {
    let lab = Lab::build(&LabSpec { exit: true, ..LabSpec::new(Placement::same().unwrap()) }).unwrap();
    let generator = lab_generator(&lab);
    let (exit, sink) = (lab.exit.as_ref().unwrap(), Sink::load().unwrap());
    let _attachment = attach(sink.fd().unwrap(), &exit.sink, XdpMode::Native);
    let (output, record) = on(&lab, &TO_OUT);
    assert!(output.status.success(), "{output:?}");
    let case = record.unwrap()["cases"][0].clone();
    let onwards = handed_on(&case);
    assert_eq!(number(&onwards["xmit"]["sent"]), sink.packets().unwrap());
    assert!(number(&onwards["handed_on"]["egress_drops"]) > 0 && onwards["received"]["not_available"].is_string());
    assert_eq!(case["observed"]["lab_after"]["exit"][0]["name"], "out0");
    for (spec, told) in [
        ("redirect:dut0", "it is the interface that is measured; take tx:swap-macs"),
        ("redirect-map", "it names no interface to redirect to; name it: redirect:IFACE"),
        ("redirect-map:nosuch0", "ENODEV"),
        ("redirect-cpu", "it names no CPU; name one: redirect-cpu:cpu=N"),
    ] {
        let (output, _) = on(&lab, &["--baseline", spec, "--candidate", "drop:no-touch"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(told) && error.lines().count() == 1, "{spec}: {error}");
    }
    generator.stop().unwrap();
    no_program_is_left(&lab);
}

fn redirects_alone() {
    let (lines, _) = measured(&[
        "--baseline",
        "redirect-map",
        "--candidate",
        "redirect-cpu:l4-hash",
        "--engine",
        "test-run",
        "--seconds",
        "1",
    ]);
    let alone = &lines[0]["candidate"]["program_alone"]["delta"]["estimate_ns"];
    assert!(alone.as_f64().is_some_and(|ns| ns > 0.0), "{}", lines[0]);
}

fn no_such_cpu() {
    let error = error_of(&["--baseline", "redirect-cpu:cpu=9999", "--candidate", "redirect-cpu", "--seconds", "1"]);
    assert!(error.contains("9999"), "{error}");
}

pub(crate) fn lab_generator(lab: &Lab) -> LiveFrames {
    let spec = LiveFramesSpec {
        frame: frame(lab, FlowSpec::lab_v4()),
        ifindex: lab.generator.ifindex,
        cpus: lab.spec().placement.generator_cpu().into_iter().collect(),
        batch: LiveFramesSpec::DEFAULT_BATCH,
        count: None,
        rewrite: Rewrite::default(),
    };
    LiveFrames::start(&spec, &lab.generator.netns).unwrap()
}

fn interface() {
    let lab = lab();
    let generator = lab_generator(&lab);
    let (output, record) = on(&lab, &[&CANDIDATES[..], &["--seconds", &seconds(2.0)]].concat());
    generator.stop().unwrap();
    assert!(output.status.success(), "{output:?}");
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(delta(&line) > 0.0, "{line}");
    let observed = &record.unwrap()["cases"][0]["observed"];
    let ledger = &observed["ledger"];
    assert_eq!(ledger["received"], ledger["handled"], "what came in meanwhile is counted by both or by none");
    assert!(ledger["received"].as_u64().unwrap() > 100_000);
    assert!(ledger["generated"]["not_available"].is_string());
    assert!(observed["lab_after"]["generator"].is_null());
    assert_eq!(observed["xdp_mode"], "native");
    no_program_is_left(&lab);
}

fn no_traffic() {
    let lab = lab();
    let (output, _) = on(&lab, &[&CANDIDATES[..], &["--seconds", "1"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("xdplab: can't measure on dut0: 0 packets came in 1.0 s, and a round of 1.00 s needs"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    no_program_is_left(&lab);
}

fn in_use() {
    let lab = lab();
    let refused = |arguments: &[&str]| {
        let (output, _) = on(&lab, &[&CANDIDATES[..], &["--seconds", "1"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let program = DutProgram::load(ProgramSpec::new(Action::Pass, Operation::NoTouch), 1).unwrap();
    let attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
    let error = refused(&[]);
    assert!(error.contains("a program is there already: id ") && error.contains("name `no_touch`"), "{error}");
    drop(attachment);

    let add_route = || {
        add_default_route(lab.dut.ifindex);
        Ok(())
    };
    lab.dut.netns.run(add_route).unwrap();
    let error = refused(&[]);
    assert!(error.contains("it carries the default route; take another interface, or give --force"), "{error}");
    assert!(refused(&["--force"]).contains("0 packets came"), "with --force it goes on");
    no_program_is_left(&lab);
}
