//! Which CPU runs what, as typed.

use clap::ValueEnum;

use crate::error::Result;
use crate::topology::Placement;

/// Which CPU runs what.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum PlacementName {
    /// Generator and device take turns on one CPU
    #[default]
    Same,
    /// A CPU for each
    Split,
}

impl PlacementName {
    /// The CPUs it stands for on this machine.
    pub(crate) fn resolve(self) -> Result<Placement> {
        match self {
            Self::Same => Placement::same(),
            Self::Split => Placement::split(),
        }
    }
}
