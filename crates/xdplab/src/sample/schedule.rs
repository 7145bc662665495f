//! The schedule of a run, drawn beforehand from a seed.
//!
//! A *block* gives every copy of every variant exactly one slice, in random order, so that variants are compared with
//! neighbours in time and drift cancels. A *slot* is a place in the kernel's table of programs; from block to block the copies
//! move on by one slot, so that every copy visits every slot equally often and no place in the table favours a variant.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use crate::error::{Error, Result};

/// One slice of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which variant.
    pub variant: u16,
    /// Which of the variant's copies.
    pub copy: u16,
    /// The slot from which the kernel takes it.
    pub slot: u16,
    /// Index into the kernel's program table: `rotation * slots + slot`.
    pub program: u32,
}

/// Whose turn it is, slice by slice; the kernel walks it in a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    variants: u16,
    copies: u16,
    entries: Vec<Entry>,
}

impl Schedule {
    /// About how many slices a schedule holds before it starts anew.
    const LENGTH: usize = 1 << 12;
    /// The most copies of all variants together: the program table has the square of this many entries.
    pub const MAX_SLOTS: u16 = 64;

    /// Draws the schedule of `variants` variants with `copies` copies each. The number of blocks is a multiple of the number
    /// of slots, which makes the visits to slots equal.
    ///
    /// # Errors
    /// There is nothing to schedule, or more than [`Self::MAX_SLOTS`] copies in all.
    pub fn draw(variants: u16, copies: u16, seed: u64) -> Result<Self> {
        let slots =
            variants.checked_mul(copies).filter(|slots| (1..=Self::MAX_SLOTS).contains(slots)).ok_or_else(|| {
                Error::usage(
                    format!("schedule {variants} variants with {copies} copies each"),
                    format!("1 to {} copies fit in all", Self::MAX_SLOTS),
                )
                .remedy("compare fewer variants at once, or load fewer copies of each")
            })?;
        let rounds = (Self::LENGTH / usize::from(slots).pow(2)).max(1);
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut order: Vec<u16> = (0..slots).collect();
        let mut entries = Vec::new();
        for _ in 0..rounds {
            for rotation in 0..slots {
                order.shuffle(&mut random);
                entries.extend(order.iter().map(|&slot| Self::entry(slot, rotation, slots, variants)));
            }
        }
        Ok(Self { variants, copies, entries })
    }

    /// What stands in `slot` after `rotation` moves.
    fn entry(slot: u16, rotation: u16, slots: u16, variants: u16) -> Entry {
        let occupant = (slot + rotation) % slots;
        let program = u32::from(rotation) * u32::from(slots) + u32::from(slot);
        Entry { variant: occupant % variants, copy: occupant / variants, slot, program }
    }

    /// The number of slots: all copies of all variants.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.variants * self.copies
    }

    /// The slices in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The kernel's program table: for each index, the variant and the copy that belong there.
    #[must_use]
    pub fn table(&self) -> Vec<(u16, u16)> {
        let slots = self.slots();
        (0..slots)
            .flat_map(|rotation| (0..slots).map(move |slot| (slot, rotation)))
            .map(|(slot, rotation)| Self::entry(slot, rotation, slots, self.variants))
            .map(|entry| (entry.variant, entry.copy))
            .collect()
    }

    /// The entry and the block of the slice that a CPU began as its `position`th.
    #[must_use]
    pub fn at(&self, position: u64) -> (Entry, u64) {
        let length = self.entries.len() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of a length in memory")]
        (self.entries[(position % length) as usize], position / u64::from(self.slots()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_block_has_every_copy_once_and_every_copy_visits_every_slot_equally_often(
            variants in 1u16..7, copies in 1u16..6, seed: u64,
        ) {
            let schedule = Schedule::draw(variants, copies, seed).unwrap();
            let slots = usize::from(schedule.slots());
            let mut visits = BTreeMap::new();
            for block in schedule.entries().chunks(slots) {
                let mut seen: Vec<_> = block.iter().map(|entry| (entry.variant, entry.copy)).collect();
                seen.sort_unstable();
                seen.dedup();
                prop_assert_eq!(seen.len(), slots);
                for entry in block {
                    *visits.entry((entry.variant, entry.copy, entry.slot)).or_insert(0) += 1;
                }
            }
            let counts: Vec<i32> = visits.into_values().collect();
            prop_assert_eq!(counts.len(), slots * slots);
            prop_assert!(counts.iter().all(|count| *count == counts[0]));
        }

        #[test]
        fn the_table_holds_what_the_entries_point_to(variants in 1u16..7, copies in 1u16..6, seed: u64) {
            let schedule = Schedule::draw(variants, copies, seed).unwrap();
            let table = schedule.table();
            for entry in schedule.entries() {
                prop_assert_eq!(table[entry.program as usize], (entry.variant, entry.copy));
            }
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_schedule_and_another_seed_another() {
        let draw = |seed| Schedule::draw(3, 4, seed).unwrap();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn nothing_to_schedule_or_too_much_is_refused() {
        assert!(Schedule::draw(0, 4, 1).is_err());
        assert!(Schedule::draw(9, 8, 1).unwrap_err().to_string().contains("1 to 64 copies fit in all"));
        assert!(Schedule::draw(u16::MAX, u16::MAX, 1).is_err());
    }

    #[test]
    fn a_position_past_the_end_starts_the_schedule_anew_in_a_later_block() {
        let schedule = Schedule::draw(2, 2, 1).unwrap();
        let length = schedule.entries().len() as u64;
        let (entry, block) = schedule.at(length + 5);
        assert_eq!((entry, block), (schedule.entries()[5], length / 4 + 1));
    }
}
