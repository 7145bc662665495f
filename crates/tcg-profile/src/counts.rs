//! The counters of blocks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// A block's counter. It lives as long as the process, since translated code adds to it.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// Instructions executed so far.
    pub(crate) instructions: AtomicU64,
    /// What they were at the last begin mark.
    at_begin: AtomicU64,
}

/// Counters by where blocks start and how many instructions they have: a block that is translated again goes on counting.
#[derive(Debug)]
pub(crate) struct Counts(BTreeMap<(u64, usize), &'static Counter>);

impl Counts {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The counter of a block.
    pub(crate) fn of(&mut self, address: u64, instructions: usize) -> &'static Counter {
        self.0.entry((address, instructions)).or_insert_with(|| Box::leak(Box::default()))
    }

    /// Counts from here.
    pub(crate) fn begin(&self) {
        for counter in self.0.values() {
            counter.at_begin.store(counter.instructions.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// What was executed since the begin, as text.
    pub(crate) fn section(&self) -> String {
        let mut by_address: BTreeMap<u64, u64> = BTreeMap::new();
        for ((address, _), counter) in &self.0 {
            let counted = counter.instructions.load(Ordering::Relaxed) - counter.at_begin.load(Ordering::Relaxed);
            if counted > 0 {
                *by_address.entry(*address).or_default() += counted;
            }
        }
        by_address.into_iter().fold("mark\n".to_owned(), |mut text, (address, counted)| {
            // Writing to a string does not fail.
            writeln!(text, "{address:x} {counted}").unwrap_or_default();
            text
        })
    }
}

/// Which mark an instruction is, if it is one: 0 the begin, 1 the end.
pub(crate) fn mark(instruction: &[u8]) -> Option<usize> {
    let tail = instruction.strip_prefix(&[0x0f, 0x1f, 0x84, 0x00])?;
    crate::MARKS.iter().position(|mark| mark == tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_between_the_marks_is_told_by_address() {
        let mut counts = Counts::new();
        let run = |counter: &Counter, instructions| counter.instructions.fetch_add(instructions, Ordering::Relaxed);
        run(counts.of(0x20, 4), 400);
        counts.begin();
        run(counts.of(0x20, 4), 8);
        run(counts.of(0x20, 6), 6);
        run(counts.of(0x10, 1), 1);
        counts.of(0x30, 9);
        assert_eq!(counts.section(), "mark\n10 1\n20 14\n");
        counts.begin();
        assert_eq!(counts.section(), "mark\n");
    }

    #[test]
    fn the_marks_are_those_of_the_guest() {
        assert_eq!(mark(&[0x0f, 0x1f, 0x84, 0x00, 0x42, 0x45, 0x58, 0x4c]), Some(0));
        assert_eq!(mark(&[0x0f, 0x1f, 0x84, 0x00, 0x45, 0x4e, 0x58, 0x4c]), Some(1));
        assert_eq!(mark(&[0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0]), None, "a compiler's NOP");
        assert_eq!(mark(&[0x90]), None);
    }
}
