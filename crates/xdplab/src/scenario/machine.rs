//! Carries out cases on this machine.

use std::sync::atomic::AtomicBool;

use super::{Bench, Finding, Work};
use crate::error::Result;
use crate::pool;
use crate::rig::LabRig;
use crate::run::{self, Engine, Plan, Progress, Rig, Rules};
use crate::settings::{self, SettingsPlan};
use crate::stats::Level;
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
            Work::Pool(group, seconds) => {
                let rules = Rules { level: Level::default(), floor_ns: pool::FLOOR_NS, margin_ns: None };
                Finding::Pool(Box::new(pool::measure(*group, *seconds, seed, rules, progress, stop)?))
            }
        })
    }
}
