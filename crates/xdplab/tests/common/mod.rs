//! A fake rig: a simulated machine whose costs are known, so that what a run says of it can be right or wrong.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use xdplab::Result;
use xdplab::device::{Action, Operation, Planted, ProgramSpec, VariantSpec};
use xdplab::host::{CpuShares, Environment};
use xdplab::observe::{NapiPolls, PagePools, Pages, Softirqs, Xmit};
use xdplab::observed::{Ledger, Observed};
use xdplab::packet::MacAddr;
use xdplab::reading::Reading;
use xdplab::reference::{Reference, Timing};
use xdplab::run::{Plan, Progress, Rig};
use xdplab::sample::Schedule;
use xdplab::stats::Slice;
use xdplab::sys::ethtool::DriverInfo;
use xdplab::topology::{LabDescription, NapiThread, Placement, PlacementState, PortDescription};

/// CPUs of the simulated machine.
const CPUS: usize = 2;
/// What the clock and the switch to the next program take between two slices.
const BETWEEN_SLICES_NS: f64 = 300.0;
/// How long a drift takes to turn.
const DRIFT_NS: f64 = 0.3e9;
/// How often the rig looks whether it shall stop.
const LOOK_EVERY_NS: f64 = 20e6;

/// What the simulated machine does: a program costs `base_ns` and `mul_ns` for each planted multiplication, whatever its
/// operation. Costs and deviations are in nanoseconds per packet.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) base_ns: f64,
    pub(crate) mul_ns: f64,
    /// What the baseline's control costs more than the baseline: a fault of the instrument.
    pub(crate) control_ns: f64,
    /// Standard deviation between copies of one program.
    pub(crate) layout_sd_ns: f64,
    /// Standard deviation of a slice.
    pub(crate) slice_sd_ns: f64,
    /// Share of slices that take 2 to 10 times as long.
    pub(crate) slow_share: f64,
    /// Standard deviation of the drift of the whole machine, relative to the cost.
    pub(crate) drift_sd: f64,
    pub(crate) seed: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            base_ns: 66.5,
            mul_ns: 1.0,
            control_ns: 0.0,
            layout_sd_ns: 0.03,
            slice_sd_ns: 2.0,
            slow_share: 0.03,
            drift_sd: 0.03,
            seed: 1,
        }
    }
}

/// Carries out a plan on the simulated machine, then spoils what was observed.
pub(crate) struct FakeRig {
    pub(crate) model: Model,
    pub(crate) spoil: fn(&mut Observed),
}

impl FakeRig {
    pub(crate) fn new(model: Model) -> Self {
        Self { model, spoil: |_| {} }
    }
}

