//! What can be measured on this machine, and why not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::caps::{Capability, EffectiveCaps};
use super::cpu_times::{CpuShares, CpuTimes};
use super::fingerprint::{Environment, cpu_count};
use super::probe::{Answer, Finding, Prober, TRACEPOINTS};
use super::root::Root;
use crate::error::Result;
use crate::reading::Reading;

/// How long stolen CPU time is watched.
const STEAL_PERIOD: Duration = Duration::from_millis(200);
/// Since Linux 5.11 the memory of BPF maps and programs counts against the memory cgroup, no more against this limit.
const MEMLOCK_UNUSED_SINCE: (u32, u32) = (5, 11);
/// The first kernel with live frames and frags, on which xdplab builds.
const OLDEST_KERNEL: (u32, u32) = (5, 18);
/// Build options that slow every packet down by checking the kernel itself.
const DEBUG_OPTIONS: [&str; 5] =
    ["CONFIG_DEBUG_NET", "CONFIG_DEBUG_PREEMPT", "CONFIG_KASAN", "CONFIG_PROVE_LOCKING", "CONFIG_SLUB_DEBUG_ON"];

/// One thing examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// A name that stays the same from version to version, e.g. `tracepoint.napi_poll`.
    pub id: String,
    /// What should be so.
    pub what: String,
    /// Whether it is.
    pub answer: Answer,
    /// What the answer rests on.
    pub detail: String,
    /// Why it matters.
    pub why: String,
    /// What can be done where the answer is no; `None` for nothing.
    pub remedy: Option<String>,
}

impl Line {
    pub(crate) fn new(
        id: impl Into<String>,
        what: impl Into<String>,
        Finding { answer, detail }: Finding,
        why: impl Into<String>,
    ) -> Self {
        Self { id: id.into(), what: what.into(), answer, detail, why: why.into(), remedy: None }
    }

    /// Adds what can be done about a no. Where the answer is unknown, the detail says what it takes to find out.
    pub(crate) fn remedy(mut self, remedy: &str) -> Self {
        self.remedy = (self.answer == Answer::No).then(|| remedy.to_owned());
        self
    }
}

/// Examines the machine. Takes about half a second and leaves nothing behind.
///
/// # Errors
/// If the process's own capabilities can't be read.
pub fn examine() -> Result<Vec<Line>> {
    let caps = EffectiveCaps::read()?;
    let environment = Environment::read();
    let mut lines = kernel(&environment);
    lines.extend(capabilities(caps));
    lines.extend(programs(&Prober::new(caps)));
    lines.extend(processors(&environment));
    lines.push(steal());
    lines.push(pktgen(&Root::system(), &environment));
    Ok(lines)
}

fn kernel(environment: &Environment) -> Vec<Line> {
    let release = &environment.kernel.release;
    let debug = Finding::of(&environment.kernel.config, |config| {
        let on: Vec<_> = DEBUG_OPTIONS.into_iter().filter(|&name| config.options[name] != "n").collect();
        Finding::whether(on.is_empty(), if on.is_empty() { "none is set".into() } else { on.join(", ") })
    });
    let jit = Finding::of(&environment.bpf_jit_enable, |&value| {
        Finding::whether(value == 1, format!("net.core.bpf_jit_enable = {value}"))
    });
    let harden = Finding::of(&environment.bpf_jit_harden, |&value| {
        Finding::whether(value < 2, format!("net.core.bpf_jit_harden = {value}"))
    });
    vec![
        Line::new(
            "kernel",
            "Linux 5.18 or later",
            Finding::of(release, |release| at_least(release, OLDEST_KERNEL)),
            "it has the live frames of the generator and XDP programs for frames of several buffers",
        )
        .remedy("boot a newer kernel"),
        Line::new("kernel.debug", "kernel built without checks on itself", debug, "they cost time on every packet")
            .remedy("measure on a kernel built without them"),
        Line::new("bpf.jit", "BPF programs are compiled (JIT)", jit, "interpreted programs are many times slower")
            .remedy("sysctl net.core.bpf_jit_enable=1"),
        Line::new(
            "bpf.jit_harden",
            "BPF JIT does not blind constants",
            harden,
            "blinding adds instructions to the programs measured",
        )
        .remedy("sysctl net.core.bpf_jit_harden=0"),
        Line::new(
            "memlock",
            "BPF memory needs no limit raised",
            memlock(release),
            "older kernels count BPF maps against RLIMIT_MEMLOCK and fail with EPERM",
        )
        .remedy("ulimit -l unlimited"),
    ]
}

