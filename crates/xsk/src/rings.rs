//! The four rings of a socket, in frames instead of addresses.
//!
//! Each can be moved to a thread of its own; the socket closes when the last of its rings is dropped.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result, Ring};
use crate::frame::{Completed, Frame, Segment};
use crate::pool::FrameSource;
use crate::ring::{Consumer, Mapped, Producer};
use crate::socket::Link;
use crate::uapi::{XDP_PKT_CONTD, XDP_RING_NEED_WAKEUP, xdp_desc};
use crate::umem::Owner;

#[cfg(test)]
mod tests;

/// The fewest packets of a call that sends in copy mode where more are queued (`TX_BATCH_SIZE`, net/xdp/xsk.c).
const TX_BATCH_SIZE: u32 = 32;

// In each ring the mapping comes before the link: the kernel closes a socket only when all its mappings are gone.

/// Gives the kernel frames to receive into.
#[derive(Debug)]
#[doc(alias = "XDP_UMEM_FILL_RING")]
pub struct FillRing {
    ring: Producer<Mapped<u64>>,
    link: Arc<Link>,
    given: u64,
}

impl FillRing {
    pub(crate) fn new(memory: Mapped<u64>, link: Arc<Link>) -> Self {
        Self { ring: Producer::new(memory), link, given: 0 }
    }

    /// Gives frames while there is room and the iterator has any; takes no frame from it without room. Returns how
    /// many were given; the kernel sees them at once.
    ///
    /// # Errors
    ///
    /// A frame of another umem, which is dropped (made free); those before it are given.
    pub fn push(&mut self, frames: impl IntoIterator<Item = Frame>) -> Result<u32> {
        let mut frames = frames.into_iter();
        let room = self.ring.free(self.ring.capacity());
        let mut count = 0;
        let mut outcome = Ok(());
        while count < room {
            let Some(frame) = frames.next() else { break };
            if !self.link.umem.owns(&frame) {
                outcome = Err(self.link.foreign_frame(Ring::Fill));
                break;
            }
            let addr = frame.addr();
            frame.pass_to(Owner::rx(self.link.slot()));
            let pushed = self.ring.push(addr);
            debug_assert!(pushed, "there was room");
            self.given += 1;
            count += 1;
        }
        self.ring.publish();
        outcome.map(|()| count)
    }

    /// As [`FillRing::push`] with at most `max` frames of a pool.
    ///
    /// # Errors
    ///
    /// As [`FillRing::push`].
    pub fn refill(&mut self, source: &mut impl FrameSource, max: u32) -> Result<u32> {
        self.push(std::iter::from_fn(|| source.take()).take(max as usize))
    }

    /// Gives the frames of at most `max` received segments straight back to the kernel, without a look at the packets:
    /// the cheapest way to drop them. Segments for which there is no room stay in the Rx ring.
    ///
    /// # Errors
    ///
    /// The Rx ring is of another queue or umem; nothing is moved.
    pub fn recycle(&mut self, rx: &mut RxRing, max: u32) -> Result<Recycled> {
        if !Arc::ptr_eq(&self.link.lease, &rx.link.lease) {
            return Err(self.link.foreign_frame(Ring::Fill));
        }
        let count = rx.ring.available(max).min(max).min(self.ring.free(max));
        let mut recycled = Recycled::default();
        let owner = Owner::rx(self.link.slot());
        for _ in 0..count {
            let Some(desc) = rx.ring.pop() else { break };
            // The frame stays the kernel's: it goes from one ring of the queue to the other.
            match self.link.umem.shared().addr_of(desc.addr, owner) {
                Some(addr) => {
                    let pushed = self.ring.push(addr);
                    debug_assert!(pushed, "there was room");
                    recycled.frames += 1;
                    recycled.packets += u32::from(desc.options & XDP_PKT_CONTD == 0);
                }
                None => rx.faults += 1,
            }
        }
        rx.ring.release();
        self.ring.publish();
        self.given += u64::from(recycled.frames);
        rx.received += u64::from(recycled.frames);
        Ok(recycled)
    }

