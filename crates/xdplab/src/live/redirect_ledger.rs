//! Where redirected packets went, from the program to the receiver, each stage counted by itself; and what limited them.

use std::collections::BTreeMap;

use super::counters::XmitCounts;
use super::ledger::Account;
use super::softirq::RxCost;
use crate::reading::Reading;

/// Everything from the moment the program was attached until it was detached again and its last frames had passed: some more
/// than the intervals tell.
#[derive(Clone, Debug)]
pub(super) struct Redirected {
    /// Packets that the program saw.
    pub(super) received: u64,
    /// Those that it could not handle (`XDP_ABORTED`).
    pub(super) aborted: u64,
    /// Redirects that failed before a queue took the frame, by errno.
    pub(super) errors: Reading<BTreeMap<String, u64>>,
    /// Copies that were to be made of each of the others: 1, but for a broadcast.
    pub(super) copies: u64,
    pub(super) targets: Vec<RedirectedTo>,
}

/// What is counted of one target.
#[derive(Clone, Debug)]
pub(super) struct RedirectedTo {
    pub(super) interface: String,
    /// Frames that its egress program dropped; 0 without one.
    pub(super) egress_drops: u64,
    /// Frames given to its driver; `None` in skb mode, in which frames are sent as `sk_buff`s past the tracepoint.
    pub(super) xmit: Option<Reading<XmitByErrno>>,
    /// Whose counter tells what the other end received, and what it says.
    pub(super) receiver: Reading<(String, u64)>,
}

/// Frames given to a driver, by its answer; `None` where it took frames.
pub(super) type XmitByErrno = BTreeMap<Option<String>, XmitCounts>;

impl Redirected {
    /// The stages: the program, what was made of its redirects, each driver, and each receiver.
    pub(super) fn accounts(&self) -> Vec<Reading<Account>> {
        let mut accounts = vec![self.of_received()];
        if self.copies != 1 {
            accounts.push(self.of_copies());
        }
        accounts.extend(self.targets.iter().flat_map(RedirectedTo::accounts));
        accounts
    }

    fn of_received(&self) -> Reading<Account> {
        self.errors.as_ref().and_then(|errors| {
            let onwards = if self.copies == 1 {
                self.handed_over()
            } else {
                Reading::Known(vec![("redirected".into(), self.redirected(errors))])
            };
            onwards.map(|mut parts| {
                parts.extend(errors.iter().map(|(errno, packets)| (format!("not redirected, {errno}"), *packets)));
                parts.push(("aborted".into(), self.aborted));
                account("received", self.received, &parts)
            })
        })
    }

    fn of_copies(&self) -> Reading<Account> {
        let copies = self.errors.as_ref().map(|errors| self.redirected(errors) * self.copies);
        copies.and_then(|copies| {
            self.handed_over().map(|parts| account(&format!("{} copies of each", self.copies), copies, &parts))
        })
    }

    fn redirected(&self, errors: &BTreeMap<String, u64>) -> u64 {
        self.received.saturating_sub(self.aborted).saturating_sub(errors.values().sum())
    }

    fn handed_over(&self) -> Reading<Vec<(String, u64)>> {
        let parts = self.targets.iter().map(RedirectedTo::handed_over);
        parts.collect::<Result<Vec<_>, _>>().map(|parts| parts.concat()).into()
    }
}

impl RedirectedTo {
    /// The account of its driver and the one of its receiver; in skb mode both are in the account of the program.
    fn accounts(&self) -> Vec<Reading<Account>> {
        let Some(xmit) = &self.xmit else { return Vec::new() };
        let name = &self.interface;
        let of_driver = xmit.as_ref().map(|xmit| {
            let mut parts = vec![("sent".to_owned(), sent(xmit))];
            parts.push(("dropped by the egress program".into(), self.egress_drops));
            parts.extend(self.driver_drops(xmit).into_iter().map(|(why, frames)| (format!("dropped, {why}"), frames)));
            account(&format!("handed to {name}"), handed_over(xmit), &parts)
        });
        let of_receiver = xmit.as_ref().and_then(|xmit| {
            self.receiver.as_ref().map(|(counter, packets)| {
                account(&format!("sent by {name}"), sent(xmit), &[(format!("received ({counter})"), *packets)])
            })
        });
        vec![of_driver, of_receiver]
    }

