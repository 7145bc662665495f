//! A live command.

use super::super::table::{Cell, Column, Table};
use super::charts::{Accounts, Chart, Line, TimeLine};
use super::{Finding, Kind, plain};
use crate::live::{Account, End, EndedBy, Interval, LiveRun, Part, ReceivedSession, SinkStart};
use crate::reading::Reading;
use crate::units::PacketsPerSec;

impl Finding {
    /// What is told of a live command.
    #[must_use]
    pub fn of_live(run: &LiveRun) -> Self {
        Self {
            kind: Kind::Live,
            title: plain(&title(run)),
            set_up: set_up(run).iter().map(|line| plain(line)).collect(),
            table: if run.start.sink.is_some() { sessions(run) } else { table(run) },
            notes: notes(run).iter().map(|note| plain(note)).collect(),
            guards: Vec::new(),
            charts: charts(run),
        }
    }
}

fn title(run: &LiveRun) -> String {
    match &run.start.attached {
        Some(attached) if attached.program == run.start.command => {
            format!("{} on {}", attached.program, attached.interface)
        }
        Some(attached) => format!("{}: {} on {}", run.start.command, attached.program, attached.interface),
        None => run.start.command.clone(),
    }
}

fn set_up(run: &LiveRun) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(attached) = &run.start.attached {
        let frags = if attached.frags { "with frags" } else { "without frags" };
        lines.push(format!(
            "{} (ifindex {}), driver {}, {} XDP, program {} {frags}, {} RX queues counted",
            attached.interface,
            attached.ifindex,
            attached.driver,
            attached.xdp_mode,
            attached.program,
            attached.rx_queues
        ));
    }
    lines.extend(run.start.targets.iter().map(|target| {
        let passes = if target.passes { "; a program that passes every packet was attached there too" } else { "" };
        format!("to {} (ifindex {}), driver {}{passes}", target.interface, target.ifindex, target.driver)
    }));
    if let Some(SinkStart { address, cpus }) = &run.start.sink {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        let cpus = if cpus.is_empty() { "any CPU".into() } else { format!("CPU {}", cpus.join(",")) };
        lines.push(format!("waits at {address}, receives on {cpus}"));
    }
    if let Some(xsk) = &run.start.xsk {
        let pages = if xsk.huge_pages { " on huge pages" } else { "" };
        lines.push(format!(
            "{} AF_XDP sockets on queue {}, {}, frames of {} bytes{pages}, batches of {}",
            xsk.sockets, xsk.queue, xsk.mode, xsk.frame_size, xsk.batch
        ));
    }
    lines
}

/// What was counted at one stage of the packets' way.
struct Stage {
    name: String,
    packets: u64,
    period_s: f64,
}

impl Stage {
    fn new(name: impl Into<String>, packets: u64, period_s: f64) -> Self {
        Self { name: name.into(), packets, period_s }
    }

    fn rate(&self) -> Option<PacketsPerSec> {
        (self.period_s > 0.0).then(|| PacketsPerSec(self.packets as f64 / self.period_s))
    }
}

fn stages(interval: &Interval) -> Vec<Stage> {
    let mut stages = Vec::new();
    if let Some(received) = &interval.received {
        stages.push(Stage::new("received", received.packets, received.period_s));
    }
    if let Some(Reading::Known(redirects)) = &interval.redirects {
        stages.push(Stage::new("redirected", redirects.packets, redirects.period_s));
    }
    if let Some(Reading::Known(kthreads)) = interval.cpumap.as_ref().map(|cpumap| &cpumap.kthreads) {
        stages.extend(kthreads.cpus.iter().map(|(cpu, counts)| {
            Stage::new(format!("taken from the queue of CPU {cpu}"), counts.processed, kthreads.period_s)
        }));
    }
    if let Some(Reading::Known(xmit)) = &interval.xmit {
        stages.push(Stage::new("transmitted", xmit.total.sent, xmit.period_s));
        if xmit.total.drops > 0 {
            stages.push(Stage::new("dropped at transmit", xmit.total.drops, xmit.period_s));
        }
    }
    stages
}

fn table(run: &LiveRun) -> Table {
    let columns = vec![
        Column::words("stage", "variant"),
        Column::numbers("ns/packet", "ns"),
        Column::numbers("Mpps", "mpps"),
        Column::numbers("packets", "packets"),
        Column::numbers("seconds", "seconds"),
    ];
    let row = |stage: Stage| {
        let rate = stage.rate();
        vec![
            Cell::text(&stage.name),
            rate.and_then(PacketsPerSec::to_nanos).map_or(Cell::Missing, |ns| Cell::number(ns.0, 2)),
            rate.map_or(Cell::Missing, |rate| Cell::number(rate.mpps(), 3)),
            Cell::Count(stage.packets),
            Cell::number(stage.period_s, 1),
        ]
    };
    let rows = run.end.iter().flat_map(|end| stages(&end.total)).map(row).collect();
    Table { columns, rows }
}

