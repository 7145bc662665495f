//! Boots every kernel as often as planned, and keeps what the guests said.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::compare::{self, Comparison};
use super::initramfs::Initramfs;
use super::instrument::{GuestBinary, Instrument, Qemu};
use super::machine::{Finished, Machine, Outcome};
use super::profile::{self, Profile, Symbols};
use super::protocol::{CaseName, CheckName, GuestPlan, Job, Least, Line, MODULES, PLAN, ROUNDS, Round, sizes};
use super::source::{Image, KernelSource};
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::reading::Reading;
use crate::run::Progress;

/// Memory of a guest that counts. The kernel alone needs less than 128 MiB; frames of many packets need the rest.
const MEMORY_MIB: u32 = 512;
/// Memory of a guest that runs a program of the user.
const MEMORY_TO_EXECUTE_MIB: u32 = 2048;

/// What to do with the kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelsPlan {
    /// What to count.
    pub cases: Vec<CaseName>,
    /// What to see working, in a boot of its own.
    pub checks: Vec<CheckName>,
    /// Packets that the long call has beyond the short one, over a veth; other cases have more or fewer.
    pub packets: u64,
    /// Boots of each kernel in which the cases are counted.
    pub boots: u16,
    /// Boots at a time.
    pub jobs: usize,
    /// Wall-clock seconds after which a guest is stopped.
    pub timeout_s: u64,
    /// The plugin that counts by function; `None`: no profile.
    pub plugin: Option<PathBuf>,
}

impl KernelsPlan {
    /// Every case and check, two boots a side, one boot at a time, no profile.
    #[must_use]
    pub fn new() -> Self {
        Self {
            cases: CaseName::ALL.into(),
            checks: CheckName::ALL.into(),
            packets: Self::PACKETS,
            boots: 2,
            jobs: 1,
            timeout_s: 300,
            plugin: None,
        }
    }

    /// So many that every call can end before the next timer interrupt.
    pub const PACKETS: u64 = 2048;
}

impl Default for KernelsPlan {
    fn default() -> Self {
        Self::new()
    }
}

/// Kernels compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelsCase {
    /// What was planned.
    pub plan: KernelsPlan,
    /// What counted.
    pub instrument: Instrument,
    /// The baseline, then the candidates.
    pub kernels: Vec<KernelRuns>,
    /// Each case of each candidate against the baseline.
    pub comparisons: Vec<Comparison>,
}

/// What became of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRuns {
    /// As the user gave it.
    pub given: String,
    /// What its image says of itself.
    pub image: Image,
    /// Modules loaded, in order.
    pub modules: Vec<String>,
    /// The boots in which cases were counted.
    pub boots: Vec<Boot>,
    /// The boot in which the checks ran; `None` without checks.
    pub checks: Option<Checks>,
}

/// A boot in which cases were counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// How it ended.
    pub outcome: Outcome,
    /// Wall-clock seconds from the start of QEMU to its end.
    pub wall_s: f64,
    /// The guest's machine and kernel; `None` if it did not get so far.
    pub environment: Option<Environment>,
    /// What was counted.
    pub cases: Vec<CountedCase>,
}

/// A case in one boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountedCase {
    /// Which.
    pub case: CaseName,
    /// Its rounds in order. The first does not count; of the others the calls that took least do.
    pub rounds: Reading<Vec<Round>>,
    /// By function.
    pub profile: Reading<Profile>,
}

/// A boot in which checks ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checks {
    /// How it ended.
    pub outcome: Outcome,
    /// Wall-clock seconds from the start of QEMU to its end.
    pub wall_s: f64,
    /// Each check, and why it failed if it did.
    pub checks: Vec<(CheckName, Option<String>)>,
}

