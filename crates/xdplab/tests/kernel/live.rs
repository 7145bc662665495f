//! `xdplab drop`, `pass` and `tx`, run as a user runs them, in the network namespace of a lab.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use xdplab::device::{Action, Attachment};
use xdplab::generator::{LiveFrames, LiveFramesSpec, Rewrite, Sink};
use xdplab::netlink::XdpMode;
use xdplab::packet::FlowSpec;
use xdplab::record::Record;
use xdplab::topology::{Lab, LabSpec, Placement, Port};

use crate::counts::{attach, frame, lab, rx_packets, send, settles_at};
use crate::support::child::Actor;
use crate::support::xdp::{self, XDP_PASS};
use crate::support::{BPF, NAPI_LIST, NETNS, TWO_CPUS, eventually, patience, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("live::drop_counts_to_the_packet", &[&NETNS, &BPF], || every_way(Action::Drop)),
        test("live::pass_counts_to_the_packet", &[&NETNS, &BPF], || every_way(Action::Pass)),
        test("live::tx_counts_to_the_packet", &[&NETNS, &BPF], || every_way(Action::Tx)),
        test("live::what_threads_that_poll_take_is_told_too", &[&NETNS, &BPF, &NAPI_LIST], threaded),
        test("live::what_can_t_be_handled_is_an_error", &[&NETNS, &BPF], aborted),
        test("live::queues_and_cpus_are_told_apart", &[&NETNS, &BPF, &TWO_CPUS], queues),
        test("live::rates_times_periods_are_the_total_and_the_interface_s", &[&NETNS, &BPF], intervals),
        test("live::a_signal_ends_it_with_the_partial_interval_and_the_totals", &[&NETNS, &BPF], signals),
        test("live::sigquit_toggles_the_extended_mode", &[&NETNS, &BPF], toggle),
        test("live::a_hangup_that_is_ignored_does_not_end_it", &[&NETNS, &BPF], ignored_hangup),
        test("live::a_signal_at_any_moment_leaves_nothing_behind", &[&NETNS, &BPF], any_moment),
        test("live::sigkill_leaves_nothing_behind", &[&NETNS, &BPF], sigkill),
        test("live::immediate_exit_attaches_and_ends_at_once", &[&NETNS, &BPF], immediate_exit),
        test("live::duration_and_count_end_it", &[&NETNS, &BPF], duration_and_count),
        test("live::json_and_record_tell_the_same", &[&NETNS, &BPF], json_and_record),
        test("live::it_ends_when_nobody_reads", &[&NETNS, &BPF], closed_output),
        test("live::it_ends_when_the_interface_is_gone", &[&NETNS, &BPF], interface_gone),
        test("live::a_program_that_is_there_is_left_alone", &[&NETNS, &BPF], occupied),
        test("live::an_interface_in_use_is_taken_by_force_alone", &[&NETNS, &BPF], in_use),
        test("live::an_interface_that_is_not_there_is_one_line", &[&NETNS, &BPF], no_interface),
    ]
}

/// A command under way, with what it has printed so far.
pub(crate) struct Live {
    pub(crate) child: Actor,
    pub(crate) stdout: Printed,
    pub(crate) stderr: Printed,
}

