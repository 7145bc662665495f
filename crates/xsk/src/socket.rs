//! Binding a socket to a queue, and what belongs to the socket as a whole.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use crate::bind;
use crate::config::{Config, Mode};
use crate::device::Probe;
use crate::error::{Error, Result, Ring};
use crate::frame::Frame;
use crate::rings::{CompletionRing, FillRing, RxRing, TxRing, Wake};
use crate::sys;
use crate::uapi;
use crate::umem::{Owner, Umem};

/// What the kernel counted for a socket (`XDP_STATISTICS`). `None` before Linux 5.9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "XDP_STATISTICS")]
pub struct Statistics {
    /// Packets dropped on receive for other reasons: too long for a frame, no frame in the fill ring (copy mode), …
    pub rx_dropped: u64,
    /// Bad addresses in the fill ring.
    pub rx_invalid_descs: u64,
    /// Bad descriptors in the Tx ring.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the Rx ring was full.
    pub rx_ring_full: Option<u64>,
    /// Times a frame was wanted from the empty fill ring.
    pub rx_fill_ring_empty_descs: Option<u64>,
    /// Times the Tx ring was found empty.
    pub tx_ring_empty_descs: Option<u64>,
}

/// The kernel's side of a socket, kept by each of its rings.
pub(crate) struct Link {
    // Closed before the lease frees the frames.
    pub(crate) fd: OwnedFd,
    pub(crate) lease: Arc<Lease>,
    pub(crate) umem: Umem,
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
    pub(crate) mode: Mode,
    pub(crate) need_wakeup: bool,
    pub(crate) multi_buffer: bool,
    pub(crate) tx_budget: Option<u32>,
    /// Most segments of a packet to send.
    pub(crate) max_segments: usize,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.subject(), self.mode)
    }
}

/// The right of a socket to own frames.
pub(crate) struct Lease {
    umem: Umem,
    slot: u16,
    /// Whether several sockets receive from one fill ring, so that their rings may act for one owner at once.
    shared: AtomicBool,
    /// Set where the kernel may write to frames after the close: the device in zero-copy mode, and Tx timestamps.
    release: Option<Release>,
}

/// How to find out that the kernel has let go of a closed socket's queue.
pub(crate) struct Release {
    pub(crate) probe: Probe,
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
}

impl Release {
    /// How long closing waits for the kernel to let go.
    const DEADLINE: Duration = Duration::from_millis(500);

    /// Whether the kernel has let go of the queue, and so of the frames.
    pub(crate) fn is_done(&self) -> bool {
        match self.probe.queue_is_free(self.ifindex, self.queue) {
            Ok(free) => free,
            // The interface has gone, and its queues with it.
            Err(error) => error.raw_os_error() == Some(libc::ENODEV),
        }
    }

