//! AF_XDP sockets that send: user space fills frames, the kernel or the device takes them out of the Tx ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use xsk::{
    BindMode, Completed, CompletionRing, Config, Frame, Mode, Pages, QueueSharer, Segment, Socket, Statistics,
    StatisticsReader, TxRing, Umem, UmemConfig,
};

use super::{Departures, GAP_BUCKETS, GapCounts, Pace};
use crate::error::{Error, Result};
use crate::packet::{Traffic, Variator, checksum};
use crate::sys::affinity::Pinned;
use crate::sys::sched;
use crate::units::whole_nanos;

/// Frames of a umem.
const FRAMES: u32 = 4096;
/// Entries of a Tx ring.
const RING: u32 = 2048;
/// Sockets where they share the umem.
const SHARERS: usize = 4;
/// The longest wait of poll mode, after which the thread looks whether it shall end.
const POLL: Duration = Duration::from_millis(50);
/// Sleeping may take so much longer than it was to; the rest of a wait is spent looking at the clock.
const OVERSLEEP: Duration = Duration::from_micros(70);
/// The longest sleep, after which the thread looks whether it shall end.
const SLEEP: Duration = Duration::from_millis(20);

/// What to send, from where, and how the sockets are set up.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own on the command line")]
pub struct XskTxSpec {
    /// The frames.
    pub traffic: Traffic,
    /// Where each frame's pktgen header is (see [`Traffic::with_pktgen_header`]), to be filled in.
    pub pktgen_header: Option<usize>,
    /// When they leave; `None`: as fast as can be.
    pub pace: Option<Pace>,
    /// The interface, in the calling thread's network namespace.
    pub ifindex: u32,
    /// The queue of the first thread; the others have the next ones.
    pub queue: u32,
    /// One thread on each of these CPUs.
    pub cpus: Vec<usize>,
    /// Most packets given to the ring at once, without a schedule.
    pub batch: u32,
    /// How many packets in all over the threads; `None`: until stopped.
    pub count: Option<u64>,
    /// How long to wait for the last frames to come back, once the count has been sent.
    pub completion: Duration,
    /// Bytes a frame of the umem.
    pub frame_size: u32,
    /// Frames of any size, on huge pages if any are set aside.
    pub unaligned: bool,
    /// Four sockets with one umem on each queue, which send in turn.
    pub shared: bool,
    /// Wait in poll(2) for room, instead of looking for it all the time.
    pub poll: bool,
    /// The kernel says when it must be woken.
    pub need_wakeup: bool,
    /// Copy or zero-copy.
    pub mode: BindMode,
    /// Run threads as SCHED_FIFO with this priority.
    pub fifo: Option<u32>,
}

/// What one socket did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskTxCounts {
    /// Packets given to the Tx ring.
    pub packets: u64,
    /// Frames given to the Tx ring; more than packets where those have several.
    pub frames: u64,
    /// Wakeups of the kernel to send in copy mode; each makes as many sendto(2) as there is progress.
    pub copy_wakeups: u64,
    /// Wakeups of the kernel in zero-copy mode.
    pub wakeups: u64,
    /// Waits in poll(2).
    pub polls: u64,
}

/// How late scheduled departures were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// From one departure to the next as scheduled.
    pub period_ns: u64,
    /// Departures.
    pub count: u64,
    /// The earliest, after it was due.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: u64,
    /// The latest.
    pub max_ns: u64,
}

/// What a thread and the others have in common.
struct Shared {
    go: AtomicBool,
    stop: AtomicBool,
    sockets: Vec<Cell>,
    completed: AtomicU64,
    dropped: AtomicU64,
    cpu_time: AtomicU64,
    gaps: Vec<AtomicU64>,
    /// When the first and the last departure were, in ns after the thread's beginning.
    departed: [AtomicU64; 2],
    /// Departures, the least, the sum and the most of their lateness.
    late: [AtomicU64; 4],
}

/// The counts of a socket where the thread leaves them for others to read; on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell([AtomicU64; 5]);