/// How a command ended, and all that it printed.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// What comes out of a pipe, line by line.
pub(crate) struct Printed {
    text: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Printed {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let into = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = String::new();
            while pipe.read_line(&mut line).unwrap() > 0 {
                into.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Self { text, reader }
    }

    pub(crate) fn so_far(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    fn all(self) -> String {
        self.reader.join().unwrap();
        Arc::try_unwrap(self.text).unwrap().into_inner().unwrap()
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdplab"));
    command.args(args).env_remove("XDP_SAMPLE_IMMEDIATE_EXIT").env_remove("SSH_CONNECTION");
    command
}

impl Live {
    pub(crate) fn spawn(port: &Port, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = port.netns.run(|| Ok(command.spawn().unwrap())).unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self { child: Actor(child), stdout: Printed::of(stdout), stderr: Printed::of(stderr) }
    }

    /// Starts the command and waits until it counts.
    pub(crate) fn start(port: &Port, args: &[&str]) -> Self {
        let mut live = Self::spawn(port, command(args));
        live.await_start();
        live
    }

    pub(crate) fn await_start(&mut self) {
        eventually("it starts to count", 20, || {
            assert_eq!(self.child.try_wait().unwrap(), None, "{}", self.stderr.so_far());
            let told = self.stderr.so_far();
            [" packets on ", "Redirecting ", "Watching ", "Transmitting on "].iter().any(|begun| told.contains(begun))
                || self.stdout.so_far().contains(r#""event":"start""#)
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    pub(crate) fn lines(&self, containing: &str) -> usize {
        self.stdout.so_far().lines().filter(|line| line.contains(containing)).count()
    }

    /// Waits for the end that is due.
    pub(crate) fn wait(mut self) -> Ended {
        let mut status = None;
        eventually("it ends", 20, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        Ended { status: status.unwrap(), stdout: self.stdout.all(), stderr: self.stderr.all() }
    }

    pub(crate) fn end(self) -> Ended {
        self.end_with(0)
    }

    fn end_with(self, status: i32) -> Ended {
        self.signal(Signal::SIGINT);
        let ended = self.wait();
        assert_eq!(ended.status.code(), Some(status), "{}", ended.stderr);
        ended
    }
}

impl Ended {
    /// The number that follows the label in the end block.
    pub(crate) fn total(&self, label: &str) -> Option<u64> {
        let line = self.stdout.lines().find_map(|line| line.strip_prefix(&format!("  {label:<20}: ")))?;
        Some(line.split(' ').next().unwrap().replace(',', "").parse().unwrap())
    }

    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let events = self.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events
            .inspect(|event| assert_eq!(event["schema"], "xdplab.live/1"))
            .filter(|event| event["event"] == kind)
            .collect()
    }

    pub(crate) fn refused(&self, words: &[&str]) {
        assert_eq!(self.status.code(), Some(2), "{}", self.stderr);
        assert_eq!((self.stderr.lines().count(), &*self.stdout), (1, ""), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {}", self.stderr);
        }
    }
}

pub(crate) fn programs(port: &Port) -> usize {
    port.netns.rtnl().unwrap().link_by_index(port.ifindex).unwrap().xdp.len()
}

/// The lab's sink takes what is sent back, and gives the generator's end the NAPI that this needs.
fn sink(lab: &Lab) -> (Attachment, Sink) {
    let sink = Sink::load().unwrap();
    (attach(sink.fd().unwrap(), &lab.generator, XdpMode::Native), sink)
}

pub(crate) fn generator(lab: &Lab) -> LiveFrames {
    let spec = LiveFramesSpec {
        frame: frame(lab, FlowSpec::lab_v4()),
        ifindex: lab.generator.ifindex,
        cpus: vec![0],
        batch: LiveFramesSpec::DEFAULT_BATCH,
        count: None,
        rewrite: Rewrite::default(),
    };
    LiveFrames::start(&spec, &lab.generator.netns).unwrap()
}

/// Fewer than the places of a veth ring and than a batch, so that none is lost and none is a recycled page.
pub(crate) const FEW: u64 = 63;

fn every_way(action: Action) {
    let lab = lab(1);
    let _sink = sink(&lab);
    let name = action.to_string();
    for mode in ["native", "skb"] {
        for operation in ["no-touch", "read-data", "parse-ip", "swap-macs"] {
            for load_mode in ["dpa", "load-bytes"] {
                let args = [&name, "dut0", "-m", mode, "-p", operation, "-l", load_mode];
                let live = Live::start(&lab.dut, &args);
                assert!(live.stderr.so_far().contains(&format!("in {mode} mode")));
                let before = rx_packets(&lab.dut);
                send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], FEW);
                settles_at(&format!("{args:?}"), FEW, || rx_packets(&lab.dut) - before);
                let ended = live.end();
                assert_eq!(ended.total("Packets received"), Some(FEW), "{args:?}: {}", ended.stdout);
                assert_eq!(ended.total("Rx dropped"), (action == Action::Drop).then_some(FEW), "{args:?}");
                assert_eq!(ended.total("Errors recorded"), None, "{args:?}: {}", ended.stdout);
                let unit = if action == Action::Drop { "0 err/s  " } else { "0 err,drop/s" };
                assert!(ended.stdout.contains(unit), "{args:?}: {}", ended.stdout);
            }
        }
    }
}

/// What an operation can't handle is counted as received and as an error, dropped by neither name, and fails the run.
fn aborted() {
    let lab = lab(1);
    let mut no_ethertype = frame(&lab, FlowSpec::lab_v4());
    no_ethertype[12..14].copy_from_slice(&[0, 46]); // a length, IEEE 802.3
    for mode in ["native", "skb"] {
        let live = Live::start(&lab.dut, &["drop", "dut0", "-p", "read-data", "-m", mode, "-i", "100"]);
        let before = rx_packets(&lab.dut);
        send(&lab, no_ethertype.clone(), &[0], 20);
        send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], 13);
        settles_at(mode, 33, || rx_packets(&lab.dut) - before);
        let ended = live.end_with(2);
        assert!(ended.stderr.contains("can't trust this run: 20 packets got XDP_ABORTED"), "{mode}: {}", ended.stderr);
        let totals = ["Packets received", "Rx dropped", "Errors recorded"].map(|label| ended.total(label));
        assert_eq!(totals, [Some(33), Some(13), Some(20)], "{mode}: {}", ended.stdout);
        for row in ["  receive  ", "  xdp_exception total ", "    XDP_ABORTED "] {
            assert_eq!(ended.stdout.matches(row).count(), 1, "{mode}: {row:?}: {}", ended.stdout);
        }
    }
}

fn threaded() {
    let lab = Lab::build(&LabSpec {
        offloads: vec![("gro".into(), true)], // so that there is NAPI already
        ..LabSpec::new(Placement::same().unwrap())
    })
    .unwrap();
    lab.dut.netns.sysfs().unwrap().write("class/net/dut0/threaded", "1").unwrap();
    let live = Live::start(&lab.dut, &["drop", "dut0", "--json"]);
    let before = rx_packets(&lab.dut);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], FEW);
    settles_at("received", FEW, || rx_packets(&lab.dut) - before);
    let end = live.end().events("end").remove(0);
    assert_eq!(end["softirq"]["not_available"], "NAPI runs in threads of its own, outside softirq", "{end}");
    let cost = &end["cpus"][0];
    assert_eq!((&cost["role"], &cost["packets"]), (&"NAPI thread".into(), &FEW.into()), "{end}");
    assert!(cost["ns_per_packet"].as_f64().unwrap() > 1.0, "{end}");
    assert!(end["limiter"].as_str().unwrap().starts_with("the sender: "), "{end}");
}

fn queues() {
    let lab = lab(4);
    let live = Live::start(&lab.dut, &["drop", "dut0", "--rxq-stats", "--extended", "--json"]);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], 20);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[1], 33);
    settles_at("received", 53, || rx_packets(&lab.dut));
    let end = live.end().events("end").remove(0);
    // veth_select_rxq(), drivers/net/veth.c: the sending CPU modulo the number of queues.
    let queues = &end["total"]["received"]["rx_queues"];
    assert_eq!((queues["0"]["packets"].as_u64(), queues["1"]["packets"].as_u64()), (Some(20), Some(33)));
    assert_eq!(queues.as_object().unwrap().len(), 2, "{queues}");
    let live = Live::start(&lab.dut, &["drop", "dut0", "-r", "-e", "-i", "0.5"]);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[1], 33);
    eventually("a line for queue 1", 5, || live.lines("    rxq:1 ") > 0);
    let ended = live.end();
    assert!(!ended.stdout.contains("rxq:0 "), "{}", ended.stdout);
    assert_eq!(ended.total("Packets received"), Some(33));
}

