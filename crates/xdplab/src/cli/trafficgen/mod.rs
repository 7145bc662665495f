//! `xdplab trafficgen`: the commands of `xdp-trafficgen`, with their options and lines, and some more.

mod elsewhere;
mod pktgen;
mod probe;
mod quantity;
mod sink;
mod socket;
mod tcp;
mod traffic;
mod udp;
mod xsk_udp;

use std::time::Duration;

use clap::{ArgAction, Args, Subcommand};

use super::live::{self, AbortedPackets, Teller};
use super::{Ending, output};
use crate::error::Result;
use crate::live::{EndedBy, Lines, Sender, Session, Signals, Start};

/// What to send by.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Send UDP packets made in the kernel and redirected out of an interface
    Udp(Box<udp::Options>),
    /// Send UDP packets from AF_XDP sockets
    XskUdp(Box<xsk_udp::Options>),
    /// Send a TCP flow whose segments are made in the kernel
    Tcp(Box<tcp::Options>),
    /// Send by the kernel's pktgen module
    Pktgen(Box<pktgen::Options>),
    /// Send TCP streams or UDP datagrams from plain sockets to a sink, and tell goodput and what each byte costs
    Socket(Box<socket::Options>),
    /// Receive what socket and tcp send, and tell what came
    Sink(sink::Options),
    /// Say whether this kernel and an interface can do what udp needs
    Probe(probe::Options),
}

/// Why no queue is chosen for frames that are redirected.
const QUEUE_BY_CPU: &str = "the driver sends redirected frames to the queue of the CPU that they come from: --cpus";

/// Options of every command that sends.
#[derive(Args, Debug)]
pub(crate) struct Reporting {
    /// Start in extended output mode (Ctrl-\ toggles)
    #[arg(short, long)]
    pub(crate) extended: bool,
    /// Tell everything in JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the record to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<std::path::PathBuf>,
    /// Go on although nothing arrives or counters disagree
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Take an interface that carries the default route or this SSH session
    #[arg(long)]
    pub(crate) force: bool,
    /// Say more about what is set up
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Reporting {
    /// The same as live commands have it. Packets are counted by the sender itself.
    pub(crate) fn live(&self, interval: Duration, duration: Option<Duration>, count: Option<u64>) -> live::Common {
        live::Common {
            interval,
            extended: self.extended,
            duration,
            count,
            json: self.json,
            record: self.record.clone(),
            force: self.force,
            verbose: self.verbose,
        }
    }
}

pub(crate) fn run(command: &Command) -> Result<Ending> {
    match command {
        Command::Udp(options) => udp::run(options),
        Command::XskUdp(options) => xsk_udp::run(options),
        Command::Tcp(options) => tcp::run(options),
        Command::Pktgen(options) => pktgen::run(options),
        Command::Socket(options) => socket::run(options),
        Command::Sink(options) => sink::run(options),
        Command::Probe(options) => probe::run(options),
    }
}

/// Runs a sender until something ends it, and tells what it does. `open` comes after signals are kept, since it may start
/// threads; `text` is what is told of the start.
pub(crate) fn send<S: Sender, L: Lines + 'static>(
    common: &live::Common,
    open: impl FnOnce() -> Result<S>,
    lines: impl FnOnce(&Start) -> L,
    text: impl FnOnce(&Start) -> String,
) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let mut sender = open()?;
    let session = Session::begin(sender.begin()?, common.limits())?;
    let start = sender.start(session.started());
    live::notes(&start, common.verbose);
    let (lines, text) = (lines(&start), text(&start));
    let mut teller = Teller::start(common, lines, start, &text)?;
    let (total, ended_by) = if live::immediate_exit() {
        (session.total_now(&mut sender)?, EndedBy::ImmediateExit)
    } else {
        session.run(&mut sender, &mut signals, &mut teller)?
    };
    let end = sender.end(total, ended_by)?;
    drop(sender);
    teller.end(end, AbortedPackets::Tell)
}

/// A line on standard error about something that is not as it was asked for.
pub(crate) fn warn(line: &str) {
    output::note(line);
}
