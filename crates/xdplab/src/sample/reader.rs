//! Reads timed slices out of the kernel's ring.

use aya::maps::{MapData, PerCpuArray, RingBuf};

use super::Schedule;
use crate::bpf;
use crate::error::Result;
use crate::stats::Slice;

/// Bytes of `struct slice` in `bpf/dispatcher.bpf.c`.
const SLICE_LEN: usize = 32;

/// What the dispatcher could not do, summed over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceLoss {
    /// Slices that were timed and found the ring full.
    pub lost: u64,
    /// Packets whose program was not in the table; they got `XDP_ABORTED`.
    pub misses: u64,
}

/// The reading end of the dispatcher's ring.
pub struct SliceReader {
    ring: RingBuf<MapData>,
    states: PerCpuArray<MapData, [u64; 6]>,
    schedule: Schedule,
}

impl SliceReader {
    pub(crate) fn new(ring: RingBuf<MapData>, states: PerCpuArray<MapData, [u64; 6]>, schedule: Schedule) -> Self {
        Self { ring, states, schedule }
    }

    /// Takes every slice that is there. Call it every few tens of milliseconds: the ring holds about 100,000.
    pub fn drain(&mut self, into: &mut Vec<Slice>) {
        while let Some(item) = self.ring.next() {
            if let Some(slice) = parse(&item, &self.schedule) {
                into.push(slice);
            }
        }
    }

    /// What the dispatcher could not do so far.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn loss(&self) -> Result<SliceLoss> {
        let [.., lost, misses] = bpf::sum_per_cpu(&self.states, 0, "the dispatcher's state")?;
        Ok(SliceLoss { lost, misses })
    }
}

fn parse(bytes: &[u8], schedule: &Schedule) -> Option<Slice> {
    let bytes: &[u8; SLICE_LEN] = bytes.try_into().ok()?;
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
    let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at * 4 + byte]));
    let (entry, block) = schedule.at(word(2));
    Some(Slice {
        start_ns: word(0),
        stop_ns: word(1),
        packets: half(7),
        cpu: u16::try_from(half(6)).ok()?,
        variant: entry.variant,
        copy: entry.copy,
        slot: entry.slot,
        block: u32::try_from(block).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_read_field_by_field_and_given_its_place_in_the_schedule() {
        let schedule = Schedule::draw(2, 2, 1).unwrap();
        let mut bytes = Vec::new();
        bytes.extend(1000u64.to_ne_bytes());
        bytes.extend(3000u64.to_ne_bytes());
        bytes.extend(9u64.to_ne_bytes());
        bytes.extend(1u32.to_ne_bytes());
        bytes.extend(1024u32.to_ne_bytes());
        let slice = parse(&bytes, &schedule).unwrap();
        let entry = schedule.entries()[9];
        assert_eq!((slice.start_ns, slice.stop_ns, slice.cpu, slice.packets), (1000, 3000, 1, 1024));
        assert_eq!((slice.variant, slice.copy, slice.slot, slice.block), (entry.variant, entry.copy, entry.slot, 2));
    }

    #[test]
    fn bytes_of_another_length_are_no_slice() {
        assert!(parse(&[0; 31], &Schedule::draw(1, 1, 1).unwrap()).is_none());
    }
}
