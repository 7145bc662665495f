//! The lines of `xsk-drop` and `xsk-tx`, as `xdp-bench` has established them: labels of 18 characters, numbers of 14.

use super::event::End;
use super::interval::Interval;
use super::text::{Lines, costs, rate};
use super::xsk::XskInterval;
use crate::device::{SocketCounts, SocketReading};
use crate::reading::Reading;
use crate::units::Nanos;

use indicatif::HumanCount;

/// What the lines of a command look like.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own on the command line")]
pub struct XskLayout {
    /// The interface.
    pub interface: String,
    /// The queue.
    pub queue: u32,
    /// Packets are received.
    pub receives: bool,
    /// Packets are sent.
    pub sends: bool,
    /// Frames are shown beside packets.
    pub frags: bool,
    /// Calls of the application are shown.
    pub calls: bool,
    /// No interval is shown but the last.
    pub quiet: bool,
}

impl Lines for XskLayout {
    fn interval(&self, interval: &Interval, extended: bool) -> String {
        if self.quiet { String::new() } else { self.last(interval, extended) }
    }

    fn last(&self, interval: &Interval, extended: bool) -> String {
        let Some(xsk) = &interval.xsk else { return String::new() };
        let total = xsk.total();
        let mut text = format!("{}:{}", self.interface, self.queue);
        text += &self.rates(&total, xsk.period_s, "rx/s", "xmit/s");
        if interval.partial {
            text += &format!(" {:>14.3} s, partial", xsk.period_s);
        }
        text += "\n";
        match &xsk.interrupts {
            Some(Reading::Known(interrupts)) => {
                text += &format!(" {:<18} {:>14} intrs/s\n", "IRQs", rate(*interrupts, xsk.period_s));
            }
            Some(Reading::NotAvailable { why }) => text += &format!(" {:<18} not available ({why})\n", "IRQs"),
            None => {}
        }
        for (index, socket) in xsk.sockets.iter().enumerate() {
            if xsk.sockets.len() > 1 || extended || self.calls {
                text += &format!(" sock{index:<14}");
                text += &self.rates(&socket.counts, xsk.period_s, "rx/s  ", "xmit/s");
                text += "\n";
            }
            if extended {
                text += &kernel_rates(socket, xsk.period_s);
            }
            if self.calls {
                text += "\n";
                text += &calls(&socket.counts, |calls| format!("{} calls/s", padded(&rate(calls, xsk.period_s))));
            }
        }
        text
    }

    fn end(&self, end: &End, extended: bool) -> String {
        let Some(xsk) = &end.total.xsk else { return String::new() };
        self.totals_text(xsk, extended) + "\n" + &ns_per_packet(xsk) + &costs(end)
    }
}

impl XskLayout {
    /// The part of the end block that tells totals.
    pub(super) fn totals_text(&self, xsk: &XskInterval, extended: bool) -> String {
        let mut text = String::from("\nTotals:\n") + &self.totals(" ", &xsk.total());
        match &xsk.interrupts {
            Some(Reading::Known(interrupts)) => text += &format!(" {:<18} {} intrs", "IRQs", count(*interrupts)),
            Some(Reading::NotAvailable { why }) => text += &format!(" {:<18} not available ({why})", "IRQs"),
            None => {}
        }
        for (index, socket) in xsk.sockets.iter().enumerate() {
            text += &format!("\n sock{index}:\n");
            text += &self.totals("  ", &socket.counts);
            if extended {
                text += "\n";
                text += &kernel_totals(socket);
            }
            if self.calls {
                text += "\n";
                text += &calls(&socket.counts, |calls| format!("{} calls", count(calls)));
            }
        }
        text
    }

    fn rates(&self, counts: &SocketCounts, period_s: f64, received: &str, sent: &str) -> String {
        let column = |events, unit: &str| format!(" {} {unit}", padded(&rate(events, period_s)));
        let mut text = if self.receives { column(counts.rx_packets, received) } else { String::new() };
        if self.receives && self.frags {
            text += &column(counts.rx_frags, "rx frag/s");
        }
        if self.sends {
            text += &column(counts.tx_packets, sent);
        }
        if self.sends && self.frags {
            text += &column(counts.tx_frags, "xmit frag/s");
        }
        text
    }