/// Counts all cases on all kernels, the baseline first, and compares.
///
/// # Errors
/// A kernel's modules or the guest's root can't be had, QEMU can't be started, or the user interrupts. A guest that fails is a
/// result.
pub fn measure(
    plan: &KernelsPlan,
    qemu: &Qemu,
    guest: &GuestBinary,
    kernels: &[KernelSource],
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<KernelsCase> {
    let prepared: Vec<Prepared<'_>> =
        kernels.iter().map(|kernel| Prepared::new(plan, kernel, guest)).collect::<Result<_>>()?;
    let tasks: Vec<Task<'_>> = prepared.iter().flat_map(|kernel| kernel.tasks(plan)).collect();
    let finished = boot_all(plan, qemu, &tasks, progress, stop)?;
    let mut finished = finished.into_iter();
    let kernels: Vec<KernelRuns> = prepared.iter().map(|kernel| kernel.collect(plan, &mut finished)).collect();
    let instrument = Instrument {
        qemu: qemu.version.clone(),
        cpu: qemu.cpu().into(),
        guest_sha256: guest.sha256.clone(),
        packets: sizes(CaseName::VethRedirect, plan.packets),
    };
    let comparisons = compare::compare_kernels(&plan.cases, &kernels);
    Ok(KernelsCase { plan: plan.clone(), instrument, kernels, comparisons })
}

/// A kernel with its guests' roots.
struct Prepared<'a> {
    kernel: &'a KernelSource,
    modules: Vec<String>,
    /// Cases that this kernel can't run, and why.
    lacking: Vec<(CaseName, &'static str)>,
    folder: TempDir,
}

/// One boot to make.
struct Task<'a> {
    kernel: &'a KernelSource,
    initramfs: PathBuf,
    counted: bool,
    name: String,
}

impl<'a> Prepared<'a> {
    const COUNTING: &'static str = "counting.cpio";
    const CHECKING: &'static str = "checking.cpio";

    fn new(plan: &KernelsPlan, kernel: &'a KernelSource, guest: &GuestBinary) -> Result<Self> {
        let without_pktgen = kernel.lacks_pktgen();
        let lacking: Vec<_> = plan
            .cases
            .iter()
            .filter(|case| case.needs_pktgen())
            .filter_map(|case| Some((*case, without_pktgen?)))
            .collect();
        let cases: Vec<CaseName> =
            plan.cases.iter().copied().filter(|case| !lacking.iter().any(|(other, _)| other == case)).collect();
        let mut names = vec!["veth"];
        names.extend(cases.iter().any(|case| case.needs_pktgen()).then_some("pktgen"));
        let modules = kernel.modules(&names)?;
        let folder = temporary_folder()?;
        let count = Job::Count { cases, packets: plan.packets, symbols: plan.plugin.is_some() };
        write_root(&folder.path().join(Self::COUNTING), &modules, guest, count, &[])?;
        if !plan.checks.is_empty() {
            let check = Job::Check(plan.checks.clone());
            write_root(&folder.path().join(Self::CHECKING), &modules, guest, check, &[])?;
        }
        let modules = modules.into_iter().map(|(name, _)| name).collect();
        Ok(Self { kernel, modules, lacking, folder })
    }

    fn tasks(&self, plan: &KernelsPlan) -> Vec<Task<'a>> {
        let release = &self.kernel.image.release;
        let task =
            |file, counted, name| Task { kernel: self.kernel, initramfs: self.folder.path().join(file), counted, name };
        let mut tasks: Vec<Task<'a>> = (0..plan.boots)
            .map(|boot| task(Self::COUNTING, true, format!("{release}: boot {} of {}", boot + 1, plan.boots)))
            .collect();
        tasks.extend((!plan.checks.is_empty()).then(|| task(Self::CHECKING, false, format!("{release}: checks"))));
        tasks
    }

    /// Takes the results of its own tasks, in their order.
    fn collect(&self, plan: &KernelsPlan, finished: &mut impl Iterator<Item = Finished>) -> KernelRuns {
        KernelRuns {
            given: self.kernel.given.clone(),
            image: self.kernel.image.clone(),
            modules: self.modules.clone(),
            boots: finished.take(plan.boots.into()).map(|boot| self.boot(plan, boot)).collect(),
            checks: if plan.checks.is_empty() { None } else { finished.next().map(Checks::of) },
        }
    }

    fn boot(&self, plan: &KernelsPlan, finished: Finished) -> Boot {
        let mut profiles = Profiles::of(&finished);
        let (mut environment, mut cases) = (None, Vec::new());
        for line in finished.lines {
            match line {
                Line::Booted(booted) => environment = Some(*booted),
                Line::Counted { case, rounds } => {
                    let profile = match &rounds {
                        Ok(rounds) => profiles.next(rounds).into(),
                        Err(_) => {
                            // Nobody knows how many of its calls the plugin saw.
                            profiles = Profiles::None { why: "a case before it could not be counted".into() };
                            Reading::not_available("the case was not counted")
                        }
                    };
                    cases.push(CountedCase { case, rounds: rounds.into(), profile });
                }
                _ => {}
            }
        }
        let lacking = self.lacking.iter().map(|(case, why)| CountedCase {
            case: *case,
            rounds: Reading::not_available(*why),
            profile: Reading::not_available(*why),
        });
        cases.extend(lacking);
        cases.sort_by_key(|counted| plan.cases.iter().position(|case| *case == counted.case));
        Boot { outcome: finished.outcome, wall_s: finished.wall.as_secs_f64(), environment, cases }
    }
}

