//! AF_XDP rates: `lib/util/xdpsock.c` of xdp-tools, and the `xdpsock` sample of the kernel that it came from.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct Xdpsock {
    /// The queue `eth0:3`, or a socket of it.
    subject: String,
    /// The totals of the end were read: what follows is another run.
    ended: bool,
    /// The sample's interval in seconds, from its header.
    period_s: Option<f64>,
}

impl Parser for Xdpsock {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        let words = line.words();
        let open = to.open_format() == Some(Format::Xdpsock);
        match *words {
            ["Totals:"] if open => {
                self.ended = true;
                self.subject.clear();
                true
            }
            [socket] if self.ended && socket.strip_suffix(':').is_some_and(is_socket) => {
                socket.trim_end_matches(':').clone_into(&mut self.subject);
                true
            }
            [socket, ..] if is_sample(socket) => {
                socket.clone_into(&mut self.subject);
                to.introduction(line.text);
                true
            }
            ["pps", "pkts", period] => {
                self.period_s = period.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
                self.period_s.is_some()
            }
            [side @ ("rx" | "tx"), rate, count] if self.period_s.is_some() => self.sample_row(side, rate, count, to),
            [.., unit] if unit_of(unit).is_some() => self.row(words, open, to),
            _ => false,
        }
    }

    fn interrupted(&mut self, _: &mut Blocks<'_>) {
        *self = Self::default();
    }
}

/// `eth0:3`.
fn is_queue(word: &str) -> bool {
    word.rsplit_once(':').is_some_and(|(interface, queue)| !interface.is_empty() && is_number(queue))
}

/// `sock0`.
fn is_socket(word: &str) -> bool {
    word.strip_prefix("sock").is_some_and(is_number)
}

/// `sock0@eth0:3`.
fn is_sample(word: &str) -> bool {
    word.split_once('@').is_some_and(|(socket, queue)| is_socket(socket) && is_queue(queue))
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// A column: what it counts, and whether it is a rate.
fn unit_of(unit: &str) -> Option<(Metric, bool)> {
    Some(match unit {
        "rx/s" => (Metric::Rx, true),
        "xmit/s" | "tx/s" => (Metric::Xmit, true),
        "pkt/s" => (Metric::Packets, true),
        "frag/s" => (Metric::Frags, true),
        "calls/s" | "intrs/s" => (Metric::Counter, true),
        "pkts" => (Metric::Packets, false),
        "frags" => (Metric::Frags, false),
        "calls" | "intrs" => (Metric::Counter, false),
        _ => return None,
    })
}

impl Xdpsock {
    /// `LABEL  NUMBER UNIT …`; `rx frag/s` and `xmit frag/s` are units of two words.
    fn row(&mut self, words: &[&str], open: bool, to: &mut Blocks<'_>) -> bool {
        let Some(start) = words.iter().position(|word| Stated::integer(word).is_some()) else { return false };
        let (label, columns) = words.split_at(start);
        let rates = matches!(*label, [socket] if is_queue(socket) || is_socket(socket));
        let columns =
            columns.split(|word| unit_of(word).is_some()).zip(columns.iter().filter_map(|word| unit_of(word)));
        let values: Option<Vec<_>> = columns
            .map(|(before, (metric, rate))| match *before {
                [value] => Some(("", Stated::integer(value)?, metric, rate)),
                [value, side @ ("rx" | "xmit")] if metric == Metric::Frags => {
                    Some((side, Stated::integer(value)?, metric, rate))
                }
                _ => None,
            })
            .collect();
        let Some(values) = values.filter(|_| rates || open) else { return false };
        if rates {
            self.begin(label[0], to);
        }
        let what = match *label {
            ["Till", "fail", "polls"] => "Fill fail polls".into(),
            _ => label.join(" "),
        };
        let block = to.block(Format::Xdpsock);
        for (side, value, metric, rate) in values {
            let of = if rates { side } else { what.as_str() };
            let subject = [self.subject.as_str(), of].join(" ");
            let metric = match (rates || metric == Metric::Frags, what.as_str()) {
                (true, _) => metric,
                (false, "RX") => Metric::Rx,
                (false, "TX") => Metric::Xmit,
                (false, "Dropped" | "RX dropped") => Metric::Drop,
                (false, _) => Metric::Counter,
            };
            match (rate, metric) {
                (true, Metric::Rx | Metric::Xmit) => block.value(subject.trim(), metric, Unit::PacketsPerSecond, value),
                (true, _) => block.value(subject.trim(), metric, Unit::EventsPerSecond, value),
                (false, Metric::Rx | Metric::Xmit) => block.total(&self.subject, metric, Unit::Packets, value),
                (false, _) => block.total(subject.trim(), metric, Unit::Events, value),
            }
        }
        true
    }

    fn begin(&mut self, socket: &str, to: &mut Blocks<'_>) {
        if std::mem::take(&mut self.ended) {
            to.close();
        }
        socket.clone_into(&mut self.subject);
    }

    fn sample_row(&self, side: &str, rate: &str, count: &str, to: &mut Blocks<'_>) -> bool {
        let (Some(rate), Some(_)) = (Stated::integer(rate), Stated::integer(count)) else { return false };
        let metric = if side == "rx" { Metric::Rx } else { Metric::Xmit };
        to.block(Format::Xdpsock).value_over(&self.subject, metric, Unit::PacketsPerSecond, rate, self.period_s);
        true
    }
}
