//! What a case is to do, from its parameters.

use std::num::NonZero;
use std::path::Path;

use super::guests::{self, GuestWork};
use super::parameters::{Kind, Parameters};
use crate::device::{Action, Operation, ProgramSpec, UserObject, VariantSpec};
use crate::error::Result;
use crate::generator::socket::SocketSpec;
use crate::packet::{FlowSpec, FrameSize};
use crate::pool::Group;
use crate::rates::RatesPlan;
use crate::run::{Engine, FrameSource, Plan};
use crate::settings::SettingsPlan;
use crate::stream::StreamPlan;
use crate::topology::{LabSpec, Placement, PlacementName};

/// Seconds that a case takes beside those in which it measures, before any was carried out: labs, programs, teardown.
const AROUND_SECONDS: f64 = 3.0;

/// What a case is to do. Seed and CPUs are those of the run.
#[derive(Clone, Debug)]
pub enum Work {
    /// Programs compared.
    Compare(Box<Plan>, PlacementName),
    /// Settings compared.
    Settings(Box<SettingsPlan>, PlacementName),
    /// Packets counted.
    Rates(Box<RatesPlan>, PlacementName),
    /// TCP streams.
    Stream(Box<StreamPlan>, PlacementName),
    /// Paths of the page-pool crate compared.
    Pool(Group, f64),
    /// Instructions counted in guests of a kernel.
    Kernels(Box<GuestWork>),
}

/// What does not fit, and at which key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) key: Option<&'static str>,
    pub(super) why: String,
}

pub(super) fn at(key: &'static str, why: impl ToString) -> Wrong {
    Wrong { key: Some(key), why: why.to_string() }
}

pub(super) fn missing(key: &'static str) -> Wrong {
    Wrong { key: None, why: format!("it has no `{key}`") }
}

impl Work {
    pub(super) fn of(kind: Kind, parameters: Parameters, folder: &Path) -> Result<Self, Wrong> {
        match kind {
            Kind::Compare => {
                let placement = parameters.placement;
                compare(parameters, folder).map(|plan| Self::Compare(Box::new(plan), placement))
            }
            Kind::Settings => {
                let placement = parameters.placement;
                settings(parameters, folder).map(|plan| Self::Settings(Box::new(plan), placement))
            }
            Kind::Rates => {
                let placement = parameters.placement;
                rates(&parameters).map(|plan| Self::Rates(Box::new(plan), placement))
            }
            Kind::Stream => {
                let placement = parameters.placement;
                stream(&parameters).map(|plan| Self::Stream(Box::new(plan), placement))
            }
            Kind::Pool => {
                let group = parameters.group.ok_or_else(|| missing("group"))?;
                Ok(Self::Pool(group, seconds(&parameters)))
            }
            Kind::Kernels => guests::work(&parameters, folder).map(|work| Self::Kernels(Box::new(work))),
        }
    }

    /// Seconds that it is to measure; `None` where it ends with what it has to count.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        match self {
            Self::Compare(plan, _) => Some(plan.seconds),
            Self::Settings(plan, _) => Some(plan.run.seconds),
            Self::Rates(plan, _) => Some(plan.seconds),
            Self::Stream(plan, _) => Some(plan.seconds),
            Self::Pool(_, seconds) => Some(*seconds),
            Self::Kernels(_) => None,
        }
    }

    /// Seconds that it is expected to take before any case was carried out.
    #[must_use]
    pub fn expected_seconds(&self) -> f64 {
        match self {
            Self::Kernels(work) => work.expected_seconds(),
            Self::Pool(_, seconds) => *seconds,
            _ => self.seconds().unwrap_or(0.0) + AROUND_SECONDS,
        }
    }

    pub(super) fn set_seconds(&mut self, to: f64) {
        match self {
            Self::Compare(plan, _) => {
                plan.rounds = plan.rounds.min(Plan::rounds_in(to));
                plan.seconds = to;
            }
            Self::Settings(plan, _) => plan.run.seconds = to,
            Self::Rates(plan, _) => plan.seconds = to,
            Self::Stream(plan, _) => plan.seconds = to,
            Self::Pool(_, seconds) => *seconds = to,
            Self::Kernels(_) => {}
        }
    }
}

