//! A comparison on a lab, stage by stage: what is planned, what was observed, what it says.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::device::{Action, Operation, ProgramSpec, VariantSpec};
use crate::error::Result;
use crate::guard::{self, Guard};
use crate::netlink::XdpMode;
use crate::observed::Observed;
use crate::packet::{FlowSpec, FrameSize};
use crate::reading::Reading;
use crate::remote::{self, RemoteCost};
use crate::stats::{self, Absolute, Comparison, Difference, Interval, Level, NotEnough, Slice};
use crate::topology::Placement;
use crate::verdict::{self, Verdict};

/// How the programs are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Slices of live traffic through an interface's driver.
    #[default]
    Slices,
    /// `BPF_PROG_TEST_RUN` of the programs alone, without a driver ([`crate::testrun`]).
    TestRun {
        /// The packet's first 64 bytes are not in the first level cache.
        cold: bool,
    },
}

/// What a test run is, in everything that is told of it.
pub const PROGRAM_ONLY: &str = "program only, no driver";

impl Engine {
    /// Packets of a slice and packets of its warm-up: about a tenth of a millisecond, so that few slices are interrupted
    /// and the readings of the clock do not show.
    #[must_use]
    pub fn slice_and_warmup_packets(self) -> (u32, u32) {
        match self {
            Self::Slices => (Plan::SLICE_PACKETS, Plan::WARMUP_PACKETS),
            Self::TestRun { cold: false } => (2048, Plan::WARMUP_PACKETS),
            Self::TestRun { cold: true } => (512, Plan::WARMUP_PACKETS),
        }
    }
}

/// What makes the packets on a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameSource {
    /// Frames that the kernel makes and a redirect sends, each in one buffer of at most a page less some hundred bytes.
    #[default]
    LiveFrames,
    /// Datagrams of a UDP socket. The device's driver copies each into pages of its own page pool before the program sees it:
    /// into several buffers where it is longer than one.
    Socket,
}

/// What to compare, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// A name for the report.
    pub name: String,
    /// What the others are compared with.
    pub baseline: VariantSpec,
    /// What is compared with the baseline.
    pub candidates: Vec<VariantSpec>,
    /// How they are run.
    #[serde(default)]
    pub engine: Engine,
    /// Separately loaded copies of each variant in a round.
    pub copies: u16,
    /// Rounds, for each of which everything is loaded anew, elsewhere in memory; with one, what its copies share can't be
    /// told from the change. Fewer are taken, and longer ones, where slices come slowly. With `resolve_ns` the fewest.
    pub rounds: u16,
    /// Packets timed in a slice.
    pub slice_packets: u32,
    /// Packets after a switch that are handled and not timed.
    pub warmup_packets: u32,
    /// Seconds during which slices are taken; with `resolve_ns` the most that are.
    pub seconds: f64,
    /// End as soon as half of every candidate's interval is at most this wide, in ns per packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolve_ns: Option<f64>,
    /// Seed of the schedule.
    pub seed: u64,
    /// Confidence of the intervals.
    pub level: Level,
    /// Effects up to this are not called slower or faster, in ns per packet.
    pub floor_ns: f64,
    /// Effects shown to be smaller than this are called equivalent, in ns per packet.
    pub margin_ns: Option<f64>,
    /// Which CPU runs what.
    pub placement: Placement,
    /// The interface to measure on, whose traffic comes from outside; `None`: a lab of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// How the dispatcher is attached.
    pub xdp_mode: XdpMode,
    /// RX and TX queues of each end of the lab; RX queues of the interface.
    pub queues: u16,
    /// MTU of the lab or of the interface, in bytes.
    pub mtu: u32,
    /// The frame's fields.
    pub flow: FlowSpec,
    /// The frame's size.
    pub size: FrameSize,
    /// UDP flows: source ports in turn, from the flow's own on.
    #[serde(default = "one")]
    pub flows: u16,
    /// What makes the packets.
    #[serde(default)]
    pub traffic: FrameSource,
}

