//! `trafficgen socket`: plain sockets that send to a sink, counted at both ends.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::event::{End, EndedBy, Start};
use super::interval::Interval;
use super::preflight::link_fault;
use super::sent::{Sender, SentBy, SentCounters};
use super::session::Source;
use super::signals::Signals;
use crate::error::{Error, Result};
use crate::generator::socket::{self, Counts, Outcome, Protocol, SocketRun, SocketSpec};
use crate::netlink::Rtnl;
use crate::reading::Reading;
use crate::topology::NetNs;

/// A reading that is due within this time is the one at the end of an interval, for which the sink is asked.
const NEARLY: Duration = Duration::from_millis(2);
/// In less than this a connection need not have brought anything.
const SHORTEST_JUDGED: f64 = 0.5;

/// One reading of both ends' counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamsReading {
    /// When it was made.
    pub at: Instant,
    /// All streams.
    pub counts: Counts,
}

/// What was counted between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SocketInterval {
    /// Seconds between the two.
    pub period_s: f64,
    /// The differences.
    #[serde(flatten)]
    pub counts: Counts,
    /// Payload bits per second that the kernel took from the senders; absent over no time.
    pub sent_bps: Option<f64>,
    /// Payload bits per second that arrived, see [`Counts::received_bytes`]; absent where nobody tells.
    pub goodput_bps: Option<f64>,
}

/// How the streams were set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SocketStart {
    /// What was asked for.
    pub spec: SocketSpec,
    /// Where it goes.
    pub to: SocketAddr,
    /// Bytes of a call (TCP), or of a datagram's payload (UDP).
    pub size: usize,
    /// The CPUs that the senders stay on, in turn; none where they are not kept on any.
    pub cpus: Vec<usize>,
}

/// Streams from the calling thread's network namespace. Dropping it ends them.
pub struct SocketSender {
    run: Option<SocketRun>,
    described: SocketStart,
    interval: Duration,
    keep_going: bool,
    /// When the sink is to be asked next.
    ask_at: Instant,
    last: Counts,
    outcome: Option<Outcome>,
    /// Why the sink answers no more.
    fault: Option<Error>,
}

impl SocketInterval {
    pub(super) fn between(earlier: &StreamsReading, later: &StreamsReading) -> Self {
        let (then, now) = (&earlier.counts, &later.counts);
        let since = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then.unwrap_or(0)));
        let counts = Counts {
            sent_bytes: now.sent_bytes - then.sent_bytes,
            sent_datagrams: now.sent_datagrams - then.sent_datagrams,
            received_bytes: since(now.received_bytes, then.received_bytes),
            received_datagrams: since(now.received_datagrams, then.received_datagrams),
            retransmits: now.retransmits.saturating_sub(then.retransmits),
        };
        let period_s = later.at.saturating_duration_since(earlier.at).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate to show")]
        let bps = |bytes: u64| (period_s > 0.0).then(|| bytes as f64 * 8.0 / period_s);
        Self { period_s, sent_bps: bps(counts.sent_bytes), goodput_bps: counts.received_bytes.and_then(bps), counts }
    }
}

impl SocketSender {
    /// Connects the streams; a signal that ends commands ends the wait. With `keep_going` it goes on although nothing
    /// arrives. `interval` is the time from one question to the sink to the next.
    ///
    /// # Errors
    /// As [`SocketRun::connect`].
    pub fn open(
        to: SocketAddr,
        spec: &SocketSpec,
        cpus: &[usize],
        interval: Duration,
        keep_going: bool,
    ) -> Result<Self> {
        let netns = NetNs::current()?;
        let end = socket::End { netns: &netns, cpus };
        let run = SocketRun::connect(&end, to, spec, &Signals::pending)?;
        let described = SocketStart { spec: spec.clone(), to, size: run.size(), cpus: cpus.to_vec() };
        let (ask_at, last) = (Instant::now(), Counts::default());
        Ok(Self { run: Some(run), described, interval, keep_going, ask_at, last, outcome: None, fault: None })
    }

