//! xdp-bench, xdp-trafficgen and xdp-monitor, which print through one library (`lib/util/xdp_sample.c` of xdp-tools).
//!
//! A row is a label and columns of a number and its unit. Terse rows are labelled `Summary` or `in->out`; rows of detail,
//! printed by the extended output, on an error and after SIGQUIT, name a stage, and those of CPUs and queues follow the
//! row of their stage. Numbers have thousands separators only where the locale en_US.UTF-8 exists.

use super::Parser;
use super::block::Blocks;
use super::lines::Line;
use super::model::{Format, Metric, OwnAverage, Unit};
use super::number::Stated;

/// Columns of a row; the widest has four.
const MAX_COLUMNS: usize = 8;

/// Stages that a row of detail begins with.
const STAGES: [&str; 9] =
    ["receive", "redirect", "redirect_err", "enqueue", "kthread", "xdp_stats", "xdp_exception", "devmap_xmit", "xmit"];

#[derive(Default)]
pub(super) struct XdpTools {
    /// The stage whose rows of CPUs and queues follow.
    stage: String,
    /// The subject of the row last read.
    subject: String,
    /// A terse row that a mail program broke, until its rest comes.
    broken: Option<(u64, String)>,
    /// The block at the run's end was read: what follows is another run.
    ended: bool,
    /// That block counts packets received, which xdp-bench alone does.
    received: bool,
    /// Packets received or sent, until their average is read.
    packets: Option<Stated>,
    seconds: Option<Stated>,
}

#[derive(Clone, Copy)]
struct Column {
    metric: Metric,
    unit: Unit,
    value: Stated,
}

impl Parser for XdpTools {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        if !line.words().is_empty()
            && let Some((number, start)) = self.broken.take()
        {
            if self.row(&Line::new(&format!("{start} {}", line.text)), to) {
                return true;
            }
            to.text_at(number, &start);
        }
        if self.row(line, to) {
            return true;
        }
        if is_broken(line.words()) {
            self.broken = Some((to.at, line.text.to_owned()));
            return true;
        }
        match line.text.split_once(':') {
            Some((key, value)) => self.end_block(key.trim(), value.trim(), to),
            None => introduction(line.text, to),
        }
    }

    fn interrupted(&mut self, to: &mut Blocks<'_>) {
        if let Some((number, start)) = self.broken.take() {
            to.text_at(number, &start);
        }
        *self = Self::default();
    }
}

/// Whether a terse row begins here that does not end: `eth2->eth3 16,152,538 rx/s 16,152,546`.
fn is_broken(words: &[&str]) -> bool {
    let [ports, number, "rx/s" | "redir/s", rest @ ..] = words else { return false };
    (*ports == "Summary" || ports.contains("->"))
        && rest.len() < 2 * MAX_COLUMNS
        && [*number].iter().chain(rest).all(|word| Stated::integer(word).is_some() || column(word).is_some())
}

fn introduction(text: &str, to: &mut Blocks<'_>) -> bool {
    let starts =
        ["Transmitting on ", "Redirecting from ", "Dropping packets on ", "Passing packets on ", "Hairpinning "];
    let found = starts.iter().any(|start| text.trim_start().starts_with(start));
    if found {
        to.introduction(text);
    }
    found
}

/// Where a row of detail or of the end belongs.
fn family(to: &Blocks<'_>) -> Format {
    match to.open_format() {
        Some(format @ (Format::XdpTrafficgen | Format::XdpMonitor)) => format,
        _ => Format::XdpBench,
    }
}

/// What a row is of.
enum Row {
    Terse(Format),
    Detail,
    /// The end of a row that a mail program broke in two.
    Rest,
}

impl XdpTools {
    fn row(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        let Some((label, columns)) = columns(line.words()) else { return false };
        self.take_subject(label, line.words()).is_some_and(|row| self.put(row, &columns, to))
    }

    fn take_subject(&mut self, label: usize, words: &[&str]) -> Option<Row> {
        let (label, columns) = words.split_at(label);
        let terse = columns.iter().any(|word| matches!(*word, "err/s" | "err,drop/s"));
        match *label {
            [] => (!self.subject.is_empty()).then_some(Row::Rest),
            ["Summary"] if terse => {
                self.subject.clear();
                self.stage.clear();
                Some(Row::Terse(if columns.contains(&"rx/s") { Format::XdpBench } else { Format::XdpMonitor }))
            }
            [ports] if terse && ports.contains("->") && !ports.starts_with("cpu:") => {
                self.subject.clear();
                self.subject.push_str(ports);
                self.stage.clear();
                Some(Row::Terse(if ports.starts_with("lo->") { Format::XdpTrafficgen } else { Format::XdpBench }))
            }
            _ if terse => None,
            [part] if part.starts_with("cpu:") || part.starts_with("rxq:") => {
                self.subject.clear();
                self.subject.push_str(&self.stage);
                self.subject.push(' ');
                self.subject.push_str(part);
                Some(Row::Detail)
            }
            [stage, ..] if STAGES.contains(&stage) || is_constant(stage) => {
                self.subject.clear();
                for (index, word) in label.iter().filter(|word| **word != "total").enumerate() {
                    self.subject.extend((index > 0).then_some(' '));
                    self.subject.push_str(word);
                }
                self.stage.clone_from(&self.subject);
                Some(Row::Detail)
            }
            _ => None,
        }
    }

