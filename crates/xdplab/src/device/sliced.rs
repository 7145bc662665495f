//! The dispatcher with all copies of all variants behind it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{Array, MapData, ProgramArray, RingBuf};
use aya::programs::{ProgramFd, Xdp};

use rand::seq::SliceRandom;
use rand::{RngExt as _, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{
    Counts, CpumapProgram, CpumapVariant, DutProgram, HandedOn, ObjectProgram, RedirectProgram, RedirectVariant,
    UserObject, VariantSpec, XskCounts, XskProgram, XskSockets, XskVariant,
};
use crate::bpf;
use crate::error::{Error, Result};
use crate::reading::Reading;
use crate::sample::{Schedule, SliceReader};

/// What can stand behind the dispatcher.
pub trait Occupant: Send + Sync {
    /// The loaded program.
    fn program_fd(&self) -> &ProgramFd;

    /// What it counted: for each RX queue, each possible CPU; or why that is not to be had.
    fn counts(&self) -> Reading<Vec<Vec<Counts>>>;

    /// What it handed on to interfaces, CPUs and sockets; or why that is not to be had.
    fn handed_on(&self) -> Reading<HandedOn>;

    /// The kernel's id of its cpumap, if it redirects to CPUs.
    fn cpumap_id(&self) -> Option<u32> {
        None
    }
}

impl Occupant for DutProgram {
    fn program_fd(&self) -> &ProgramFd {
        DutProgram::program_fd(self)
    }

    fn counts(&self) -> Reading<Vec<Vec<Counts>>> {
        DutProgram::counts(self).into()
    }

    fn handed_on(&self) -> Reading<HandedOn> {
        Reading::Known(HandedOn::default())
    }
}

impl Occupant for RedirectProgram {
    fn program_fd(&self) -> &ProgramFd {
        RedirectProgram::program_fd(self)
    }

    fn counts(&self) -> Reading<Vec<Vec<Counts>>> {
        RedirectProgram::counts(self).into()
    }

    fn handed_on(&self) -> Reading<HandedOn> {
        RedirectProgram::handed_on(self).into()
    }
}

impl Occupant for CpumapProgram {
    fn program_fd(&self) -> &ProgramFd {
        CpumapProgram::program_fd(self)
    }

    fn counts(&self) -> Reading<Vec<Vec<Counts>>> {
        let of_queue = |cpus: Vec<(Counts, _)>| cpus.into_iter().map(|(counts, _verdicts)| counts).collect();
        Reading::from(CpumapProgram::counts(self)).map(|queues| queues.into_iter().map(of_queue).collect())
    }

    fn handed_on(&self) -> Reading<HandedOn> {
        CpumapProgram::handed_on(self).into()
    }

    fn cpumap_id(&self) -> Option<u32> {
        Some(self.map_id())
    }
}

impl Occupant for XskProgram {
    fn program_fd(&self) -> &ProgramFd {
        XskProgram::program_fd(self)
    }

    fn counts(&self) -> Reading<Vec<Vec<Counts>>> {
        let of_cpu =
            |XskCounts { redirected, aborted, passed }| Counts { packets: redirected + aborted + passed, aborted };
        let of_queue = |cpus: Vec<XskCounts>| cpus.into_iter().map(of_cpu).collect();
        Reading::from(XskProgram::counts(self)).map(|queues| queues.into_iter().map(of_queue).collect())
    }

    fn handed_on(&self) -> Reading<HandedOn> {
        XskProgram::handed_on(self).into()
    }
}

impl Occupant for ObjectProgram {
    fn program_fd(&self) -> &ProgramFd {
        ObjectProgram::program_fd(self)
    }

    fn counts(&self) -> Reading<Vec<Vec<Counts>>> {
        Reading::not_available(USERS_PROGRAM)
    }

    fn handed_on(&self) -> Reading<HandedOn> {
        Reading::not_available(USERS_PROGRAM)
    }
}

/// Why there are no counts of a user's program.
const USERS_PROGRAM: &str = "a user's program counts nothing for this tool";

/// A dispatcher ready to be attached, with its programs loaded and its schedule filled in.
pub struct SlicedDevice {
    object: Ebpf,
    occupants: Vec<Vec<Box<dyn Occupant>>>,
    _programs: ProgramArray<MapData>,
    _schedule: Array<MapData, u32>,
    _gaps: Gaps,
}

impl SlicedDevice {
    /// Loads `schedule`'s copies of each variant, each by itself, in an order and with gaps drawn from `seed`: where a program
    /// lies in memory changes its cost, and programs loaded one after the other would all lie alike.
    ///
    /// `slice_packets` packets are timed in a slice, after `warmup_packets` that are not. Interfaces to redirect to are those
    /// of the calling thread's network namespace; `sockets` are those of the variants that give packets to AF_XDP sockets.
    ///
    /// # Errors
    /// A count is zero, an object can't be used, some objects take packets in fragments and others do not, there is no such
    /// interface, CPU or socket, or the kernel refused a program or a map.
    pub fn load(
        variants: &[VariantSpec],
        schedule: &Schedule,
        (slice_packets, warmup_packets): (u32, u32),
        rx_queues: u32,
        sockets: Option<&XskSockets>,
        seed: u64,
    ) -> Result<(Self, SliceReader)> {
        if slice_packets == 0 || warmup_packets == 0 {
            return Err(Error::usage(
                "cut traffic into slices",
                "a slice and its warm-up take at least one packet each",
            ));
        }
        if rx_queues == 0 {
            return Err(Error::usage("load programs for a device with 0 RX queues", "packets need at least one"));
        }
        let sources = variants.iter().map(Source::open).collect::<Result<Vec<_>>>()?;
        let without_frags = without_frags(&sources)?;
        let mut gaps = Gaps::new(seed);
        let load = |variant: usize| sources[variant].load(rx_queues, without_frags, sockets);
        let occupants = load_occupants(variants.len(), schedule, load, &mut gaps)?;
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
                without_frags,
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
        gaps.next()?;
        bpf::program(&mut object, "dispatch")?;
        let reader = SliceReader::new(ring, states, schedule.clone());
        Ok((Self { object, occupants, _programs: programs, _schedule: slots, _gaps: gaps }, reader))
    }

    /// Looks at what can be told of variants before anything is loaded.
    ///
    /// # Errors
    /// An object can't be used, or some objects take packets in fragments and others do not.
    pub fn check(variants: &[VariantSpec]) -> Result<()> {
        let sources = variants.iter().map(Source::open).collect::<Result<Vec<_>>>()?;
        without_frags(&sources).map(|_| ())
    }

    /// The dispatcher's descriptor, to attach it.
    ///
    /// # Errors
    /// Never after a successful load.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.program_fd()?.as_fd())
    }

    /// The dispatcher, to put it into a table of programs.
    ///
    /// # Errors
    /// Never after a successful load.
    pub fn program_fd(&self) -> Result<&ProgramFd> {
        let missing = |why: String| Error::invalid("open the dispatcher", why);
        let program = self.object.program("dispatch").ok_or_else(|| missing("it is not in its object".into()))?;
        let program: &Xdp =
            program.try_into().map_err(|error: aya::programs::ProgramError| missing(error.to_string()))?;
        program.fd().map_err(|error| missing(error.to_string()))
    }

    /// The copies of a variant, by its index.
    pub fn copies(&self, variant: u16) -> impl Iterator<Item = &dyn Occupant> {
        self.occupants.get(usize::from(variant)).into_iter().flatten().map(AsRef::as_ref)
    }

    /// What all programs counted together: for each RX queue, each possible CPU; or why one of them did not count.
    #[must_use]
    pub fn counts(&self) -> Reading<Vec<Vec<Counts>>> {
        let mut sum: Vec<Vec<Counts>> = Vec::new();
        for occupant in self.occupants.iter().flatten() {
            let counts = match occupant.counts() {
                Reading::Known(counts) => counts,
                missing @ Reading::NotAvailable { .. } => return missing,
            };
            sum.resize_with(counts.len().max(sum.len()), Vec::new);
            for (sum, counts) in sum.iter_mut().zip(counts) {
                sum.resize_with(counts.len().max(sum.len()), Counts::default);
                sum.iter_mut().zip(counts).for_each(|(sum, counts)| *sum += counts);
            }
        }
        Reading::Known(sum)
    }

    /// What all programs handed on together; or why one of them did not count.
    #[must_use]
    pub fn handed_on(&self) -> Reading<HandedOn> {
        let all = self.occupants.iter().flatten();
        all.fold(Reading::Known(HandedOn::default()), |sum, occupant| {
            sum.and_then(|mut sum| {
                occupant.handed_on().map(|handed_on| {
                    sum += handed_on;
                    sum
                })
            })
        })
    }
}