    /// Frames the kernel has not yet taken out of the ring.
    pub fn pending(&mut self) -> u32 {
        self.ring.pending()
    }

    /// Frames given since the socket was bound.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Whether the driver waits for [`FillRing::wake`] before it looks at the ring.
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.link.need_wakeup && self.ring.flags() & XDP_RING_NEED_WAKEUP != 0
    }

    /// Makes the kernel look at the ring; with busy polling, also makes it receive.
    ///
    /// # Errors
    ///
    /// The interface is down or gone.
    pub fn wake(&self) -> Result<()> {
        self.link.wake_rx()
    }
}

/// What [`FillRing::recycle`] dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recycled {
    /// Segments, each a frame.
    pub frames: u32,
    /// Packets whose last segment was among them.
    pub packets: u32,
}

/// Received packets.
#[derive(Debug)]
#[doc(alias = "XDP_RX_RING")]
pub struct RxRing {
    ring: Consumer<Mapped<xdp_desc>>,
    link: Arc<Link>,
    received: u64,
    faults: u64,
}

impl RxRing {
    pub(crate) fn new(memory: Mapped<xdp_desc>, link: Arc<Link>) -> Self {
        Self { ring: Consumer::new(memory), link, received: 0, faults: 0 }
    }

    /// The segments that are there now, at most `max`. Entries go back to the kernel when the iterator is dropped;
    /// segments not taken from it stay in the ring.
    ///
    /// With [`crate::Config::multi_buffer`] a packet may span several segments ([`Segment::continues`]); the kernel
    /// puts a packet's segments into the ring together, but `max` may cut between them.
    pub fn drain(&mut self, max: u32) -> RxDrain<'_> {
        let left = self.ring.available(max).min(max);
        RxDrain { rx: self, left }
    }

    /// Whether there is no packet now.
    pub fn is_empty(&mut self) -> bool {
        self.ring.available(1) == 0
    }

    /// Waits until there is a packet, at most `timeout`. Returns whether there is one.
    ///
    /// # Errors
    ///
    /// The system call failed.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        if self.is_empty() {
            self.link.poll(libc::POLLIN, timeout)?;
        }
        Ok(!self.is_empty())
    }

    /// As [`RxRing::wait`] on several rings at once.
    ///
    /// # Errors
    ///
    /// The system call failed.
    pub fn wait_any<'a>(rings: impl IntoIterator<Item = &'a mut Self>, timeout: Duration) -> Result<bool> {
        let mut rings: Vec<&mut Self> = rings.into_iter().collect();
        if rings.iter_mut().all(|rx| rx.is_empty()) {
            let links: Vec<&Link> = rings.iter().map(|rx| &*rx.link).collect();
            Link::poll_in(&links, timeout)?;
        }
        Ok(rings.iter_mut().any(|rx| !rx.is_empty()))
    }

    /// Segments received since the socket was bound.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Descriptors skipped because they pointed outside the umem, or to a frame this socket's kernel side does not
    /// hold. Always 0 with a correct kernel.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults
    }

    fn accept(&mut self, desc: xdp_desc) -> Option<Segment> {
        let umem = &self.link.umem;
        let segment = umem.shared().locate(desc.addr).and_then(|(index, offset)| {
            let frame = self.link.lease.take(index, Owner::rx(self.link.slot()))?;
            self.received += 1;
            Segment::received(frame, offset, desc.len, desc.options)
        });
        self.faults += u64::from(segment.is_none());
        segment
    }
}

/// Iterator over received segments, from [`RxRing::drain`].
#[derive(Debug)]
pub struct RxDrain<'a> {
    rx: &'a mut RxRing,
    left: u32,
}

impl Iterator for RxDrain<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        while self.left > 0 {
            self.left -= 1;
            let desc = self.rx.ring.pop()?;
            if let Some(segment) = self.rx.accept(desc) {
                return Some(segment);
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

impl Drop for RxDrain<'_> {
    fn drop(&mut self) {
        self.rx.ring.release();
    }
}

/// Packets to send.
#[derive(Debug)]
#[doc(alias = "XDP_TX_RING")]
pub struct TxRing {
    ring: Producer<Mapped<xdp_desc>>,
    link: Arc<Link>,
    sent: u64,
    dropped: u64,
}

impl TxRing {
    pub(crate) fn new(memory: Mapped<xdp_desc>, link: Arc<Link>) -> Self {
        Self { ring: Producer::new(memory), link, sent: 0, dropped: 0 }
    }

