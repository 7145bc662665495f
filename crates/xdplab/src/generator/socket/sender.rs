//! The thread that sends one stream.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_timerslack;
use nix::sys::sendfile::sendfile;
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};

use super::pace::Pacer;
use super::stream::{CpuTime, Ended, Progress, again};
use super::{Errors, Protocol};
use crate::error::{Error, Result};
use crate::generator::GapCounts;
use crate::sys::affinity::Pinned;
use crate::sys::socket::Outgoing;
use crate::units::whole_nanos;

/// How long to wait after an error that stays until somebody changes something.
const AFTER_ERROR: Duration = Duration::from_millis(1);

/// What one stream sends. A unit is a byte (TCP) or a datagram (UDP).
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) progress: Arc<Progress>,
    pub(super) stop: Arc<AtomicBool>,
    /// All threads begin together, when this can be read.
    pub(super) begin: Arc<RwLock<()>>,
    pub(super) cpu: Option<usize>,
    pub(super) protocol: Protocol,
    /// Bytes of a call (TCP), or of a datagram's payload (UDP).
    pub(super) size: usize,
    pub(super) batch: usize,
    pub(super) segments: usize,
    pub(super) duration: Option<Duration>,
    /// Units to send.
    pub(super) limit: Option<u64>,
    /// Units a second.
    pub(super) rate: Option<f64>,
    /// Pages of a file are handed over (TCP).
    pub(super) zero_copy: bool,
}

/// Where bytes come from.
enum Bytes {
    Memory(Vec<u8>),
    /// The pages of a file of this length, which the kernel hands on as they are.
    File(File),
}

impl Bytes {
    /// So many, none of them 0: pages of nothing but zeros would all be one, and copied from the fastest cache.
    fn new(sender: &Sender) -> Result<Self> {
        let bytes = vec![0xa5; sender.size];
        if !sender.zero_copy {
            return Ok(Self::Memory(bytes));
        }
        let what = "make a file to send";
        let file = memfd_create(c"xdplab", MFdFlags::MFD_CLOEXEC)
            .map_err(|errno| Error::syscall(what, "memfd_create", errno))?;
        let mut file = File::from(file);
        file.write_all(&bytes).map_err(|error| Error::io(what, "write", &error))?;
        Ok(Self::File(file))
    }

    /// Gives up to so many to the connection.
    fn send(&self, socket: BorrowedFd<'_>, bytes: usize) -> nix::Result<usize> {
        match self {
            Self::Memory(block) => send(socket.as_raw_fd(), &block[..bytes], MsgFlags::MSG_NOSIGNAL),
            Self::File(file) => sendfile(socket, file, Some(&mut 0), bytes),
        }
    }
}

/// A stream under way.
struct Sending<'a> {
    sender: &'a Sender,
    deadline: Option<Instant>,
    pacer: Option<Pacer>,
    begin: Instant,
    gaps: GapCounts,
    errors: Errors,
}

impl Sender {
    pub(super) fn run(&self) -> Result<Ended> {
        let _pinned = self.prepare()?;
        drop(self.begin.read());
        let (time, begin) = (CpuTime::now()?, Instant::now());
        let mut sending = Sending {
            sender: self,
            deadline: self.duration.and_then(|duration| begin.checked_add(duration)),
            pacer: self.rate.map(|rate| Pacer::new(begin, rate)),
            begin,
            gaps: GapCounts::none(),
            errors: Errors::new(),
        };
        let complete = match self.protocol {
            Protocol::Tcp => sending.stream()?,
            Protocol::Udp => sending.datagrams()?,
        };
        let end = Instant::now();
        let mut report = self.progress.report(self.cpu, CpuTime::now()?.since(time));
        report.complete = complete;
        report.gaps = sending.gaps.percentiles();
        report.errors = sending.errors;
        Ok((report, Some((begin, end))))
    }

    fn prepare(&self) -> Result<Option<Pinned>> {
        // Sleeps end when they should, and not up to 50 us later.
        set_timerslack(1).map_err(|errno| Error::syscall("sleep precisely", "prctl(PR_SET_TIMERSLACK)", errno))?;
        self.cpu.map(Pinned::to).transpose()
    }
}

