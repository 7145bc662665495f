//! What every live command takes, and how it tells what it counts.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::{Ending, output};
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::live::{Attached, End, EndedBy, Event, Interval, Limits, Lines, LiveRun, Start, Told, View};
use crate::netlink::{Channels, XdpMode};
use crate::reading::Reading;
use crate::record::Record;

/// Options of every live command.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// Seconds from one line to the next; fractions are taken too
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Start in extended output mode (Ctrl-\ toggles)
    #[arg(short, long)]
    pub(crate) extended: bool,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// End once at least so many packets were received
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Tell everything in JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the record to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Take an interface that carries the default route or this SSH session
    #[arg(long)]
    pub(crate) force: bool,
    /// Say more about what is set up
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// In the driver
    Native,
    /// On socket buffers (generic XDP), much slower
    Skb,
}

impl From<Mode> for XdpMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Native => Self::Native,
            Mode::Skb => Self::Generic,
        }
    }
}

/// A time in seconds, such as 2 or 0.5.
pub(crate) fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_no_number| "not a number of seconds".to_owned())?;
    // The peer's own limit is that of 32 bits; below a millisecond the reading itself would be the load.
    if !(0.001..=f64::from(u32::MAX)).contains(&seconds) {
        return Err(format!("not from 0.001 to {} seconds", u32::MAX));
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl Common {
    pub(crate) fn limits(&self) -> Limits {
        Limits { interval: self.interval, duration: self.duration, count: self.count }
    }
}

/// Whether the environment asks to end at once, as it does in test suites made for `xdp-bench`.
pub(crate) fn immediate_exit() -> bool {
    std::env::var_os("XDP_SAMPLE_IMMEDIATE_EXIT").is_some_and(|value| value == "1")
}

/// What is worth a line beside the start: a change made by the driver always, the rest if asked for.
pub(crate) fn notes(start: &Start, verbose: u8) {
    start.notes.iter().for_each(|note| output::note(note));
    if let Some(attached) = &start.attached {
        notes_on(attached, verbose).iter().for_each(|note| output::note(note));
    }
    for target in start.targets.iter().filter(|target| verbose > 0 && target.passes) {
        output::note(&format!("{}: a program that passes every packet is attached there too", target.interface));
    }
}

fn notes_on(attached: &Attached, verbose: u8) -> Vec<String> {
    let mut notes = Vec::new();
    if let (Reading::Known(before), Reading::Known(after)) = (&attached.channels_before, &attached.channels_after)
        && before != after
    {
        let interface = &attached.interface;
        notes.push(format!("{interface}: attaching changed its channels: {}, now {}", told(before), told(after)));
    }
    if verbose > 0 {
        let frags = if attached.frags { "with frags" } else { "without frags, which this kernel does not take" };
        notes.push(format!("program {}, id {}, {frags}", attached.program, attached.program_id));
        let channels = attached.channels_after.clone().map(|channels| told(&channels));
        notes.push(format!("{} RX queues are counted; channels: {channels}", attached.rx_queues));
    }
    notes
}

fn told(channels: &Channels) -> String {
    let Channels { rx, tx, combined, .. } = *channels;
    let parts = [("rx", rx), ("tx", tx), ("combined", combined)];
    let parts = parts.into_iter().filter_map(|(name, number)| Some(format!("{} {name}", number?)));
    parts.collect::<Vec<_>>().join(", ")
}

/// What packets with `XDP_ABORTED` mean for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortedPackets {
    /// They are told among the errors: other people's programs gave them.
    Tell,
    /// The command has failed: its program never means to abort one.
    Fail,
}

/// Tells a live command on standard output, and records it if there is to be a record.
pub(crate) struct Teller<'a> {
    options: &'a Common,
    lines: Box<dyn Lines>,
    extended: bool,
    record: Option<(Record, LiveRun)>,
}

