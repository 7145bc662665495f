//! `drop`, `pass` and `tx`: one of our programs on an interface of the machine.

use std::time::Instant;

use super::counters::Counters;
use super::event::{End, EndedBy, Start};
use super::interval::Interval;
use super::readings;
use super::receiver::{Program, Receiver, Target};
use super::session::Source;
use super::softirq::RxCost;
use crate::device::{DutProgram, ProgramSpec};
use crate::error::Result;
use crate::netlink::XdpMode;
use crate::observe::Figure;

/// A program attached to an interface of the calling thread's network namespace, and what is counted of it. Dropping it
/// detaches, and so does the end of the process.
pub struct BasicDevice {
    receiver: Receiver,
    program: DutProgram,
}

impl BasicDevice {
    /// Loads and attaches the program. Nothing is changed where that is refused.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, it is in use (unless `force`), it has a program already,
    /// or it can't run one in this mode.
    pub fn attach(name: &str, spec: ProgramSpec, mode: XdpMode, force: bool) -> Result<Self> {
        let target = Target::open(name, force)?;
        let program = DutProgram::load(spec, target.rx_queues)?;
        let told = Program { command: spec.action.to_string(), name: spec.to_string(), fd: program.fd() };
        let receiver = target.attach(&told, mode, &[Figure::Exceptions], 0)?;
        Ok(Self { receiver, program })
    }

    /// What is attached where, once the first reading has been made.
    #[must_use]
    pub fn start(&self, started: String) -> Start {
        self.receiver.start(started)
    }

    /// The end of a command on this device.
    #[must_use]
    pub fn end(&mut self, total: Interval, ended_by: EndedBy) -> End {
        let received = total.received.as_ref().filter(|received| received.packets > 0);
        let rx = received.map(|received| self.receiver.softirqs.close(received));
        End {
            limiter: rx.as_ref().map(RxCost::limiter),
            cpus: rx.iter().filter_map(|rx| rx.threads.clone()).collect(),
            softirq: rx.map(|rx| rx.softirq),
            interface: self.receiver.interface(),
            ..End::new(total, ended_by)
        }
    }
}

impl Source for BasicDevice {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let received = readings::received(at, self.program.counts()?);
        let exceptions = Some(self.receiver.exceptions());
        Ok(Counters { received: Some(received), exceptions, ..Counters::empty(at) })
    }

    fn check(&mut self) -> Result<()> {
        self.receiver.check()
    }
}
