//! When packets leave: so many a second, in small bursts, and how far apart they really were.

use std::fmt;
use std::str::FromStr;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::units::NANOS_PER_SEC;

/// A rate as a user writes it: `10000`, `10k`, `1.5Mpps` or `100Mbit`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// Packets per second.
    PacketsPerSec(f64),
    /// Bits per second on the wire: FCS counted, preamble and gap between frames (20 bytes each) left out.
    BitsPerSec(f64),
}

/// A schedule of departures, over all threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Packets per second, of all threads together.
    pub pps: f64,
    /// Packets that leave back to back.
    pub burst: u32,
}

/// The time from burst to burst of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Whole nanoseconds.
    pub ns: u64,
    /// 2^-32 nanoseconds more.
    pub fraction: u32,
}

/// Counts of the gaps between departures in buckets that are at most 1/128 of their values wide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GapCounts {
    buckets: Vec<u64>,
    /// Of each thread.
    departures: Vec<Departures>,
}

/// The departures of a thread, by the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Departures {
    /// How many: bursts, not packets.
    pub bursts: u64,
    /// When the first was.
    pub first_ns: u64,
    /// When the last was.
    pub last_ns: u64,
}

/// Percentiles of the time from one departure to the next of a thread; of bursts where packets leave in bursts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    /// Gaps counted.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Departures per second between the first and the last, over all threads.
    pub departures_per_s: f64,
}

/// Buckets: `GAP_BUCKETS` in `bpf/pace.h`.
pub const GAP_BUCKETS: usize = 3456;

impl Rate {
    /// In packets of this mean length on the wire.
    #[must_use]
    pub fn pps(self, mean_wire_len: f64) -> f64 {
        match self {
            Self::PacketsPerSec(pps) => pps,
            Self::BitsPerSec(bits) => bits / 8.0 / mean_wire_len,
        }
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("read the rate {text:?}"), "it is none above 0")
                .remedy("write packets a second as 10000, 10k or 1.5Mpps, or bits a second as 100Mbit")
        };
        let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let number: f64 = number.parse().map_err(|_no_number| wrong())?;
        let (factor, unit) = match unit.chars().next() {
            Some('k' | 'K') => (1e3, &unit[1..]),
            Some('M') => (1e6, &unit[1..]),
            Some('G') => (1e9, &unit[1..]),
            _ => (1.0, unit),
        };
        let rate = number * factor;
        match unit {
            _ if !(rate > 0.0 && rate.is_finite()) => Err(wrong()),
            "" | "pps" => Ok(Self::PacketsPerSec(rate)),
            "bit" | "bit/s" | "bps" => Ok(Self::BitsPerSec(rate)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacketsPerSec(pps) => write!(f, "{pps} packets/s"),
            Self::BitsPerSec(bits) => write!(f, "{bits} bit/s on the wire"),
        }
    }
}

impl Pace {
    /// The slowest schedule: a packet each 100 seconds.
    const SLOWEST_PPS: f64 = 0.01;
    /// The fastest: at a billion a second a gap is a nanosecond.
    const FASTEST_PPS: f64 = 1e9;
    /// From here on live frames leave several back to back by default: a departure of its own costs some 400 ns.
    pub const LIVE_FRAMES_SINGLY: f64 = 1.5e6;
    /// The same of AF_XDP sockets, where a departure is a system call of some 2 us in copy mode.
    pub const SOCKETS_SINGLY: f64 = 4e5;