fn memlock(release: &Reading<String>) -> Finding {
    let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => return Finding::yes("RLIMIT_MEMLOCK is unlimited"),
        Ok((soft, _)) => format!("RLIMIT_MEMLOCK = {soft} bytes"),
        Err(errno) => format!("getrlimit: {errno:?} ({})", errno.desc()),
    };
    Finding::of(release, |release| {
        let Finding { answer, .. } = at_least(release, MEMLOCK_UNUSED_SINCE);
        let meaning = if answer == Answer::Yes { "harmless, not used since Linux 5.11" } else { "used before 5.11" };
        Finding { answer, detail: format!("{limit}, {meaning}") }
    })
}

/// Whether a release such as `6.18.44-lab` is `oldest` (major, minor) or later.
fn at_least(release: &str, oldest: (u32, u32)) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => Finding::whether((major, minor) >= oldest, format!("Linux {release}")),
        _ => Finding::unknown(format!("unexpected kernel release {release:?}")),
    }
}

fn capabilities(caps: EffectiveCaps) -> impl Iterator<Item = Line> {
    let needed = [
        (Capability::Bpf, "it loads programs and makes maps"),
        (Capability::NetAdmin, "it attaches XDP programs and configures interfaces"),
        (Capability::Perfmon, "it attaches observers to tracepoints"),
        (Capability::NetRaw, "it opens AF_XDP sockets"),
        (Capability::SysAdmin, "it makes the network namespaces of the lab"),
    ];
    needed.into_iter().map(move |(capability, why)| {
        let allowed = caps.allows(capability);
        let finding = Finding::whether(allowed, if allowed { "effective" } else { "missing" });
        Line::new(format!("capability.{capability}"), format!("{capability} is held"), finding, why)
            .remedy("run it as root")
    })
}

fn programs(prober: &Prober) -> Vec<Line> {
    let newer = "boot a newer kernel";
    let mut lines = vec![
        Line::new(
            "btf",
            "kernel describes its types (BTF)",
            prober.btf(),
            "observers find fields and tracepoints by it",
        )
        .remedy("use a kernel built with CONFIG_DEBUG_INFO_BTF"),
        Line::new("tp_btf", "programs attach to tracepoints", prober.tp_btf(), "all observers do")
            .remedy("use a kernel built with CONFIG_BPF_EVENTS and CONFIG_DEBUG_INFO_BTF"),
        Line::new(
            "fentry",
            "programs attach to kernel functions (fentry)",
            prober.fentry(),
            "tools that time single kernel functions need it; xdplab does not",
        ),
        Line::new(
            "lab",
            "throw-away veth lab with native XDP",
            prober.lab(),
            "measurements without a NIC, and the demo, run in it",
        )
        .remedy("run as root on a kernel built with CONFIG_VETH and CONFIG_NET_NS"),
        Line::new(
            "live_frames",
            "XDP programs run on live frames",
            prober.live_frames(),
            "the built-in generator is made of them",
        )
        .remedy(newer),
        Line::new(
            "frags",
            "XDP programs take frames of several buffers",
            prober.frags(),
            "native mode with a large MTU needs it",
        )
        .remedy(newer),
        Line::new(
            "devmap_program",
            "programs run on a devmap's frames",
            prober.devmap_program(),
            "redirect variants with a program on egress need it",
        )
        .remedy(newer),
        Line::new(
            "cpumap_program",
            "programs run on a cpumap's frames",
            prober.cpumap_program(),
            "redirect-cpu variants with a program on the other CPU need it",
        )
        .remedy(newer),
        Line::new("af_xdp", "AF_XDP sockets open", prober.af_xdp(), "the xsk commands need it")
            .remedy("use a kernel built with CONFIG_XDP_SOCKETS"),
        Line::new(
            "page_pool_stats",
            "kernel counts page_pool events",
            Prober::page_pool_stats(),
            "they tell which way pages were recycled; tracepoints tell only those given back",
        )
        .remedy("use Linux 6.8 or later built with CONFIG_PAGE_POOL_STATS"),
    ];
    lines.extend(TRACEPOINTS.iter().map(|(name, tells)| {
        let why = format!("it tells {tells}");
        Line::new(format!("tracepoint.{name}"), format!("tracepoint {name}"), prober.tracepoint(name), why)
    }));
    lines
}

