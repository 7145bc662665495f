//! A sliced device on an interface: rounds of slices taken from whatever comes in there.

use std::mem::{replace, take};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::remote::{Remotes, Round};
use super::{DRAIN_EVERY, Witnesses, load, open_sockets};
use crate::device::{Attachment, Counts, HandedOn, SlicedDevice, XskSockets};
use crate::error::{Error, Result};
use crate::host::{CpuShares, CpuTimes};
use crate::netlink::{LinkStats, XdpMode};
use crate::observe::{Interface, PoolPaths};
use crate::observed::{SocketOutcome, Sockets, by_round};
use crate::reading::Reading;
use crate::remote::RemoteTime;
use crate::run::{self, Plan, Progress};
use crate::sample::{DispatcherCounts, SliceReader};
use crate::stats::Slice;
use crate::topology::NetNs;

/// Traffic before the first slice that counts: frequency, caches and rings settle.
const RAMP: Duration = Duration::from_millis(300);
/// By which factor there are more rounds when the interval's width is looked at again: each look takes longer than the one
/// before, and steals time from the run.
const NEXT_LOOK: f64 = 1.25;
/// How long packets may be under way after the generator has stopped.
pub(super) const SETTLE_DEADLINE: Duration = Duration::from_secs(2);

/// What packets come from, and whether they still come.
pub(crate) trait Traffic {
    /// Looks after `seconds` of a round, in which `packets` came.
    ///
    /// # Errors
    /// None come, or too few.
    fn check(&self, seconds: f64, packets: u64) -> Result<()>;
}

/// A device attached for one measurement. Fields are dropped in this order: first what is attached.
pub(crate) struct Attached {
    attachment: Option<Attachment>,
    device: SlicedDevice,
    reader: SliceReader,
    // After the programs, so that no packet comes to a closed one.
    sockets: Option<XskSockets>,
    retired: Counted,
    remotes: Remotes,
    netns: NetNs,
    ifindex: u32,
}

/// What the devices of earlier rounds counted.
pub(crate) struct Counted {
    pub(crate) dispatcher: DispatcherCounts,
    /// For each RX queue, each possible CPU.
    pub(crate) programs: Reading<Vec<Vec<Counts>>>,
    pub(crate) handed_on: Reading<HandedOn>,
}

impl Default for Counted {
    fn default() -> Self {
        Self {
            dispatcher: DispatcherCounts::default(),
            programs: Reading::Known(Vec::new()),
            handed_on: Reading::Known(HandedOn::default()),
        }
    }
}

impl Counted {
    pub(crate) fn add(&mut self, dispatcher: &DispatcherCounts, device: &SlicedDevice) {
        self.dispatcher += dispatcher;
        self.handed_on = self.handed_on.clone().and_then(|mut sum| {
            device.handed_on().map(|handed_on| {
                sum += handed_on;
                sum
            })
        });
        let before = replace(&mut self.programs, Reading::Known(Vec::new()));
        self.programs = before.and_then(|mut sum| {
            device.counts().map(|counts| {
                sum.resize_with(counts.len().max(sum.len()), Vec::new);
                for (sum, counts) in sum.iter_mut().zip(counts) {
                    sum.resize_with(counts.len().max(sum.len()), Counts::default);
                    sum.iter_mut().zip(counts).for_each(|(sum, counts)| *sum += counts);
                }
                sum
            })
        });
    }
}

/// What was taken while the generator ran.
pub(crate) struct Sampled {
    pub(crate) slices: Vec<Slice>,
    /// Slices of each round.
    pub(super) rounds: Vec<usize>,
    pub(super) seconds: f64,
    pub(crate) interrupted: bool,
    pub(crate) cpu_shares: Reading<Vec<(u32, Reading<CpuShares>)>>,
}

impl Default for Sampled {
    fn default() -> Self {
        let cpu_shares = Reading::not_available("CPU times were not read");
        Self { slices: Vec::new(), rounds: Vec::new(), seconds: 0.0, interrupted: false, cpu_shares }
    }
}