    /// Queues packets of one segment each while there is room and the iterator has any; takes none from it without
    /// room. Returns how many were queued. Call [`TxRing::wake`] to have them sent.
    ///
    /// # Errors
    ///
    /// A segment of another umem, or a part of a longer packet (see [`TxRing::send_packet`]). It is dropped (its frame
    /// made free); those before it are queued.
    pub fn send(&mut self, packets: impl IntoIterator<Item = Segment>) -> Result<u32> {
        let mut packets = packets.into_iter();
        let room = self.ring.free(self.ring.capacity());
        let mut count = 0;
        let mut outcome = Ok(());
        while count < room {
            let Some(packet) = packets.next() else { break };
            if let Err(error) = self.check_single(&packet) {
                outcome = Err(error);
                break;
            }
            self.queue(packet, false);
            count += 1;
        }
        self.ring.publish();
        outcome.map(|()| count)
    }

    /// Queues one packet of several segments, whole or not at all: `Ok(false)` without room for it, and the segments
    /// stay. Leaves the vector empty otherwise.
    ///
    /// # Errors
    ///
    /// There are no segments or too many, or one is of another umem; the segments stay. With
    /// [`crate::Config::multi_buffer`] 18 can be sent in copy mode (what every kernel is built for), and as many as the
    /// driver says in zero-copy mode; without it, one.
    pub fn send_packet(&mut self, segments: &mut Vec<Segment>) -> Result<bool> {
        self.check_packet(segments)?;
        let count = segments.len() as u32;
        if self.ring.free(count) < count {
            return Ok(false);
        }
        let last = segments.len() - 1;
        for (index, segment) in segments.drain(..).enumerate() {
            self.queue(segment, index < last);
        }
        self.ring.publish();
        Ok(true)
    }

    fn check_single(&self, packet: &Segment) -> Result<()> {
        if packet.continues() {
            return Err(Error::Segment {
                problem: "is a part of a longer packet".into(),
                remedy: "collect its segments and use TxRing::send_packet",
            });
        }
        self.check_umem(packet)
    }

    fn check_packet(&self, segments: &[Segment]) -> Result<()> {
        let most = self.link.max_segments;
        if segments.is_empty() || segments.len() > most {
            return Err(Error::Segment {
                problem: format!("a packet of {} segments where 1 to {most} can be sent", segments.len()),
                remedy: if self.link.multi_buffer {
                    "use fewer, longer segments"
                } else {
                    "set Config::multi_buffer (Linux 6.6)"
                },
            });
        }
        segments.iter().try_for_each(|segment| self.check_umem(segment))
    }

    fn check_umem(&self, segment: &Segment) -> Result<()> {
        if self.link.umem.owns(segment.frame()) { Ok(()) } else { Err(self.link.foreign_frame(Ring::Tx)) }
    }

    /// Writes one descriptor; there must be room.
    fn queue(&mut self, mut segment: Segment, continues: bool) {
        let desc = segment.descriptor(continues);
        segment.into_frame().pass_to(Owner::tx(self.link.slot()));
        let pushed = self.ring.push(desc);
        debug_assert!(pushed, "there was room");
        self.sent += 1;
    }

    /// Has the kernel send what is queued, and returns how many descriptors it has not taken yet: without a wakeup
    /// needed, or in zero-copy mode, the driver takes them by itself; in copy mode they remain when the device or the
    /// completion ring is full, and another call tries again. Kernels up to 6.12 at least tell only of the last one queued
    /// that it was taken, with all before it.
    ///
    /// # Errors
    ///
    /// The interface is down or gone; the descriptors stay queued.
    pub fn wake(&mut self) -> Result<u32> {
        let mut pending = self.ring.pending();
        let mut fruitless = 0;
        while pending > 0 && self.needs_wakeup() {
            let outcome = self.link.wake_tx()?;
            self.dropped += u64::from(outcome == Wake::Dropped);
            let left = self.ring.pending();
            if outcome == Wake::Done {
                return Ok(left);
            }
            // Copy mode takes a limited number a call, which need not be seen before the last one. Without progress, waiting is
            // the caller's.
            fruitless = if left < pending || outcome == Wake::Dropped { 0 } else { fruitless + 1 };
            if fruitless > left / TX_BATCH_SIZE {
                return Ok(left);
            }
            pending = left;
        }
        Ok(pending)
    }

