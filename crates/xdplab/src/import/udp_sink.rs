//! `udp_sink` of network-testing: `recvmsg run: 1 1000000 432.89 2310074.13 1558 18`.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct UdpSink;

impl Parser for UdpSink {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        match *line.words() {
            [.., "ns/pkt", "pps", "cycles", "payload"] => true,
            [call, "run:", run, count, ns, pps, cycles, payload, ..] => {
                let whole = [run, count, cycles, payload].map(Stated::integer);
                let ([Some(_), Some(count), Some(_), Some(_)], Some(ns), Some(pps)) =
                    (whole, Stated::parse(ns), Stated::parse(pps))
                else {
                    return false;
                };
                let block = to.block(Format::UdpSink);
                let seconds = Some(count.value * ns.value / 1e9).filter(|seconds| *seconds > 0.0);
                block.value_over(call, Metric::Rx, Unit::PacketsPerSecond, pps, seconds);
                true
            }
            _ => false,
        }
    }
}