impl Attached {
    /// Loads the device of the first round, with its maps filled, and attaches it.
    pub(super) fn attach(plan: &Plan, netns: &NetNs, ifindex: u32) -> Result<Self> {
        let sockets = netns.run(|| open_sockets(plan, ifindex))?;
        let (device, reader) = netns.run(|| load(plan, 0, sockets.as_ref()))?;
        let attachment = netns.run(|| Attachment::attach(device.fd()?, ifindex, plan.xdp_mode))?;
        let (attachment, retired, netns) = (Some(attachment), Counted::default(), netns.try_clone()?);
        let remotes = Remotes::of(plan);
        Ok(Self { attachment, device, reader, sockets, retired, remotes, netns, ifindex })
    }

    pub(super) fn detach(&mut self) {
        self.attachment = None;
    }

    pub(super) fn watched(&self) -> Interface {
        Interface { ifindex: self.ifindex, netns: self.netns.inode() }
    }

    pub(super) fn interface_stats(&self) -> Result<LinkStats> {
        let link = self.netns.rtnl()?.link_by_index(self.ifindex)?;
        link.stats.ok_or_else(|| {
            Error::unsupported(format!("read the statistics of {}", link.name), "the kernel left IFLA_STATS64 out")
        })
    }

    /// What its page pools did so far.
    pub(super) fn pool_paths(&self) -> Reading<PoolPaths> {
        PoolPaths::read(&self.netns, self.ifindex)
    }

    /// The mode of the one program that is attached, as the kernel says it.
    pub(super) fn xdp_mode(&self) -> Result<Option<XdpMode>> {
        let xdp = self.netns.rtnl()?.link_by_index(self.ifindex)?.xdp;
        Ok(xdp.first().map(|attached| attached.mode).filter(|_| xdp.len() == 1))
    }

    /// What AF_XDP sockets did so far, if there are any.
    pub(super) fn sockets(&self) -> Option<Reading<Sockets>> {
        let read = |sockets: &XskSockets| {
            let (completed, tx_dropped) = sockets.completed();
            let spec = sockets.spec();
            let each = spec.sockets.iter().zip(sockets.readings()?);
            Ok::<_, Error>(Sockets {
                queue: spec.queue,
                mode: sockets.mode().into(),
                cpu: spec.cpu,
                each: each.map(|(handling, reading)| SocketOutcome { xsk: handling.action, reading }).collect(),
                completed,
                tx_dropped,
            })
        };
        self.sockets.as_ref().map(|sockets| Reading::from(read(sockets)))
    }

    /// Takes slices in rounds; for each, everything that slices depend on is loaded anew while packets go on.
    pub(super) fn rounds(
        &mut self,
        plan: &Plan,
        witnesses: &mut Witnesses,
        traffic: &dyn Traffic,
        progress: &mut dyn Progress,
        stop: &AtomicBool,
    ) -> Result<Sampled> {
        let times = CpuTimes::read();
        let (begin, busy_before) = (Instant::now(), self.sockets.as_ref().map(XskSockets::busy_in_all));
        let mut sampled = Sampled::default();
        sleep(RAMP);
        let mut looks = Looks::at(plan.rounds);
        for round in 0..plan.most_rounds() {
            if looks.is_over(plan, sampled.seconds, &sampled.slices, &sampled.rounds) {
                break;
            }
            if round > 0 {
                self.load_anew(plan, round, witnesses)?;
            }
            let before = sampled.slices.len();
            self.skip();
            let until = |seconds: f64, slices: &[Slice]| plan.is_round_done(seconds, &slices[before..]);
            self.sample(&until, plan.seconds, traffic, &mut sampled, progress, stop)?;
            sampled.rounds.push(sampled.slices.len() - before);
            sampled.interrupted = stop.load(Ordering::Relaxed);
            if sampled.interrupted {
                break;
            }
        }
        sampled.cpu_shares = shares_since(times);
        if let Some((now, before)) = self.sockets.as_ref().map(XskSockets::busy_in_all).zip(busy_before) {
            self.remotes.thread_was_busy(now.saturating_sub(before).as_secs_f64() / begin.elapsed().as_secs_f64());
        }
        Ok(sampled)
    }

