//! A simulated machine with known costs, for testing the estimators.

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Slice;

/// What the machine does. Costs and deviations in ns per packet.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// The cost of each variant.
    pub(super) costs: Vec<f64>,
    pub(super) copies: u16,
    /// Standard deviation between copies of a variant.
    pub(super) layout_sd: f64,
    /// Standard deviation of a slice.
    pub(super) slice_sd: f64,
    /// The part of that deviation that is exponential, so that slices lie further above the typical one than below.
    pub(super) skew: f64,
    /// Times which slices of every variant but the first deviate more.
    pub(super) candidate_noise: f64,
    /// Share of slices that take 2 to 10 times as long.
    pub(super) slow_share: f64,
    /// Standard deviation of the drift all variants share, relative to the cost.
    pub(super) drift_sd: f64,
    /// Standard deviation of drift that each variant has for itself.
    pub(super) own_drift_sd: f64,
    /// Correlation time of both drifts.
    pub(super) drift_seconds: f64,
    /// Chance per block that the whole machine changes speed by up to 15 % for good.
    pub(super) step_chance: f64,
    /// Share of slices that never reach user space.
    pub(super) lost_share: f64,
    pub(super) cpus: u16,
    pub(super) blocks: u32,
}

/// Quiet, two equal variants, four copies, five seconds.
impl Default for Machine {
    fn default() -> Self {
        Self {
            costs: vec![66.5, 66.5],
            copies: 4,
            layout_sd: 0.0,
            slice_sd: 2.0,
            skew: 0.5,
            candidate_noise: 1.0,
            slow_share: 0.03,
            drift_sd: 0.03,
            own_drift_sd: 0.0,
            drift_seconds: 0.3,
            step_chance: 0.001,
            lost_share: 0.0,
            cpus: 1,
            blocks: 8000,
        }
    }
}

const PACKETS: u32 = 1024;

impl Machine {
    pub(super) fn run(&self, seed: u64) -> Vec<Slice> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let variants = u16::try_from(self.costs.len()).unwrap();
        let mut copies: Vec<(u16, u16, f64)> = (0..variants)
            .flat_map(|variant| (0..self.copies).map(move |copy| (variant, copy)))
            .map(|(variant, copy)| {
                (variant, copy, self.costs[usize::from(variant)] + self.layout_sd * normal(&mut random))
            })
            .collect();
        let slots: Vec<(u16, u16)> = copies.iter().map(|&(variant, copy, _)| (variant, copy)).collect();
        let mut slices = Vec::new();
        for cpu in 0..self.cpus {
            let mut now = 1_000_000_000.0;
            let mut speed = 1.0 + 0.2 * f64::from(cpu);
            let mut shared = normal(&mut random);
            let mut own: Vec<f64> = self.costs.iter().map(|_| normal(&mut random)).collect();
            for block in 0..self.blocks {
                if random.random::<f64>() < self.step_chance {
                    speed = 1.0 + 0.15 * random.random::<f64>();
                }
                for last in (1..copies.len()).rev() {
                    copies.swap(last, random.random_range(0..=last));
                }
                for &(variant, copy, cost) in &copies {
                    let kept = (-cost * f64::from(PACKETS) / (self.drift_seconds * 1e9)).exp();
                    let own_drifts = if self.own_drift_sd > 0.0 { own.iter_mut() } else { [].iter_mut() };
                    for drift in own_drifts.chain([&mut shared]) {
                        *drift = *drift * kept + (1.0 - kept * kept).sqrt() * normal(&mut random);
                    }
                    let exponential = -(1.0 - random.random::<f64>()).ln();
                    let sd = if variant == 0 { self.slice_sd } else { self.slice_sd * self.candidate_noise };
                    let noise =
                        sd * ((1.0 - self.skew.powi(2)).sqrt() * normal(&mut random) + self.skew * (exponential - 1.0));
                    let level = speed * (1.0 + self.drift_sd * shared);
                    let slow =
                        if random.random::<f64>() < self.slow_share { random.random_range(2.0..10.0) } else { 1.0 };
                    let typical = (cost + self.own_drift_sd * own[usize::from(variant)]) * level + noise;
                    let time = (typical.max(1.0) * slow * f64::from(PACKETS)).round();
                    let (start_ns, stop_ns) = (now as u64, (now + time) as u64);
                    now += time + 4000.0;
                    if random.random::<f64>() >= self.lost_share {
                        let slot = u16::try_from(slots.iter().position(|s| *s == (variant, copy)).unwrap()).unwrap();
                        slices.push(Slice { start_ns, stop_ns, packets: PACKETS, cpu, variant, copy, slot, block });
                    }
                }
            }
        }
        slices
    }
}

/// A standard normal value (Box and Muller 1958).
fn normal(random: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}
