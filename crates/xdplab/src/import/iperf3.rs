//! `iperf3 --json` and `--json-stream`, read as it comes: broken off, with `-nan`, and with text behind it.

use std::io::{self, BufRead, Read};

use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::block::{Block, Blocks};
use super::lines::Lines;
use super::model::{Format, Metric, OwnAverage, Unit};
use super::number::Stated;

/// The keys that a document of iperf3 begins with.
const KEYS: [&str; 6] = ["\"start\"", "\"intervals\"", "\"end\"", "\"error\"", "\"title\"", "\"event\""];

/// Whether a document begins at this line, or goes on there after a line with nothing but a brace.
pub(super) fn begins(text: &str, after_brace: bool) -> bool {
    let inner = if after_brace { Some(text) } else { text.trim_start().strip_prefix('{') };
    inner.is_some_and(|inner| KEYS.iter().any(|key| inner.trim_start().starts_with(key)))
}

/// Reads a document whose first lines are `head`.
///
/// # Errors
/// The input's.
pub(super) fn document<R: BufRead>(head: &str, lines: &mut Lines<R>, to: &mut Blocks<'_>) -> io::Result<()> {
    if !head.contains("\"event\"") || head.contains("\"start\"") {
        to.close();
    }
    let mut text = JsonText { text: without_nan(head), at: 0, number: to.at, lines };
    let result = {
        let mut json = serde_json::Deserializer::from_reader(&mut text);
        let block = to.block(Format::Iperf3);
        let result = Document(block).deserialize(&mut json);
        if let Err(error) = &result
            && !error.is_io()
        {
            block.note(format!("the JSON is broken off or damaged: {error}"));
        }
        result
    };
    let rest = text.text.get(text.at..).unwrap_or("").trim().to_owned();
    to.at = text.number;
    match result {
        Err(error) if error.is_io() => return Err(error.into()),
        Ok(()) if !rest.is_empty() => to.text(&rest),
        _ => {}
    }
    Ok(())
}

/// Lines as bytes, the numbers that JSON does not have replaced.
struct JsonText<'l, R> {
    text: String,
    at: usize,
    /// The number of the line.
    number: u64,
    lines: &'l mut Lines<R>,
}

impl<R: BufRead> Read for JsonText<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.text.len() {
            let Some((number, line)) = self.lines.next()? else { return Ok(0) };
            self.number = number;
            self.text.clear();
            self.text.push('\n');
            self.text.push_str(line);
            if line.contains("nan") || line.contains("inf") {
                self.text = without_nan(&self.text);
            }
            self.at = 0;
        }
        let left = &self.text.as_bytes()[self.at..];
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.at += count;
        Ok(count)
    }
}

/// `"lost_percent": -nan` as `null`: JSON has no such number.
fn without_nan(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(':') {
        let (head, tail) = rest.split_at(at + 1);
        clean.push_str(head);
        let value = tail.trim_start();
        let end = value.find([',', '}', ']']).unwrap_or(value.len());
        if matches!(value[..end].trim_end(), "nan" | "-nan" | "inf" | "-inf") {
            clean.push_str(" null");
            rest = &value[end..];
        } else {
            rest = tail;
        }
    }
    clean + rest
}

/// The sum of all streams, of an interval or of the run.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Sum {
    seconds: Option<f64>,
    bytes: Option<f64>,
    bits_per_second: Option<f64>,
    retransmits: Option<f64>,
    packets: Option<f64>,
    lost_packets: Option<f64>,
    omitted: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Interval {
    sum: Option<Sum>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct End {
    sum: Option<Sum>,
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
    cpu_utilization_percent: Option<CpuPercent>,
    sender_tcp_congestion: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CpuPercent {
    host_total: Option<f64>,
    remote_total: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Start {
    version: Option<String>,
    test_start: Option<TestStart>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TestStart {
    protocol: Option<String>,
    num_streams: Option<u64>,
    blksize: Option<u64>,
}

struct Document<'b>(&'b mut Block);

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a document of iperf3")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut event, mut ended, mut failed) = (None, false, false);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "start" => start(self.0, map.next_value()?),
                "intervals" => map.next_value_seed(Intervals(self.0))?,
                "end" => {
                    ended = true;
                    end(self.0, map.next_value()?);
                }
                "error" => {
                    failed = true;
                    let error: Value = map.next_value()?;
                    self.0.note(format!("iperf3 reports: {}", error.as_str().unwrap_or("an error")));
                }
                "event" => event = Some(map.next_value::<String>()?),
                "data" => stream_event(self.0, event.as_deref(), map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if !ended && !failed && event.is_none() {
            self.0.note("no `end`: the run was broken off");
        }
        Ok(())
    }
}

/// One line of `--json-stream`.
fn stream_event(block: &mut Block, event: Option<&str>, data: Value) {
    match event {
        Some("start") => start(block, serde_json::from_value(data).unwrap_or_default()),
        Some("interval") => interval(block, serde_json::from_value(data).unwrap_or_default()),
        Some("end") => end(block, serde_json::from_value(data).unwrap_or_default()),
        Some("error") => block.note(format!("iperf3 reports: {}", data.as_str().unwrap_or("an error"))),
        _ => {}
    }
}

struct Intervals<'b>(&'b mut Block);

impl<'de> DeserializeSeed<'de> for Intervals<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Intervals<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of intervals")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(one) = seq.next_element()? {
            interval(self.0, one);
        }
        Ok(())
    }
}

