//! Sockets bound to a queue, with the thread that handles what they receive.

use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use xsk::{Mode, Pages, QueueSharer, Socket, StatisticsReader, Umem};

use super::busy::Busy;
use super::counts::{Cell, SocketReading};
use super::worker::Worker;
use super::{Handling, XskSpec};
use crate::error::{Error, Result};
use crate::sys::affinity::Pinned;
use crate::sys::sched;

/// Sockets of a queue, and their thread; dropping them ends it and closes them. No packet comes before a program has them in
/// its map ([`super::XskProgram`]).
#[derive(Debug)]
pub struct XskSockets {
    // Ended before the readers let go of the sockets.
    thread: Thread,
    spec: XskSpec,
    mode: Mode,
    pages: Pages,
    readers: Vec<StatisticsReader>,
    fds: Vec<RawFd>,
}

/// The sockets of a queue as they were bound.
pub(super) struct Bound {
    pub(super) umem: Umem,
    pub(super) first: Socket,
    pub(super) sharers: Vec<QueueSharer>,
}

/// What the thread and the others have in common.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) stop: AtomicBool,
    pub(super) cells: Vec<Cell>,
    pub(super) completed: AtomicU64,
    pub(super) tx_dropped: AtomicU64,
    pub(super) busy: Busy,
}

impl XskSockets {
    /// Binds the sockets to the queue of an interface in the calling thread's network namespace, and starts the thread.
    ///
    /// # Errors
    /// A setting, the umem or a socket was refused, or the thread can't run as asked.
    pub fn open(spec: XskSpec, name: &str, ifindex: u32) -> Result<Self> {
        spec.check()?;
        let refused = |error: &xsk::Error| spec.refused(name, error);
        let umem = spec.umem().map_err(|error| refused(&error))?;
        let bound = Bound::bind(&umem, ifindex, &spec).map_err(|error| refused(&error))?;
        let (mode, readers, fds) = (bound.first.mode(), bound.readers(), bound.fds());
        let thread = Thread::start(bound, &spec)?;
        Ok(Self { thread, spec, mode, pages: umem.layout().pages, readers, fds })
    }

    /// The settings.
    #[must_use]
    pub fn spec(&self) -> &XskSpec {
        &self.spec
    }

    /// The mode that the kernel bound the sockets in.
    #[must_use]
    pub fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Copy => "copy",
            Mode::ZeroCopy => "zero-copy",
        }
    }

    /// Pages of the umem.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The descriptors of the sockets, for the map of a program.
    #[must_use]
    pub fn fds(&self) -> &[RawFd] {
        &self.fds
    }

    /// The descriptor of the first socket that is handled so.
    #[must_use]
    pub fn fd(&self, handling: &Handling) -> Option<RawFd> {
        first_of(&self.spec.sockets, handling).map(|socket| self.fds[socket])
    }

    /// What each socket did so far, and what the kernel counted for it.
    ///
    /// # Errors
    /// A socket can't be read.
    pub fn readings(&self) -> Result<Vec<SocketReading>> {
        let read = |(reader, cell): (&StatisticsReader, &Cell)| match reader.read() {
            Ok(kernel) => Ok(SocketReading { counts: cell.load(), kernel: kernel.into() }),
            Err(error) => Err(Error::invalid("read the counters of an AF_XDP socket", error.to_string())),
        };
        self.readers.iter().zip(&self.thread.common.cells).map(read).collect()
    }

    /// Frames that came back after they had been sent, and packets that the device is known to have dropped then.
    #[must_use]
    pub fn completed(&self) -> (u64, u64) {
        let common = &self.thread.common;
        (common.completed.load(Ordering::Relaxed), common.tx_dropped.load(Ordering::Relaxed))
    }

    /// How long the thread has run for the sockets that are handled so. Time in which it looked for packets and found none is
    /// left out, unless it polls the driver then.
    #[must_use]
    pub fn busy(&self, handling: &Handling) -> Duration {
        let socket = first_of(&self.spec.sockets, handling);
        socket.map_or(Duration::ZERO, |socket| self.thread.common.busy.of(socket, self.thread.tid))
    }

    /// The same for all sockets.
    #[must_use]
    pub fn busy_in_all(&self) -> Duration {
        let sockets = 0..self.spec.sockets.len();
        sockets.map(|socket| self.thread.common.busy.of(socket, self.thread.tid)).sum()
    }

    /// Succeeds as long as the thread runs.
    ///
    /// # Errors
    /// What ended it.
    pub fn check(&mut self) -> Result<()> {
        self.thread.check()
    }
}

