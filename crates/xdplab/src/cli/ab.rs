//! `xdplab ab`: candidates against a baseline, slice by slice in turn.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use super::explain;
use super::progress::ProgressLine;
use super::variants::Variants;
use super::{Ending, output, signals};
use crate::device::VariantSpec;
use crate::error::{Error, Result};
use crate::explain::Part;
use crate::guard::Outcome as GuardOutcome;
use crate::host::{self, Environment};
use crate::netlink::XdpMode;
use crate::packet::{FlowSpec, FrameSize};
use crate::record::{self, Record};
use crate::report;
use crate::rig::{InterfaceRig, LabRig};
use crate::run::{self, Case, Engine, Plan, Rig};
use crate::settings::{self, SettingsCase, SettingsPlan};
use crate::testrun::TestRunRig;
use crate::topology::{Placement, PlacementName};
use crate::verdict::Verdict;

/// Options of ab.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    variants: Variants,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    length: Length,
    #[command(flatten)]
    decision: Decision,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    interface: Interface,
    #[command(flatten)]
    traffic: Traffic,
    #[command(flatten)]
    out: Out,
}

/// Settings of the system instead of programs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Settings instead of programs")]
struct Settings {
    /// A shell command that puts the system into the baseline's state; the program of --baseline (drop:no-touch if not given)
    /// is then measured under this and the candidates' states in turn
    ///
    /// Commands run in the network namespace of the device under test; its interface is in $XDPLAB_IFACE. Each is run many
    /// times, in random order.
    #[arg(long, value_name = "COMMAND", requires = "candidate_cmd", conflicts_with_all = ["candidates", "resolve"])]
    baseline_cmd: Option<String>,
    /// A shell command that puts the system into a candidate's state; repeat it for several
    #[arg(long, value_name = "COMMAND", requires = "baseline_cmd")]
    candidate_cmd: Vec<String>,
    /// What puts things back at the end; the baseline's command if not given
    #[arg(long, value_name = "COMMAND", requires = "baseline_cmd")]
    restore_cmd: Option<String>,
    /// Seconds between a command and the first slice that counts
    #[arg(long, value_name = "SECONDS", value_parser = positive, default_value_t = SettingsPlan::SETTLE_SECONDS, requires = "baseline_cmd")]
    settle: f64,
    /// Seconds of slices after each command
    #[arg(long, value_name = "SECONDS", value_parser = positive, default_value_t = SettingsPlan::VISIT_SECONDS, requires = "baseline_cmd")]
    visit: f64,
}

/// How long to measure.
#[derive(Args, Debug)]
#[command(next_help_heading = "How long")]
struct Length {
    /// Seconds during which slices are taken
    #[arg(long, value_parser = positive, default_value = "10", conflicts_with = "resolve")]
    seconds: f64,
    /// Measure until half of every interval is at most this wide, in ns per packet
    #[arg(long, value_name = "NS", value_parser = nanoseconds)]
    resolve: Option<f64>,
    /// With --resolve: give up after this many seconds, and say how many more it would take
    #[arg(long, value_name = "SECONDS", value_parser = positive, default_value = "300", requires = "resolve")]
    max_seconds: f64,
}

impl Length {
    fn rounds(&self) -> u16 {
        self.resolve.map_or_else(|| Plan::rounds_in(self.seconds), |_| Plan::FEWEST_ROUNDS)
    }
}

/// What counts as a difference, and what comes of it.
#[derive(Args, Debug)]
#[command(next_help_heading = "Verdict")]
struct Decision {
    /// Call differences shown to be smaller than this equivalent, in ns per packet
    #[arg(long, value_name = "NS", value_parser = nanoseconds)]
    margin: Option<f64>,
    /// Call no effect up to this slower or faster, in ns per packet
    #[arg(long, value_name = "NS", value_parser = nanoseconds, default_value_t = Plan::FLOOR_NS)]
    floor: f64,
    /// Exit with status 1 if a candidate is slower, with status 3 if a comparison is inconclusive
    #[arg(long, value_enum, value_name = "VERDICT", value_delimiter = ',')]
    fail_on: Vec<FailOn>,
}

