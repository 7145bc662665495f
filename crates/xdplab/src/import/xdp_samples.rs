//! The programs that the kernel's `samples/bpf` had: `xdp_rxq_info`, `xdp_redirect_cpu`, `xdp_monitor`, `xdp_redirect_map`.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct XdpSamples {
    subject: String,
}

impl Parser for XdpSamples {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        match *line.words() {
            // A header: an interval begins.
            [
                "XDP-cpumap" | "XDP-event" | "XDP" | "RXQ",
                ..,
                "extra-info" | "issue-pps" | "period/sec" | "xdp-redir",
            ]
            | ["XDP-event", "CPU:to", ..] => true,
            ["ifindex", index, rate, "pkt/s"] => self.redirect_map(index, rate, to),
            ["input:", _, "output:", _] | ["Running", "XDP", ..] | ["Running", "XDP/eBPF", ..] => {
                to.introduction(line.text);
                true
            }
            [name, ref rest @ ..] => self.row(name, rest, to),
            [] => false,
        }
    }
}

/// What the second column of a row is, after the rate itself.
fn row_kind(name: &str) -> Option<(Metric, Metric)> {
    Some(match name {
        "XDP-RX" | "rx_queue_index" => (Metric::Rx, Metric::Error),
        "cpumap-enqueue" | "cpumap_kthread" => (Metric::Packets, Metric::Drop),
        "devmap-xmit" => (Metric::Xmit, Metric::Drop),
        "XDP_REDIRECT" => (Metric::Redirect, Metric::Drop),
        "redirect_err" | "xdp_exception" | "Exception" => (Metric::Error, Metric::Drop),
        "xdp-in-kthread" => (Metric::Pass, Metric::Drop),
        _ => return None,
    })
}

/// `4`, `2:4`, `sum:4`, `4:sum` or `total`.
fn is_place(word: &str) -> bool {
    let part = |part: &str| part == "sum" || (!part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    word == "total" || word.split_once(':').map_or_else(|| part(word), |(from, to)| part(from) && part(to))
}

impl XdpSamples {
    /// `NAME [CPU] PLACE PPS [DROP [EXTRA [WORD]]]`.
    fn row(&mut self, name: &str, rest: &[&str], to: &mut Blocks<'_>) -> bool {
        let Some((metric, second)) = row_kind(name) else { return false };
        let rest = rest.strip_prefix(&["CPU"]).unwrap_or(rest);
        let [place, rate, others @ ..] = rest else { return false };
        let (true, Some(rate)) = (is_place(place), Stated::integer(rate)) else { return false };
        let lost = others.first().map(|word| Stated::integer(word));
        if lost == Some(None) {
            return false;
        }
        self.subject.clear();
        self.subject.extend([name, " ", place]);
        let block = to.block(Format::XdpSamples);
        block.value(&self.subject, metric, Unit::PacketsPerSecond, rate);
        if let Some(lost) = lost.flatten() {
            block.value(&self.subject, second, Unit::PacketsPerSecond, lost);
        }
        match *others {
            [_, extra, "bulk-average", ..] => {
                if let Some(bulk) = Stated::parse(extra) {
                    block.value(&self.subject, Metric::BulkAverage, Unit::Packets, bulk);
                }
            }
            [_, redirected] if name == "xdp-in-kthread" => {
                if let Some(redirected) = Stated::integer(redirected) {
                    block.value(&self.subject, Metric::Redirect, Unit::PacketsPerSecond, redirected);
                }
            }
            _ => {}
        }
        true
    }

    fn redirect_map(&mut self, index: &str, rate: &str, to: &mut Blocks<'_>) -> bool {
        let Some(rate) = Stated::integer(rate) else { return false };
        self.subject.clear();
        self.subject.extend(["ifindex ", index.trim_end_matches(':')]);
        let block = to.block(Format::XdpSamples);
        block.value(&self.subject, Metric::Rx, Unit::PacketsPerSecond, rate);
        block.note("xdp_redirect_map counts what was received: drops on the way out are not in it");
        true
    }
}
