//! What counted instructions say. Pure.

use serde::{Deserialize, Serialize};

use super::instrument::Instrument;
use super::protocol::{Call, CaseName, Least};
use super::run::{Boot, KernelRuns};
use crate::error::Result;

/// What a packet of a case takes with one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// Every boot gave the same.
    Exact {
        /// Guest instructions of so many packets.
        instructions: u64,
        /// The packets.
        packets: u64,
        /// How many instructions more the same packets took in the next best rounds of a boot.
        spread: u64,
    },
    /// The boots differ: instructions of so many packets in each.
    NotDeterministic {
        /// Instructions and packets of each boot.
        boots: Vec<(u64, u64)>,
    },
    /// There is no number.
    NotAvailable {
        /// The reason.
        why: String,
    },
}

impl Cost {
    /// Guest instructions per packet (TCG).
    #[must_use]
    pub fn per_packet(&self) -> Option<f64> {
        match self {
            Self::Exact { instructions, packets, .. } => Some(*instructions as f64 / *packets as f64),
            Self::NotDeterministic { .. } | Self::NotAvailable { .. } => None,
        }
    }

    /// By how much rounds differ, in guest instructions per packet.
    fn spread(&self) -> Option<f64> {
        match self {
            Self::Exact { spread, packets, .. } => Some(*spread as f64 / *packets as f64),
            Self::NotDeterministic { .. } | Self::NotAvailable { .. } => None,
        }
    }
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The candidate takes more instructions for a packet.
    More,
    /// It takes fewer.
    Fewer,
    /// No difference beyond the resolution.
    Same,
    /// The boots of a side differ.
    NotDeterministic,
    /// A side has no number.
    NotAvailable,
}

/// A candidate's case against the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The case.
    pub case: CaseName,
    /// Index of the candidate among the kernels.
    pub candidate: usize,
    /// What a packet takes with the baseline.
    pub baseline_cost: Cost,
    /// What a packet takes with the candidate.
    pub candidate_cost: Cost,
    /// Candidate less baseline, in guest instructions per packet (TCG).
    pub delta: Option<f64>,
    /// By how much rounds of the same work differ on both sides together, in instructions per packet; a difference up to this is
    /// none.
    pub resolution: Option<f64>,
    /// What that means.
    pub change: Change,
}

/// Compares every case of every candidate with the baseline, the first of the kernels.
#[must_use]
pub fn compare_kernels(cases: &[CaseName], kernels: &[KernelRuns]) -> Vec<Comparison> {
    let Some((baseline, candidates)) = kernels.split_first() else { return Vec::new() };
    let of_candidate = |(index, candidate): (usize, &KernelRuns)| -> Vec<Comparison> {
        cases.iter().map(|case| compare(*case, index, cost(baseline, *case), cost(candidate, *case))).collect()
    };
    (1..).zip(candidates).flat_map(of_candidate).collect()
}

/// Compares kernels of two runs.
///
/// # Errors
/// They were counted differently.
pub fn compare_across(
    cases: &[CaseName],
    (instrument, baseline): (&Instrument, &KernelRuns),
    (other, candidate): (&Instrument, &KernelRuns),
) -> Result<Vec<Comparison>> {
    instrument.same_as(other)?;
    Ok(cases.iter().map(|case| compare(*case, 1, cost(baseline, *case), cost(candidate, *case))).collect())
}

fn compare(case: CaseName, candidate: usize, baseline_cost: Cost, candidate_cost: Cost) -> Comparison {
    let costs = baseline_cost.per_packet().zip(candidate_cost.per_packet());
    let delta = costs.map(|(before, after)| after - before);
    let resolution = baseline_cost.spread().zip(candidate_cost.spread()).map(|(before, after)| before + after);
    let unstable =
        [&baseline_cost, &candidate_cost].into_iter().any(|cost| matches!(cost, Cost::NotDeterministic { .. }));
    let change = match delta.zip(resolution) {
        Some((delta, resolution)) if delta.abs() <= resolution => Change::Same,
        Some((delta, _)) if delta > 0.0 => Change::More,
        Some(_) => Change::Fewer,
        None if unstable => Change::NotDeterministic,
        None => Change::NotAvailable,
    };
    Comparison { case, candidate, baseline_cost, candidate_cost, delta, resolution, change }
}

/// What a packet of the case takes with a kernel, over its boots.
#[must_use]
pub fn cost(kernel: &KernelRuns, case: CaseName) -> Cost {
    let boots: Result<Vec<Least>, String> = kernel.boots.iter().map(|boot| counted(boot, case)).collect();
    match boots {
        Err(why) => Cost::NotAvailable { why },
        Ok(boots) => match boots.as_slice() {
            [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|boot| boot == first) => {
                Cost::Exact { instructions: first.instructions, packets: first.packets, spread: first.spread }
            }
            [_] | [] => Cost::NotAvailable { why: "one boot can't show that a number repeats".into() },
            _ => Cost::NotDeterministic { boots: boots.iter().map(|boot| (boot.instructions, boot.packets)).collect() },
        },
    }
}

/// What the case took in a boot.
fn counted(boot: &Boot, case: CaseName) -> Result<Least, String> {
    if let Some(fault) = boot.outcome.fault() {
        return Err(fault);
    }
    let counted = boot.cases.iter().find(|counted| counted.case == case).ok_or("the guest did not run it")?;
    let least = Least::of(counted.rounds.as_ref().into_result()?)?;
    match leaves_out(&least.long) {
        Some(why) => Err(why),
        None => Ok(least),
    }
}

