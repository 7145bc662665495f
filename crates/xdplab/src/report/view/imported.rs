//! What other tools printed.

use super::super::table::{Cell, Column, Table};
use super::{Finding, Kind, plain};
use crate::import::{Cost, Imported, Series};

/// What the rounding of figures as written leaves open is shown from this on, in ns.
const SHOWN_ROUNDING_NS: f64 = 0.005;

impl Finding {
    /// What is told of imported results.
    #[must_use]
    pub fn of_imported(blocks: &[Imported]) -> Self {
        let notes = blocks.iter().flat_map(|block| {
            let figures = without_cost(block).into_iter().map(|[name, figure, unit]| format!("{name} {figure} {unit}"));
            figures.chain(block.notes.clone()).map(|note| plain(&format!("{}: {note}", block.title())))
        });
        Self {
            kind: Kind::Imported,
            title: "imported results".into(),
            set_up: blocks.iter().map(|block| plain(&origin(block))).collect(),
            table: cost_table(blocks),
            notes: notes.collect(),
            guards: Vec::new(),
            charts: Vec::new(),
        }
    }
}

/// Who printed a block, and where it was found.
pub(in super::super) fn origin(block: &Imported) -> String {
    format!("{} [{}, {}:{}]", block.title(), block.format, block.file, block.line)
}

/// Every cost.
pub(in super::super) fn cost_table(blocks: &[Imported]) -> Table {
    let columns = vec![
        Column::words("result", "result"),
        Column::words("of", "variant"),
        Column::numbers("ns", "ns"),
        Column::numbers("±", "rounding_ns"),
        Column::words("per", "per"),
        Column::numbers("as stated", "stated").dispensable(1),
        Column::words("from", "from").dispensable(3),
        Column::words("spread ns", "spread_ns").dispensable(2),
    ];
    let rows = blocks
        .iter()
        .flat_map(|block| block.series.iter().filter_map(move |series| Some(row(block, series, series.cost?))));
    Table { columns, rows: rows.collect() }
}

fn row(block: &Imported, series: &Series, cost: Cost) -> Vec<Cell> {
    let rounding_shows = cost.rounding_ns >= SHOWN_ROUNDING_NS;
    let figure = series.figure().map(|figure| format!("{figure} {}", series.unit));
    vec![
        Cell::text(block.title()),
        Cell::text(series.name()),
        Cell::number(cost.ns, 2),
        if rounding_shows { Cell::number(cost.rounding_ns, 2) } else { Cell::Empty },
        Cell::text(if series.unit.is_of_packets() { "packet" } else { "operation" }),
        figure.map_or(Cell::Empty, Cell::text),
        Cell::text(source(block, series)),
        Cell::text(spread(&cost)),
    ]
}

fn source(block: &Imported, series: &Series) -> String {
    match (series.summary, series.own) {
        (_, Some(own)) if own.samples.is_some() => format!("average of {} samples", own.samples.unwrap_or(0)),
        (Some(summary), own) if summary.intervals > 1 || own.is_none() => {
            let left_out =
                if summary.left_out > 0 { format!(" ({} left out)", summary.left_out) } else { String::new() };
            format!("{} value{}{left_out}", summary.intervals, if summary.intervals == 1 { "" } else { "s" })
        }
        _ => block.duration_s.map_or("its average".into(), |seconds| format!("average over {seconds} s")),
    }
}

fn spread(cost: &Cost) -> String {
    match cost.spread {
        Some(spread) => match spread.high_ns {
            Some(high) => format!("{:.2} to {high:.2}", spread.low_ns),
            None => format!("{:.2} to no packet", spread.low_ns),
        },
        None => "unknown".into(),
    }
}

/// Figures that are no cost: what each is of, its value as stated and its unit.
pub(in super::super) fn without_cost(block: &Imported) -> Vec<[String; 3]> {
    let series = block.series.iter().filter(|series| series.cost.is_none());
    let series =
        series.filter_map(|series| Some([series.name(), series.figure()?.to_string(), series.unit.to_string()]));
    let totals = block.totals.iter().map(|total| {
        let name = format!("{} {} in all", total.subject, total.metric);
        [name.trim().to_owned(), total.count.to_string(), total.unit.to_string()]
    });
    series.chain(totals).collect()
}
