//! What a run observed: everything that its statistics, guards and report are made of. Plain data, for the record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::{HandedOn, SocketCounts, SocketReading, XskAction};
use crate::host::CpuShares;
use crate::netlink::XdpMode;
use crate::observe::{Enqueued, Kthread, NapiPolls, PagePools, PoolPaths, Softirqs, Xmit};
use crate::reading::Reading;
use crate::reference::Reference;
use crate::remote::RemoteTime;
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
    /// Ways of pages through the device's page pools; absent where there is no device, and from records that are older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_paths: Option<Reading<PoolPaths>>,
    /// Where each CPU's time went while slices were taken.
    pub cpu_shares: Reading<Vec<(u32, Reading<CpuShares>)>>,
    /// What packets took of the time of other CPUs, of each variant that hands packets to those.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<RemoteTime>,
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

    /// Packets sent on a recycled page, and those for which a page pool took one from the page allocator; `None` where packets
    /// or pages are not counted.
    #[must_use]
    pub fn recycled(&self) -> Option<[u64; 2]> {
        let (pools, generated) = (self.page_pools.known()?, *self.ledger.generated.known()?);
        let fresh = pools.device.held.saturating_add(pools.generator.held).min(generated);
        Some([generated - fresh, fresh])
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
    /// What the driver's transmit function made of them: tracepoint `xdp_devmap_xmit`; of the datagrams of a socket, the
    /// interface's statistics.
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
    /// What became of packets that programs handed on; absent where no program of ours does that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onwards: Option<Onwards>,
}

/// What became of packets that programs handed on to interfaces and CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Onwards {
    /// What our programs handed on; a user's program does not count.
    pub handed_on: Reading<HandedOn>,
    /// Redirects that failed before a queue took the packet (tracepoint `xdp_redirect_err`).
    pub failed: Reading<u64>,
    /// Frames that redirects from the device gave to drivers; those that egress programs dropped are among its drops.
    pub xmit: Reading<Xmit>,
    /// Frames received behind the target of a lab.
    pub received: Reading<u64>,
    /// Packets given to the queues of CPUs; absent where no program redirects to CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued: Option<Reading<Enqueued>>,
    /// Packets that kthreads took out of the queues; absent where no program redirects to CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kthreads: Option<Reading<Kthread>>,
    /// What AF_XDP sockets did with the packets that they were given; absent where no program redirects to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Reading<Sockets>>,
}

/// What the AF_XDP sockets of a queue did, all of which one thread handles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// The RX queue.
    pub queue: u32,
    /// The mode that the kernel bound them in: `copy` or `zero-copy`.
    pub mode: String,
    /// The CPU of the thread; absent where it has none of its own.
    pub cpu: Option<u32>,
    /// Each socket.
    pub each: Vec<SocketOutcome>,
    /// Frames that came back after they had been sent.
    pub completed: u64,
    /// Packets among them that the device is known to have dropped.
    pub tx_dropped: u64,
}

/// What one socket did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOutcome {
    /// What was to be done with packets.
    pub xsk: XskAction,
    /// What was done, and what the kernel counted.
    #[serde(flatten)]
    pub reading: SocketReading,
}

impl Sockets {
    fn sum(&self, of: impl Fn(&SocketOutcome) -> u64) -> u64 {
        self.each.iter().map(of).sum()
    }

    /// Packets received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.sum(|socket| socket.reading.counts.rx_packets)
    }

    /// Packets that found the Rx ring full.
    #[must_use]
    pub fn ring_full(&self) -> u64 {
        self.sum(|socket| socket.reading.kernel.rx_ring_full.unwrap_or(0))
    }

    /// Packets dropped for another reason: without a frame in the fill ring, or too long for one.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.sum(|socket| socket.reading.kernel.rx_dropped)
    }

    /// Of those, the ones for which the fill ring was empty; the others were too long for a frame. The kernel counts that for all
    /// sockets of a queue together.
    #[must_use]
    pub fn without_frame(&self) -> u64 {
        let empty = self.each.iter().map(|socket| socket.reading.kernel.fill_ring_empty.unwrap_or(0)).max();
        empty.unwrap_or(0).min(self.dropped())
    }

    /// Of those that send: packets received and not given to the Tx ring, and frames sent that did not come back.
    fn unsent(&self) -> [(&'static str, i128); 2] {
        let counts =
            || self.each.iter().filter(|socket| socket.xsk == XskAction::Tx).map(|socket| socket.reading.counts);
        let sum = |of: &dyn Fn(&SocketCounts) -> u64| counts().map(|counts| i128::from(of(&counts))).sum::<i128>();
        [
            (
                "received by sockets to be sent - sent",
                sum(&|counts| counts.rx_packets) - sum(&|counts| counts.tx_packets),
            ),
            ("frames sent by sockets - come back", sum(&|counts| counts.tx_frags) - i128::from(self.completed)),
        ]
    }
}