impl Rig for FakeRig {
    fn measure(&mut self, plan: &Plan, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<Observed> {
        progress.stage("simulating");
        let mut slices = Vec::new();
        let mut rounds = Vec::new();
        let mut begin = 1e9;
        for round in 0..plan.rounds {
            let before = slices.len();
            begin = self.model.round(plan, round, begin, &mut slices, progress, stop)?;
            rounds.push(slices.len() - before);
        }
        let mut observed = observed(plan, slices, rounds, (begin - 1e9) / 1e9);
        observed.interrupted = stop.load(Ordering::Relaxed);
        (self.spoil)(&mut observed);
        Ok(observed)
    }
}

impl Model {
    /// Takes the slices of a round that begins at a time in ns; gives the time of its end.
    fn round(
        &self,
        plan: &Plan,
        round: u16,
        begin: f64,
        slices: &mut Vec<Slice>,
        progress: &mut dyn Progress,
        stop: &AtomicBool,
    ) -> Result<f64> {
        let variants = plan.variants();
        let seed = plan.seed.wrapping_add(u64::from(round));
        let schedule = Schedule::draw(u16::try_from(variants.len()).unwrap(), plan.copies, seed)?;
        let mut random = Pcg64Mcg::seed_from_u64(self.seed.wrapping_add(u64::from(round)));
        let costs: Vec<Vec<f64>> = variants
            .iter()
            .enumerate()
            .map(|(variant, spec)| {
                let control_ns = if variant == 1 { self.control_ns } else { 0.0 };
                let VariantSpec::Builtin(spec) = spec else { panic!("{spec} has no known cost") };
                let cost = self.base_ns + self.mul_ns * f64::from(multiplications(*spec)) + control_ns;
                (0..plan.copies).map(|_| cost + self.layout_sd_ns * normal(&mut random)).collect()
            })
            .collect();
        let end = begin + plan.seconds * 1e9 / f64::from(plan.rounds);
        let (mut now, mut looked, mut drift) = (begin, begin, normal(&mut random));
        for position in 0.. {
            if now >= end || stop.load(Ordering::Relaxed) {
                break;
            }
            let (entry, block) = schedule.at(position);
            let cost = costs[usize::from(entry.variant)][usize::from(entry.copy)];
            let kept = (-cost * f64::from(plan.slice_packets) / DRIFT_NS).exp();
            drift = drift * kept + (1.0 - kept * kept).sqrt() * normal(&mut random);
            let slow = if random.random::<f64>() < self.slow_share { random.random_range(2.0..10.0) } else { 1.0 };
            let ns = (cost * (1.0 + self.drift_sd * drift) + self.slice_sd_ns * normal(&mut random)).max(1.0) * slow;
            now += ns * f64::from(plan.warmup_packets) + BETWEEN_SLICES_NS;
            let start = now;
            now += ns * f64::from(plan.slice_packets);
            slices.push(Slice {
                start_ns: start as u64,
                stop_ns: now as u64,
                packets: plan.slice_packets,
                cpu: u16::try_from(plan.placement.dut_cpu().unwrap()).unwrap(),
                variant: entry.variant,
                copy: entry.copy,
                slot: entry.slot,
                block: u32::try_from(block).unwrap(),
            });
            if now - looked > LOOK_EVERY_NS {
                looked = now;
                progress.sampling((now - 1e9) / 1e9, plan.seconds, slices.len());
            }
        }
        Ok(now)
    }
}

/// A standard normal value (Box and Muller 1958).
fn normal(random: &mut Pcg64Mcg) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

/// What the reference workload takes on the simulated machine.
const REFERENCE: Timing = Timing { median_ns: 1000.0, mad_ns: 0.5 };

/// Everything that a faultless lab would show beside these slices.
fn observed(plan: &Plan, slices: Vec<Slice>, rounds: Vec<usize>, seconds: f64) -> Observed {
    let received = slices.len() as u64 * u64::from(plan.slice_packets + plan.warmup_packets);
    let dropped_at_transmit = received / 100;
    let generated = received + dropped_at_transmit;
    let polls = received.div_ceil(64);
    let on = |cpu: usize, count: u64| (0..CPUS).map(|at| if at == cpu { count } else { 0 }).collect::<Vec<_>>();
    let dut_cpu = plan.placement.dut_cpu().unwrap();
    let shares = CpuShares { user: 0.01, system: 0.48, idle: 0.0, irq: 0.0, softirq: 0.50, steal: 0.01 };
    let pages = |pages| Pages { held: pages, released: pages };
    let lab = lab(plan);
    Observed {
        rounds,
        slices,
        slices_lost: 0,
        packets_without_program: 0,
        seconds,
        interrupted: false,
        tried: Vec::new(),
        restored_bytes: 0,
        ledger: Ledger {
            generated: Reading::Known(generated),
            xmit: Reading::Known(Xmit {
                sent: received,
                drops: dropped_at_transmit,
                bulks: generated.div_ceil(16),
                errors: BTreeMap::new(),
            }),
            received,
            handled: Reading::Known(received),
            aborted: Reading::Known(0),
            interface_received: Reading::Known(received),
            returned: plan.may_return_packets().then_some(received),
            onwards: None,
        },
        rx_queue_packets: Reading::Known((0..plan.queues).map(|queue| if queue == 0 { received } else { 0 }).collect()),
        cpu_packets: on(dut_cpu, received),
        exceptions: Reading::Known(BTreeMap::new()),
        redirect_errors: Reading::Known(BTreeMap::new()),
        napi: Reading::Known(NapiPolls { polls, work: received, full: polls }),
        softirqs: Reading::Known(
            on(dut_cpu, polls).into_iter().map(|runs| Softirqs { busy_ns: runs * 4000, runs }).collect(),
        ),
        page_pools: Reading::Known(PagePools { device: pages(256), generator: pages(generated / 20) }),
        pool_paths: None,
        cpu_shares: Reading::Known((0..).zip(vec![Reading::Known(shares); CPUS]).collect()),
        remote: Vec::new(),
        xdp_mode: Some(plan.xdp_mode),
        reference: Reading::Known(Reference { before: REFERENCE, after: REFERENCE }),
        lab_before: Some(lab.clone()),
        lab_after: Some(lab),
        placement: PlacementState {
            placement: plan.placement,
            napi_ids: Reading::Known(vec![8193]),
            threads: match plan.placement {
                Placement::Same { .. } | Placement::Outside => Vec::new(),
                Placement::Split { dut_cpu, .. } => vec![NapiThread { napi_id: 8193, pid: 4711, cpus: vec![dut_cpu] }],
            },
        },
    }
}

fn lab(plan: &Plan) -> LabDescription {
    let port = |name: &str, last: u8| PortDescription {
        name: name.into(),
        ifindex: 2,
        mac: Reading::Known(MacAddr([2, 0x58, 0x44, 0x50, 0, last])),
        ipv4: Reading::Known([198, 18, 0, last].into()),
        ipv6: Reading::Known([0x2001, 2, 0, 0, 0, 0, 0, last.into()].into()),
        mtu: plan.mtu,
        rx_queues: Some(plan.queues.into()),
        tx_queues: Some(plan.queues.into()),
        features_on: vec!["tx-vlan-hw-insert".into()],
        driver: DriverInfo {
            driver: "veth".into(),
            version: "1.0".into(),
            firmware_version: String::new(),
            bus_info: String::new(),
        },
        netns_inode: 4_026_532_000 + u64::from(last),
    };
    LabDescription {
        placement: plan.placement,
        generator: Some(port("gen0", 1)),
        dut: port("dut0", 2),
        exit: Vec::new(),
    }
}

/// This machine, with another one's name in all that is printed of it.
pub(crate) fn environment() -> Environment {
    let mut environment = Environment::read();
    environment.cpu.model_name = Reading::Known("Example CPU".into());
    environment.cpu.online = Reading::Known("0-1".into());
    environment.hypervisor = Reading::Known("none".into());
    environment.kernel.release = Reading::Known("6.18.0".into());
    environment.mitigations = Reading::Known(BTreeMap::from([("srso".into(), "Mitigation: Safe RET".into())]));
    environment
}

/// `XDP_DROP` with this many planted multiplications; the operation is for telling candidates apart.
pub(crate) fn program(operation: Operation, multiplications: u32) -> VariantSpec {
    let planted = (multiplications > 0).then_some(Planted::Mul(multiplications));
    ProgramSpec { planted, ..ProgramSpec::new(Action::Drop, operation) }.into()
}

fn multiplications(spec: ProgramSpec) -> u32 {
    match spec.planted {
        Some(Planted::Mul(count)) => count,
        _ => 0,
    }
}

/// A plan of half a simulated second in `same` placement; a baseline without multiplications.
pub(crate) fn plan(candidates: Vec<VariantSpec>) -> Plan {
    let baseline = program(Operation::NoTouch, 0);
    Plan {
        seconds: 0.5,
        copies: 4,
        rounds: 1,
        ..Plan::new("fake", baseline, candidates, Placement::Same { cpu: 1 }, 8)
    }
}

/// What the generator counted, to be spoiled.
pub(crate) fn generated(observed: &mut Observed) -> &mut u64 {
    match &mut observed.ledger.generated {
        Reading::Known(generated) => generated,
        Reading::NotAvailable { why } => panic!("{why}"),
    }
}

/// Keeps nothing of the progress.
pub(crate) struct Silent;

impl Progress for Silent {
    fn stage(&mut self, _name: &str) {}
    fn sampling(&mut self, _seconds: f64, _of: f64, _slices: usize) {}
}