fn one() -> u16 {
    1
}

impl Plan {
    /// Packets after a switch that are not timed: a NAPI budget.
    pub const WARMUP_PACKETS: u32 = 64;
    /// Packets of a slice.
    pub const SLICE_PACKETS: u32 = 1024;
    /// Copies of each variant in a round.
    pub const COPIES: u16 = 2;
    /// The fewest rounds that hold the truth where costs jump between two values (see [`stats::compare_rounds`]).
    pub const FEWEST_ROUNDS: u16 = 8;
    /// More rounds would only take time for loading.
    const MOST_ROUNDS: u16 = 1000;
    /// Seconds of a round. What differs from round to round (where programs lie in memory) is far more than what slices scatter
    /// within one, so that many short rounds say more than few long ones.
    const ROUND_SECONDS: f64 = 0.2;
    /// The length of a comparison with one candidate, if nothing else is asked for.
    pub const SECONDS: f64 = 10.0;
    /// Effects up to this are in the reach of memory layout.
    pub const FLOOR_NS: f64 = 0.1;

    /// A comparison with 60-byte frames (64 on the wire), one queue, native mode.
    #[must_use]
    pub fn new(
        name: &str,
        baseline: VariantSpec,
        candidates: Vec<VariantSpec>,
        placement: Placement,
        seed: u64,
    ) -> Self {
        let flow = FlowSpec::lab_v4();
        Self {
            name: name.into(),
            baseline,
            candidates,
            engine: Engine::Slices,
            copies: Self::COPIES,
            rounds: Self::rounds_in(Self::SECONDS),
            slice_packets: Self::SLICE_PACKETS,
            warmup_packets: Self::WARMUP_PACKETS,
            seconds: Self::SECONDS,
            resolve_ns: None,
            seed,
            level: Level::default(),
            floor_ns: Self::FLOOR_NS,
            margin_ns: None,
            placement,
            interface: None,
            xdp_mode: XdpMode::Native,
            queues: 1,
            mtu: 1500,
            size: FrameSize::shortest(&flow),
            flow,
            flows: 1,
            traffic: FrameSource::LiveFrames,
        }
    }

    /// Rounds that so many seconds are cut into.
    #[must_use]
    pub fn rounds_in(seconds: f64) -> u16 {
        let rounds = (seconds / Self::ROUND_SECONDS).round();
        rounds.clamp(f64::from(Self::FEWEST_ROUNDS), f64::from(Self::MOST_ROUNDS)) as u16
    }

    /// The plan for so many seconds, and the rounds that suit them.
    #[must_use]
    pub fn lasting(self, seconds: f64) -> Self {
        Self { seconds, rounds: Self::rounds_in(seconds), ..self }
    }

    /// The plan for another engine, with slices as long as that engine needs.
    #[must_use]
    pub fn with_engine(self, engine: Engine) -> Self {
        let (slice_packets, warmup_packets) = engine.slice_and_warmup_packets();
        Self { engine, slice_packets, warmup_packets, ..self }
    }

    /// What is compared, in the order of the schedule's variants: baseline, the baseline again as its own control, then the
    /// candidates.
    #[must_use]
    pub fn variants(&self) -> Vec<VariantSpec> {
        [&self.baseline, &self.baseline].into_iter().chain(&self.candidates).cloned().collect()
    }

    /// What is loaded, in the order of the schedule's variants: what is compared, and in a test run an empty program, which
    /// tells the cost of the programs from that of what runs them.
    #[must_use]
    pub fn loaded(&self) -> Vec<VariantSpec> {
        let empty = self.empty().map(|_| ProgramSpec::new(Action::Drop, Operation::Uncounted).into());
        self.variants().into_iter().chain(empty).collect()
    }

    /// Index of the empty program in [`Self::loaded`]; none on live traffic, where a program needs its driver.
    #[must_use]
    pub fn empty(&self) -> Option<u16> {
        let after_the_others = u16::try_from(self.variants().len()).unwrap_or(u16::MAX);
        matches!(self.engine, Engine::TestRun { .. }).then_some(after_the_others)
    }

