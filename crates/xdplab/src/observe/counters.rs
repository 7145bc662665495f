//! The counters of one run.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, PerCpuArray};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::attach;
use super::flows::{self, FlowXmit, Flows};
use crate::bpf;
use crate::error::{Error, Result};
use crate::reading::Reading;

/// An interface as the kernel's tracepoints show it: its index, and the inode of its network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interface {
    /// Interface index within the namespace.
    pub ifindex: u32,
    /// Inode of the network namespace, as `/proc/PID/ns/net` shows it.
    pub netns: u64,
}

/// What to watch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Verdicts, polls and page pools of this interface.
    pub device: Interface,
    /// Frames that a redirect transmits to this interface.
    pub xmit_to: Interface,
}

/// Whose verdicts [`Observers::of_verdicts`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdicts {
    /// Those of the program with this id, on every interface that it is attached to.
    Program(u32),
    /// Those of every program of the machine.
    Everybody,
}

/// A set of counters that is observed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// [`Observers::exceptions`].
    Exceptions,
    /// [`Observers::redirects_per_cpu`]: runs once a packet.
    Redirects,
    /// [`Observers::redirect_errors`].
    RedirectErrors,
    /// [`Observers::xmit`].
    Xmit,
    /// [`Observers::flows`].
    Flows,
    /// [`Observers::napi`].
    Napi,
    /// [`Observers::softirqs_per_cpu`].
    Softirqs,
    /// [`Observers::page_pools`].
    PagePools,
}

impl Figure {
    /// Those of a measurement on one interface: all but the one that costs something per packet, and the one that looks at
    /// every interface.
    pub const ALL: [Self; 6] =
        [Self::Exceptions, Self::RedirectErrors, Self::Xmit, Self::Napi, Self::Softirqs, Self::PagePools];
}

/// `xdp_devmap_xmit`: frames that redirects gave to the driver's `ndo_xdp_xmit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xmit {
    /// Frames the driver took.
    pub sent: u64,
    /// Frames it did not take, for whatever reason; they were freed.
    pub drops: u64,
    /// Calls of the driver, each for up to 16 frames (`DEV_MAP_BULK_SIZE`, include/net/xdp.h).
    pub bulks: u64,
    /// Calls that the driver answered with an error, by its name.
    pub errors: BTreeMap<String, u64>,
}

/// `napi_poll`: polls of the interface's NAPI instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiPolls {
    /// How many.
    pub polls: u64,
    /// Packets they handled.
    pub work: u64,
    /// Polls that used their whole budget: more packets were waiting.
    pub full: u64,
}

/// `softirq_entry` and `softirq_exit` of NET_RX on all CPUs, every device's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Softirqs {
    /// Nanoseconds within the softirq.
    pub busy_ns: u64,
    /// How often it ran.
    pub runs: u64,
}

/// Pages that page pools took from the system and gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// `page_pool_state_hold`: pages taken from the page allocator.
    pub held: u64,
    /// `page_pool_state_release`: pages that left the pool.
    pub released: u64,
}

/// The page pools of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagePools {
    /// Pools of the watched interface.
    pub device: Pages,
    /// Pools of the live-frames generator, one a call.
    pub generator: Pages,
}

/// The name of an errno, such as `EOPNOTSUPP`.
#[must_use]
pub fn errno_name(code: usize) -> String {
    match Errno::from_raw(i32::try_from(code).unwrap_or(0)) {
        Errno::UnknownErrno => format!("errno {code}"),
        errno => format!("{errno:?}"),
    }
}

/// The verdict names of enum xdp_action, include/uapi/linux/bpf.h.
const ACTIONS: [&str; 5] = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];

/// The name of a verdict, such as `XDP_DROP`.
#[must_use]
pub fn action_name(code: usize) -> String {
    ACTIONS.get(code).map_or(format!("verdict {code}"), |name| (*name).into())
}

/// Attached observers; dropping them detaches.
pub struct Observers {
    exceptions: Observed<PerCpuArray<MapData, u64>>,
    redirects: Observed<PerCpuArray<MapData, u64>>,
    flows: Observed<Flows>,
    redirect_errors: Observed<PerCpuArray<MapData, u64>>,
    xmit: Observed<PerCpuArray<MapData, [u64; 4]>>,
    xmit_errors: Observed<PerCpuArray<MapData, u64>>,
    napi: Observed<PerCpuArray<MapData, [u64; 3]>>,
    softirqs: Observed<PerCpuArray<MapData, [u64; 3]>>,
    pools: Observed<HashMap<MapData, u64, [u64; 3]>>,
    _object: Ebpf,
}

/// A counter map whose tracepoints are attached, or the reason why they are not.
pub(super) type Observed<T> = std::result::Result<T, String>;

impl Observers {
    /// Attaches every observer that this kernel has.
    ///
    /// # Errors
    /// The object could not be loaded at all; a missing tracepoint is no error.
    pub fn attach(watch: Watch) -> Result<Self> {
        Self::attach_only(watch, &Figure::ALL)
    }

