//! What was read of another tool's output.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::number::Stated;
use crate::units::{NANOS_PER_SEC, PacketsPerSec};

/// An enum whose values have one name, in JSON, on the command line and in print.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

named! {
    /// The tool, or kind of tool, that printed the text.
    Format {
        /// `xdp-bench` of xdp-tools: terse lines, extended output and the block at the end.
        XdpBench = "xdp-bench",
        /// `xdp-trafficgen` of xdp-tools.
        XdpTrafficgen = "xdp-trafficgen",
        /// `xdp-monitor` of xdp-tools, which counts the whole system.
        XdpMonitor = "xdp-monitor",
        /// The programs of the kernel's `samples/bpf` (`xdp_rxq_info`, `xdp_redirect_cpu`, `xdp_monitor`, …).
        XdpSamples = "xdp-samples",
        /// AF_XDP: `xdp-bench xsk-*`, `xdp-trafficgen xsk-udp`, and the kernel's old `xdpsock` sample.
        Xdpsock = "xdpsock",
        /// The kernel's packet generator.
        Pktgen = "pktgen",
        /// `ethtool_stats.pl` of network-testing.
        EthtoolStats = "ethtool_stats",
        /// `nstat` of iproute2.
        Nstat = "nstat",
        /// `sar -n DEV` of sysstat.
        Sar = "sar",
        /// `iperf3 --json` and `--json-stream`.
        Iperf3 = "iperf3",
        /// `perf stat`.
        PerfStat = "perf-stat",
        /// `time_bench` lines in the kernel log, such as page_pool's benchmark prints.
        TimeBench = "time_bench",
        /// `bench` of the kernel's BPF selftests.
        BpfBench = "bpf-bench",
        /// `udp_sink` of network-testing.
        UdpSink = "udp_sink",
        /// Figures in notes: `n=… cur-pps:…` lines and `label: 13,746,471 pps`.
        Notes = "notes",
        /// Result tables of Emacs org mode.
        OrgTable = "org-table",
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().copied().find(|format| format.name() == name);
        known.ok_or_else(|| {
            format!("`{name}` is none of {}", Self::ALL.iter().map(|f| f.name()).collect::<Vec<_>>().join(", "))
        })
    }
}

named! {
    /// What was counted or timed.
    Metric {
        /// Packets received.
        Rx = "rx",
        /// Packets sent: those the driver took, which need not have arrived.
        Xmit = "xmit",
        /// Packets redirected.
        Redirect = "redirect",
        /// Packets passed to the network stack.
        Pass = "pass",
        /// Packets of the stage that the subject names.
        Packets = "packets",
        /// Fragments received or sent.
        Frags = "frags",
        /// Packets dropped.
        Drop = "drop",
        /// Errors.
        Error = "error",
        /// Errors and drops together, as xdp-bench counts them where drops are not the purpose.
        ErrorOrDrop = "error-or-drop",
        /// Packets in a bulk, on average.
        BulkAverage = "bulk-average",
        /// Operations of a microbenchmark.
        Operation = "operation",
        /// Payload.
        Goodput = "goodput",
        /// Segments sent again.
        Retransmit = "retransmit",
        /// Processor time.
        Cpu = "cpu",
        /// Anything else; the subject names it.
        Counter = "counter",
    }
}

named! {
    /// The unit of a figure.
    Unit {
        /// Packets per second.
        PacketsPerSecond = "packets/s",
        /// Operations per second.
        OperationsPerSecond = "operations/s",
        /// Events per second.
        EventsPerSecond = "events/s",
        /// Bits per second.
        BitsPerSecond = "bits/s",
        /// Nanoseconds per packet.
        NanosPerPacket = "ns/packet",
        /// Nanoseconds per operation.
        NanosPerOperation = "ns/operation",
        /// Processor cycles per operation.
        CyclesPerOperation = "cycles/operation",
        /// Packets.
        Packets = "packets",
        /// Bytes.
        Bytes = "bytes",
        /// Events.
        Events = "events",
        /// Milliseconds.
        Milliseconds = "ms",
        /// Per cent.
        Percent = "%",
    }
}

impl Metric {
    /// Whether the time that one of them takes is a cost: of packets handled it is, of packets lost it is not.
    pub(super) const fn is_work(self) -> bool {
        matches!(self, Self::Rx | Self::Xmit | Self::Redirect | Self::Pass | Self::Packets | Self::Operation)
    }
}

impl Unit {
    /// Nanoseconds per packet or operation; `None` where the unit is no such thing, or nothing happened.
    fn nanos(self, value: f64) -> Option<f64> {
        match self {
            Self::PacketsPerSecond | Self::OperationsPerSecond => Some(PacketsPerSec(value).to_nanos()?.0),
            Self::NanosPerPacket | Self::NanosPerOperation => Some(value),
            _ => None,
        }
    }

    /// Whether it is a rate of packets, or the time of one.
    #[must_use]
    pub const fn is_of_packets(self) -> bool {
        matches!(self, Self::PacketsPerSecond | Self::NanosPerPacket)
    }

    const fn is_rate(self) -> bool {
        matches!(self, Self::PacketsPerSecond | Self::OperationsPerSecond)
    }
}

