//! `nstat` of iproute2: how much the kernel's SNMP counters grew since it ran last. No rate: nothing says over what time.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, OwnAverage, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct Nstat;

impl Parser for Nstat {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        match *line.words() {
            ["#kernel"] | ["#0.0", ..] => {
                to.close();
                true
            }
            [name, count, average] => {
                let counter = name.starts_with(|first: char| first.is_ascii_uppercase())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
                match (Stated::integer(count), Stated::parse(average)) {
                    (Some(count), Some(average)) if counter && average.step < 1.0 => increment(name, count, to),
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

fn increment(name: &str, count: Stated, to: &mut Blocks<'_>) -> bool {
    let sleep = to.sleep_s("nstat").filter(|seconds| seconds.value > 0.0);
    let block = to.block(Format::Nstat);
    let metric = kind(name);
    block.total(name, metric.unwrap_or(Metric::Counter), Unit::Events, count);
    let (Some(metric @ (Metric::Rx | Metric::Xmit)), Some(seconds)) = (metric, sleep) else {
        block.note("increments, not rates: nothing says over what time");
        return true;
    };
    let mean = Stated { value: count.value / seconds.value, step: count.step / seconds.value };
    block.own(name, metric, Unit::PacketsPerSecond, OwnAverage { mean, sd: None, range: None, samples: None });
    block.note(format!(
        "ambiguous: the rates take the `sleep {seconds}` of the command for the period; it was longer by the start of \
         nstat itself, so that rates are too high and ns/packet too low"
    ));
    true
}

/// Counters of packets, whatever the protocol.
fn kind(name: &str) -> Option<Metric> {
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    match name {
        _ if ends(&["InReceives", "InDelivers", "InDatagrams", "NoPorts"]) => Some(Metric::Rx),
        _ if ends(&["OutRequests", "OutDatagrams"]) => Some(Metric::Xmit),
        _ if ends(&["InErrors", "RcvbufErrors", "InDiscards"]) => Some(Metric::Drop),
        _ => None,
    }
}