    /// Attaches the observers of these figures; the other figures are not available.
    ///
    /// # Errors
    /// The object could not be loaded at all; a missing tracepoint is no error.
    pub fn attach_only(watch: Watch, figures: &[Figure]) -> Result<Self> {
        let globals = [
            ("ifindex", watch.device.ifindex),
            ("netns", inum(watch.device.netns)?),
            ("xmit_ifindex", watch.xmit_to.ifindex),
            ("xmit_netns", inum(watch.xmit_to.netns)?),
            ("tgid", std::process::id()),
        ];
        Self::load(globals.into(), figures)
    }

    /// Attaches the observers of these figures, of which exceptions and redirects are counted for these verdicts, and flows
    /// from this interface: from all of its namespace where its number is 0, and from all there are where that is 0 too.
    ///
    /// # Errors
    /// The object could not be loaded at all; a missing tracepoint is no error.
    pub fn of_verdicts(verdicts: Verdicts, flows_from: Interface, figures: &[Figure]) -> Result<Self> {
        let verdicts = match verdicts {
            Verdicts::Program(id) => ("prog_id", id),
            Verdicts::Everybody => ("everything", 1),
        };
        let flows_from = [("ifindex", flows_from.ifindex), ("netns", inum(flows_from.netns)?)];
        Self::load(flows_from.into_iter().chain([verdicts]).collect(), figures)
    }

    fn load(globals: BTreeMap<&'static str, u32>, figures: &[Figure]) -> Result<Self> {
        use Figure::{Exceptions, Flows, Napi, PagePools, RedirectErrors, Redirects, Softirqs, Xmit};
        let mut object =
            bpf::load(bpf::OBSERVE, &bpf::Object { globals, needs_kernel_types: true, ..bpf::Object::default() })?;
        let wanted = |figure| figures.contains(&figure);
        Ok(Self {
            exceptions: observed(&mut object, wanted(Exceptions), &["xdp_exception"], "exceptions"),
            redirects: observed(&mut object, wanted(Redirects), &["xdp_redirect"], "redirects"),
            flows: if wanted(Flows) { flows::attach(&mut object) } else { Err(NOT_WANTED.into()) },
            redirect_errors: observed(&mut object, wanted(RedirectErrors), &["xdp_redirect_err"], "redirect_errors"),
            xmit: observed(&mut object, wanted(Xmit), &["xdp_devmap_xmit"], "xmits"),
            xmit_errors: bpf::take_map(&mut object, "xmit_errors").map_err(|error| error.to_string()),
            napi: observed(&mut object, wanted(Napi), &["napi_poll"], "napis"),
            softirqs: observed(&mut object, wanted(Softirqs), &["softirq_exit", "softirq_entry"], "softirqs"),
            pools: observed(
                &mut object,
                wanted(PagePools),
                &["page_pool_state_release", "page_pool_state_hold"],
                "pools",
            ),
            _object: object,
        })
    }

    /// Packets whose verdict the driver could not carry out, by verdict; `XDP_ABORTED` is one of them.
    #[must_use]
    pub fn exceptions(&self) -> Reading<BTreeMap<String, u64>> {
        by_name(&self.exceptions, action_name)
    }

    /// The same for each possible CPU; verdicts that never failed are left out.
    #[must_use]
    pub fn exceptions_per_cpu(&self) -> Reading<BTreeMap<String, Vec<u64>>> {
        per_cpu_by_name(&self.exceptions, action_name)
    }

    /// Redirects whose frame a queue took, for each possible CPU.
    #[must_use]
    pub fn redirects_per_cpu(&self) -> Reading<Vec<u64>> {
        per_cpu(&self.redirects)
    }

    /// The errors of [`Self::redirect_errors`] for each possible CPU; those that never came are left out.
    #[must_use]
    pub fn redirect_errors_per_cpu(&self) -> Reading<BTreeMap<String, Vec<u64>>> {
        per_cpu_by_name(&self.redirect_errors, errno_name)
    }

    /// Frames that redirects transmitted, for each pair of interfaces of the machine and each answer of the driver.
    #[must_use]
    pub fn flows(&self) -> Reading<Vec<FlowXmit>> {
        match &self.flows {
            Ok(flows) => flows.read(),
            Err(why) => Reading::not_available(why),
        }
    }

    /// The same over all pairs and CPUs.
    #[must_use]
    pub fn transmitted(&self) -> Reading<Xmit> {
        self.flows().map(|flows| {
            flows.into_iter().fold(Xmit::default(), |mut sum, FlowXmit { errno, per_cpu, .. }| {
                let [sent, drops, bulks] = [0, 1, 2].map(|field| per_cpu.iter().map(|cpu| cpu[field]).sum::<u64>());
                sum.sent += sent;
                sum.drops += drops;
                sum.bulks += bulks;
                if let Some(errno) = errno {
                    *sum.errors.entry(errno).or_default() += bulks;
                }
                sum
            })
        })
    }

