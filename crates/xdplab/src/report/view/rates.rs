//! Packets of one program, counted at each stage.

use super::super::table::{Cell, Column, Table};
use super::{Accounts, Chart, Finding, Kind, plain};
use crate::live::Interval;
use crate::observe::PagePools;
use crate::rates::RatesCase;
use crate::reading::Reading;

impl Finding {
    /// What is told of rates.
    #[must_use]
    pub fn of_rates(case: &RatesCase) -> Self {
        let plan = &case.plan;
        let limiter = case.live.end.as_ref().and_then(|end| end.limiter.as_ref());
        let ledger = case.live.end.iter().flat_map(|end| &end.ledger).filter_map(Reading::known);
        let open = ledger.filter(|account| account.residual != 0);
        let notes = limiter
            .map(|limiter| format!("limited by {limiter}"))
            .into_iter()
            .chain(open.map(|account| format!("{}: {} packets are not accounted for", account.of, account.residual)))
            .chain(why_missing(&case.page_pools));
        Self {
            kind: Kind::Rates,
            title: plain(&format!("rates of {}", plan.program)),
            set_up: vec![plain(&format!(
                "{} XDP, {} queues, MTU {}, {}, {} generator threads, {:.1} s",
                plan.xdp_mode, plan.queues, plan.mtu, plan.placement, plan.threads, plan.seconds
            ))],
            table: Table { columns: columns(), rows: vec![row(case)] },
            notes: notes.map(|note| plain(&note)).collect(),
            guards: Vec::new(),
            charts: charts(case),
        }
    }
}

/// What became of the packets.
fn charts(case: &RatesCase) -> Vec<Chart> {
    let accounts = case.live.end.as_ref().map_or(Vec::new(), |end| end.ledger.clone());
    if accounts.is_empty() { Vec::new() } else { vec![Chart::Accounts(Accounts { title: "Packets", accounts })] }
}

fn columns() -> Vec<Column> {
    vec![
        Column::words("variant", "variant"),
        Column::numbers("Rx Mpps", "rx_mpps"),
        Column::numbers("ns/packet", "rx_ns_per_packet"),
        Column::numbers("dropped Mpps", "dropped_mpps"),
        Column::numbers("onwards Mpps", "onwards_mpps"),
        Column::numbers("packets a bulk", "packets_per_bulk"),
        Column::numbers("new pages %", "new_pages_percent").dispensable(1),
        Column::numbers("pages leaked", "pages_leaked").dispensable(2),
    ]
}

fn row(case: &RatesCase) -> Vec<Cell> {
    let total = case.live.end.as_ref().map(|end| &end.total);
    let received = total.and_then(|total| total.received.as_ref());
    let pps = received.and_then(|received| received.pps).map_or(Cell::Missing, |pps| Cell::number(pps.mpps(), 3));
    let ns = received.and_then(|received| received.ns_per_packet).map_or(Cell::Missing, |ns| Cell::number(ns.0, 2));
    let [dropped, onwards, bulk] = match total.and_then(onwards) {
        None => [Cell::Empty, Cell::Empty, Cell::Empty],
        Some(Reading::NotAvailable { .. }) => [Cell::Missing, Cell::Missing, Cell::Missing],
        Some(Reading::Known(Onwards { dropped, onwards, bulk })) => {
            let bulk = bulk.map_or(Cell::Missing, |bulk| Cell::number(bulk, 2));
            [Cell::number(dropped, 3), Cell::number(onwards, 3), bulk]
        }
    };
    let [fresh, leaked] = pages(case);
    vec![Cell::text(case.plan.program.to_string()), pps, ns, dropped, onwards, bulk, fresh, leaked]
}

/// Packets that a program handed on, in millions a second: those that found no room or were dropped behind it, and those that
/// a driver took or a thread handled.
struct Onwards {
    dropped: f64,
    onwards: f64,
    /// In a call of a driver, or of the queue of a CPU.
    bulk: Option<f64>,
}

/// Nothing where the program hands none on.
fn onwards(total: &Interval) -> Option<Reading<Onwards>> {
    let mpps = |packets: u64, period_s: f64| packets as f64 / period_s / 1e6;
    let bulk = |packets: u64, bulks: u64| (bulks > 0).then(|| packets as f64 / bulks as f64);
    if let Some(cpumap) = &total.cpumap {
        return Some(cpumap.enqueued.as_ref().and_then(|enqueued| {
            cpumap.kthreads.as_ref().map(|kthreads| {
                let (queue, threads) = (enqueued.total(), kthreads.total());
                Onwards {
                    dropped: mpps(queue.drops, enqueued.period_s) + mpps(threads.drops, kthreads.period_s),
                    onwards: mpps(threads.processed - threads.drops, kthreads.period_s),
                    bulk: bulk(queue.processed, queue.bulks),
                }
            })
        }));
    }
    let xmit = total.xmit.as_ref()?;
    Some(xmit.as_ref().map(|xmit| Onwards {
        dropped: mpps(xmit.total.drops, xmit.period_s),
        onwards: mpps(xmit.total.sent, xmit.period_s),
        bulk: bulk(xmit.total.sent + xmit.total.drops, xmit.total.bulks),
    }))
}

/// Pages that page pools took from the page allocator, by packets generated, and those that they had still after teardown.
fn pages(case: &RatesCase) -> [Cell; 2] {
    let Reading::Known(PagePools { device, generator }) = case.page_pools else {
        return [Cell::Missing, Cell::Missing];
    };
    let (held, released) = (device.held + generator.held, device.released + generator.released);
    let generated: u64 = case.generated.iter().sum();
    let fresh = if generated == 0 { Cell::Missing } else { Cell::number(100.0 * held as f64 / generated as f64, 2) };
    [fresh, Cell::number(held as f64 - released as f64, 0)]
}

fn why_missing(pools: &Reading<PagePools>) -> Option<String> {
    match pools {
        Reading::Known(_) => None,
        Reading::NotAvailable { why } => Some(format!("pages are not counted: {why}")),
    }
}
