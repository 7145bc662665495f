//! What packets cost the CPUs that they went through, by the run time of the threads that handled them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::CpuShares;
use crate::remote::SATURATED;
use crate::units::{Nanos, PacketsPerSec, percent_text, whole_nanos};

/// The time that a thread ran, and the packets that it handled meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuCost {
    /// What the thread is, e.g. `remote CPU 1`.
    pub role: String,
    /// Nanoseconds on a CPU (`/proc/PID/schedstat`, kernel with `CONFIG_SCHED_INFO`; of a thread of this process its CPU
    /// clock), softirqs that interrupted it included, and the time left out for which a thread that never sleeps found
    /// nothing to do.
    pub busy_ns: u64,
    /// `busy_ns` as a share of the time that was counted; of several threads, that of the busiest.
    pub share: f64,
    /// Packets.
    pub packets: u64,
    /// `busy_ns / packets`; absent where there were none.
    pub ns_per_packet: Option<Nanos>,
    /// How the CPU spent its time that the thread is bound to, whatever ran there; absent where it is bound to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuShares>,
}

impl CpuCost {
    /// The cost of `packets` in a thread that ran for `busy` of `period`.
    #[must_use]
    pub fn of(role: String, busy: Duration, period: Duration, packets: u64) -> Self {
        Self {
            role,
            busy_ns: whole_nanos(busy),
            share: if period.is_zero() { 0.0 } else { busy.as_secs_f64() / period.as_secs_f64() },
            packets,
            ns_per_packet: PacketsPerSec::of(packets, busy).and_then(PacketsPerSec::to_nanos),
            cpu: None,
        }
    }

    /// What this CPU was saturated with, if it was.
    pub(super) fn saturated(&self) -> Option<String> {
        if self.share >= SATURATED {
            return Some(format!("{}, {} busy", self.role, percent_text(self.share)));
        }
        let cpu = self.cpu.filter(|cpu| cpu.idle <= 1.0 - SATURATED)?;
        Some(format!(
            "{}, which had no idle time: {} in this thread, {} in softirq, {} stolen",
            self.role,
            percent_text(self.share),
            percent_text(cpu.softirq),
            percent_text(cpu.steal)
        ))
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

    #[test]
    fn a_thread_is_saturated_by_itself_or_by_what_else_its_cpu_does() {
        let cost = |percent, cpu| CpuCost {
            cpu,
            ..CpuCost::of("remote CPU 1".into(), Duration::from_millis(percent), Duration::from_millis(100), 1)
        };
        let shares = |idle| CpuShares { user: 0.1, system: 0.3, idle, irq: 0.0, softirq: 0.5 - idle, steal: 0.1 };
        assert_eq!(cost(94, None).saturated(), None);
        assert_eq!(cost(96, None).saturated().unwrap(), "remote CPU 1, 96 % busy");
        assert_eq!(cost(40, Some(shares(0.2))).saturated(), None);
        assert_eq!(
            cost(40, Some(shares(0.0))).saturated().unwrap(),
            "remote CPU 1, which had no idle time: 40 % in this thread, 50 % in softirq, 10 % stolen"
        );
    }
}