fn compare(parameters: Parameters, folder: &Path) -> Result<Plan, Wrong> {
    let engine = parameters.engine.unwrap_or_default().into();
    let baseline = parameters.baseline.as_ref().ok_or_else(|| missing("baseline"))?.0.clone();
    let baseline = opened(baseline, folder).map_err(|why| at("baseline", why))?;
    if parameters.candidates.0.is_empty() {
        return Err(missing("candidates"));
    }
    let candidates = parameters.candidates.0.iter().map(|candidate| opened(candidate.0.clone(), folder));
    let candidates = candidates.collect::<Result<Vec<_>>>().map_err(|why| at("candidates", why))?;
    let plan = plan(&parameters, "compare", (baseline, candidates), engine)?;
    if engine != Engine::Slices {
        for (key, given) in [
            ("flows", parameters.flows.is_some()),
            ("queues", parameters.queues.is_some()),
            ("traffic", parameters.traffic != FrameSource::default()),
        ] {
            if given {
                return Err(at(
                    key,
                    "programs that run alone have neither queues nor traffic; leave it out, or take engine slices",
                ));
            }
        }
    }
    if parameters.traffic == FrameSource::Socket && parameters.flows.is_some() {
        return Err(at("flows", "a socket is one flow; leave it out, or take traffic live-frames"));
    }
    let rounds = if parameters.resolve_ns.is_some() { Plan::FEWEST_ROUNDS } else { plan.rounds };
    Ok(Plan {
        copies: parameters.copies.map_or(plan.copies, |copies| copies.get()),
        rounds: parameters.rounds.map_or(rounds, |rounds| rounds.get()),
        resolve_ns: parameters.resolve_ns.map(|ns| ns.0),
        traffic: parameters.traffic,
        ..plan
    })
}

fn settings(parameters: Parameters, folder: &Path) -> Result<SettingsPlan, Wrong> {
    let no_touch = || ProgramSpec::new(Action::Drop, Operation::NoTouch).into();
    let program = parameters.baseline.as_ref().map_or_else(no_touch, |program| program.0.clone());
    let program = opened(program, folder).map_err(|why| at("baseline", why))?;
    let baseline = parameters.baseline_cmd.clone().ok_or_else(|| missing("baseline-cmd"))?;
    if parameters.candidate_cmds.is_empty() {
        return Err(missing("candidate-cmds"));
    }
    Ok(SettingsPlan {
        run: plan(&parameters, "settings", (program, Vec::new()), Engine::Slices)?,
        commands: [baseline].into_iter().chain(parameters.candidate_cmds).collect(),
        restore: parameters.restore_cmd,
        settle_s: parameters.settle.map_or(SettingsPlan::SETTLE_SECONDS, |seconds| seconds.0),
        visit_s: parameters.visit.map_or(SettingsPlan::VISIT_SECONDS, |seconds| seconds.0),
    })
}

fn rates(parameters: &Parameters) -> Result<RatesPlan, Wrong> {
    let program = match parameters.program.0.as_slice() {
        [] => return Err(missing("program")),
        [program] => program.0.clone(),
        _ => return Err(at("program", "it is one program; several are an axis of the matrix")),
    };
    if let VariantSpec::Object(_) = program {
        return Err(at("program", "a user's program counts nothing for this tool; take one of ours"));
    }
    let Frames { flow, size, mtu, queues } = frames(parameters)?;
    Ok(RatesPlan {
        program,
        xdp_mode: parameters.xdp_mode.unwrap_or_default().into(),
        seconds: seconds(parameters),
        placement: Placement::Outside,
        threads: parameters.threads.map_or(1, |threads| threads.get().into()),
        queues,
        mtu,
        flow,
        size,
        flows: parameters.flows.map_or(1, NonZero::get),
    })
}

