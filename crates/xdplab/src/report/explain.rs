//! Where the time goes, as text for a terminal.

use super::text::aligned;
use crate::explain::Part;
use crate::reading::Reading;

/// A row for each part.
#[must_use]
pub fn explain_text(parts: &[Part]) -> String {
    let row = |part: &Part| match &part.ns {
        Reading::Known(ns) => vec![part.what.clone(), format!("{ns:.2}"), part.source.clone()],
        Reading::NotAvailable { why } => vec![part.what.clone(), "n/a".into(), format!("{}: {why}", part.source)],
    };
    aligned(&["where the time goes", "ns/packet", "from"], &[0, 2], parts.iter().map(row).collect())
}
