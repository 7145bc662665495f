//! `xsk-drop` and `xsk-tx`: packets of a queue given to AF_XDP sockets.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::counters::{Counters, Group, Place};
use super::cpu_cost::CpuCost;
use super::event::{End, EndedBy, Start, XskStart};
use super::interval::{Interval, WallClock};
use super::ledger::Account;
use super::receiver::{Program, Receiver, SETTLED_WITHIN, Target};
use super::session::Source;
use super::softirq::RxCost;
use super::xsk::XskCounters;
use crate::device::{Counts, Handling, SocketReading, XskAction, XskCounts, XskProgram, XskSockets, XskSpec};
use crate::error::{Error, Result};
use crate::netlink::XdpMode;
use crate::observe::{Figure, Observers};
use crate::reading::Reading;
use crate::remote::{FILL_RING_EMPTY, RX_RING_FULL};

/// AF_XDP sockets on a queue of an interface of the calling thread's network namespace, with the program that gives packets
/// to them and the thread that handles those. Dropping it detaches and closes, and so does the end of the process.
pub struct XskDevice {
    // The program goes before the sockets, so that no packet comes to a closed one.
    receiver: Receiver,
    program: XskProgram,
    sockets: XskSockets,
    opened: Instant,
    irq: Option<Interrupts>,
}

impl XskDevice {
    /// Binds the sockets, fills the map and attaches the program. Nothing is changed where that is refused. With
    /// `irq_string` the interrupts of the first line of `/proc/interrupts` are counted that has it.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, it is in use (unless `force`), it has a program already
    /// or can't run one in this mode, there is no such queue, or a setting of the sockets was refused.
    pub fn attach(name: &str, spec: XskSpec, mode: XdpMode, irq_string: Option<&str>, force: bool) -> Result<Self> {
        let target = Target::open(name, force)?;
        let irq = irq_string.map(Interrupts::find).transpose()?;
        let sockets = XskSockets::open(spec, name, target.link.ifindex)?;
        let program = XskProgram::load(sockets.spec().queue, sockets.fds(), target.rx_queues)?;
        let command = handling(&sockets).action.command();
        let told = Program { command: command.into(), name: command.into(), fd: program.fd() };
        let receiver = target.attach(&told, mode, &[Figure::Exceptions, Figure::RedirectErrors], 0)?;
        Ok(Self { receiver, program, sockets, opened: Instant::now(), irq })
    }

    /// What is attached where, once the first reading has been made.
    #[must_use]
    pub fn start(&self, started: String) -> Start {
        let spec = self.sockets.spec();
        let xsk = XskStart {
            queue: spec.queue,
            sockets: spec.sockets.len(),
            mode: self.sockets.mode().into(),
            frame_size: spec.frame_size,
            huge_pages: self.sockets.pages() != xsk::Pages::Base,
            batch: handling(&self.sockets).batch,
        };
        Start { xsk: Some(xsk), ..self.receiver.start(started) }
    }

