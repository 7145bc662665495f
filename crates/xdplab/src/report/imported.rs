//! Imported results as text for a terminal, with what was not understood.

use super::text::{aligned, table};
use super::view::{imported_table, origin, without_cost};
use crate::import::{Import, Imported};

/// A table of all costs first, then for each block what else it holds and what one must know.
#[must_use]
pub fn import_text(import: &Import) -> String {
    let costs = imported_table(&import.blocks);
    let mut text = if costs.rows.is_empty() { String::new() } else { table(&costs) };
    for block in &import.blocks {
        text += &details(block);
    }
    text + &leftovers(import)
}

/// What has no cost, and the notes.
fn details(block: &Imported) -> String {
    let mut text = format!("\n{}\n", origin(block));
    for line in &block.context {
        text += &format!("  | {line}\n");
    }
    let rows = without_cost(block);
    if !rows.is_empty() {
        for line in aligned(&["", "", ""], &[0, 2], rows.into_iter().map(Vec::from).collect()).lines() {
            text += &if line.trim().is_empty() { String::new() } else { format!("  {line}\n") };
        }
    }
    for note in &block.notes {
        text += &format!("  note: {note}\n");
    }
    text
}

fn leftovers(import: &Import) -> String {
    let unknown = &import.not_understood;
    let mut text = String::new();
    if import.left_out > 0 {
        text += &format!("\n{} results or series left out: there are too many\n", import.left_out);
    }
    if unknown.count > 0 {
        text += &format!("\n{} lines not understood:\n", unknown.count);
        for line in &unknown.first {
            text += &format!("  {}:{}: {}\n", line.file, line.line, line.text);
        }
        let more = unknown.count.saturating_sub(unknown.first.len() as u64);
        if more > 0 {
            text += &format!("  and {more} more\n");
        }
    }
    text
}
