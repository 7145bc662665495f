//! AF_XDP sockets on a queue, the program that gives packets to them, and the thread that drops them or sends them back.

use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, XskMap};
use aya::programs::ProgramFd;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use xsk::{
    BindMode, BusyPoll, CompletionRing, Config, FillRing, Mode, Pages, QueueSharer, RxRing, Segment, Socket,
    Statistics, StatisticsReader, TxRing, Umem, UmemConfig,
};

use crate::bpf;
use crate::error::{Error, Result};
use crate::sys::sched;

/// Frames of the umem where they are sent too, or several sockets receive; the fill ring has room for all of them.
const FRAMES: u32 = 4096;
/// Entries of every other ring.
const RING: u32 = 2048;
/// Sockets where they share the umem.
const SHARERS: usize = 4;
/// The longest wait of poll mode, after which the thread looks whether it shall end.
const POLL: Duration = Duration::from_millis(100);
/// The same while sent frames have not come back yet.
const POLL_SENDING: Duration = Duration::from_millis(1);

/// What to do with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XskAction {
    /// Give the frames back to the kernel to receive into.
    Drop,
    /// Exchange the MAC addresses and send them back out of the queue.
    Tx,
}

/// How the sockets are set up. What a setting needs of the kernel is in [`xsk::Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own on the command line")]
pub struct XskSpec {
    /// What to do with packets.
    pub action: XskAction,
    /// The RX queue, whose packets alone are taken.
    pub queue: u32,
    /// Bytes a frame of the umem.
    pub frame_size: u32,
    /// Most packets handled at once.
    pub batch: u32,
    /// Wait in poll(2) for packets, instead of looking for them all the time.
    pub poll: bool,
    /// The kernel says when it must be woken.
    pub need_wakeup: bool,
    /// Frames of any size, on huge pages if any are set aside.
    pub unaligned: bool,
    /// Four sockets on the queue, which get packets in turn.
    pub shared: bool,
    /// Busy polling of 20 us with a budget of one batch.
    pub busy_poll: bool,
    /// Packets of several frames.
    pub frags: bool,
    /// Copy or zero-copy.
    pub mode: BindMode,
    /// Run the thread as SCHED_FIFO with this priority.
    pub fifo: Option<u32>,
}

/// What one socket did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketCounts {
    /// Packets received.
    pub rx_packets: u64,
    /// Frames received; more than packets where those have several.
    pub rx_frags: u64,
    /// Packets given to the Tx ring.
    pub tx_packets: u64,
    /// Frames given to the Tx ring.
    pub tx_frags: u64,
    /// Wakeups of the kernel because there was no packet.
    pub rx_empty_polls: u64,
    /// Wakeups because the fill ring was full: none, since it has room for every frame.
    pub fill_fail_polls: u64,
    /// Wakeups to send in copy mode; each makes as many sendto(2) as there is progress.
    pub copy_tx_sendtos: u64,
    /// Wakeups because the Tx ring was full.
    pub tx_wakeup_sendtos: u64,
    /// Waits in poll(2).
    pub opt_polls: u64,
}

impl SocketCounts {
    const FIELDS: usize = 9;

    fn of(fields: [u64; Self::FIELDS]) -> Self {
        let [
            rx_packets,
            rx_frags,
            tx_packets,
            tx_frags,
            rx_empty_polls,
            fill_fail_polls,
            copy_tx_sendtos,
            tx_wakeup_sendtos,
            opt_polls,
        ] = fields;
        Self {
            rx_packets,
            rx_frags,
            tx_packets,
            tx_frags,
            rx_empty_polls,
            fill_fail_polls,
            copy_tx_sendtos,
            tx_wakeup_sendtos,
            opt_polls,
        }
    }

    fn fields(&self) -> [u64; Self::FIELDS] {
        [
            self.rx_packets,
            self.rx_frags,
            self.tx_packets,
            self.tx_frags,
            self.rx_empty_polls,
            self.fill_fail_polls,
            self.copy_tx_sendtos,
            self.tx_wakeup_sendtos,
            self.opt_polls,
        ]
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (now, then) = (self.fields(), earlier.fields());
        Self::of(std::array::from_fn(|field| now[field] - then[field]))
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (a, b) = (self.fields(), other.fields());
        Self::of(std::array::from_fn(|field| a[field] + b[field]))
    }
}