    /// The end of a command on this device: detaches, and waits for the packets on their way.
    ///
    /// # Errors
    /// The counters can't be read.
    pub fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        let received = total.received.as_ref().filter(|received| received.packets > 0);
        let rx = received.map(|received| self.receiver.softirqs.close(received));
        let cost = self.cost(&total);
        let limiter = rx.as_ref().map(|rx| self.limiter(&total, rx, &cost));
        self.receiver.detach();
        let ledger = self.settle()?;
        Ok(End {
            cpus: rx.iter().filter_map(|rx| rx.threads.clone()).chain([Reading::Known(cost)]).collect(),
            softirq: rx.map(|rx| rx.softirq),
            interface: self.receiver.interface(),
            limiter,
            ledger,
            ..End::new(total, ended_by)
        })
    }

    fn cost(&self, total: &Interval) -> CpuCost {
        let packets = total.xsk.as_ref().map_or(0, |xsk| xsk.total().rx_packets);
        let busy = self.sockets.busy(&handling(&self.sockets));
        let role = if self.polls_driver() { "AF_XDP thread, which polls the driver too" } else { "AF_XDP thread" };
        CpuCost::of(role.into(), busy, self.opened.elapsed(), packets)
    }

    /// Whether the thread receives in the kernel whenever it finds no packets.
    fn polls_driver(&self) -> bool {
        self.sockets.spec().busy_poll && !handling(&self.sockets).poll
    }

    /// A ring that overflowed or ran empty, else a CPU that had no time left, else the sender.
    fn limiter(&self, total: &Interval, rx: &RxCost, cost: &CpuCost) -> Reading<String> {
        if let Some(xsk) = &total.xsk {
            if xsk.ring_full() > 0 {
                return Reading::Known(RX_RING_FULL.into());
            }
            if xsk.dropped() > 0 {
                return Reading::Known(FILL_RING_EMPTY.into());
            }
        }
        // One that polls the driver is always busy.
        if let Some(saturated) = Some(cost).filter(|_| !self.polls_driver()).and_then(CpuCost::saturated) {
            return Reading::Known(format!("the {saturated}"));
        }
        rx.limiter()
    }

    /// The accounts, once nothing is on its way any more.
    fn settle(&mut self) -> Result<Vec<Reading<Account>>> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        loop {
            // From the very beginning: the first reading had packets on their way that some had counted and others not.
            let begin = zero(self.opened, self.sockets.spec().sockets.len());
            let interval = Interval::between(&begin, &self.read()?, false, &WallClock::start(begin.at));
            let accounts = self.accounts(&interval);
            let balanced = |account: &Reading<Account>| account.known().is_none_or(|account| account.residual == 0);
            if accounts.iter().all(balanced) || Instant::now() >= deadline {
                return Ok(accounts);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn accounts(&self, interval: &Interval) -> Vec<Reading<Account>> {
        let (Some(received), Some(xsk)) = (&interval.received, &interval.xsk) else { return Vec::new() };
        let parts = [("redirected", xsk.redirected), ("aborted", received.aborted)];
        let errors = self.receiver.observers.as_ref().and_then(Observers::redirect_errors);
        let mut accounts = vec![
            Reading::Known(Account::new("received", received.packets, parts)),
            errors.map(|errors| xsk.received(errors.iter().map(|(errno, packets)| (errno.as_str(), *packets)))),
        ];
        if handling(&self.sockets).action == XskAction::Tx {
            let (completed, dropped) = self.sockets.completed();
            let counts = xsk.total();
            let sent = Account::new("received by sockets", counts.rx_packets, [("sent", counts.tx_packets)]);
            let parts = [("completed", completed.saturating_sub(dropped)), ("dropped by the device", dropped)];
            accounts.extend([sent, Account::new("frames sent", counts.tx_frags, parts)].map(Reading::Known));
        }
        accounts
    }
}

impl Source for XskDevice {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let queue = self.sockets.spec().queue;
        let of_queue = usize::try_from(queue).unwrap_or(usize::MAX);
        let counts = self.program.counts()?.into_iter().nth(of_queue).unwrap_or_default();
        let redirected = counts.iter().map(|counts| counts.redirected).sum();
        let cpus = (0u32..).zip(counts);
        let rows = cpus.map(|(cpu, XskCounts { redirected, aborted, .. })| {
            (Place { queue, cpu }, Counts { packets: redirected + aborted, aborted })
        });
        let received = Group { at, rows: rows.collect() };
        let at_sockets = Instant::now();
        let xsk = XskCounters {
            at: at_sockets,
            sockets: self.sockets.readings()?,
            redirected,
            interrupts: self.irq.as_ref().map(Interrupts::read),
        };
        let counters = Counters {
            received: Some(received),
            exceptions: Some(self.receiver.exceptions()),
            xsk: Some(xsk),
            ..Counters::empty(at)
        };
        Ok(counters)
    }

    fn check(&mut self) -> Result<()> {
        self.receiver.check()?;
        self.sockets.check()
    }
}

/// How all of the sockets are handled.
fn handling(sockets: &XskSockets) -> Handling {
    sockets.spec().sockets[0]
}

/// The counters before the first packet.
fn zero(at: Instant, sockets: usize) -> Counters {
    let xsk = XskCounters { at, sockets: vec![SocketReading::default(); sockets], redirected: 0, interrupts: None };
    Counters { received: Some(Group::zero(at)), xsk: Some(xsk), ..Counters::empty(at) }
}

/// An interrupt line (`/sys/kernel/irq`, kernel with `CONFIG_SPARSE_IRQ`).
#[derive(Debug)]
pub(super) struct Interrupts {
    number: u32,
}

impl Interrupts {
    /// The first line of `/proc/interrupts` that has `text` in it.
    pub(super) fn find(text: &str) -> Result<Self> {
        const PATH: &str = "/proc/interrupts";
        let what = format!("find the interrupt {text:?} in {PATH}");
        let lines = fs::read_to_string(PATH).map_err(|error| Error::io(&what, "read", &error))?;
        let found = number_of(&lines, text).ok_or_else(|| {
            Error::usage(&what, "no line with a number has it").remedy("choose a text from that file, or leave -I out")
        })?;
        let interrupts = Self { number: found };
        interrupts.read().into_result().map_err(|why| Error::invalid(what, why))?;
        Ok(interrupts)
    }

    /// Interrupts so far, on all CPUs.
    pub(super) fn read(&self) -> Reading<u64> {
        let path = format!("/sys/kernel/irq/{}/per_cpu_count", self.number);
        match fs::read_to_string(&path) {
            Ok(text) => sum_of(&text).ok_or_else(|| format!("{path}: unexpected {text:?}")).into(),
            Err(error) => Reading::not_available(format!("{path}: {error}")),
        }
    }
}

fn number_of(lines: &str, text: &str) -> Option<u32> {
    let mut found = lines.lines().filter(|line| line.contains(text));
    found.find_map(|line| line.split_once(':')?.0.trim().parse().ok())
}

fn sum_of(counts: &str) -> Option<u64> {
    counts.trim_end().split(',').map(|count| count.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_found_by_any_part_of_its_line_and_must_have_a_number() {
        let lines = "           CPU0       CPU1\n  1:          9          0   IO-APIC   1-edge      i8042\n \
                     27:          5          7   PCI-MSIX-0000:00:04.0    1-edge      virtio1-input.0\nNMI:  0  0  NMI\n";
        assert_eq!(number_of(lines, "virtio1-input"), Some(27));
        assert_eq!(number_of(lines, "edge"), Some(1));
        assert_eq!((number_of(lines, "NMI"), number_of(lines, "eth7")), (None, None));
        assert_eq!((sum_of("5,7\n"), sum_of("x\n")), (Some(12), None));
    }
}
