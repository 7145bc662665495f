//! What sockets did, and what the kernel counted for them.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

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
pub(super) struct Cell([AtomicU64; SocketCounts::FIELDS]);

impl Cell {
    pub(super) fn store(&self, counts: &SocketCounts) {
        self.0.iter().zip(counts.fields()).for_each(|(cell, value)| cell.store(value, Ordering::Relaxed));
    }

    pub(super) fn load(&self) -> SocketCounts {
        SocketCounts::of(std::array::from_fn(|field| self.0[field].load(Ordering::Relaxed)))
    }
}

/// What one socket did, and what the kernel counted for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketReading {
    /// What the program here did with it.
    #[serde(flatten)]
    pub counts: SocketCounts,
    /// What the kernel counted (`XDP_STATISTICS`).
    pub kernel: KernelCounts,
}

/// The kernel's counters of a socket; `None` where it does not have one (before Linux 5.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCounts {
    /// Packets dropped on receive: too long, or without a frame to put them into.
    pub rx_dropped: u64,
    /// Bad addresses in the fill ring.
    pub rx_invalid: u64,
    /// Bad descriptors in the Tx ring.
    pub tx_invalid: u64,
    /// Packets dropped because the Rx ring was full.
    pub rx_ring_full: Option<u64>,
    /// Times that a frame was wanted from the empty fill ring; those of all sockets on the queue.
    pub fill_ring_empty: Option<u64>,
    /// Times that the Tx ring was found empty.
    pub tx_ring_empty: Option<u64>,
}

impl From<xsk::Statistics> for KernelCounts {
    fn from(statistics: xsk::Statistics) -> Self {
        Self {
            rx_dropped: statistics.rx_dropped,
            rx_invalid: statistics.rx_invalid_descs,
            tx_invalid: statistics.tx_invalid_descs,
            rx_ring_full: statistics.rx_ring_full,
            fill_ring_empty: statistics.rx_fill_ring_empty_descs,
            tx_ring_empty: statistics.tx_ring_empty_descs,
        }
    }
}

impl SocketReading {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |now: Option<u64>, then: Option<u64>| Some(now? - then.unwrap_or(0));
        let (now, then) = (&self.kernel, &earlier.kernel);
        Self {
            counts: self.counts.since(&earlier.counts),
            kernel: KernelCounts {
                rx_dropped: now.rx_dropped - then.rx_dropped,
                rx_invalid: now.rx_invalid - then.rx_invalid,
                tx_invalid: now.tx_invalid - then.tx_invalid,
                rx_ring_full: difference(now.rx_ring_full, then.rx_ring_full),
                fill_ring_empty: difference(now.fill_ring_empty, then.fill_ring_empty),
                tx_ring_empty: difference(now.tx_ring_empty, then.tx_ring_empty),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