fn intervals() {
    let lab = lab(1);
    for interval in ["0.5", "1", "2"] {
        let live = Live::start(&lab.dut, &["drop", "dut0", "--json", "-i", interval]);
        let before = rx_packets(&lab.dut);
        let generator = generator(&lab);
        eventually("two intervals with packets", 20, || {
            live.stdout
                .so_far()
                .lines()
                .filter(|line| line.contains("ns_per_packet\":") && !line.contains("packet\":null"))
                .count()
                > 1
        });
        generator.stop().unwrap();
        thread::sleep(Duration::from_millis(50));
        let received = rx_packets(&lab.dut) - before;
        let ended = live.end();
        let (told, end) = (ended.events("interval"), ended.events("end").remove(0));
        assert_eq!(end["total"]["received"]["packets"].as_u64(), Some(received), "the interface's counter, {end}");
        assert_eq!(end["interface"]["rx_packets"].as_u64(), Some(received), "{end}");
        let number = |value: &Value, name: &str| value["received"][name].as_f64().unwrap();
        let by_rate: f64 = told.iter().map(|told| number(told, "pps") * number(told, "period_s")).sum();
        assert!((by_rate - received as f64).abs() < 0.5, "{by_rate} by rates, {received} in all");
        let longest = interval.parse::<f64>().unwrap();
        assert!(
            told.iter().rev().skip(1).all(|told| told["partial"] == false && number(told, "period_s") > 0.5 * longest)
        );
        assert_eq!(told.last().unwrap()["partial"], true);
        // One CPU received; an account in ticks may be off by a few.
        match end["softirq"]["busy_ns"]["0"].as_f64() {
            Some(busy_ns) => assert!(busy_ns < 1e9 * number(&end["total"], "period_s") + 5e7, "{end}"),
            None => assert!(end["softirq"]["not_available"].as_str().unwrap().contains("too few"), "{end}"),
        }
    }
}

