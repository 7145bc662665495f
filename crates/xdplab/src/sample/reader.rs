//! Reads timed slices out of the kernel's ring.

use std::ops::AddAssign;

use aya::maps::{MapData, PerCpuArray, RingBuf};

use super::Schedule;
use crate::bpf;
use crate::error::Result;
use crate::stats::Slice;

/// Bytes of `struct slice` in `bpf/dispatcher.bpf.c`.
const SLICE_LEN: usize = 32;

/// What the dispatcher counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatcherCounts {
    /// Packets of each possible CPU.
    pub cpu_packets: Vec<u64>,
    /// Slices that were timed and found the ring full.
    pub lost: u64,
    /// Packets whose program was not in the table; they got `XDP_ABORTED`.
    pub misses: u64,
}

impl AddAssign<&Self> for DispatcherCounts {
    fn add_assign(&mut self, other: &Self) {
        self.cpu_packets.resize(other.cpu_packets.len().max(self.cpu_packets.len()), 0);
        self.cpu_packets.iter_mut().zip(&other.cpu_packets).for_each(|(sum, packets)| *sum += packets);
        self.lost += other.lost;
        self.misses += other.misses;
    }
}

/// `struct state` in `bpf/dispatcher.bpf.c`: seen and edge, program and index, position, start, lost, misses, before.
type State = [u64; 7];

/// The reading end of the dispatcher's ring.
pub struct SliceReader {
    ring: RingBuf<MapData>,
    states: PerCpuArray<MapData, State>,
    schedule: Schedule,
}

impl SliceReader {
    pub(crate) fn new(ring: RingBuf<MapData>, states: PerCpuArray<MapData, State>, schedule: Schedule) -> Self {
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

    /// What the dispatcher counted so far.
    ///
    /// # Errors
    /// The map could not be read.
    pub fn counts(&self) -> Result<DispatcherCounts> {
        let states = self.states.get(&0, 0).map_err(|error| bpf::map_error("read the dispatcher's state", &error))?;
        let seen = |state: &State| u64::from(first_half(state[0]));
        Ok(DispatcherCounts {
            cpu_packets: states.iter().map(|state| state[6] + seen(state)).collect(),
            lost: states.iter().map(|state| state[4]).sum(),
            misses: states.iter().map(|state| state[5]).sum(),
        })
    }
}

/// The 32-bit field that comes first in memory among the two of a 64-bit word.
fn first_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
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