    fn put(&mut self, row: Row, columns: &[Option<Column>; MAX_COLUMNS], to: &mut Blocks<'_>) -> bool {
        if self.ended {
            to.close();
            self.ended = false;
        }
        let format = match row {
            Row::Terse(format) => format,
            Row::Detail | Row::Rest => family(to),
        };
        let block = to.block(format);
        if matches!(row, Row::Terse(_)) {
            block.intervals += 1;
        }
        for column in columns.iter().flatten() {
            block.value(&self.subject, column.metric, column.unit, column.value);
        }
        true
    }

    /// A line of the block that is printed at a run's end. A count of 0 has no line there.
    fn end_block(&mut self, key: &str, value: &str, to: &mut Blocks<'_>) -> bool {
        if key == "Duration" {
            let Some(seconds) = value.strip_suffix('s').and_then(Stated::parse) else { return false };
            if self.ended {
                to.close();
            }
            (self.ended, self.received, self.seconds) = (true, false, Some(seconds));
            to.block(family(to)).duration(seconds);
            return true;
        }
        let (metric, average) = match key {
            "Packets received" => (Metric::Rx, false),
            "Average packets/s" => (Metric::Rx, true),
            "Packets redirected" => (Metric::Redirect, false),
            "Average redir/s" => (Metric::Redirect, true),
            "Packets transmitted" => (Metric::Xmit, false),
            "Average transmit/s" => (Metric::Xmit, true),
            "Rx dropped" | "Tx dropped" => (Metric::Drop, false),
            "Errors recorded" => (Metric::Error, false),
            _ => return false,
        };
        let Some(value) = Stated::integer(value) else { return false };
        let block = to.block(family(to));
        if average {
            // The rate belongs to the same series as the lines of a single `in->out`; without lines, to the run.
            block.own_of_lines(
                metric,
                Unit::PacketsPerSecond,
                OwnAverage { mean: value, sd: None, range: None, samples: None },
            );
            if let (Some(packets), Some(seconds)) = (self.packets.take(), self.seconds) {
                check(packets, seconds, value, metric).into_iter().for_each(|note| block.note(note));
            }
        } else {
            self.received |= metric == Metric::Rx;
            if metric == Metric::Xmit && !self.received && block.intervals == 0 {
                block.set_format(Format::XdpTrafficgen);
            }
            let subject = if key.starts_with("Tx") { "Tx" } else { "" };
            block.total(subject, metric, Unit::Packets, value);
            self.packets = Some(value);
        }
        true
    }
}

/// Says where packets and seconds do not give the average that the tool printed beside them.
fn check(packets: Stated, seconds: Stated, average: Stated, metric: Metric) -> Option<String> {
    let most = packets.value / (seconds.value - seconds.step / 2.0) + average.step;
    let least = packets.value / (seconds.value + seconds.step / 2.0) - average.step;
    let fits = seconds.value <= seconds.step / 2.0 || (least..=most).contains(&average.value);
    (!fits).then(|| {
        format!(
            "ambiguous: {packets} packets in {seconds} s are not the {average} {metric}/s printed with them (xdp-tools \
             before 1.5.2 counts one second an interval, whatever its length)"
        )
    })
}

/// An errno or an XDP action, as rows under `redirect_err` and `xdp_exception` are labelled.
fn is_constant(word: &str) -> bool {
    word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

fn column(unit: &str) -> Option<(Metric, Unit)> {
    Some(match unit {
        "rx/s" => (Metric::Rx, Unit::PacketsPerSecond),
        "pkt/s" => (Metric::Packets, Unit::PacketsPerSecond),
        "redir/s" => (Metric::Redirect, Unit::PacketsPerSecond),
        "xmit/s" => (Metric::Xmit, Unit::PacketsPerSecond),
        "pass/s" => (Metric::Pass, Unit::PacketsPerSecond),
        "drop/s" => (Metric::Drop, Unit::PacketsPerSecond),
        "err,drop/s" => (Metric::ErrorOrDrop, Unit::PacketsPerSecond),
        "err/s" | "error/s" | "hit/s" => (Metric::Error, Unit::PacketsPerSecond),
        // Calls of the driver's ndo_xdp_xmit that failed, and times that a kthread slept: not packets.
        "drv_err/s" => (Metric::Error, Unit::EventsPerSecond),
        "sched" => (Metric::Counter, Unit::EventsPerSecond),
        "bulk-avg" => (Metric::BulkAverage, Unit::Packets),
        _ => return None,
    })
}

/// How many words the label has, and the columns; `None` where the line is no row.
fn columns(words: &[&str]) -> Option<(usize, [Option<Column>; MAX_COLUMNS])> {
    column(words.last()?)?;
    let mut columns = [None; MAX_COLUMNS];
    let mut label = words.len();
    for place in &mut columns {
        let Some(at) = label.checked_sub(2) else { break };
        let Some((metric, unit)) = column(words[at + 1]) else { break };
        let value = Stated::integer(words[at]).or_else(|| Stated::parse(words[at]))?;
        *place = Some(Column { metric, unit, value });
        label = at;
    }
    columns.reverse();
    Some((label, columns))
}
