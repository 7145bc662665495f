//! What a live command tells in JSON, one object a line, and what the record keeps of it.

use serde::{Deserialize, Serialize};

use super::{Account, CpuCost, Interval, Sending, SendingEnd, SocketStart, SoftirqTime, TcpStart};
use crate::generator::pktgen::{PktgenResult, PktgenSpec};
use crate::generator::socket::{EndReport, Outcome};
use crate::netlink::{Channels, XdpFeature, XdpMode};
use crate::reading::Reading;

/// The schema of the lines.
pub const SCHEMA: &str = "xdplab.live/1";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// The program is attached and counts.
    Start(&'a Start),
    /// An interval is over.
    Interval(&'a Interval),
    /// The last line.
    End(&'a End),
    /// A sink has received what one sender sent, or could not.
    Session(&'a ReceivedSession),
}

/// What a sink received from one sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceivedSession {
    /// Who sent it.
    pub from: std::net::SocketAddr,
    /// A stream without a session: of `trafficgen tcp`, or of any other sender.
    pub bare: bool,
    /// What came.
    pub received: Reading<EndReport>,
}

/// A server that receives what `trafficgen socket` and `tcp` send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkStart {
    /// Where it waits.
    pub address: std::net::SocketAddr,
    /// The CPUs that receiving threads stay on, in turn; none where they are not kept on any.
    pub cpus: Vec<usize>,
}

/// What was attached where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The command, e.g. `drop`.
    pub command: String,
    /// Version of the tool.
    pub version: String,
    /// How it was called.
    pub argv: Vec<String>,
    /// The program and its interface; absent where the command attaches none.
    #[serde(flatten)]
    pub attached: Option<Attached>,
    /// Where packets are redirected to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// What the user should know about what was found, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// AF_XDP sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xsk: Option<XskStart>,
    /// What is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sending: Option<Sending>,
    /// Streams of plain sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<SocketStart>,
    /// A TCP flow whose segments are made in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpStart>,
    /// What the kernel's pktgen was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pktgen: Option<PktgenSpec>,
    /// A server that receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink: Option<SinkStart>,
    /// Wall clock of the first reading, RFC 3339.
    pub started: String,
}

/// Our program on an interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    /// The interface; the first of them if the program is attached to several, which are the targets then.
    pub interface: String,
    /// Its number in its network namespace.
    pub ifindex: u32,
    /// Its driver.
    pub driver: Reading<String>,
    /// The mode, as the kernel says it after attaching.
    pub xdp_mode: XdpMode,
    /// The program, e.g. `drop:no-touch`.
    pub program: String,
    /// The kernel's id of the program.
    pub program_id: u32,
    /// Whether the program takes frames of several buffers (kernel 5.18).
    pub frags: bool,
    /// RX queues that are counted: all that the interface was made with.
    pub rx_queues: u32,
    /// Channels in use before the program was attached.
    pub channels_before: Reading<Channels>,
    /// The same afterwards; some drivers take queues away for XDP.
    pub channels_after: Reading<Channels>,
}

/// How AF_XDP sockets were set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XskStart {
    /// The queue.
    pub queue: u32,
    /// Sockets on it.
    pub sockets: usize,
    /// `copy` or `zero-copy`, as the kernel says it after the bind.
    pub mode: String,
    /// Bytes a frame of the umem.
    pub frame_size: u32,
    /// Whether the umem is on huge pages.
    pub huge_pages: bool,
    /// Most packets handled at once.
    pub batch: u32,
}

/// An interface that packets are redirected to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The interface.
    pub interface: String,
    /// Its number in its network namespace.
    pub ifindex: u32,
    /// Its driver.
    pub driver: Reading<String>,
    /// What XDP can do there, once everything was attached.
    pub xdp_features: Reading<Vec<XdpFeature>>,
    /// Whether a program of ours that passes every packet was attached to it, which many drivers need before they transmit
    /// redirected frames.
    pub passes: bool,
}

impl Start {
    /// The beginning of a command of this name.
    #[must_use]
    pub fn of(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            argv: std::env::args().collect(),
            attached: None,
            targets: Vec::new(),
            notes: Vec::new(),
            xsk: None,
            sending: None,
            socket: None,
            tcp: None,
            pktgen: None,
            sink: None,
            started: String::new(),
        }
    }
}

/// How it ended, and the totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// What ended it.
    pub ended_by: EndedBy,
    /// The last reading less the first.
    pub total: Interval,
    /// Time in softirq for these packets; absent where none came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub softirq: Option<Reading<SoftirqTime>>,
    /// What the interface counted over about the same time: a second opinion. Not every driver counts what XDP takes.
    pub interface: Reading<InterfaceCounted>,
    /// Time of the CPUs that packets went through beside those that received them, and packets that each handled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<Reading<CpuCost>>,
    /// What the rate was limited by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limiter: Option<Reading<String>>,
    /// Where all packets went; read after the program had been detached and what was on its way had arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ledger: Vec<Reading<Account>>,
    /// What can be said of a sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sending: Option<SendingEnd>,
    /// What streams of plain sockets did at both ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<Outcome>,
    /// What pktgen said of each of its threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pktgen: Option<Reading<Vec<PktgenResult>>>,
}