/// One result: what a tool printed between two labels, or between its start and its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Imported {
    /// The label the user gave, and the line of text above the block.
    pub label: String,
    /// Who printed it.
    pub format: Format,
    /// The file, `-` for standard input.
    pub file: String,
    /// The first line of the block, from 1.
    pub line: u64,
    /// Commands and introductions above the block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<String>,
    /// How long the run took, in seconds, as the tool says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<Stated>,
    /// What was printed interval by interval, and averages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// Counts over the whole run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub totals: Vec<Total>,
    /// What one must know before using the figures; what can be read in two ways begins with `ambiguous: `.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Figures of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What the figures are of, in the tool's words, e.g. `eth2->eth3` or `enqueue cpu:2->4`; empty for the run itself.
    pub subject: String,
    /// What was counted.
    pub metric: Metric,
    /// The unit of the values.
    pub unit: Unit,
    /// The values in the order printed, at most [`Series::MAX_VALUES`]; the statistics are of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
    /// The length of each value's interval in seconds, where the tool says it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub periods_s: Vec<f64>,
    /// What one unit of the last digit written stands for, e.g. 0.01, or 1000 for `62.338M`.
    pub step: f64,
    /// The values that count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// The tool's own average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnAverage>,
    /// Nanoseconds per packet or operation; absent for figures that are no such cost, and where nothing happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// The intervals of a series that count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Intervals.
    pub intervals: u64,
    /// Intervals left out; a note says which and why.
    pub left_out: u64,
    /// Their mean, weighted with the length of each where the tool says it.
    pub mean: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// Their standard deviation; `None` for a single one. Intervals of one run follow each other: this describes the run
    /// and is no standard error.
    pub sd: Option<f64>,
}

/// What the tool itself calls its average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnAverage {
    /// The average.
    pub mean: Stated,
    /// Its spread, as the tool says (standard deviation of its intervals or repetitions).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sd: Option<Stated>,
    /// The lowest and highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[Stated; 2]>,
    /// How many samples it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

/// Nanoseconds per packet or per operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Nanoseconds.
    pub ns: f64,
    /// What the rounding of the figures as written leaves open either way, in nanoseconds.
    pub rounding_ns: f64,
    /// How the intervals spread; absent where there is one figure only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

/// How the intervals of one run spread. They follow each other: no interval of confidence comes from them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Intervals.
    pub intervals: u64,
    /// The least, in nanoseconds per packet or operation.
    pub low_ns: f64,
    /// The most; absent where an interval had no packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_ns: Option<f64>,
}

impl Spread {
    /// What both span.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            intervals: self.intervals + other.intervals,
            low_ns: self.low_ns.min(other.low_ns),
            high_ns: self.high_ns.zip(other.high_ns).map(|(one, other)| one.max(other)),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.high_ns {
            Some(high) => write!(f, "{:.2} to {high:.2} ns over {} intervals", self.low_ns, self.intervals),
            None => write!(f, "{:.2} ns to no packet at all over {} intervals", self.low_ns, self.intervals),
        }
    }
}

/// A count over the whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// What was counted, in the tool's words.
    pub subject: String,
    /// What was counted.
    pub metric: Metric,
    /// Its unit.
    pub unit: Unit,
    /// The count.
    pub count: Stated,
}

impl Imported {
    /// The label, else the tool's name.
    #[must_use]
    pub fn title(&self) -> &str {
        if self.label.is_empty() { self.format.name() } else { &self.label }
    }
}

impl Series {
    /// Values kept of one series; the statistics are of all.
    pub const MAX_VALUES: usize = 1000;

    /// Subject and metric, e.g. `eth2->eth3 rx`.
    #[must_use]
    pub fn name(&self) -> String {
        if self.subject.is_empty() { self.metric.name().into() } else { format!("{} {}", self.subject, self.metric) }
    }

    /// The figure the series stands for: the mean of its intervals, or the tool's own average where that is of more.
    #[must_use]
    pub fn figure(&self) -> Option<Stated> {
        match (self.summary, self.own) {
            (Some(summary), Some(own)) if own.samples.is_some_and(|samples| samples > summary.intervals) => {
                Some(own.mean)
            }
            (Some(summary), own) if summary.intervals > 1 || own.is_none() => {
                Some(Stated { value: summary.mean, step: self.step })
            }
            (_, own) => Some(own?.mean),
        }
    }

    /// The cost that follows from [`Series::figure`], if it is of work done and has at least about one digit.
    pub(super) fn find_cost(&self) -> Option<Cost> {
        let figure = self.figure()?;
        let half = figure.step / 2.0;
        let ns = self.unit.nanos(figure.value).filter(|_| self.metric.is_work() && half < figure.value / 4.0)?;
        let rounding_ns = if self.unit.is_rate() { ns * ns * half / NANOS_PER_SEC } else { half };
        Some(Cost { ns, rounding_ns, spread: self.spread() })
    }

    fn spread(&self) -> Option<Spread> {
        let of = |intervals: u64, low: f64, high: f64| {
            let (least, most) = if self.unit.is_rate() { (high, low) } else { (low, high) };
            Some(Spread { intervals, low_ns: self.unit.nanos(least)?, high_ns: self.unit.nanos(most) })
        };
        match (self.summary, self.own) {
            (_, Some(OwnAverage { range: Some([low, high]), samples: Some(samples), .. })) => {
                of(samples, low.value, high.value)
            }
            (Some(summary), _) if summary.intervals > 1 => of(summary.intervals, summary.min, summary.max),
            _ => None,
        }
    }
}