fn start(block: &mut Block, start: Start) {
    if let Some(version) = start.version {
        block.context(&version);
    }
    if let Some(TestStart { protocol: Some(protocol), num_streams, blksize }) = start.test_start {
        let (streams, size) = (num_streams.unwrap_or(1), blksize.unwrap_or(0));
        block.context(&format!("{protocol}, {streams} streams, {size} bytes a write or datagram (payload)"));
        if protocol == "TCP" {
            block.note("TCP: goodput; iperf3 counts no packets there");
        }
    }
}

fn interval(block: &mut Block, interval: Interval) {
    let Some(sum) = interval.sum else { return };
    let Some(seconds) = sum.seconds.filter(|&seconds| seconds > 0.0) else { return };
    if sum.omitted {
        block.note("intervals that iperf3 marks `omitted` are left out");
        return;
    }
    let mut value = |subject, metric, unit, value: Option<f64>, step| {
        if let Some(value) = value.filter(|&value| value >= 0.0) {
            block.value_over(subject, metric, unit, Stated { value, step }, Some(seconds));
        }
    };
    let rate = |count: Option<f64>| count.map(|count| count / seconds);
    value("", Metric::Goodput, Unit::BitsPerSecond, sum.bits_per_second, 1.0);
    value("", Metric::Retransmit, Unit::EventsPerSecond, rate(sum.retransmits), 1.0 / seconds);
    match (sum.packets, sum.lost_packets) {
        // The receiver's `packets` are those that should have come.
        (Some(packets), Some(lost)) => {
            value("", Metric::Rx, Unit::PacketsPerSecond, rate(Some(packets - lost)), 1.0 / seconds);
            value("", Metric::Drop, Unit::PacketsPerSecond, rate(Some(lost)), 1.0 / seconds);
        }
        (packets, _) => value("", Metric::Xmit, Unit::PacketsPerSecond, rate(packets), 1.0 / seconds),
    }
}

fn end(block: &mut Block, end: End) {
    let seconds = end.sum_received.as_ref().or(end.sum.as_ref()).or(end.sum_sent.as_ref()).and_then(|sum| sum.seconds);
    if let Some(value) = seconds.filter(|&seconds| seconds > 0.0) {
        block.duration(Stated { value, step: 1e-6 });
    }
    for (subject, sum) in [("", end.sum), ("sent", end.sum_sent), ("received", end.sum_received)] {
        let Some(sum) = sum else { continue };
        let whole = |value: Option<f64>| value.filter(|&value| value >= 0.0).map(|value| Stated { value, step: 1.0 });
        if let Some(mean) = whole(sum.bits_per_second) {
            block.own(
                subject,
                Metric::Goodput,
                Unit::BitsPerSecond,
                OwnAverage { mean, sd: None, range: None, samples: None },
            );
        }
        let totals = [
            (Metric::Goodput, Unit::Bytes, sum.bytes),
            (Metric::Retransmit, Unit::Events, sum.retransmits),
            (Metric::Packets, Unit::Packets, sum.packets),
            (Metric::Drop, Unit::Packets, sum.lost_packets),
        ];
        for (metric, unit, count) in totals {
            if let Some(count) = whole(count) {
                block.total(subject, metric, unit, count);
            }
        }
    }
    let cpu = end.cpu_utilization_percent.unwrap_or_default();
    for (subject, percent) in [("host", cpu.host_total), ("remote", cpu.remote_total)] {
        if let Some(value) = percent.filter(|percent| percent.is_finite()) {
            let mean = Stated { value, step: 1e-6 };
            block.own(subject, Metric::Cpu, Unit::Percent, OwnAverage { mean, sd: None, range: None, samples: None });
        }
    }
    if let Some(name) = end.sender_tcp_congestion {
        block.context(&format!("congestion control {name}"));
    }
}