    /// Seconds of a round where slices come fast enough.
    #[must_use]
    pub fn round_seconds(&self) -> f64 {
        let seconds = self.seconds / f64::from(self.rounds);
        self.resolve_ns.map_or(seconds, |_| seconds.min(Self::ROUND_SECONDS))
    }

    /// Seconds of a round at most, where slices come slowly.
    #[must_use]
    pub fn longest_round_seconds(&self) -> f64 {
        self.seconds / f64::from(self.rounds.min(Self::FEWEST_ROUNDS))
    }

    /// Slices that let a round end, of all copies of all variants on one CPU: more than a comparison needs, since some will have
    /// had time taken from them.
    #[must_use]
    pub fn round_slices(&self) -> usize {
        3 * stats::BLOCKS_NEEDED / 2 * self.loaded().len() * usize::from(self.copies)
    }

    /// Whether a round may end that took so long and gave these slices.
    #[must_use]
    pub fn is_round_done(&self, seconds: f64, slices: &[Slice]) -> bool {
        if seconds < self.round_seconds() {
            return false;
        }
        let mut per_cpu = BTreeMap::<u16, usize>::new();
        slices.iter().for_each(|slice| *per_cpu.entry(slice.cpu).or_default() += 1);
        seconds >= self.longest_round_seconds() || per_cpu.values().any(|slices| *slices >= self.round_slices())
    }

    /// Rounds that are taken at most.
    #[must_use]
    pub fn most_rounds(&self) -> u16 {
        let rounds = (self.seconds / self.round_seconds()).round();
        if self.resolve_ns.is_some() && rounds < f64::from(u16::MAX) { rounds as u16 } else { self.rounds }
    }

    /// The plan with its variants fitted to its placement (see [`VariantSpec::fit`]), so that they say where they redirect to.
    ///
    /// # Errors
    /// A variant does not fit, or the kernel does not tell the thread's CPUs.
    pub fn fitted(mut self) -> Result<Self> {
        let cpu = self.placement.remote_cpu()?.and_then(|cpu| u32::try_from(cpu).ok());
        for variant in [&mut self.baseline].into_iter().chain(&mut self.candidates) {
            variant.fit(self.placement == Placement::Outside, cpu)?;
        }
        Ok(self)
    }

    /// Whether a variant of ours redirects to interfaces.
    #[must_use]
    pub fn needs_target(&self) -> bool {
        self.variants().iter().any(VariantSpec::needs_target)
    }

    /// Whether a variant of ours redirects to CPUs.
    #[must_use]
    pub fn needs_cpus(&self) -> bool {
        self.variants().iter().any(VariantSpec::needs_cpus)
    }

    /// Whether a variant of ours redirects to AF_XDP sockets.
    #[must_use]
    pub fn needs_sockets(&self) -> bool {
        self.variants().iter().any(|variant| variant.socket().is_some())
    }

    /// Whether a variant may send packets back to the generator.
    #[must_use]
    pub fn may_return_packets(&self) -> bool {
        self.variants().iter().any(VariantSpec::may_return_packets)
    }
}

/// Index of the baseline in [`Plan::variants`].
const BASELINE: u16 = 0;
/// Index of the baseline's control.
const CONTROL: u16 = 1;
/// Index of the first candidate.
const FIRST_CANDIDATE: u16 = 2;

/// A measured case: plan, observations and what they say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What was planned.
    pub plan: Plan,
    /// What was observed.
    pub observed: Observed,
    /// What each variant costs.
    pub costs: Vec<Cost>,
    /// Baseline against its own control: the resolution reached.
    pub control: Option<Comparison>,
    /// Each candidate against the baseline.
    pub comparisons: Vec<Compared>,
    /// The validity checks.
    pub guards: Vec<Guard>,
    /// What limited the rate; absent where no variant hands packets to other CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limiter: Option<Reading<String>>,
}