/// Where a variant's copies come from.
enum Source {
    Builtin(super::ProgramSpec),
    Redirect(RedirectVariant),
    Cpumap(CpumapVariant),
    Xsk(XskVariant),
    Object(Box<UserObject>),
}

impl Source {
    fn open(variant: &VariantSpec) -> Result<Self> {
        match variant {
            VariantSpec::Builtin(spec) => Ok(Self::Builtin(*spec)),
            VariantSpec::Redirect(spec) => Ok(Self::Redirect(spec.clone())),
            VariantSpec::Cpumap(spec) => Ok(Self::Cpumap(spec.clone())),
            VariantSpec::Xsk(spec) => Ok(Self::Xsk(spec.clone())),
            VariantSpec::Object(spec) => Ok(Self::Object(Box::new(UserObject::open(spec)?))),
        }
    }

    fn load(&self, rx_queues: u32, without_frags: bool, sockets: Option<&XskSockets>) -> Result<Box<dyn Occupant>> {
        match self {
            Self::Builtin(spec) if without_frags => Ok(Box::new(DutProgram::load_without_frags(*spec, rx_queues)?)),
            Self::Builtin(spec) => Ok(Box::new(DutProgram::load(*spec, rx_queues)?)),
            Self::Redirect(spec) => {
                let load = if without_frags { RedirectProgram::load_without_frags } else { RedirectProgram::load };
                Ok(Box::new(load(spec.redirect, &spec.find_targets()?, spec.egress, rx_queues)?))
            }
            Self::Cpumap(spec) => {
                let load = if without_frags { CpumapProgram::load_without_frags } else { CpumapProgram::load };
                Ok(Box::new(load(spec.resolve()?, rx_queues)?))
            }
            Self::Xsk(spec) => {
                let load = if without_frags { XskProgram::load_without_frags } else { XskProgram::load };
                let socket = sockets.and_then(|sockets| sockets.fd(&spec.handling())).ok_or_else(|| {
                    Error::usage(format!("load {spec}"), "without a driver there is no queue to open a socket on")
                        .remedy("compare it on live traffic")
                })?;
                Ok(Box::new(load(spec.queue, &[socket], rx_queues)?))
            }
            Self::Object(object) => Ok(Box::new(object.load()?)),
        }
    }
}