impl Checks {
    fn of(finished: Finished) -> Self {
        let checks = finished.lines.into_iter().filter_map(|line| match line {
            Line::Checked { check, outcome } => Some((check, outcome.err())),
            _ => None,
        });
        Self { checks: checks.collect(), outcome: finished.outcome, wall_s: finished.wall.as_secs_f64() }
    }
}

/// The profiles of a boot, case by case.
enum Profiles {
    Sections { sections: std::vec::IntoIter<profile::Section>, symbols: Symbols },
    None { why: String },
}

impl Profiles {
    fn of(finished: &Finished) -> Self {
        let Some(text) = &finished.profile else { return Self::None { why: "no profile was asked for".into() } };
        let Some(symbols) = &finished.symbols else { return Self::None { why: "the guest sent no symbols".into() } };
        match (profile::parse_sections(text), Symbols::read(symbols)) {
            (Ok(sections), Ok(symbols)) => Self::Sections { sections: sections.into_iter(), symbols },
            (Err(error), _) | (_, Err(error)) => Self::None { why: error.to_string() },
        }
    }

    /// The profile of the next case that was counted: of the calls that count.
    fn next(&mut self, rounds: &[Round]) -> std::result::Result<Profile, String> {
        match self {
            Self::None { why } => Err(why.clone()),
            Self::Sections { sections, symbols } => {
                let of_case: Vec<_> = sections.by_ref().take(2 * ROUNDS).collect();
                let least = Least::of(rounds)?;
                let [short, long] = [2 * least.rounds[0], 2 * least.rounds[1] + 1].map(|call| of_case.get(call));
                let (short, long) = short.zip(long).ok_or("the profile is not whole")?;
                Ok(Profile::between(short, long, symbols, least.packets))
            }
        }
    }
}

fn temporary_folder() -> Result<TempDir> {
    tempfile::tempdir().map_err(|error| Error::io("make a temporary folder", "mkdir", &error))
}

/// Writes the root of a guest: the program as `/init`, its plan, its modules, and further files by their paths there.
fn write_root(
    path: &Path,
    modules: &[(String, Vec<u8>)],
    guest: &GuestBinary,
    job: Job,
    files: &[(String, Vec<u8>)],
) -> Result<()> {
    let mut root = Initramfs::new()?;
    root.file("init", 0o755, &guest.bytes)?;
    let names: Vec<String> = modules.iter().map(|(name, _)| format!("{name}.ko")).collect();
    for (name, (_, bytes)) in names.iter().zip(modules) {
        root.file(&format!("{MODULES}/{name}"), 0o644, bytes)?;
    }
    for (name, bytes) in files {
        root.file(name, 0o755, bytes)?;
    }
    let plan = serde_json::to_vec(&GuestPlan { modules: names, job });
    let plan = plan.map_err(|error| Error::invalid("write the guest's plan", error.to_string()))?;
    root.file(PLAN, 0o644, &plan)?;
    std::fs::write(path, root.finish()?)
        .map_err(|error| Error::io(format!("write the guest's root {}", path.display()), "write", &error))
}

