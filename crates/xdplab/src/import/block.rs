//! Where parsers put what they read: blocks with their labels, kept within bounds.

use serde::Serialize;

use super::model::{Format, Imported, Metric, OwnAverage, Series, Summary, Total, Unit};
use super::number::Stated;

/// Blocks and series kept of one import; what is beyond is counted.
const MAX_SERIES: usize = 10_000;
/// Lines not understood that are kept with their text.
const MAX_UNKNOWN: usize = 20;
/// Lines of context, and notes, kept of one block.
const MAX_CONTEXT: usize = 20;
/// What the notes begin with that say what can be read in two ways.
const AMBIGUOUS: &str = "ambiguous: ";
/// Characters kept of a line of text.
const MAX_TEXT: usize = 200;
/// A first or last interval with less than this part of the others' mean is taken for an incomplete one.
const INCOMPLETE: f64 = 0.9;
/// A tool's average that differs by more than this part from the mean of all its intervals, the incomplete ones too, was
/// counted in another way.
const AGREE: f64 = 0.25;

/// Everything read so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Import {
    /// The results, in order.
    pub blocks: Vec<Imported>,
    /// Lines that are neither a result nor the label of one.
    pub not_understood: NotUnderstood,
    /// Series that were left out because there were too many.
    pub left_out: u64,
}

/// Lines that were not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotUnderstood {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Vec<UnknownLine>,
}

/// A line that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownLine {
    /// The file.
    pub file: String,
    /// Its number, from 1.
    pub line: u64,
    /// Its text, cut where it is long.
    pub text: String,
}

/// The import of one file.
pub(super) struct Blocks<'a> {
    import: &'a mut Import,
    file: &'a str,
    /// The user's label for the file.
    prefix: &'a str,
    forced: Option<Format>,
    /// The number of the line at hand.
    pub(super) at: u64,
    open: Option<Block>,
    /// The last line of text, which labels the next block if one follows.
    pending: Option<(u64, String)>,
    /// The heading that everything stands under until the next one.
    heading: String,
    context: Vec<String>,
    /// Series there is room for.
    room: usize,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(import: &'a mut Import, file: &'a str, prefix: &'a str, forced: Option<Format>) -> Self {
        let used: usize = import.blocks.iter().map(|block| 1 + block.series.len() + block.totals.len()).sum();
        Self {
            import,
            file,
            prefix,
            forced,
            at: 0,
            open: None,
            pending: None,
            heading: String::new(),
            context: Vec::new(),
            room: MAX_SERIES.saturating_sub(used),
        }
    }

    /// The open block of `format`; one of another format is closed first.
    pub(super) fn block(&mut self, format: Format) -> &mut Block {
        let format = self.forced.unwrap_or(format);
        if self.open.as_ref().is_some_and(|open| open.imported.format != format) {
            self.close();
        }
        let (prefix, file, line) = (self.prefix, self.file, self.at);
        let (heading, pending, context, room) = (&self.heading, &mut self.pending, &mut self.context, self.room);
        self.open.get_or_insert_with(|| {
            // Under a heading, the line above is a label only if it says so.
            let above = pending.take_if(|(_, text)| heading.is_empty() || text.ends_with(':'));
            let above = above.map(|(_, text)| label(&text)).unwrap_or_default();
            let parts: Vec<&str> = [prefix, heading, &above].into_iter().filter(|part| !part.is_empty()).collect();
            Block::new(parts.join(": "), format, file, line, std::mem::take(context), room)
        })
    }

    /// The format of the open block.
    pub(super) fn open_format(&self) -> Option<Format> {
        Some(self.open.as_ref()?.imported.format)
    }

    /// Ends the open block: what follows is another run.
    pub(super) fn close(&mut self) {
        let Some(block) = self.open.take() else { return };
        let (imported, left_out) = block.finish();
        self.import.left_out += left_out;
        let used = 1 + imported.series.len() + imported.totals.len();
        if used == 1 && imported.notes.is_empty() {
            return;
        }
        if self.room < used {
            self.import.left_out += 1;
            return;
        }
        self.room -= used;
        self.import.blocks.push(imported);
    }

    /// A line that belongs to no result: it ends the open block and may be the label of the next.
    pub(super) fn text(&mut self, text: &str) {
        self.text_at(self.at, text);
    }

    /// The same for the line with that number.
    pub(super) fn text_at(&mut self, line: u64, text: &str) {
        self.close();
        if is_heading(text) {
            self.heading = label(&short(text));
            return;
        }
        if let Some((line, before)) = self.pending.replace((line, short(text.trim()))) {
            self.unknown(line, before);
        }
    }

    /// A command, or what a tool says before its figures: it ends the open block and is kept with the next.
    pub(super) fn introduction(&mut self, text: &str) {
        self.close();
        if self.context.len() < MAX_CONTEXT {
            self.context.push(short(text.trim()));
        }
    }

    /// Seconds of the `sleep` in the last command above the next or open block, if that command runs `tool`.
    pub(super) fn sleep_s(&self, tool: &str) -> Option<Stated> {
        let context = self.open.as_ref().map_or(&self.context, |open| &open.imported.context);
        let (_, after) = context.last().filter(|line| line.contains(tool))?.split_once("sleep ")?;
        Stated::parse(after.split_ascii_whitespace().next()?)
    }

    fn unknown(&mut self, line: u64, text: String) {
        let unknown = &mut self.import.not_understood;
        unknown.count += 1;
        if unknown.first.len() < MAX_UNKNOWN {
            unknown.first.push(UnknownLine { file: self.file.to_owned(), line, text });
        }
    }

    /// The end of the file.
    pub(super) fn finish(mut self) {
        self.close();
        if let Some((line, text)) = self.pending.take() {
            self.unknown(line, text);
        }
    }
}