    /// Frames that left the redirect for this target.
    fn handed_over(&self) -> Result<Vec<(String, u64)>, String> {
        let name = &self.interface;
        if let Some(xmit) = &self.xmit {
            return Ok(vec![(format!("handed to {name}"), handed_over(xmit.as_ref().into_result()?))]);
        }
        let (counter, received) = self.receiver.as_ref().into_result()?;
        let dropped = (format!("dropped by the egress program of {name}"), self.egress_drops);
        Ok(vec![(format!("received behind {name} ({counter})"), *received), dropped])
    }

    /// Frames that the driver did not take, by why.
    fn driver_drops(&self, xmit: &XmitByErrno) -> BTreeMap<String, u64> {
        // A driver that answers an error was given the frames that the egress program had let through, so that the drops of
        // that program are among those without an error.
        let drops = xmit.iter().map(|(errno, counts)| match errno {
            None => ("its ring was full".to_owned(), counts.drops.saturating_sub(self.egress_drops)),
            Some(errno) => (format!("its driver said {errno}"), counts.drops),
        });
        drops.filter(|(_, frames)| *frames > 0).collect()
    }
}

fn sent(xmit: &XmitByErrno) -> u64 {
    xmit.values().map(|counts| counts.sent).sum()
}

fn handed_over(xmit: &XmitByErrno) -> u64 {
    xmit.values().map(|counts| counts.sent + counts.drops).sum()
}

fn account(of: &str, packets: u64, parts: &[(String, u64)]) -> Account {
    Account::new(of, packets, parts.iter().map(|(to, packets)| (to.as_str(), *packets)))
}

/// The share of frames not taken from which on the target is what limits.
const SOME: f64 = 0.01;

/// What limited the rate, as far as can be told from outside.
#[expect(clippy::cast_precision_loss, reason = "a share to compare")]
pub(super) fn limiter(redirected: &Redirected, rx: &RxCost) -> Reading<String> {
    for target in &redirected.targets {
        let Some(Reading::Known(xmit)) = &target.xmit else { continue };
        let all = handed_over(xmit);
        for (why, frames) in target.driver_drops(xmit) {
            if frames as f64 > SOME * all as f64 {
                return Reading::Known(format!("{}: {frames} of {all} frames were not taken, {why}", target.interface));
            }
        }
    }
    rx.limiter()
}

#[cfg(test)]
mod tests {
    use super::super::softirq::{BusyCpu, SoftirqTime};
    use super::*;
    use crate::units::Nanos;

    fn xmit(sent: u64, drops: u64) -> XmitCounts {
        XmitCounts { sent, drops, bulks: 1, error_bulks: 0 }
    }

    fn target(egress_drops: u64, xmit: Option<&[(Option<&str>, XmitCounts)]>, received: u64) -> RedirectedTo {
        let by_errno = |rows: &[(Option<&str>, XmitCounts)]| {
            Reading::Known(rows.iter().map(|(errno, counts)| (errno.map(str::to_owned), *counts)).collect())
        };
        RedirectedTo {
            interface: "out0".into(),
            egress_drops,
            xmit: xmit.map(by_errno),
            receiver: Reading::Known(("rx_packets of sink0".into(), received)),
        }
    }

    fn redirected(received: u64, errors: &[(&str, u64)], targets: &[RedirectedTo]) -> Redirected {
        let errors = Reading::Known(errors.iter().map(|(errno, packets)| ((*errno).into(), *packets)).collect());
        Redirected { received, aborted: 0, errors, copies: 1, targets: targets.to_vec() }
    }

    /// Each account as a line.
    fn lines(redirected: &Redirected) -> Vec<String> {
        let line = |account: Reading<Account>| {
            account.into_result().map_or_else(
                |why| why,
                |Account { of, packets, parts, residual }| {
                    let parts: Vec<String> = parts.iter().map(|part| format!("{} {}", part.packets, part.to)).collect();
                    format!("{packets} {of} = {} + {residual}", parts.join(" + "))
                },
            )
        };
        redirected.accounts().into_iter().map(line).collect()
    }

