//! `redirect-cpu`: packets of an interface given to other CPUs.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::counters::{Counters, Group, Place};
use super::cpu_cost::CpuCost;
use super::cpumap::{CpumapCounters, CpumapInterval, RemoteProgram};
use super::event::{End, EndedBy, Start};
use super::interval::{Interval, WallClock};
use super::ledger::Account;
use super::readings;
use super::receiver::{Program, Receiver, SETTLED_WITHIN, Target, observe};
use super::redirect::refuse_deaf;
use super::session::Source;
use super::softirq::RxCost;
use crate::device::{Counts, CpumapProgram, CpumapSpec, Remote, Verdicts};
use crate::error::Result;
use crate::host::{CpuTimes, ThreadClock};
use crate::netlink::{Rtnl, XdpMode};
use crate::observe::{CpumapObserver, Figure, Observers};
use crate::reading::Reading;
use crate::topology::NetNs;

/// A program that redirects to other CPUs, attached to an interface of the calling thread's network namespace, and what
/// is counted of it. Dropping it detaches, and so does the end of the process.
pub struct CpumapDevice {
    receiver: Receiver,
    program: CpumapProgram,
    observer: Reading<CpumapObserver>,
    mode: XdpMode,
    netns: u64,
    stress: Option<Stress>,
    kthreads: BTreeMap<u32, Reading<(ThreadClock, Duration)>>,
    cpu_times: Reading<CpuTimes>,
    opened: Instant,
}

/// When the queues are next made anew.
struct Stress {
    every: Duration,
    due: Instant,
}

impl CpumapDevice {
    /// Fills the maps, then attaches the program. Nothing is changed where that is refused. With `stress` the queues are
    /// made anew after each such time.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, it is in use (unless `force`), it has a program already
    /// or can't run one in this mode, a CPU is not there, or the kernel refused a queue.
    pub fn attach(name: &str, spec: CpumapSpec, mode: XdpMode, stress: Option<Duration>, force: bool) -> Result<Self> {
        let target = Target::open(name, force)?;
        let mut figures = vec![Figure::Exceptions, Figure::RedirectErrors];
        if let Remote::Redirect { ifindex, .. } = spec.remote {
            refuse_deaf(&Rtnl::open()?.link_by_index(ifindex)?, mode)?;
            figures.extend([Figure::Xmit, Figure::Flows]);
        }
        let program = CpumapProgram::load(spec, target.rx_queues)?;
        let observer = observe(|| CpumapObserver::attach(Some(program.map_id()), program.remote_id()));
        let xmit_to = match program.spec().remote {
            Remote::Redirect { ifindex, .. } => ifindex,
            _ => 0,
        };
        let told = Program {
            command: "redirect-cpu".into(),
            name: format!("redirect-cpu:{}", program.spec().selection),
            fd: program.fd(),
        };
        let receiver = target.attach(&told, mode, &figures, xmit_to)?;
        let kthreads = program.spec().cpus.iter().map(|&cpu| {
            let clock = match stress {
                None => ThreadClock::of_cpumap(cpu, program.map_id()),
                Some(_) => Reading::not_available(format!("remote CPU {cpu}: its kthread is made anew all the time")),
            };
            (cpu, clock.and_then(|clock| clock.run_time().map(|run| (clock, run)).into()))
        });
        let now = Instant::now();
        Ok(Self {
            kthreads: kthreads.collect(),
            cpu_times: CpuTimes::read().into(),
            receiver,
            observer,
            mode,
            netns: NetNs::current()?.inode(),
            stress: stress.map(|every| Stress { every, due: now + every }),
            opened: now,
            program,
        })
    }

    /// What is attached where, once the first reading has been made.
    #[must_use]
    pub fn start(&self, started: String) -> Start {
        self.receiver.start(started)
    }