fn short(text: &str) -> String {
    text.chars().filter(|character| !character.is_control() || *character == '\t').take(MAX_TEXT).collect()
}

/// A heading of org mode, or of markdown from the second level: `# ` may be a prompt.
fn is_heading(text: &str) -> bool {
    let below = |mark: char| text.trim_start_matches(mark).starts_with(' ');
    (text.starts_with('*') && below('*')) || (text.starts_with("##") && below('#'))
}

/// A line of text as a label: without bullets, heading stars and the colon at its end.
fn label(text: &str) -> String {
    text.trim_start_matches(['*', '#', '-', ' ']).trim_end_matches([':', ' ', '*', '=']).to_owned()
}

/// A result under way.
pub(super) struct Block {
    imported: Imported,
    series: Vec<Building>,
    /// Where the last series was found: tools print in the same order again and again.
    cursor: usize,
    /// Series there is room for.
    room: usize,
    left_out: u64,
    /// Intervals that began, for tools that leave out rows that are zero.
    pub(super) intervals: u64,
}

impl Block {
    fn new(label: String, format: Format, file: &str, line: u64, context: Vec<String>, room: usize) -> Self {
        let imported = Imported {
            label,
            format,
            file: file.to_owned(),
            line,
            context,
            duration_s: None,
            series: Vec::new(),
            totals: Vec::new(),
            notes: Vec::new(),
        };
        Self { imported, series: Vec::new(), cursor: 0, room, left_out: 0, intervals: 0 }
    }

    /// The value of one interval.
    pub(super) fn value(&mut self, subject: &str, metric: Metric, unit: Unit, value: Stated) {
        self.value_over(subject, metric, unit, value, None);
    }

    /// The value of one interval of that many seconds.
    pub(super) fn value_over(
        &mut self,
        subject: &str,
        metric: Metric,
        unit: Unit,
        value: Stated,
        seconds: Option<f64>,
    ) {
        if let Some(series) = self.find(subject, metric, unit) {
            series.push(value, seconds);
        }
    }

    /// The tool's own average.
    pub(super) fn own(&mut self, subject: &str, metric: Metric, unit: Unit, own: OwnAverage) {
        if let Some(series) = self.find(subject, metric, unit) {
            series.series.own = Some(own);
        }
    }

    /// The tool's own average of what its lines say, which name their ports where the average does not.
    pub(super) fn own_of_lines(&mut self, metric: Metric, unit: Unit, own: OwnAverage) {
        let is = |series: &Series| series.metric == metric && series.unit == unit && !series.subject.contains(' ');
        let line = self.series.iter().map(|building| &building.series).find(|series| is(series));
        let subject = line.map(|series| series.subject.clone()).unwrap_or_default();
        self.own(&subject, metric, unit, own);
    }

    /// A count over the whole run.
    pub(super) fn total(&mut self, subject: &str, metric: Metric, unit: Unit, count: Stated) {
        if self.imported.totals.len() >= self.room || subject.len() > MAX_TEXT {
            self.left_out += 1;
            return;
        }
        self.imported.totals.push(Total { subject: subject.to_owned(), metric, unit, count });
    }

