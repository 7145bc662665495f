//! What packets cost the CPUs that they went through, by the run time of the threads that handled them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{Nanos, PacketsPerSec};

/// The time that a thread ran, and the packets that it handled meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuCost {
    /// What the thread is, e.g. `remote CPU 1`.
    pub role: String,
    /// Nanoseconds on a CPU (`/proc/PID/schedstat`, kernel with `CONFIG_SCHED_INFO`), softirqs that interrupted it
    /// included.
    pub busy_ns: u64,
    /// `busy_ns` as a share of the time that was counted.
    pub share: f64,
    /// Packets.
    pub packets: u64,
    /// `busy_ns / packets`; absent where there were none.
    pub ns_per_packet: Option<Nanos>,
}

impl CpuCost {
    /// The cost of `packets` in a thread that ran for `busy` of `period`.
    #[must_use]
    pub fn of(role: String, busy: Duration, period: Duration, packets: u64) -> Self {
        Self {
            role,
            busy_ns: u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX),
            share: if period.is_zero() { 0.0 } else { busy.as_secs_f64() / period.as_secs_f64() },
            packets,
            ns_per_packet: PacketsPerSec::of(packets, busy).and_then(PacketsPerSec::to_nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_busy_time_shared_by_the_packets() {
        let cost = CpuCost::of("remote CPU 1".into(), Duration::from_secs(1), Duration::from_secs(4), 10_000_000);
        assert_eq!((cost.share, cost.ns_per_packet), (0.25, Some(Nanos(100.0))));
        assert_eq!(CpuCost::of(String::new(), Duration::ZERO, Duration::ZERO, 0).ns_per_packet, None);
    }
}