/// The counts of a socket where the thread leaves them for others to read; on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell([AtomicU64; SocketCounts::FIELDS]);

impl Cell {
    fn store(&self, counts: &SocketCounts) {
        self.0.iter().zip(counts.fields()).for_each(|(cell, value)| cell.store(value, Ordering::Relaxed));
    }

    fn load(&self) -> SocketCounts {
        SocketCounts::of(std::array::from_fn(|field| self.0[field].load(Ordering::Relaxed)))
    }
}

/// What the thread and the others have in common.
#[derive(Debug)]
struct Common {
    stop: AtomicBool,
    cells: Vec<Cell>,
    completed: AtomicU64,
    tx_dropped: AtomicU64,
    busy: Busy,
}

/// How long a thread that looks for packets all the time has had some, in ns of its run time.
#[derive(Debug, Default)]
struct Busy {
    /// Up to the moment when it last found none.
    total: AtomicU64,
    /// Its run time when packets came after that; 0 while there are none.
    since: AtomicU64,
}

impl Busy {
    /// Tells whether there are packets now. The clock is read when that changes: never while they keep coming.
    fn note(&self, busy: bool) {
        let since = self.since.load(Ordering::Relaxed);
        if busy == (since > 0) {
            return;
        }
        let now = thread_time();
        if busy {
            self.since.store(now, Ordering::Relaxed);
        } else {
            self.total.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// The time so far of a thread that has run for `run`, which may be some milliseconds old.
    fn until(&self, run: Duration) -> Duration {
        let total = Duration::from_nanos(self.total.load(Ordering::Relaxed));
        match self.since.load(Ordering::Relaxed) {
            0 => total,
            since => total + run.saturating_sub(Duration::from_nanos(since)),
        }
    }
}

/// What the program counted, per CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskCounts {
    /// Packets of the queue that were given to a socket.
    pub redirected: u64,
    /// Packets of the queue for which there was none.
    pub aborted: u64,
    /// Packets of other queues, passed to the network stack.
    pub passed: u64,
}

/// Sockets bound and in the map of a loaded program; the thread has not begun.
pub struct XskProgram {
    fd: ProgramFd,
    counts: PerCpuArray<MapData, [u64; 4]>,
    sockets: Option<Sockets>,
    spec: XskSpec,
    mode: Mode,
    pages: Pages,
    readers: Vec<StatisticsReader>,
    _object: Ebpf,
}

/// The sockets of a queue.
struct Sockets {
    umem: Umem,
    first: Socket,
    sharers: Vec<QueueSharer>,
}

impl XskProgram {
    /// Binds the sockets to the queue of an interface in the calling thread's network namespace, and loads the program.
    ///
    /// # Errors
    /// A setting, the umem, a socket or the program was refused.
    pub fn load(spec: XskSpec, name: &str, ifindex: u32) -> Result<Self> {
        spec.check()?;
        let refused = |error: &xsk::Error| spec.refused(name, error);
        let umem = spec.umem().map_err(|error| refused(&error))?;
        let sockets = Sockets::bind(&umem, ifindex, &spec).map_err(|error| refused(&error))?;
        let globals = [("queue", spec.queue), ("socket_count", if spec.shared { SHARERS as u32 } else { 1 })];
        let fds = sockets.fds();
        let mut object = bpf::load(
            bpf::XSK,
            &bpf::Object {
                globals: globals.into(),
                map_entries: [("sockets", fds.len() as u32)].into(),
                ..bpf::Object::default()
            },
        )?;
        let fd = bpf::program(&mut object, "to_socket")?
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(|error| Error::invalid("keep the program to_socket open", error.to_string()))?;
        let mut map: XskMap<MapData> = bpf::take_map(&mut object, "sockets")?;
        for (index, fd) in (0..).zip(fds) {
            map.set(index, fd, 0).map_err(|error| bpf::map_error("put an AF_XDP socket into the map", &error))?;
        }
        Ok(Self {
            fd,
            counts: bpf::take_map(&mut object, "xsk_counts")?,
            mode: sockets.first.mode(),
            pages: umem.layout().pages,
            readers: sockets.readers(),
            sockets: Some(sockets),
            spec,
            _object: object,
        })
    }

