//! The instrument is tested: many comparisons of programs whose difference is known.
//!
//! A run loads four variants of the baseline and two of each planted program, and compares them in pairs that share no
//! variant: equal programs with each other (A/A), planted ones with baselines. Each variant gets as many slices as in a
//! comparison of `seconds` with one candidate and its control. Pairs of one run share its blocks, but not their copies, and
//! what moves a whole block is not in a difference; every run, and within it every round, loads everything anew. So the
//! comparisons of one row are taken as independent.
//!
//! A shorter comparison is the first rounds of a longer one. Durations are therefore not independent of each other; the
//! comparisons of one duration are.
//!
//! The usual way beside it, once for each run: the baseline alone for half of `seconds`, then again, on a lab of its own each
//! time, and the difference of the mean times per packet. The programs are equal, so that all of it is error; a planted
//! difference would come on top.

mod overhead;
mod summary;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::device::{Action, Operation, Planted, ProgramSpec, VariantSpec};
use crate::error::{Error, Result};
use crate::guard;
use crate::host::Environment;
use crate::observed::Observed;
use crate::reading::Reading;
use crate::record::{Record, Tool, now, read_json, write_json};
use crate::run::{self, Engine, PartOf, Plan, Progress, Rig};
use crate::sample::Schedule;
use crate::stats::{self, Comparison, Difference};
use crate::topology::Placement;
use crate::units::duration_text;
use crate::verdict::{self, Verdict};

pub use overhead::{Overhead, measure as measure_overhead};
pub use summary::{ADDED_NS, Proportion, Row, SliceSizes, Usual, rows, slice_sizes, usual as usual_errors};

/// The schema that this version writes and reads.
pub const SCHEMA: &str = "xdplab.calibration/1";
/// The program that planted ones are compared with: the chain with nothing extra.
const BASELINE: Planted = Planted::Mul(0);
/// What is planted to see whether the length of slices matters.
const FOR_SLICE_SIZES: Planted = Planted::Mul(4);
/// Packets of a slice.
const SLICE_SIZES: [u32; 4] = [256, 1024, 4096, 16384];
/// Parts of a comparison that are looked at as comparisons of their own.
const PARTS: [f64; 3] = [0.25, 0.5, 1.0];
/// Baselines in a run: pairs of them are compared, and planted programs with them.
const BASELINES: u16 = 4;
/// Variants of a comparison with one candidate: baseline, control, candidate.
const VARIANTS_OF_ONE: f64 = 3.0;

/// What is calibrated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// A/A comparisons, at least.
    pub comparisons: usize,
    /// Seconds of a comparison with one candidate.
    pub seconds: f64,
    /// What is planted.
    pub effects: Vec<Planted>,
    /// Copies of each variant in a round.
    pub copies: u16,
    /// Rounds of a comparison.
    pub rounds: u16,
    /// Which CPU runs what.
    pub placement: Placement,
    /// Seed; each run has one of its own that follows from it.
    pub seed: u64,
}

impl Settings {
    /// What is planted if nothing else is asked for: a quarter of a nanosecond, about one, two and four of them, and two
    /// things that programs do.
    pub const EFFECTS: [Planted; 6] =
        [Planted::Add(1), Planted::Mul(1), Planted::Mul(2), Planted::Mul(4), Planted::Touch, Planted::Lookup];

    /// A/A pairs of a run: two of baselines, and one of each planted program.
    #[must_use]
    pub fn pairs_per_run(&self) -> usize {
        usize::from(BASELINES) / 2 + self.effects.len()
    }