/// Whether the CPU time of a call is less than the kernel itself says that its packets took: a kernel that takes interrupts and
/// softirqs out of a thread's time would leave out the device's part.
fn leaves_out(call: &Call) -> Option<String> {
    let kernel_says = call.kernel_ns? * call.packets;
    // Ticks and the like may differ by some percent.
    (call.instructions < kernel_says / 100 * 98).then(|| {
        format!(
            "the CPU time of {} packets, {} virtual ns, leaves out part of the {} that the kernel says they took",
            call.packets, call.instructions, kernel_says
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::machine::Outcome;
    use crate::kernels::protocol::Round;
    use crate::kernels::run::CountedCase;
    use crate::kernels::source::Image;
    use crate::reading::Reading;

    fn call(packets: u64, instructions: u64) -> Call {
        Call { packets, instructions, ksoftirqd: 0, kernel_ns: None, timer_interrupts: 0 }
    }

    /// A boot whose first round is far off, whose second takes so many instructions for 1000 packets, and whose third takes
    /// `spread` more.
    fn boot_with(instructions: u64, spread: u64) -> Boot {
        let round = |instructions| Round { short: call(200, 7), long: call(1200, 7 + instructions) };
        let rounds = Reading::Known(vec![round(instructions / 9), round(instructions), round(instructions + spread)]);
        let profile = Reading::not_available("none");
        Boot {
            outcome: Outcome::Finished,
            wall_s: 1.0,
            environment: None,
            cases: vec![CountedCase { case: CaseName::LiveDrop, rounds, profile }],
        }
    }

    fn boot(instructions: u64) -> Boot {
        boot_with(instructions, 0)
    }

    fn kernel(boots: Vec<Boot>) -> KernelRuns {
        let image = Image { release: "6.1".into(), version: String::new(), sha256: String::new() };
        KernelRuns { given: "k".into(), image, modules: vec![], boots, checks: None }
    }

    fn compared(baseline: Vec<Boot>, candidate: Vec<Boot>) -> Comparison {
        let mut comparisons = compare_kernels(&[CaseName::LiveDrop], &[kernel(baseline), kernel(candidate)]);
        assert_eq!(comparisons.len(), 1);
        comparisons.remove(0)
    }

    #[test]
    fn three_instructions_more_are_three_instructions_more() {
        let twice = |instructions| vec![boot(instructions), boot(instructions)];
        let found = compared(twice(616_000), twice(619_000));
        assert_eq!((found.delta, found.change, found.resolution), (Some(3.0), Change::More, Some(0.0)));
        assert_eq!(found.baseline_cost.per_packet(), Some(616.0));
        assert_eq!(compared(twice(619_000), twice(616_000)).change, Change::Fewer);
        assert_eq!(compared(twice(616_000), twice(616_000)).change, Change::Same);
        assert_eq!(compared(twice(616_000), twice(616_001)).change, Change::More, "every instruction counts");
    }

    #[test]
    fn a_difference_no_larger_than_that_of_rounds_of_the_same_work_is_none() {
        let twice = |instructions, spread| vec![boot_with(instructions, spread), boot_with(instructions, spread)];
        let found = compared(twice(616_000, 300), twice(616_500, 200));
        assert_eq!((found.resolution, found.change), (Some(0.5), Change::Same));
        assert_eq!(compared(twice(616_000, 300), twice(616_501, 200)).change, Change::More);
    }

    #[test]
    fn boots_that_differ_by_one_instruction_are_not_deterministic() {
        let found = compared(vec![boot(616_000), boot(616_001)], vec![boot(1), boot(1)]);
        assert_eq!((found.delta, found.change), (None, Change::NotDeterministic));
    }

    #[test]
    fn without_two_whole_boots_a_side_there_is_no_number() {
        let crashed = Boot { outcome: Outcome::Crashed { console: vec![] }, ..boot(1) };
        let found = compared(vec![boot(1), boot(1)], vec![boot(1), crashed]);
        assert_eq!(found.change, Change::NotAvailable);
        assert_eq!(found.candidate_cost, Cost::NotAvailable { why: "the kernel crashed".into() });
        let found = compared(vec![boot(1)], vec![boot(1), boot(1)]);
        assert!(matches!(found.baseline_cost, Cost::NotAvailable { ref why } if why.contains("one boot")));
        let mut empty = boot(1);
        empty.cases.clear();
        let found = compared(vec![empty.clone(), empty], vec![boot(1), boot(1)]);
        assert_eq!(found.baseline_cost, Cost::NotAvailable { why: "the guest did not run it".into() });
    }

    #[test]
    fn cpu_time_that_leaves_softirqs_out_is_refused() {
        let mut short = boot(10_000_000);
        let Reading::Known(rounds) = &mut short.cases[0].rounds else { panic!() };
        rounds[1].long.kernel_ns = Some(60_000);
        let found = compared(vec![short.clone(), short], vec![boot(1), boot(1)]);
        assert!(matches!(found.baseline_cost, Cost::NotAvailable { ref why } if why.contains("leaves out part")));
    }

    #[test]
    fn runs_of_different_instruments_are_not_compared() {
        let instrument = Instrument {
            qemu: "7.2.22".into(),
            cpu: "max".into(),
            guest_sha256: String::new(),
            packets: [20_000, 120_000],
        };
        let other = Instrument { qemu: "8.2.0".into(), ..instrument.clone() };
        let kernel = kernel(vec![boot(5), boot(5)]);
        let cases = [CaseName::LiveDrop];
        assert!(compare_across(&cases, (&instrument, &kernel), (&other, &kernel)).is_err());
        let same = compare_across(&cases, (&instrument, &kernel), (&instrument, &kernel)).unwrap();
        assert_eq!(same[0].change, Change::Same);
    }
}