    /// The program's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.fd)
    }

    /// The settings.
    #[must_use]
    pub fn spec(&self) -> &XskSpec {
        &self.spec
    }

    /// The mode that the kernel bound the sockets in.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Pages of the umem.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// What was counted so far, for each possible CPU.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn counts(&self) -> Result<Vec<XskCounts>> {
        let cpus = self.counts.get(&0, 0).map_err(|error| bpf::map_error("read the counts of to_socket", &error))?;
        let of_cpu = |&[redirected, aborted, passed, _next]: &[u64; 4]| XskCounts { redirected, aborted, passed };
        Ok(cpus.iter().map(of_cpu).collect())
    }

    /// What the kernel counted for each socket.
    ///
    /// # Errors
    /// A socket can't be read.
    pub fn statistics(&self) -> Result<Vec<Statistics>> {
        let read = |reader: &StatisticsReader| {
            reader.read().map_err(|error| Error::invalid("read the counters of an AF_XDP socket", error.to_string()))
        };
        self.readers.iter().map(read).collect()
    }

    /// Starts the thread that handles packets.
    ///
    /// # Errors
    /// It was started before, or it can't run as asked.
    pub fn start(&mut self) -> Result<XskWorker> {
        let what = "start the thread of the AF_XDP sockets";
        let sockets = self.sockets.take().ok_or_else(|| Error::invalid(what, "it has been started"))?;
        XskWorker::spawn(sockets, self.spec.clone(), self.mode)
    }
}

impl XskSpec {
    /// Whether the thread does nothing but look for packets when there are none.
    fn spins(&self) -> bool {
        !self.poll && !self.busy_poll
    }

    fn check(&self) -> Result<()> {
        let what = "set up AF_XDP sockets";
        if self.batch == 0 || self.busy_poll && u16::try_from(self.batch).is_err() {
            let most = if self.busy_poll { u32::from(u16::MAX) } else { u32::MAX };
            return Err(Error::usage(what, format!("a batch of {} packets is none", self.batch))
                .remedy(format!("choose 1 to {most}")));
        }
        Ok(())
    }

    fn refused(&self, name: &str, error: &xsk::Error) -> Error {
        let what = format!("open AF_XDP sockets on {name} queue {}", self.queue);
        if self.mode == BindMode::ZeroCopy && error.errno() == Some(nix::libc::EOPNOTSUPP) {
            let why =
                format!("the driver has no zero-copy{}", if self.frags { " with several frames a packet" } else { "" });
            return Error::unsupported(what, why).remedy("use copy mode, or leave the choice to the kernel (-C auto)");
        }
        Error::invalid(what, error.to_string())
    }

    /// Frames go round in turn, each on pages of its own. One socket that drops has use for no more than its Rx ring holds; the
    /// others only spread packets over more cache lines and pages (17 ns a packet on the receiving CPU of the reference
    /// machine).
    fn frames(&self) -> u32 {
        if self.action == XskAction::Drop && !self.shared { RING } else { FRAMES }
    }

    fn umem(&self) -> xsk::Result<Umem> {
        let layout = UmemConfig {
            frames: self.frames(),
            frame_size: self.frame_size,
            unaligned: self.unaligned,
            ..UmemConfig::default()
        };
        // Frames that cross pages are fine on base pages too as long as packets are copied.
        let huge = self.unaligned.then(|| Umem::new(UmemConfig { pages: Pages::Huge2M, ..layout.clone() }));
        huge.and_then(xsk::Result::ok).map_or_else(|| Umem::new(layout), Ok)
    }

    fn config(&self) -> Config {
        let busy_poll = BusyPoll { budget: u16::try_from(self.batch).unwrap_or(u16::MAX), ..BusyPoll::default() };
        Config {
            fill_ring: FRAMES,
            rx_ring: RING,
            tx_ring: if self.action == XskAction::Tx { RING } else { 0 },
            completion_ring: RING,
            // Without it a call sends 32 packets, and a batch takes several calls.
            tx_budget: (self.action == XskAction::Tx).then(|| self.batch.clamp(32, RING)),
            mode: self.mode,
            need_wakeup: self.need_wakeup,
            multi_buffer: self.frags,
            busy_poll: self.busy_poll.then_some(busy_poll),
            ..Config::default()
        }
    }
}