    /// What one must know before using the figures; said once.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        let note: String = note.into().chars().filter(|character| !character.is_control()).collect();
        if self.imported.notes.len() < MAX_CONTEXT && !self.imported.notes.contains(&note) {
            self.imported.notes.push(note);
        }
    }

    /// How long the run took.
    pub(super) fn duration(&mut self, seconds: Stated) {
        self.imported.duration_s = Some(seconds);
    }

    /// A line of context that comes with the figures.
    pub(super) fn context(&mut self, text: &str) {
        if self.imported.context.len() < MAX_CONTEXT {
            self.imported.context.push(short(text.trim()));
        }
    }

    /// The block is of another format of the same family, as a later line shows.
    pub(super) fn set_format(&mut self, format: Format) {
        self.imported.format = format;
    }

    fn find(&mut self, subject: &str, metric: Metric, unit: Unit) -> Option<&mut Building> {
        let is = |building: &Building| {
            let series = &building.series;
            series.metric == metric && series.unit == unit && series.subject == subject
        };
        let next = self.cursor;
        if !self.series.get(next).is_some_and(is) {
            self.cursor = match self.series.iter().position(is) {
                Some(place) => place,
                None if self.series.len() < self.room && subject.len() <= MAX_TEXT => {
                    self.series.push(Building::new(subject, metric, unit));
                    self.series.len() - 1
                }
                None => {
                    self.left_out += 1;
                    return None;
                }
            };
        }
        let place = self.cursor;
        self.cursor = (place + 1) % self.series.len();
        self.series.get_mut(place)
    }

    fn finish(mut self) -> (Imported, u64) {
        let zeros_left_out = self.series.iter().any(|series| series.pushed > 0 && series.pushed < self.intervals);
        if zeros_left_out {
            self.note(
                "ambiguous: some rows are not in every interval: extended output leaves out rows that are 0, terse \
                 output shows rows of detail only on an error or after SIGQUIT; their means are over the intervals \
                 that show them",
            );
        }
        for building in std::mem::take(&mut self.series) {
            let (series, notes) = building.finish(self.imported.format);
            for note in notes {
                self.note(match note.strip_prefix(AMBIGUOUS) {
                    Some(note) => format!("{AMBIGUOUS}{}: {note}", series.name()),
                    None => format!("{}: {note}", series.name()),
                });
            }
            self.imported.series.push(series);
        }
        self.check_traffic();
        (self.imported, self.left_out)
    }

    fn check_traffic(&mut self) {
        let sent = |series: &&Series| series.metric == Metric::Xmit && !series.values.is_empty();
        let silent = self.imported.series.iter().any(|series| sent(&series))
            && self.imported.series.iter().filter(sent).all(|series| series.cost.is_none());
        if self.imported.format != Format::XdpTrafficgen {
            return;
        }
        self.note("xmit counts what the driver took, not what arrived");
        if silent {
            self.note("ambiguous: 0 xmit/s in every line: nothing was sent, or this is xdp-tools 1.5.2, which prints 0 while it sends");
        }
    }
}

/// A series under way, in memory that does not grow with the number of values.
struct Building {
    series: Series,
    pushed: u64,
    /// Intervals without packets before the first with any, and since the last.
    leading: Zeros,
    trailing: Zeros,
    first: Option<Interval>,
    last: Option<Interval>,
    /// The intervals between the first and the last.
    middle: Moments,
}

#[derive(Clone, Copy)]
struct Interval {
    value: f64,
    weight: f64,
}

/// Intervals in which nothing happened.
#[derive(Clone, Copy, Default)]
struct Zeros {
    count: u64,
    weight: f64,
}

impl Zeros {
    fn add(&mut self, weight: f64) {
        self.count += 1;
        self.weight += weight;
    }
}

impl Building {
    fn new(subject: &str, metric: Metric, unit: Unit) -> Self {
        let series = Series {
            subject: subject.to_owned(),
            metric,
            unit,
            values: Vec::new(),
            periods_s: Vec::new(),
            step: 0.0,
            summary: None,
            own: None,
            cost: None,
        };
        Self {
            series,
            pushed: 0,
            leading: Zeros::default(),
            trailing: Zeros::default(),
            first: None,
            last: None,
            middle: Moments::default(),
        }
    }

