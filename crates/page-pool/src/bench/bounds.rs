//! The bounds the pool is built to: ratios within one run, which hold on any machine.

use std::fmt;

use super::Group;

/// A bound on a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The paths it was measured with.
    pub group: Group,
    /// The path.
    pub path: &'static str,
    /// What its time is divided by; none for nanoseconds.
    pub by: Option<&'static str>,
    /// Whether the 10th percentiles of both are meant (where the scheduler has a hand in most samples) rather than their
    /// locations.
    pub p10: bool,
    /// What the value must keep to.
    pub limit: Limit,
}

/// What is bounded.
impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.group, self.path)?;
        match self.by {
            Some(by) => write!(f, " / {by}")?,
            None => write!(f, ", ns")?,
        }
        if self.p10 { write!(f, ", p10") } else { Ok(()) }
    }
}

/// What a value must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// It is this or more.
    AtLeast(f64),
    /// It is this or less.
    AtMost(f64),
}

impl Limit {
    /// Does the value keep to it?
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
        }
    }
}

const fn ratio(group: Group, path: &'static str, by: &'static str, limit: Limit) -> Bound {
    Bound { group, path, by: Some(by), p10: false, limit }
}

/// All bounds.
///
/// The return on the owner's thread is bounded for both of its types: `Frame`, which tests where it is, and `LocalFrame`,
/// which need not. So is the bulk return through the ring, one frame at a time and in bursts.
pub const BOUNDS: [Bound; 15] = [
    ratio(Group::Single, "ArrayQueue", "Frame drop", Limit::AtLeast(4.0)),
    ratio(Group::Single, "ArrayQueue", "LocalFrame drop", Limit::AtLeast(4.0)),
    ratio(Group::Single, "mimalloc", "Frame drop", Limit::AtLeast(6.0)),
    ratio(Group::Single, "mimalloc", "LocalFrame drop", Limit::AtLeast(6.0)),
    // 148.8 Mpps, the packets of 64 bytes that 100 Gbit/s take.
    Bound { group: Group::Single, path: "Frame drop", by: None, p10: false, limit: Limit::AtMost(6.72) },
    ratio(Group::Single, "Frame drop", "direct, explicit", Limit::AtMost(1.6)),
    ratio(Group::Single, "LocalFrame drop", "direct, explicit", Limit::AtMost(1.05)),
    ratio(Group::Single, "ring, bulk 16", "Frame drop", Limit::AtMost(1.5)),
    ratio(Group::Burst, "ring, bulk 16", "Frame drop", Limit::AtMost(1.5)),
    ratio(Group::Burst, "ring, bulk 16", "LocalFrame drop", Limit::AtMost(1.5)),
    ratio(Group::Single, "ring, single", "Frame drop", Limit::AtMost(4.0)),
    Bound { group: Group::Cross, path: "ArrayQueue", by: Some("lane, bulk 16"), p10: true, limit: Limit::AtLeast(2.5) },
    ratio(Group::Window, "side table, always read", "flag", Limit::AtMost(1.15)),
    ratio(Group::Window, "side table, always read", "no look", Limit::AtMost(1.15)),
    ratio(Group::Single, "direct, explicit", "direct, explicit, no counters", Limit::AtMost(1.05)),
];