    /// Runs for the comparisons asked for.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.comparisons.div_ceil(self.pairs_per_run())
    }

    /// Refuses what can't be loaded at once, before anything is measured.
    ///
    /// # Errors
    /// Too many variants, or nothing planted.
    pub fn check(&self) -> Result<()> {
        if self.effects.is_empty() {
            return Err(Error::usage("calibrate", "nothing is to be planted").remedy("plant mul=1, for example"));
        }
        let variants = self.run_plan(self.seed).variants().len();
        Schedule::draw(u16::try_from(variants).unwrap_or(u16::MAX), self.copies, self.seed).map(|_| ())
    }

    fn plan(&self, name: &str, candidates: Vec<VariantSpec>, seed: u64) -> Plan {
        Plan {
            copies: self.copies,
            rounds: self.rounds,
            ..Plan::new(name, program(BASELINE), candidates, self.placement, seed)
        }
    }

    /// The plan of a run: baselines, then two of each planted program.
    fn run_plan(&self, seed: u64) -> Plan {
        let baselines = (2..BASELINES).map(|_| BASELINE);
        let planted = self.effects.iter().flat_map(|effect| [*effect; 2]);
        let plan = self.plan("calibrate", baselines.chain(planted).map(program).collect(), seed);
        Plan { seconds: self.seconds * plan.variants().len() as f64 / VARIANTS_OF_ONE, ..plan }
    }

    /// The baseline alone, as one of two runs one after the other.
    fn usual_plan(&self, seed: u64) -> Plan {
        Plan { copies: 1, rounds: 1, seconds: self.seconds / 2.0, ..self.plan("usual", Vec::new(), seed) }
    }

    /// The pairs that a run compares.
    fn pairs(&self) -> Vec<Compared> {
        let equal = (0..BASELINES / 2)
            .map(|pair| (BASELINE, 2 * pair))
            .chain((0..).map(|index| BASELINES + 2 * index).zip(&self.effects).map(|(first, effect)| (*effect, first)));
        let equal = equal.map(|(of, first)| Compared { of, planted: false, pair: (first, first + 1) });
        let planted = (0u16..).zip(&self.effects).flat_map(|(index, &of)| {
            [0, 1].map(|which| Compared { of, planted: true, pair: (2 * which, BASELINES + 2 * index + which) })
        });
        equal.chain(planted).collect()
    }
}

/// Two variants of a run that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compared {
    of: Planted,
    planted: bool,
    pair: (u16, u16),
}

fn program(planted: Planted) -> VariantSpec {
    ProgramSpec { planted: Some(planted), ..ProgramSpec::new(Action::Drop, Operation::NoTouch) }.into()
}

/// A calibration, whole; written after every step, and gone on with from what is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`SCHEMA`].
    pub schema: String,
    /// The tool that wrote it.
    pub tool: Tool,
    /// Wall clock at the start, RFC 3339.
    pub started: String,
    /// Wall clock at the end of the last step, RFC 3339.
    pub stopped: Option<String>,
    /// The machine.
    pub environment: Environment,
    /// What is calibrated.
    pub settings: Settings,
    /// What the dispatcher and the counter of a program cost.
    pub overhead: Option<Overhead>,
    /// What each planted program costs more than the baseline, program only, no driver.
    pub alone: Option<Vec<(Planted, Reading<Difference>)>>,
    /// One planted difference, by the packets of a slice.
    pub slice_sizes: Vec<(u32, Reading<Difference>)>,
    /// The runs.
    pub runs: Vec<Run>,
}

/// What one run said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Load average over 1, 5 and 15 minutes at its end.
    pub load_average: Reading<[f64; 3]>,
    /// The usual way between equal programs, in ns per packet.
    pub usual_ns: Reading<f64>,
    /// Guards that failed; they leave all its comparisons without a decision.
    pub failed_guards: Vec<String>,
    /// Its comparisons.
    pub comparisons: Vec<Outcome>,
}

/// What one comparison said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The candidate's planted cost; the baseline has none, or the same in an A/A comparison.
    pub of: Planted,
    /// Whether the two programs differ.
    pub planted: bool,
    /// The part of the run's time that was looked at.
    pub part: f64,
    /// The difference, or why there is none.
    pub difference: Reading<Difference>,
    /// The verdict, with another A/A pair of the run as control.
    pub verdict: Verdict,
}

/// What a calibration is carried out with.
pub struct Benches<'a> {
    /// Live traffic.
    pub traffic: &'a mut dyn Rig,
    /// Programs alone.
    pub alone: &'a mut dyn Rig,
    /// Measures what the dispatcher and the counter cost.
    pub overhead: &'a mut dyn FnMut(Placement, u64) -> Result<Overhead>,
}

