//! `trafficgen udp`: live frames redirected out of an interface, counted by the program that sends them, by the kernel's
//! tracepoints and by who receives them.

use std::thread;
use std::time::{Duration, Instant};

use super::counters::{Counters, Group, Hop, XmitCounts};
use super::cpu_cost::CpuCost;
use super::delivery::Delivery;
use super::event::{End, EndedBy, Start, Target};
use super::interval::Interval;
use super::ledger::{Account, settled};
use super::preflight::{link_fault, must_be_up, must_fit, must_take_frames, must_take_frames_as_it_is, or_note};
use super::readings;
use super::receiver::observe;
use super::redirect::{Pass, features};
use super::sent::{Alone, Scaling, Sender, Sending, SendingEnd, SendingThread, SentBy, SentCounters};
use super::session::Source;
use super::signals::Signals;
use crate::bpf;
use crate::error::{Error, Result};
use crate::generator::{Gaps, LiveFrames, Pace, Rate, TrafficSpec};
use crate::host;
use crate::netlink::{LinkInfo, Rtnl};
use crate::observe::{Figure, Interface, Observers, Watch};
use crate::packet::Traffic;
use crate::reading::Reading;
use crate::topology::NetNs;
use crate::units::PacketsPerSec;

/// The number of the loopback interface of every namespace, which live frames come in by (net/bpf/test_run.c).
pub(super) const LOOPBACK: u32 = 1;
/// A frame that was sent has arrived or is lost after this time.
pub(super) const ARRIVES_WITHIN: Duration = Duration::from_millis(500);
/// How long the first of several threads sends alone, of which the first third does not count.
pub(super) const ALONE: Duration = Duration::from_millis(300);
/// Why there was no trial.
pub(super) const INTERRUPTED: &str = "a signal ended the command before";
/// A rate within this share of the one asked for was kept.
const KEPT_WITHIN: f64 = 0.001;
/// A thread that sends may have to wait for its CPU so long.
pub(super) const HAS_RUN_WITHIN: Duration = Duration::from_secs(3);
/// From this share of its time on a thread counts as busy.
pub(super) const BUSY: f64 = 0.95;

/// What to send, and out of which interface.
#[derive(Clone, Debug)]
pub struct SendSpec {
    /// The interface.
    pub interface: String,
    /// The frames.
    pub traffic: Traffic,
    /// Bytes before the UDP payload; `None` for frames that were not built here.
    pub headers_len: Option<usize>,
    /// One thread on each of these CPUs.
    pub cpus: Vec<usize>,
    /// The rate; `None`: as fast as can be.
    pub rate: Option<Rate>,
    /// Packets that leave back to back where there is a rate.
    pub burst: Option<u32>,
    /// Frames that the kernel makes at once.
    pub batch: u32,
    /// Packets in all; `None`: until stopped.
    pub count: Option<u64>,
    /// Go on although nothing arrives.
    pub keep_going: bool,
    /// Take an interface in use.
    pub force: bool,
}

/// Threads that send live frames out of an interface of the calling thread's network namespace. Dropping it stops them and
/// takes away what was attached, and so does the end of the process.
pub struct LiveSender {
    spec: SendSpec,
    pace: Option<Pace>,
    rtnl: Rtnl,
    target: LinkInfo,
    netns: NetNs,
    /// Our program on the interface, where its driver needs one to take redirected frames.
    pass: Option<Pass>,
    observers: Reading<Observers>,
    delivery: Reading<Delivery>,
    generator: Option<LiveFrames>,
    costs: Vec<Reading<CpuCost>>,
    begun: Instant,
    /// The end of the last interval in which packets were sent.
    sent_at: Instant,
    first: Option<Counters>,
    trial: Reading<String>,
    alone: Option<Alone>,
    notes: Vec<String>,
}