impl Sending<'_> {
    /// How many units to send next, of at most `most` in a call; `None` when all are sent or the time is over.
    fn next(&self, sent: u64, most: u64) -> Option<u64> {
        loop {
            let left = self.sender.limit.map_or(u64::MAX, |limit| limit.saturating_sub(sent));
            let over = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if left == 0 || over || self.sender.stop.load(Ordering::Relaxed) {
                return None;
            }
            let due = match &self.pacer {
                None => most,
                Some(pacer) => pacer.wait(sent, pacer.together(most).min(left)),
            };
            if due > 0 {
                return Some(due.min(most).min(left));
            }
        }
    }

    /// Sends bytes, then says that there are no more. Whether all were sent that were to be.
    fn stream(&mut self) -> Result<bool> {
        let block = Bytes::new(self.sender)?;
        let socket = self.sender.socket.as_fd();
        let mut sent = 0;
        while let Some(bytes) = self.next(sent, self.sender.size as u64) {
            let part = usize::try_from(bytes).map_or(self.sender.size, |bytes| bytes.min(self.sender.size));
            match block.send(socket, part) {
                Ok(bytes) => {
                    self.depart();
                    sent += bytes as u64;
                    self.sender.progress.add(bytes as u64, 0);
                }
                Err(errno) if again(errno) => {}
                Err(errno) => {
                    // The peer has closed or reset the connection, or the way to it is lost: a run ends with that.
                    self.count(errno);
                    return Ok(false);
                }
            }
        }
        match shutdown(socket.as_raw_fd(), Shutdown::Write) {
            Ok(()) => Ok(true),
            Err(errno) => {
                self.count(errno);
                Ok(false)
            }
        }
    }

    fn datagrams(&mut self) -> Result<bool> {
        let Sender { size, segments, batch, .. } = *self.sender;
        let mut whole = Outgoing::new(vec![0; size * segments], batch);
        let (socket, mut sent) = (self.sender.socket.as_fd(), 0);
        while let Some(datagrams) = self.next(sent, (batch * segments) as u64) {
            let datagrams = usize::try_from(datagrams).unwrap_or(batch * segments);
            let messages = datagrams / segments;
            let taken = if messages > 0 {
                whole.send(socket, messages).map(|messages| messages * segments)
            } else {
                Outgoing::new(vec![0; size * datagrams], 1).send(socket, 1).map(|messages| messages * datagrams)
            };
            match taken {
                Ok(taken) => {
                    self.depart();
                    sent += taken as u64;
                    self.sender.progress.add((taken * size) as u64, taken as u64);
                }
                Err(errno) if again(errno) => {}
                // The answer to datagrams before: nobody listens there. And a queue on the way that is full.
                Err(errno @ (Errno::ECONNREFUSED | Errno::ENOBUFS)) => self.count(errno),
                Err(errno @ (Errno::ENETDOWN | Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EPERM)) => {
                    self.count(errno);
                    thread::sleep(AFTER_ERROR);
                }
                Err(errno) => return Err(refused(size, segments, errno)),
            }
        }
        Ok(true)
    }

    /// Counts a call, where calls follow a schedule.
    fn depart(&mut self) {
        if self.pacer.is_some() {
            self.gaps.depart(whole_nanos(self.begin.elapsed()));
        }
    }

    fn count(&mut self, errno: Errno) {
        *self.errors.entry(format!("{errno:?}")).or_default() += 1;
    }
}

/// Datagrams that the kernel does not take.
pub(super) fn refused(size: usize, segments: usize, errno: Errno) -> Error {
    let error = Error::syscall(format!("send datagrams of {size} bytes, {segments} in a message"), "sendmmsg", errno);
    match errno {
        Errno::EMSGSIZE | Errno::EINVAL => {
            error.remedy("several in a message must each fit the MTU: a smaller --size, a larger MTU, or no --gso")
        }
        _ => error,
    }
}