    /// A schedule; without `burst` packets leave one by one, or above `singly` packets a second of a thread in the smallest
    /// bursts that come to no more departures.
    ///
    /// # Errors
    /// A rate that no clock can keep.
    pub fn new(pps: f64, threads: usize, burst: Option<u32>, singly: f64) -> Result<Self> {
        if !(Self::SLOWEST_PPS..=Self::FASTEST_PPS).contains(&pps) {
            return Err(Error::usage(format!("send {pps} packets/s"), "that is not from 0.01 to 1e9 packets a second"));
        }
        let per_thread = pps / threads as f64;
        let needed = (per_thread / singly).ceil().clamp(1.0, 64.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 64")]
        Ok(Self { pps, burst: burst.unwrap_or(needed as u32).max(1) })
    }

    /// From burst to burst of each of so many threads.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the parts of a positive number")]
    pub fn gap(&self, threads: usize) -> Gap {
        let ns = NANOS_PER_SEC * f64::from(self.burst) * threads as f64 / self.pps;
        Gap { ns: ns as u64, fraction: (ns.fract() * 2f64.powi(32)) as u32 }
    }
}

impl GapCounts {
    /// Counts of one thread as they were read.
    #[must_use]
    pub fn new(buckets: Vec<u64>, departures: Departures) -> Self {
        Self { buckets, departures: vec![departures] }
    }

    /// None yet, of a thread that counts its own by [`GapCounts::depart`].
    #[must_use]
    pub(super) fn none() -> Self {
        Self::new(vec![0; GAP_BUCKETS], Departures::default())
    }

    /// Counts a departure of the first thread.
    pub(super) fn depart(&mut self, at_ns: u64) {
        let Some(Departures { bursts, first_ns, last_ns }) = self.departures.first_mut() else { return };
        if *bursts == 0 {
            *first_ns = at_ns;
        } else {
            self.buckets[Self::bucket(at_ns.saturating_sub(*last_ns))] += 1;
        }
        (*bursts, *last_ns) = (*bursts + 1, at_ns);
    }

    /// The bucket of a gap.
    #[must_use]
    pub fn bucket(gap_ns: u64) -> usize {
        let gap = gap_ns.min(u64::from(u32::MAX));
        let shift = (64 - gap.leading_zeros()).saturating_sub(8);
        (shift as usize) * 128 + (gap >> shift) as usize
    }

    /// The middle of a bucket's gaps.
    fn middle(bucket: usize) -> u64 {
        let shift = (bucket / 128).saturating_sub(1);
        let first = ((bucket - shift * 128) as u64) << shift;
        first + (1 << shift) / 2
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, count)| *sum += count);
        self.departures.extend(&other.departures);
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bucket: usize| earlier.buckets.get(bucket).copied().unwrap_or(0);
        let buckets = self.buckets.iter().enumerate().map(|(bucket, count)| count - before(bucket)).collect();
        let since = |(thread, now): (usize, &Departures)| match earlier.departures.get(thread) {
            // The last of those before is where the time begins.
            Some(then) if then.bursts > 0 => {
                Departures { bursts: now.bursts - then.bursts + 1, first_ns: then.last_ns, last_ns: now.last_ns }
            }
            _ => *now,
        };
        Self { buckets, departures: self.departures.iter().enumerate().map(since).collect() }
    }

    /// The percentiles; `None` without gaps.
    #[must_use]
    pub fn percentiles(&self) -> Option<Gaps> {
        let mut histogram = Histogram::<u64>::new(3).ok()?;
        for (bucket, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            histogram.record_n(Self::middle(bucket).max(1), *count).ok()?;
        }
        let quantile = |quantile| histogram.value_at_quantile(quantile);
        (!histogram.is_empty()).then(|| Gaps {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            min_ns: histogram.min(),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: histogram.max(),
            departures_per_s: self.departures.iter().map(Departures::per_second).sum(),
        })
    }
}