/// The kernel lets a program tail-call only those that take packets in fragments as it does itself
/// (`bpf_prog_map_compatible`, kernel/bpf/core.c), so users' programs say how all are loaded.
fn without_frags(sources: &[Source]) -> Result<bool> {
    let objects = || {
        sources.iter().filter_map(|source| match source {
            Source::Object(object) => Some(object),
            _ => None,
        })
    };
    let (with, without) = (objects().find(|object| object.frags()), objects().find(|object| !object.frags()));
    let (Some(with), Some(without)) = (with, without) else { return Ok(without.is_some()) };
    Err(Error::usage(
        "compare the programs in turn",
        format!(
            "{} takes packets in fragments (xdp.frags) and {} does not, and one dispatcher can't call both",
            with.spec(),
            without.spec()
        ),
    )
    .remedy("give both the same section, xdp or xdp.frags"))
}

/// Fills the table in an order drawn from the seed.
fn load_occupants(
    variants: usize,
    schedule: &Schedule,
    load: impl Fn(usize) -> Result<Box<dyn Occupant>>,
    gaps: &mut Gaps,
) -> Result<Vec<Vec<Box<dyn Occupant>>>> {
    let copies = usize::from(schedule.slots()) / variants.max(1);
    let mut order: Vec<(usize, usize)> =
        (0..variants).flat_map(|variant| (0..copies).map(move |copy| (variant, copy))).collect();
    order.shuffle(&mut gaps.random);
    let mut occupants: Vec<((usize, usize), Box<dyn Occupant>)> = Vec::with_capacity(order.len());
    for place in order {
        gaps.next()?;
        occupants.push((place, load(place.0)?));
    }
    occupants.sort_by_key(|(place, _)| *place);
    let mut by_variant: Vec<Vec<Box<dyn Occupant>>> = (0..variants).map(|_| Vec::new()).collect();
    for ((variant, _), occupant) in occupants {
        by_variant[variant].push(occupant);
    }
    Ok(by_variant)
}

/// Programs that do nothing but take up a random stretch of the memory in which the kernel keeps compiled programs.
struct Gaps {
    random: Pcg64Mcg,
    programs: Vec<OwnedFd>,
}

impl Gaps {
    /// A gap is at most this many instructions long: some lines of the instruction cache.
    const MOST_INSTRUCTIONS: usize = 128;

    fn new(seed: u64) -> Self {
        Self { random: Pcg64Mcg::seed_from_u64(seed), programs: Vec::new() }
    }

    fn next(&mut self) -> Result<()> {
        let filler = bpf::filler();
        let instructions = self.random.random_range(1..=Self::MOST_INSTRUCTIONS);
        self.programs.push(filler.load_long(instructions, "load a program that only takes up memory")?);
        Ok(())
    }
}