    #[test]
    fn accounts_balance_where_every_loss_was_counted() {
        let xmit = [(None, xmit(700, 100)), (Some("ENXIO"), xmit(0, 150))];
        let mut redirected = redirected(1_000, &[("EMSGSIZE", 40)], &[target(0, Some(&xmit), 700)]);
        redirected.aborted = 10;
        assert_eq!(
            lines(&redirected),
            [
                "1000 received = 950 handed to out0 + 40 not redirected, EMSGSIZE + 10 aborted + 0",
                "950 handed to out0 = 700 sent + 150 dropped, its driver said ENXIO + 100 dropped, its ring was full + 0",
                "700 sent by out0 = 700 received (rx_packets of sink0) + 0",
            ]
        );
    }

    #[test]
    fn frames_lost_without_a_trace_are_the_residual_and_those_of_others_are_below_zero() {
        let lost = lines(&redirected(1_000, &[], &[target(0, Some(&[(None, xmit(990, 0))]), 985)]));
        assert_eq!(lost[0], "1000 received = 990 handed to out0 + 10");
        assert_eq!(lost[2], "990 sent by out0 = 985 received (rx_packets of sink0) + 5");
        let others = lines(&redirected(9, &[], &[target(0, Some(&[(None, xmit(9, 0))]), 12)]));
        assert_eq!(others[2], "9 sent by out0 = 12 received (rx_packets of sink0) + -3");
    }

    #[test]
    fn drops_of_the_egress_program_are_not_the_driver_s() {
        let all = lines(&redirected(1_000, &[], &[target(1_000, Some(&[(None, xmit(0, 1_000))]), 0)]));
        assert_eq!(all[1], "1000 handed to out0 = 0 sent + 1000 dropped by the egress program + 0");
        let some = lines(&redirected(1_000, &[], &[target(4, Some(&[(None, xmit(990, 10))]), 990)]));
        assert_eq!(
            some[1],
            "1000 handed to out0 = 990 sent + 4 dropped by the egress program + 6 dropped, its ring was full + 0"
        );
    }

    #[test]
    fn a_broadcast_is_accounted_for_by_copies() {
        let targets = [target(0, Some(&[(None, xmit(60, 0))]), 60), target(0, Some(&[(None, xmit(50, 10))]), 50)];
        let broadcast = Redirected { copies: 2, ..redirected(63, &[("ENOMEM", 3)], &targets) };
        let lines = lines(&broadcast);
        assert_eq!(lines[0], "63 received = 60 redirected + 3 not redirected, ENOMEM + 0");
        assert_eq!(lines[1], "120 2 copies of each = 60 handed to out0 + 60 handed to out0 + 0");
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn in_skb_mode_receivers_take_the_place_of_drivers() {
        let targets = [target(5, None, 995)];
        assert_eq!(
            lines(&redirected(1_000, &[], &targets)),
            [
                "1000 received = 995 received behind out0 (rx_packets of sink0) + 5 dropped by the egress program of out0 \
                 + 0"
            ]
        );
    }

    #[test]
    fn what_was_not_counted_leaves_no_residual_to_trust() {
        let mut unknown = redirected(9, &[], &[target(0, Some(&[(None, xmit(9, 0))]), 9)]);
        unknown.errors = Reading::not_available("no xdp_redirect_err");
        assert_eq!(lines(&unknown)[0], "no xdp_redirect_err");
        assert_eq!(lines(&unknown)[2], "9 sent by out0 = 9 received (rx_packets of sink0) + 0");
        unknown.targets[0].xmit = Some(Reading::not_available("no xdp_devmap_xmit"));
        assert_eq!(lines(&unknown)[1..], ["no xdp_devmap_xmit", "no xdp_devmap_xmit"]);
    }

    #[test]
    fn the_limiter_is_named() {
        let named = |drops, softirq, idle| {
            let redirected = redirected(1_000, &[], &[target(0, Some(&[(None, xmit(1_000 - drops, drops))]), 0)]);
            let cpu = BusyCpu { ns_per_packet: None, softirq, idle };
            let softirq =
                SoftirqTime { busy_ns: BTreeMap::new(), busy_ns_per_packet: Nanos(1.0), cpus: [(3, cpu)].into() };
            limiter(&redirected, &RxCost { softirq: Reading::Known(softirq), threads: None }).to_string()
        };
        assert_eq!(named(200, 1.0, 0.0), "out0: 200 of 1000 frames were not taken, its ring was full");
        assert_eq!(named(5, 0.97, 0.03), "RX CPU 3: 97 % of its time in softirq", "next to none were not taken");
    }
}