/// The first of the sockets that are handled so; the time of all of them is put down for it.
pub(super) fn first_of(sockets: &[Handling], handling: &Handling) -> Option<usize> {
    sockets.iter().position(|socket| socket == handling)
}

impl Bound {
    fn bind(umem: &Umem, ifindex: u32, spec: &XskSpec) -> xsk::Result<Self> {
        let config = spec.config();
        let mut first = Socket::bind(umem, ifindex, spec.queue, &config)?;
        let further = 1..spec.sockets.len();
        let sharers = further.map(|_| first.share_queue(config.rx_ring, config.tx_ring)).collect::<xsk::Result<_>>()?;
        first.fill.push(umem.take_free())?;
        Ok(Self { umem: umem.clone(), first, sharers })
    }

    fn fds(&self) -> Vec<RawFd> {
        [self.first.as_raw_fd()].into_iter().chain(self.sharers.iter().map(|sharer| sharer.as_raw_fd())).collect()
    }

    fn readers(&self) -> Vec<StatisticsReader> {
        let sharers = self.sharers.iter().map(QueueSharer::statistics_reader);
        [self.first.statistics_reader()].into_iter().chain(sharers).collect()
    }
}

/// The thread that handles packets; dropping it ends it.
#[derive(Debug)]
struct Thread {
    common: Arc<Common>,
    handle: Option<JoinHandle<xsk::Result<()>>>,
    tid: i32,
}

impl Thread {
    fn start(bound: Bound, spec: &XskSpec) -> Result<Self> {
        let common = Arc::new(Common {
            stop: AtomicBool::new(false),
            cells: spec.sockets.iter().map(|_| Cell::default()).collect(),
            completed: AtomicU64::new(0),
            tx_dropped: AtomicU64::new(0),
            busy: Busy::new(spec.sockets.len()),
        });
        let (started, begun) = mpsc::channel();
        let what = "start the thread of the AF_XDP sockets";
        let worker = Worker::new(bound, spec, Arc::clone(&common));
        let (cpu, fifo) = (spec.cpu, spec.fifo);
        let run = move || {
            let ready = place(cpu, fifo);
            let tid = nix::unistd::gettid().as_raw();
            let (pinned, told) = match ready {
                Ok(pinned) => (Some(pinned), Ok(tid)),
                Err(error) => (None, Err(error)),
            };
            // Nobody waits any more if the starter has gone; the thread is told to end then.
            started.send(told).unwrap_or_default();
            pinned.map_or(Ok(()), |_pinned| worker.run())
        };
        let handle = thread::Builder::new()
            .name("af_xdp".into())
            .spawn(run)
            .map_err(|error| Error::io(what, "clone", &error))?;
        let tid = begun.recv().map_err(|error| Error::invalid(what, error.to_string()))??;
        Ok(Self { common, handle: Some(handle), tid })
    }

    fn check(&mut self) -> Result<()> {
        if self.handle.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.join()?;
        Err(Error::invalid("handle packets", "the thread of the AF_XDP sockets has ended"))
    }

    fn join(&mut self) -> Result<()> {
        self.common.stop.store(true, Ordering::Relaxed);
        match self.handle.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(Error::invalid("handle packets of AF_XDP sockets", error.to_string())),
            Some(Err(_panic)) => Err(Error::invalid("handle packets of AF_XDP sockets", "the thread panicked")),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Whoever wants to know why it ended has asked with `check`.
        self.join().unwrap_or_default();
    }
}

/// Places the calling thread, for as long as what is returned lives.
fn place(cpu: Option<u32>, fifo: Option<u32>) -> Result<Option<Pinned>> {
    let pinned = cpu.map(|cpu| Pinned::to(usize::try_from(cpu).unwrap_or(usize::MAX))).transpose()?;
    fifo.map_or(Ok(()), sched::set_fifo)?;
    Ok(pinned)
}
