//! What timed slices say: costs and differences in nanoseconds per packet, with intervals that hold.
//!
//! Pure: the same slices, in any order, give the same bits; there is no clock and no random number in here.
//!
//! The method of [`compare()`]:
//!
//! 1. **Pairing.** All copies of both variants run once in every block of a millisecond or two, so from each slice the
//!    median of the other variant's slices in its block is subtracted: what moves the whole block (clock frequency, a
//!    neighbour's load) is gone.
//! 2. **Location.** Slices that took more than twice their variant's median lost time to something else and are left out,
//!    and counted. The blocks are cut into up to 32 consecutive batches. A copy's location in a batch is the median; its
//!    location is Hodges and Lehmann's over the batches, so that neither slow slices nor a bad stretch of time drag it.
//! 3. **Interval.** *Copies are the unit*: where a program lies in memory changes its cost, and no number of slices of
//!    one copy shows by how much. The variance is that of Welch's two-sample t over the copies' locations, plus what the
//!    batches show beyond it (something moved one variant and not the other for longer than a block), as in the
//!    analysis of variance of copies crossed with batches. Batches that follow their neighbours count for less (the
//!    effective sample size of a first-order autoregression). Degrees of freedom are Satterthwaite's.
//!
//! Copies loaded together are not always independent: with several rounds, each loaded anew, [`compare_rounds`] takes the
//! round for the unit, and a round needs no scatter of its own.
//!
//! What the location means: the cost of the *typical* slice. A variant that only makes its rare slices slower (a longer
//! tail, the same median) does not differ by this measure; the percentiles in [`Absolute`] show it. When the share of
//! slow slices rises by `s`, the median moves by about 1.25 `s` standard deviations of a slice.

mod blocks;
mod compare;
mod multiple;
mod robust;
mod student;
mod units;

use serde::{Deserialize, Serialize};

pub use blocks::{BLOCKS_NEEDED, tainted};
pub use compare::{Absolute, Comparison, absolute, absolute_rounds, compare, compare_rounds, sequential};
pub use multiple::benjamini_hochberg;
pub use robust::{hodges_lehmann, mad, median, percentile};
pub use student::mean;
pub use student::{Difference, Level};
pub use units::{UnitsComparison, compare_pairs, compare_units, mean_interval};

/// One timed slice: consecutive packets of one copy of one variant on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// `bpf_ktime_get_ns()` before the first timed packet.
    pub start_ns: u64,
    /// `bpf_ktime_get_ns()` after the last timed packet.
    pub stop_ns: u64,
    /// Packets between the two times.
    pub packets: u32,
    /// The CPU that ran it.
    pub cpu: u16,
    /// Which variant ran.
    pub variant: u16,
    /// Which separately loaded copy of that variant.
    pub copy: u16,
    /// The dispatcher's slot it was called from. Not used here: the schedule has every copy visit every slot.
    pub slot: u16,
    /// Which block of the CPU's schedule; every copy of every variant has one slice in a block. Counts up per CPU.
    pub block: u32,
}

impl Slice {
    /// Nanoseconds per packet; `None` where no packet was counted or the time did not advance.
    #[must_use]
    pub fn ns_per_packet(&self) -> Option<f64> {
        let time_ns = self.stop_ns.checked_sub(self.start_ns).filter(|&time_ns| time_ns > 0)?;
        (self.packets > 0).then(|| time_ns as f64 / f64::from(self.packets))
    }
}

/// An estimate with its two-sided interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate, in nanoseconds per packet.
    #[serde(rename = "estimate_ns")]
    pub estimate: f64,
    /// Lower end, in nanoseconds per packet.
    #[serde(rename = "low_ns")]
    pub low: f64,
    /// Upper end, in nanoseconds per packet.
    #[serde(rename = "high_ns")]
    pub high: f64,
    /// The confidence the interval is built for.
    pub level: Level,
}

impl Interval {
    /// Half the width, in nanoseconds per packet: the difference that is just resolved.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Whether zero lies outside.
    #[must_use]
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Why no interval can be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NotEnough {
    /// Too few blocks of the schedule hold slices of what was asked for.
    #[error("{blocks} blocks of slices to compare within; {needed} are needed")]
    Blocks {
        /// Blocks of the CPU that has the most.
        blocks: usize,
        /// Blocks needed, on one CPU.
        needed: usize,
    },
    /// No slice with packets.
    #[error("no slice with packets of variant {variant}")]
    Slices {
        /// The variant without slices.
        variant: u16,
    },
    /// Fewer than two independent units (boots) on a side.
    #[error(
        "{baseline} baseline and {candidate} candidate boots: one boot a side can't separate the change from the boot"
    )]
    Units {
        /// Units of the baseline.
        baseline: usize,
        /// Units of the candidate.
        candidate: usize,
    },
    /// Too few pairs of measurements taken in turn.
    #[error("{pairs} pairs of measurements; at least two are needed")]
    Pairs {
        /// Pairs there are.
        pairs: usize,
    },
    /// A measured value is not a finite number.
    #[error("a measured value is not a finite number")]
    NotFinite,
}

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
