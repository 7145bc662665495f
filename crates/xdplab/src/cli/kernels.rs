//! `xdplab kernels`: kernel against kernel, by guest instructions per packet.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::progress::ProgressLine;
use super::{Ending, output, signals};
use crate::error::{Error, Result};
use crate::host::Environment;
use crate::kernels::build::KernelBuild;
use crate::kernels::compare::Change;
use crate::kernels::{
    CaseName, CheckName, Execution, GuestBinary, KernelSource, KernelsCase, KernelsPlan, Qemu, UNIT, execute, measure,
};
use crate::record::{self, Record};
use crate::report;

/// The file name of the profiling plugin (crates/tcg-profile).
const PLUGIN: &str = "libxdplab_tcg_profile.so";

/// Options of kernels.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// The kernel that others are compared with: a vmlinuz (VMLINUZ:FOLDER names its modules), a folder with an unpacked Debian
    /// package, a .deb, or a build folder
    #[arg(long, value_name = "KERNEL", required = true, requires = "candidate")]
    baseline: Option<String>,
    /// A kernel to compare with the baseline; repeat it for several
    #[arg(long, value_name = "KERNEL")]
    candidate: Vec<String>,
    #[command(flatten)]
    count: Count,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Build a kernel from source with a configuration for guests; with a patch build it too, and compare
    Build(Build),
    /// Run a statically linked program in a guest, print its output and take over its exit status; /init is xdplab itself
    Exec(Exec),
}

/// What to count, and how.
#[derive(Args, Debug)]
struct Count {
    /// Cases to count; all if neither case nor check is given
    #[arg(long = "case", value_enum, value_name = "CASE", value_delimiter = ',')]
    cases: Vec<CaseName>,
    /// What depends on the scheduler, and is only seen to work; all if neither case nor check is given
    #[arg(long = "check", value_enum, value_name = "CHECK", value_delimiter = ',')]
    checks: Vec<CheckName>,
    /// Packets counted over a veth; other cases have more or fewer. With many more than the default, timer interrupts are counted too
    #[arg(long, value_name = "N", default_value_t = KernelsPlan::PACKETS, value_parser = clap::value_parser!(u64).range(256..=100_000_000))]
    packets: u64,
    /// Boots of each kernel, which must agree to the instruction
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=100))]
    boots: u16,
    /// Boots at a time, each of which keeps a CPU busy; all CPUs if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Wall-clock seconds after which a guest is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Count by function too, with this plugin; without a FILE the one beside this program
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    profile: Option<Option<PathBuf>>,
    /// The guest's program: a statically linked xdplab; this program itself if not given
    #[arg(long, value_name = "FILE")]
    guest: Option<PathBuf>,
    /// Exit with status 1 if a candidate takes more instructions in a case, with status 3 if a case has no number
    #[arg(long, value_enum, value_name = "VERDICT", value_delimiter = ',')]
    fail_on: Vec<FailOn>,
    /// Write the record to FILE instead of the user's state folder
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print one JSON object for each case of each candidate
    #[arg(long)]
    json: bool,
}

/// A verdict that makes the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// A candidate takes more instructions for a packet
    More,
    /// A case is not deterministic, or could not be counted
    Inconclusive,
}

/// Building from source.
#[derive(Args, Debug)]
struct Build {
    /// The kernel's source tree, in which nothing was built
    #[arg(long, value_name = "DIR")]
    source: PathBuf,
    /// Build with this patch (-p1) too, and compare; the tree is then as before
    #[arg(long, value_name = "FILE")]
    patch: Option<PathBuf>,
    /// Where everything goes that is built; the source's path with `-xdplab` behind it if not given
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    count: Count,
}

/// Running a program.
#[derive(Args, Debug)]
struct Exec {
    /// The kernel
    #[arg(value_name = "KERNEL")]
    kernel: String,
    /// Put a file into the guest
    #[arg(long = "file", value_name = "HERE:THERE", value_parser = file)]
    files: Vec<(PathBuf, String)>,
    /// Set an environment variable
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, String)>,
    /// Load a module of the kernel, with those it needs; veth is loaded anyway
    #[arg(long = "module", value_name = "NAME", value_delimiter = ',')]
    modules: Vec<String>,
    /// CPUs of the guest, which take turns on one of this machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=255))]
    cpus: u16,
    /// Wall-clock seconds after which the guest is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// The guest's program: a statically linked xdplab; this program itself if not given
    #[arg(long, value_name = "FILE")]
    guest: Option<PathBuf>,
    /// The program, by its path in the guest, and its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<String>,
}