impl LiveSender {
    /// Looks whether the interface takes the frames and, unless they are counted, sends one to see whether it arrives.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, it is in use (unless `force`), down, takes no redirected
    /// frames or none so long, or the trial frame did not arrive (unless `keep_going`).
    pub fn open(spec: SendSpec) -> Result<Self> {
        host::require_privileges()?;
        bpf::read_types_ahead();
        let mut rtnl = Rtnl::open()?;
        let target = rtnl.link_by_name(&spec.interface)?;
        if !spec.force {
            host::require_unused(&spec.interface)?;
        }
        let threads = spec.cpus.len();
        let pps = spec.rate.map(|rate| rate.pps(spec.traffic.mean_wire_len()));
        let pace = pps.map(|pps| Pace::new(pps, threads, spec.burst, Pace::LIVE_FRAMES_SINGLY)).transpose()?;
        let mut notes = Vec::new();
        or_note(must_be_up(&target), spec.keep_going, &mut notes)?;
        must_fit(&target, &spec.traffic)?;
        let pass = or_note(must_take_frames(&target), spec.keep_going, &mut notes)?;
        let netns = NetNs::current()?;
        let watch = Watch {
            device: Interface { ifindex: LOOPBACK, netns: netns.inode() },
            xmit_to: Interface { ifindex: target.ifindex, netns: netns.inode() },
        };
        let observers = observers(watch);
        let delivery = Delivery::of(&mut rtnl, &target);
        let mut sender = Self {
            pace,
            rtnl,
            target,
            netns,
            pass,
            observers,
            delivery,
            generator: None,
            costs: Vec::new(),
            begun: Instant::now(),
            sent_at: Instant::now(),
            first: None,
            trial: Reading::not_available("the packets are counted, and none is sent besides"),
            alone: None,
            notes,
            spec,
        };
        if sender.spec.count.is_none() {
            sender.try_one()?;
            sender.try_alone()?;
        }
        Ok(sender)
    }

    /// What XDP can do on an interface, or what it lacks to be sent out of; nothing is changed.
    ///
    /// # Errors
    /// There is no such interface, or the kernel names no XDP features (before Linux 6.3).
    pub fn probe(name: &str) -> Result<Result<String>> {
        let target = Rtnl::open()?.link_by_name(name)?;
        let features = features(target.ifindex).into_result().map_err(|why| {
            Error::unsupported(format!("query the XDP features of interface {name}"), why)
                .remedy("sending may work all the same")
        })?;
        let names =
            features.iter().filter_map(|feature| Some(serde_json::to_value(feature).ok()?.as_str()?.to_owned()));
        let names: Vec<String> = names.collect();
        Ok(must_take_frames_as_it_is(&target).map(|()| names.join(", ")))
    }

    fn traffic_spec(&self) -> TrafficSpec {
        TrafficSpec {
            traffic: self.spec.traffic.clone(),
            pace: self.pace,
            ifindex: self.target.ifindex,
            cpus: self.spec.cpus.clone(),
            batch: self.spec.batch,
            count: self.spec.count,
        }
    }

    fn first_thread(&self) -> TrafficSpec {
        TrafficSpec { pace: None, cpus: self.spec.cpus[..1].to_vec(), ..self.traffic_spec() }
    }

    /// Sends one frame and looks whether it arrives.
    fn try_one(&mut self) -> Result<()> {
        if Signals::pending() {
            self.trial = Reading::not_available(INTERRUPTED);
            return Ok(());
        }
        let before = self.read()?;
        let one = TrafficSpec { count: Some(1), ..self.first_thread() };
        LiveFrames::send(&one, &self.netns)?.wait()?;
        let outcome = self.await_arrival(&before);
        match outcome {
            Ok(told) => self.trial = told,
            Err(why) => {
                let error = Error::invalid(format!("send packets out of {}", self.target.name), why)
                    .remedy("--keep-going sends all the same");
                if !self.spec.keep_going {
                    return Err(error);
                }
                self.trial = Reading::Known("did not arrive".into());
                self.notes.push(error.to_string());
            }
        }
        Ok(())
    }