impl Sockets {
    fn bind(umem: &Umem, ifindex: u32, spec: &XskSpec) -> xsk::Result<Self> {
        let config = spec.config();
        let mut first = Socket::bind(umem, ifindex, spec.queue, &config)?;
        let further = if spec.shared { SHARERS - 1 } else { 0 };
        let sharers = (0..further).map(|_| first.share_queue(config.rx_ring, config.tx_ring));
        let sharers = sharers.collect::<xsk::Result<_>>()?;
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
pub struct XskWorker {
    common: Arc<Common>,
    thread: Option<JoinHandle<xsk::Result<()>>>,
    tid: i32,
    spins: bool,
}

impl XskWorker {
    fn spawn(sockets: Sockets, spec: XskSpec, mode: Mode) -> Result<Self> {
        let cells = (0..=sockets.sharers.len()).map(|_| Cell::default()).collect();
        let common = Arc::new(Common {
            stop: AtomicBool::new(false),
            cells,
            completed: AtomicU64::new(0),
            tx_dropped: AtomicU64::new(0),
            busy: Busy::default(),
        });
        let (started, begun) = mpsc::channel();
        let what = "start the thread of the AF_XDP sockets";
        let spins = spec.spins();
        let worker = Worker::new(sockets, spec, mode, Arc::clone(&common));
        let run = move || {
            let ready = worker.spec.fifo.map_or(Ok(()), sched::set_fifo);
            let go = ready.is_ok();
            // Nobody waits any more if the starter has gone; the thread is told to end then.
            started.send(ready.map(|()| nix::unistd::gettid().as_raw())).unwrap_or_default();
            if go { worker.run() } else { Ok(()) }
        };
        let thread = thread::Builder::new()
            .name("af_xdp".into())
            .spawn(run)
            .map_err(|error| Error::io(what, "clone", &error))?;
        let tid = begun.recv().map_err(|error| Error::invalid(what, error.to_string()))??;
        Ok(Self { common, thread: Some(thread), tid, spins })
    }

    /// The kernel's number of the thread.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// What each socket did so far.
    #[must_use]
    pub fn counts(&self) -> Vec<SocketCounts> {
        self.common.cells.iter().map(Cell::load).collect()
    }

    /// Frames that came back after they had been sent, and packets that the device is known to have dropped then.
    #[must_use]
    pub fn completed(&self) -> (u64, u64) {
        (self.common.completed.load(Ordering::Relaxed), self.common.tx_dropped.load(Ordering::Relaxed))
    }

    /// Of the time `run` that the thread has run, how long it had packets. `None` where all of it counts: it sleeps without
    /// packets, or polls the driver then.
    #[must_use]
    pub fn busy(&self, run: Duration) -> Option<Duration> {
        self.spins.then(|| self.common.busy.until(run))
    }

    /// Succeeds as long as the thread runs.
    ///
    /// # Errors
    /// What ended it.
    pub fn check(&mut self) -> Result<()> {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.join()?;
        Err(Error::invalid("handle packets", "the thread of the AF_XDP sockets has ended"))
    }

    fn join(&mut self) -> Result<()> {
        self.common.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(Error::invalid("handle packets of AF_XDP sockets", error.to_string())),
            Some(Err(_panic)) => Err(Error::invalid("handle packets of AF_XDP sockets", "the thread panicked")),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }
}

impl Drop for XskWorker {
    fn drop(&mut self) {
        // Whoever wants to know why it ended has asked with `check`.
        self.join().unwrap_or_default();
    }
}

/// What the thread works on.
struct Worker {
    spec: XskSpec,
    copies: bool,
    fill: FillRing,
    completion: CompletionRing,
    rings: Vec<Rings>,
    common: Arc<Common>,
    _umem: Umem,
}

/// The rings of one socket, and what it did.
struct Rings {
    rx: RxRing,
    tx: TxRing,
    counts: SocketCounts,
    /// Segments of a packet that is not complete, or that found no room in the Tx ring.
    packet: Vec<Segment>,
}

impl Rings {
    fn new(rx: RxRing, tx: TxRing) -> Self {
        Self { rx, tx, counts: SocketCounts::default(), packet: Vec::new() }
    }
}

impl Worker {
    fn new(sockets: Sockets, spec: XskSpec, mode: Mode, common: Arc<Common>) -> Self {
        let Socket { fill, rx, tx, completion, .. } = sockets.first;
        let sharers = sockets.sharers.into_iter().map(|QueueSharer { rx, tx, .. }| Rings::new(rx, tx));
        let rings = [Rings::new(rx, tx)].into_iter().chain(sharers).collect();
        Self { spec, copies: mode == Mode::Copy, fill, completion, rings, common, _umem: sockets.umem }
    }

    fn run(mut self) -> xsk::Result<()> {
        while !self.common.stop.load(Ordering::Relaxed) {
            if self.spec.poll {
                self.wait()?;
            } else if self.spec.spins() {
                let busy = self.sending() > 0 || self.rings.iter_mut().any(|rings| !rings.rx.is_empty());
                self.common.busy.note(busy);
                // Packets that came since have to wait until they have been noted.
                if !busy {
                    (0..self.rings.len()).try_for_each(|socket| self.wake_idle(socket))?;
                    continue;
                }
            }
            for socket in 0..self.rings.len() {
                match self.spec.action {
                    XskAction::Drop => self.drop_batch(socket)?,
                    XskAction::Tx => self.send_batch(socket)?,
                }
                self.common.cells[socket].store(&self.rings[socket].counts);
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> xsk::Result<()> {
        let timeout = if self.sending() > 0 { POLL_SENDING } else { POLL };
        self.rings.iter_mut().for_each(|rings| rings.counts.opt_polls += 1);
        let waited = match self.rings.as_mut_slice() {
            [only] => only.rx.wait(timeout),
            rings => RxRing::wait_any(rings.iter_mut().map(|rings| &mut rings.rx), timeout),
        };
        waited.map(drop)
    }

    /// Frames sent that have not come back.
    fn sending(&self) -> u64 {
        self.rings.iter().map(|rings| rings.tx.sent()).sum::<u64>() - self.completion.completed()
    }

    fn drop_batch(&mut self, socket: usize) -> xsk::Result<()> {
        let Rings { rx, counts, .. } = &mut self.rings[socket];
        let recycled = self.fill.recycle(rx, self.spec.batch)?;
        counts.rx_frags += u64::from(recycled.frames);
        counts.rx_packets += u64::from(recycled.packets);
        if recycled.frames == 0 { self.wake_idle(socket) } else { Ok(()) }
    }

    fn send_batch(&mut self, socket: usize) -> xsk::Result<()> {
        self.complete(socket)?;
        let before = self.rings[socket].counts;
        if self.spec.frags {
            self.rings[socket].send_packets(self.spec.batch)?;
        } else {
            self.rings[socket].send_segments(self.spec.batch)?;
        }
        let Rings { tx, counts, .. } = &mut self.rings[socket];
        if counts.rx_frags == before.rx_frags {
            if tx.room() == 0 {
                counts.tx_wakeup_sendtos += 1;
                return tx.wake().map(drop);
            }
            return self.wake_idle(socket);
        }
        if self.copies {
            counts.copy_tx_sendtos += 1;
            tx.wake()?;
            self.tell_dropped();
        }
        Ok(())
    }

    /// Gives frames that have been sent back to the kernel to receive into.
    fn complete(&mut self, socket: usize) -> xsk::Result<()> {
        if self.sending() == 0 {
            return Ok(());
        }
        if self.copies && self.rings[socket].tx.pending() > 0 {
            self.rings[socket].counts.copy_tx_sendtos += 1;
            self.rings[socket].tx.wake()?;
            self.tell_dropped();
        }
        self.fill.push(self.completion.drain(u32::MAX).map(xsk::Completed::into_frame))?;
        self.common.completed.store(self.completion.completed(), Ordering::Relaxed);
        Ok(())
    }

    fn tell_dropped(&self) {
        let dropped = self.rings.iter().map(|rings| rings.tx.dropped()).sum();
        self.common.tx_dropped.store(dropped, Ordering::Relaxed);
    }

    fn wake_idle(&mut self, socket: usize) -> xsk::Result<()> {
        if self.spec.busy_poll || self.fill.needs_wakeup() {
            self.rings[socket].counts.rx_empty_polls += 1;
            self.fill.wake()?;
        }
        Ok(())
    }
}

impl Rings {
    /// Sends packets of one frame each.
    fn send_segments(&mut self, batch: u32) -> xsk::Result<()> {
        let counts = &mut self.counts;
        let packets = self.rx.drain(batch).map(|mut packet| {
            swap_macs(packet.data_mut());
            counts.rx_packets += 1;
            counts.rx_frags += 1;
            packet
        });
        let sent = u64::from(self.tx.send(packets)?);
        counts.tx_packets += sent;
        counts.tx_frags += sent;
        Ok(())
    }

    /// Sends packets of any number of frames, each whole.
    fn send_packets(&mut self, batch: u32) -> xsk::Result<()> {
        for _ in 0..batch {
            if self.packet.last().is_none_or(Segment::continues) {
                let Some(mut segment) = self.rx.drain(1).next() else { break };
                if self.packet.is_empty() {
                    swap_macs(segment.data_mut());
                }
                self.counts.rx_frags += 1;
                self.counts.rx_packets += u64::from(!segment.continues());
                self.packet.push(segment);
            }
            if self.packet.last().is_some_and(|segment| !segment.continues()) {
                let frags = self.packet.len() as u64;
                if !self.tx.send_packet(&mut self.packet)? {
                    break;
                }
                self.counts.tx_packets += 1;
                self.counts.tx_frags += frags;
            }
        }
        Ok(())
    }
}

/// How long the calling thread has run, in ns.
fn thread_time() -> u64 {
    // Since Linux 2.6.12; a thread may always read its own.
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Exchanges destination and source of an Ethernet frame; one that is shorter is left as it is.
fn swap_macs(packet: &mut [u8]) {
    if let Some((destination, source)) = packet.first_chunk_mut::<12>().map(|macs| macs.split_at_mut(6)) {
        destination.swap_with_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_exchanged_and_too_short_a_packet_is_left_alone() {
        let mut packet = *b"aaaaaabbbbbbcc";
        swap_macs(&mut packet);
        assert_eq!(&packet, b"bbbbbbaaaaaacc");
        let mut short = *b"aaaaaabbbbb";
        swap_macs(&mut short);
        assert_eq!(&short, b"aaaaaabbbbb");
    }

    #[test]
    fn busy_time_is_what_a_thread_ran_with_packets() {
        let busy = Busy::default();
        let run = || while_running(Duration::from_millis(3));
        run();
        busy.note(false);
        assert_eq!(busy.until(Duration::from_secs(9)), Duration::ZERO, "nothing has come yet");
        busy.note(true);
        run();
        busy.note(true);
        let so_far = busy.until(Duration::from_nanos(thread_time()));
        assert!((Duration::from_millis(3)..Duration::from_millis(30)).contains(&so_far), "{so_far:?}");
        busy.note(false);
        let total = busy.until(Duration::ZERO);
        assert!(total >= so_far, "{total:?}");
        run();
        assert_eq!(busy.until(Duration::from_secs(9)), total, "there were none meanwhile");
    }

    /// Runs for this time of the thread's own.
    fn while_running(time: Duration) {
        let until = thread_time() + u64::try_from(time.as_nanos()).unwrap();
        while thread_time() < until {}
    }

    #[test]
    fn counts_keep_their_places_through_cells_and_arithmetic() {
        let counts = SocketCounts::of([1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let cell = Cell::default();
        cell.store(&counts);
        assert_eq!(cell.load(), counts);
        assert_eq!((counts.rx_packets, counts.tx_packets, counts.opt_polls), (1, 3, 9));
        assert_eq!(counts.plus(&counts).since(&counts), counts);
    }
}