fn processors(environment: &Environment) -> Vec<Line> {
    let Environment { cpu, frequency, .. } = environment;
    let count = Finding::of(&cpu.online, |list| match cpu_count(list) {
        Some(count) => Finding::whether(count >= 2, format!("{count} (CPUs {list})")),
        None => Finding::unknown(format!("unexpected list {list:?}")),
    });
    let smt = Finding::of(&cpu.smt_active, |&active| {
        Finding::whether(!active, if active { "SMT is active" } else { "SMT is not active" })
    });
    let governor = Finding::of(&frequency.governor, |governor| Finding::whether(governor == "performance", governor));
    let mitigations = Finding::of(&environment.mitigations, |states| {
        let affected = states.iter().filter(|(_, state)| *state != "Not affected");
        let list: Vec<_> = affected.map(|(name, state)| format!("{name}: {state}")).collect();
        Finding::yes(if list.is_empty() { "not affected by any".into() } else { list.join(" | ") })
    });
    let clock = Finding::of(&environment.clocksource, |name| {
        Finding::whether(!["hpet", "acpi_pm", "jiffies"].contains(&name.as_str()), name)
    });
    let irqbalance = Finding::of(&environment.irqbalance_running, |&running| {
        Finding::whether(!running, if running { "it runs" } else { "no such process" })
    });
    vec![
        Line::new("cpu.count", "two or more CPUs online", count, "generator and device under test then run apart")
            .remedy("compare in `same` placement: differences stay exact, absolute times hold the generator"),
        Line::new("cpu.smt", "one thread per core (SMT off)", smt, "the other thread of a core takes its share of it")
            .remedy("echo off > /sys/devices/system/cpu/smt/control, or keep the siblings idle"),
        Line::new("cpu.governor", "frequency governor is performance", governor, "results move with the frequency")
            .remedy("cpupower frequency-set -g performance; in a guest the host decides"),
        Line::new(
            "cpu.mitigations",
            "mitigations are known",
            mitigations,
            "they can double the cost of a packet; results compare only under equal ones",
        ),
        Line::new(
            "clocksource",
            "clock is read without a device",
            clock,
            "each slice reads it twice; hpet and acpi_pm take microseconds",
        )
        .remedy("boot with clocksource=tsc"),
        Line::new(
            "irqbalance",
            "irqbalance does not run",
            irqbalance,
            "it moves interrupts, and with them NAPI, to other CPUs",
        )
        .remedy("stop the irqbalance service"),
    ]
}

fn steal() -> Line {
    let measured = CpuTimes::read().and_then(|earlier| {
        thread::sleep(STEAL_PERIOD);
        let later = CpuTimes::read()?;
        Ok(judge_steal(&later.since(&earlier), later.period_since(&earlier)))
    });
    Line::new(
        "cpu.steal",
        "hypervisor takes no CPU time away",
        measured.unwrap_or_else(|error| Finding::unknown(error.to_string())),
        "slices hit by it are many times slower; the statistics are robust, but runs get longer",
    )
    .remedy("use a host with CPUs of its own, or longer runs")
}