    fn await_arrival(&mut self, before: &Counters) -> Result<Reading<String>, String> {
        let deadline = Instant::now() + ARRIVES_WITHIN;
        loop {
            let now = self.read().map_err(|error| error.to_string())?;
            let found = Trial::of(before, &now, &self.delivered());
            match found {
                Trial::Refused(why) => {
                    let fault = self.fault().map_or_else(String::new, |fault| format!("; {fault}"));
                    return Err(format!("the trial frame was refused: {why}{fault}"));
                }
                Trial::Arrived(how) => return Ok(Reading::Known(how)),
                Trial::Unknown(why) => return Ok(Reading::not_available(why)),
                Trial::Pending(_) if !Signals::sleep(Duration::from_millis(2)) => {
                    return Ok(Reading::not_available(INTERRUPTED));
                }
                Trial::Pending(_) if Instant::now() < deadline => {}
                Trial::Pending(where_to) => {
                    let why = self.fault().unwrap_or_else(|| "nobody says why".into());
                    return Err(format!("a trial frame {where_to}: {why}"));
                }
            }
        }
    }

    /// The first of several threads alone, to compare all of them with.
    fn try_alone(&mut self) -> Result<()> {
        if self.spec.cpus.len() == 1 || self.pace.is_some() || Signals::pending() {
            return Ok(());
        }
        let mut generator = LiveFrames::send(&self.first_thread(), &self.netns)?;
        let mut pps = None;
        if Signals::sleep(ALONE / 3) {
            let (begin, packets) = (Instant::now(), generator.sent()?.packets);
            if Signals::sleep(ALONE / 3 * 2) {
                pps = PacketsPerSec::of(generator.sent()?.packets - packets, begin.elapsed());
            }
        }
        generator.end()?;
        let (packets, busy) = (generator.sent()?.packets, generator.cpu_times().into_iter().sum());
        let cpu_ns = PacketsPerSec::of(packets, busy).and_then(PacketsPerSec::to_nanos);
        self.alone = pps.map(|pps| Alone { pps, cpu_ns });
        // What is on its way belongs to no reading that follows.
        thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    fn delivered(&self) -> Reading<(String, u64)> {
        self.delivery.as_ref().and_then(Delivery::counted)
    }

    fn xmit(&self) -> Reading<Group<Hop, XmitCounts>> {
        let (netns, target) = (self.netns.inode(), self.target.ifindex);
        self.observers.as_ref().and_then(|observers| {
            readings::xmit(observers, netns, |flow| {
                flow.from == Interface { ifindex: LOOPBACK, netns } && flow.to == Interface { ifindex: target, netns }
            })
        })
    }

    fn sent(&self) -> Result<SentCounters> {
        let at = Instant::now();
        let Some(generator) = &self.generator else { return Ok(SentCounters::zero(at, self.spec.cpus.len())) };
        let senders = generator
            .sent_by_thread()?
            .into_iter()
            .map(|packets| SentBy { packets, bytes: self.spec.traffic.bytes_of(packets) });
        Ok(SentCounters { at, senders: senders.collect(), gaps: generator.gaps()?, late: None })
    }

    fn threads(&self) -> Vec<SendingThread> {
        self.spec.cpus.iter().map(|&cpu| SendingThread { cpu, queue: None }).collect()
    }

    /// What is wrong with the interface, if it shows it.
    fn fault(&mut self) -> Option<String> {
        let deaf = || must_take_frames_as_it_is(&self.target).err().map(|error| error.to_string());
        link_fault(&mut self.rtnl, self.target.ifindex).or_else(deaf)
    }

    /// What several threads may wait for each other at.
    fn contended(&self) -> String {
        let threads = self.spec.cpus.len();
        let peer = self.delivery.known().and_then(Delivery::peer);
        match peer {
            Some(peer) => {
                let queues = readings::rx_queues(peer, &readings::channels(peer.ifindex));
                let name = &peer.name;
                if (queues as usize) < threads {
                    return format!(
                        "{threads} threads wait for each other at {queues} RX queue{} of {name}, whose ring one at a time \
                         can fill; make the pair with as many RX queues as threads (ip link add ... numrxqueues {threads})",
                        if queues == 1 { "" } else { "s" }
                    );
                }
                format!("{name} has {queues} RX queues, so it is the receiver, or what all CPUs share")
            }
            None => {
                let name = &self.target.name;
                format!("they may share a queue of {name} or its receiver, whose queues can't be seen from here")
            }
        }
    }

    fn scaling(&self, total: &Interval) -> Option<Scaling> {
        let (alone, together) = self.alone.zip(total.sent.as_ref()?.pps)?;
        Some(Scaling::of(alone, together, &self.costs, || self.contended()))
    }

    /// What the rate was limited by.
    fn limiter(&self, total: &Interval) -> Option<Reading<String>> {
        let sent = total.sent.as_ref().filter(|sent| sent.packets > 0)?;
        let xmit = total.xmit.as_ref().and_then(Reading::known);
        let drops = xmit.map_or(0, |xmit| xmit.total.drops);
        let busy = self.costs.iter().all(|cost| cost.known().is_some_and(|cost| cost.share >= BUSY));
        let kept = self.pace.zip(sent.gaps).is_some_and(|(pace, gaps)| is_kept(pace, &gaps));
        Some(if kept {
            Reading::Known("the rate asked for".into())
        } else if drops > sent.packets / 100 {
            Reading::Known(format!("the receiver: the driver took {drops} frames no more, since its ring was full"))
        } else if busy {
            Reading::Known("the sending threads, busy all the time, with what the receiver does on their CPUs".into())
        } else {
            Reading::not_available(
                "the threads were not busy all the time, and no ring was full: others had their CPUs",
            )
        })
    }

    fn accounts(&mut self) -> Result<Vec<Reading<Account>>> {
        let Some(first) = self.first.clone() else { return Ok(Vec::new()) };
        let interval = Interval::between(&first, &self.read()?, false, &super::WallClock::start(first.at));
        let sent = interval.sent.as_ref().map_or(0, |sent| sent.packets);
        let xmit = interval.xmit.unwrap_or_else(|| Reading::not_available("not observed"));
        let errors = interval.redirect_errors.unwrap_or_else(|| Reading::not_available("not observed"));
        let given = xmit.as_ref().and_then(|xmit| errors.as_ref().map(|errors| (xmit.total, errors.clone())));
        let to = format!("given to {}", self.target.name);
        let by_program = given.as_ref().map(|(xmit, errors)| {
            let mut parts = vec![(to.clone(), xmit.sent), ("not taken by its driver".to_owned(), xmit.drops)];
            let errno = |(errno, cpus): (&String, &std::collections::BTreeMap<u32, u64>)| {
                (format!("not redirected ({errno})"), cpus.values().sum())
            };
            parts.extend(errors.errnos.iter().map(errno));
            Account::new("packets sent", sent, parts.iter().map(|(to, packets)| (to.as_str(), *packets)))
        });
        let delivered = self.delivered();
        let by_receiver = given.and_then(|(xmit, _)| {
            delivered.map(|(counter, packets)| Account::new(&to, xmit.sent, [(counter.as_str(), packets)]))
        });
        Ok(vec![by_program, by_receiver])
    }
}

/// What counts redirects and their errors.
pub(super) fn observers(watch: Watch) -> Reading<Observers> {
    observe(|| Observers::attach_only(watch, &[Figure::RedirectErrors, Figure::Flows]))
}

/// What is known of the trial frame.
enum Trial {
    Arrived(String),
    Refused(String),
    /// Nobody can say.
    Unknown(String),
    Pending(&'static str),
}

impl Trial {
    fn of(before: &Counters, now: &Counters, delivered: &Reading<(String, u64)>) -> Self {
        let interval = Interval::between(before, now, false, &super::WallClock::start(before.at));
        let refused = refusals(&interval);
        if !refused.is_empty() {
            return Self::Refused(refused.join(", "));
        }
        let xmit = interval.xmit.as_ref().and_then(Reading::known).map(|xmit| xmit.total.sent);
        match (xmit, delivered) {
            (Some(0), _) => Self::Pending("never came to the driver"),
            (_, Reading::Known((_, 0))) => Self::Pending("was taken by the driver and never received"),
            (_, Reading::Known((counter, _))) => Self::Arrived(format!("arrived ({counter})")),
            (Some(_), Reading::NotAvailable { why }) => Self::Arrived(format!("was taken by the driver ({why})")),
            (None, Reading::NotAvailable { why }) => Self::Unknown(why.clone()),
        }
    }
}

/// Who refused frames, with errno names and numbers.
pub(super) fn refusals(interval: &Interval) -> Vec<String> {
    let mut refusals = Vec::new();
    if let Some(Reading::Known(errors)) = &interval.redirect_errors {
        let of_errno = |(errno, cpus): (&String, &std::collections::BTreeMap<u32, u64>)| {
            format!("{} redirects failed with {errno}", cpus.values().sum::<u64>())
        };
        refusals.extend(errors.errnos.iter().map(of_errno));
    }
    if let Some(Reading::Known(xmit)) = &interval.xmit {
        for flow in xmit.flows.values() {
            let of_errno = |(errno, counts): (&String, &XmitCounts)| {
                format!("the driver answered {errno} to {} frames", counts.drops)
            };
            refusals.extend(flow.driver_errors.iter().map(of_errno));
            let by_errors: u64 = flow.driver_errors.values().map(|counts| counts.drops).sum();
            if flow.total.drops > by_errors {
                let drops = flow.total.drops - by_errors;
                refusals.push(format!("the driver took {drops} frames no more, since the receiver's ring was full"));
            }
        }
    }
    refusals
}

/// Whether packets left at the rate asked for.
pub(super) fn is_kept(pace: Pace, gaps: &Gaps) -> bool {
    (gaps.departures_per_s * f64::from(pace.burst) / pace.pps - 1.0).abs() < KEPT_WITHIN
}

/// The end of a run whose counters disagree by this account.
pub(super) fn disagreement(account: &Account, ended_by: EndedBy) -> EndedBy {
    match ended_by {
        EndedBy::Duration | EndedBy::Count | EndedBy::Signal(_) => {
            let Account { of, packets, residual, .. } = account;
            EndedBy::Failed(format!("{residual} of {packets} {of} are nowhere to be found: there is no rate to trust"))
        }
        other => other,
    }
}

impl Source for LiveSender {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let errors = readings::named(|| self.observers.as_ref().and_then(Observers::redirect_errors_per_cpu));
        Ok(Counters {
            sent: Some(self.sent()?),
            redirect_errors: Some(errors),
            xmit: Some(self.xmit()),
            ..Counters::empty(at)
        })
    }

