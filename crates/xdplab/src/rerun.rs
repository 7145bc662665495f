//! A run repeated: whether the same plan finds the same, and what differs around it. Pure.

use serde::Serialize;

use crate::across::{EnvironmentDifference, value_differences};
use crate::record::Record;
use crate::run::Compared;
use crate::scenario::{Done, Outcome};
use crate::settings::{ComparedSetting, SettingsCase};
use crate::stats::Difference;
use crate::verdict::Verdict;

/// A candidate in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repeated {
    /// The candidate.
    pub candidate: String,
    /// What it differed by from the baseline in the recorded run; absent where that was too short.
    pub before: Option<Difference>,
    /// What it was called then.
    pub verdict_before: Verdict,
    /// What it differs by in the repeated run.
    pub after: Option<Difference>,
    /// What it is called now.
    pub verdict_after: Verdict,
    /// The difference now less that then: two independent runs, each with its own interval.
    pub change: Option<Difference>,
}

impl Repeated {
    fn of(candidate: &str, before: (Option<Difference>, &Verdict), after: (Option<Difference>, &Verdict)) -> Self {
        Self {
            candidate: candidate.to_owned(),
            before: before.0,
            verdict_before: before.1.clone(),
            after: after.0,
            verdict_after: after.1.clone(),
            change: after.0.zip(before.0).and_then(|(after, before)| after.less(&before).ok()),
        }
    }

    /// Whether both runs can have seen the same difference: zero is in the interval of the change. `None` where one of them
    /// saw none.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        self.change.map(|change| !change.delta.excludes_zero())
    }
}

/// A case in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepeatedCase {
    /// Which case of a scenario it is; empty where there is no scenario.
    pub case: String,
    /// Its candidates.
    pub candidates: Vec<Repeated>,
}

/// The comparisons that both records have: those of the same case and repeat of a scenario, else those in the same place.
#[must_use]
pub fn repeated(before: &Record, after: &Record) -> Vec<RepeatedCase> {
    let (Some(scenario_before), Some(scenario_after)) = (&before.scenario, &after.scenario) else {
        let of_case = |candidates| RepeatedCase { case: String::new(), candidates };
        let cases = before.cases.iter().zip(&after.cases);
        let settings = before.settings.iter().zip(&after.settings);
        return cases
            .map(|(before, after)| of_case(compared(&before.comparisons, &after.comparisons)))
            .chain(settings.map(|(before, after)| of_case(self::settings(before, after))))
            .collect();
    };
    let of_done = |now: &Done| {
        let then = scenario_before.done.iter().find(|then| (then.case, then.repeat) == (now.case, now.repeat))?;
        let candidates = match (&then.outcome, &now.outcome) {
            (Outcome::Case(then), Outcome::Case(now)) => {
                compared(&before.cases.get(*then)?.comparisons, &after.cases.get(*now)?.comparisons)
            }
            (Outcome::Settings(then), Outcome::Settings(now)) => {
                settings(before.settings.get(*then)?, after.settings.get(*now)?)
            }
            (Outcome::Pool(then), Outcome::Pool(now)) => {
                compared(&before.pools.get(*then)?.comparisons, &after.pools.get(*now)?.comparisons)
            }
            _ => return None,
        };
        Some(RepeatedCase { case: now.label.clone(), candidates })
    };
    scenario_after.done.iter().filter_map(of_done).collect()
}

fn compared(before: &[Compared], after: &[Compared]) -> Vec<Repeated> {
    let found = |compared: &Compared| compared.comparison.estimate().map(|found| found.difference);
    let repeated = |(before, after): (&Compared, &Compared)| {
        Repeated::of(&after.candidate, (found(before), &before.verdict), (found(after), &after.verdict))
    };
    before.iter().zip(after).map(repeated).collect()
}

fn settings(before: &SettingsCase, after: &SettingsCase) -> Vec<Repeated> {
    let found = |compared: &ComparedSetting| compared.comparison.estimate().map(|found| found.difference);
    let repeated = |(before, after): (&ComparedSetting, &ComparedSetting)| {
        Repeated::of(&after.command, (found(before), &before.verdict), (found(after), &after.verdict))
    };
    before.comparisons.iter().zip(&after.comparisons).map(repeated).collect()
}

/// What differs between the labs or interfaces of cases that were repeated.
#[must_use]
pub fn lab_differences(before: &Record, after: &Record) -> Vec<EnvironmentDifference> {
    let labs = |record: &Record| {
        let cases = record.cases.iter().map(|case| case.observed.lab_after.clone());
        cases.chain(record.settings.iter().map(|case| case.observed.lab_after.clone())).collect::<Vec<_>>()
    };
    // Numbers that the kernel gives anew to each lab.
    const FLEETING: [&str; 2] = ["ifindex", "netns_inode"];
    let mut differences: Vec<EnvironmentDifference> = Vec::new();
    for (before, after) in labs(before).into_iter().zip(labs(after)) {
        for difference in value_differences("lab", &before, &after) {
            let is_fleeting = FLEETING.iter().any(|name| difference.what.ends_with(name));
            if !is_fleeting && !differences.contains(&difference) {
                differences.push(difference);
            }
        }
    }
    differences
}
