//! Page-pool paths of this process, and published figures beside them.

use super::text::{aligned, control_line, cost_table};
use crate::pool::PoolCase;
use crate::published::{GROUPS, KERNEL_POOL};
use crate::stats::Level;

/// Table and control of one group.
#[must_use]
pub fn pool_text(case: &PoolCase, level: Level) -> String {
    let mut text = format!(
        "page-pool in this process: {}; {:.1} s, {} slices, seed {}\n\n",
        case.group.operation(),
        case.seconds,
        case.slices,
        case.seed
    );
    text += &cost_table("path", "ns", "M/s", level, &case.costs, &case.comparisons);
    text += "\n";
    text += &control_line(case.control.as_ref(), case.costs.first().map_or("", |cost| &cost.variant));
    text
}

/// What kernel developers measured of the kernel's page_pool: one allocation and one return.
#[must_use]
pub fn kernel_pool_text() -> String {
    let rows = KERNEL_POOL.map(|(machine, fast, ring, slow)| {
        let ns = |value: f64| format!("{value:.2}");
        vec![format!("  {machine}"), ns(fast), ns(ring), ns(slow)]
    });
    let header = ["the kernel's page_pool, published, ns", "own cache", "ptr_ring", "slow path"];
    aligned(&header, &[0], rows.to_vec())
}

/// Published rates of XDP, read again.
#[must_use]
pub fn published_text() -> String {
    format!("published rates, read again in ns per packet\n\n{}", published())
}

fn published() -> String {
    let mut rows = Vec::new();
    for (group, rates) in GROUPS {
        rows.push(vec![group.to_owned()]);
        let first = rates.first().and_then(|first| first.rate.to_nanos());
        for (index, published) in rates.iter().enumerate() {
            let Some((ns, first)) = published.rate.to_nanos().zip(first) else { continue };
            let (delta, percent) = (ns.0 - first.0, 100.0 * (published.rate.0 / rates[0].rate.0 - 1.0));
            let change = if index == 0 {
                [String::new(), String::new()]
            } else {
                [format!("{delta:+.2}"), format!("{percent:+.1}")]
            };
            let [delta, percent] = change;
            rows.push(vec![
                format!("  {}", published.what),
                format!("{:.2}", ns.0),
                delta,
                format!("{:.3}", published.rate.mpps()),
                percent,
            ]);
        }
    }
    aligned(&["", "ns/packet", "Δ ns", "Mpps", "Δ % of Mpps"], &[0], rows)
}
