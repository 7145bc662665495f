//! `ethtool_stats.pl` of network-testing: counters of a device per second, over the time that really passed.

use super::Parser;
use super::block::Blocks;
use super::lines::{Line, between};
use super::model::{Format, Metric, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct EthtoolStats {
    subject: String,
    /// The round's period was far from the one asked for.
    unusable: bool,
}

impl Parser for EthtoolStats {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        let text = line.text.trim_start();
        if text.starts_with("Show adapter(s)") {
            self.unusable = false;
            return true;
        }
        if let Some(warning) = text.strip_prefix("***WARN***: ") {
            self.unusable = warning.starts_with("Sample period");
            to.block(Format::EthtoolStats).note(format!("the tool warns: {warning}; the round's figures are left out"));
            return true;
        }
        text.starts_with("***NOTE***: Collecting stats") || (text.starts_with("Ethtool(") && self.counter(text, to))
    }

    fn interrupted(&mut self, _: &mut Blocks<'_>) {
        self.unusable = false;
    }
}

impl EthtoolStats {
    /// `Ethtool(mlx5p1  ) stat:  44992839 (  44,992,839) <= tx_packets /sec`.
    fn counter(&mut self, text: &str, to: &mut Blocks<'_>) -> bool {
        let parts = || Some((between(text, "(", ")")?, between(text, "stat:", "(")?, between(text, "<=", "/sec")?));
        let Some((device, value, counter)) = parts() else { return false };
        let Some(value) = Stated::integer(value.trim()) else { return false };
        let counter = counter.trim();
        if self.unusable {
            return true;
        }
        self.subject.clear();
        self.subject.extend([device.trim(), " ", counter]);
        let (metric, unit) = kind(counter);
        to.block(Format::EthtoolStats).value(&self.subject, metric, unit, value);
        true
    }
}

/// What a driver's counter counts, as far as its name tells.
fn kind(counter: &str) -> (Metric, Unit) {
    let has = |parts: &[&str]| parts.iter().any(|part| counter.contains(part));
    let lost = has(&["drop", "discard", "missed", "out_of_buffer", "no_dma", "err"]);
    let packets = has(&["packets", "pkts", "unicast", "multicast", "broadcast"]) && !has(&["bytes", "octets"]);
    let metric = match counter.strip_prefix("port.").unwrap_or(counter) {
        _ if lost => return (Metric::Drop, Unit::EventsPerSecond),
        name if packets && name.starts_with("rx") => Metric::Rx,
        name if packets && name.starts_with("tx") => Metric::Xmit,
        _ => return (Metric::Counter, Unit::EventsPerSecond),
    };
    (metric, Unit::PacketsPerSecond)
}