fn file(text: &str) -> Result<(PathBuf, String), String> {
    let (here, there) = text.rsplit_once(':').ok_or("write HERE:THERE")?;
    Ok((here.into(), there.to_owned()))
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Boots, counts, compares, prints and records.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let stop = signals::stop_flag()?;
    match &options.command {
        Some(Command::Build(build)) => run_build(build, &stop),
        Some(Command::Exec(exec)) => run_exec(exec, &stop),
        None => {
            let given: Vec<&str> = options.baseline.iter().chain(&options.candidate).map(String::as_str).collect();
            compare(&given, &options.count, &Means::of(&options.count)?, &stop)
        }
    }
}

/// Is the first process of a guest.
pub(crate) fn guest() -> Result<Ending> {
    #[cfg(target_arch = "x86_64")]
    return crate::kernels::guest::run().map(|()| Ending::Done);
    #[cfg(not(target_arch = "x86_64"))]
    return Err(Error::unsupported("run as a guest", "guests are x86-64"));
}

/// What every comparison takes beside its kernels.
struct Means {
    plan: KernelsPlan,
    guest: GuestBinary,
    qemu: Qemu,
}

impl Means {
    fn of(count: &Count) -> Result<Self> {
        let means = Self { plan: plan(count)?, guest: GuestBinary::open(count.guest.as_deref())?, qemu: Qemu::find()? };
        if means.plan.plugin.is_some() {
            means.qemu.require_tested_plugins()?;
        }
        Ok(means)
    }
}

fn compare(given: &[&str], count: &Count, means: &Means, stop: &AtomicBool) -> Result<Ending> {
    let kernels: Vec<KernelSource> = given.iter().map(|kernel| KernelSource::open(kernel)).collect::<Result<_>>()?;
    let path = count.record.clone().map_or_else(|| record::default_path("kernels"), Ok)?;
    let mut record = Record::begin(Environment::read(), std::env::args().collect());
    let mut progress = ProgressLine::new();
    let case = measure(&means.plan, &means.qemu, &means.guest, &kernels, &mut progress, stop)?;
    drop(progress);
    tell(&case, count.json)?;
    let ending = ending(&case, &count.fail_on);
    record.kernels.push(case);
    record.stop();
    record.write(&path)?;
    if !count.json {
        output::text(&format!("\nrecord: {}\n", path.display()))?;
    }
    ending
}

fn plan(count: &Count) -> Result<KernelsPlan> {
    let all = count.cases.is_empty() && count.checks.is_empty();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(KernelsPlan {
        cases: CaseName::ALL.into_iter().filter(|case| all || count.cases.contains(case)).collect(),
        checks: CheckName::ALL.into_iter().filter(|check| all || count.checks.contains(check)).collect(),
        packets: count.packets,
        boots: if all || !count.cases.is_empty() { count.boots } else { 0 },
        jobs: count.jobs.map_or(cpus, |jobs| usize::from(jobs).min(cpus)),
        timeout_s: count.timeout,
        plugin: count.profile.as_ref().map(|plugin| find_plugin(plugin.as_ref())).transpose()?,
    })
}

fn find_plugin(given: Option<&PathBuf>) -> Result<PathBuf> {
    let what = "find the profiling plugin";
    let path = match given {
        Some(path) => path.clone(),
        None => {
            let own = std::env::current_exe().map_err(|error| Error::io(what, "readlink", &error))?;
            own.with_file_name(PLUGIN)
        }
    };
    std::fs::canonicalize(&path).map_err(|error| {
        Error::io(format!("{what} {}", path.display()), "realpath", &error)
            .remedy("build it with `cargo build --release -p xdplab-tcg-profile`, and name it with --profile FILE")
    })
}

