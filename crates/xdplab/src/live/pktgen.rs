//! `trafficgen pktgen`: the kernel's own generator, counted by its threads and by the interface.

use std::time::{Duration, Instant};

use indicatif::HumanCount;

use super::counters::Counters;
use super::event::{End, EndedBy, Start};
use super::interval::Interval;
use super::ledger::Account;
use super::readings;
use super::sent::{Sender, SentBy, SentCounters};
use super::session::Source;
use super::text::{Lines, column, entry, rate};
use crate::error::{Error, Result};
use crate::generator::pktgen::{Pktgen, PktgenResult, PktgenSpec, XmitMode};
use crate::host;
use crate::netlink::{LinkInfo, Rtnl};
use crate::reading::Reading;

/// In less than this a thread need not have sent anything.
const SHORTEST_JUDGED: f64 = 0.5;
/// What is under way at the end has been counted by the interface after this time.
const SETTLED_WITHIN: Duration = Duration::from_millis(20);

/// pktgen with our devices on its threads. Dropping it stops them and takes the devices away.
pub struct PktgenSender {
    pktgen: Pktgen,
    spec: PktgenSpec,
    rtnl: Rtnl,
    link: LinkInfo,
    keep_going: bool,
    /// When it was started.
    begun: Option<Instant>,
}

impl PktgenSender {
    /// Gives pktgen's threads their devices.
    ///
    /// # Errors
    /// There is no such interface, it is in use (unless `force`), or what [`Pktgen::configure`] says.
    pub fn open(spec: PktgenSpec, keep_going: bool, force: bool) -> Result<Self> {
        let mut rtnl = Rtnl::open()?;
        let link = rtnl.link_by_name(&spec.interface)?;
        if !force {
            host::require_unused(&spec.interface)?;
        }
        let pktgen = Pktgen::configure(&spec)?;
        Ok(Self { pktgen, spec, rtnl, link, keep_going, begun: None })
    }

    /// What the threads have sent, and what the interface has counted meanwhile; a driver may take a packet and drop it, as veth
    /// does where the peer's ring is full.
    fn ledger(&mut self, packets: u64) -> Reading<Account> {
        if self.spec.mode == XmitMode::NetifReceive {
            return Reading::not_available("packets of this mode do not pass the driver, which would count them");
        }
        let now = self.rtnl.link_by_index(self.link.ifindex).map_err(|error| error.to_string());
        let stats = now.and_then(|now| {
            now.stats.zip(self.link.stats).ok_or_else(|| "the kernel left IFLA_STATS64 out".to_owned())
        });
        let [counter, dropped] = ["tx_packets of", "dropped by"].map(|what| format!("{what} {}", self.link.name));
        Reading::from(stats).map(|(now, before)| {
            let taken = now.tx_packets.saturating_sub(before.tx_packets);
            let lost = now.tx_dropped.saturating_sub(before.tx_dropped);
            Account::new("sent", packets, [(counter.as_str(), taken), (dropped.as_str(), lost)])
        })
    }
}

impl Source for PktgenSender {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let bytes = u64::from(self.spec.size);
        let counts = if self.begun.is_some() { self.pktgen.counts()? } else { Vec::new() };
        let senders = counts.into_iter().map(|count| SentBy { packets: count.packets, bytes: count.packets * bytes });
        Ok(Counters {
            sent: Some(SentCounters { senders: senders.collect(), ..SentCounters::zero(at, 0) }),
            ..Counters::empty(at)
        })
    }

    fn check(&mut self) -> Result<()> {
        readings::check_there(&mut self.rtnl, &self.link)
    }

    fn ended(&mut self) -> Result<Option<EndedBy>> {
        Ok((!self.pktgen.is_running()).then_some(EndedBy::Count))
    }

    fn judge(&mut self, interval: &Interval) -> Result<()> {
        let packets = interval.sent.as_ref().map_or(0, |sent| sent.packets);
        let slow = self.spec.rate_pps.is_some() || self.spec.delay_ns > 0;
        if packets > 0 || interval.period_s < SHORTEST_JUDGED || self.keep_going || slow {
            return Ok(());
        }
        let errors: u64 = self.pktgen.counts()?.iter().map(|count| count.errors).sum();
        let why = format!("the driver took none in {:.1} s and refused {errors} times", interval.period_s);
        let up = if self.link.up { "--keep-going goes on all the same" } else { "the interface is down" };
        Err(Error::invalid(format!("send out of {}", self.link.name), why).remedy(up))
    }

    fn stop(&mut self) -> Result<()> {
        self.pktgen.stop()
    }
}

impl Sender for PktgenSender {
    fn begin(&mut self) -> Result<Counters> {
        self.link = self.rtnl.link_by_index(self.link.ifindex)?;
        let first = self.read()?;
        self.pktgen.start()?;
        self.begun = Some(Instant::now());
        Ok(first)
    }

