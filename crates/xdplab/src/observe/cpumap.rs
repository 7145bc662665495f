//! What happens in a cpumap: packets given to the queues of CPUs, and what the CPUs' kthreads make of them.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, PerCpuHashMap};
use serde::{Deserialize, Serialize};

use super::counters::{Observed, by_name, errno_name};
use super::{attach, attach_program};
use crate::bpf;
use crate::error::Result;
use crate::reading::Reading;

/// `xdp_cpumap_enqueue`: packets that one CPU gave to the queue of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// Packets of the bulks. In native mode those that the queue did not take are among them (kernel/bpf/cpumap.c,
    /// `bq_flush_to_queue`), in generic mode they are not (`cpu_map_generic_redirect`).
    pub processed: u64,
    /// Packets that found the queue full.
    pub drops: u64,
    /// Bulks, each of up to 8 packets (`CPU_MAP_BULK_SIZE`); in generic mode of one.
    pub bulks: u64,
}

/// `xdp_cpumap_kthread`: packets that the kthread of a CPU took out of its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kthread {
    /// Packets taken out of the queue.
    pub processed: u64,
    /// Packets for which there was no memory for an skb.
    pub drops: u64,
    /// How often the thread gave up the CPU.
    pub sched: u64,
    /// Packets that the program in the map passed to the network stack; 0 without a program.
    pub pass: u64,
    /// Packets that it dropped, failed redirects among them.
    pub drop: u64,
    /// Packets that it redirected.
    pub redirect: u64,
    /// Batches in which they were taken, each of up to 8 packets (`CPUMAP_BATCH`); empty ones count too.
    pub batches: u64,
}

/// Packets that found the queue of a CPU full.
struct Drops {
    by_map: PerCpuHashMap<MapData, u32, u64>,
    /// Those of maps for which that had no room.
    lost: PerCpuArray<MapData, u64>,
}

/// Attached observers of one cpumap, or of all; dropping them detaches.
pub struct CpumapObserver {
    enqueues: Observed<PerCpuArray<MapData, [u64; 3]>>,
    kthreads: Observed<PerCpuArray<MapData, [u64; 7]>>,
    remote_errors: Observed<PerCpuArray<MapData, u64>>,
    drops: Observed<Drops>,
    _object: Ebpf,
}

impl CpumapObserver {
    /// Observes the cpumap with this id, or every cpumap of the machine; and the redirects of the program with the id
    /// `remote`, which is the one in the map.
    ///
    /// # Errors
    /// The object could not be loaded at all; a missing tracepoint is no error.
    pub fn attach(map_id: Option<u32>, remote: Option<u32>) -> Result<Self> {
        let mut object = bpf::load(
            bpf::OBSERVE,
            &bpf::Object {
                globals: [("cpumap_id", map_id.unwrap_or(0)), ("remote_prog_id", remote.unwrap_or(0))].into(),
                map_entries: [("cpumap_enqueues", bpf::possible_cpus()?)].into(),
                needs_kernel_types: true,
                ..bpf::Object::default()
            },
        )?;
        let enqueues = attach(&mut object, "xdp_cpumap_enqueue")
            .and_then(|()| bpf::take_map(&mut object, "cpumap_enqueues"))
            .map_err(|error| error.to_string());
        let drops = enqueues.as_ref().map_err(Clone::clone).and_then(|_| {
            let by_map = bpf::take_map(&mut object, "cpumap_drops").map_err(|error| error.to_string())?;
            let lost = bpf::take_map(&mut object, "cpumap_drops_lost").map_err(|error| error.to_string())?;
            Ok(Drops { by_map, lost })
        });
        let kthreads = attach(&mut object, "xdp_cpumap_kthread")
            .and_then(|()| bpf::take_map(&mut object, "cpumap_kthreads"))
            .map_err(|error| error.to_string());
        let remote_errors = match remote {
            Some(_) => attach_program(&mut object, "remote_redirect_err", "xdp_redirect_err"),
            None => Ok(()),
        };
        let remote_errors =
            remote_errors.and_then(|()| bpf::take_map(&mut object, "remote_errors")).map_err(|error| error.to_string());
        Ok(Self { enqueues, kthreads, remote_errors, drops, _object: object })
    }

