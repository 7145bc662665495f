//! What a run observed: everything that its statistics, guards and report are made of. Plain data, for the record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::host::CpuShares;
use crate::netlink::XdpMode;
use crate::observe::{NapiPolls, PagePools, Softirqs, Xmit};
use crate::reading::Reading;
use crate::reference::Reference;
use crate::stats::Slice;
use crate::topology::{LabDescription, PlacementState};

/// Everything observed while slices were timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The timed slices.
    #[serde(with = "crate::record::slices")]
    pub slices: Vec<Slice>,
    /// How many of them each round gave, in order; between rounds everything was loaded anew.
    pub rounds: Vec<usize>,
    /// Slices that found the ring full.
    pub slices_lost: u64,
    /// Packets whose program was not in the dispatcher's table.
    pub packets_without_program: u64,
    /// Seconds during which slices were taken.
    pub seconds: f64,
    /// Whether the user ended the run before its time.
    pub interrupted: bool,
    /// What each user's program did with the run's frame when it was tried on it beforehand.
    #[serde(default)]
    pub tried: Vec<Trial>,
    /// Bytes at the start of each frame that the generator restored, because a user's program changes them.
    #[serde(default)]
    pub restored_bytes: usize,
    /// Packets by the stage that counted them.
    pub ledger: Ledger,
    /// Packets of each RX queue, as far as the programs under test count them.
    pub rx_queue_packets: Reading<Vec<u64>>,
    /// Packets of each possible CPU.
    pub cpu_packets: Vec<u64>,
    /// Verdicts that the driver could not carry out, `XDP_ABORTED` among them.
    pub exceptions: Reading<BTreeMap<String, u64>>,
    /// Redirects that failed on the device under test, by errno.
    pub redirect_errors: Reading<BTreeMap<String, u64>>,
    /// Polls of the device under test.
    pub napi: Reading<NapiPolls>,
    /// The NET_RX softirq of each possible CPU.
    pub softirqs: Reading<Vec<Softirqs>>,
    /// Page pools, read after teardown.
    pub page_pools: Reading<PagePools>,
    /// Where each CPU's time went while slices were taken.
    pub cpu_shares: Reading<Vec<(u32, Reading<CpuShares>)>>,
    /// The reference workload, timed before and after on the device's CPU.
    pub reference: Reading<Reference>,
    /// The mode, as the kernel says it at the end.
    pub xdp_mode: Option<XdpMode>,
    /// The lab as planned and read back before the run; none where programs were run alone.
    pub lab_before: Option<LabDescription>,
    /// The lab as read back after the run.
    pub lab_after: Option<LabDescription>,
    /// NAPI threads and their CPUs.
    pub placement: PlacementState,
}

impl Observed {
    /// The slices of each round.
    #[must_use]
    pub fn slices_by_round(&self) -> Vec<&[Slice]> {
        by_round(&self.slices, &self.rounds)
    }
}

/// The slices of rounds that have so many each.
#[must_use]
pub fn by_round<'a>(slices: &'a [Slice], rounds: &[usize]) -> Vec<&'a [Slice]> {
    let mut rest = slices;
    rounds
        .iter()
        .map(|length| {
            let (round, after) = rest.split_at((*length).min(rest.len()));
            rest = after;
            round
        })
        .collect()
}

/// A user's program, tried on one frame (`BPF_PROG_TEST_RUN`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The variant.
    pub variant: String,
    /// What it returned, such as `XDP_TX`.
    pub returns: Reading<String>,
    /// Where in the frame, counted in bytes from its start, the last change was; the frame's length where the length changed,
    /// 0 where nothing did.
    pub changes_until: Reading<usize>,
}

/// Packets counted on their way from the generator to the verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Handed to the redirect by the generator's program.
    pub generated: Reading<u64>,
    /// What the driver's transmit function made of them (tracepoint `xdp_devmap_xmit`).
    pub xmit: Reading<Xmit>,
    /// Seen by the dispatcher.
    pub received: u64,
    /// Seen by the programs under test, as far as they count: ours do, a user's need not.
    pub handled: Reading<u64>,
    /// Of those, aborted by the programs, as far as they count.
    pub aborted: Reading<u64>,
    /// Received packets by the interface's own statistics (`IFLA_STATS64`), an independent counter.
    pub interface_received: Reading<u64>,
    /// Sent back by the device under test and seen by the generator's sink; not counted where nothing sends back.
    pub returned: Option<u64>,
}

impl Ledger {
    /// Packets generated that neither arrived nor were counted as lost, by the stage between two counters. All zero in a
    /// ledger that balances.
    #[must_use]
    pub fn residuals(&self) -> Vec<(&'static str, i128)> {
        let mut residuals = Vec::new();
        match (&self.generated, &self.xmit) {
            (Reading::Known(generated), Reading::Known(xmit)) => {
                residuals.push((
                    "generated - transmitted - dropped at transmit",
                    i128::from(*generated) - i128::from(xmit.sent) - i128::from(xmit.drops),
                ));
                residuals.push(("transmitted - received", i128::from(xmit.sent) - i128::from(self.received)));
            }
            (Reading::Known(generated), Reading::NotAvailable { .. }) => {
                residuals.push(("generated - received", i128::from(*generated) - i128::from(self.received)));
            }
            (Reading::NotAvailable { .. }, _) => {}
        }
        for (stage, count) in [
            ("received by dispatcher - by interface", &self.interface_received),
            ("received by dispatcher - handled by programs", &self.handled),
        ] {
            residuals.extend(count.known().map(|count| (stage, i128::from(self.received) - i128::from(*count))));
        }
        residuals
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ledger in which every packet is accounted for.
    fn balanced(received: u64, drops: u64) -> Ledger {
        Ledger {
            generated: Reading::Known(received + drops),
            xmit: Reading::Known(Xmit { sent: received, drops, bulks: 1, errors: BTreeMap::new() }),
            received,
            handled: Reading::Known(received),
            aborted: Reading::Known(0),
            interface_received: Reading::Known(received),
            returned: None,
        }
    }

    proptest! {
        #[test]
        fn a_counter_that_is_off_by_any_number_leaves_a_residual(
            received in 0..u64::MAX / 4, drops in 0..u64::MAX / 4, off in 1..u64::MAX / 4, counter in 0..5,
        ) {
            let mut ledger = balanced(received, drops);
            prop_assert!(ledger.residuals().iter().all(|(_, residual)| *residual == 0));
            let Reading::Known(xmit) = &mut ledger.xmit else { unreachable!() };
            match counter {
                0 => ledger.generated = Reading::Known(received + drops + off),
                1 => xmit.sent += off,
                2 => xmit.drops += off,
                3 => ledger.handled = Reading::Known(received + off),
                _ => ledger.interface_received = Reading::Known(received + off),
            }
            prop_assert!(ledger.residuals().iter().any(|(_, residual)| residual.unsigned_abs() == u128::from(off)));
        }
    }
}