    /// Redirects that failed before a queue took the frame, by errno name.
    #[must_use]
    pub fn redirect_errors(&self) -> Reading<BTreeMap<String, u64>> {
        by_name(&self.redirect_errors, errno_name)
    }

    /// Frames transmitted to the watched interface.
    #[must_use]
    pub fn xmit(&self) -> Reading<Xmit> {
        sum(&self.xmit).and_then(|[sent, drops, bulks, _]| {
            by_name(&self.xmit_errors, errno_name).map(|errors| Xmit { sent, drops, bulks, errors })
        })
    }

    /// Polls of the watched interface, over all CPUs.
    #[must_use]
    pub fn napi(&self) -> Reading<NapiPolls> {
        sum(&self.napi).map(|[polls, work, full]| NapiPolls { polls, work, full })
    }

    /// Polls of the watched interface, for each possible CPU.
    #[must_use]
    pub fn napi_per_cpu(&self) -> Reading<Vec<NapiPolls>> {
        per_cpu(&self.napi).map(|cpus| {
            cpus.iter().map(|[polls, work, full]| NapiPolls { polls: *polls, work: *work, full: *full }).collect()
        })
    }

    /// The NET_RX softirq of each possible CPU.
    #[must_use]
    pub fn softirqs_per_cpu(&self) -> Reading<Vec<Softirqs>> {
        per_cpu(&self.softirqs)
            .map(|cpus| cpus.iter().map(|[_, busy_ns, runs]| Softirqs { busy_ns: *busy_ns, runs: *runs }).collect())
    }

    /// Pages taken and given back by the pools of this run.
    #[must_use]
    pub fn page_pools(&self) -> Reading<PagePools> {
        let pools = match &self.pools {
            Ok(pools) => pools,
            Err(why) => return Reading::not_available(why),
        };
        let sum = pools.iter().try_fold(PagePools::default(), |mut sum, pool| {
            let (_, [held, released, owner]) = pool?;
            let pages = if owner == OWNER_GENERATOR { &mut sum.generator } else { &mut sum.device };
            pages.held += held;
            pages.released += released;
            Ok::<_, aya::maps::MapError>(sum)
        });
        sum.into()
    }
}

/// `OWNER_GENERATOR` in `bpf/observe.bpf.c`.
const OWNER_GENERATOR: u64 = 1;

/// Why a figure has no value that was not asked for.
const NOT_WANTED: &str = "not observed in this run";

/// A network namespace as the programs know it.
fn inum(netns: u64) -> Result<u32> {
    u32::try_from(netns).map_err(|error| Error::invalid(format!("watch network namespace {netns}"), error.to_string()))
}

fn observed<T>(object: &mut Ebpf, wanted: bool, tracepoints: &[&'static str], map: &str) -> Observed<T>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    if !wanted {
        return Err(NOT_WANTED.into());
    }
    let attached = tracepoints.iter().try_for_each(|tracepoint| attach(object, tracepoint));
    attached.and_then(|()| bpf::take_map(object, map)).map_err(|error| error.to_string())
}

fn sum<const N: usize>(map: &Observed<PerCpuArray<MapData, [u64; N]>>) -> Reading<[u64; N]> {
    match map {
        Ok(map) => bpf::sum_per_cpu(map, 0, "an observer's counters").into(),
        Err(why) => Reading::not_available(why),
    }
}

fn per_cpu<T: aya::Pod>(map: &Observed<PerCpuArray<MapData, T>>) -> Reading<Vec<T>> {
    match map {
        Ok(map) => map.get(&0, 0).map(|values| values.iter().copied().collect()).into(),
        Err(why) => Reading::not_available(why),
    }
}

/// The entries that are not zero, named.
pub(super) fn by_name(
    map: &Observed<PerCpuArray<MapData, u64>>,
    name: impl Fn(usize) -> String,
) -> Reading<BTreeMap<String, u64>> {
    per_cpu_by_name(map, name).map(|named| named.into_iter().map(|(name, cpus)| (name, cpus.iter().sum())).collect())
}

fn per_cpu_by_name(
    map: &Observed<PerCpuArray<MapData, u64>>,
    name: impl Fn(usize) -> String,
) -> Reading<BTreeMap<String, Vec<u64>>> {
    let map = match map {
        Ok(map) => map,
        Err(why) => return Reading::not_available(why),
    };
    let mut named = BTreeMap::new();
    for index in 0..map.len() {
        match map.get(&index, 0) {
            Ok(values) => {
                if values.iter().any(|count| *count > 0) {
                    named.insert(name(index as usize), values.to_vec());
                }
            }
            Err(error) => return Reading::not_available(error.to_string()),
        }
    }
    Reading::Known(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_have_their_names_and_unknown_ones_their_number() {
        assert_eq!(errno_name(95), "EOPNOTSUPP");
        assert_eq!(errno_name(6), "ENXIO");
        assert_eq!(errno_name(250), "errno 250");
    }
}
