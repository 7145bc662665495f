//! What the machine is: everything known to move a result, as it was when the run began. The host's name is left out.

mod cpu;
mod kernel;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use cpu::cpu_count;
pub use cpu::{Cpu, Frequency};
use cpu::{cpuid_hypervisor, hypervisor};
pub use kernel::{ConfigFile, Kernel};

use super::root::{Root, parse};
use crate::reading::Reading;

/// The machine and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The running kernel.
    pub kernel: Kernel,
    /// The processors.
    pub cpu: Cpu,
    /// `/sys/devices/system/cpu/vulnerabilities`: vulnerability to the kernel's words.
    pub mitigations: Reading<BTreeMap<String, String>>,
    /// Frequency and idle policy.
    pub frequency: Frequency,
    /// The clock source behind `bpf_ktime_get_ns`, e.g. `tsc`.
    pub clocksource: Reading<String>,
    /// The hypervisor under this kernel, e.g. `KVM`; `none` on bare metal.
    pub hypervisor: Reading<String>,
    /// `net.core.bpf_jit_enable`: 0 interpreter, 1 JIT, 2 JIT with debugging output.
    pub bpf_jit_enable: Reading<u8>,
    /// `net.core.bpf_jit_harden`: 0 off, 1 for unprivileged users, 2 for all.
    pub bpf_jit_harden: Reading<u8>,
    /// `/proc/sys/kernel/random/boot_id`: another one after each boot.
    pub boot_id: Reading<String>,
    /// Time since boot in seconds.
    pub uptime_s: Reading<f64>,
    /// Load average over 1, 5 and 15 minutes.
    pub load_average: Reading<[f64; 3]>,
    /// Usable memory in bytes.
    pub memory_total_bytes: Reading<u64>,
    /// Whether a process named `irqbalance` runs; it moves interrupts between CPUs.
    pub irqbalance_running: Reading<bool>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_hugepage: Reading<String>,
}

impl Environment {
    /// The environment of a run on a machine that can't be looked at, because of `why`.
    #[must_use]
    pub fn unknown(why: &str) -> Self {
        fn none<T>(why: &str) -> Reading<T> {
            Reading::not_available(why)
        }
        Self {
            kernel: Kernel {
                release: none(why),
                version: none(why),
                cmdline: none(why),
                preemption: none(why),
                config: none(why),
            },
            cpu: Cpu {
                model_name: none(why),
                vendor: none(why),
                family: none(why),
                model: none(why),
                stepping: none(why),
                microcode: none(why),
                online: none(why),
                present: none(why),
                possible: none(why),
                smt_active: none(why),
                numa_nodes: none(why),
            },
            mitigations: none(why),
            frequency: Frequency {
                driver: none(why),
                governor: none(why),
                min_mhz: none(why),
                max_mhz: none(why),
                current_mhz: none(why),
                turbo: none(why),
                idle_driver: none(why),
                idle_governor: none(why),
            },
            clocksource: none(why),
            hypervisor: none(why),
            bpf_jit_enable: none(why),
            bpf_jit_harden: none(why),
            boot_id: none(why),
            uptime_s: none(why),
            load_average: none(why),
            memory_total_bytes: none(why),
            irqbalance_running: none(why),
            transparent_hugepage: none(why),
        }
    }

