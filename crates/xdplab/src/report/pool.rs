//! Page-pool paths of this process, and published figures beside them.

use super::text::{aligned, lines, table};
use super::view::{Finding, pool_notes};
use crate::pool::{self, Checked, PoolCase};
use crate::published::{GROUPS, KERNEL_POOL};

/// Table and control of one group.
#[must_use]
pub fn pool_text(case: &PoolCase) -> String {
    let finding = Finding::of_pool(case);
    format!("{}; {}\n{}\n{}", finding.title, lines(&finding.set_up), table(&finding.table), lines(&pool_notes(case)))
}

/// The bounds the pool is built to, and whether this run kept to them.
#[must_use]
pub fn pool_bounds_text(bounds: &[Checked]) -> String {
    let row = |checked: &Checked| {
        let number = |value: f64| format!("{value:.2}");
        let range = checked.range.map_or(String::new(), |[low, high]| format!("[{low:.2}, {high:.2}]"));
        let outcome = match checked.holds {
            Some(true) => "holds",
            Some(false) => "missed",
            None => "not measured",
        };
        let value = checked.value.map_or("n/a".into(), number);
        vec![format!("  {}", checked.bound), checked.limit.clone(), value, range, outcome.into()]
    };
    let header = ["bounds of this run", "limit", "median", "range of the rounds", ""];
    let mut text = aligned(&header, &[0, 4], bounds.iter().map(row).collect());
    if !pool::HAS_PEERS {
        text += "\nother crates' pools are not in this build; to compare with them:\n\
                 cargo run --release --features pool-peers -- pool bench\n";
    }
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
