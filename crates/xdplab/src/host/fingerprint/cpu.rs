//! The processors, how fast they may run, and what plays them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::flag;
use crate::host::root::{Root, parse};
use crate::reading::Reading;

/// The processors. Where they differ, model and family are those of the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The name the processor gives itself, e.g. `AMD EPYC 9354 32-Core Processor`.
    pub model_name: Reading<String>,
    /// Vendor (x86) or implementer (Arm).
    pub vendor: Reading<String>,
    /// Family (x86) or architecture (Arm).
    pub family: Reading<String>,
    /// Model (x86) or part (Arm).
    pub model: Reading<String>,
    /// Stepping (x86) or revision (Arm).
    pub stepping: Reading<String>,
    /// Microcode revision (x86).
    pub microcode: Reading<String>,
    /// Online CPUs as a list of ranges, e.g. `0-3,8`.
    pub online: Reading<String>,
    /// CPUs present in the machine, in the same form.
    pub present: Reading<String>,
    /// CPUs the kernel has room for, in the same form.
    pub possible: Reading<String>,
    /// Whether two hardware threads of one core are in use.
    pub smt_active: Reading<bool>,
    /// Online NUMA nodes, in the same form as the CPUs.
    pub numa_nodes: Reading<String>,
}

/// Frequency and idle policy. Where CPUs differ, every value there is, comma-separated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frequency {
    /// The frequency driver, e.g. `amd-pstate-epp`.
    pub driver: Reading<String>,
    /// The frequency governor, e.g. `performance`.
    pub governor: Reading<String>,
    /// Lowest frequency the policy allows, in MHz: the lowest of all CPUs.
    pub min_mhz: Reading<f64>,
    /// Highest frequency the policy allows, in MHz: the highest of all CPUs.
    pub max_mhz: Reading<f64>,
    /// Frequency of each CPU just now, in MHz. A guest usually sees a constant.
    pub current_mhz: Reading<Vec<f64>>,
    /// Whether frequencies above the nominal one are allowed.
    pub turbo: Reading<bool>,
    /// The idle driver, e.g. `acpi_idle`: waking from a deep idle state takes tens of microseconds.
    pub idle_driver: Reading<String>,
    /// The idle governor, e.g. `menu`.
    pub idle_governor: Reading<String>,
}

impl Cpu {
    pub(super) fn read(root: &Root) -> Self {
        let info = root.text("/proc/cpuinfo");
        let field = |names: &[&str]| {
            info.clone().and_then(|info| {
                let value = names.iter().find_map(|name| cpuinfo_values(&info, name).next().map(str::to_owned));
                value.ok_or_else(|| format!("/proc/cpuinfo: no {:?}", names[0])).into()
            })
        };
        let system = |name: &str| root.text(&format!("/sys/devices/system/{name}"));
        Self {
            model_name: field(&["model name"]),
            vendor: field(&["vendor_id", "CPU implementer"]),
            family: field(&["cpu family", "CPU architecture"]),
            model: field(&["model", "CPU part"]),
            stepping: field(&["stepping", "CPU revision"]),
            microcode: field(&["microcode"]),
            online: system("cpu/online"),
            present: system("cpu/present"),
            possible: system("cpu/possible"),
            smt_active: flag(root, "/sys/devices/system/cpu/smt/active"),
            numa_nodes: system("node/online"),
        }
    }
}

impl Frequency {
    pub(super) fn read(root: &Root) -> Self {
        let idle = |file: &str| root.text(&format!("/sys/devices/system/cpu/cpuidle/{file}"));
        let mhz = |file: &str| cpufreq::<f64>(root, file).map(|khz| khz.into_iter().map(|khz| khz / 1000.0));
        Self {
            driver: cpufreq(root, "scaling_driver").map(distinct),
            governor: cpufreq(root, "scaling_governor").map(distinct),
            min_mhz: mhz("scaling_min_freq").map(|mhz| mhz.fold(f64::MAX, f64::min)),
            max_mhz: mhz("scaling_max_freq").map(|mhz| mhz.fold(0.0, f64::max)),
            current_mhz: mhz("scaling_cur_freq").map(Iterator::collect).or_else(|| cpuinfo_mhz(root)),
            turbo: turbo(root),
            idle_driver: idle("current_driver"),
            idle_governor: idle("current_governor").or_else(|| idle("current_governor_ro")),
        }
    }
}