/// A verdict that makes the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// A candidate costs more than the baseline
    Slower,
    /// Nothing is shown about a candidate
    Inconclusive,
}

/// How traffic is cut into slices.
#[derive(Args, Debug)]
#[command(next_help_heading = "Slices")]
struct Sampling {
    /// What runs the programs
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["on", "xdp_mode", "flows", "queues", "baseline_cmd", "explain"])]
    engine: EngineName,
    /// Separately loaded copies of each program in a round
    #[arg(long, default_value_t = Plan::COPIES, value_parser = clap::value_parser!(u16).range(1..))]
    copies: u16,
    /// Rounds, for each of which everything is loaded anew, elsewhere in memory; one for each fifth of a second, at least 8, if
    /// not given; with --resolve the fewest, 8 if not given. Fewer are taken where packets come slowly
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Packets timed in a slice; 1024 on live traffic and what suits the engine otherwise, if not given
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..))]
    slice_packets: Option<u32>,
    /// Seed of the schedule; another one each time if not given
    #[arg(long)]
    seed: Option<u64>,
}

/// What runs the programs, as typed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum EngineName {
    /// Slices of live traffic, through an interface's driver
    #[default]
    Slices,
    /// BPF_PROG_TEST_RUN of the programs alone, without a driver; the packet is in the first level cache
    TestRun,
    /// The same with the packet's first 64 bytes out of the first level cache
    TestRunCold,
}

impl EngineName {
    fn resolve(self) -> Engine {
        match self {
            Self::Slices => Engine::Slices,
            Self::TestRun => Engine::TestRun { cold: false },
            Self::TestRunCold => Engine::TestRun { cold: true },
        }
    }
}

/// An interface of the machine instead of the lab.
#[derive(Args, Debug)]
#[command(next_help_heading = "Interface")]
struct Interface {
    /// Measure what comes in on this interface from outside, instead of on a lab; it must come fast enough that packets wait
    #[arg(long, value_name = "IFACE", conflicts_with_all = ["size", "ipv6", "flows", "queues", "placement", "baseline_cmd"])]
    on: Option<String>,
    /// Take the interface even if a default route or this SSH session goes through it
    #[arg(long, requires = "on")]
    force: bool,
    /// How XDP is attached
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    xdp_mode: ModeName,
}

/// The lab and its traffic.
#[derive(Args, Debug)]
#[command(next_help_heading = "Lab")]
struct Traffic {
    /// Bytes of a frame on the wire, with the 4 bytes of FCS; the shortest of its flow if not given: 64, or 66 with --ipv6
    #[arg(long, value_name = "BYTES")]
    size: Option<usize>,
    /// Send IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// UDP flows: source ports in turn; with more than one the generator writes into every frame, which takes time
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    flows: u16,
    /// RX and TX queues of each end of the lab
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    queues: u16,
    /// Which CPU runs generator and device
    #[arg(long, value_enum, default_value_t)]
    placement: PlacementName,
}

/// How XDP is attached, as typed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ModeName {
    /// In the driver
    #[default]
    Native,
    /// On sk_buffs, also called generic XDP
    Skb,
}

/// Where the result goes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
struct Out {
    /// Write the record to FILE instead of the user's state folder
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print one JSON object for each candidate
    #[arg(long)]
    json: bool,
    /// Run the programs alone too, and say where the time of a packet goes
    #[arg(long, conflicts_with = "baseline_cmd")]
    explain: bool,
}

/// A positive number.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite()).ok_or("not a positive number".into())
}

/// A positive number of nanoseconds, with or without its unit.
fn nanoseconds(text: &str) -> Result<f64, String> {
    positive(text.strip_suffix("ns").unwrap_or(text).trim_end())
}

