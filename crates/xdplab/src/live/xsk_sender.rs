//! `trafficgen xsk-udp`: AF_XDP sockets that send, counted by their rings, by the kernel and by who receives.

use std::thread;
use std::time::{Duration, Instant};

use super::counters::Counters;
use super::cpu_cost::CpuCost;
use super::delivery::Delivery;
use super::event::{End, EndedBy, Start, Target, XskStart};
use super::interval::Interval;
use super::ledger::{Account, settled};
use super::preflight::{link_fault, must_be_up, must_fit};
use super::readings;
use super::redirect::features;
use super::sender::{ALONE, ARRIVES_WITHIN, BUSY, HAS_RUN_WITHIN, INTERRUPTED, disagreement, is_kept};
use super::sent::{Alone, Scaling, Sender, Sending, SendingEnd, SendingThread, SentBy, SentCounters};
use super::session::Source;
use super::signals::Signals;
use super::xsk::XskCounters;
use super::xsk_device::Interrupts;
use crate::device::{SocketCounts, SocketReading};
use crate::error::{Error, Result};
use crate::generator::{Pace, Rate, XskTx, XskTxCounts, XskTxSpec};
use crate::host::{self, Capability, EffectiveCaps};
use crate::netlink::{LinkInfo, Rtnl};
use crate::reading::Reading;
use crate::units::PacketsPerSec;

/// What to send from AF_XDP sockets, and out of which interface.
#[derive(Clone, Debug)]
pub struct XskSendSpec {
    /// The interface.
    pub interface: String,
    /// Frames, sockets and threads; what is told here of interface and schedule is set by [`XskSender::open`].
    pub sockets: XskTxSpec,
    /// Bytes before the UDP payload; `None` for frames that were not built here.
    pub headers_len: Option<usize>,
    /// The rate; `None`: as fast as can be.
    pub rate: Option<Rate>,
    /// Packets that leave back to back where there is a rate.
    pub burst: Option<u32>,
    /// Count the interrupts of the first line of `/proc/interrupts` with this text.
    pub irq_string: Option<String>,
    /// Go on although nothing arrives.
    pub keep_going: bool,
    /// Take an interface in use.
    pub force: bool,
}

/// AF_XDP sockets that send out of an interface of the calling thread's network namespace. Dropping it stops and closes
/// them, and so does the end of the process. Nothing is attached to the interface.
pub struct XskSender {
    spec: XskSendSpec,
    rtnl: Rtnl,
    target: LinkInfo,
    delivery: Reading<Delivery>,
    sockets: Option<XskTx>,
    irq: Option<Interrupts>,
    /// Packets that had been dropped by the end of the last interval.
    dropped: u64,
    costs: Vec<Reading<CpuCost>>,
    begun: Instant,
    /// The end of the last interval in which packets were sent.
    sent_at: Instant,
    trial: Reading<String>,
    alone: Option<Alone>,
    notes: Vec<String>,
}

impl XskSender {
    /// Looks whether the interface can send the frames and, unless they are counted, sends one to see whether it arrives.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, it is in use (unless `force`), down or takes none so long,
    /// a setting of the sockets was refused, or the trial frame did not arrive (unless `keep_going`).
    pub fn open(mut spec: XskSendSpec) -> Result<Self> {
        EffectiveCaps::read()?.require("send from AF_XDP sockets", &[Capability::NetAdmin, Capability::NetRaw])?;
        let mut rtnl = Rtnl::open()?;
        let target = rtnl.link_by_name(&spec.interface)?;
        if !spec.force {
            host::require_unused(&spec.interface)?;
        }
        must_be_up(&target)?;
        must_fit(&target, &spec.sockets.traffic)?;
        let threads = spec.sockets.cpus.len();
        let pps = spec.rate.map(|rate| rate.pps(spec.sockets.traffic.mean_wire_len()));
        if let Some(pps) = pps {
            spec.sockets.pace = Some(Pace::new(pps, threads, spec.burst, Pace::SOCKETS_SINGLY)?);
        }
        spec.sockets.ifindex = target.ifindex;
        let irq = spec.irq_string.as_deref().map(Interrupts::find).transpose()?;
        let delivery = Delivery::of(&mut rtnl, &target);
        let mut sender = Self {
            rtnl,
            target,
            delivery,
            sockets: None,
            irq,
            dropped: 0,
            costs: Vec::new(),
            begun: Instant::now(),
            sent_at: Instant::now(),
            trial: Reading::not_available("the packets are counted, and none is sent besides"),
            alone: None,
            notes: Vec::new(),
            spec,
        };
        if sender.spec.sockets.count.is_none() {
            sender.try_one()?;
            sender.try_alone()?;
        }
        Ok(sender)
    }