    fn start(&self, started: String) -> Start {
        Start { pktgen: Some(self.spec.clone()), started, ..Start::of("trafficgen pktgen") }
    }

    fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        self.stop()?;
        std::thread::sleep(SETTLED_WITHIN);
        let packets = self.pktgen.counts()?.iter().map(|count| count.packets).sum();
        let ledger = vec![self.ledger(packets)];
        let interface = readings::counted_since(&mut self.rtnl, &self.link);
        let pktgen = Some(self.pktgen.results().into());
        let ended_by = match &ended_by {
            EndedBy::Signal(_) if total.period_s < SHORTEST_JUDGED => ended_by,
            EndedBy::Duration | EndedBy::Count | EndedBy::Signal(_) if packets == 0 && !self.keep_going => {
                EndedBy::Failed(format!("the driver of {} took no packet", self.link.name))
            }
            _ => ended_by,
        };
        Ok(End { interface, ledger, pktgen, ..End::new(total, ended_by) })
    }
}

/// The lines of `trafficgen pktgen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PktgenLayout {
    interface: String,
}

impl PktgenLayout {
    /// Those of this interface.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self { interface: interface.into() }
    }
}

impl Lines for PktgenLayout {
    fn interval(&self, interval: &Interval, extended: bool) -> String {
        let Some(sent) = &interval.sent else { return String::new() };
        let line = format!("{:<23}{}", self.interface, column(rate(sent.packets, sent.period_s), "sent/s"));
        let mut text = line.trim_end().to_owned() + "\n";
        for (thread, sender) in sent.senders.iter().enumerate().filter(|_| extended) {
            let label = format!("thread:{thread}");
            text += format!("    {label:<18} {}", column(rate(sender.packets, sent.period_s), "sent/s")).trim_end();
            text += "\n";
        }
        text
    }

    fn end(&self, end: &End, _extended: bool) -> String {
        let mut text = entry("Duration", format!("{:.1}s", end.total.period_s));
        if let Some(sent) = &end.total.sent {
            text += &entry("Packets sent", format!("{} (counted by pktgen)", HumanCount(sent.packets)));
            if let Some(ns) = sent.ns_per_packet {
                text += &entry("ns per packet", format!("{:<10.2} (period / packets)", ns.0));
            }
        }
        match &end.pktgen {
            Some(Reading::Known(results)) => text.extend(results.iter().map(result_text)),
            Some(Reading::NotAvailable { why }) => text += &entry("  thread", format!("no result ({why})")),
            None => {}
        }
        text + &super::text::costs(end)
    }
}

fn result_text(result: &PktgenResult) -> String {
    let PktgenResult { elapsed_us, idle_us, packets, size, frags, pps, bps, errors } = *result;
    let (packets, pps, errors) = (HumanCount(packets), HumanCount(pps), HumanCount(errors));
    let idle = 100.0 * idle_us as f64 / elapsed_us.max(1) as f64;
    entry(
        "  thread",
        format!(
            "{pps} pps, {:.0} Mbit/s without FCS: {packets} packets of {size} bytes and {frags} fragments, {idle:.0} % idle, \
             {errors} errors",
            bps as f64 / 1e6
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::interval::WallClock;
    use super::super::sent::Sent;
    use super::*;

    #[test]
    fn threads_add_up_and_each_has_its_result() {
        let start = Instant::now();
        let later = SentCounters {
            senders: vec![SentBy { packets: 3_000, bytes: 180_000 }, SentBy { packets: 1_000, bytes: 60_000 }],
            ..SentCounters::zero(start + Duration::from_secs(2), 0)
        };
        let empty = Counters::empty(start);
        let sent = Sent::between(&SentCounters::zero(start, 0), &later);
        let total = Interval { sent: Some(sent), ..Interval::between(&empty, &empty, false, &WallClock::start(start)) };
        let layout = PktgenLayout::new("eth4");
        assert_eq!(layout.interval(&total, false), "eth4                        2,000 sent/s\n");
        assert!(layout.interval(&total, true).contains("    thread:1                  500 sent/s\n"));
        let result = PktgenResult {
            elapsed_us: 15_430,
            idle_us: 25,
            packets: 100_000,
            size: 60,
            frags: 0,
            pps: 6_480_562,
            bps: 3_110_669_760,
            errors: 17,
        };
        let end = End { pktgen: Some(Reading::Known(vec![result])), ..End::new(total, EndedBy::Count) };
        let text = layout.end(&end, false);
        for line in [
            "  Packets sent        : 4,000 (counted by pktgen)\n",
            "  ns per packet       : 500000.00  (period / packets)\n",
            "6,480,562 pps, 3111 Mbit/s without FCS: 100,000 packets of 60 bytes and 0 fragments, 0 % idle, 17 errors\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}