    /// Puts a newly loaded device in the place of the present one, whose counts are kept.
    fn load_anew(&mut self, plan: &Plan, round: u16, witnesses: &mut Witnesses) -> Result<()> {
        let (device, reader) = self.netns.run(|| load(plan, round, self.sockets.as_ref()))?;
        if let Some(attachment) = &self.attachment {
            attachment.replace(device.fd()?)?;
        }
        let (old_device, old_reader) = (replace(&mut self.device, device), replace(&mut self.reader, reader));
        // A poll that began before the change goes on with the old program to its end; caches and branch predictors settle.
        sleep(DRAIN_EVERY);
        self.retired.add(&old_reader.counts()?, &old_device);
        let (sockets, queue_drops) = (self.sockets.as_ref(), witnesses.take_queue_drops());
        self.remotes.close(&Round { device: &old_device, sockets, queue_drops });
        Ok(())
    }

    /// Throws away the slices that are there.
    pub(crate) fn skip(&mut self) {
        self.reader.drain(&mut Vec::new());
    }

    /// Takes slices until the seconds that went by and the slices of the run are enough; the whole run has `of` seconds.
    pub(crate) fn sample(
        &mut self,
        enough: &dyn Fn(f64, &[Slice]) -> bool,
        of: f64,
        traffic: &dyn Traffic,
        sampled: &mut Sampled,
        progress: &mut dyn Progress,
        stop: &AtomicBool,
    ) -> Result<()> {
        let begin = Instant::now();
        while !enough(begin.elapsed().as_secs_f64(), &sampled.slices) && !stop.load(Ordering::Relaxed) {
            sleep(DRAIN_EVERY);
            self.reader.drain(&mut sampled.slices);
            let packets = self.reader.counts()?.cpu_packets.iter().sum();
            traffic.check(begin.elapsed().as_secs_f64(), packets)?;
            self.sockets.as_mut().map_or(Ok(()), XskSockets::check)?;
            progress.sampling(sampled.seconds + begin.elapsed().as_secs_f64(), of, sampled.slices.len());
        }
        sampled.seconds += begin.elapsed().as_secs_f64();
        Ok(())
    }

    /// Waits until the device has seen nothing new for a while, and says what all devices saw, and what became of the time of
    /// the other CPUs.
    pub(super) fn settle(&mut self, witnesses: &mut Witnesses) -> Result<(Counted, Vec<RemoteTime>)> {
        let deadline = Instant::now() + SETTLE_DEADLINE;
        let mut before = self.reader.counts()?;
        loop {
            sleep(DRAIN_EVERY);
            let now = self.reader.counts()?;
            if now == before || Instant::now() > deadline {
                let mut counted = take(&mut self.retired);
                counted.add(&now, &self.device);
                let (sockets, queue_drops) = (self.sockets.as_ref(), witnesses.take_queue_drops());
                self.remotes.close(&Round { device: &self.device, sockets, queue_drops });
                return Ok((counted, self.remotes.times()));
            }
            before = now;
        }
    }
}

/// When a run has enough rounds: its time is over, or the difference is resolved, for which it looks from time to time.
pub(crate) struct Looks {
    next: u16,
}

impl Looks {
    /// The first look is after so many rounds.
    pub(crate) fn at(rounds: u16) -> Self {
        Self { next: rounds }
    }

    /// Whether what is there, taken in so many seconds, is enough.
    pub(crate) fn is_over(&mut self, plan: &Plan, seconds: f64, slices: &[Slice], rounds: &[usize]) -> bool {
        if seconds >= plan.seconds - plan.round_seconds() / 2.0 {
            return true;
        }
        if rounds.len() != usize::from(self.next) {
            return false;
        }
        self.next = (f64::from(self.next) * NEXT_LOOK).ceil() as u16;
        run::is_resolved(plan, &by_round(slices, rounds))
    }
}

pub(crate) fn shares_since(earlier: Result<CpuTimes>) -> Reading<Vec<(u32, Reading<CpuShares>)>> {
    earlier.and_then(|earlier| Ok(CpuTimes::read()?.since(&earlier).into_iter().collect())).into()
}