/// What a sink received of each sender.
fn sessions(run: &LiveRun) -> Table {
    let columns = vec![
        Column::words("from", "from"),
        Column::numbers("Mbit/s", "mbit_per_s"),
        Column::numbers("CPU ns/byte", "cpu_ns_per_byte"),
        Column::numbers("bytes", "bytes"),
        Column::numbers("datagrams", "datagrams"),
        Column::numbers("seconds", "seconds"),
    ];
    let row = |ReceivedSession { from, received, .. }: &ReceivedSession| {
        let from = Cell::text(from.to_string());
        let Some(report) = received.known() else {
            return [vec![from], vec![Cell::Missing; 5]].concat();
        };
        let mbits = (report.period_s > 0.0).then(|| report.bytes as f64 * 8.0 / report.period_s / 1e6);
        vec![
            from,
            mbits.map_or(Cell::Missing, |mbits| Cell::number(mbits, 1)),
            report.cpu_ns_per_byte.map_or(Cell::Missing, |ns| Cell::number(ns, 4)),
            Cell::Count(report.bytes),
            if report.datagrams > 0 { Cell::Count(report.datagrams) } else { Cell::Empty },
            Cell::number(report.period_s, 3),
        ]
    };
    Table { columns, rows: run.sessions.iter().map(row).collect() }.without_empty_columns()
}

fn notes(run: &LiveRun) -> Vec<String> {
    let mut notes = run.start.notes.clone();
    let Some(End { ended_by, softirq, cpus, limiter, ledger, .. }) = &run.end else {
        notes.push("the record ends before the command did: no total".into());
        return notes;
    };
    let why = |session: &ReceivedSession| match &session.received {
        Reading::Known(_) => None,
        Reading::NotAvailable { why } => Some(format!("from {}: not received ({why})", session.from)),
    };
    notes.extend(run.sessions.iter().filter_map(why));
    if run.start.sink.is_none() {
        let meaning =
            "ns/packet is time over packets: the cost of a packet only where the receiver is what limits the rate";
        notes.push(meaning.into());
    }
    notes.push(match ended_by {
        EndedBy::Duration => "ended after its --duration".into(),
        EndedBy::Count => "ended after its --count".into(),
        EndedBy::Signal(name) => format!("ended by {name}"),
        EndedBy::PeerClosed => "ended by the peer, who closed the connection (FIN)".into(),
        EndedBy::PeerReset => "ended by the peer, who reset the connection (RST)".into(),
        EndedBy::OutputClosed => "ended because nobody read its output any more".into(),
        EndedBy::ImmediateExit => "ended at once (XDP_SAMPLE_IMMEDIATE_EXIT)".into(),
        EndedBy::Failed(why) => format!("ended by a failure: {why}"),
    });
    notes.extend(run.end.as_ref().and_then(goodput));
    notes.extend(softirq.as_ref().map(|softirq| match softirq {
        Reading::Known(time) => {
            format!("softirq time of the receiving CPUs: {:.2} ns per packet", time.busy_ns_per_packet.0)
        }
        Reading::NotAvailable { why } => format!("softirq time: not available ({why})"),
    }));
    notes.extend(cpus.iter().map(|cost| match cost {
        Reading::Known(cost) => {
            let ns = cost.ns_per_packet.map_or("no packet".into(), |ns| format!("{:.2} ns per packet", ns.0));
            format!("run time of {}: {ns}, {:.0} % busy", cost.role, cost.share * 100.0)
        }
        Reading::NotAvailable { why } => format!("run time of another CPU: not available ({why})"),
    }));
    notes.extend(limiter.as_ref().map(|limiter| format!("limited by {limiter}")));
    notes.extend(ledger.iter().filter_map(|account| match account {
        Reading::NotAvailable { why } => Some(format!("ledger: not available ({why})")),
        Reading::Known(_) => None,
    }));
    notes
}

/// What arrived of streams, and what was sent again.
fn goodput(end: &End) -> Option<String> {
    let mbits = |bps: f64| format!("{:.1} Mbit/s of payload", bps / 1e6);
    if let Some(outcome) = &end.socket {
        let cpu = |ns: Option<f64>| ns.map_or_else(|| "-".into(), |ns| format!("{ns:.4}"));
        let received = outcome.received.known().and_then(|received| received.cpu_ns_per_byte);
        return Some(format!(
            "goodput: {}; {} retransmits; CPU ns per byte: {} sent, {} received",
            outcome.goodput_bps.clone().map(mbits),
            outcome.retransmits.unwrap_or(0),
            cpu(outcome.sent.cpu_ns_per_byte),
            cpu(received)
        ));
    }
    let tcp = end.total.tcp?;
    Some(format!(
        "goodput: {}; {} retransmits",
        tcp.goodput_bps.map_or_else(|| "-".into(), mbits),
        tcp.counts.retransmits
    ))
}

fn charts(run: &LiveRun) -> Vec<Chart> {
    let mut lines: Vec<Line> = Vec::new();
    let mut at = 0.0;
    for interval in &run.intervals {
        for stage in stages(interval) {
            let Some(ns) = stage.rate().and_then(PacketsPerSec::to_nanos) else { continue };
            let point = [at + interval.period_s / 2.0, ns.0];
            match lines.iter_mut().find(|line| line.name == stage.name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name: stage.name, color: 2 + lines.len(), points: vec![point] }),
            }
        }
        at += interval.period_s;
    }
    let time_line = Chart::TimeLine(TimeLine { unit: "s", lines, rounds: Vec::new(), tainted: Vec::new() });
    let ledger = run.end.as_ref().map_or(&[][..], |end| &end.ledger);
    let accounts = ledger.iter().map(|account| account.clone().map(clean)).collect();
    let accounts = Chart::Accounts(Accounts { title: "Packets", accounts });
    let mut charts = Vec::new();
    charts.extend((run.intervals.len() > 1).then_some(time_line));
    charts.extend((!ledger.is_empty()).then_some(accounts));
    charts
}

/// An account of a record, without what could move a terminal's cursor.
fn clean(account: Account) -> Account {
    let part = |part: Part| Part { to: plain(&part.to), packets: part.packets };
    Account { of: plain(&account.of), parts: account.parts.into_iter().map(part).collect(), ..account }
}
