//! What AF_XDP sockets received and sent between two readings.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::ledger::Account;
use crate::device::{SocketCounts, SocketReading};
use crate::reading::Reading;

/// One reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XskCounters {
    /// When it was made.
    pub at: Instant,
    /// Each socket.
    pub sockets: Vec<SocketReading>,
    /// Packets that the program redirected to the sockets.
    pub redirected: u64,
    /// Interrupts of the line asked for.
    pub interrupts: Option<Reading<u64>>,
}

/// What was counted between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct XskInterval {
    /// Seconds between the two readings of these counters.
    pub period_s: f64,
    /// Each socket.
    pub sockets: Vec<SocketReading>,
    /// Packets that the program redirected to the sockets.
    pub redirected: u64,
    /// Interrupts of the line asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<Reading<u64>>,
}

impl XskInterval {
    pub(super) fn between(earlier: &XskCounters, later: &XskCounters) -> Self {
        let sockets = earlier.sockets.iter().zip(&later.sockets);
        let interrupts = earlier.interrupts.clone().zip(later.interrupts.clone());
        Self {
            period_s: later.at.saturating_duration_since(earlier.at).as_secs_f64(),
            sockets: sockets.map(|(earlier, later)| later.since(earlier)).collect(),
            redirected: later.redirected - earlier.redirected,
            interrupts: interrupts
                .map(|(earlier, later)| later.and_then(|later| earlier.map(|earlier| later - earlier))),
        }
    }

    /// What all sockets did together.
    #[must_use]
    pub fn total(&self) -> SocketCounts {
        self.sockets.iter().fold(SocketCounts::default(), |sum, socket| sum.plus(&socket.counts))
    }

    /// Packets dropped because an Rx ring was full, over all sockets.
    #[must_use]
    pub fn ring_full(&self) -> u64 {
        self.sockets.iter().filter_map(|socket| socket.kernel.rx_ring_full).sum()
    }

    /// Packets dropped on receive for another reason, over all sockets.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.kernel.rx_dropped).sum()
    }

    /// What became of the packets that the program redirected to the sockets. `errors` are the redirects that failed, by
    /// errno name: those that the sockets count themselves are among them (net/xdp/xsk.c, `xsk_rcv`).
    #[must_use]
    pub fn received<'a>(&self, errors: impl Iterator<Item = (&'a str, u64)>) -> Account {
        const OF_THE_SOCKETS: [&str; 3] = ["ENOBUFS", "ENOMEM", "ENOSPC"];
        let parts = [
            ("received by sockets", self.total().rx_packets),
            ("Rx ring full", self.ring_full()),
            ("dropped by sockets", self.dropped()),
        ];
        let others = errors.filter(|(errno, _)| !OF_THE_SOCKETS.contains(errno));
        Account::new("redirected", self.redirected, parts.into_iter().chain(others))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::KernelCounts;

    fn reading(at: Instant, rx_packets: u64, kernel: KernelCounts) -> XskCounters {
        let counts = SocketCounts { rx_packets, rx_frags: rx_packets, ..SocketCounts::default() };
        XskCounters {
            at,
            sockets: vec![SocketReading { counts, kernel }; 2],
            redirected: 2 * rx_packets + 21,
            interrupts: Some(Reading::Known(rx_packets)),
        }
    }

    #[test]
    fn sockets_add_up_and_what_they_count_themselves_is_no_other_error() {
        let start = Instant::now();
        let kernel = KernelCounts { rx_dropped: 3, rx_ring_full: Some(5), ..KernelCounts::default() };
        let first = XskCounters {
            redirected: 20,
            ..reading(start, 10, KernelCounts { rx_ring_full: Some(0), ..KernelCounts::default() })
        };
        let interval = XskInterval::between(&first, &reading(start + Duration::from_secs(2), 50, kernel));
        assert_eq!((interval.period_s, interval.total().rx_packets), (2.0, 80));
        assert_eq!(interval.interrupts, Some(Reading::Known(40)));
        let errors = [("ENOBUFS", 10), ("ENOMEM", 6), ("EINVAL", 4)];
        let account = interval.received(errors.into_iter());
        let parts: Vec<u64> = account.parts.iter().map(|part| part.packets).collect();
        assert_eq!((parts, account.residual), (vec![80, 10, 6, 4], 1));
        let json = serde_json::to_string(&interval).unwrap();
        assert_eq!(serde_json::from_str::<XskInterval>(&json).unwrap(), interval);
    }

    #[test]
    fn a_counter_that_an_old_kernel_does_not_have_is_none_instead_of_zero() {
        let start = Instant::now();
        let old = reading(start, 1, KernelCounts::default());
        assert_eq!(XskInterval::between(&old, &old).sockets[0].kernel.rx_ring_full, None);
    }
}