fn stream(parameters: &Parameters) -> Result<StreamPlan, Wrong> {
    let mtu = parameters.mtu.unwrap_or(1500);
    if !StreamPlan::MTUS.contains(&mtu) {
        let (least, most) = (StreamPlan::MTUS.start(), StreamPlan::MTUS.end());
        return Err(at("mtu", format!("{mtu} is not from {least} to {most} bytes")));
    }
    let streams = parameters.streams.map_or(1, |streams| usize::from(streams.get()));
    if streams > SocketSpec::MAX_STREAMS {
        return Err(at("streams", format!("{streams} is not from 1 to {}", SocketSpec::MAX_STREAMS)));
    }
    Ok(StreamPlan {
        forwarding: parameters.forwarding.ok_or_else(|| missing("forwarding"))?,
        mtu,
        queues: queues(parameters)?,
        streams,
        client_cpu: 0,
        server_cpu: 0,
        seconds: seconds(parameters),
    })
}

fn seconds(parameters: &Parameters) -> f64 {
    parameters.seconds.map_or(Plan::SECONDS, |seconds| seconds.0)
}

fn queues(parameters: &Parameters) -> Result<u16, Wrong> {
    let queues = parameters.queues.map_or(1, NonZero::get);
    if queues > LabSpec::MAX_QUEUES {
        return Err(at("queues", format!("{queues} is not from 1 to {}", LabSpec::MAX_QUEUES)));
    }
    Ok(queues)
}

/// The lab's links and the frames on them.
struct Frames {
    flow: FlowSpec,
    size: FrameSize,
    mtu: u32,
    queues: u16,
}

fn frames(parameters: &Parameters) -> Result<Frames, Wrong> {
    let flow = if parameters.ipv6 { FlowSpec::lab_v6() } else { FlowSpec::lab_v4() };
    let size = parameters.size.map_or(FrameSize::shortest(&flow), FrameSize::Wire);
    let l3_len = size.l3_len(&flow).map_err(|why| at("size", why))?;
    let mtu = parameters.mtu.unwrap_or(1500.max(l3_len));
    if mtu < l3_len {
        let why = format!("a frame of {l3_len} bytes without its Ethernet header does not fit an MTU of {mtu}");
        return Err(at("mtu", why));
    }
    Ok(Frames { flow, size, mtu, queues: queues(parameters)? })
}

/// A variant whose object file, if it has one, was read and found fit.
fn opened(variant: VariantSpec, folder: &Path) -> Result<VariantSpec> {
    let VariantSpec::Object(mut spec) = variant else { return Ok(variant) };
    spec.object = folder.join(&spec.object);
    Ok(VariantSpec::Object(UserObject::open(&spec)?.spec().clone()))
}

/// What comparisons of programs and of settings share.
fn plan(
    parameters: &Parameters,
    name: &str,
    (baseline, candidates): (VariantSpec, Vec<VariantSpec>),
    engine: Engine,
) -> Result<Plan, Wrong> {
    let Frames { flow, size, mtu, queues } = frames(parameters)?;
    // Seed and CPUs are put in when it is carried out.
    let plan = Plan::new(name, baseline, candidates, Placement::Outside, 0);
    let plan = plan.with_engine(engine).lasting(seconds(parameters));
    Ok(Plan {
        slice_packets: parameters.slice_packets.map_or(plan.slice_packets, |packets| packets.get()),
        floor_ns: parameters.floor_ns.map_or(plan.floor_ns, |ns| ns.0),
        margin_ns: parameters.margin_ns.map(|ns| ns.0),
        xdp_mode: parameters.xdp_mode.unwrap_or_default().into(),
        queues,
        flows: parameters.flows.map_or(plan.flows, |flows| flows.get()),
        mtu,
        size,
        flow,
        ..plan
    })
}