/// What a variant costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The variant.
    pub variant: String,
    /// Its cost as timed, or why there is none. In a test run that holds the loop and the dispatcher.
    #[serde(flatten)]
    pub cost: Outcome<Absolute>,
    /// In a test run: what it costs more than an empty program, which is the program alone; absent with its reason in
    /// `cost`, or on live traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_alone: Option<Difference>,
    /// What its packets cost the CPU that took them from the device's, or why that is not known; absent where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Reading<RemoteCost>>,
}

impl Cost {
    /// The cost to show, in ns per packet: the program alone where that is known, else as timed.
    #[must_use]
    pub fn shown(&self) -> Option<Interval> {
        self.program_alone.map(|alone| alone.delta).or_else(|| Some(self.cost.estimate()?.cost))
    }
}

/// A candidate against the baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The candidate.
    pub candidate: String,
    /// The difference, or why there is none.
    #[serde(flatten)]
    pub comparison: Outcome<Comparison>,
    /// The p-value corrected for the number of candidates (Benjamini-Hochberg); absent where there is no comparison.
    pub adjusted_p_value: Option<f64>,
    /// What it means.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// A statistic, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// The statistic.
    Estimate(T),
    /// The reason.
    NotEnough(NotEnough),
}

impl<T> Outcome<T> {
    /// The statistic, where there is one.
    #[must_use]
    pub fn estimate(&self) -> Option<&T> {
        match self {
            Self::Estimate(value) => Some(value),
            Self::NotEnough(_) => None,
        }
    }
}

impl<T> From<std::result::Result<T, NotEnough>> for Outcome<T> {
    fn from(result: std::result::Result<T, NotEnough>) -> Self {
        match result {
            Ok(value) => Self::Estimate(value),
            Err(reason) => Self::NotEnough(reason),
        }
    }
}

/// Told what the run is doing.
pub trait Progress: Send {
    /// A stage begins.
    fn stage(&mut self, name: &str);
    /// Slices are being taken.
    fn sampling(&mut self, seconds: f64, of: f64, slices: usize);
}

/// The progress of a part of something longer: puts a text about that before what the part is doing.
pub(crate) struct PartOf<'a> {
    pub(crate) inner: &'a mut dyn Progress,
    pub(crate) text: String,
}

impl Progress for PartOf<'_> {
    fn stage(&mut self, name: &str) {
        self.inner.stage(&format!("{}: {name}", self.text));
    }

    fn sampling(&mut self, seconds: f64, of: f64, _slices: usize) {
        self.inner.stage(&format!("{}: {seconds:.0} of {of:.0} s", self.text));
    }
}

/// A seed that differs from run to run, for those who give none; it is in the record.
#[must_use]
pub fn fresh_seed() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_secs().rotate_left(32) ^ u64::from(since.subsec_nanos())
}