impl Departures {
    fn per_second(&self) -> f64 {
        let time = self.last_ns.saturating_sub(self.first_ns);
        if time == 0 { 0.0 } else { self.bursts.saturating_sub(1) as f64 / time as f64 * NANOS_PER_SEC }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_are_read_with_their_units() {
        for (text, pps) in [("10000", 1e4), ("10k", 1e4), ("1.5Mpps", 1.5e6), ("2Gpps", 2e9), ("0.5", 0.5)] {
            assert_eq!(text.parse::<Rate>().unwrap(), Rate::PacketsPerSec(pps), "{text}");
        }
        for text in ["100Mbit", "100Mbit/s", "100Mbps", "100000kbit"] {
            assert_eq!(text.parse::<Rate>().unwrap(), Rate::BitsPerSec(1e8), "{text}");
        }
        for bad in ["", "0", "-1", "k", "1kk", "1Mbits", "1e5", "1.2.3", "nan", "10 k"] {
            assert!(bad.parse::<Rate>().unwrap_err().to_string().contains("10k"), "{bad}");
        }
        assert!((Rate::BitsPerSec(1e9).pps(1250.0) - 1e5).abs() < 1e-6);
    }

    #[test]
    fn gaps_add_up_to_the_rate_over_threads_and_bursts() {
        for (pps, burst, threads) in [(3.0, 1, 1), (1e6, 1, 2), (7e6, 5, 3), (14_880_952.0, 64, 1), (0.01, 1, 64)] {
            let gap = Pace { pps, burst }.gap(threads);
            let ns = gap.ns as f64 + f64::from(gap.fraction) / 2f64.powi(32);
            let rate = f64::from(burst) * threads as f64 / ns * 1e9;
            assert!((rate / pps - 1.0).abs() < 1e-9, "{pps}: {rate}");
        }
    }

    #[test]
    fn packets_leave_one_by_one_unless_that_is_too_fast_for_a_thread() {
        let pace = |pps, threads, burst| Pace::new(pps, threads, burst, Pace::LIVE_FRAMES_SINGLY);
        assert_eq!(pace(1e6, 1, None).unwrap().burst, 1);
        assert_eq!(pace(1e7, 1, None).unwrap().burst, 7);
        assert_eq!(pace(3e6, 2, None).unwrap().burst, 1);
        assert_eq!(pace(1e9, 1, None).unwrap().burst, 64);
        assert_eq!(pace(10.0, 1, Some(8)).unwrap().burst, 8);
        assert_eq!(Pace::new(1e6, 1, None, Pace::SOCKETS_SINGLY).unwrap().burst, 3);
        assert!(pace(1e10, 1, None).is_err() && pace(0.001, 1, None).is_err());
    }

    proptest! {
        #[test]
        fn a_gap_is_in_a_bucket_whose_middle_is_near(gap in 0u64..=u64::from(u32::MAX)) {
            let bucket = GapCounts::bucket(gap);
            prop_assert!(bucket < GAP_BUCKETS);
            let middle = GapCounts::middle(bucket);
            prop_assert!(middle.abs_diff(gap) <= gap / 128, "{gap} in {bucket}, {middle}");
        }
    }

    #[test]
    fn departures_one_by_one_give_their_gaps() {
        let mut counts = GapCounts::none();
        for at_us in [5, 15, 25, 125] {
            counts.depart(at_us * 1_000);
        }
        let gaps = counts.percentiles().unwrap();
        assert_eq!((gaps.count, gaps.departures_per_s.round()), (3, 25_000.0), "3 in 120 us");
        assert!(gaps.p50_ns.abs_diff(10_000) < 100 && gaps.max_ns.abs_diff(100_000) < 800, "{gaps:?}");
    }

    #[test]
    fn percentiles_are_those_of_the_gaps_that_were_counted_meanwhile() {
        let mut counts = GapCounts::new(vec![0; GAP_BUCKETS], Departures { bursts: 5, first_ns: 100, last_ns: 1_000 });
        assert_eq!(counts.percentiles(), None);
        let before = counts.clone();
        counts.buckets[GapCounts::bucket(1_000)] += 980;
        counts.buckets[GapCounts::bucket(50_000)] += 20;
        counts.departures[0] = Departures { bursts: 1_005, first_ns: 100, last_ns: 2_001_000 };
        let gaps = counts.since(&before).percentiles().unwrap();
        assert_eq!(gaps.count, 1_000);
        assert_eq!(gaps.departures_per_s.round(), 500_000.0, "1000 in 2 ms");
        assert!(gaps.p50_ns.abs_diff(1_000) < 10 && gaps.p99_ns.abs_diff(50_000) < 500, "{gaps:?}");
        counts.add(&before);
        assert_eq!(counts.since(&counts).percentiles(), None);
    }
}