impl End {
    /// An end with nothing but the total.
    #[must_use]
    pub fn new(total: Interval, ended_by: EndedBy) -> Self {
        Self {
            ended_by,
            total,
            softirq: None,
            interface: Reading::not_available("not read"),
            cpus: Vec::new(),
            limiter: None,
            ledger: Vec::new(),
            sending: None,
            socket: None,
            pktgen: None,
        }
    }
}

/// The interface's own counters (`IFLA_STATS64`), last less first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceCounted {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets transmitted, those sent back by `XDP_TX` among them where the driver counts them.
    pub tx_packets: u64,
}

/// What ended a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// `--duration` was over.
    Duration,
    /// `--count` was reached.
    Count,
    /// A signal, by its name.
    Signal(String),
    /// The peer has closed the connection (FIN).
    PeerClosed,
    /// The peer has reset the connection (RST).
    PeerReset,
    /// Nobody reads the output any more.
    OutputClosed,
    /// `XDP_SAMPLE_IMMEDIATE_EXIT=1`.
    ImmediateExit,
    /// It could not go on, for this reason.
    Failed(String),
}

/// A live command in the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveRun {
    /// What was attached where.
    pub start: Start,
    /// The intervals, in order; together they are the total.
    pub intervals: Vec<Interval>,
    /// What a sink has received, sender by sender.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<ReceivedSession>,
    /// The end; absent while it goes on.
    pub end: Option<End>,
}

impl Event<'_> {
    /// The line.
    ///
    /// # Errors
    /// Never, with the numbers that these events hold.
    pub fn json_line(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Line<'a> {
            schema: &'a str,
            #[serde(flatten)]
            event: &'a Event<'a>,
        }
        Ok(serde_json::to_string(&Line { schema: SCHEMA, event: self })? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::interval::WallClock;
    use super::super::interval::tests::counters;
    use super::super::softirq::BusyCpu;
    use super::*;
    use crate::units::Nanos;

    #[test]
    fn a_line_is_one_object_with_its_schema_and_the_names_have_units() {
        let start = Instant::now();
        let first = counters(start, 0.0, &[], &[]);
        let last = counters(start, 2.0, &[(0, 1, 4_000, 1)], &[("XDP_ABORTED", 1, 1)]);
        let mut total = Interval::between(&first, &last, true, &WallClock::start(start));
        (total.start, total.stop) = ("2026-01-02T03:04:05.000000Z".into(), "2026-01-02T03:04:07.000000Z".into());
        insta::assert_snapshot!(Event::Interval(&total).json_line().unwrap(), @r#"
        {"schema":"xdplab.live/1","event":"interval","start":"2026-01-02T03:04:05.000000Z","stop":"2026-01-02T03:04:07.000000Z","period_s":2.0,"partial":true,"received":{"period_s":2.0,"packets":4000,"aborted":1,"pps":2000.0,"ns_per_packet":500000.0,"rx_queues":{"0":{"packets":4000,"aborted":1}},"cpus":{"1":{"packets":4000,"aborted":1}}},"exceptions":{"period_s":2.0,"packets":1,"verdicts":{"XDP_ABORTED":{"1":1}}}}
        "#);
        let end = End {
            softirq: Some(Reading::Known(SoftirqTime {
                busy_ns: [(1, 320_000_000)].into(),
                busy_ns_per_packet: Nanos(80_000.0),
                cpus: [(1, BusyCpu { ns_per_packet: Some(Nanos(80_000.0)), softirq: 0.16, idle: 0.5 })].into(),
            })),
            interface: Reading::not_available("gone"),
            ..End::new(total, EndedBy::Signal("SIGINT".into()))
        };
        insta::assert_snapshot!(Event::End(&end).json_line().unwrap(), @r#"
        {"schema":"xdplab.live/1","event":"end","ended_by":{"signal":"SIGINT"},"total":{"start":"2026-01-02T03:04:05.000000Z","stop":"2026-01-02T03:04:07.000000Z","period_s":2.0,"partial":true,"received":{"period_s":2.0,"packets":4000,"aborted":1,"pps":2000.0,"ns_per_packet":500000.0,"rx_queues":{"0":{"packets":4000,"aborted":1}},"cpus":{"1":{"packets":4000,"aborted":1}}},"exceptions":{"period_s":2.0,"packets":1,"verdicts":{"XDP_ABORTED":{"1":1}}}},"softirq":{"busy_ns":{"1":320000000},"busy_ns_per_packet":80000.0,"cpus":{"1":{"ns_per_packet":80000.0,"softirq":0.16,"idle":0.5}}},"interface":{"not_available":"gone"}}
        "#);
        let json = serde_json::to_string(&end).unwrap();
        assert_eq!(serde_json::from_str::<End>(&json).unwrap(), end);
    }
}
