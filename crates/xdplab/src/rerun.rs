//! A run repeated: whether the same plan finds the same, and what differs around it. Pure.

use serde::Serialize;

use crate::across::{EnvironmentDifference, value_differences};
use crate::kernels::compare::{Comparison, compare_across};
use crate::kernels::{CaseName, KernelRuns, KernelsCase};
use crate::rates::RatesCase;
use crate::record::Record;
use crate::run::Compared;
use crate::scenario::Outcome;
use crate::settings::{ComparedSetting, SettingsCase};
use crate::stats::Difference;
use crate::stream::StreamCase;
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

/// A kernel counted in guests in both runs, which should agree to the instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Recounted<'a> {
    /// Which case of a scenario it is; empty where there is no scenario.
    pub case: String,
    /// What the recorded run found.
    pub before: &'a KernelRuns,
    /// What the repeated run found.
    pub after: &'a KernelRuns,
    /// Each of its cases, the recorded run as baseline; or how the two were counted differently.
    pub rows: Result<Vec<Comparison>, String>,
}

/// A figure that each run measured once, so that its spread is not known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remeasured {
    /// Which case of a scenario it is.
    pub case: String,
    /// The figure and its unit.
    pub figure: &'static str,
    /// What the recorded run found; absent where it found none.
    pub before: Option<f64>,
    /// What the repeated run found.
    pub after: Option<f64>,
}

/// The same case and repeat of a scenario in both records, with its name.
fn pairs<'a>(before: &'a Record, after: &'a Record) -> impl Iterator<Item = (String, &'a Outcome, &'a Outcome)> {
    before.scenario.iter().zip(&after.scenario).flat_map(|(before, after)| {
        after.done.iter().filter_map(|now| {
            let then = before.done.iter().find(|then| (then.case, then.repeat) == (now.case, now.repeat))?;
            Some((after.name_of(now), &then.outcome, &now.outcome))
        })
    })
}

/// The kernels that both records have: those of the same case and repeat of a scenario, else those in the same place.
#[must_use]
pub fn recounted<'a>(before: &'a Record, after: &'a Record) -> Vec<Recounted<'a>> {
    if before.scenario.is_none() || after.scenario.is_none() {
        let cases = before.kernels.iter().zip(&after.kernels);
        return cases.flat_map(|(before, after)| kernels(String::new(), before, after)).collect();
    }
    let of_pair = |(name, then, now): (String, &Outcome, &Outcome)| {
        let (Outcome::Kernels(then), Outcome::Kernels(now)) = (then, now) else { return None };
        Some(kernels(name, before.kernels.get(*then)?, after.kernels.get(*now)?))
    };
    pairs(before, after).filter_map(of_pair).flatten().collect()
}

/// The rates and streams of a scenario that both records have.
#[must_use]
pub fn remeasured(before: &Record, after: &Record) -> Vec<Remeasured> {
    let of_pair = |(case, then, now): (String, &Outcome, &Outcome)| {
        let figures = match (then, now) {
            (Outcome::Rates(then), Outcome::Rates(now)) => {
                let ns = |case: &RatesCase| Some(case.live.end.as_ref()?.total.received.as_ref()?.ns_per_packet?.0);
                vec![("ns/packet", ns(before.rates.get(*then)?), ns(after.rates.get(*now)?))]
            }
            (Outcome::Stream(then), Outcome::Stream(now)) => {
                let (then, now) = (before.streams.get(*then)?, after.streams.get(*now)?);
                let gbps = |case: &StreamCase| case.outcome.goodput_bps.known().map(|bps| bps / 1e9);
                let per_byte = |case: &StreamCase| case.outcome.sent.cpu_ns_per_byte;
                vec![("Gbit/s", gbps(then), gbps(now)), ("client ns/B", per_byte(then), per_byte(now))]
            }
            _ => return None,
        };
        let told = move |(figure, before, after)| Remeasured { case: case.clone(), figure, before, after };
        Some(figures.into_iter().map(told))
    };
    pairs(before, after).filter_map(of_pair).flatten().collect()
}

fn kernels<'a>(case: String, before: &'a KernelsCase, after: &'a KernelsCase) -> Vec<Recounted<'a>> {
    let counted = |name: &&CaseName| before.plan.cases.contains(*name);
    let names: Vec<CaseName> = after.plan.cases.iter().filter(counted).copied().collect();
    let recounted = |(then, now): (&'a KernelRuns, &'a KernelRuns)| Recounted {
        case: case.clone(),
        before: then,
        after: now,
        rows: compare_across(&names, (&before.instrument, then), (&after.instrument, now))
            .map_err(|error| error.to_string()),
    };
    before.kernels.iter().zip(&after.kernels).map(recounted).collect()
}

/// The comparisons that both records have: those of the same case and repeat of a scenario, else those in the same place.
#[must_use]
pub fn repeated(before: &Record, after: &Record) -> Vec<RepeatedCase> {
    if before.scenario.is_none() || after.scenario.is_none() {
        let of_case = |candidates| RepeatedCase { case: String::new(), candidates };
        let cases = before.cases.iter().zip(&after.cases);
        let settings = before.settings.iter().zip(&after.settings);
        return cases
            .map(|(before, after)| of_case(compared(&before.comparisons, &after.comparisons)))
            .chain(settings.map(|(before, after)| of_case(self::settings(before, after))))
            .collect();
    }
    let of_pair = |(case, then, now): (String, &Outcome, &Outcome)| {
        let candidates = match (then, now) {
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
        Some(RepeatedCase { case, candidates })
    };
    pairs(before, after).filter_map(of_pair).collect()
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