    fn counters(&self, at: Instant) -> Counters {
        let sent = SentBy { packets: self.last.sent_datagrams, bytes: self.last.sent_bytes };
        Counters {
            sent: Some(SentCounters { senders: vec![sent], ..SentCounters::zero(at, 1) }),
            socket: Some(StreamsReading { at, counts: self.last }),
            ..Counters::empty(at)
        }
    }

    /// What is known of the reason why nothing arrives.
    fn reason(&self) -> String {
        let errors = self.outcome.as_ref().map(|outcome| outcome.sent.errors()).unwrap_or_default();
        let mut why: Vec<String> =
            errors.iter().map(|(errno, count)| format!("{count} calls ended with {errno}")).collect();
        why.extend(self.way_fault());
        match (why.is_empty(), self.described.spec.protocol) {
            (false, _) => why.join(", "),
            (true, Protocol::Tcp) => "the connection stands, and nothing is acknowledged (ETIMEDOUT in the end)".into(),
            (true, Protocol::Udp) => "the kernel takes the datagrams, and the sink gets none".into(),
        }
    }

    /// What is wrong with the way to the sink, if it shows here.
    fn way_fault(&self) -> Option<String> {
        let mut rtnl = Rtnl::open().ok()?;
        let ifindex = match &self.described.spec.interface {
            Some(name) => rtnl.link_by_name(name).map(|link| link.ifindex),
            None => rtnl.route_to(self.described.to.ip()),
        };
        ifindex.map_or_else(|error| Some(error.to_string()), |ifindex| link_fault(&mut rtnl, ifindex))
    }

    /// Bytes or datagrams that are due in so many seconds; `None` without a rate.
    fn due(&self, seconds: f64) -> Option<f64> {
        let SocketStart { spec, size, .. } = &self.described;
        spec.rate.map(|rate| seconds * socket::units_per_second(rate, spec.protocol, *size))
    }

    fn ended_by(&self) -> EndedBy {
        let SocketSpec { duration, bytes, count, .. } = self.described.spec;
        match (duration, bytes.or(count)) {
            (Some(_), None) => EndedBy::Duration,
            (None, Some(_)) => EndedBy::Count,
            // Whichever came first.
            (Some(_), Some(_)) if self.sent_all() => EndedBy::Count,
            (Some(_), Some(_)) => EndedBy::Duration,
            (None, None) => EndedBy::Failed("the streams have ended".into()),
        }
    }

    fn sent_all(&self) -> bool {
        let SocketSpec { bytes, count, .. } = self.described.spec;
        bytes.is_some_and(|bytes| self.last.sent_bytes >= bytes)
            || count.is_some_and(|count| self.last.sent_datagrams >= count)
    }
}

impl Source for SocketSender {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let ask = at + NEARLY >= self.ask_at;
        // Between the ends of intervals nothing is told, and each look at a connection holds up its sender.
        if let Some(run) = self.run.as_mut().filter(|_| ask) {
            while self.ask_at <= at + NEARLY {
                self.ask_at += self.interval;
            }
            match run.counts(self.fault.is_none(), &Signals::pending) {
                Ok(counts) => self.last = counts,
                // The end is told with what was counted until then.
                Err(error) => self.fault = Some(error),
            }
        }
        Ok(self.counters(at))
    }

    fn check(&mut self) -> Result<()> {
        self.fault.take().map_or(Ok(()), Err)
    }

    fn ended(&mut self) -> Result<Option<EndedBy>> {
        Ok(self.run.as_ref().is_some_and(|run| !run.is_running()).then(|| self.ended_by()))
    }

    fn judge(&mut self, interval: &Interval) -> Result<()> {
        let Some(counted) = interval.socket.filter(|_| !self.keep_going) else { return Ok(()) };
        let Counts { sent_bytes, received_bytes, .. } = counted.counts;
        // Where nobody says what arrived, something must have been sent at least.
        let arrived = received_bytes.unwrap_or(sent_bytes);
        let slow = self.due(counted.period_s).is_some_and(|due| due < 3.0);
        if arrived > 0 || counted.period_s < SHORTEST_JUDGED || slow {
            return Ok(());
        }
        let why = format!("nothing arrived in {:.1} s: {}", counted.period_s, self.reason());
        Err(Error::invalid(format!("send to {}", self.described.to), why).remedy("--keep-going goes on all the same"))
    }

    fn stop(&mut self) -> Result<()> {
        let Some(run) = self.run.take() else { return Ok(()) };
        let outcome = run.finish()?;
        self.last = Counts {
            sent_bytes: outcome.sent.bytes,
            sent_datagrams: outcome.sent.datagrams,
            received_bytes: outcome.arrived().known().copied(),
            received_datagrams: outcome.received.known().map(|received| received.datagrams),
            retransmits: outcome.retransmits.unwrap_or(0),
        };
        self.outcome = Some(outcome);
        Ok(())
    }
}

