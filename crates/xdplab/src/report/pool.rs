//! The demo without privileges: page-pool paths of this process, and published rates in nanoseconds.

use super::text::{aligned, control_line, cost_table};
use crate::host::Environment;
use crate::pool::PoolCase;
use crate::published::GROUPS;
use crate::stats::Level;

/// Environment, table, control, published rates.
#[must_use]
pub fn pool_text(environment: &Environment, case: &PoolCase, level: Level) -> String {
    let mut text = format!(
        "{}\npage-pool in this process: one allocation and one return of a frame, {:.1} s, {} slices, seed {}\n\n",
        environment.one_line(),
        case.seconds,
        case.slices,
        case.seed
    );
    text += &cost_table("path", "ns/frame", "M/s", level, &case.costs, &case.comparisons);
    text += "\n";
    text += &control_line(case.control.as_ref(), case.costs.first().map_or("", |cost| &cost.variant));
    text += "\npublished rates, read again in ns per packet\n\n";
    text += &published();
    text
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