    fn totals(&self, indent: &str, counts: &SocketCounts) -> String {
        let line = |label: &str, packets, frags| {
            let frags = if self.frags { format!(" {} frags", count(frags)) } else { String::new() };
            format!("{indent}{label:<18} {} pkts{frags}\n", count(packets))
        };
        let mut text = if self.receives { line("RX", counts.rx_packets, counts.rx_frags) } else { String::new() };
        if self.sends {
            text += &line("TX", counts.tx_packets, counts.tx_frags);
        }
        text
    }
}

fn kernel_rates(socket: &SocketReading, period_s: f64) -> String {
    let kernel = &socket.kernel;
    let line = |label: &str, events: Option<u64>, unit: &str| {
        let events = events.map_or_else(|| "not available".into(), |events| rate(events, period_s));
        format!("  {label:<18} {} {unit:<6}\n", padded(&events))
    };
    let invalid = line("Invalid", Some(kernel.rx_invalid), "rx/s");
    line("Dropped", Some(kernel.rx_dropped), "pkt/s")
        + &format!("{} {} {:<6}\n", invalid.trim_end_matches('\n'), padded(&rate(kernel.tx_invalid, period_s)), "tx/s")
        + &line("Queue full", kernel.rx_ring_full, "rx/s")
        + &line("Fill ring empty", kernel.fill_ring_empty, "pkt/s")
        + &line("TX ring empty", kernel.tx_ring_empty, "pkt/s")
}

fn kernel_totals(socket: &SocketReading) -> String {
    let kernel = &socket.kernel;
    let lines = [
        ("RX dropped", Some(kernel.rx_dropped)),
        ("RX invalid", Some(kernel.rx_invalid)),
        ("TX invalid", Some(kernel.tx_invalid)),
        ("RX queue full", kernel.rx_ring_full),
        ("Fill ring empty", kernel.fill_ring_empty),
        ("TX ring empty", kernel.tx_ring_empty),
    ];
    let count = |events: Option<u64>| events.map_or_else(|| padded("not available"), count);
    lines.map(|(label, events)| format!("  {label:<18} {} pkts\n", count(events))).concat()
}

/// The third label is spelt as scripts know it.
fn calls(counts: &SocketCounts, value: impl Fn(u64) -> String) -> String {
    let lines = [
        ("RX empty polls", counts.rx_empty_polls),
        ("Till fail polls", counts.fill_fail_polls),
        ("Copy tx sendtos", counts.copy_tx_sendtos),
        ("TX wakeup sendtos", counts.tx_wakeup_sendtos),
        ("Opt polls", counts.opt_polls),
    ];
    lines.map(|(label, calls)| format!("  {label:<18} {}\n", value(calls))).concat()
}

fn ns_per_packet(xsk: &XskInterval) -> String {
    let packets = xsk.total().rx_packets;
    let rate = crate::units::PacketsPerSec::of(packets, std::time::Duration::from_secs_f64(xsk.period_s));
    rate.and_then(crate::units::PacketsPerSec::to_nanos)
        .map_or_else(String::new, |Nanos(ns)| format!("  {:<20}: {ns:<10.2} (period / packets)\n", "ns per packet"))
}

fn padded(number: &str) -> String {
    format!("{number:>14}")
}