fn signals() {
    let lab = lab(1);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let live = Live::start(&lab.dut, &["drop", "dut0", "-i", "100"]);
        send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], FEW);
        thread::sleep(Duration::from_millis(20));
        live.signal(signal);
        let began = Instant::now();
        let ended = live.wait();
        assert!(began.elapsed() < patience(2), "{:?}", began.elapsed());
        assert_eq!(ended.status.code(), Some(0), "{signal}");
        let summary: Vec<_> = ended.stdout.lines().filter(|line| line.starts_with("Summary ")).collect();
        assert_eq!(summary.len(), 1, "{}", ended.stdout);
        assert!(summary[0].contains(" rx/s ") && summary[0].contains(" s, partial"), "{}", ended.stdout);
        assert_eq!(ended.total("Packets received"), Some(FEW), "{signal}: {}", ended.stdout);
        assert_eq!(programs(&lab.dut), 0);
    }
}

fn toggle() {
    let lab = lab(1);
    let live = Live::start(&lab.dut, &["drop", "dut0", "-i", "0.2"]);
    eventually("a terse line", 5, || live.lines("Summary ") > 0);
    assert_eq!(live.lines("  receive "), 0);
    live.signal(Signal::SIGQUIT);
    eventually("extended lines", 5, || live.lines("  receive ") > 0);
    live.signal(Signal::SIGQUIT);
    thread::sleep(Duration::from_millis(100));
    let (extended, terse) = (live.lines("  receive "), live.lines("Summary "));
    eventually("more lines", 5, || live.lines("Summary ") > terse + 1);
    assert_eq!(live.lines("  receive "), extended, "terse again");
    live.end();
}

fn ignored_hangup() {
    let lab = lab(1);
    let mut live = Live::spawn(&lab.dut, without_hangups(command(&["drop", "dut0", "-i", "0.2"])));
    live.await_start();
    live.signal(Signal::SIGHUP);
    let lines = live.lines("Summary ");
    eventually("it goes on", 5, || live.lines("Summary ") > lines + 2);
    live.end();
}