impl Sender for SocketSender {
    fn begin(&mut self) -> Result<Counters> {
        let at = Instant::now();
        self.ask_at = at + self.interval;
        let first = self.counters(at);
        if let Some(run) = &mut self.run {
            run.start()?;
        }
        Ok(first)
    }

    fn start(&self, started: String) -> Start {
        Start { socket: Some(self.described.clone()), started, ..Start::of("trafficgen socket") }
    }

    fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        self.stop()?;
        let outcome = self.outcome.take();
        let at_once = matches!(ended_by, EndedBy::Signal(_)) && total.period_s < SHORTEST_JUDGED;
        let failed = outcome.as_ref().filter(|_| !self.keep_going && !at_once).and_then(fault);
        let ended_by = match (failed, &ended_by) {
            (Some(why), EndedBy::Duration | EndedBy::Count | EndedBy::Signal(_)) => EndedBy::Failed(why),
            _ => ended_by,
        };
        Ok(End { socket: outcome, ..End::new(total, ended_by) })
    }
}

/// Why the figures of a run can't be trusted, if they can't.
fn fault(outcome: &Outcome) -> Option<String> {
    let errors = outcome.sent.errors();
    let errors: Vec<String> = errors.iter().map(|(errno, count)| format!("{errno} {count} times")).collect();
    let errors = if errors.is_empty() { String::new() } else { format!(" (errors: {})", errors.join(", ")) };
    if let Reading::Known(0) = outcome.arrived() {
        return Some(format!("nothing arrived at {} of {} bytes sent{errors}", outcome.to, outcome.sent.bytes));
    }
    if let (true, Reading::NotAvailable { why }) = (outcome.spec.sink, &outcome.received) {
        return Some(format!("the sink did not say what arrived: {why}{errors}"));
    }
    let tcp = outcome.spec.protocol == Protocol::Tcp;
    if let Some(stream) = outcome.sent.streams.iter().find(|stream| tcp && !stream.complete) {
        let errors: Vec<&str> = stream.errors.keys().map(String::as_str).collect();
        return Some(format!("the peer ended a stream before its end: {}", errors.join(", ")));
    }
    let ledger = outcome.ledger.known().filter(|ledger| tcp && ledger.residual != 0)?;
    Some(format!(
        "the two ends disagree: of {} {} sent {} are nowhere to be found",
        ledger.sent, ledger.unit, ledger.residual
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_what_arrived_and_not_what_was_sent() {
        let start = Instant::now();
        let reading = |ms, sent_bytes, received_bytes| StreamsReading {
            at: start + Duration::from_millis(ms),
            counts: Counts { sent_bytes, received_bytes, retransmits: sent_bytes / 100, ..Counts::default() },
        };
        let interval = SocketInterval::between(&reading(0, 1000, Some(500)), &reading(2000, 3000, Some(1500)));
        assert_eq!((interval.sent_bps, interval.goodput_bps), (Some(8000.0), Some(4000.0)));
        assert_eq!(interval.counts.retransmits, 20);
        let blind = SocketInterval::between(&reading(0, 0, None), &reading(2000, 1000, None));
        assert_eq!((blind.goodput_bps, blind.counts.received_bytes), (None, None), "not known is not 0");
        let at_once = SocketInterval::between(&reading(0, 0, None), &reading(0, 0, None));
        assert_eq!(at_once.sent_bps, None);
        let json = serde_json::to_string(&interval).unwrap();
        assert_eq!(serde_json::from_str::<SocketInterval>(&json).unwrap(), interval);
    }
}
