//! Cases that are counted in guests: what is counted of a kernel for a program of the scenario.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::parameters::Parameters;
use super::work::{Wrong, at, missing};
use crate::error::{Error, Result};
use crate::kernels::{CaseName, GuestBinary, KernelSource, KernelsCase, KernelsPlan, Outcome, Qemu, measure};
use crate::netlink::XdpMode;
use crate::run::{Engine, Progress};

/// Seconds that a boot takes with all cases on the reference machine.
const BOOT_SECONDS: f64 = 20.0;
/// Packets that can be counted of a case.
const PACKETS: RangeInclusive<u64> = 256..=100_000_000;
/// Boots that a kernel can have; one can't show that a number repeats.
const BOOTS: RangeInclusive<u16> = 2..=100;
/// What a program is in a guest, by its engine and mode.
const PROGRAMS: [(&str, Engine, XdpMode, CaseName); 5] = [
    ("drop:no-touch", Engine::Slices, XdpMode::Native, CaseName::VethRedirect),
    ("drop:no-touch", Engine::Slices, XdpMode::Generic, CaseName::Generic),
    ("drop:no-touch", Engine::TestRun { cold: false }, XdpMode::Native, CaseName::ProgramAlone),
    ("tx:no-touch", Engine::Slices, XdpMode::Native, CaseName::VethTx),
    ("redirect-map:egress-forward", Engine::Slices, XdpMode::Native, CaseName::DevmapEgress),
];

/// What to count, on which kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestWork {
    /// The kernel, as `xdplab kernels` takes it.
    pub kernel: String,
    /// What is counted of it.
    pub plan: KernelsPlan,
    /// The guest's program; `None`: this program itself.
    pub guest: Option<PathBuf>,
}

impl GuestWork {
    /// Wall-clock seconds that all boots are expected to take.
    #[must_use]
    pub fn expected_seconds(&self) -> f64 {
        f64::from(self.plan.boots) * BOOT_SECONDS / self.plan.jobs.min(self.plan.boots.into()) as f64
    }
}

pub(super) fn work(parameters: &Parameters, folder: &Path) -> Result<GuestWork, Wrong> {
    let kernel = parameters.kernel.as_ref().ok_or_else(|| missing("kernel"))?;
    let cases = cases(parameters)?;
    let packets = parameters.packets.unwrap_or(KernelsPlan::PACKETS);
    if !PACKETS.contains(&packets) {
        return Err(at("packets", format!("{packets} is not from {} to {}", PACKETS.start(), PACKETS.end())));
    }
    let usual = KernelsPlan::new();
    let boots = parameters.boots.unwrap_or(usual.boots);
    if !BOOTS.contains(&boots) {
        let why = "one boot can't show that a number repeats";
        return Err(at("boots", format!("{boots} is not from {} to {}; {why}", BOOTS.start(), BOOTS.end())));
    }
    Ok(GuestWork {
        kernel: found(folder, kernel)?,
        plan: KernelsPlan {
            cases,
            checks: Vec::new(),
            packets,
            boots,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            timeout_s: parameters.timeout.map_or(usual.timeout_s, |seconds| seconds.get().into()),
            plugin: None,
        },
        guest: parameters.guest.as_ref().map(|guest| folder.join(guest)),
    })
}

/// What is counted: cases by their names, or what programs are in a guest.
fn cases(parameters: &Parameters) -> Result<Vec<CaseName>, Wrong> {
    let programs: Vec<String> = parameters.program.0.iter().map(|program| program.0.to_string()).collect();
    let named = &parameters.case.0;
    if !named.is_empty() {
        for (key, given) in [
            ("program", !programs.is_empty()),
            ("xdp-mode", parameters.xdp_mode.is_some()),
            ("engine", parameters.engine.is_some()),
        ] {
            if given {
                return Err(at(key, "a `case` says all of what is counted; leave one of them out"));
            }
        }
    } else if programs.is_empty() {
        return Err(Wrong { key: None, why: format!("it has neither `program` nor `case`; {}", allowed()) });
    }
    let engine = parameters.engine.unwrap_or_default().into();
    let mode = parameters.xdp_mode.unwrap_or_default().into();
    let of_programs = programs.iter().map(|program| case_of(program, engine, mode)).collect::<Result<Vec<_>, _>>()?;
    let wanted = |case: &CaseName| named.contains(case) || of_programs.contains(case);
    Ok(CaseName::ALL.into_iter().filter(wanted).collect())
}

