//! One program under several settings, taken in turn: shell commands put the system into each state.
//!
//! For what can't stand side by side in the dispatcher, such as an offload or a sysctl. A *block* visits every state once, in
//! random order: the state's command, a time to settle, then slices. The baseline is visited twice in a block, the second time
//! as its own control. The unit is the block; what drifts from block to block cancels within it.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::generator::LiveFrames;
use crate::guard::{self, Guard};
use crate::host::CpuTimes;
use crate::observed::Observed;
use crate::packet::build_udp_frame;
use crate::reference::Beside;
use crate::rig::{Bench, Sampled, Witnesses, released, shares_since};
use crate::run::{Outcome, Plan, Progress};
use crate::stats::{self, Slice, UnitsComparison};
use crate::topology::Port;
use crate::verdict::{self, Verdict};

/// What to compare, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingsPlan {
    /// The program (its baseline), the lab and the traffic; it has no candidates.
    pub run: Plan,
    /// The commands: first the baseline's, then each candidate's. They run by `sh -c` in the network namespace of the device
    /// under test, whose interface they find in `$XDPLAB_IFACE`.
    pub commands: Vec<String>,
    /// What puts things back at the end; the baseline's command if none is given.
    pub restore: Option<String>,
    /// Seconds between a command and the first slice that counts.
    pub settle_s: f64,
    /// Seconds of slices of each visit.
    pub visit_s: f64,
}

/// One visit of a state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Visit {
    /// The block.
    pub block: u32,
    /// 0 the baseline, 1 the baseline again as control, 2 and up the candidates.
    pub state: u16,
    /// The median of the visit's slices, in ns per packet.
    pub ns: f64,
    /// Slices of the visit.
    pub slices: usize,
}

/// A measured comparison of settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingsCase {
    /// What was planned.
    pub plan: SettingsPlan,
    /// Every visit, in order.
    pub visits: Vec<Visit>,
    /// What was observed beside; its slices are those of all visits.
    pub observed: Observed,
    /// Baseline against itself.
    pub control: Option<UnitsComparison>,
    /// Each candidate against the baseline.
    pub comparisons: Vec<ComparedSetting>,
    /// The validity checks.
    pub guards: Vec<Guard>,
}

/// A candidate's setting against the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedSetting {
    /// The candidate's command.
    pub command: String,
    /// The difference, or why there is none.
    #[serde(flatten)]
    pub comparison: Outcome<UnitsComparison>,
    /// What it means.
    #[serde(flatten)]
    pub verdict: Verdict,
}

impl SettingsPlan {
    /// Seconds between a command and the first slice that counts, where nobody says otherwise.
    pub const SETTLE_SECONDS: f64 = 0.1;
    /// Seconds of slices of each visit, where nobody says otherwise.
    pub const VISIT_SECONDS: f64 = 0.2;

    /// Of each block, the states that are visited: baseline, control, candidates.
    fn states(&self) -> Vec<u16> {
        (0..=u16::try_from(self.commands.len()).unwrap_or(u16::MAX)).collect()
    }

    /// The command of a state.
    fn command(&self, state: u16) -> &str {
        &self.commands[usize::from(state.saturating_sub(1))]
    }
}

