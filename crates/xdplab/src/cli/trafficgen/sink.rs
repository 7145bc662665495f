//! `xdplab trafficgen sink`: the receiving side.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::elsewhere::{Elsewhere, Lacks, Refused};
use super::traffic::CpuList;
use crate::cli::{Ending, live, output};
use crate::error::{Error, Result};
use crate::generator::socket::{DEFAULT_PORT, Session, Sink, SinkSpec};
use crate::host::Environment;
use crate::live::{
    Clock as _, Counters, End, EndedBy, Event, Interval, LiveRun, ReceivedSession, Signals, SinkStart, Start,
    WallClock, Woken, end_text,
};
use crate::record::Record;
use crate::topology::NetNs;

/// How often it is looked whether a session has ended.
const STEP: Duration = Duration::from_millis(20);

/// Options of `sink`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Port to wait at; 0 is any that is free
    #[arg(short, long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Address to wait at [default: all, IPv6 and IPv4]
    #[arg(short = 'B', long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// CPUs that receiving threads stay on, in turn, such as 0,2-3 [default: any]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuList>,
    /// End when so many senders have been served
    #[arg(short = 'n', long, visible_alias = "count", value_name = "SENDERS", value_parser = clap::value_parser!(u64).range(1..))]
    sessions: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = live::seconds)]
    duration: Option<Duration>,
    /// Tell each stream too
    #[arg(short, long)]
    extended: bool,
    /// Tell everything in JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Write the record to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    elsewhere: Elsewhere<Self>,
}

impl Lacks for Options {
    const REFUSED: &[Refused] = &[
        ("rate", SENDER),
        ("burst", SENDER),
        ("size", SENDER),
        ("pkt-size", SENDER),
        ("batch-size", SENDER),
        ("bytes", SENDER),
        ("hop-limit", SENDER),
        ("ttl", SENDER),
        ("vlan", SENDER),
        ("dyn-ports", SENDER),
        ("src-ports", SENDER),
        ("dst-addrs", SENDER),
        ("src-addrs", SENDER),
        ("pcap", SENDER),
        ("streams", "a sink takes as many as come"),
        ("threads", "each stream that comes has a thread of its own, on the CPUs of --cpus"),
        ("queue", "sockets receive from all queues"),
        ("interval", "a sink tells of each sender when it has ended; the sender tells its intervals"),
    ];
}

/// Why what is sent is no matter of a sink.
const SENDER: &str = "a sink sends nothing: give it to the sender";

pub(crate) fn run(options: &Options) -> Result<Ending> {
    options.elsewhere.refuse()?;
    let mut signals = Signals::keep()?;
    let sink = options.start()?;
    let mut log = Log::start(options, sink.address())?;
    output::note(&format!("Waiting for senders at {}", sink.address()));
    let ended_by = log.serve(&sink, &mut signals)?;
    sink.stop().into_iter().try_for_each(|session| log.tell(session).map(drop))?;
    log.end(ended_by)?;
    Ok(Ending::Done)
}

/// What is told and recorded of the senders.
struct Log<'a> {
    options: &'a Options,
    begun: Instant,
    wall: WallClock,
    served: u64,
    record: Option<(Record, LiveRun)>,
}

impl<'a> Log<'a> {
    /// Writes the record for the first time, so that a file that can't be written is known before anybody comes.
    fn start(options: &'a Options, address: SocketAddr) -> Result<Self> {
        let begun = Instant::now();
        let wall = WallClock::start(begun);
        let record = options.record.is_some().then(|| {
            let sink = Some(SinkStart { address, cpus: options.cpus() });
            let start = Start { sink, started: wall.at(begun), ..Start::of("trafficgen sink") };
            let record = Record::begin(Environment::read(), start.argv.clone());
            (record, LiveRun { start, intervals: Vec::new(), sessions: Vec::new(), end: None })
        });
        let mut log = Self { options, begun, wall, served: 0, record };
        log.write()?;
        Ok(log)
    }

    /// Tells of senders until something ends it.
    fn serve(&mut self, sink: &Sink, signals: &mut Signals) -> Result<EndedBy> {
        let Options { duration, sessions, .. } = *self.options;
        let end = duration.and_then(|duration| self.begun.checked_add(duration));
        loop {
            while let Some(session) = sink.ended(Duration::ZERO) {
                if self.tell(session)?.is_break() {
                    return Ok(EndedBy::OutputClosed);
                }
            }
            let now = Instant::now();
            if sessions.is_some_and(|sessions| self.served >= sessions) {
                return Ok(EndedBy::Count);
            }
            if end.is_some_and(|end| now >= end) {
                return Ok(EndedBy::Duration);
            }
            if live::immediate_exit() {
                return Ok(EndedBy::ImmediateExit);
            }
            if let Woken::End(signal) = signals.wait(end.map_or(now + STEP, |end| end.min(now + STEP)))? {
                return Ok(EndedBy::Signal(signal.into()));
            }
        }
    }

    fn tell(&mut self, Session { from, bare, report }: Session) -> Result<ControlFlow<()>> {
        self.served += 1;
        let session = ReceivedSession { from, bare, received: report.into() };
        let told = output::tell(&self.options.text(&session)?)?;
        if let Some((_, run)) = &mut self.record {
            run.sessions.push(session);
        }
        self.write()?;
        Ok(told)
    }

    fn end(&mut self, ended_by: EndedBy) -> Result<()> {
        if let Some((record, run)) = &mut self.record {
            let (first, last) = (Counters::empty(self.begun), Counters::empty(Instant::now()));
            run.end = Some(End::new(Interval::between(&first, &last, false, &self.wall), ended_by));
            record.stop();
        }
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        let (Some(path), Some((record, run))) = (&self.options.record, &mut self.record) else { return Ok(()) };
        record.live_runs = vec![run.clone()];
        record.write(path)
    }
}

impl Options {
    fn start(&self) -> Result<Sink> {
        let netns = NetNs::current()?;
        let at = |address| {
            let spec = SinkSpec { address: SocketAddr::new(address, self.port), cpus: self.cpus() };
            Sink::start(&netns, &spec)
        };
        match self.address {
            Some(address) => at(address),
            // The second where the kernel has no IPv6.
            None => at(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.errno() {
                Some(nix::errno::Errno::EAFNOSUPPORT) => at(Ipv4Addr::UNSPECIFIED.into()),
                _ => Err(error),
            }),
        }
    }

    fn cpus(&self) -> Vec<usize> {
        self.cpus.as_ref().map_or_else(Vec::new, |CpuList(cpus)| cpus.clone())
    }

    fn text(&self, session: &ReceivedSession) -> Result<String> {
        if self.json {
            let line = Event::Session(session).json_line();
            return line.map_err(|error| Error::invalid("write an event as JSON", error.to_string()));
        }
        let ReceivedSession { from, bare, received } = session;
        let bare = if *bare { ", a bare stream" } else { "" };
        let told = received.as_ref().map(|report| end_text("received", report, self.extended));
        let told = told.into_result().unwrap_or_else(|why| format!("  not received ({why})\n"));
        Ok(format!("From {from}{bare}\n{told}"))
    }
}