/// Measures, prints and records.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let stop = signals::stop_flag()?;
    let mut interface = find(&options.interface, &options.variants)?;
    let plan = plan(options, interface.as_ref())?;
    let path = match &options.out.record {
        Some(path) => path.clone(),
        None => record::default_path("ab")?,
    };
    let mut record = Record::begin(Environment::read(), std::env::args().collect());
    let mut progress = ProgressLine::new();
    if let Some(settings) = settings_plan(&options.settings, &plan) {
        let case = settings::compare(&settings, &mut progress, &stop);
        drop(progress);
        return tell_settings(options, record, case?, &path);
    }
    let rig: &mut dyn Rig = match (&mut interface, plan.engine) {
        (Some(interface), _) => interface,
        (None, Engine::Slices) => &mut LabRig,
        (None, Engine::TestRun { .. }) => &mut TestRunRig,
    };
    let case = run::compare(&plan, rig, &mut progress, &stop)?;
    let parts = if options.out.explain { explain::parts(&case, &mut progress, &stop) } else { Vec::new() };
    drop(progress);
    let text = match options.out.json {
        true => json_lines(&case, &path) + &json_parts(&parts),
        false => text(&record.environment, &case, &parts, &path),
    };
    record.add(case.clone());
    record.write(&path)?;
    output::text(&text)?;
    ending(&case, &options.decision.fail_on)
}

fn settings_plan(settings: &Settings, run: &Plan) -> Option<SettingsPlan> {
    let baseline = settings.baseline_cmd.as_ref()?;
    Some(SettingsPlan {
        run: run.clone(),
        commands: [baseline].into_iter().chain(&settings.candidate_cmd).cloned().collect(),
        restore: settings.restore_cmd.clone(),
        settle_s: settings.settle,
        visit_s: settings.visit,
    })
}

fn tell_settings(options: &Options, mut record: Record, case: SettingsCase, path: &Path) -> Result<Ending> {
    let text = if options.out.json {
        let compared = json!({
            "schema": "xdplab.ab/1", "baseline": case.plan.commands[0], "control": case.control,
            "candidates": case.comparisons, "guards": case.guards, "record": path
        });
        format!("{compared}\n")
    } else {
        format!("{}\nrecord: {}\n", report::settings_text(&record.environment, &case), path.display())
    };
    let verdicts: Vec<&Verdict> = case.comparisons.iter().map(|compared| &compared.verdict).collect();
    let ending = ending_of(&verdicts, &options.decision.fail_on);
    record.settings.push(case);
    record.stop();
    record.write(path)?;
    output::text(&text)?;
    Ok(ending)
}

/// The interface to measure on, if it and those that variants redirect to may be used.
fn find(options: &Interface, variants: &Variants) -> Result<Option<InterfaceRig>> {
    let Some(name) = &options.on else { return Ok(None) };
    if !options.force {
        [name].into_iter().chain(variants.named_targets()).try_for_each(|name| host::require_unused(name))?;
    }
    InterfaceRig::find(name).map(Some)
}

fn plan(options: &Options, interface: Option<&InterfaceRig>) -> Result<Plan> {
    let Options { variants, length, decision, sampling, traffic, .. } = options;
    let flow = if traffic.ipv6 { FlowSpec::lab_v6() } else { FlowSpec::lab_v4() };
    let size = traffic.size.map_or(FrameSize::shortest(&flow), FrameSize::Wire);
    let seed = sampling.seed.unwrap_or_else(run::fresh_seed);
    let (baseline, candidates) = variants.resolve()?;
    let described = interface.map(InterfaceRig::describe).transpose()?;
    let placement = if described.is_some() { Placement::Outside } else { traffic.placement.resolve()? };
    let plan = Plan::new("ab", baseline, candidates, placement, seed).with_engine(sampling.engine.resolve());
    let rx_queues = described.as_ref().and_then(|interface| u16::try_from(interface.rx_queues?).ok());
    Plan {
        copies: sampling.copies,
        rounds: sampling.rounds.unwrap_or_else(|| length.rounds()),
        slice_packets: sampling.slice_packets.unwrap_or(plan.slice_packets),
        seconds: length.resolve.map_or(length.seconds, |_| length.max_seconds),
        resolve_ns: length.resolve,
        floor_ns: decision.floor,
        margin_ns: decision.margin,
        interface: options.interface.on.clone(),
        xdp_mode: match options.interface.xdp_mode {
            ModeName::Native => XdpMode::Native,
            ModeName::Skb => XdpMode::Generic,
        },
        queues: rx_queues.unwrap_or(traffic.queues),
        mtu: described.map_or(plan.mtu.max(size.l3_len(&flow)?), |interface| interface.mtu),
        size,
        flow,
        flows: traffic.flows,
        ..plan
    }
    .fitted()
}