    /// Whether the kernel waits for [`TxRing::wake`]. Always true without [`crate::Config::need_wakeup`].
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        !self.link.need_wakeup || self.ring.flags() & XDP_RING_NEED_WAKEUP != 0
    }

    /// Waits until at least half of the ring is free, at most `timeout`. Returns whether it is.
    ///
    /// # Errors
    ///
    /// The system call failed.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        Ok(self.link.poll(libc::POLLOUT, timeout)? & libc::POLLOUT != 0)
    }

    /// Room for descriptors.
    pub fn room(&mut self) -> u32 {
        self.ring.free(self.ring.capacity())
    }

    /// Descriptors the kernel has not yet taken out of the ring.
    pub fn pending(&mut self) -> u32 {
        self.ring.pending()
    }

    /// Segments queued since the socket was bound.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Packets the kernel took but the device dropped, as far as [`TxRing::wake`] was told (EBUSY; copy mode only).
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// What the kernel answered to a wakeup of the Tx ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Nothing left to do for the caller.
    Done,
    /// There is more to send.
    Again,
    /// The device dropped a packet, which counts as completed (`NET_XMIT_DROP`); there may be more to send.
    Dropped,
}

/// Sent frames coming back.
#[derive(Debug)]
#[doc(alias = "XDP_UMEM_COMPLETION_RING")]
pub struct CompletionRing {
    ring: Consumer<Mapped<u64>>,
    link: Arc<Link>,
    completed: u64,
    faults: u64,
}

impl CompletionRing {
    pub(crate) fn new(memory: Mapped<u64>, link: Arc<Link>) -> Self {
        Self { ring: Consumer::new(memory), link, completed: 0, faults: 0 }
    }

    /// The frames that have come back, at most `max`. Entries go back to the kernel when the iterator is dropped;
    /// frames not taken from it stay in the ring.
    pub fn drain(&mut self, max: u32) -> CompletionDrain<'_> {
        let left = self.ring.available(max).min(max);
        CompletionDrain { completion: self, left }
    }

    /// Returns all frames that have come back to a pool, and their number.
    pub fn recycle(&mut self, source: &mut impl FrameSource) -> u32 {
        let mut count = 0;
        for completed in self.drain(self.ring.capacity()) {
            source.give(completed.into_frame());
            count += 1;
        }
        count
    }

    /// Frames that came back since the socket was bound.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Addresses skipped because they were outside the umem or not being sent by this socket. Always 0 with a correct
    /// kernel.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults
    }

    fn accept(&mut self, addr: u64) -> Option<Completed> {
        let umem = &self.link.umem;
        let completed = umem.shared().locate(addr).and_then(|(index, offset)| {
            let frame = self.link.lease.take(index, Owner::tx(self.link.slot()))?;
            Some(Completed::new(frame, offset))
        });
        match completed {
            Some(_) => self.completed += 1,
            None => self.faults += 1,
        }
        completed
    }
}

/// Iterator over frames that came back, from [`CompletionRing::drain`].
#[derive(Debug)]
pub struct CompletionDrain<'a> {
    completion: &'a mut CompletionRing,
    left: u32,
}

impl Iterator for CompletionDrain<'_> {
    type Item = Completed;

    fn next(&mut self) -> Option<Completed> {
        while self.left > 0 {
            self.left -= 1;
            let addr = self.completion.ring.pop()?;
            if let Some(completed) = self.completion.accept(addr) {
                return Some(completed);
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

impl Drop for CompletionDrain<'_> {
    fn drop(&mut self) {
        self.completion.ring.release();
    }
}
