//! TCP streams through a chain of network namespaces.

use super::super::table::{Cell, Column, Table};
use super::{Finding, Kind, plain};
use crate::reading::Reading;
use crate::stream::StreamCase;

impl Finding {
    /// What is told of streams.
    #[must_use]
    pub fn of_stream(case: &StreamCase) -> Self {
        let plan = &case.plan;
        let missing = match &case.outcome.goodput_bps {
            Reading::Known(_) => None,
            Reading::NotAvailable { why } => Some(plain(&format!("no goodput: {why}"))),
        };
        Self {
            kind: Kind::Stream,
            title: plain(&format!("{} TCP streams through the {}", plan.streams, plan.forwarding)),
            set_up: vec![plain(&format!(
                "three network namespaces in a row, {} queues, MTU {}, client on CPU {}, server on CPU {}, {:.1} s",
                plan.queues, plan.mtu, plan.client_cpu, plan.server_cpu, plan.seconds
            ))],
            table: Table { columns: columns(), rows: vec![row(case)] },
            notes: missing.into_iter().collect(),
            guards: Vec::new(),
            charts: Vec::new(),
        }
    }
}

fn columns() -> Vec<Column> {
    vec![
        Column::words("variant", "variant"),
        Column::numbers("Gbit/s", "goodput_gbps"),
        Column::numbers("retransmits", "retransmits"),
        Column::numbers("client ns/B", "client_cpu_ns_per_byte"),
        Column::numbers("server ns/B", "server_cpu_ns_per_byte"),
        Column::numbers("all CPUs ns/B", "machine_busy_ns_per_byte").dispensable(1),
        Column::numbers("packets by XDP", "packets_by_xdp").dispensable(2),
    ]
}

fn row(case: &StreamCase) -> Vec<Cell> {
    let (sent, received) = (&case.outcome.sent, case.outcome.received.known());
    let per_byte = |ns: Option<f64>| ns.map_or(Cell::Missing, |ns| Cell::number(ns, 3));
    let machine = sent.machine.known().filter(|_| sent.bytes > 0);
    let by_xdp = case.forwarded.as_ref().map(|end| end.total.received.as_ref().map_or(0, |received| received.packets));
    vec![
        Cell::text(case.plan.forwarding.to_string()),
        case.outcome.goodput_bps.known().map_or(Cell::Missing, |bps| Cell::number(bps / 1e9, 3)),
        case.outcome.retransmits.map_or(Cell::Missing, Cell::Count),
        per_byte(sent.cpu_ns_per_byte),
        per_byte(received.and_then(|received| received.cpu_ns_per_byte)),
        per_byte(machine.map(|machine| machine.busy_ns as f64 / sent.bytes as f64)),
        by_xdp.map_or(Cell::Empty, Cell::Count),
    ]
}