    /// Redirects of the program in the map that failed, by errno name.
    #[must_use]
    pub fn remote_errors(&self) -> Reading<BTreeMap<String, u64>> {
        by_name(&self.remote_errors, errno_name)
    }

    /// Packets by the CPU that they came from and the CPU that they went to; pairs without any are left out.
    #[must_use]
    pub fn enqueued(&self) -> Reading<BTreeMap<(u32, u32), Enqueued>> {
        let read = |map: &PerCpuArray<MapData, [u64; 3]>| {
            let mut pairs = BTreeMap::new();
            for to in 0..map.len() {
                let from = map.get(&to, 0).map_err(|error| error.to_string())?;
                let from =
                    (0u32..).zip(from.iter().map(|&[processed, drops, bulks]| Enqueued { processed, drops, bulks }));
                pairs.extend(from.filter(|(_, counts)| counts.bulks > 0).map(|(from, counts)| ((from, to), counts)));
            }
            Ok::<_, String>(pairs)
        };
        self.enqueues.as_ref().map_err(Clone::clone).and_then(read).into()
    }

    /// Packets that found the queue of a CPU full, by the id of the cpumap, since this was last asked; maps without any are
    /// left out.
    #[must_use]
    pub fn take_drops(&mut self) -> Reading<BTreeMap<u32, u64>> {
        self.drops.as_mut().map_err(|why| why.clone()).and_then(Drops::take).into()
    }

    /// Packets by the CPU whose kthread took them; CPUs without any batch are left out.
    #[must_use]
    pub fn kthreads(&self) -> Reading<BTreeMap<u32, Kthread>> {
        let read = |map: &PerCpuArray<MapData, [u64; 7]>| {
            let cpus = map.get(&0, 0).map_err(|error| error.to_string())?;
            let cpus = (0u32..).zip(cpus.iter().map(Kthread::of));
            Ok::<_, String>(cpus.filter(|(_, counts)| counts.batches > 0).collect())
        };
        self.kthreads.as_ref().map_err(Clone::clone).and_then(read).into()
    }
}

impl Drops {
    fn take(&mut self) -> std::result::Result<BTreeMap<u32, u64>, String> {
        let lost: u64 = self.lost.get(&0, 0).map_err(|error| error.to_string())?.iter().sum();
        if lost > 0 {
            return Err(format!("{lost} packets found a queue full of more cpumaps than are told apart"));
        }
        let entries = self.by_map.iter().map(|entry| entry.map(|(map_id, cpus)| (map_id, cpus.iter().sum())));
        let drops: BTreeMap<u32, u64> =
            entries.collect::<std::result::Result<_, _>>().map_err(|error| error.to_string())?;
        for map_id in drops.keys() {
            self.by_map.remove(map_id).map_err(|error| error.to_string())?;
        }
        Ok(drops)
    }
}

impl Kthread {
    fn of(&[processed, drops, sched, pass, drop, redirect, batches]: &[u64; 7]) -> Self {
        Self { processed, drops, sched, pass, drop, redirect, batches }
    }

    fn each(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            processed: with(self.processed, other.processed),
            drops: with(self.drops, other.drops),
            sched: with(self.sched, other.sched),
            pass: with(self.pass, other.pass),
            drop: with(self.drop, other.drop),
            redirect: with(self.redirect, other.redirect),
            batches: with(self.batches, other.batches),
        }
    }
}

impl AddAssign for Kthread {
    fn add_assign(&mut self, other: Self) {
        *self = self.each(other, |a, b| a + b);
    }
}

impl Sub for Kthread {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.each(earlier, |a, b| a - b)
    }
}

impl AddAssign for Enqueued {
    fn add_assign(&mut self, other: Self) {
        self.processed += other.processed;
        self.drops += other.drops;
        self.bulks += other.bulks;
    }
}

impl Sub for Enqueued {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            processed: self.processed - earlier.processed,
            drops: self.drops - earlier.drops,
            bulks: self.bulks - earlier.bulks,
        }
    }
}