/// As `nohup` starts it.
#[expect(unsafe_code, reason = "what runs between fork and exec must be fit for it")]
fn without_hangups(mut command: Command) -> Command {
    // SAFETY: signal(2) may be called there, allocates nothing, and installs no handler of this process.
    unsafe { command.pre_exec(|| Ok(signal(Signal::SIGHUP, SigHandler::SigIgn).map(drop)?)) };
    command
}

fn any_moment() {
    let lab = lab(1);
    for after in (0..700).step_by(35).map(Duration::from_millis) {
        let live = Live::spawn(&lab.dut, command(&["drop", "dut0"]));
        thread::sleep(after);
        live.signal(Signal::SIGINT);
        let ended = live.wait();
        let killed = ended.status.signal() == Some(Signal::SIGINT as i32);
        assert!(killed || ended.status.success(), "after {after:?}: {:?}, {}", ended.status, ended.stderr);
        assert_eq!(programs(&lab.dut), 0, "after {after:?}");
    }
}

fn sigkill() {
    let lab = lab(1);
    let mut live = Live::start(&lab.dut, &["drop", "dut0"]);
    assert_eq!(programs(&lab.dut), 1);
    live.child.kill().unwrap();
    live.child.wait().unwrap();
    eventually("the program is gone", 5, || programs(&lab.dut) == 0);
}

fn immediate_exit() {
    let lab = lab(1);
    for action in ["drop", "pass", "tx"] {
        let mut command = command(&[action, "dut0", "-vv"]);
        command.env("XDP_SAMPLE_IMMEDIATE_EXIT", "1");
        let ended = Live::spawn(&lab.dut, command).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        assert!(ended.stdout.starts_with("  Duration            : 0.") && ended.stdout.lines().count() == 1);
        assert!(ended.stderr.contains(&format!("program {action}:")), "{}", ended.stderr);
        assert!(ended.stderr.contains("packets on dut0 (ifindex "), "{}", ended.stderr);
        assert!(ended.stderr.contains("; driver veth) in native mode"), "{}", ended.stderr);
        assert_eq!(programs(&lab.dut), 0);
    }
}

fn duration_and_count() {
    let lab = lab(1);
    let ended = Live::start(&lab.dut, &["pass", "dut0", "--duration", "0.5", "--json"]).wait();
    assert_eq!(ended.status.code(), Some(0));
    let end = ended.events("end").remove(0);
    assert_eq!(end["ended_by"], "duration");
    let period = end["total"]["period_s"].as_f64().unwrap();
    assert!((0.5..1.5).contains(&period), "{period}");
    let live = Live::start(&lab.dut, &["drop", "dut0", "--count", "100000", "--json"]);
    let generator = generator(&lab);
    let ended = live.wait();
    generator.stop().unwrap();
    let end = ended.events("end").remove(0);
    assert_eq!(end["ended_by"], "count");
    assert!(end["total"]["received"]["packets"].as_u64().unwrap() >= 100_000, "{end}");
}

fn json_and_record() {
    let lab = lab(2);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("live.json");
    let path = file.to_str().unwrap();
    let live = Live::start(&lab.dut, &["tx", "dut0", "--json", "--record", path, "-i", "0.3"]);
    let _sink = sink(&lab);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], FEW);
    eventually("two lines", 5, || live.lines("interval") > 1);
    let ended = live.end();
    let record = Record::read(&file).unwrap();
    assert!(record.stopped.is_some() && record.cases.is_empty());
    assert_eq!(record.live_runs.len(), 1);
    let run = &record.live_runs[0];
    let same = |told: &Value, recorded: Value, kind: &str| {
        let mut recorded = recorded;
        recorded["schema"] = "xdplab.live/1".into();
        recorded["event"] = kind.into();
        assert_eq!(*told, recorded);
    };
    same(&ended.events("start")[0], serde_json::to_value(&run.start).unwrap(), "start");
    same(&ended.events("end")[0], serde_json::to_value(&run.end).unwrap(), "end");
    let told = ended.events("interval");
    assert_eq!(told.len(), run.intervals.len());
    for (told, recorded) in told.iter().zip(&run.intervals) {
        same(told, serde_json::to_value(recorded).unwrap(), "interval");
    }
    let attached = run.start.attached.as_ref().unwrap();
    assert_eq!((run.start.command.as_str(), attached.program.as_str()), ("tx", "tx:swap-macs"));
    assert_eq!((attached.rx_queues, attached.xdp_mode), (2, XdpMode::Native));
    assert_eq!(attached.channels_before, attached.channels_after);
    let end = run.end.as_ref().unwrap();
    assert_eq!(end.total.received.as_ref().unwrap().packets, FEW);
    assert_eq!(end.interface.known().unwrap().rx_packets, FEW);
    let nowhere = folder.path().join("nowhere").join("live.json");
    let ended = Live::spawn(&lab.dut, command(&["drop", "dut0", "--record", nowhere.to_str().unwrap()])).wait();
    ended.refused(&["write the record", "ENOENT", "--record"]);
    assert_eq!(programs(&lab.dut), 0);
}