    fn check(&mut self) -> Result<()> {
        readings::check_there(&mut self.rtnl, &self.target)?;
        match &mut self.generator {
            Some(generator) if !generator.is_running() => generator.end(),
            _ => Ok(()),
        }
    }

    fn ended(&mut self) -> Result<Option<EndedBy>> {
        let done = self.generator.as_ref().map_or(Ok(false), LiveFrames::is_done)?;
        Ok(done.then_some(EndedBy::Count))
    }

    fn judge(&mut self, interval: &Interval) -> Result<()> {
        let expected = self.pace.map_or(f64::MAX, |pace| pace.pps * interval.period_s / f64::from(pace.burst));
        let too_short = interval.partial && interval.period_s < 0.1;
        let own = interval.sent.as_ref().map_or(0, |sent| sent.packets);
        if own > 0 {
            self.sent_at = Instant::now();
        }
        if self.spec.keep_going || too_short || expected < 3.0 {
            return Ok(());
        }
        let given = interval.xmit.as_ref().and_then(Reading::known).map_or(own, |xmit| xmit.total.sent);
        if own > 0 && given > 0 {
            return Ok(());
        }
        let mut why = refusals(interval);
        why.extend(self.fault());
        if own == 0 && why.is_empty() && self.sent_at.elapsed() < HAS_RUN_WITHIN {
            return Ok(());
        }
        let why = if why.is_empty() { "nobody says why".to_owned() } else { why.join("; ") };
        let what = format!("send packets out of {}", self.target.name);
        let empty = format!("none came to its driver in {:.1} s: {why}", interval.period_s);
        Err(Error::invalid(what, empty).remedy("--keep-going goes on all the same"))
    }