    fn wait(&self) -> bool {
        let deadline = Instant::now() + Self::DEADLINE;
        loop {
            if self.is_done() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Lease {
    pub(crate) fn new(umem: &Umem) -> Result<Self> {
        let slot = umem.shared().sockets().take_slot()?;
        Ok(Self { umem: umem.clone(), slot, shared: AtomicBool::new(false), release: None })
    }

    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Takes a frame out of the kernel's hands if it is there for this lease.
    pub(crate) fn take(&self, index: u32, owner: Owner) -> Option<Frame> {
        if self.shared.load(Ordering::Relaxed) {
            self.umem.claim_frame(index, owner)
        } else {
            self.umem.frame_of(index, owner)
        }
    }

    pub(crate) fn wait_for(&mut self, release: Release) {
        self.release = Some(release);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let umem = self.umem.shared();
        match self.release.take() {
            Some(release) if !release.wait() => umem.hold_socket(release, self.slot),
            _ => umem.free_socket(self.slot),
        }
    }
}

impl Link {
    pub(crate) fn slot(&self) -> u16 {
        self.lease.slot
    }

    fn subject(&self) -> String {
        format!("ifindex {} queue {}", self.ifindex, self.queue)
    }

    pub(crate) fn foreign_frame(&self, ring: Ring) -> Error {
        Error::ForeignFrame { ring, ifindex: self.ifindex, queue: self.queue }
    }

    fn error(&self, ring: Option<Ring>, call: &'static str, source: io::Error) -> Error {
        let subject = match ring {
            Some(ring) => format!("{ring}, {}", self.subject()),
            None => self.subject(),
        };
        let remedy = match source.raw_os_error() {
            Some(libc::ENETDOWN) => "set the interface up",
            Some(libc::ENXIO) => "the interface is gone; bind a new socket",
            _ => "check the interface and its driver",
        };
        Error::Call { subject, call, remedy: remedy.into(), source }
    }

    fn statistics(&self) -> Result<Statistics> {
        let mut raw = uapi::xdp_statistics::default();
        let len = sys::getsockopt(self.fd.as_raw_fd(), uapi::XDP_STATISTICS, &mut raw)
            .map_err(|source| self.error(None, "getsockopt(XDP_STATISTICS)", source))?;
        let later = |counter: u64| (len > uapi::XDP_STATISTICS_V1_SIZE).then_some(counter);
        Ok(Statistics {
            rx_dropped: raw.rx_dropped,
            rx_invalid_descs: raw.rx_invalid_descs,
            tx_invalid_descs: raw.tx_invalid_descs,
            rx_ring_full: later(raw.rx_ring_full),
            rx_fill_ring_empty_descs: later(raw.rx_fill_ring_empty_descs),
            tx_ring_empty_descs: later(raw.tx_ring_empty_descs),
        })
    }

    pub(crate) fn wake_tx(&self) -> Result<Wake> {
        match sys::wake_tx(self.fd.as_raw_fd()) {
            Ok(()) => Ok(Wake::Done),
            Err(source) => match source.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(Wake::Again),
                Some(libc::EBUSY) => Ok(Wake::Dropped),
                _ => Err(self.error(Some(Ring::Tx), "sendto", source)),
            },
        }
    }

    pub(crate) fn wake_rx(&self) -> Result<()> {
        match sys::wake_rx(self.fd.as_raw_fd()) {
            Ok(()) => Ok(()),
            Err(source) => match source.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => Ok(()),
                _ => Err(self.error(Some(Ring::Fill), "recvfrom", source)),
            },
        }
    }

    pub(crate) fn poll(&self, events: i16, timeout: Duration) -> Result<i16> {
        let mut entries = [libc::pollfd { fd: self.fd.as_raw_fd(), events, revents: 0 }];
        sys::poll(&mut entries, milliseconds(timeout)).map_err(|source| self.error(None, "poll", source))?;
        Ok(entries[0].revents)
    }

    /// Waits until one of the sockets can be received from.
    pub(crate) fn poll_in(links: &[&Self], timeout: Duration) -> Result<()> {
        let entry = |link: &&Self| libc::pollfd { fd: link.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut entries: Vec<_> = links.iter().map(entry).collect();
        let first = links.first();
        sys::poll(&mut entries, milliseconds(timeout)).map_err(|source| match first {
            Some(link) => link.error(None, "poll", source),
            None => Error::Call { subject: "no socket".into(), call: "poll", remedy: "wait less".into(), source },
        })
    }
}

/// Rounded up, so that a short wait is not a busy loop.
fn milliseconds(timeout: Duration) -> i32 {
    timeout.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX)
}

/// A bound AF_XDP socket: its four rings, and what belongs to it as a whole.
///
/// The rings are fields, so that they can be borrowed apart from each other, or moved to other threads. Dropping the
/// socket and all its rings closes it; frames that were in the rings or in the kernel become free
/// ([`Umem::take_free`]). In zero-copy mode and with Tx metadata, where the device or the kernel may still write to them,
/// closing waits up to half a second for the kernel to let go of the queue; if it has not by then, or another socket
/// took the queue at once, the frames stay in [`crate::Ledger::rx`] and [`crate::Ledger::tx`] until a later
/// [`Umem::take_free`] finds the queue free.
///
/// A child process holds the kernel's socket open from its fork to its exec: do not close a socket at that moment.
#[derive(Debug)]
pub struct Socket {
    /// Gives the kernel frames to receive into.
    pub fill: FillRing,
    /// Received packets.
    pub rx: RxRing,
    /// Packets to send.
    pub tx: TxRing,
    /// Sent frames coming back.
    pub completion: CompletionRing,
    link: Arc<Link>,
}

impl Socket {
    /// Binds a socket to a queue of an interface in the calling thread's network namespace. The first socket registers
    /// the umem, further ones share it, whatever their queue and interface.
    ///
    /// Packets arrive once an XDP program redirects them to this socket; program and map are the caller's. The socket
    /// goes into the XSKMAP by its [raw descriptor](AsRawFd), at the index the program looks up.
    ///
    /// Needs CAP_NET_RAW. Linux 5.4; what needs a later one says so in [`Config`].
    ///
    /// # Errors
    ///
    /// A setting or a system call, with the ring or queue it was for and the remedy; [`Error::QueueBusy`] if the queue
    /// stays taken for [`Config::bind_timeout`]. Nothing is left behind.
    pub fn bind(umem: &Umem, ifindex: u32, queue: u32, config: &Config) -> Result<Self> {
        let (rings, link) = bind::bind(umem, ifindex, queue, config)?;
        Ok(Self {
            fill: FillRing::new(rings.fill, Arc::clone(&link)),
            rx: RxRing::new(rings.rx, Arc::clone(&link)),
            tx: TxRing::new(rings.tx, Arc::clone(&link)),
            completion: CompletionRing::new(rings.completion, Arc::clone(&link)),
            link,
        })
    }