impl<'a> Teller<'a> {
    /// Writes the record for the first time, so that a file that can't be written is known before the command has run, and
    /// tells what was attached: `text` on standard error, or the event.
    pub(crate) fn start(options: &'a Common, lines: impl Lines + 'static, start: Start, text: &str) -> Result<Self> {
        let event = json(&Event::Start(&start))?;
        let record = options.record.is_some().then(|| {
            let record = Record::begin(Environment::read(), start.argv.clone());
            (record, LiveRun { start, intervals: Vec::new(), sessions: Vec::new(), end: None })
        });
        let mut teller = Self { options, lines: Box::new(lines), extended: options.extended, record };
        teller.write_record()?;
        if options.json {
            output::text(&event)?;
        } else {
            output::note(text);
        }
        Ok(teller)
    }

    /// Tells the end, and writes the record.
    pub(crate) fn end(mut self, end: End, aborted_packets: AbortedPackets) -> Result<Ending> {
        output::text(&if self.options.json { json(&Event::End(&end))? } else { self.lines.end(&end, self.extended) })?;
        let failed = match &end.ended_by {
            EndedBy::Failed(why) => Err(Error::invalid("go on", why.clone())),
            _ if aborted_packets == AbortedPackets::Fail => refuse_aborted(&end.total).map(|()| Ending::Done),
            _ => Ok(Ending::Done),
        };
        if let Some((record, run)) = &mut self.record {
            record.stop();
            run.end = Some(end);
        }
        self.write_record()?;
        failed
    }

    fn write_record(&mut self) -> Result<()> {
        let (Some(path), Some((record, run))) = (&self.options.record, &mut self.record) else { return Ok(()) };
        record.live_runs = vec![run.clone()];
        record.write(path)
    }
}

impl View for Teller<'_> {
    fn tell(&mut self, told: Told<'_>) -> Result<ControlFlow<()>> {
        match told {
            Told::Interval(interval) | Told::Last(interval) => {
                if let Some((_, run)) = &mut self.record {
                    run.intervals.push(interval.clone());
                }
                output::tell(&if self.options.json {
                    json(&Event::Interval(interval))?
                } else {
                    match told {
                        Told::Last(_) => self.lines.last(interval, self.extended),
                        _ => self.lines.interval(interval, self.extended),
                    }
                })
            }
            Told::Toggle | Told::Signal if self.options.json => Ok(ControlFlow::Continue(())),
            Told::Toggle => {
                self.extended = !self.extended;
                output::tell("\n")
            }
            // The terminal has echoed the key; the line that follows begins on a line of its own.
            Told::Signal => output::tell("\n"),
        }
    }
}

fn refuse_aborted(total: &Interval) -> Result<()> {
    let exceptions = total.exceptions.as_ref().and_then(Reading::known);
    let exceptions = exceptions.and_then(|exceptions| exceptions.verdicts.get("XDP_ABORTED"));
    let exceptions: u64 = exceptions.map_or(0, |cpus| cpus.values().sum());
    let aborted = total.received.as_ref().map_or(0, |received| received.aborted).max(exceptions);
    if aborted == 0 {
        return Ok(());
    }
    Err(Error::invalid("trust this run", format!("{aborted} packets got XDP_ABORTED")))
}

fn json(event: &Event<'_>) -> Result<String> {
    event.json_line().map_err(|error| Error::invalid("write an event as JSON", error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::device::Counts;
    use crate::live::{Counters, Group, Place, WallClock};

    #[test]
    fn seconds_are_taken_with_fractions_and_within_bounds() {
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("4294967295"), Ok(Duration::from_secs(4_294_967_295)));
        for bad in ["0", "-1", "nan", "inf", "1e10", "", "2s", "0x10"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn aborted_packets_fail_a_run_whose_program_never_means_to_abort_one() {
        let at = Instant::now();
        let counters = |packets, aborted| {
            let rows = [(Place { queue: 0, cpu: 0 }, Counts { packets, aborted })].into();
            Counters { received: Some(Group { at, rows }), ..Counters::empty(at) }
        };
        let total = |aborted| Interval::between(&counters(0, 0), &counters(9, aborted), false, &WallClock::start(at));
        refuse_aborted(&total(0)).unwrap();
        assert!(refuse_aborted(&total(2)).unwrap_err().to_string().contains("2 packets got XDP_ABORTED"));
    }
}
