//! Rates that kernel developers published on the netdev list, to be read again in nanoseconds per packet.

use crate::units::PacketsPerSec;

/// A published rate.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// What was measured, and on which kernel.
    pub what: &'static str,
    /// The rate as published.
    pub rate: PacketsPerSec,
}

const fn published(what: &'static str, packets_per_sec: f64) -> Published {
    Published { what, rate: PacketsPerSec(packets_per_sec) }
}

/// The drop tool's averages from the thread on the Rx page leak of multi-buffer frames in the ice driver (2025; Xeon Platinum
/// 8358, one Rx queue), and the two rates quoted in the thread on page_pool's return path under a dropping egress program
/// (2025). Of each group the first is the baseline.
pub const GROUPS: [(&str, &[Published]); 3] = [
    (
        "XDP_DROP no-touch, ice, Rx page leak fix (2025)",
        &[
            published("net-next", 46_951_873.0),
            published("with v1, which reads every frame's shared info", 38_564_196.0),
            published("with v2, which reads it if there are fragments", 51_008_873.0),
        ],
    ),
    (
        "XDP_DROP read-data, ice, Rx page leak fix (2025)",
        &[published("net-next", 37_295_056.0), published("with v1", 36_883_347.0), published("with v2", 41_626_913.0)],
    ),
    (
        "redirect-map, dropped at egress, page_pool return path (2025)",
        &[published("before", 13_746_471.0), published("after", 13_437_277.0)],
    ),
];

/// What the kernel's benchmark module measured of page_pool, ns for one allocation and one return: through the owner's cache
/// (bench_page_pool 01), through the ptr_ring (02), by the slow path (03). From the notes on page_pool of the xdp-project and
/// mails of its developers.
pub const KERNEL_POOL: [(&str, f64, f64, f64); 3] = [
    ("Xeon E5-1650 v4", 5.40, 15.09, 66.1),
    ("Xeon 6140, statistics on", 6.20, 18.1, 48.1),
    ("EPYC 9684X, Linux 6.13, SRSO mitigated by IBPB", 3.80, 10.53, 30.6),
];