fn judge_steal(shares: &BTreeMap<u32, Reading<CpuShares>>, period: Duration) -> Finding {
    let known = shares.iter().filter_map(|(cpu, shares)| Some((cpu, shares.known()?.steal)));
    match known.max_by(|(_, a), (_, b)| a.total_cmp(b)) {
        Some((cpu, most)) => {
            let detail = format!("at most {:.1} % (CPU {cpu}) over {} ms", most * 100.0, period.as_millis());
            Finding::whether(most == 0.0, detail)
        }
        None => Finding::unknown(format!("no CPU accounted for its time over {} ms", period.as_millis())),
    }
}

fn pktgen(root: &Root, environment: &Environment) -> Line {
    let finding = match root.names("/proc/net/pktgen") {
        Reading::Known(_) => Finding::yes("/proc/net/pktgen"),
        Reading::NotAvailable { why } => {
            let config = environment.kernel.config.known();
            let option = config.map_or("not available", |config| &config.options["CONFIG_NET_PKTGEN"]);
            Finding::no(format!("{why}; CONFIG_NET_PKTGEN: {option}"))
        }
    };
    Line::new("pktgen", "pktgen is loaded", finding, "it is one of the generators; live frames serve as well")
        .remedy("modprobe pktgen, where the kernel was built with CONFIG_NET_PKTGEN")
}

