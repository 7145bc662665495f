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
