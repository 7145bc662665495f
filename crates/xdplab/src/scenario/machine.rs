//! Carries out cases on this machine.

use std::sync::atomic::AtomicBool;

use super::{Bench, Finding, Work, guests};
use crate::error::Result;
use crate::pool;
use crate::rates::{self, RatesPlan};
use crate::rig::LabRig;
use crate::run::{self, Engine, Plan, Progress, Rig, Rules};
use crate::settings::{self, SettingsPlan};
use crate::stats::Level;
use crate::stream::{self, StreamPlan};
use crate::testrun::TestRunRig;

/// This machine, with labs that are thrown away after each case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl Bench for Machine {
    fn carry_out(&mut self, work: &Work, seed: u64, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Finding> {
        Ok(match work {
            Work::Compare(plan, placement) => {
                let plan = Plan { seed, placement: placement.resolve()?, ..(**plan).clone() }.fitted()?;
                let rig: &mut dyn Rig = match plan.engine {
                    Engine::Slices => &mut LabRig,
                    Engine::TestRun { .. } => &mut TestRunRig,
                };
                Finding::Case(Box::new(run::compare(&plan, rig, progress, stop)?))
            }
            Work::Settings(plan, placement) => {
                let run = Plan { seed, placement: placement.resolve()?, ..plan.run.clone() }.fitted()?;
                let plan = SettingsPlan { run, ..(**plan).clone() };
                Finding::Settings(Box::new(settings::compare(&plan, progress, stop)?))
            }
            Work::Rates(plan, placement) => {
                let mut plan = RatesPlan { placement: placement.resolve()?, ..(**plan).clone() };
                let cpu = plan.placement.remote_cpu()?.and_then(|cpu| u32::try_from(cpu).ok());
                plan.program.fit(false, cpu)?;
                Finding::Rates(Box::new(rates::measure(&plan, progress, stop)?))
            }
            Work::Stream(plan, placement) => {
                // The server is where the device would be.
                let placement = placement.resolve()?;
                let (client_cpu, server_cpu) = (placement.generator_cpu(), placement.dut_cpu());
                let plan = StreamPlan {
                    client_cpu: client_cpu.unwrap_or(plan.client_cpu),
                    server_cpu: server_cpu.unwrap_or(plan.server_cpu),
                    ..(**plan).clone()
                };
                Finding::Stream(Box::new(stream::measure(&plan, progress, stop)?))
            }
            Work::Pool(group, seconds) => {
                let rules = Rules { level: Level::default(), floor_ns: pool::FLOOR_NS, margin_ns: None };
                Finding::Pool(Box::new(pool::measure(*group, *seconds, seed, rules, progress, stop)?))
            }
            Work::Kernels(work) => Finding::Kernels(Box::new(guests::count(work, progress, stop)?)),
        })
    }
}