/// Measures and analyses.
///
/// # Errors
/// The lab could not be set up, or a command failed; then the restoring command has run all the same.
pub fn compare(plan: &SettingsPlan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<SettingsCase> {
    progress.stage("building the lab");
    let frame = build_udp_frame(&plan.run.flow, plan.run.size)?;
    let mut bench = Bench::set_up(&plan.run)?;
    let mut witnesses = Witnesses::attach(&plan.run, bench.watch())?;
    let reference = Beside::begin(plan.run.placement.dut_cpu());
    let generator = LiveFrames::start(&bench.traffic(&plan.run, frame, 0), &bench.lab.generator.netns)?;
    let visited = visit_all(plan, &mut bench, &generator, progress, stop);
    let generated = generator.stop()?.packets;
    let restored = run_command(plan.restore.as_deref().unwrap_or(&plan.commands[0]), &bench.lab.dut);
    let (visits, sampled) = visited?;
    restored?;
    let reference = reference.and_then(Beside::end).into();
    let mut observed = bench.observe(&mut witnesses, sampled, generated, reference)?;
    drop(bench);
    observed.page_pools = released(&witnesses.observers);
    Ok(analyse(plan.clone(), visits, observed))
}

/// What the visits say. Pure.
#[must_use]
pub fn analyse(plan: SettingsPlan, visits: Vec<Visit>, observed: Observed) -> SettingsCase {
    let level = plan.run.level;
    let against = |state: u16| stats::compare_pairs(&pairs(&visits, state), level);
    let control = against(1).ok();
    let guards = guard::run_guards(&observed, plan.run.engine, plan.run.xdp_mode, &[plan.run.baseline.to_string()]);
    let failed = guard::failed(&guards);
    let comparisons = (2u16..)
        .zip(&plan.commands[1..])
        .map(|(state, command)| {
            let comparison = against(state);
            let verdict = match &comparison {
                Ok(found) => {
                    verdict::decide_units(found, control.as_ref(), plan.run.floor_ns, plan.run.margin_ns, &failed)
                }
                Err(reason) => verdict::not_enough(reason, &failed),
            };
            ComparedSetting { command: command.clone(), comparison: comparison.into(), verdict }
        })
        .collect();
    SettingsCase { plan, visits, observed, control, comparisons, guards }
}

/// Baseline and `state` of each block that visited both.
fn pairs(visits: &[Visit], state: u16) -> Vec<(f64, f64)> {
    let of = |block: u32, state: u16| visits.iter().find(|visit| (visit.block, visit.state) == (block, state));
    let blocks = visits.iter().filter(|visit| visit.state == 0).map(|visit| visit.block);
    blocks.filter_map(|block| Some((of(block, 0)?.ns, of(block, state)?.ns))).collect()
}

/// Visits every state once in a block, block after block.
fn visit_all(
    plan: &SettingsPlan,
    bench: &mut Bench,
    generator: &LiveFrames,
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<(Vec<Visit>, Sampled)> {
    let mut random = Pcg64Mcg::seed_from_u64(plan.run.seed);
    let mut order = plan.states();
    let mut sampled = Sampled::default();
    let mut visits = Vec::new();
    let times = CpuTimes::read();
    let begin = Instant::now();
    'run: for block in 0.. {
        if begin.elapsed().as_secs_f64() >= plan.run.seconds {
            break;
        }
        order.shuffle(&mut random);
        for &state in &order {
            run_command(plan.command(state), &bench.lab.dut)?;
            pause(plan.settle_s, stop);
            bench.attached.skip();
            let first = sampled.slices.len();
            bench.attached.sample(
                &|seconds, _| seconds >= plan.visit_s,
                plan.run.seconds,
                generator,
                &mut sampled,
                progress,
                stop,
            )?;
            if stop.load(Ordering::Relaxed) {
                sampled.interrupted = true;
                break 'run;
            }
            let slices = &sampled.slices[first..];
            let mut costs: Vec<f64> = slices.iter().filter_map(Slice::ns_per_packet).collect();
            if let Some(ns) = stats::median(&mut costs) {
                visits.push(Visit { block, state, ns, slices: costs.len() });
            }
        }
    }
    sampled.cpu_shares = shares_since(times);
    Ok((visits, sampled))
}

/// Sleeps in short steps, so that a signal ends it.
fn pause(seconds: f64, stop: &AtomicBool) {
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds && !stop.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(10));
    }
}

/// Runs a command by the shell in the network namespace of the device under test.
fn run_command(command: &str, dut: &Port) -> Result<()> {
    let what = || format!("run the setting's command `{command}`");
    let output = dut.netns.run(|| {
        Command::new("sh")
            .args(["-c", command])
            .env("XDPLAB_IFACE", &dut.name)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Error::io(what(), "execve", &error))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(Error::invalid(what(), format!("{}: {last}", output.status))
        .remedy("it runs in the namespace of the device under test, whose interface is $XDPLAB_IFACE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_of_one_block_and_blocks_that_missed_a_state_have_none() {
        let visit = |block, state, ns| Visit { block, state, ns, slices: 10 };
        let visits = [visit(0, 2, 71.0), visit(0, 0, 70.0), visit(1, 0, 80.0), visit(2, 2, 91.0), visit(2, 0, 90.0)];
        assert_eq!(pairs(&visits, 2), [(70.0, 71.0), (90.0, 91.0)]);
        assert_eq!(pairs(&visits, 1), []);
    }
}