    /// The end of a command on this device: detaches, and waits for the packets on their way.
    ///
    /// # Errors
    /// The counters can't be read.
    pub fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        let received = total.received.as_ref().filter(|received| received.packets > 0);
        let rx = received.map(|received| self.receiver.softirqs.close(received));
        let cpus = self.costs(total.cpumap.as_ref());
        let limiter = rx.as_ref().map(|rx| self.limiter(total.cpumap.as_ref(), rx, &cpus));
        self.receiver.detach();
        let settled = self.settle()?;
        Ok(End {
            cpus: rx.iter().filter_map(|rx| rx.threads.clone()).chain(cpus).collect(),
            softirq: rx.map(|rx| rx.softirq),
            interface: self.receiver.interface(),
            limiter,
            ledger: self.ledger(&settled),
            ..End::new(total, ended_by)
        })
    }

    fn costs(&self, cpumap: Option<&CpumapInterval>) -> Vec<Reading<CpuCost>> {
        let period = self.opened.elapsed();
        let shares = self.cpu_times.as_ref().and_then(|earlier| CpuTimes::read().map(|now| now.since(earlier)).into());
        let processed = |cpu: u32| {
            let kthreads = cpumap.map(|cpumap| cpumap.kthreads.as_ref());
            let kthreads = kthreads.unwrap_or_else(|| Reading::not_available("not counted"));
            kthreads.map(|kthreads| kthreads.cpus.get(&cpu).map_or(0, |kthread| kthread.processed))
        };
        let cost = |(cpu, opened): (&u32, &Reading<(ThreadClock, Duration)>)| {
            let busy = opened.as_ref().and_then(|(clock, begin)| clock.run_time().map(|now| now - *begin).into());
            busy.and_then(|busy| {
                processed(*cpu).map(|packets| CpuCost {
                    cpu: shares.known().and_then(|shares| shares.get(cpu)?.known().copied()),
                    ..CpuCost::of(format!("remote CPU {cpu}"), busy, period, packets)
                })
            })
        };
        self.kthreads.iter().map(cost).collect()
    }

    /// A queue that overflowed, else a CPU that had no time left, else the sender.
    fn limiter(&self, cpumap: Option<&CpumapInterval>, rx: &RxCost, cpus: &[Reading<CpuCost>]) -> Reading<String> {
        let enqueued = cpumap.and_then(|cpumap| cpumap.enqueued.known());
        let overflowed = enqueued.and_then(|enqueued| {
            let drops =
                enqueued.to.iter().map(|(cpu, from)| (from.values().map(|counts| counts.drops).sum::<u64>(), cpu));
            drops.max().filter(|(drops, _)| *drops > 0)
        });
        if let Some((_, cpu)) = overflowed {
            return Reading::Known(format!("remote CPU {cpu}, whose queue was full at times"));
        }
        if let Some(saturated) = cpus.iter().filter_map(Reading::known).find_map(CpuCost::saturated) {
            return Reading::Known(saturated);
        }
        rx.limiter()
    }

    /// All that was counted, once nothing is on its way any more.
    fn settle(&mut self) -> Result<Interval> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        loop {
            // From the very beginning: the first reading had packets on their way that some had counted and others not.
            let begin = zero(self.opened);
            let interval = Interval::between(&begin, &self.read()?, false, &WallClock::start(begin.at));
            let balanced = |account: &Reading<Account>| account.known().is_none_or(|account| account.residual == 0);
            if self.ledger(&interval).iter().all(balanced) || Instant::now() >= deadline {
                return Ok(interval);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the other CPUs transmit, through a driver: only then is there a bulk to be observed.
    fn is_transmission_counted(&self) -> bool {
        self.mode == XdpMode::Native && matches!(self.program.spec().remote, Remote::Redirect { .. })
    }

    fn ledger(&self, interval: &Interval) -> Vec<Reading<Account>> {
        let (Some(received), Some(cpumap)) = (&interval.received, &interval.cpumap) else { return Vec::new() };
        let Verdicts { dropped, passed, redirected } = cpumap.verdicts();
        let parts =
            [("redirected", redirected), ("dropped", dropped), ("passed", passed), ("aborted", received.aborted)];
        let xmit = self.receiver.observers.as_ref().and_then(Observers::xmit);
        let remote = match self.program.spec().remote {
            Remote::Disabled => RemoteProgram::None,
            Remote::Redirect { .. } if self.is_transmission_counted() => RemoteProgram::Redirects(&xmit),
            _ => RemoteProgram::Some,
        };
        let mut accounts = vec![Reading::Known(Account::new("received", received.packets, parts))];
        accounts.extend(cpumap.accounts(self.mode == XdpMode::Generic, remote));
        accounts
    }
}

/// The counters before the first packet.
fn zero(at: Instant) -> Counters {
    let cpumap = CpumapCounters {
        verdicts: Group::zero(at),
        enqueued: Reading::Known(Group::zero(at)),
        kthreads: Reading::Known(Group::zero(at)),
        redirect_errors: Reading::Known(Group::zero(at)),
        remote_errors: Reading::Known(Group::zero(at)),
    };
    Counters { received: Some(Group::zero(at)), cpumap: Some(cpumap), ..Counters::empty(at) }
}

impl Source for CpumapDevice {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let (mut received, mut verdicts) = (BTreeMap::<Place, Counts>::new(), BTreeMap::<u32, Verdicts>::new());
        for (queue, cpus) in (0u32..).zip(self.program.counts()?) {
            for (cpu, (counts, decided)) in (0u32..).zip(cpus) {
                received.insert(Place { queue, cpu }, counts);
                *verdicts.entry(cpu).or_default() += decided;
            }
        }
        let observers = self.receiver.observers.as_ref();
        let cpumap = CpumapCounters {
            verdicts: Group { at, rows: verdicts },
            enqueued: Group::read(|| self.observer.as_ref().and_then(CpumapObserver::enqueued)),
            kthreads: Group::read(|| self.observer.as_ref().and_then(CpumapObserver::kthreads)),
            redirect_errors: Group::read(|| observers.clone().and_then(Observers::redirect_errors)),
            remote_errors: Group::read(|| self.observer.as_ref().and_then(CpumapObserver::remote_errors)),
        };
        let xmit = || observers.and_then(|observers| readings::xmit(observers, self.netns, |_flow| true));
        let counters = Counters {
            received: Some(Group { at, rows: received }),
            exceptions: Some(self.receiver.exceptions()),
            xmit: self.is_transmission_counted().then(xmit),
            cpumap: Some(cpumap),
            ..Counters::empty(at)
        };
        if let Some(stress) = self.stress.as_mut().filter(|stress| at >= stress.due) {
            stress.due = at + stress.every;
            self.program.stress()?;
        }
        Ok(counters)
    }

    fn check(&mut self) -> Result<()> {
        self.receiver.check()
    }
}
