//! Readings of counters that only grow, and what was counted between two of them.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::cpumap::CpumapCounters;
use super::sent::SentCounters;
use super::socket::StreamsReading;
use super::tcp::TcpReading;
use super::xsk::XskCounters;
use crate::device::Counts;
use crate::reading::Reading;

/// Counters of one kind, read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<K, V> {
    /// When they were read (`CLOCK_MONOTONIC`), taken just before.
    pub at: Instant,
    /// Each counter since it began to count; one that is not there has counted nothing yet.
    pub rows: BTreeMap<K, V>,
}

/// What was counted between two readings of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta<K, V> {
    /// The time between the two, by their own stamps.
    pub period: Duration,
    /// The differences.
    pub rows: BTreeMap<K, V>,
}

/// Where the driver gave a packet to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The RX queue.
    pub queue: u32,
    /// The CPU.
    pub cpu: u32,
}

/// Frames that redirects gave to drivers (tracepoint `xdp_devmap_xmit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XmitCounts {
    /// Frames that a driver took.
    pub sent: u64,
    /// Frames that were freed instead: dropped by the program of the devmap entry, or not taken by the driver.
    pub drops: u64,
    /// Bulks: calls for up to 16 frames of one flow (`DEV_MAP_BULK_SIZE`, include/net/xdp.h).
    pub bulks: u64,
    /// Bulks that the driver answered with an error.
    pub error_bulks: u64,
}

/// Where a count of transmitted frames belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hop {
    /// From where to where, e.g. `veth0->veth1`.
    pub flow: String,
    /// The driver's error, by its name; `None` where it took frames.
    pub errno: Option<String>,
    /// The CPU.
    pub cpu: u32,
}

/// Counts of events that have a name, by name and CPU.
pub type Named = Group<(String, u32), u64>;

/// One reading of all that a command counts. `None` stands for what the command does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// When the reading began.
    pub at: Instant,
    /// Packets that the program saw.
    pub received: Option<Group<Place, Counts>>,
    /// Verdicts that the driver could not carry out, `XDP_ABORTED` among them, by verdict and CPU.
    pub exceptions: Option<Reading<Named>>,
    /// Redirects whose frame a queue took, by CPU.
    pub redirects: Option<Reading<Group<u32, u64>>>,
    /// Redirects that failed before a queue took the frame, by errno and CPU.
    pub redirect_errors: Option<Reading<Named>>,
    /// Frames that redirects gave to drivers.
    pub xmit: Option<Reading<Group<Hop, XmitCounts>>>,
    /// What a program gave to other CPUs.
    pub cpumap: Option<CpumapCounters>,
    /// What AF_XDP sockets received and sent.
    pub xsk: Option<XskCounters>,
    /// What a sender has sent by its own count.
    pub sent: Option<SentCounters>,
    /// What both ends of plain sockets have counted.
    pub socket: Option<StreamsReading>,
    /// What the programs of a TCP flow have counted.
    pub tcp: Option<TcpReading>,
}

impl AddAssign for XmitCounts {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.drops += other.drops;
        self.bulks += other.bulks;
        self.error_bulks += other.error_bulks;
    }
}

impl Sub for XmitCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            sent: self.sent - earlier.sent,
            drops: self.drops - earlier.drops,
            bulks: self.bulks - earlier.bulks,
            error_bulks: self.error_bulks - earlier.error_bulks,
        }
    }
}

impl Counters {
    /// A reading of nothing.
    #[must_use]
    pub fn empty(at: Instant) -> Self {
        Self {
            at,
            received: None,
            exceptions: None,
            redirects: None,
            redirect_errors: None,
            xmit: None,
            cpumap: None,
            xsk: None,
            sent: None,
            socket: None,
            tcp: None,
        }
    }
}

impl<K: Ord, V> Group<K, V> {
    /// Nothing counted yet.
    pub(super) fn zero(at: Instant) -> Self {
        Self { at, rows: BTreeMap::new() }
    }

    /// The rows that `read` gives, stamped.
    pub(super) fn read(read: impl FnOnce() -> Reading<BTreeMap<K, V>>) -> Reading<Self> {
        let at = Instant::now();
        read().map(|rows| Self { at, rows })
    }
}

impl<K: Ord + Clone, V: Copy + Default + Sub<Output = V>> Group<K, V> {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Delta<K, V> {
        let before = |key| earlier.rows.get(key).copied().unwrap_or_default();
        Delta {
            period: self.at.saturating_duration_since(earlier.at),
            rows: self.rows.iter().map(|(key, value)| (key.clone(), *value - before(key))).collect(),
        }
    }
}

impl<K, V: Copy + Default + AddAssign> Delta<K, V> {
    /// The sum of all rows.
    #[must_use]
    pub fn total(&self) -> V {
        self.by(|_| ()).remove(&()).unwrap_or_default()
    }

    /// The sums of the rows to which `key` gives the same.
    #[must_use]
    pub fn by<L: Ord>(&self, key: impl Fn(&K) -> L) -> BTreeMap<L, V> {
        let mut sums: BTreeMap<L, V> = BTreeMap::new();
        for (row, value) in &self.rows {
            *sums.entry(key(row)).or_default() += *value;
        }
        sums
    }
}

/// What was counted between two readings of a group that may not be available.
pub(super) fn delta_of<K: Ord + Clone, V: Copy + Default + Sub<Output = V>>(
    earlier: &Reading<Group<K, V>>,
    later: &Reading<Group<K, V>>,
) -> Reading<Delta<K, V>> {
    later.clone().and_then(|later| earlier.clone().map(|earlier| later.since(&earlier)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(at: Instant, rows: &[((u32, u32), u64)]) -> Group<(u32, u32), u64> {
        Group { at, rows: rows.iter().copied().collect() }
    }

    #[test]
    fn the_difference_is_over_the_stamps_of_the_group_itself() {
        let start = Instant::now();
        let later = start + Duration::from_micros(2_000_123);
        let delta = group(later, &[((0, 0), 150), ((0, 1), 7)]).since(&group(start, &[((0, 0), 100)]));
        assert_eq!(delta.period, Duration::from_micros(2_000_123));
        assert_eq!(delta.rows, BTreeMap::from([((0, 0), 50), ((0, 1), 7)]), "a new row counts from 0");
    }

    #[test]
    fn rows_add_up_by_any_part_of_their_key_to_the_same_total() {
        let start = Instant::now();
        let delta = group(start, &[((0, 0), 1), ((0, 1), 20), ((3, 1), 300)]).since(&group(start, &[]));
        assert_eq!(delta.by(|key| key.0), BTreeMap::from([(0, 21), (3, 300)]));
        assert_eq!(delta.by(|key| key.1), BTreeMap::from([(0, 1), (1, 320)]));
        assert_eq!(delta.total(), 321);
    }

    #[test]
    fn a_group_that_is_missing_in_either_reading_gives_no_difference() {
        let known = Reading::Known(group(Instant::now(), &[]));
        let missing = Reading::not_available("no such tracepoint");
        assert!(delta_of(&known, &known).known().is_some());
        assert_eq!(delta_of(&missing, &known), Reading::not_available("no such tracepoint"));
        assert_eq!(delta_of(&known, &missing), Reading::not_available("no such tracepoint"));
    }
}
