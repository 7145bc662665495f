//! Units as types, so that a rate can't be taken for a time.
//!
//! The field quotes nanoseconds per packet first, then packets per second, then per cent.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds in one second.
pub const NANOS_PER_SEC: f64 = 1e9;

/// A time per packet in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub f64);

/// A rate in packets per second.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PacketsPerSec(pub f64);

impl Nanos {
    /// The rate at which packets that cost this much each can be handled by one CPU; `None` for a time of zero or
    /// below, which no rate stands for.
    #[must_use]
    pub fn to_rate(self) -> Option<PacketsPerSec> {
        (self.0 > 0.0).then(|| PacketsPerSec(NANOS_PER_SEC / self.0))
    }
}

impl PacketsPerSec {
    /// The rate of `packets` counted over `period`; `None` where the period is zero.
    #[must_use]
    pub fn of(packets: u64, period: Duration) -> Option<Self> {
        let seconds = period.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a packet count above 2^53 takes three years at 100 Mpps")]
        (seconds > 0.0).then(|| Self(packets as f64 / seconds))
    }

    /// The time each packet took at this rate; `None` for a rate of zero, at which no packet came.
    #[must_use]
    pub fn to_nanos(self) -> Option<Nanos> {
        (self.0 > 0.0).then(|| Nanos(NANOS_PER_SEC / self.0))
    }

    /// Millions of packets per second.
    #[must_use]
    pub fn mpps(self) -> f64 {
        self.0 / 1e6
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*} ns", f.precision().unwrap_or(2), self.0)
    }
}

impl fmt::Display for PacketsPerSec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*} Mpps", f.precision().unwrap_or(3), self.mpps())
    }
}

/// A time in whole nanoseconds; more than 584 years are `u64::MAX`.
#[must_use]
pub fn whole_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A share of 0 to 1 in whole per cents.
#[must_use]
pub fn percent_text(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// About how long something takes, in whole seconds or minutes.
#[must_use]
pub fn duration_text(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("about {:.0} s", seconds.ceil())
    } else {
        format!("about {:.0} min", (seconds / 60.0).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_rates_give_the_published_nanoseconds() {
        let before = PacketsPerSec(13_746_471.0).to_nanos().unwrap();
        let after = PacketsPerSec(13_437_277.0).to_nanos().unwrap();
        assert_eq!(format!("{before}"), "72.75 ns");
        assert_eq!(format!("{after}"), "74.42 ns");
        assert_eq!(format!("{}", Nanos(after.0 - before.0)), "1.67 ns");
    }

    #[test]
    fn nothing_counted_is_no_time_instead_of_infinity() {
        assert_eq!(PacketsPerSec::of(5, Duration::ZERO), None);
        assert_eq!(PacketsPerSec::of(0, Duration::from_secs(1)).unwrap().to_nanos(), None);
        assert_eq!(Nanos(0.0).to_rate(), None);
    }

    #[test]
    fn a_duration_is_told_in_seconds_and_then_in_minutes() {
        assert_eq!(
            [0.0, 89.5, 90.0, 160.0].map(duration_text),
            ["about 0 s", "about 90 s", "about 2 min", "about 3 min"]
        );
    }
}