/// The lines as a text: one each, and below those whose answer is not yes why it matters and what can be done.
#[must_use]
pub fn render_text(lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.what.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for Line { what, answer, detail, why, remedy, .. } in lines {
        let answer_text = match answer {
            Answer::Yes => "yes",
            Answer::No => "NO",
            Answer::Unknown => "?",
        };
        // Writing to a String can't fail.
        writeln!(text, "{answer_text:<3} {what:<width$}  {detail}").ok();
        if *answer != Answer::Yes {
            let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!("; {remedy}"));
            writeln!(text, "      {why}{remedy}").ok();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// A machine of which nothing is known.
    fn unknown_machine() -> Environment {
        Environment::read_below(&Root::at(TempDir::new().unwrap().path()), None)
    }

    fn answers(lines: &[Line]) -> Vec<(&str, Answer)> {
        lines.iter().map(|line| (&*line.id, line.answer)).collect()
    }

    #[test]
    fn what_can_t_be_read_is_unknown_with_the_reason() {
        let environment = unknown_machine();
        let lines = [kernel(&environment), processors(&environment)].concat();
        for line in lines.iter().filter(|line| line.id != "memlock") {
            assert_eq!(line.answer, Answer::Unknown, "{line:?}");
            assert!(line.detail.contains("ENOENT"), "{line:?}");
        }
    }

    #[test]
    fn a_machine_fit_for_measuring_gets_yes_throughout() {
        let mut environment = unknown_machine();
        environment.cpu.online = Reading::Known("0-7".into());
        environment.cpu.smt_active = Reading::Known(false);
        environment.frequency.governor = Reading::Known("performance".into());
        environment.mitigations = Reading::Known(BTreeMap::from([("l1tf".into(), "Not affected".into())]));
        environment.clocksource = Reading::Known("tsc".into());
        environment.irqbalance_running = Reading::Known(false);
        assert!(processors(&environment).iter().all(|line| line.answer == Answer::Yes && line.remedy.is_none()));
    }

    #[test]
    fn a_machine_that_disturbs_gets_no_with_the_remedy() {
        let mut environment = unknown_machine();
        environment.cpu.online = Reading::Known("0".into());
        environment.cpu.smt_active = Reading::Known(true);
        environment.frequency.governor = Reading::Known("performance,schedutil".into());
        environment.mitigations = Reading::Known(BTreeMap::from([("srso".into(), "Vulnerable".into())]));
        environment.clocksource = Reading::Known("hpet".into());
        environment.irqbalance_running = Reading::Known(true);
        let lines = processors(&environment);
        let (yes, no): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.answer == Answer::Yes);
        assert_eq!(yes.len(), 1);
        assert_eq!((&*yes[0].id, &*yes[0].detail), ("cpu.mitigations", "srso: Vulnerable"));
        assert!(no.iter().all(|line| line.answer == Answer::No && line.remedy.is_some()), "{:?}", answers(&lines));
    }

    #[test]
    fn kernels_are_compared_by_number() {
        for (release, answer) in [
            ("6.18.44-lab", Answer::Yes),
            ("5.18.0", Answer::Yes),
            ("5.9.16", Answer::No),
            ("4.19.0+", Answer::No),
            ("5.18-rc1", Answer::Yes),
            ("next", Answer::Unknown),
        ] {
            assert_eq!(at_least(release, OLDEST_KERNEL).answer, answer, "{release}");
        }
    }

    #[test]
    fn debugging_built_into_the_kernel_is_named() {
        let dir = TempDir::new().unwrap();
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("boot/config-6.1.0", "CONFIG_KASAN=y\nCONFIG_PROVE_LOCKING=y\n# CONFIG_DEBUG_NET is not set\n"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let lines = kernel(&Environment::read_below(&Root::at(dir.path()), None));
        let line = lines.iter().find(|line| line.id == "kernel.debug").unwrap();
        assert_eq!((line.answer, &*line.detail), (Answer::No, "CONFIG_KASAN, CONFIG_PROVE_LOCKING"));
    }

    #[test]
    fn pktgen_is_found_by_its_directory() {
        let dir = TempDir::new().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(pktgen(&root, &unknown_machine()).answer, Answer::No);
        fs::create_dir_all(dir.path().join("proc/net/pktgen")).unwrap();
        fs::write(dir.path().join("proc/net/pktgen/pgctrl"), "").unwrap();
        assert_eq!(pktgen(&root, &unknown_machine()).answer, Answer::Yes);
    }

    #[test]
    fn the_cpu_that_lost_most_time_is_named() {
        let shares = |steal| {
            Reading::Known(CpuShares { user: 1.0 - steal, system: 0.0, idle: 0.0, irq: 0.0, softirq: 0.0, steal })
        };
        let machine = BTreeMap::from([(0, shares(0.05)), (1, shares(0.25)), (2, Reading::not_available("offline"))]);
        let finding = judge_steal(&machine, Duration::from_millis(200));
        assert_eq!(finding, Finding::no("at most 25.0 % (CPU 1) over 200 ms"));
        let quiet = BTreeMap::from([(0, shares(0.0))]);
        assert_eq!(judge_steal(&quiet, Duration::from_millis(200)).answer, Answer::Yes);
        assert_eq!(judge_steal(&BTreeMap::new(), Duration::from_millis(200)).answer, Answer::Unknown);
    }

    #[test]
    fn only_what_is_not_so_takes_a_second_line() {
        let lines = [
            Line::new("frags", "frags work", Finding::yes("loaded"), "jumbo frames need them").remedy("newer kernel"),
            Line::new("fentry", "fentry works", Finding::no("EPERM"), "tools need it"),
            Line::new("smt", "SMT off", Finding::no("active"), "threads share a core").remedy("turn it off"),
            Line::new("governor", "governor set", Finding::unknown("no cpufreq"), "results move").remedy("set it"),
        ];
        assert_eq!(
            render_text(&lines),
            "yes frags work    loaded\n\
             NO  fentry works  EPERM\n      tools need it\n\
             NO  SMT off       active\n      threads share a core; turn it off\n\
             ?   governor set  no cpufreq\n      results move\n"
        );
    }

    #[test]
    fn a_line_in_json_has_every_field() {
        let line = Line::new("fentry", "fentry works", Finding::no("EPERM"), "tools need it");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"id":"fentry","what":"fentry works","answer":"no","detail":"EPERM","why":"tools need it","remedy":null}"#
        );
    }

    #[test]
    fn this_machine_is_examined_with_an_answer_to_every_question() {
        let lines = examine().unwrap();
        let mut ids: Vec<_> = lines.iter().map(|line| &line.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), lines.len(), "an id is used twice");
        assert!(lines.iter().all(|line| !line.detail.is_empty() && !line.why.is_empty()));
    }
}