impl Cell {
    fn store(&self, counts: &XskTxCounts) {
        let XskTxCounts { packets, frames, copy_wakeups, wakeups, polls } = *counts;
        let values = [packets, frames, copy_wakeups, wakeups, polls];
        self.0.iter().zip(values).for_each(|(cell, value)| cell.store(value, Ordering::Relaxed));
    }

    fn load(&self) -> XskTxCounts {
        let [packets, frames, copy_wakeups, wakeups, polls] =
            std::array::from_fn(|field| self.0[field].load(Ordering::Relaxed));
        XskTxCounts { packets, frames, copy_wakeups, wakeups, polls }
    }
}

/// Threads that send from AF_XDP sockets until they are stopped or have sent their count. Dropping stops them.
pub struct XskTx {
    threads: Vec<JoinHandle<Result<()>>>,
    shared: Vec<Arc<Shared>>,
    readers: Vec<StatisticsReader>,
    mode: Mode,
    pages: Pages,
    period_ns: u64,
}

impl XskTx {
    /// Binds the sockets and starts the threads, which send nothing before [`XskTx::go`].
    ///
    /// # Errors
    /// A setting, a umem or a socket was refused, or a thread could not be started.
    pub fn prepare(spec: &XskTxSpec, interface: &str) -> Result<Self> {
        let mut sender = Self {
            threads: Vec::new(),
            shared: Vec::new(),
            readers: Vec::new(),
            mode: Mode::Copy,
            pages: Pages::Base,
            period_ns: spec.pace.map_or(0, |pace| pace.gap(spec.cpus.len()).ns),
        };
        let workers = (0..spec.cpus.len()).map(|thread| sender.worker(spec, interface, thread));
        let workers = workers.collect::<Result<Vec<_>>>()?;
        for (worker, &cpu) in workers.into_iter().zip(&spec.cpus) {
            let fifo = spec.fifo;
            let thread = thread::Builder::new()
                .name(format!("af_xdp/{cpu}"))
                .spawn(move || {
                    let _pinned = Pinned::to(cpu)?;
                    fifo.map_or(Ok(()), sched::set_fifo)?;
                    worker.run()
                })
                .map_err(|error| Error::io("start a sending thread", "clone", &error))?;
            sender.threads.push(thread);
        }
        Ok(sender)
    }

    fn worker(&mut self, spec: &XskTxSpec, interface: &str, thread: usize) -> Result<Worker> {
        let queue = spec.queue + thread as u32;
        let refused = |error: xsk::Error| spec.refused(interface, queue, &error);
        let umem = spec.umem().map_err(refused)?;
        let sockets = spec.bind(&umem, queue).map_err(refused)?;
        self.mode = sockets.first.mode();
        self.pages = umem.layout().pages;
        self.readers.push(sockets.first.statistics_reader());
        self.readers.extend(sockets.sharers.iter().map(QueueSharer::statistics_reader));
        let shared = Arc::new(Shared::new(1 + sockets.sharers.len()));
        self.shared.push(Arc::clone(&shared));
        Ok(Worker::new(spec, thread, umem, sockets, shared))
    }