    fn first_thread(&self) -> XskTxSpec {
        let spec = &self.spec.sockets;
        XskTxSpec { pace: None, cpus: spec.cpus[..1].to_vec(), ..spec.clone() }
    }

    /// Sends one frame and looks whether it arrives.
    fn try_one(&mut self) -> Result<()> {
        if Signals::pending() {
            self.trial = Reading::not_available(INTERRUPTED);
            return Ok(());
        }
        let one = XskTxSpec { count: Some(1), completion: ARRIVES_WITHIN, ..self.first_thread() };
        let mut sockets = XskTx::prepare(&one, &self.spec.interface)?;
        sockets.go();
        let deadline = Instant::now() + ARRIVES_WITHIN * 2;
        Signals::await_that(|| !sockets.is_running() || Instant::now() >= deadline);
        sockets.end()?;
        let (completed, dropped) = sockets.completed();
        let outcome = self.outcome(completed, dropped, deadline);
        match outcome {
            _ if Signals::pending() => self.trial = Reading::not_available(INTERRUPTED),
            Ok(told) => self.trial = Reading::Known(told),
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

    fn outcome(&mut self, completed: u64, dropped: u64, deadline: Instant) -> Result<String, String> {
        if completed == 0 || dropped > 0 {
            let what = if dropped > 0 { "dropped by the device (EBUSY)" } else { "not taken out of the Tx ring" };
            let why = self.fault().unwrap_or_else(|| "nobody says why".into());
            return Err(format!("a trial frame was {what}: {why}"));
        }
        loop {
            match self.delivered() {
                Reading::NotAvailable { why } => return Ok(format!("was taken by the driver ({why})")),
                Reading::Known((counter, 1..)) => return Ok(format!("arrived ({counter})")),
                Reading::Known(_) if Instant::now() < deadline && Signals::sleep(Duration::from_millis(2)) => {}
                Reading::Known(_) => {
                    let why = self.fault().unwrap_or_else(|| "nobody says why".into());
                    return Err(format!("a trial frame was taken by the driver and never received: {why}"));
                }
            }
        }
    }

    /// The first of several threads alone, to compare all of them with.
    fn try_alone(&mut self) -> Result<()> {
        if self.spec.sockets.cpus.len() == 1 || self.spec.sockets.pace.is_some() || Signals::pending() {
            return Ok(());
        }
        let mut sockets = XskTx::prepare(&self.first_thread(), &self.spec.interface)?;
        let packets = |sockets: &XskTx| sockets.counts().iter().flatten().map(|counts| counts.packets).sum::<u64>();
        sockets.go();
        let mut pps = None;
        if Signals::sleep(ALONE / 3) {
            let (begin, before) = (Instant::now(), packets(&sockets));
            if Signals::sleep(ALONE / 3 * 2) {
                pps = PacketsPerSec::of(packets(&sockets) - before, begin.elapsed());
            }
        }
        sockets.end()?;
        let cpu_ns = PacketsPerSec::of(packets(&sockets), sockets.cpu_times().into_iter().sum());
        self.alone = pps.map(|pps| Alone { pps, cpu_ns: cpu_ns.and_then(PacketsPerSec::to_nanos) });
        thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    fn fault(&mut self) -> Option<String> {
        link_fault(&mut self.rtnl, self.target.ifindex)
    }

    fn delivered(&self) -> Reading<(String, u64)> {
        self.delivery.as_ref().and_then(Delivery::counted)
    }

    fn counts(&self) -> Vec<Vec<XskTxCounts>> {
        let sharers = if self.spec.sockets.shared { 4 } else { 1 };
        let none = || vec![vec![XskTxCounts::default(); sharers]; self.spec.sockets.cpus.len()];
        self.sockets.as_ref().map_or_else(none, XskTx::counts)
    }

    fn sent(&self, at: Instant) -> SentCounters {
        let of_thread = |sockets: &Vec<XskTxCounts>| {
            // Of frames that differ the sockets of a thread send each its part of one sequence.
            let packets = sockets.iter().map(|counts| counts.packets).sum();
            SentBy { packets, bytes: self.spec.sockets.traffic.bytes_of(packets) }
        };
        let gaps = self.sockets.as_ref().filter(|_| self.spec.sockets.pace.is_some()).map(XskTx::gaps);
        let late = self.sockets.as_ref().and_then(XskTx::lateness);
        SentCounters { at, senders: self.counts().iter().map(of_thread).collect(), gaps, late }
    }

    fn threads(&self) -> Vec<SendingThread> {
        let queues = self.spec.sockets.queue..;
        let thread = |(&cpu, queue)| SendingThread { cpu, queue: Some(queue) };
        self.spec.sockets.cpus.iter().zip(queues).map(thread).collect()
    }

    fn scaling(&self, total: &Interval) -> Option<Scaling> {
        let (alone, together) = self.alone.zip(total.sent.as_ref()?.pps)?;
        let contended =
            "they wait for each other at the receiver, whose queues are fewer than theirs, or at what all CPUs share";
        Some(Scaling::of(alone, together, &self.costs, || contended.into()))
    }

    fn limiter(&self, total: &Interval) -> Option<Reading<String>> {
        let sent = total.sent.as_ref().filter(|sent| sent.packets > 0)?;
        let pace = self.spec.sockets.pace;
        let kept = pace.zip(sent.gaps).is_some_and(|(pace, gaps)| is_kept(pace, &gaps));
        let busy = self.costs.iter().all(|cost| cost.known().is_some_and(|cost| cost.share >= BUSY));
        let (_, dropped) = self.sockets.as_ref().map_or((0, 0), XskTx::completed);
        Some(if kept {
            Reading::Known("the rate asked for".into())
        } else if dropped > sent.packets / 100 {
            Reading::Known(format!("the device or the receiver, which dropped {dropped} packets"))
        } else if busy {
            Reading::Known("the sending threads, busy all the time with what the kernel does in their name".into())
        } else {
            Reading::not_available("the threads were not busy all the time: they waited for the device or for a CPU")
        })
    }

    fn accounts(&self) -> Vec<Reading<Account>> {
        let counts: Vec<XskTxCounts> = self.counts().into_iter().flatten().collect();
        let packets: u64 = counts.iter().map(|counts| counts.packets).sum();
        let frames: u64 = counts.iter().map(|counts| counts.frames).sum();
        let (completed, dropped) = self.sockets.as_ref().map_or((0, 0), XskTx::completed);
        let by_ring = Account::new("frames sent", frames, [("completed", completed)]);
        let by_receiver = self.delivered().map(|(counter, received)| {
            let parts = [(counter.as_str(), received), ("dropped by the device", dropped)];
            Account::new("packets sent", packets, parts)
        });
        vec![Reading::Known(by_ring), by_receiver]
    }
}

fn reading(counts: &XskTxCounts) -> SocketCounts {
    SocketCounts {
        tx_packets: counts.packets,
        tx_frags: counts.frames,
        copy_tx_sendtos: counts.copy_wakeups,
        tx_wakeup_sendtos: counts.wakeups,
        opt_polls: counts.polls,
        ..SocketCounts::default()
    }
}

impl Source for XskSender {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let counts = self.counts();
        let kernel = self.sockets.as_ref().map_or(Ok(Vec::new()), XskTx::statistics)?;
        let mut kernel = kernel.into_iter();
        let socket = |counts: &XskTxCounts| SocketReading {
            counts: reading(counts),
            kernel: kernel.next().unwrap_or_default().into(),
        };
        let xsk = XskCounters {
            at,
            sockets: counts.iter().flatten().map(socket).collect(),
            redirected: 0,
            interrupts: self.irq.as_ref().map(Interrupts::read),
        };
        Ok(Counters { sent: Some(self.sent(at)), xsk: Some(xsk), ..Counters::empty(at) })
    }

    fn check(&mut self) -> Result<()> {
        readings::check_there(&mut self.rtnl, &self.target)?;
        match &mut self.sockets {
            Some(sockets) if !sockets.is_running() => sockets.end(),
            _ => Ok(()),
        }
    }

    fn ended(&mut self) -> Result<Option<EndedBy>> {
        // With the count sent threads still wait for the last frames to come back.
        let done = self.sockets.as_ref().is_some_and(|sockets| !sockets.is_running());
        Ok(done.then_some(EndedBy::Count))
    }

    fn judge(&mut self, interval: &Interval) -> Result<()> {
        let pace = self.spec.sockets.pace;
        let expected = pace.map_or(f64::MAX, |pace| pace.pps * interval.period_s / f64::from(pace.burst));
        let too_short = interval.partial && interval.period_s < 0.1;
        let sent = interval.sent.as_ref().map_or(0, |sent| sent.packets);
        if sent > 0 {
            self.sent_at = Instant::now();
        }
        let all: u64 = self.sent(Instant::now()).senders.iter().map(|sender| sender.packets).sum();
        let done = self.spec.sockets.count.is_some_and(|count| all >= count);
        let (_, dropped) = self.sockets.as_ref().map_or((0, 0), XskTx::completed);
        let dropped_now = dropped - std::mem::replace(&mut self.dropped, dropped);
        // Of what was dropped some may have been sent in the interval before.
        let all_dropped = dropped_now > 0 && dropped_now >= sent;
        if self.spec.keep_going || too_short || expected < 3.0 || sent > 0 && !all_dropped || done {
            return Ok(());
        }
        let mut why: Vec<String> = self.fault().into_iter().collect();
        if all_dropped {
            why.push(format!("the device or the receiver dropped {dropped_now} packets (EBUSY)"));
        }
        if why.is_empty() && self.sent_at.elapsed() < HAS_RUN_WITHIN {
            return Ok(());
        }
        if why.is_empty() {
            why.push("the Tx ring is full: the driver takes no packet out of it, or gives no frame back".into());
        }
        let what = format!("send packets out of {}", self.target.name);
        let empty = format!("none was sent in {:.1} s: {}", interval.period_s, why.join("; "));
        Err(Error::invalid(what, empty).remedy("--keep-going goes on all the same"))
    }

    fn stop(&mut self) -> Result<()> {
        let Some(sockets) = &mut self.sockets else { return Ok(()) };
        let period = self.begun.elapsed();
        let ended = sockets.end();
        let threads = sockets.counts().into_iter().zip(sockets.cpu_times()).zip(&self.spec.sockets.cpus);
        let cost = |((counts, busy), cpu): ((Vec<XskTxCounts>, Duration), &usize)| {
            let packets = counts.iter().map(|counts| counts.packets).sum();
            CpuCost::of(format!("sending thread on CPU {cpu}"), busy, period, packets)
        };
        self.costs = threads.map(cost).map(Reading::Known).collect();
        // Of an interface that is gone sockets say that it is down.
        readings::check_there(&mut self.rtnl, &self.target).and(ended)
    }
}

impl Sender for XskSender {
    fn begin(&mut self) -> Result<Counters> {
        let sockets = XskTx::prepare(&self.spec.sockets, &self.spec.interface)?;
        self.delivery = Delivery::of(&mut self.rtnl, &self.target);
        self.target = self.rtnl.link_by_index(self.target.ifindex)?;
        self.sockets = Some(sockets);
        let first = self.read()?;
        self.begun = Instant::now();
        self.sent_at = self.begun;
        if let Some(sockets) = &self.sockets {
            sockets.go();
        }
        Ok(first)
    }

    fn start(&self, started: String) -> Start {
        let LinkInfo { name, ifindex, .. } = &self.target;
        let target = Target {
            interface: name.clone(),
            ifindex: *ifindex,
            driver: readings::driver(name),
            xdp_features: features(*ifindex),
            passes: false,
        };
        let spec = &self.spec.sockets;
        let (shortest, longest) = spec.traffic.lengths(self.spec.headers_len);
        let sending = Sending {
            threads: self.threads(),
            shortest,
            longest,
            frames: spec.traffic.templates().len(),
            flows: spec.traffic.fields().map_or(1, |fields| fields.variation.flows()),
            batch: spec.batch,
            rate: self.spec.rate,
            pace: spec.pace,
            trial: self.trial.clone(),
            alone: self.alone.map(|alone| alone.pps),
        };
        let mut notes = self.notes.clone();
        notes.extend(self.delivery.known().and_then(|delivery| delivery.ignored(spec.traffic.longest())));
        let mode = self.sockets.as_ref().map_or(xsk::Mode::Copy, XskTx::mode);
        let xsk = XskStart {
            queue: spec.queue,
            sockets: self.counts().iter().map(Vec::len).sum(),
            mode: match mode {
                xsk::Mode::Copy => "copy".into(),
                xsk::Mode::ZeroCopy => "zero-copy".into(),
            },
            frame_size: spec.frame_size,
            huge_pages: self.sockets.as_ref().is_some_and(|sockets| sockets.pages() != xsk::Pages::Base),
            batch: spec.batch,
        };
        Start {
            targets: vec![target],
            notes,
            xsk: Some(xsk),
            sending: Some(sending),
            started,
            ..Start::of("trafficgen xsk-udp")
        }
    }

    fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        if self.costs.is_empty() {
            self.stop()?;
        }
        let ledger = settled(ARRIVES_WITHIN, || Ok(self.accounts()))?;
        let ended_by = match ledger.iter().filter_map(Reading::known).find(|account| !account.agrees()) {
            Some(account) if !self.spec.keep_going => disagreement(account, ended_by),
            _ => ended_by,
        };
        let sending = SendingEnd {
            threads: self.threads(),
            asked: self.spec.sockets.pace.map(|pace| PacketsPerSec(pace.pps)),
            burst: self.spec.sockets.pace.map_or(1, |pace| pace.burst),
            scaling: self.scaling(&total),
        };
        Ok(End {
            interface: readings::counted_since(&mut self.rtnl, &self.target),
            limiter: self.limiter(&total),
            cpus: std::mem::take(&mut self.costs),
            ledger,
            sending: Some(sending),
            ..End::new(total, ended_by)
        })
    }
}