fn text(environment: &Environment, case: &Case, parts: &[Part], record: &Path) -> String {
    let explained = if parts.is_empty() { String::new() } else { format!("\n{}", report::explain_text(parts)) };
    format!("{}{explained}\nrecord: {}\n", report::case_text(environment, case), record.display())
}

/// A line for the parts of the time of a packet, where they were asked for.
fn json_parts(parts: &[Part]) -> String {
    if parts.is_empty() { String::new() } else { format!("{}\n", json!({"schema": "xdplab.ab/1", "explain": parts})) }
}

/// A line for each candidate; `record` has everything else.
fn json_lines(case: &Case, record: &Path) -> String {
    let baseline = case.costs.first();
    let line = |((compared, cost), candidate): ((&run::Compared, &run::Cost), &VariantSpec)| {
        let object = json!({
            "schema": "xdplab.ab/1",
            "baseline": baseline,
            "candidate": cost,
            "same_program": candidate.is_same_program(&case.plan.baseline),
            "compared": compared,
            "control": case.control,
            "engine": case.plan.engine,
            "resolve_ns": case.plan.resolve_ns,
            "seconds": case.observed.seconds,
            "seed": case.plan.seed,
            "limiter": case.limiter,
            "guards": case.guards,
            "record": record,
        });
        format!("{object}\n")
    };
    case.comparisons.iter().zip(case.costs.iter().skip(1)).zip(&case.plan.candidates).map(line).collect()
}

/// How the command ends. A run whose packets did not take the measured path, or which was too short, is an error.
fn ending(case: &Case, fail_on: &[FailOn]) -> Result<Ending> {
    let fatal = |guard: &&crate::guard::Guard| {
        guard.outcome == GuardOutcome::Fail && matches!(guard.id.as_str(), "no-aborted" | "slices")
    };
    if let Some(guard) = case.guards.iter().find(fatal) {
        let why = format!("{}: {}", guard.value, guard.reason);
        return Err(Error::invalid("compare the programs", why).remedy(guard.remedy.clone()));
    }
    if let Some((compared, reason)) = case.comparisons.iter().find_map(|compared| match &compared.comparison {
        run::Outcome::Estimate(_) => None,
        run::Outcome::NotEnough(reason) => Some((compared, reason)),
    }) {
        let what = format!("compare {} with {}", compared.candidate, case.plan.baseline);
        return Err(
            Error::invalid(what, reason.to_string()).remedy("run longer, or take fewer rounds or shorter slices")
        );
    }
    Ok(ending_of(&case.comparisons.iter().map(|compared| &compared.verdict).collect::<Vec<_>>(), fail_on))
}

/// What verdicts make of the exit status.
fn ending_of(verdicts: &[&Verdict], fail_on: &[FailOn]) -> Ending {
    let any = |asked, of: fn(&Verdict) -> bool| fail_on.contains(&asked) && verdicts.iter().any(|verdict| of(verdict));
    if any(FailOn::Slower, |verdict| matches!(verdict, Verdict::Slower)) {
        Ending::Slower
    } else if any(FailOn::Inconclusive, |verdict| matches!(verdict, Verdict::Inconclusive { .. })) {
        Ending::Inconclusive
    } else {
        Ending::Done
    }
}