    /// Reads this machine.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(&Root::system(), cpuid_hypervisor())
    }

    /// Reads the machine described below `root`; `cpuid` is what the CPU itself says of a hypervisor.
    pub(crate) fn read_below(root: &Root, cpuid: Option<String>) -> Self {
        Self {
            kernel: Kernel::read(root),
            cpu: Cpu::read(root),
            mitigations: mitigations(root),
            frequency: Frequency::read(root),
            clocksource: root.text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            hypervisor: hypervisor(root, cpuid),
            bpf_jit_enable: root.value("/proc/sys/net/core/bpf_jit_enable"),
            bpf_jit_harden: root.value("/proc/sys/net/core/bpf_jit_harden"),
            boot_id: root.text("/proc/sys/kernel/random/boot_id"),
            uptime_s: uptime(root),
            load_average: load_average(root),
            memory_total_bytes: memory_total(root),
            irqbalance_running: irqbalance_running(root),
            transparent_hugepage: between(root, "/sys/kernel/mm/transparent_hugepage/enabled", '[', ']'),
        }
    }

    /// The machine in one line, e.g. `AMD EPYC, 2 CPUs, KVM guest, Linux 6.18.44, mitigated: spectre_v1, vulnerable:
    /// none`.
    #[must_use]
    pub fn one_line(&self) -> String {
        let model = self.cpu.model_name.known().map_or("CPU model not available", String::as_str);
        let cpus = match self.cpu.online.known().and_then(|list| cpu_count(list)) {
            Some(1) => "1 CPU".into(),
            Some(count) => format!("{count} CPUs"),
            None => "number of CPUs not available".into(),
        };
        let hypervisor = match self.hypervisor.known().map(String::as_str) {
            Some("none") => "bare metal".into(),
            Some(name) => format!("{name} guest"),
            None => "hypervisor not available".into(),
        };
        let release = self.kernel.release.known().map_or("release not available", String::as_str);
        let mitigations = self.mitigations.known().map_or("mitigations not available".into(), by_state);
        format!("{model}, {cpus}, {hypervisor}, Linux {release}, {mitigations}")
    }
}

/// The vulnerabilities by what the kernel does about them (`Documentation/ABI/testing/sysfs-devices-system-cpu`); those
/// that do not affect the CPU are left out.
fn by_state(states: &BTreeMap<String, String>) -> String {
    let names = |wanted: &str| {
        let state_of = |state: &str| state.trim_start_matches("KVM: ").starts_with(wanted);
        let names: Vec<_> = states.iter().filter(|(_, state)| state_of(state)).map(|(name, _)| &**name).collect();
        if names.is_empty() { "none".into() } else { names.join(" ") }
    };
    format!("mitigated: {}, vulnerable: {}", names("Mitigation"), names("Vulnerable"))
}

fn flag(root: &Root, path: &str) -> Reading<bool> {
    root.value::<u8>(path).map(|value| value != 0)
}

/// The chosen one of several words, e.g. `madvise` in `always [madvise] never`.
fn between(root: &Root, path: &str, open: char, close: char) -> Reading<String> {
    root.text(path).and_then(|text| {
        let chosen = text.split_once(open).and_then(|(_, rest)| rest.split_once(close));
        chosen.map(|(word, _)| word.to_owned()).ok_or_else(|| format!("{path}: unexpected {text:?}")).into()
    })
}

fn mitigations(root: &Root) -> Reading<BTreeMap<String, String>> {
    let dir = "/sys/devices/system/cpu/vulnerabilities";
    root.names(dir).and_then(|names| {
        let states = names.into_iter().map(|name| {
            let state = root.text(&format!("{dir}/{name}")).into_result()?;
            Ok::<_, String>((name, state))
        });
        states.collect::<Result<_, _>>().into()
    })
}

fn uptime(root: &Root) -> Reading<f64> {
    let path = "/proc/uptime";
    root.text(path).and_then(|text| parse(path, text.split_whitespace().next().unwrap_or_default()))
}

fn load_average(root: &Root) -> Reading<[f64; 3]> {
    let path = "/proc/loadavg";
    root.text(path).and_then(|text| {
        let numbers: Option<Vec<f64>> = text.split_whitespace().take(3).map(|number| number.parse().ok()).collect();
        numbers.and_then(|numbers| numbers.try_into().ok()).ok_or_else(|| format!("{path}: unexpected {text:?}")).into()
    })
}

/// `MemTotal` is in KiB, whatever its unit says (proc_meminfo(5)).
fn memory_total(root: &Root) -> Reading<u64> {
    let path = "/proc/meminfo";
    root.text(path).and_then(|text| {
        let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        kib.map(|kib| parse::<u64>(path, kib.trim()).map(|kib| kib * 1024))
            .unwrap_or_else(|| Reading::not_available(format!("{path}: no \"MemTotal\"")))
    })
}