fn closed_output() {
    let lab = lab(1);
    let mut command = command(&["drop", "dut0", "-i", "0.2"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = lab.dut.netns.run(|| Ok(command.spawn().unwrap())).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("Summary "), "{line}");
    eventually("it ends", 10, || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn interface_gone() {
    let lab = lab(1);
    let live = Live::start(&lab.dut, &["drop", "dut0", "-i", "0.2"]);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], FEW);
    settles_at("received", FEW, || rx_packets(&lab.dut));
    lab.dut.netns.rtnl().unwrap().delete_link(lab.dut.ifindex).unwrap();
    let ended = live.wait();
    assert_eq!(ended.status.code(), Some(2));
    assert_eq!(ended.total("Packets received"), Some(FEW), "{}", ended.stdout);
    assert!(ended.stderr.lines().last().unwrap().contains("the interface is gone"), "{}", ended.stderr);
}

fn occupied() {
    let lab = lab(1);
    let _link = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap().unwrap();
    let id = |port: &Port| port.netns.rtnl().unwrap().link_by_index(port.ifindex).unwrap().xdp[0].prog_id;
    let there = id(&lab.dut);
    for mode in ["native", "skb"] {
        let ended = Live::spawn(&lab.dut, command(&["drop", "dut0", "--force", "-m", mode])).wait();
        ended.refused(&["a program is there already", &format!("id {there}")]);
        assert_eq!(id(&lab.dut), there);
    }
}

fn in_use() {
    let lab = lab(1);
    let mut over_ssh = command(&["drop", "dut0"]);
    over_ssh.env("SSH_CONNECTION", format!("{} 50000 {} 22", lab.generator.ipv4, lab.dut.ipv4));
    let ended = Live::spawn(&lab.dut, over_ssh).wait();
    ended.refused(&["dut0", "SSH session", "--force"]);
    lab.dut
        .netns
        .run(|| {
            add_default_route(lab.dut.ifindex);
            Ok(())
        })
        .unwrap();
    let ended = Live::spawn(&lab.dut, command(&["drop", "dut0"])).wait();
    ended.refused(&["dut0", "default route", "--force"]);
    assert_eq!(programs(&lab.dut), 0);
    Live::start(&lab.dut, &["drop", "dut0", "--force"]).end();
}

/// `ip route add default dev …`
pub(crate) fn add_default_route(ifindex: u32) {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet;
    route.header.table = 254; // RT_TABLE_MAIN, include/uapi/linux/rtnetlink.h
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = RouteScope::Link;
    route.header.kind = RouteType::Unicast;
    route.attributes.push(RouteAttribute::Oif(ifindex));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewRoute(route));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE).unwrap();
    socket.bind_auto().unwrap();
    socket.send(&bytes, 0).unwrap();
    let (answer, _) = socket.recv_from_full().unwrap();
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).unwrap();
    assert!(matches!(&answer.payload, NetlinkPayload::Error(error) if error.code.is_none()), "{answer:?}");
}

fn no_interface() {
    let lab = lab(1);
    let ended = Live::spawn(&lab.dut, command(&["drop", "dut1"])).wait();
    ended.refused(&["dut1", "ENODEV", "there are here: lo, dut0"]);
}