impl Onwards {
    /// Packets handed on that nothing accounts for, by the stage between two counters; a stage that was not counted has none.
    #[must_use]
    pub fn residuals(&self) -> Vec<(&'static str, i128)> {
        let mut residuals = Vec::new();
        let sum = |numbers: &[u64]| numbers.iter().copied().map(i128::from).sum::<i128>();
        let sockets = self.at_sockets();
        if let (Some(handed_on), Some(failed), Some(out), Some(enqueued), Some(kthreads), Some(sockets)) =
            (self.handed_on.known(), self.failed.known(), self.out(), self.queues(), self.taken(), &sockets)
        {
            let HandedOn { to_interfaces, to_cpus, to_sockets, .. } = *handed_on;
            residuals.push((
                "handed on - failed - given to drivers, queues and sockets",
                sum(&[to_interfaces, to_cpus, to_sockets, kthreads.redirect])
                    - sum(&[*failed, out, enqueued.processed])
                    - sum(&[sockets.received(), sockets.ring_full(), sockets.dropped()]),
            ));
        }
        if let Some(sockets) = sockets.filter(|_| self.sockets.is_some()) {
            residuals.extend(sockets.unsent());
        }
        if let (Reading::Known(xmit), Reading::Known(received)) = (&self.xmit, &self.received) {
            residuals.push(("sent to the target - received behind it", sum(&[xmit.sent]) - sum(&[*received])));
        }
        if let (Some(enqueued), Some(kthreads)) = (self.queues(), self.taken()) {
            residuals.push((
                "queued - taken by kthreads",
                sum(&[enqueued.processed]) - sum(&[enqueued.drops, kthreads.processed]),
            ));
        }
        residuals
    }

    /// Packets that the target's driver, the queue of a CPU or an AF_XDP socket had no room for, and packets handed on; none if
    /// these or those were not counted.
    #[must_use]
    pub fn refused(&self) -> Option<(u64, u64)> {
        let handed_on = self.handed_on.known()?;
        // Without the tracepoint what a driver does not take is a residual.
        let by_driver = self.xmit.known().map_or(0, |xmit| xmit.drops.saturating_sub(handed_on.egress_drops));
        let sockets = self.at_sockets()?;
        let refused = by_driver + self.queues()?.drops + sockets.ring_full() + sockets.dropped();
        Some((refused, handed_on.to_interfaces + handed_on.to_cpus + handed_on.to_sockets))
    }

    /// Why a stage was not counted, if one was not.
    #[must_use]
    pub fn uncounted(&self) -> Option<String> {
        fn there<T>(reading: &Reading<T>) -> Reading<()> {
            reading.as_ref().map(|_| ())
        }
        let queues =
            [self.enqueued.as_ref().map(there), self.kthreads.as_ref().map(there), self.sockets.as_ref().map(there)];
        let out = there(&self.xmit).or_else(|| there(&self.received));
        [there(&self.handed_on), there(&self.failed), out]
            .into_iter()
            .chain(queues.into_iter().flatten())
            .find_map(|part| part.into_result().err())
    }

    /// Frames that left for the target, one way or another.
    fn out(&self) -> Option<u64> {
        match (&self.xmit, &self.received) {
            (Reading::Known(xmit), _) => Some(xmit.sent + xmit.drops),
            (_, Reading::Known(received)) => Some(received + self.handed_on.known()?.egress_drops),
            _ => None,
        }
    }

    fn queues(&self) -> Option<Enqueued> {
        self.enqueued.as_ref().map_or(Some(Enqueued::default()), |enqueued| enqueued.known().copied())
    }

    fn at_sockets(&self) -> Option<Sockets> {
        self.sockets.as_ref().map_or(Some(Sockets::default()), |sockets| sockets.known().cloned())
    }

    fn taken(&self) -> Option<Kthread> {
        self.kthreads.as_ref().map_or(Some(Kthread::default()), |kthreads| kthreads.known().copied())
    }
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
        residuals.extend(self.onwards.iter().flat_map(Onwards::residuals));
        residuals
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::KernelCounts;

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
            onwards: None,
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