/// Boots all, so many at a time; the results are in the order of the tasks.
fn boot_all(
    plan: &KernelsPlan,
    qemu: &Qemu,
    tasks: &[Task<'_>],
    progress: &mut dyn Progress,
    stop: &AtomicBool,
) -> Result<Vec<Finished>> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.clamp(1, tasks.len().max(1)) {
            let (tell, next, failed) = (tell.clone(), &next, &failed);
            scope.spawn(move || {
                while let Some((index, task)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    tasks.get(index).map(|task| (index, task))
                } {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    // The receiver stays until the last sender has gone.
                    tell.send((index, None)).unwrap_or_default();
                    let finished = task.machine(plan, qemu).boot(stop, None);
                    failed.fetch_or(finished.is_err(), Ordering::Relaxed);
                    tell.send((index, Some(finished))).unwrap_or_default();
                }
            });
        }
        drop(tell);
        let mut results = Vec::new();
        for (index, finished) in told {
            match finished {
                None => progress.stage(&tasks[index].name),
                Some(finished) => results.push((index, finished?)),
            }
        }
        results.sort_by_key(|(index, _)| *index);
        Ok(results.into_iter().map(|(_, finished)| finished).collect())
    })
}

impl Task<'_> {
    fn machine<'a>(&'a self, plan: &'a KernelsPlan, qemu: &'a Qemu) -> Machine<'a> {
        Machine {
            qemu,
            kernel: self.kernel.path(),
            initramfs: &self.initramfs,
            counted: self.counted,
            plugin: plan.plugin.as_deref().filter(|_| self.counted),
            cpus: 1,
            memory_mib: MEMORY_MIB,
            timeout: Duration::from_secs(plan.timeout_s),
        }
    }
}

/// A program to run in a guest.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Program and arguments, by its path in the guest; `/init` is xdplab itself.
    pub command: Vec<String>,
    /// Its environment.
    pub environment: Vec<(String, String)>,
    /// Files to put into the guest: path here, path there.
    pub files: Vec<(PathBuf, String)>,
    /// Modules to load beside veth.
    pub modules: Vec<String>,
    /// CPUs of the guest.
    pub cpus: u16,
    /// Wall-clock seconds after which the guest is stopped.
    pub timeout_s: u64,
}

/// Runs a program in a guest, without instruction counting; tells the lines that it prints as they come, and gives its exit status.
///
/// # Errors
/// The guest could not be booted, or it failed, with the end of its console as the error's log; the program ended by a signal; or what
/// `tell` says.
pub fn execute(
    execution: &Execution,
    qemu: &Qemu,
    guest: &GuestBinary,
    kernel: &KernelSource,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<u8> {
    let what = || format!("run {} in {}", execution.command.join(" "), kernel.image.release);
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| Error::io(format!("read {}", path.display()), "open", &error))
    };
    let files: Vec<(String, Vec<u8>)> =
        execution.files.iter().map(|(here, there)| Ok((there.clone(), read(here)?))).collect::<Result<_>>()?;
    let names: Vec<&str> = ["veth"].into_iter().chain(execution.modules.iter().map(String::as_str)).collect();
    let folder = temporary_folder()?;
    let initramfs = folder.path().join("root.cpio");
    let job = Job::Execute { command: execution.command.clone(), environment: execution.environment.clone() };
    write_root(&initramfs, &kernel.modules(&names)?, guest, job, &files)?;
    let machine = Machine {
        qemu,
        kernel: kernel.path(),
        initramfs: &initramfs,
        counted: false,
        plugin: None,
        cpus: execution.cpus,
        memory_mib: MEMORY_TO_EXECUTE_MIB,
        timeout: Duration::from_secs(execution.timeout_s),
    };
    let mut hear = |line: &Line| match line {
        Line::Output(text) => tell(text),
        _ => Ok(()),
    };
    let finished = machine.boot(stop, Some(&mut hear))?;
    let exited = finished.lines.into_iter().find_map(|line| match line {
        Line::Exited(status) => Some(status),
        _ => None,
    });
    match (finished.outcome.fault(), exited) {
        (None, Some(Ok(status))) => Ok(status),
        (None, Some(Err(why))) => Err(Error::invalid(what(), why)),
        (None, None) => Err(Error::invalid(what(), "the guest did not say how it ended")),
        (Some(fault), _) => Err(Error::invalid(what(), fault).with_log(finished.outcome.console().join("\n"))),
    }
}
