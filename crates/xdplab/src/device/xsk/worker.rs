//! What the thread of the sockets does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use xsk::{CompletionRing, FillRing, Mode, QueueSharer, RxRing, Segment, Socket, TxRing, Umem};

use super::counts::SocketCounts;
use super::sockets::{Bound, Common, first_of};
use super::{Handling, XskAction, XskSpec};

/// The longest wait in poll(2), after which the thread looks whether it shall end.
const POLL: Duration = Duration::from_millis(100);
/// The same while sent frames have not come back yet.
const POLL_SENDING: Duration = Duration::from_millis(1);

/// What the thread works on.
pub(super) struct Worker {
    busy_poll: bool,
    frags: bool,
    rest_after: Option<Duration>,
    copies: bool,
    fill: FillRing,
    completion: CompletionRing,
    rings: Vec<Rings>,
    /// The socket that had packets last.
    served: usize,
    /// Since when there have been none, where the thread may rest.
    idle_since: Option<Instant>,
    common: Arc<Common>,
    _umem: Umem,
}

/// The rings of one socket, and what is done with it.
struct Rings {
    rx: RxRing,
    tx: TxRing,
    handling: Handling,
    /// The socket for which its time is put down.
    account: usize,
    counts: SocketCounts,
    /// Segments of a packet that is not complete, or that found no room in the Tx ring.
    packet: Vec<Segment>,
}

impl Worker {
    pub(super) fn new(bound: Bound, spec: &XskSpec, common: Arc<Common>) -> Self {
        let copies = bound.first.mode() == Mode::Copy;
        let Socket { fill, rx, tx, completion, .. } = bound.first;
        let sharers = bound.sharers.into_iter().map(|QueueSharer { rx, tx, .. }| (rx, tx));
        let rings = [(rx, tx)].into_iter().chain(sharers).zip(&spec.sockets);
        let rings = rings.map(|((rx, tx), handling)| Rings {
            rx,
            tx,
            handling: *handling,
            account: first_of(&spec.sockets, handling).unwrap_or(0),
            counts: SocketCounts::default(),
            packet: Vec::new(),
        });
        Self {
            busy_poll: spec.busy_poll,
            frags: spec.frags,
            rest_after: spec.rest_after,
            copies,
            fill,
            completion,
            rings: rings.collect(),
            served: 0,
            idle_since: None,
            common,
            _umem: bound.umem,
        }
    }

    pub(super) fn run(mut self) -> xsk::Result<()> {
        if self.polls() || self.busy_poll {
            // All of its run time counts: it sleeps without packets, or polls the driver then.
            self.turn_to(0);
        }
        while !self.common.stop.load(Ordering::Relaxed) {
            if self.rings.iter_mut().all(|rings| rings.rx.is_empty()) && !self.is_worth_a_look()? {
                continue;
            }
            self.idle_since = None;
            for socket in 0..self.rings.len() {
                self.handle(socket)?;
            }
        }
        Ok(())
    }

    /// Whether the socket that had packets last has its thread wait for more.
    fn polls(&self) -> bool {
        self.rings[self.served].handling.poll
    }

    /// Without a packet: rests, or says that there is something to be done all the same. Packets that come while it looks
    /// have to wait until they have been noted.
    fn is_worth_a_look(&mut self) -> xsk::Result<bool> {
        if self.polls() {
            self.wait()?;
            return Ok(true);
        }
        if self.busy_poll || self.sending() > 0 {
            return Ok(true);
        }
        self.common.busy.turn_to(None);
        if let Some(rest_after) = self.rest_after
            && self.idle_since.get_or_insert_with(Instant::now).elapsed() >= rest_after
        {
            self.wait()?;
            return Ok(false);
        }
        (0..self.rings.len()).try_for_each(|socket| self.wake_idle(socket))?;
        Ok(false)
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

    fn turn_to(&mut self, socket: usize) {
        self.served = socket;
        self.common.busy.turn_to(Some(self.rings[socket].account));
    }

    fn handle(&mut self, socket: usize) -> xsk::Result<()> {
        if !self.rings[socket].rx.is_empty() {
            self.turn_to(socket);
        }
        match self.rings[socket].handling.action {
            XskAction::Drop => self.drop_batch(socket)?,
            XskAction::Tx => self.send_batch(socket)?,
        }
        self.common.cells[socket].store(&self.rings[socket].counts);
        Ok(())
    }

    /// Frames sent that have not come back.
    fn sending(&self) -> u64 {
        self.rings.iter().map(|rings| rings.tx.sent()).sum::<u64>() - self.completion.completed()
    }

    fn drop_batch(&mut self, socket: usize) -> xsk::Result<()> {
        let Rings { rx, counts, handling, .. } = &mut self.rings[socket];
        let recycled = self.fill.recycle(rx, handling.batch)?;
        counts.rx_frags += u64::from(recycled.frames);
        counts.rx_packets += u64::from(recycled.packets);
        if recycled.frames == 0 { self.wake_idle(socket) } else { Ok(()) }
    }

    fn send_batch(&mut self, socket: usize) -> xsk::Result<()> {
        self.complete(socket)?;
        let before = self.rings[socket].counts;
        if self.frags {
            self.rings[socket].send_packets()?;
        } else {
            self.rings[socket].send_segments()?;
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
        if self.busy_poll || self.fill.needs_wakeup() {
            self.rings[socket].counts.rx_empty_polls += 1;
            self.fill.wake()?;
        }
        Ok(())
    }
}

impl Rings {
    /// Sends packets of one frame each.
    fn send_segments(&mut self) -> xsk::Result<()> {
        let counts = &mut self.counts;
        let packets = self.rx.drain(self.handling.batch).map(|mut packet| {
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
    fn send_packets(&mut self) -> xsk::Result<()> {
        for _ in 0..self.handling.batch {
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
}
