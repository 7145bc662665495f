//! Users' programs tried beforehand on the run's frame.

use crate::device::{Tried, UserObject, VariantSpec};
use crate::error::Result;
use crate::generator::Rewrite;
use crate::observe::action_name;
use crate::observed::Trial;
use crate::reading::Reading;
use crate::run::Plan;

/// Tries each user's program on the frame, and says how many bytes of the frame have to be restored for each packet.
pub(crate) fn try_objects(plan: &Plan, frame: &[u8]) -> Result<(Vec<Trial>, usize)> {
    let mut trials: Vec<Trial> = Vec::new();
    for variant in plan.variants() {
        let VariantSpec::Object(spec) = &variant else { continue };
        let name = variant.to_string();
        if trials.iter().any(|trial| trial.variant == name) {
            continue;
        }
        let tried: Reading<Tried> = UserObject::open(spec)?.load()?.try_on(frame).into();
        trials.push(Trial {
            variant: name,
            returns: tried.clone().map(|tried| action_name(tried.action as usize)),
            changes_until: tried.map(|tried| changes_until(frame, &tried.frame)),
        });
    }
    // What could not be tried may change anything.
    let restored = trials.iter().map(|trial| *trial.changes_until.known().unwrap_or(&Rewrite::MAX_RESTORED)).max();
    Ok((trials, Rewrite::restorable(restored.unwrap_or(0), frame.len())))
}

/// Where the last change is, counted from the start; the length where that changed.
fn changes_until(before: &[u8], after: &[u8]) -> usize {
    if before.len() != after.len() {
        return before.len();
    }
    before.iter().zip(after).rposition(|(before, after)| before != after).map_or(0, |last| last + 1)
}