    /// As many as `handed_on` packets to an interface, a CPU and a socket, of which each `dropped` at the stages that drop.
    fn onwards(handed_on: u64, dropped: u64) -> Onwards {
        let all =
            HandedOn { to_interfaces: handed_on, egress_drops: dropped, to_cpus: handed_on, to_sockets: handed_on };
        let sent = handed_on - dropped;
        Onwards {
            handed_on: Reading::Known(all),
            failed: Reading::Known(0),
            xmit: Reading::Known(Xmit { sent, drops: dropped, bulks: 1, errors: BTreeMap::new() }),
            received: Reading::Known(sent),
            enqueued: Some(Reading::Known(Enqueued { processed: handed_on, drops: dropped, bulks: 1 })),
            kthreads: Some(Reading::Known(Kthread { processed: sent, pass: sent, ..Kthread::default() })),
            sockets: Some(Reading::Known(sockets(handed_on, dropped))),
        }
    }

    /// A socket that sends all that it gets, of which some found no room.
    fn sockets(handed_on: u64, dropped: u64) -> Sockets {
        let rx_packets = handed_on - dropped;
        let counts = SocketCounts {
            rx_packets,
            rx_frags: rx_packets,
            tx_packets: rx_packets,
            tx_frags: rx_packets,
            ..SocketCounts::default()
        };
        let (full, rx_dropped) = (dropped / 3, dropped - dropped / 3);
        let kernel = KernelCounts { rx_dropped, rx_ring_full: Some(full), ..KernelCounts::default() };
        let outcome = SocketOutcome { xsk: XskAction::Tx, reading: SocketReading { counts, kernel } };
        Sockets { mode: "copy".into(), each: vec![outcome], completed: rx_packets, ..Sockets::default() }
    }

    proptest! {
        #[test]
        fn a_packet_handed_on_and_lost_leaves_a_residual_wherever_it_was(
            handed_on in 1_000..u64::MAX / 8, dropped in 0..1_000_u64, off in 1..u64::MAX / 8, counter in 0..10,
        ) {
            let whole = onwards(handed_on, dropped);
            prop_assert_eq!(whole.residuals().len(), 5);
            prop_assert!(whole.residuals().iter().all(|(_, residual)| *residual == 0));
            // What egress programs dropped was not refused, what found a queue or a ring full was.
            prop_assert_eq!(whole.refused(), Some((2 * dropped, 3 * handed_on)));
            prop_assert_eq!(whole.uncounted(), None);
            let mut wrong = whole.clone();
            let (
                Reading::Known(given),
                Reading::Known(xmit),
                Some(Reading::Known(enqueued)),
                Some(Reading::Known(kthreads)),
                Some(Reading::Known(sockets)),
            ) = (&mut wrong.handed_on, &mut wrong.xmit, &mut wrong.enqueued, &mut wrong.kthreads, &mut wrong.sockets)
            else {
                unreachable!()
            };
            let SocketReading { counts, kernel } = &mut sockets.each[0].reading;
            match counter {
                0 => given.to_interfaces += off,
                1 => given.to_cpus += off,
                2 => xmit.drops += off,
                3 => enqueued.processed += off,
                4 => kthreads.processed += off,
                5 => given.to_sockets += off,
                6 => kernel.rx_dropped += off,
                7 => counts.tx_packets += off,
                8 => sockets.completed += off,
                _ => wrong.received = Reading::Known(handed_on - dropped + off),
            }
            prop_assert!(wrong.residuals().iter().any(|(_, residual)| residual.unsigned_abs() == u128::from(off)));
        }
    }

    #[test]
    fn in_skb_mode_the_receiver_takes_the_place_of_the_driver() {
        let mut skb = onwards(1_000, 10);
        skb.xmit = Reading::not_available("no bulks in skb mode");
        assert_eq!((skb.residuals().len(), skb.uncounted()), (4, None));
        assert!(skb.residuals().iter().all(|(_, residual)| *residual == 0), "{:?}", skb.residuals());
        skb.received = Reading::Known(989);
        assert!(skb.residuals().contains(&("handed on - failed - given to drivers, queues and sockets", 1)));
        skb.received = Reading::not_available("nobody knows");
        assert_eq!(skb.uncounted().unwrap(), "no bulks in skb mode; nobody knows");
    }

    #[test]
    fn a_stage_that_was_not_counted_has_no_residual_and_says_why() {
        let mut unknown = onwards(1_000, 0);
        unknown.handed_on = Reading::not_available("a user's program");
        assert_eq!(
            unknown.residuals().iter().map(|(stage, _)| *stage).collect::<Vec<_>>(),
            [
                "received by sockets to be sent - sent",
                "frames sent by sockets - come back",
                "sent to the target - received behind it",
                "queued - taken by kthreads",
            ]
        );
        assert_eq!((unknown.refused(), unknown.uncounted().unwrap()), (None, "a user's program".to_owned()));
    }
}