fn case_of(program: &str, engine: Engine, mode: XdpMode) -> Result<CaseName, Wrong> {
    let mut of_program = PROGRAMS.iter().filter(|(name, ..)| *name == program).peekable();
    if of_program.peek().is_none() {
        return Err(at("program", format!("no guest counts {program}; {}", allowed())));
    }
    let mut of_engine = of_program.filter(|(_, of, ..)| *of == engine).peekable();
    if of_engine.peek().is_none() {
        return Err(at(
            "engine",
            format!("no guest counts {program} with it; leave it out, or take test-run for drop:no-touch"),
        ));
    }
    let case = of_engine.find(|(_, _, of, _)| *of == mode).map(|(.., case)| *case);
    case.ok_or_else(|| {
        at("xdp-mode", format!("no guest counts {program} in it; leave it out, or take skb for drop:no-touch"))
    })
}

fn allowed() -> String {
    let mut programs = PROGRAMS.map(|(program, ..)| program).to_vec();
    programs.dedup();
    let cases = CaseName::ALL.map(|case| case.to_string()).join(", ");
    format!("`program` is of {}, `case` of {cases}", programs.join(", "))
}

/// The kernel by its path from the scenario's folder. Whether it can be booted is seen when it is.
fn found(folder: &Path, given: &str) -> Result<String, Wrong> {
    let path = |part: &str| folder.join(part);
    if path(given).exists() {
        return Ok(path(given).display().to_string());
    }
    let parts = given.rsplit_once(':').map(|(image, modules)| [path(image), path(modules)]);
    match parts.filter(|parts| parts.iter().all(|part| part.exists())) {
        Some([image, modules]) => Ok(format!("{}:{}", image.display(), modules.display())),
        None => Err(at(
            "kernel",
            format!(
                "there is no {}; a kernel is a vmlinuz (VMLINUZ:FOLDER names its modules), a folder with an unpacked package, a \
                 .deb or a build folder",
                path(given).display()
            ),
        )),
    }
}