    /// The mode the kernel bound the socket in.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.link.mode
    }

    /// The interface.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.link.ifindex
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.link.queue
    }

    /// The kernel's counters.
    ///
    /// # Errors
    ///
    /// The system call failed.
    pub fn statistics(&self) -> Result<Statistics> {
        self.link.statistics()
    }

    /// Reads the kernel's counters wherever the socket's rings are.
    #[must_use]
    pub fn statistics_reader(&self) -> StatisticsReader {
        StatisticsReader { link: Arc::clone(&self.link) }
    }

    /// Binds a further socket to the same queue, with the same umem, fill ring and completion ring; an XDP program may
    /// choose between them (`XDP_SHARED_UMEM`). Frames that were given to the fill ring may come up in the Rx ring of any
    /// of the sockets, and frames sent by any of them in the completion ring.
    ///
    /// Linux 5.4.
    ///
    /// # Errors
    ///
    /// A ring size that is no power of two, or a system call; nothing is left behind.
    pub fn share_queue(&mut self, rx_ring: u32, tx_ring: u32) -> Result<QueueSharer> {
        // Exclusive, so that no ring of this socket is on another thread that has not seen yet that frames are shared.
        let (rx, tx, link) = bind::bind_sharer(&self.link, rx_ring, tx_ring)?;
        Ok(QueueSharer { rx: RxRing::new(rx, Arc::clone(&link)), tx: TxRing::new(tx, Arc::clone(&link)), link })
    }

    /// Frames the socket owns on its receive side (fill ring, kernel, Rx ring), by its own count; with those that other
    /// sockets on the queue have received.
    #[must_use]
    pub fn rx_frames(&self) -> u64 {
        self.fill.given() - self.rx.received()
    }

    /// Frames the socket owns on its send side (Tx ring, kernel, completion ring), by its own count; less those that other
    /// sockets on the queue have sent and that came back here.
    #[must_use]
    pub fn tx_frames(&self) -> u64 {
        self.tx.sent().saturating_sub(self.completion.completed())
    }
}

/// A further socket on the queue of another ([`Socket::share_queue`]), with the rings of its own. The queue is let go when
/// the last socket on it is dropped.
#[derive(Debug)]
#[doc(alias = "XDP_SHARED_UMEM")]
pub struct QueueSharer {
    /// Received packets.
    pub rx: RxRing,
    /// Packets to send.
    pub tx: TxRing,
    link: Arc<Link>,
}

impl QueueSharer {
    /// Reads the kernel's counters wherever the rings are.
    #[must_use]
    pub fn statistics_reader(&self) -> StatisticsReader {
        StatisticsReader { link: Arc::clone(&self.link) }
    }
}

/// For the XSKMAP, as with [`Socket`].
impl AsRawFd for QueueSharer {
    fn as_raw_fd(&self) -> RawFd {
        self.link.fd.as_raw_fd()
    }
}

/// Reads a socket's counters, on any thread. It keeps the socket open.
#[derive(Clone, Debug)]
pub struct StatisticsReader {
    link: Arc<Link>,
}

impl StatisticsReader {
    /// The kernel's counters.
    ///
    /// # Errors
    ///
    /// The system call failed.
    pub fn read(&self) -> Result<Statistics> {
        self.link.statistics()
    }
}

/// For the XSKMAP. There is no `AsFd` on purpose: a safe duplicate would keep the kernel's socket, and its hold on
/// frames, alive after this one was closed. The duplicate of a raw descriptor must not outlive the socket.
impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.link.fd.as_raw_fd()
    }
}