/// A process that ends while it is looked at is none that runs.
fn irqbalance_running(root: &Root) -> Reading<bool> {
    root.names("/proc").map(|names| {
        let pids = names.iter().filter(|name| name.bytes().all(|digit| digit.is_ascii_digit()));
        pids.map(|pid| root.text(&format!("/proc/{pid}/comm")))
            .any(|comm| comm.known().is_some_and(|c| c == "irqbalance"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::path::Path;

    use flate2::{Compression, write::GzEncoder};
    use tempfile::TempDir;

    use super::*;

    const CPUINFO: &str = "\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9354 32-Core Processor
stepping\t: 1
microcode\t: 0xa101144
cpu MHz\t\t: 3245.125
flags\t\t: fpu vme hypervisor

processor\t: 1
cpu MHz\t\t: 2600.000
";

    fn plant(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn machine() -> TempDir {
        let dir = TempDir::new().unwrap();
        plant(
            dir.path(),
            &[
                ("proc/cpuinfo", CPUINFO),
                ("proc/sys/kernel/osrelease", "6.12.9-lab\n"),
                ("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Mon Jan 6 2025\n"),
                ("proc/cmdline", "mitigations=auto quiet preempt=voluntary -- --init-secret\n"),
                ("boot/config-6.12.9-lab", "CONFIG_HZ=1000\n# CONFIG_KASAN is not set\nCONFIG_PREEMPT_NONE=y\n"),
                ("proc/sys/net/core/bpf_jit_enable", "1\n"),
                ("proc/sys/net/core/bpf_jit_harden", "0\n"),
                ("proc/uptime", "771.80 1161.56\n"),
                ("proc/loadavg", "0.56 0.41 0.29 2/94 12208\n"),
                ("proc/meminfo", "MemTotal:       24684084 kB\nMemFree:        22504632 kB\n"),
                ("proc/1/comm", "init\n"),
                ("proc/700/comm", "irqbalance\n"),
                ("sys/devices/system/cpu/online", "0-1,4\n"),
                ("sys/devices/system/cpu/present", "0-7\n"),
                ("sys/devices/system/cpu/possible", "0-7\n"),
                ("sys/devices/system/cpu/smt/active", "1\n"),
                ("sys/devices/system/node/online", "0\n"),
                ("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"),
                ("sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow", "Vulnerable: Safe RET, no microcode\n"),
                ("sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: Retpolines; STIBP: disabled\n"),
                ("sys/devices/system/cpu/cpufreq/boost", "0\n"),
                ("sys/devices/system/cpu/cpufreq/policy0/scaling_driver", "amd-pstate\n"),
                ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "schedutil\n"),
                ("sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq", "400000\n"),
                ("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", "3800000\n"),
                ("sys/devices/system/cpu/cpufreq/policy1/scaling_driver", "amd-pstate\n"),
                ("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/cpufreq/policy1/scaling_min_freq", "500000\n"),
                ("sys/devices/system/cpu/cpufreq/policy1/scaling_max_freq", "3700000\n"),
                ("sys/devices/system/cpu/cpuidle/current_driver", "acpi_idle\n"),
                ("sys/devices/system/cpu/cpuidle/current_governor_ro", "menu\n"),
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ],
        );
        dir
    }

    fn read(dir: &TempDir) -> Environment {
        Environment::read_below(&Root::at(dir.path()), None)
    }

    fn known<T>(value: T) -> Reading<T> {
        Reading::Known(value)
    }

    #[test]
    fn every_planted_value_is_read() {
        let env = read(&machine());
        assert_eq!(env.kernel.release, known("6.12.9-lab".into()));
        assert_eq!(env.kernel.version, known("#1 SMP PREEMPT_DYNAMIC Mon Jan 6 2025".into()));
        assert_eq!(env.kernel.cmdline, known("mitigations=auto quiet preempt=voluntary".into()));
        assert_eq!(env.kernel.preemption, known("voluntary".into()));
        assert_eq!(env.cpu.model_name, known("AMD EPYC 9354 32-Core Processor".into()));
        assert_eq!(env.cpu.vendor, known("AuthenticAMD".into()));
        assert_eq!((env.cpu.family, env.cpu.model), (known("25".into()), known("17".into())));
        assert_eq!((env.cpu.stepping, env.cpu.microcode), (known("1".into()), known("0xa101144".into())));
        assert_eq!((env.cpu.online, env.cpu.present), (known("0-1,4".into()), known("0-7".into())));
        assert_eq!((env.cpu.possible, env.cpu.numa_nodes), (known("0-7".into()), known("0".into())));
        assert_eq!(env.cpu.smt_active, known(true));
        assert_eq!(env.mitigations.known().unwrap()["spec_rstack_overflow"], "Vulnerable: Safe RET, no microcode");
        assert_eq!(env.frequency.driver, known("amd-pstate".into()));
        assert_eq!(env.frequency.governor, known("performance,schedutil".into()));
        assert_eq!((env.frequency.min_mhz, env.frequency.max_mhz), (known(400.0), known(3800.0)));
        assert_eq!(env.frequency.current_mhz, known(vec![3245.125, 2600.0]));
        assert_eq!(env.frequency.turbo, known(false));
        assert_eq!(env.frequency.idle_driver, known("acpi_idle".into()));
        assert_eq!(env.frequency.idle_governor, known("menu".into()));
        assert_eq!((env.clocksource, env.hypervisor), (known("tsc".into()), known("QEMU".into())));
        assert_eq!((env.bpf_jit_enable, env.bpf_jit_harden), (known(1), known(0)));
        assert_eq!((env.uptime_s, env.load_average), (known(771.8), known([0.56, 0.41, 0.29])));
        assert_eq!(env.memory_total_bytes, known(24_684_084 * 1024));
        assert_eq!(env.irqbalance_running, known(true));
        assert_eq!(env.transparent_hugepage, known("madvise".into()));
    }

    #[test]
    fn the_configuration_is_hashed_and_its_options_are_kept() {
        let config = read(&machine()).kernel.config.into_result().unwrap();
        assert_eq!(config.path, "/boot/config-6.12.9-lab");
        assert_eq!(config.options["CONFIG_HZ"], "1000");
        assert_eq!(config.options["CONFIG_KASAN"], "n");
        assert_eq!(config.sha256, "6984e5b4ddfd660ed8300357ea45dbda0e8eef8c3ddc4bb03c959e944ba95532");
    }

    #[test]
    fn a_packed_configuration_has_the_hash_of_its_text() {
        let dir = machine();
        let unpacked = read(&dir).kernel.config.into_result().unwrap();
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&fs::read(dir.path().join("boot/config-6.12.9-lab")).unwrap()).unwrap();
        fs::write(dir.path().join("proc/config.gz"), packer.finish().unwrap()).unwrap();
        let packed = read(&dir).kernel.config.into_result().unwrap();
        assert_eq!(packed, ConfigFile { path: "/proc/config.gz".into(), ..unpacked });
    }

    #[test]
    fn the_running_preemption_model_goes_before_the_boot_parameter_and_that_before_the_default() {
        let dir = machine();
        plant(dir.path(), &[("sys/kernel/debug/sched/preempt", "none voluntary (full) lazy\n")]);
        assert_eq!(read(&dir).kernel.preemption, known("full".into()));
        fs::remove_file(dir.path().join("sys/kernel/debug/sched/preempt")).unwrap();
        assert_eq!(read(&dir).kernel.preemption, known("voluntary".into()));
        plant(dir.path(), &[("proc/cmdline", "quiet\n")]);
        assert_eq!(read(&dir).kernel.preemption, known("none".into()));
        plant(dir.path(), &[("proc/sys/kernel/version", "#1 SMP PREEMPT_RT\n")]);
        assert_eq!(read(&dir).kernel.preemption, known("rt".into()));
    }

    #[test]
    fn a_cpu_without_the_hypervisor_flag_is_bare_metal_whatever_its_firmware_is_called() {
        let dir = machine();
        plant(dir.path(), &[("proc/cpuinfo", "flags\t: fpu vme\n")]);
        assert_eq!(read(&dir).hypervisor, known("none".into()));
        plant(dir.path(), &[("proc/cpuinfo", "CPU part\t: 0xd0c\n")]);
        assert_eq!(read(&dir).hypervisor.to_string(), "not available (/proc/cpuinfo: no \"flags\")");
        assert_eq!(read(&dir).cpu.model, known("0xd0c".into()));
    }

    #[test]
    fn the_cpu_names_its_hypervisor_before_the_firmware_does() {
        let dir = machine();
        let env = Environment::read_below(&Root::at(dir.path()), Some("KVM".into()));
        assert_eq!(env.hypervisor, known("KVM".into()));
    }

    #[test]
    fn on_an_empty_machine_every_value_says_why_it_is_missing() {
        let env = read(&TempDir::new().unwrap());
        fn leaves(value: &serde_json::Value, found: &mut usize) {
            let object = value.as_object().unwrap_or_else(|| panic!("a value out of nothing: {value}"));
            match object.get("not_available") {
                Some(why) => {
                    *found += 1;
                    assert!(why.as_str().unwrap().contains("ENOENT"), "{why}");
                }
                None => object.values().for_each(|value| leaves(value, found)),
            }
        }
        let mut found = 0;
        leaves(&serde_json::to_value(&env).unwrap(), &mut found);
        assert_eq!(found, 35);
        assert_eq!(
            env.one_line(),
            "CPU model not available, number of CPUs not available, hypervisor not available, Linux release not \
             available, mitigations not available"
        );
    }

    #[test]
    fn nonsense_in_a_file_is_quoted_instead_of_read_as_zero() {
        let dir = machine();
        plant(
            dir.path(),
            &[
                ("proc/sys/net/core/bpf_jit_enable", "on\n"),
                ("proc/loadavg", "0.1 0.2\n"),
                ("proc/meminfo", "MemFree: 1 kB\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always\n"),
            ],
        );
        let env = read(&dir);
        assert_eq!(
            env.bpf_jit_enable.to_string(),
            r#"not available (/proc/sys/net/core/bpf_jit_enable: unexpected "on")"#
        );
        assert_eq!(env.load_average.into_result().unwrap_err(), r#"/proc/loadavg: unexpected "0.1 0.2""#);
        assert_eq!(env.memory_total_bytes.to_string(), r#"not available (/proc/meminfo: no "MemTotal")"#);
        assert!(env.transparent_hugepage.to_string().contains("unexpected"));
    }

    #[test]
    fn an_environment_survives_json() {
        for env in [read(&machine()), read(&TempDir::new().unwrap()), Environment::read()] {
            let json = serde_json::to_string(&env).unwrap();
            assert_eq!(serde_json::from_str::<Environment>(&json).unwrap(), env);
        }
    }

    #[test]
    fn the_machine_fits_one_line() {
        assert_eq!(
            read(&machine()).one_line(),
            "AMD EPYC 9354 32-Core Processor, 3 CPUs, QEMU guest, Linux 6.12.9-lab, mitigated: spectre_v2, \
             vulnerable: spec_rstack_overflow"
        );
    }

    #[test]
    fn this_machine_has_a_kernel_and_cpus() {
        let env = Environment::read();
        assert!(env.kernel.release.known().is_some());
        assert!(cpu_count(env.cpu.online.known().unwrap()).unwrap() >= 1);
    }

    #[test]
    fn a_list_of_cpus_is_counted_and_a_bad_one_is_not() {
        assert_eq!(cpu_count("0-1,4"), Some(3));
        assert_eq!(cpu_count("5"), Some(1));
        for bad in ["", "3-1", "a", "1,"] {
            assert_eq!(cpu_count(bad), None, "{bad}");
        }
    }
}