    /// Lets the threads begin.
    pub fn go(&self) {
        self.shared.iter().for_each(|shared| shared.go.store(true, Ordering::Relaxed));
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    /// The mode that the kernel bound the sockets in.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Pages of the umems.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// What each socket of each thread did so far.
    #[must_use]
    pub fn counts(&self) -> Vec<Vec<XskTxCounts>> {
        self.shared.iter().map(|shared| shared.sockets.iter().map(Cell::load).collect()).collect()
    }

    /// What the kernel counted for each socket, in the same order.
    ///
    /// # Errors
    /// A socket can't be read.
    pub fn statistics(&self) -> Result<Vec<Statistics>> {
        let read = |reader: &StatisticsReader| {
            reader.read().map_err(|error| Error::invalid("read the counters of an AF_XDP socket", error.to_string()))
        };
        self.readers.iter().map(read).collect()
    }

    /// Frames that came back after they had been sent, and packets that the device is known to have dropped then.
    #[must_use]
    pub fn completed(&self) -> (u64, u64) {
        let sum = |field: fn(&Shared) -> &AtomicU64| -> u64 {
            self.shared.iter().map(|shared| field(shared).load(Ordering::Relaxed)).sum()
        };
        (sum(|shared| &shared.completed), sum(|shared| &shared.dropped))
    }

    /// How long each thread ran on its CPU, once it has ended.
    #[must_use]
    pub fn cpu_times(&self) -> Vec<Duration> {
        let time = |shared: &Arc<Shared>| Duration::from_nanos(shared.cpu_time.load(Ordering::Relaxed));
        self.shared.iter().map(time).collect()
    }

    /// Gaps between scheduled departures, over all threads.
    #[must_use]
    pub fn gaps(&self) -> GapCounts {
        let mut sum = GapCounts::default();
        for shared in &self.shared {
            let buckets = shared.gaps.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            let [first_ns, last_ns] = [0, 1].map(|field: usize| shared.departed[field].load(Ordering::Relaxed));
            let bursts = shared.late[0].load(Ordering::Relaxed);
            sum.add(&GapCounts::new(buckets, Departures { bursts, first_ns, last_ns }));
        }
        sum
    }

    /// How late scheduled departures were, over all threads; `None` before the first.
    #[must_use]
    pub fn lateness(&self) -> Option<Lateness> {
        let late = |field: usize| self.shared.iter().map(move |shared| shared.late[field].load(Ordering::Relaxed));
        let count: u64 = late(0).sum();
        (count > 0).then(|| Lateness {
            period_ns: self.period_ns,
            count,
            min_ns: late(1).min().unwrap_or(0),
            mean_ns: late(2).sum::<u64>() / count,
            max_ns: late(3).max().unwrap_or(0),
        })
    }

    /// Whether a thread is still sending.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.threads.iter().any(|thread| !thread.is_finished())
    }

    /// Ends the threads; what was sent can still be read.
    ///
    /// # Errors
    /// Why a thread failed.
    pub fn end(&mut self) -> Result<()> {
        self.shared.iter().for_each(|shared| shared.stop.store(true, Ordering::Relaxed));
        self.threads.iter().for_each(|thread| thread.thread().unpark());
        self.threads.drain(..).try_for_each(|thread| {
            thread.join().unwrap_or_else(|_panic| Err(Error::invalid("send packets", "a sending thread panicked")))
        })
    }
}

impl Drop for XskTx {
    fn drop(&mut self) {
        // Whoever drops a generator does not ask how it ended.
        self.end().unwrap_or_default();
    }
}

/// The sockets of one thread.
struct Sockets {
    first: Socket,
    sharers: Vec<QueueSharer>,
}

impl XskTxSpec {
    /// Packets of several frames.
    fn several_frames(&self) -> bool {
        self.traffic.longest().len() > self.frame_size as usize
    }

    fn umem(&self) -> xsk::Result<Umem> {
        let layout = UmemConfig {
            frames: FRAMES,
            frame_size: self.frame_size,
            unaligned: self.unaligned,
            ..UmemConfig::default()
        };
        // Frames that cross pages are fine on base pages too as long as packets are copied.
        let huge = self.unaligned.then(|| Umem::new(UmemConfig { pages: Pages::Huge2M, ..layout.clone() }));
        huge.and_then(xsk::Result::ok).map_or_else(|| Umem::new(layout), Ok)
    }

    fn bind(&self, umem: &Umem, queue: u32) -> xsk::Result<Sockets> {
        let config = Config {
            rx_ring: 0,
            tx_ring: RING,
            mode: self.mode,
            need_wakeup: self.need_wakeup,
            multi_buffer: self.several_frames(),
            tx_budget: Some(RING),
            ..Config::default()
        };
        let mut first = Socket::bind(umem, self.ifindex, queue, &config)?;
        let further = if self.shared { SHARERS - 1 } else { 0 };
        let sharers = (0..further).map(|_| first.share_queue(0, RING)).collect::<xsk::Result<_>>()?;
        Ok(Sockets { first, sharers })
    }