/// One file of every frequency policy; there is at least one, or the reason why not.
fn cpufreq<T: FromStr>(root: &Root, file: &str) -> Reading<Vec<T>> {
    let dir = "/sys/devices/system/cpu/cpufreq";
    root.names(dir).and_then(|names| {
        let policies: Vec<_> = names.iter().filter(|name| name.starts_with("policy")).collect();
        if policies.is_empty() {
            return Reading::not_available(format!("{dir}: no policy"));
        }
        let values = policies.iter().map(|policy| root.value(&format!("{dir}/{policy}/{file}")).into_result());
        values.collect::<Result<_, _>>().into()
    })
}

fn distinct(mut values: Vec<String>) -> String {
    values.sort();
    values.dedup();
    values.join(",")
}

fn cpuinfo_mhz(root: &Root) -> Reading<Vec<f64>> {
    let place = "/proc/cpuinfo";
    root.text(place).and_then(|info| {
        let values: Result<Vec<f64>, _> =
            cpuinfo_values(&info, "cpu MHz").map(|text| parse(place, text).into_result()).collect();
        match values {
            Ok(values) if values.is_empty() => Reading::not_available(format!("{place}: no \"cpu MHz\"")),
            values => values.into(),
        }
    })
}

/// The values of every `name : value` line, in the order of the CPUs.
fn cpuinfo_values<'a>(info: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    fields.filter(move |(field, _)| field.trim() == name).map(|(_, value)| value.trim())
}

/// `intel_pstate` says what is forbidden, the generic switch what is allowed.
fn turbo(root: &Root) -> Reading<bool> {
    let boost = "/sys/devices/system/cpu/cpufreq/boost";
    let intel = "/sys/devices/system/cpu/intel_pstate/no_turbo";
    flag(root, boost).or_else(|| flag(root, intel).map(|forbidden| !forbidden))
}

/// `none` where the CPU lacks the flag that only a guest sees (x86), else the name by the CPU itself, by Xen's directory
/// or by the firmware's vendor.
pub(super) fn hypervisor(root: &Root, cpuid: Option<String>) -> Reading<String> {
    let flags = root.text("/proc/cpuinfo").and_then(|info| {
        cpuinfo_values(&info, "flags").next().map(str::to_owned).ok_or("/proc/cpuinfo: no \"flags\"").into()
    });
    flags.and_then(|flags| {
        if !flags.split_whitespace().any(|flag| flag == "hypervisor") {
            return Reading::Known("none".into());
        }
        Reading::from(cpuid.ok_or("CPUID: no hypervisor name"))
            .or_else(|| root.text("/sys/hypervisor/type"))
            .or_else(|| root.text("/sys/class/dmi/id/sys_vendor"))
    })
}

/// The hypervisor's signature in CPUID leaf 0x4000_0000 (the kernel's `hypervisor_cpuid_base`), by the name people use.
#[cfg(target_arch = "x86_64")]
pub(super) fn cpuid_hypervisor() -> Option<String> {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    let bytes: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    let signature = String::from_utf8(bytes).ok()?;
    let signature = signature.trim_end_matches('\0').trim();
    let name = match signature {
        "KVMKVMKVM" => "KVM",
        "Microsoft Hv" => "Hyper-V",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "TCGTCGTCGTCG" => "QEMU (emulated)",
        other => other,
    };
    let printable = !name.is_empty() && name.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    printable.then(|| name.to_owned())
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn cpuid_hypervisor() -> Option<String> {
    None
}

/// How many CPUs a list such as `0-3,8` has.
pub(crate) fn cpu_count(list: &str) -> Option<usize> {
    let range = |text: &str| -> Option<usize> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.split(',').map(range).sum()
}