    fn stop(&mut self) -> Result<()> {
        let Some(generator) = &mut self.generator else { return Ok(()) };
        let ended = generator.end();
        let period = self.begun.elapsed();
        let threads = generator.sent_by_thread()?.into_iter().zip(generator.cpu_times()).zip(&self.spec.cpus);
        let cost = |((packets, busy), cpu)| CpuCost::of(format!("sending thread on CPU {cpu}"), busy, period, packets);
        self.costs = threads.map(cost).map(Reading::Known).collect();
        ended
    }
}

impl Sender for LiveSender {
    fn begin(&mut self) -> Result<Counters> {
        let mut generator = LiveFrames::prepare(&self.traffic_spec(), &self.netns)?;
        self.delivery = Delivery::of(&mut self.rtnl, &self.target);
        self.target = self.rtnl.link_by_index(self.target.ifindex)?;
        let first = self.read()?;
        self.first = Some(first.clone());
        self.begun = Instant::now();
        self.sent_at = self.begun;
        generator.go();
        self.generator = Some(generator);
        Ok(first)
    }

    fn start(&self, started: String) -> Start {
        let LinkInfo { name, ifindex, .. } = &self.target;
        let target = Target {
            interface: name.clone(),
            ifindex: *ifindex,
            driver: readings::driver(name),
            xdp_features: features(*ifindex),
            passes: self.pass.is_some(),
        };
        let mut notes = self.notes.clone();
        notes.extend(self.delivery.known().and_then(|delivery| delivery.ignored(self.spec.traffic.longest())));
        if let Reading::NotAvailable { why } = &target.xdp_features {
            notes.push(format!("whether {name} takes redirected frames is not known: {why}"));
        }
        if let Reading::NotAvailable { why } = &self.observers {
            notes.push(format!("errors and transmitted frames are not counted: {why}"));
        }
        let (shortest, longest) = self.spec.traffic.lengths(self.spec.headers_len);
        let sending = Sending {
            threads: self.threads(),
            shortest,
            longest,
            frames: self.spec.traffic.templates().len(),
            flows: self.spec.traffic.fields().map_or(1, |fields| fields.variation.flows()),
            batch: self.spec.batch,
            rate: self.spec.rate,
            pace: self.pace,
            trial: self.trial.clone(),
            alone: self.alone.map(|alone| alone.pps),
        };
        Start { targets: vec![target], notes, sending: Some(sending), started, ..Start::of("trafficgen udp") }
    }

    fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        if self.costs.is_empty() {
            self.stop()?;
        }
        let ledger = settled(ARRIVES_WITHIN, || self.accounts())?;
        let interface = readings::counted_since(&mut self.rtnl, &self.target);
        let ended_by = match ledger.iter().filter_map(Reading::known).find(|account| !account.agrees()) {
            Some(account) if !self.spec.keep_going => disagreement(account, ended_by),
            _ => ended_by,
        };
        let sending = SendingEnd {
            threads: self.threads(),
            asked: self.pace.map(|pace| PacketsPerSec(pace.pps)),
            burst: self.pace.map_or(1, |pace| pace.burst),
            scaling: self.scaling(&total),
        };
        Ok(End {
            interface,
            limiter: self.limiter(&total),
            cpus: std::mem::take(&mut self.costs),
            ledger,
            sending: Some(sending),
            ..End::new(total, ended_by)
        })
    }
}