    fn refused(&self, interface: &str, queue: u32, error: &xsk::Error) -> Error {
        let what = format!("open AF_XDP sockets on {interface} queue {queue}");
        if self.mode == BindMode::ZeroCopy && error.errno() == Some(nix::libc::EOPNOTSUPP) {
            return Error::unsupported(what, "the driver has no zero-copy")
                .remedy("use copy mode, or leave the choice to the kernel (-C auto)");
        }
        Error::invalid(what, error.to_string())
    }
}

impl Shared {
    fn new(sockets: usize) -> Self {
        Self {
            go: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sockets: (0..sockets).map(|_| Cell::default()).collect(),
            completed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            cpu_time: AtomicU64::new(0),
            gaps: (0..GAP_BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            departed: [AtomicU64::new(0), AtomicU64::new(0)],
            late: [AtomicU64::new(0), AtomicU64::new(u64::MAX), AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn count_departure(&self, at: Duration, gap: Option<Duration>, late: Duration) {
        match gap {
            Some(gap) => drop(self.gaps[GapCounts::bucket(whole_nanos(gap))].fetch_add(1, Ordering::Relaxed)),
            None => self.departed[0].store(whole_nanos(at), Ordering::Relaxed),
        }
        self.departed[1].store(whole_nanos(at), Ordering::Relaxed);
        let [count, least, sum, most] = &self.late;
        count.fetch_add(1, Ordering::Relaxed);
        least.fetch_min(whole_nanos(late), Ordering::Relaxed);
        sum.fetch_add(whole_nanos(late), Ordering::Relaxed);
        most.fetch_max(whole_nanos(late), Ordering::Relaxed);
    }
}

/// What a thread works on.
struct Worker {
    /// Packets given to the ring at once.
    batch: u32,
    left: Option<u64>,
    poll: bool,
    completion_time: Duration,
    copies: bool,
    several_frames: bool,
    schedule: Option<Schedule>,
    content: Content,
    /// The last given back is the first to be used again: it is still in the cache.
    free: Vec<Frame>,
    completion: CompletionRing,
    rings: Vec<(TxRing, XskTxCounts)>,
    shared: Arc<Shared>,
    // Gone last: frames refer to it. The fill ring of the first socket keeps nothing.
    _umem: Umem,
}

/// What goes into frames.
struct Content {
    traffic: Traffic,
    next: usize,
    variator: Option<Variator>,
    pktgen_header: Option<usize>,
    sequence: u32,
}

/// When bursts leave.
struct Schedule {
    gap: super::Gap,
    fraction: u32,
    due: Option<Instant>,
    left: Option<Instant>,
    begin: Instant,
    phase: Duration,
}

impl Worker {
    fn new(spec: &XskTxSpec, thread: usize, umem: Umem, sockets: Sockets, shared: Arc<Shared>) -> Self {
        let threads = spec.cpus.len();
        let copies = sockets.first.mode() == Mode::Copy;
        let Socket { tx, completion, .. } = sockets.first;
        let further = sockets.sharers.into_iter().map(|QueueSharer { tx, .. }| tx);
        let rings = [tx].into_iter().chain(further).map(|tx| (tx, XskTxCounts::default())).collect();
        let mut free: Vec<Frame> = umem.take_free().collect();
        let longest = spec.traffic.longest();
        if !spec.several_frames() {
            free.iter_mut().for_each(|frame| frame.bytes_mut()[..longest.len()].copy_from_slice(longest));
        }
        let schedule = spec.pace.map(|pace| {
            let gap = pace.gap(threads);
            let phase = Duration::from_nanos(gap.ns / threads as u64 * thread as u64);
            Schedule { gap, fraction: 0, due: None, left: None, begin: Instant::now(), phase }
        });
        Self {
            batch: spec.pace.map_or(spec.batch, |pace| pace.burst),
            left: spec.count.map(|count| super::live::share(count, threads, thread)),
            poll: spec.poll,
            completion_time: spec.completion,
            copies,
            several_frames: spec.several_frames(),
            schedule,
            content: Content {
                traffic: spec.traffic.clone(),
                next: 0,
                variator: spec.traffic.fields().copied().map(Variator::new),
                pktgen_header: spec.pktgen_header,
                sequence: 0,
            },
            free,
            completion,
            rings,
            shared,
            _umem: umem,
        }
    }

    fn run(mut self) -> Result<()> {
        while !self.shared.go.load(Ordering::Relaxed) && !self.shared.stopped() {
            thread::park_timeout(Duration::from_millis(10));
        }
        let ended = self.send_all();
        // The clock is there on every kernel that has AF_XDP.
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
        self.shared.cpu_time.store(whole_nanos(time), Ordering::Relaxed);
        ended.map_err(|error| Error::invalid("send packets from AF_XDP sockets", error.to_string()))
    }

    fn send_all(&mut self) -> xsk::Result<()> {
        let mut socket = 0;
        while !self.shared.stopped() && self.left != Some(0) {
            if self.schedule.as_mut().is_some_and(|schedule| !schedule.wait(&self.shared)) {
                continue;
            }
            let wanted = self.left.map_or(self.batch, |left| self.batch.min(u32::try_from(left).unwrap_or(u32::MAX)));
            let sent = self.send(socket, wanted)?;
            if let Some(left) = &mut self.left {
                *left -= u64::from(sent);
            }
            socket = (socket + 1) % self.rings.len();
        }
        self.collect()
    }

    /// Gives `wanted` packets to the ring, all of them unless the thread is stopped meanwhile.
    fn send(&mut self, socket: usize, wanted: u32) -> xsk::Result<u32> {
        let mut sent = 0;
        while sent < wanted && !self.shared.stopped() {
            self.reclaim(wanted);
            let now = if self.several_frames { self.queue_long(socket)? } else { self.queue(socket, wanted - sent)? };
            sent += now;
            self.wake(socket, now == 0)?;
        }
        Ok(sent)
    }

    /// Takes back what has been sent.
    fn reclaim(&mut self, enough: u32) {
        if self.rings.iter().map(|(tx, _)| tx.sent()).sum::<u64>() > self.completion.completed() {
            self.free.extend(self.completion.drain(enough.max(self.batch) * 2).map(Completed::into_frame));
            self.shared.completed.store(self.completion.completed(), Ordering::Relaxed);
        }
    }

    /// Packets of one frame each.
    fn queue(&mut self, socket: usize, wanted: u32) -> xsk::Result<u32> {
        let Self { content, free, rings, shared, .. } = self;
        let (tx, counts) = &mut rings[socket];
        let stamp = content.stamp();
        let wanted = wanted.min(u32::try_from(free.len()).unwrap_or(u32::MAX)).min(tx.room());
        let first = free.len() - wanted as usize;
        let mut refused = None;
        let packets = free.drain(first..).map_while(|mut frame| {
            let len = content.fill(frame.bytes_mut(), stamp);
            frame.into_segment(0, len as u32).map_err(|error| refused = Some(error)).ok()
        });
        let sent = tx.send(packets)?;
        counts.packets += u64::from(sent);
        counts.frames += u64::from(sent);
        shared.sockets[socket].store(counts);
        refused.map_or(Ok(sent), Err)
    }

    /// One packet of several frames.
    fn queue_long(&mut self, socket: usize) -> xsk::Result<u32> {
        let Self { content, free, rings, shared, .. } = self;
        let (tx, counts) = &mut rings[socket];
        let stamp = content.stamp();
        let packet = content.packet(stamp);
        let Some(size) = free.last().map(|frame| frame.bytes().len()) else { return Ok(0) };
        let needed = packet.len().div_ceil(size);
        if free.len() < needed || (tx.room() as usize) < needed {
            content.unsend();
            return Ok(0);
        }
        let frames = free.drain(free.len() - needed..).zip(packet.chunks(size));
        let segments = frames.map(|(mut frame, chunk)| {
            frame.bytes_mut()[..chunk.len()].copy_from_slice(chunk);
            frame.into_segment(0, chunk.len() as u32)
        });
        let mut segments = segments.collect::<xsk::Result<Vec<Segment>>>()?;
        tx.send_packet(&mut segments)?;
        counts.packets += 1;
        counts.frames += needed as u64;
        shared.sockets[socket].store(counts);
        Ok(1)
    }

    /// Has the kernel send; without room for more packets also waits for some in poll mode.
    fn wake(&mut self, socket: usize, full: bool) -> xsk::Result<()> {
        let (tx, counts) = &mut self.rings[socket];
        if full && self.poll {
            counts.polls += 1;
            tx.wait(POLL)?;
        }
        *(if self.copies { &mut counts.copy_wakeups } else { &mut counts.wakeups }) += 1;
        tx.wake()?;
        self.shared.sockets[socket].store(counts);
        if self.copies {
            let dropped = self.rings.iter().map(|(tx, _)| tx.dropped()).sum();
            self.shared.dropped.store(dropped, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for the last frames to come back, if it has been stopped only shortly.
    fn collect(&mut self) -> xsk::Result<()> {
        const STOPPED: Duration = Duration::from_millis(50);
        let begin = Instant::now();
        loop {
            let pending: u64 = self.rings.iter().map(|(tx, _)| tx.sent()).sum();
            let longest = if self.shared.stopped() { STOPPED } else { self.completion_time };
            if pending == self.completion.completed() || begin.elapsed() >= longest {
                return Ok(());
            }
            for socket in 0..self.rings.len() {
                if self.rings[socket].0.pending() > 0 {
                    self.wake(socket, false)?;
                }
            }
            self.reclaim(RING);
            thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Content {
    /// The time of a batch, where packets carry it.
    fn stamp(&self) -> Option<Duration> {
        let now = || clock_gettime(ClockId::CLOCK_REALTIME).map_or(Duration::ZERO, Duration::from);
        self.pktgen_header.map(|_| now())
    }

    /// Writes what the next packet needs into a frame that holds the longest one, and returns its length.
    fn fill(&mut self, frame: &mut [u8], stamp: Option<Duration>) -> usize {
        let template = &self.traffic.templates()[self.next];
        self.next = if self.next + 1 < self.traffic.templates().len() { self.next + 1 } else { 0 };
        let len = template.frame.len();
        frame[..template.written].copy_from_slice(&template.frame[..template.written]);
        let (mut udp_sum, ip_sum) = (template.udp_sum, template.ip_sum);
        if let Some((at, stamp)) = self.pktgen_header.zip(stamp) {
            udp_sum = self.traffic.write_stamp(&mut frame[..len], at, udp_sum, self.sequence, stamp);
            self.sequence = self.sequence.wrapping_add(1);
            if self.variator.is_none() {
                let check = checksum::never_zero(!udp_sum);
                frame[at - 2..at].copy_from_slice(&check.to_be_bytes());
            }
        }
        if let Some(variator) = &mut self.variator {
            variator.write(&mut frame[..len], udp_sum, ip_sum);
        }
        len
    }

    /// The next packet as a whole.
    fn packet(&mut self, stamp: Option<Duration>) -> Vec<u8> {
        let mut packet = self.traffic.templates()[self.next].frame.clone();
        self.fill(&mut packet, stamp);
        packet
    }

    /// The packet was not sent and comes again.
    fn unsend(&mut self) {
        let last = self.traffic.templates().len() - 1;
        self.next = self.next.checked_sub(1).unwrap_or(last);
        self.sequence = if self.pktgen_header.is_some() { self.sequence.wrapping_sub(1) } else { self.sequence };
    }
}

impl Schedule {
    /// Waits until the next burst is due; false where the thread has been stopped or the wait goes on.
    fn wait(&mut self, shared: &Shared) -> bool {
        let due = *self.due.get_or_insert_with(|| Instant::now() + self.phase);
        let mut now = Instant::now();
        if due > now + OVERSLEEP {
            thread::sleep((due - now - OVERSLEEP).min(SLEEP));
            now = Instant::now();
            if due > now + OVERSLEEP {
                return false;
            }
        }
        while now < due {
            std::hint::spin_loop();
            now = Instant::now();
        }
        shared.count_departure(now - self.begin, self.left.map(|left| now - left), now - due);
        self.left = Some(now);
        let (fraction, carry) = self.fraction.overflowing_add(self.gap.fraction);
        self.fraction = fraction;
        self.due = Some(due + Duration::from_nanos(self.gap.ns + u64::from(carry)));
        true
    }
}
