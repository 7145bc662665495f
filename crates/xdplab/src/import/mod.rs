//! Results of other tools, read from the text they print, also where it was pasted into mail.
//!
//! One file for each format. A line goes to the format that took the line before, then to the others; a line that none
//! takes is the label of the block below it, or is listed as not understood. What can be read in two ways is said in a
//! note that begins with `ambiguous: `. Memory does not grow with the input: of each series a bounded number of values is
//! kept and the statistics are of all.

mod block;
mod bpf_bench;
mod ethtool_stats;
mod iperf3;
mod lines;
mod model;
mod notes;
mod nstat;
mod number;
mod org_table;
mod perf_stat;
mod pktgen;
mod sar;
mod time_bench;
mod udp_sink;
mod xdp_samples;
mod xdp_tools;
mod xdpsock;

use std::io::BufRead;

pub use block::{Import, NotUnderstood, UnknownLine};
pub use model::{Cost, Format, Imported, Metric, OwnAverage, Series, Spread, Summary, Total, Unit};
pub use number::Stated;

use crate::error::{Error, Result};
use block::Blocks;
use lines::{Line, Lines};

/// A format.
trait Parser {
    /// Takes a line of the format; `false` where it is none.
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool;

    /// Something that is not of the format came: another run follows.
    fn interrupted(&mut self, _to: &mut Blocks<'_>) {}
}

/// What the user says about a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The format; found line by line where there is none.
    pub format: Option<Format>,
    /// A label for the file, put before those found in it.
    pub label: String,
}

/// Reads a file's results into `import`; `file` is its name for the reader.
///
/// # Errors
/// The file can't be read.
pub fn read(input: impl BufRead, file: &str, options: &Options, import: &mut Import) -> Result<()> {
    let mut blocks = Blocks::new(import, file, &options.label, options.format);
    let mut lines = Lines::new(input);
    let mut parsers = parsers(options.format);
    let json = options.format.is_none_or(|format| format == Format::Iperf3);
    let failed = |error| Error::io(format!("import {file}"), "read", &error);
    // A brace alone may begin a document of iperf3; the next line tells.
    let mut brace = false;
    while let Some((number, text)) = lines.next().map_err(failed)? {
        blocks.at = number;
        if json && iperf3::begins(text, brace) {
            let head = if brace { format!("{{{text}") } else { text.to_owned() };
            brace = false;
            iperf3::document(&head, &mut lines, &mut blocks).map_err(failed)?;
            continue;
        }
        let line = Line::new(text);
        if std::mem::take(&mut brace) {
            blocks.text("{");
        }
        let taken = parsers.iter_mut().position(|parser| parser.line(&line, &mut blocks));
        match taken {
            Some(place) => parsers[..=place].rotate_right(1),
            None if line.words() == ["{"] && json => brace = true,
            None if is_nothing(&line) => {}
            None => {
                parsers.iter_mut().for_each(|parser| parser.interrupted(&mut blocks));
                if is_command(text) { blocks.introduction(text) } else { blocks.text(text) }
            }
        }
    }
    parsers.iter_mut().for_each(|parser| parser.interrupted(&mut blocks));
    blocks.finish();
    Ok(())
}

/// The parsers of a format, or of all. None takes another's lines, so that their order matters for speed alone.
fn parsers(format: Option<Format>) -> Vec<Box<dyn Parser>> {
    match format {
        None => {
            let mut all = parsers(Some(Format::XdpBench));
            for format in Format::ALL.iter().filter(|format| !is_xdp_tools(**format)) {
                all.extend(parsers(Some(*format)));
            }
            all
        }
        Some(Format::XdpBench | Format::XdpTrafficgen | Format::XdpMonitor) => {
            vec![Box::<xdp_tools::XdpTools>::default()]
        }
        Some(Format::XdpSamples) => vec![Box::<xdp_samples::XdpSamples>::default()],
        Some(Format::Xdpsock) => vec![Box::<xdpsock::Xdpsock>::default()],
        Some(Format::Pktgen) => vec![Box::<pktgen::Pktgen>::default()],
        Some(Format::EthtoolStats) => vec![Box::<ethtool_stats::EthtoolStats>::default()],
        Some(Format::Nstat) => vec![Box::<nstat::Nstat>::default()],
        Some(Format::Sar) => vec![Box::<sar::Sar>::default()],
        Some(Format::Iperf3) => Vec::new(),
        Some(Format::PerfStat) => vec![Box::<perf_stat::PerfStat>::default()],
        Some(Format::TimeBench) => vec![Box::<time_bench::TimeBench>::default()],
        Some(Format::BpfBench) => vec![Box::<bpf_bench::BpfBench>::default()],
        Some(Format::UdpSink) => vec![Box::<udp_sink::UdpSink>::default()],
        Some(Format::Notes) => vec![Box::<notes::Notes>::default()],
        Some(Format::OrgTable) => vec![Box::<org_table::OrgTable>::default()],
    }
}

const fn is_xdp_tools(format: Format) -> bool {
    matches!(format, Format::XdpBench | Format::XdpTrafficgen | Format::XdpMonitor)
}

/// Blank lines, marks of a quotation or an example, and what libraries print in between.
fn is_nothing(line: &Line<'_>) -> bool {
    let text = line.text.trim();
    text.is_empty()
        || ["```", "~~~", "libbpf: ", "[...]", "[…]", "--8<--"].iter().any(|start| text.starts_with(start))
        || text.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("#+begin"))
        || text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("#+end"))
}

/// A command after a prompt, or of sudo.
fn is_command(text: &str) -> bool {
    let text = text.trim_start();
    let prompt = text.starts_with('[') && (text.contains("]$ ") || text.contains("]# "));
    prompt || ["$ ", "# ", "sudo "].iter().any(|start| text.starts_with(start))
}