/// What can carry out a plan: the lab, or a fake with known answers.
pub trait Rig {
    /// Measures the plan's variants. `stop` set from outside ends it early with what there is.
    ///
    /// # Errors
    /// The rig could not be set up, or failed under way.
    fn measure(&mut self, plan: &Plan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Observed>;
}

/// Whether the rounds resolve what the plan asks for. It looks at the width of the intervals alone and never at where they lie,
/// so that stopping here favours no side.
#[must_use]
pub fn is_resolved(plan: &Plan, rounds: &[&[Slice]]) -> bool {
    let narrow = |index, asked_ns| {
        stats::compare_rounds(rounds, BASELINE, index, plan.level)
            .is_ok_and(|comparison| comparison.difference.delta.half_width() <= asked_ns)
    };
    plan.resolve_ns
        .is_some_and(|asked_ns| (FIRST_CANDIDATE..).zip(&plan.candidates).all(|(index, _)| narrow(index, asked_ns)))
}

/// Measures and analyses.
///
/// # Errors
/// The rig's.
pub fn compare(plan: &Plan, rig: &mut dyn Rig, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Case> {
    let observed = rig.measure(plan, progress, stop)?;
    progress.stage("analysing");
    Ok(analyse(plan.clone(), observed))
}

/// What the observations say. Pure: the same plan and observations give the same case, bit for bit.
#[must_use]
pub fn analyse(plan: Plan, observed: Observed) -> Case {
    let names: Vec<String> = plan.variants().iter().map(ToString::to_string).collect();
    let rounds = observed.slices_by_round();
    let control = stats::compare_rounds(&rounds, BASELINE, CONTROL, plan.level).ok();
    let mut guards = guard::run_guards(&observed, plan.engine, plan.xdp_mode, &names);
    guards.extend(control.as_ref().map(guard::control));
    let rules = Rules { level: plan.level, floor_ns: plan.floor_ns, margin_ns: plan.margin_ns };
    let Weighed { mut costs, comparisons } = weigh(&rounds, &names, control.as_ref(), rules, &guard::failed(&guards));
    if let Some(empty) = plan.empty() {
        let variants = (0..).filter(|index| *index != CONTROL);
        for (index, cost) in variants.zip(&mut costs) {
            let alone = stats::compare_rounds(&rounds, empty, index, plan.level);
            cost.program_alone = alone.ok().map(|alone| alone.difference);
        }
    }
    let of_variants = (0..).filter(|index| *index != CONTROL);
    for (index, cost) in of_variants.zip(&mut costs) {
        let time = observed.remote.iter().find(|time| time.variant == index);
        cost.remote = time.map(|time| time.cost(plan.level));
    }
    let limiter = remote::limiter(&observed);
    Case { plan, costs, control, comparisons, guards, limiter, observed }
}

/// What a verdict goes by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Confidence of the intervals.
    pub level: Level,
    /// Effects up to this are not called slower or faster, in ns.
    pub floor_ns: f64,
    /// Effects shown to be smaller than this are called equivalent, in ns.
    pub margin_ns: Option<f64>,
}

/// Costs and comparisons of slices.
pub struct Weighed {
    /// What each variant costs, without the control.
    pub costs: Vec<Cost>,
    /// Each candidate against the baseline.
    pub comparisons: Vec<Compared>,
}

/// Costs and verdicts from rounds of slices whose variants are baseline, control and candidates, named in `names`.
#[must_use]
pub fn weigh(
    rounds: &[&[Slice]],
    names: &[String],
    control: Option<&Comparison>,
    rules: Rules,
    failed: &[String],
) -> Weighed {
    let costs = (0u16..)
        .zip(names)
        .filter(|(index, _)| *index != CONTROL)
        .map(|(index, name)| Cost {
            variant: name.clone(),
            cost: stats::absolute_rounds(rounds, index, rules.level).into(),
            program_alone: None,
            remote: None,
        })
        .collect();
    let compared: Vec<_> = (0u16..)
        .zip(names)
        .filter(|(index, _)| *index >= FIRST_CANDIDATE)
        .map(|(index, name)| (name.clone(), stats::compare_rounds(rounds, BASELINE, index, rules.level)))
        .collect();
    let p_values: Vec<f64> =
        compared.iter().filter_map(|(_, comparison)| Some(comparison.as_ref().ok()?.difference.p_value)).collect();
    let mut adjusted = stats::benjamini_hochberg(&p_values).into_iter();
    let comparisons = compared
        .into_iter()
        .map(|(candidate, comparison)| {
            let adjusted_p_value = if comparison.is_ok() { adjusted.next() } else { None };
            let verdict = match &comparison {
                Ok(comparison) => {
                    verdict::decide(comparison, control, rules.floor_ns, rules.margin_ns, adjusted_p_value, failed)
                }
                Err(reason) => verdict::not_enough(reason, failed),
            };
            Compared { candidate, comparison: comparison.into(), adjusted_p_value, verdict }
        })
        .collect();
    Weighed { costs, comparisons }
}