impl Calibration {
    /// A calibration that begins now.
    #[must_use]
    pub fn begin(environment: Environment, argv: Vec<String>, settings: Settings) -> Self {
        let Record { tool, started, environment, .. } = Record::begin(environment, argv);
        Self {
            schema: SCHEMA.into(),
            tool,
            started,
            stopped: None,
            environment,
            settings,
            overhead: None,
            alone: None,
            slice_sizes: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Reads a calibration.
    ///
    /// # Errors
    /// The file can't be read, is no calibration, or is of a schema that this version does not know.
    pub fn read(path: &Path) -> Result<Self> {
        read_json(path, SCHEMA)
    }

    /// Writes the calibration, in one step.
    ///
    /// # Errors
    /// The file or its folder can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_json(self, path)
    }

    /// Carries out what is not there yet, until it is whole or `stop` is set. `save` is called after every step.
    ///
    /// # Errors
    /// A bench's, or those of `save`.
    pub fn go_on(
        &mut self,
        benches: &mut Benches<'_>,
        progress: &mut dyn Progress,
        stop: &AtomicBool,
        save: &mut dyn FnMut(&Self) -> Result<()>,
    ) -> Result<()> {
        let begin = Instant::now();
        let (before, of) = (self.steps_done(), self.steps());
        while self.steps_done() < of && !stop.load(Ordering::Relaxed) {
            let mut progress = PartOf { inner: progress, text: self.progress_text(begin.elapsed(), before) };
            self.step(benches, &mut progress, stop)?;
            self.stopped = Some(now());
            save(self)?;
        }
        Ok(())
    }

    /// Steps that a whole calibration takes.
    #[must_use]
    pub fn steps(&self) -> usize {
        2 + SLICE_SIZES.len() + self.settings.runs()
    }

    /// Steps that were taken.
    #[must_use]
    pub fn steps_done(&self) -> usize {
        usize::from(self.overhead.is_some())
            + usize::from(self.alone.is_some())
            + self.slice_sizes.len()
            + self.runs.len()
    }

    fn progress_text(&self, elapsed: Duration, before: usize) -> String {
        let (done, of) = (self.steps_done(), self.steps());
        let text = format!("step {} of {of}", done + 1);
        // The first steps are short, and say nothing about runs.
        let measured = done - before;
        if self.runs.is_empty() || measured < 2 {
            return text;
        }
        let left = elapsed.as_secs_f64() / measured as f64 * (of - done) as f64;
        format!("{text}, {} left", duration_text(left))
    }

    /// The next step that is not there yet; a step that `stop` interrupts leaves nothing.
    fn step(&mut self, benches: &mut Benches<'_>, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<()> {
        let Settings { placement, seed, .. } = self.settings;
        let seed = seed.wrapping_add(self.steps_done() as u64 * 1000);
        if self.overhead.is_none() {
            progress.stage("the dispatcher's cost");
            self.overhead = Some((benches.overhead)(placement, seed)?);
        } else if self.alone.is_none() {
            let effects = &self.settings.effects;
            let candidates = effects.iter().copied().map(program).collect();
            let plan = self.settings.plan("alone", candidates, seed).with_engine(Engine::TestRun { cold: false });
            let plan = Plan { seconds: self.settings.seconds, ..plan };
            let found = differences(&plan, benches.alone, progress, stop)?;
            self.alone = found.map(|found| effects.iter().copied().zip(found).collect());
        } else if let Some(&slice_packets) = SLICE_SIZES.get(self.slice_sizes.len()) {
            let plan = self.settings.plan("slice size", vec![program(FOR_SLICE_SIZES)], seed);
            // One copy and twice the time, since the longest slices leave few of them to a round.
            let plan = Plan { copies: 1, seconds: 2.0 * self.settings.seconds, slice_packets, ..plan };
            let found = differences(&plan, benches.traffic, progress, stop)?;
            self.slice_sizes
                .extend(found.and_then(|found| found.into_iter().next()).map(|found| (slice_packets, found)));
        } else {
            let plan = self.settings.run_plan(seed);
            let observed = benches.traffic.measure(&plan, progress, stop)?;
            let usual_ns = usual(&self.settings.usual_plan(seed), benches.traffic, progress, stop)?;
            if !observed.interrupted && !stop.load(Ordering::Relaxed) {
                progress.stage("analysing");
                self.runs.push(analyse(&self.settings, &plan, &observed, usual_ns));
            }
        }
        Ok(())
    }
}

/// Measures the same plan twice, and takes the difference of the means.
fn usual(plan: &Plan, rig: &mut dyn Rig, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Reading<f64>> {
    let first = rig.measure(plan, progress, stop)?.slices;
    let second = rig.measure(plan, progress, stop)?.slices;
    Ok(stats::sequential(&first, &second).ok_or("a run counted no packet").into())
}

/// The difference of each of the plan's candidates from its baseline; nothing if the run was interrupted.
fn differences(
    plan: &Plan,
    rig: &mut dyn Rig,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<Option<Vec<Reading<Difference>>>> {
    let case = run::compare(plan, rig, progress, stop)?;
    let difference = |compared: run::Compared| match compared.comparison {
        run::Outcome::Estimate(comparison) => Reading::Known(comparison.difference),
        run::Outcome::NotEnough(reason) => Reading::not_available(reason.to_string()),
    };
    Ok((!case.observed.interrupted).then(|| case.comparisons.into_iter().map(difference).collect()))
}

/// What the slices of a run say of its pairs.
fn analyse(settings: &Settings, plan: &Plan, observed: &Observed, usual_ns: Reading<f64>) -> Run {
    let names: Vec<String> = plan.variants().iter().map(ToString::to_string).collect();
    let failed_guards = guard::failed(&guard::run_guards(observed, plan.engine, plan.xdp_mode, &names));
    let rounds = observed.slices_by_round();
    let pairs = settings.pairs();
    let mut comparisons = Vec::new();
    for part in PARTS {
        let first = &rounds[..(rounds.len() as f64 * part).round() as usize];
        let compared: Vec<_> =
            pairs.iter().map(|pair| stats::compare_rounds(first, pair.pair.0, pair.pair.1, plan.level)).collect();
        for (index, (pair, comparison)) in pairs.iter().zip(&compared).enumerate() {
            let verdict = match comparison {
                Ok(comparison) => {
                    let control = control_of(&pairs, index).and_then(|control| compared[control].as_ref().ok());
                    decide(comparison, control, plan, &failed_guards)
                }
                Err(reason) => verdict::not_enough(reason, &failed_guards),
            };
            comparisons.push(Outcome {
                of: pair.of,
                planted: pair.planted,
                part,
                difference: comparison
                    .as_ref()
                    .map(|comparison| comparison.difference)
                    .map_err(ToString::to_string)
                    .into(),
                verdict,
            });
        }
    }
    let load_average = Environment::read().load_average;
    Run { seed: plan.seed, load_average, usual_ns, failed_guards, comparisons }
}

fn decide(comparison: &Comparison, control: Option<&Comparison>, plan: &Plan, failed: &[String]) -> Verdict {
    verdict::decide(comparison, control, plan.floor_ns, plan.margin_ns, None, failed)
}

/// The A/A pair that serves as another pair's control: for a planted one that of its baseline, for an A/A pair the next.
fn control_of(pairs: &[Compared], index: usize) -> Option<usize> {
    let equal: Vec<usize> = (0..pairs.len()).filter(|&index| !pairs[index].planted).collect();
    if pairs[index].planted {
        return equal.into_iter().find(|&control| pairs[control].pair.0 == pairs[index].pair.0);
    }
    let place = equal.iter().position(|&control| control == index)?;
    Some(equal[(place + 1) % equal.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            comparisons: 200,
            seconds: 10.0,
            effects: Settings::EFFECTS.to_vec(),
            copies: 2,
            rounds: 8,
            placement: Placement::Same { cpu: 0 },
            seed: 1,
        }
    }

    #[test]
    fn pairs_of_equal_programs_share_no_variant_and_are_equal() {
        let settings = settings();
        let variants = settings.run_plan(1).variants();
        let mut used = Vec::new();
        for Compared { of, planted, pair: (first, second) } in settings.pairs() {
            let spec = |index: u16| variants[usize::from(index)].clone();
            assert_eq!(spec(second), program(of));
            assert_eq!(spec(first), if planted { program(BASELINE) } else { program(of) });
            if !planted {
                used.extend([first, second]);
            }
        }
        used.sort_unstable();
        assert_eq!(used, (0..u16::try_from(variants.len()).unwrap()).collect::<Vec<_>>());
        assert_eq!((settings.pairs_per_run(), settings.runs()), (8, 25));
    }

    #[test]
    fn comparisons_of_one_effect_in_one_run_share_no_variant_and_have_a_control_of_their_own() {
        let pairs = settings().pairs();
        for effect in Settings::EFFECTS {
            let of_effect: Vec<usize> =
                (0..pairs.len()).filter(|&index| pairs[index].planted && pairs[index].of == effect).collect();
            let [a, b] = of_effect[..] else { panic!("{of_effect:?}") };
            assert!(pairs[a].pair.0 != pairs[b].pair.0 && pairs[a].pair.1 != pairs[b].pair.1);
            for index in [a, b] {
                let control = &pairs[control_of(&pairs, index).unwrap()];
                assert!(!control.planted && control.of == BASELINE && control.pair.0 == pairs[index].pair.0);
            }
        }
        for (index, pair) in pairs.iter().enumerate().filter(|(_, pair)| !pair.planted) {
            let control = &pairs[control_of(&pairs, index).unwrap()];
            assert!(!control.planted && control.pair != pair.pair);
        }
    }
}