/// Boots the kernel and counts. A guest that fails is an error here, so that a run that goes on boots it again.
pub(super) fn count(work: &GuestWork, progress: &mut dyn Progress, stop: &AtomicBool) -> Result<KernelsCase> {
    let kernel = KernelSource::open(&work.kernel)?;
    let guest = GuestBinary::open(work.guest.as_deref())?;
    let case = measure(&work.plan, &Qemu::find()?, &guest, std::slice::from_ref(&kernel), progress, stop)?;
    let mut outcomes = case.kernels.iter().flat_map(|kernel| &kernel.boots).map(|boot| &boot.outcome);
    match outcomes.find_map(Outcome::fault) {
        None => Ok(case),
        Some(fault) => Err(Error::invalid(format!("run the guest {}", kernel.image.release), fault)
            .remedy("xdplab kernels shows the end of its console")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::Environment;
    use crate::kernels::{Boot, Call, CountedCase, Image, Instrument, KernelRuns, Round};
    use crate::pool::PoolCase;
    use crate::reading::Reading;
    use crate::record::Record;
    use crate::report::{self, Format};
    use crate::rerun;
    use crate::scenario::{Bench, Finding, Scenario, ScenarioRun, Work, go_on};
    use crate::toml_file::TomlFile;

    /// A scenario with one case that is counted in guests, on a kernel that is there.
    fn scenario(lines: &str) -> Result<Scenario> {
        let text = format!("name = \"s\"\n[[cases]]\nkind = \"kernels\"\n{lines}\n");
        Scenario::of(&TomlFile::of("read the scenario s.toml", text), Path::new("/dev"))
    }

    fn plan(lines: &str) -> GuestWork {
        let scenario = scenario(&format!("kernel = \"null\"\n{lines}")).unwrap();
        let [case] = scenario.cases.as_slice() else { panic!("{scenario:?}") };
        let Work::Kernels(work) = &case.work else { panic!("{case:?}") };
        (**work).clone()
    }

    #[test]
    fn a_program_is_the_case_of_the_guests_that_runs_it() {
        for (lines, cases) in [
            ("program = \"drop:no-touch\"", vec![CaseName::VethRedirect]),
            ("program = \"drop:no-touch\"\nxdp-mode = \"skb\"", vec![CaseName::Generic]),
            ("program = \"drop:no-touch\"\nengine = \"test-run\"", vec![CaseName::ProgramAlone]),
            (
                "program = [\"tx:no-touch\", \"redirect-map:egress-forward\", \"tx:no-touch\"]",
                vec![CaseName::DevmapEgress, CaseName::VethTx],
            ),
            ("case = [\"multi-buffer\", \"live-drop\"]", vec![CaseName::LiveDrop, CaseName::MultiBuffer]),
        ] {
            let work = plan(lines);
            assert_eq!((work.plan.cases, work.kernel.as_str()), (cases, "/dev/null"), "{lines}");
        }
        let work = plan("case = \"pktgen\"\npackets = 2000\nboots = 3\ntimeout = 9\nguest = \"xdplab\"");
        assert_eq!((work.plan.packets, work.plan.boots, work.plan.timeout_s), (2000, 3, 9));
        assert_eq!((work.guest.unwrap(), work.plan.checks), (PathBuf::from("/dev/xdplab"), vec![]));
    }

    #[test]
    fn modules_named_beside_a_kernel_are_looked_for_from_the_scenario_s_folder_too() {
        assert_eq!(found(Path::new("/dev"), "null:shm").unwrap(), "/dev/null:/dev/shm");
        assert!(
            found(Path::new("/dev"), "null:absent")
                .unwrap_err()
                .why
                .starts_with("there is no /dev/null:absent; a kernel is")
        );
    }

    #[test]
    fn what_means_nothing_in_a_guest_is_told_with_line_key_and_what_is_allowed() {
        const KERNEL: &str = "kernel = \"null\"\n";
        for (lines, expected) in [
            ("program = \"drop:no-touch\"", "line 2, key `cases[0]`: it has no `kernel`"),
            (
                "kernel = \"absent\"\ncase = \"pktgen\"",
                "line 4, key `cases[0].kernel`: there is no /dev/absent; a kernel is a vmlinuz",
            ),
            (
                KERNEL,
                "line 2, key `cases[0]`: it has neither `program` nor `case`; `program` is of drop:no-touch, tx:no-touch",
            ),
            (
                "kernel = \"null\"\nmatrix.placement = [\"same\", \"split\"]",
                "line 5, key `cases[0].matrix.placement`: a case of kind kernels has no `placement`, only kernel, program, xdp-mode,",
            ),
            (
                "kernel = \"null\"\nseconds = 10",
                "line 5, key `cases[0].seconds`: a case of kind kernels has no `seconds`, only ",
            ),
            (
                "kernel = \"null\"\nthreads = 2",
                "line 5, key `cases[0].threads`: a case of kind kernels has no `threads`, only ",
            ),
            (
                "kernel = \"null\"\nprogram = \"drop:read-data\"",
                "line 5, key `cases[0].program`: no guest counts drop:read-data; `program` is of drop:no-touch, tx:no-touch, ",
            ),
            (
                "kernel = \"null\"\nprogram = \"tx:no-touch\"\nxdp-mode = \"skb\"",
                "line 6, key `cases[0].xdp-mode`: no guest counts tx:no-touch in it",
            ),
            (
                "kernel = \"null\"\nprogram = \"drop:no-touch\"\nengine = \"test-run-cold\"",
                "line 6, key `cases[0].engine`: no guest counts drop:no-touch with it",
            ),
            (
                "kernel = \"null\"\ncase = \"cpumap\"",
                "line 5, key `cases[0].case`: unknown variant `cpumap`, expected one of `program-alone`, ",
            ),
            (
                "kernel = \"null\"\ncase = \"pktgen\"\nxdp-mode = \"skb\"",
                "line 6, key `cases[0].xdp-mode`: a `case` says all of what is counted",
            ),
            ("kernel = \"null\"\ncase = \"pktgen\"\nboots = 1", "line 6, key `cases[0].boots`: 1 is not from 2 to 100"),
            (
                "kernel = \"null\"\ncase = \"pktgen\"\npackets = 1",
                "line 6, key `cases[0].packets`: 1 is not from 256 to ",
            ),
            (
                "kernel = \"null\"\nmatrix.case = [\"pktgen\", [\"live-drop\", 3]]",
                "line 5, key `cases[0].matrix.case[1][1]`: wanted string or table",
            ),
        ] {
            let error = scenario(lines).unwrap_err().to_string();
            let told = error.strip_prefix("can't read the scenario s.toml: ").unwrap_or(&error);
            assert!(told.contains(expected), "{lines}\n{told}\n{expected}");
        }
    }

    #[test]
    fn a_kernel_is_compared_with_the_first_that_has_the_same_of_everything_else() {
        let scenario =
            scenario("[cases.matrix]\nkernel = [\"null\", \"zero\", \"full\"]\ncase = [\"pktgen\", \"generic\"]")
                .unwrap();
        let planned: Vec<(&str, Option<usize>)> =
            scenario.cases.iter().map(|case| (case.label.as_str(), case.against)).collect();
        assert_eq!(
            planned,
            [
                ("kernels case=pktgen kernel=null", None),
                ("kernels case=pktgen kernel=zero", Some(0)),
                ("kernels case=pktgen kernel=full", Some(0)),
                ("kernels case=generic kernel=null", None),
                ("kernels case=generic kernel=zero", Some(3)),
                ("kernels case=generic kernel=full", Some(3)),
            ]
        );
        assert_eq!(scenario.cases[0].work.seconds(), None);
        assert!(scenario.cases[0].work.expected_seconds() >= BOOT_SECONDS);
    }

    /// Counts what it is told to have counted of a kernel, by the kernel's path.
    struct Fake(BTreeMap<&'static str, u64>);

    impl Bench for Fake {
        fn carry_out(&mut self, work: &Work, seed: u64, _: &mut dyn Progress, _: &AtomicBool) -> Result<Finding> {
            Ok(match work {
                Work::Kernels(work) => {
                    let why = || Error::unsupported("run the guest", "the kernel crashed");
                    let instructions = self.0.get(work.kernel.as_str()).ok_or_else(why)?;
                    Finding::Kernels(Box::new(counted(work, *instructions)))
                }
                Work::Pool(group, seconds) => Finding::Pool(Box::new(PoolCase {
                    group: *group,
                    seed,
                    seconds: *seconds,
                    cpus: [0, 0],
                    slices: 0,
                    costs: Vec::new(),
                    control: None,
                    comparisons: Vec::new(),
                    bounds: Vec::new(),
                })),
                other => panic!("{other:?}"),
            })
        }
    }

    /// Two boots that agree on so many instructions for 50,000 packets.
    fn counted(work: &GuestWork, instructions: u64) -> KernelsCase {
        let call =
            |packets, instructions| Call { packets, instructions, ksoftirqd: 0, kernel_ns: None, timer_interrupts: 0 };
        let round = Round { short: call(10_000, 0), long: call(60_000, instructions) };
        let case = |case: &CaseName| CountedCase {
            case: *case,
            rounds: Reading::Known(vec![round; 4]),
            profile: Reading::not_available("none was asked for"),
        };
        let boot = Boot {
            outcome: Outcome::Finished,
            wall_s: 1.0,
            environment: None,
            cases: work.plan.cases.iter().map(case).collect(),
        };
        let release = work.kernel.trim_start_matches("/dev/").to_owned();
        KernelsCase {
            plan: work.plan.clone(),
            instrument: Instrument {
                qemu: "7.2.22".into(),
                cpu: "max".into(),
                guest_sha256: "ab".repeat(32),
                packets: [10_000, 60_000],
            },
            kernels: vec![KernelRuns {
                given: work.kernel.clone(),
                image: Image { release, version: String::new(), sha256: String::new() },
                modules: Vec::new(),
                boots: vec![boot.clone(), boot],
                checks: None,
            }],
            comparisons: Vec::new(),
        }
    }

    const MIXED: &str = "name = \"mixed\"\norder = \"file\"\n[[cases]]\nkind = \"kernels\"\ncase = [\"live-drop\", \"pktgen\"]\n\
        matrix.kernel = [\"null\", \"zero\", \"full\"]\n[[cases]]\nkind = \"pool\"\ngroup = \"frags\"\nseconds = 1\n";

    /// The record of a scenario whose kernels took these instructions, and what was told after each case.
    fn carried_out(text: &str, instructions: &[(&'static str, u64)]) -> (Record, Vec<String>) {
        let mut record = Record::begin(Environment::unknown("a test"), Vec::new());
        record.scenario = Some(ScenarioRun {
            name: "mixed".into(),
            about: "guests beside pools".into(),
            folder: "/dev".into(),
            text: text.into(),
            seed: 1,
            repeats: 1,
            seconds: None,
            done: Vec::new(),
        });
        let (mut told, stop) = (Vec::new(), AtomicBool::new(false));
        let mut bench = Fake(instructions.iter().copied().collect());
        go_on(&mut record, &mut bench, &mut Silent, &stop, &mut |_| Ok(()), &mut |record, _| {
            told.push(report::last_done_text(record));
            Ok(())
        })
        .unwrap();
        (record, told)
    }

    struct Silent;

    impl Progress for Silent {
        fn stage(&mut self, _: &str) {}
        fn sampling(&mut self, _: f64, _: f64, _: usize) {}
    }

    #[test]
    fn kernels_of_an_axis_are_compared_with_its_first_and_never_stand_in_a_table_of_times() {
        let (record, told) = carried_out(MIXED, &[("/dev/null", 30_800_000), ("/dev/zero", 30_950_000)]);
        assert_eq!((record.kernels.len(), record.pools.len()), (2, 1));
        insta::assert_snapshot!(told[..3].join("\n"), @"
        kernels kernel=null: live-drop 616.00 instructions/packet (baseline), pktgen 616.00 instructions/packet (baseline)
        kernels kernel=zero: live-drop 619.00 instructions/packet (+3.00 more), pktgen 619.00 instructions/packet (+3.00 more)
        kernels kernel=full: failed: can't run the guest: the kernel crashed
        ");
        insta::assert_snapshot!(report::scenario_text(&record), @"
        mixed: guests beside pools

        kernels kernel=full failed: can't run the guest: the kernel crashed

        mixed: counted in guests

         case                 counted    instructions/packet  Δ instructions  verdict
         kernels kernel=null  live-drop               616.00                  baseline
         kernels kernel=null  pktgen                  616.00                  baseline
         kernels kernel=zero  live-drop               619.00           +3.00  more
         kernels kernel=zero  pktgen                  619.00           +3.00  more

        instructions are guest instructions per packet (TCG): work done, never time, rate or speed
        ");
        let report = report::Report::of(&[("record.json".into(), record)]);
        for finding in &report.records[0].findings {
            let has = |key: &str| finding.table.columns.iter().any(|column| column.key == key);
            assert!(!(has("ns") && has("instructions")), "{finding:?}");
        }
        for format in [Format::Text, Format::Mail, Format::Markdown, Format::Html, Format::Csv, Format::Json] {
            let text = report.write(format).unwrap();
            assert!(
                text.contains("619") && text.contains("guest instructions per packet (TCG)") || format == Format::Csv,
                "{text}"
            );
        }
    }

    #[test]
    fn without_its_first_kernel_an_axis_has_numbers_and_no_comparison() {
        let (record, told) = carried_out(MIXED, &[("/dev/zero", 30_950_000), ("/dev/full", 30_950_000)]);
        assert_eq!(told[0], "kernels kernel=null: failed: can't run the guest: the kernel crashed");
        assert_eq!(
            told[1],
            "kernels kernel=zero: live-drop 619.00 instructions/packet (n/a), pktgen 619.00 instructions/packet (n/a)"
        );
        let text = report::Report::of(&[("record.json".into(), record)]).write(Format::Text).unwrap();
        assert!(text.contains("the first kernel of the axis was not counted"), "{text}");
    }

    #[test]
    fn a_run_counted_again_agrees_to_the_instruction_or_says_by_how_much_it_does_not() {
        let of = |instructions| carried_out(MIXED, &[("/dev/null", instructions), ("/dev/zero", 30_950_000)]).0;
        let (before, same, other) = (of(30_800_000), of(30_800_000), of(30_850_000));
        let deltas = |after| -> Vec<Option<f64>> {
            rerun::recounted(&before, after)
                .into_iter()
                .flat_map(|kernel| kernel.rows.unwrap())
                .map(|row| row.delta)
                .collect()
        };
        assert_eq!(deltas(&same), [Some(0.0); 4]);
        assert_eq!(deltas(&other), [Some(1.0), Some(1.0), Some(0.0), Some(0.0)]);
        insta::assert_snapshot!(report::recounted_text(&rerun::recounted(&before, &other)[..1]), @"
        kernels kernel=null: null, the same image: guest instructions per packet (TCG)
         case       baseline  candidate      Δ     ±  verdict
         live-drop    616.00     617.00  +1.00  0.00  more
         pktgen       616.00     617.00  +1.00  0.00  more
        ");
    }
}