fn count(number: u64) -> String {
    padded(&HumanCount(number).to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::event::EndedBy;
    use super::super::interval::WallClock;
    use super::super::interval::tests::counters;
    use super::*;
    use crate::device::KernelCounts;

    fn layout() -> XskLayout {
        XskLayout {
            interface: "dut0".into(),
            queue: 3,
            receives: true,
            sends: true,
            frags: false,
            calls: false,
            quiet: false,
        }
    }

    fn interval(sockets: usize, partial: bool) -> Interval {
        let start = Instant::now();
        let (first, last) = (counters(start, 0.0, &[], &[]), counters(start, 2.0, &[], &[]));
        let counts = SocketCounts {
            rx_packets: 2_469_134,
            rx_frags: 4_938_268,
            tx_packets: 2_000_000,
            tx_frags: 4_000_000,
            rx_empty_polls: 10,
            copy_tx_sendtos: 40_000,
            ..SocketCounts::default()
        };
        let kernel = KernelCounts {
            rx_dropped: 200,
            rx_ring_full: Some(3_000),
            fill_ring_empty: None,
            ..KernelCounts::default()
        };
        let xsk = XskInterval {
            period_s: 2.0,
            sockets: vec![SocketReading { counts, kernel }; sockets],
            redirected: 0,
            interrupts: None,
        };
        Interval { xsk: Some(xsk), ..Interval::between(&first, &last, partial, &WallClock::start(start)) }
    }

    fn marked(text: &str) -> String {
        text.replace('\n', "|\n")
    }

    #[test]
    fn a_line_of_one_socket() {
        insta::assert_snapshot!(marked(&layout().interval(&interval(1, false), false)), @r"
        dut0:3      1,234,567 rx/s      1,000,000 xmit/s|
        ");
        let drops = XskLayout { sends: false, frags: true, ..layout() };
        insta::assert_snapshot!(marked(&drops.interval(&interval(1, true), false)), @r"
        dut0:3      1,234,567 rx/s      2,469,134 rx frag/s          2.000 s, partial|
        ");
    }

    #[test]
    fn quiet_shows_the_last_interval_alone() {
        let quiet = XskLayout { quiet: true, ..layout() };
        assert_eq!(quiet.interval(&interval(1, false), true), "");
        for partial in [true, false] {
            assert!(quiet.last(&interval(1, partial), false).starts_with("dut0:3 "));
        }
    }

    #[test]
    fn extra_statistics_and_calls_of_two_sockets() {
        let layout = XskLayout { calls: true, ..layout() };
        let mut interval = interval(2, false);
        interval.xsk.as_mut().unwrap().interrupts = Some(Reading::Known(300));
        let text = layout.interval(&interval, true);
        insta::assert_snapshot!(marked(text.split(" sock1").next().unwrap()), @r"
        dut0:3      2,469,134 rx/s      2,000,000 xmit/s|
         IRQs                          150 intrs/s|
         sock0                   1,234,567 rx/s        1,000,000 xmit/s|
          Dropped                       100 pkt/s |
          Invalid                         0 rx/s                0 tx/s  |
          Queue full                  1,500 rx/s  |
          Fill ring empty     not available pkt/s |
          TX ring empty       not available pkt/s |
        |
          RX empty polls                  5 calls/s|
          Till fail polls                 0 calls/s|
          Copy tx sendtos            20,000 calls/s|
          TX wakeup sendtos               0 calls/s|
          Opt polls                       0 calls/s|
        ");
        assert!(text.contains(" sock1 "));
    }

    #[test]
    fn the_end_block() {
        let layout = XskLayout { calls: true, frags: true, ..layout() };
        let mut total = interval(1, false);
        total.xsk.as_mut().unwrap().interrupts = Some(Reading::Known(300));
        insta::assert_snapshot!(marked(&layout.end(&End::new(total, EndedBy::Duration), true)), @r"
        |
        Totals:|
         RX                      2,469,134 pkts      4,938,268 frags|
         TX                      2,000,000 pkts      4,000,000 frags|
         IRQs                          300 intrs|
         sock0:|
          RX                      2,469,134 pkts      4,938,268 frags|
          TX                      2,000,000 pkts      4,000,000 frags|
        |
          RX dropped                    200 pkts|
          RX invalid                      0 pkts|
          TX invalid                      0 pkts|
          RX queue full               3,000 pkts|
          Fill ring empty     not available pkts|
          TX ring empty       not available pkts|
        |
          RX empty polls                 10 calls|
          Till fail polls                 0 calls|
          Copy tx sendtos            40,000 calls|
          TX wakeup sendtos               0 calls|
          Opt polls                       0 calls|
        |
          ns per packet       : 810.00     (period / packets)|
        ");
    }
}
