//! `xdplab trafficgen sink`: the receiving side.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use clap::Args;

use super::traffic::CpuList;
use crate::cli::{Ending, live, output};
use crate::error::{Error, Result};
use crate::generator::socket::{DEFAULT_PORT, Session, Sink, SinkSpec};
use crate::live::{Clock as _, Event, ReceivedSession, Signals, Woken, end_text};
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
}

pub(crate) fn run(options: &Options) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let sink = options.start()?;
    output::note(&format!("Waiting for senders at {}", sink.address()));
    let end = options.duration.map(|duration| Instant::now() + duration);
    let mut served = 0;
    loop {
        while let Some(session) = sink.ended(Duration::ZERO) {
            served += 1;
            if options.tell(session)?.is_break() {
                return Ok(Ending::Done);
            }
        }
        let now = Instant::now();
        let over = end.is_some_and(|end| now >= end) || options.sessions.is_some_and(|sessions| served >= sessions);
        let wake = end.map_or(now + STEP, |end| end.min(now + STEP));
        if over || live::immediate_exit() || matches!(signals.wait(wake)?, Woken::End(_)) {
            break;
        }
    }
    sink.stop().into_iter().try_for_each(|session| options.tell(session).map(drop))?;
    Ok(Ending::Done)
}

impl Options {
    fn start(&self) -> Result<Sink> {
        let cpus = self.cpus.as_ref().map_or_else(Vec::new, |CpuList(cpus)| cpus.clone());
        let netns = NetNs::current()?;
        let at = |address| {
            let spec = SinkSpec { address: SocketAddr::new(address, self.port), cpus: cpus.clone() };
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

    fn tell(&self, session: Session) -> Result<std::ops::ControlFlow<()>> {
        let Session { from, bare, report } = session;
        let session = ReceivedSession { from, bare, received: report.into() };
        if self.json {
            let line = Event::Session(&session).json_line();
            return output::tell(&line.map_err(|error| Error::invalid("write an event as JSON", error.to_string()))?);
        }
        let bare = if bare { ", a bare stream" } else { "" };
        let told = session.received.as_ref().map(|report| end_text("received", report, self.extended));
        match told.into_result() {
            Ok(text) => output::tell(&format!("From {from}{bare}\n{text}")),
            Err(why) => output::tell(&format!("From {from}{bare}\n  not received ({why})\n")),
        }
    }
}