fn tell(case: &KernelsCase, as_json: bool) -> Result<()> {
    if !as_json {
        return output::text(&report::kernels_text(case));
    }
    for comparison in &case.comparisons {
        let object = json!({
            "schema": "xdplab.kernels/1",
            "unit": UNIT,
            "instrument": case.instrument,
            "baseline": case.kernels[0].image,
            "candidate": case.kernels[comparison.candidate].image,
            "comparison": comparison,
        });
        output::text(&format!("{object}\n"))?;
    }
    Ok(())
}

/// A guest that failed is an error, whatever else was found.
fn ending(case: &KernelsCase, fail_on: &[FailOn]) -> Result<Ending> {
    for kernel in &case.kernels {
        let boots = kernel.boots.iter().map(|boot| &boot.outcome);
        let checks = kernel.checks.iter().map(|checks| &checks.outcome);
        if let Some((fault, outcome)) = boots.chain(checks).find_map(|outcome| Some((outcome.fault()?, outcome))) {
            let error = Error::invalid(format!("run the guest {}", kernel.image.release), fault);
            return Err(error.with_log(outcome.console().join("\n")));
        }
    }
    let has = |changes: &[Change]| case.comparisons.iter().any(|row| changes.contains(&row.change));
    let checks_failed = case
        .kernels
        .iter()
        .filter_map(|kernel| kernel.checks.as_ref())
        .any(|checks| checks.checks.iter().any(|(_, why)| why.is_some()));
    if fail_on.contains(&FailOn::More) && has(&[Change::More]) {
        return Ok(Ending::Slower);
    }
    let inconclusive = checks_failed || has(&[Change::NotDeterministic, Change::NotAvailable]);
    if fail_on.contains(&FailOn::Inconclusive) && inconclusive {
        return Ok(Ending::Inconclusive);
    }
    Ok(Ending::Done)
}

fn run_build(build: &Build, stop: &AtomicBool) -> Result<Ending> {
    let output = match &build.output {
        Some(output) => output.clone(),
        None => {
            let mut output = build.source.components().collect::<PathBuf>().into_os_string();
            output.push("-xdplab");
            output.into()
        }
    };
    let jobs =
        build.count.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let tree = KernelBuild { source: build.source.clone(), output, jobs };
    tree.check(build.patch.as_deref())?;
    let Some(patch) = &build.patch else {
        let image = tell_time("the kernel", || tree.baseline(stop))?;
        output::text(&format!("{}\n", image.display()))?;
        return Ok(Ending::Done);
    };
    // What is missing is told before the build, which takes long.
    let means = Means::of(&build.count)?;
    let baseline = tell_time("the baseline", || tree.baseline(stop))?.display().to_string();
    let candidate = tell_time("the candidate", || tree.patched(patch, stop))?.display().to_string();
    compare(&[&baseline, &candidate], &build.count, &means, stop)
}

/// Notes that something is built, and how long that took.
fn tell_time(what: &str, build: impl FnOnce() -> Result<PathBuf>) -> Result<PathBuf> {
    output::note(&format!("building {what}"));
    let begin = Instant::now();
    let image = build()?;
    output::note(&format!("built {what} in {:.0} s: {}", begin.elapsed().as_secs_f64(), image.display()));
    Ok(image)
}

fn run_exec(exec: &Exec, stop: &AtomicBool) -> Result<Ending> {
    let guest = GuestBinary::open(exec.guest.as_deref())?;
    let execution = Execution {
        command: exec.command.clone(),
        environment: exec.environment.clone(),
        files: exec.files.clone(),
        modules: exec.modules.clone(),
        cpus: exec.cpus,
        timeout_s: exec.timeout,
    };
    let kernel = KernelSource::open(&exec.kernel)?;
    let mut tell = |line: &str| output::text(&format!("{line}\n"));
    let status = execute(&execution, &Qemu::find()?, &guest, &kernel, stop, &mut tell).map_err(|error| {
        // The end of the console.
        output::log(&error);
        error.without_log()
    })?;
    Ok(if status == 0 { Ending::Done } else { Ending::Status(status) })
}
