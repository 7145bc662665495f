//! The dispatcher with all copies of all variants behind it.

use std::os::fd::BorrowedFd;

use aya::Ebpf;
use aya::maps::{Array, MapData, ProgramArray, RingBuf};
use aya::programs::{ProgramFd, Xdp};

use super::{Counts, DutProgram, ProgramSpec};
use crate::bpf;
use crate::error::{Error, Result};
use crate::sample::{Schedule, SliceReader};

/// What can stand behind the dispatcher.
pub trait Occupant: Send + Sync {
    /// The loaded program.
    fn program_fd(&self) -> &ProgramFd;

    /// What it counted: for each RX queue, each possible CPU.
    ///
    /// # Errors
    /// The counters could not be read.
    fn counts(&self) -> Result<Vec<Vec<Counts>>>;
}

impl Occupant for DutProgram {
    fn program_fd(&self) -> &ProgramFd {
        DutProgram::program_fd(self)
    }

    fn counts(&self) -> Result<Vec<Vec<Counts>>> {
        DutProgram::counts(self)
    }
}

/// A dispatcher ready to be attached, with its programs loaded and its schedule filled in.
pub struct SlicedDevice {
    object: Ebpf,
    occupants: Vec<Vec<Box<dyn Occupant>>>,
    _programs: ProgramArray<MapData>,
    _schedule: Array<MapData, u32>,
}

impl SlicedDevice {
    /// Loads `schedule`'s copies of each variant, each by itself, so that each lies elsewhere in memory.
    ///
    /// `slice_packets` packets are timed in a slice, after `warmup_packets` that are not.
    ///
    /// # Errors
    /// A count is zero, or the kernel refused a program or a map.
    pub fn load(
        variants: &[ProgramSpec],
        schedule: &Schedule,
        (slice_packets, warmup_packets): (u32, u32),
        rx_queues: u32,
    ) -> Result<(Self, SliceReader)> {
        if slice_packets == 0 || warmup_packets == 0 {
            return Err(Error::usage(
                "cut traffic into slices",
                "a slice and its warm-up take at least one packet each",
            ));
        }
        let copies = usize::from(schedule.slots()) / variants.len().max(1);
        let occupants = load_occupants(variants, copies, rx_queues)?;
        let table = schedule.table();
        let entries = schedule.entries();
        let count =
            |length: usize| u32::try_from(length).map_err(|error| Error::invalid("size a map", error.to_string()));
        let mut object = bpf::load(
            bpf::DISPATCHER,
            &bpf::Object {
                globals: [
                    ("slice_packets", slice_packets),
                    ("warmup_packets", warmup_packets),
                    ("schedule_len", count(entries.len())?),
                ]
                .into(),
                map_entries: [("schedule", count(entries.len())?), ("programs", count(table.len())?)].into(),
                ..bpf::Object::default()
            },
        )?;
        let mut programs: ProgramArray<MapData> = bpf::take_map(&mut object, "programs")?;
        for (index, (variant, copy)) in (0u32..).zip(table) {
            let occupant = &occupants[usize::from(variant)][usize::from(copy)];
            programs
                .set(index, occupant.program_fd(), 0)
                .map_err(|error| bpf::map_error("put a program behind the dispatcher", &error))?;
        }
        let mut slots: Array<MapData, u32> = bpf::take_map(&mut object, "schedule")?;
        for (index, entry) in (0u32..).zip(entries) {
            slots.set(index, entry.program, 0).map_err(|error| bpf::map_error("write the schedule", &error))?;
        }
        let ring: RingBuf<MapData> = bpf::take_map(&mut object, "slices")?;
        let states = bpf::take_map(&mut object, "states")?;
        bpf::program(&mut object, "dispatch")?;
        let reader = SliceReader::new(ring, states, schedule.clone());
        Ok((Self { object, occupants, _programs: programs, _schedule: slots }, reader))
    }

    /// The dispatcher's descriptor, to attach it.
    ///
    /// # Errors
    /// Never after a successful load.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        let missing = |why: String| Error::invalid("open the dispatcher", why);
        let program = self.object.program("dispatch").ok_or_else(|| missing("it is not in its object".into()))?;
        let program: &Xdp =
            program.try_into().map_err(|error: aya::programs::ProgramError| missing(error.to_string()))?;
        Ok(program.fd().map_err(|error| missing(error.to_string()))?.as_fd())
    }

    /// What all programs counted together: for each RX queue, each possible CPU.
    ///
    /// # Errors
    /// The counters could not be read.
    pub fn counts(&self) -> Result<Vec<Vec<Counts>>> {
        let mut sum: Vec<Vec<Counts>> = Vec::new();
        for occupant in self.occupants.iter().flatten() {
            let counts = occupant.counts()?;
            sum.resize_with(counts.len().max(sum.len()), Vec::new);
            for (sum, counts) in sum.iter_mut().zip(counts) {
                sum.resize_with(counts.len().max(sum.len()), Counts::default);
                sum.iter_mut().zip(counts).for_each(|(sum, counts)| *sum += counts);
            }
        }
        Ok(sum)
    }
}

fn load_occupants(variants: &[ProgramSpec], copies: usize, rx_queues: u32) -> Result<Vec<Vec<Box<dyn Occupant>>>> {
    // Copy by copy over all variants, so that no variant gets one stretch of memory for itself.
    let mut occupants: Vec<Vec<Box<dyn Occupant>>> = variants.iter().map(|_| Vec::new()).collect();
    for _ in 0..copies {
        for (variant, spec) in variants.iter().enumerate() {
            occupants[variant].push(Box::new(DutProgram::load(*spec, rx_queues)?));
        }
    }
    Ok(occupants)
}