    fn push(&mut self, value: Stated, seconds: Option<f64>) {
        self.pushed += 1;
        let series = &mut self.series;
        series.step = if series.step > 0.0 { series.step.min(value.step) } else { value.step };
        if series.values.len() < Series::MAX_VALUES {
            series.values.push(value.value);
            series.periods_s.extend(seconds);
        }
        let interval = Interval { value: value.value, weight: seconds.unwrap_or(1.0) };
        match (self.first, value.value == 0.0) {
            (None, true) => self.leading.add(interval.weight),
            (Some(_), true) => self.trailing.add(interval.weight),
            (None, false) => self.first = Some(interval),
            (Some(_), false) => {
                if let Some(before) = self.last.replace(interval) {
                    self.middle.add(before);
                }
                self.middle.add_zeros(std::mem::take(&mut self.trailing));
            }
        }
    }

    fn finish(mut self, format: Format) -> (Series, Vec<String>) {
        // The first and last lines of these may be of incomplete intervals.
        let ramps = matches!(
            format,
            Format::XdpBench | Format::XdpTrafficgen | Format::XdpMonitor | Format::XdpSamples | Format::Xdpsock
        );
        let mut notes: Vec<String> = self.check_average(format).into_iter().collect();
        let mut left_out = 0;
        let ends = [("first", self.first), ("last", self.last)];
        let traffic = self.series.unit == Unit::PacketsPerSecond && self.series.metric.is_work();
        let whole = self.middle;
        for (which, interval) in ends {
            let Some(interval) = interval else { continue };
            if ramps && traffic && whole.count > 0 && interval.value < INCOMPLETE * whole.mean {
                let percent = 100.0 * interval.value / whole.mean;
                notes.push(format!("{which} interval left out: {percent:.0} % of the mean of those between"));
                left_out += 1;
            } else {
                self.middle.add(interval);
            }
        }
        if let (true, true, 0, Some(first), Some(last)) = (ramps, traffic, whole.count, self.first, self.last)
            && first.value.min(last.value) < INCOMPLETE * first.value.max(last.value)
        {
            notes.push("ambiguous: of its two intervals, one may be incomplete".into());
        }
        let zeros = self.leading.count + self.trailing.count;
        if traffic && self.first.is_some() && zeros > 0 {
            notes.push(format!("left out where no packet came before the first or after the last: {zeros}"));
            left_out += zeros;
        } else {
            self.middle.add_zeros(self.leading);
            self.middle.add_zeros(self.trailing);
        }
        if self.series.periods_s.len() != self.series.values.len() {
            self.series.periods_s.clear();
        }
        self.series.summary = self.middle.summary(left_out);
        self.series.cost = self.series.find_cost();
        (self.series, notes)
    }
}

impl Building {
    /// Says where the tool's own average is far from that of its intervals.
    fn check_average(&self, format: Format) -> Option<String> {
        let own = self.series.own.filter(|own| own.samples.is_none())?;
        let mut all = self.middle;
        [self.first, self.last].into_iter().flatten().for_each(|interval| all.add(interval));
        [self.leading, self.trailing].into_iter().for_each(|zeros| all.add_zeros(zeros));
        let ratio = own.mean.value / all.mean;
        if all.count < 2 || !ratio.is_finite() || (ratio - 1.0).abs() <= AGREE {
            return None;
        }
        let version = match format {
            Format::XdpBench | Format::XdpTrafficgen | Format::XdpMonitor => {
                " (xdp-tools before 1.5.2 counts one second an interval, whatever its length)"
            }
            _ => "",
        };
        Some(format!(
            "ambiguous: the tool's own average {} is {ratio:.2} times the mean of its {} intervals{version}",
            own.mean, all.count
        ))
    }
}

/// Weighted mean and variance in one pass (West, Communications of the ACM 22, 1979).
#[derive(Clone, Copy, Default)]
struct Moments {
    count: u64,
    weight: f64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Moments {
    fn add(&mut self, Interval { value, weight }: Interval) {
        (self.min, self.max) =
            if self.count == 0 { (value, value) } else { (self.min.min(value), self.max.max(value)) };
        self.count += 1;
        self.weight += weight;
        let above = value - self.mean;
        self.mean += above * weight / self.weight;
        self.squares += weight * above * (value - self.mean);
    }

    fn add_zeros(&mut self, zeros: Zeros) {
        for _ in 0..zeros.count {
            self.add(Interval { value: 0.0, weight: zeros.weight / zeros.count as f64 });
        }
    }

    fn summary(&self, left_out: u64) -> Option<Summary> {
        let spare = self.count as f64 - 1.0;
        let sd = (spare > 0.0).then(|| (self.squares / self.weight * self.count as f64 / spare).sqrt());
        (self.count > 0).then_some(Summary {
            intervals: self.count,
            left_out,
            mean: self.mean,
            min: self.min,
            max: self.max,
            sd,
        })
    }
}
