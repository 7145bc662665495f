//! The kernel and how it was built.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::between;
use crate::host::root::Root;
use crate::reading::Reading;

/// Build options of the kernel that cost or save time on the path of a packet, or decide what can be observed.
const CONFIG_OPTIONS: [&str; 14] = [
    "CONFIG_BPF_JIT_ALWAYS_ON",
    "CONFIG_DEBUG_NET",
    "CONFIG_DEBUG_PREEMPT",
    "CONFIG_HZ",
    "CONFIG_INIT_ON_ALLOC_DEFAULT_ON",
    "CONFIG_KASAN",
    "CONFIG_MITIGATION_RETPOLINE",
    "CONFIG_NETWORK_PHY_TIMESTAMPING",
    "CONFIG_NET_PKTGEN",
    "CONFIG_NO_HZ_FULL",
    "CONFIG_PAGE_POOL_STATS",
    "CONFIG_PROVE_LOCKING",
    "CONFIG_SLUB_DEBUG_ON",
    "CONFIG_VIRT_CPU_ACCOUNTING_GEN",
];

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// As `uname -r` says.
    pub release: Reading<String>,
    /// As `uname -v` says.
    pub version: Reading<String>,
    /// The boot parameters. What follows `--` goes to init and is left out.
    pub cmdline: Reading<String>,
    /// The preemption model: `none`, `voluntary`, `full`, `lazy` or `rt`. Where the kernel lets it change while running
    /// (PREEMPT_DYNAMIC) and debugfs can't be read, this is the model it booted with.
    pub preemption: Reading<String>,
    /// The build configuration.
    pub config: Reading<ConfigFile>,
}

/// A kernel's build configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Where it was found.
    pub path: String,
    /// SHA-256 of its text (unpacked), in hexadecimal.
    pub sha256: String,
    /// Options that bear on a measurement; `n` is not set.
    pub options: BTreeMap<String, String>,
}

impl Kernel {
    pub(super) fn read(root: &Root) -> Self {
        let release = root.text("/proc/sys/kernel/osrelease");
        let version = root.text("/proc/sys/kernel/version");
        let cmdline = root.text("/proc/cmdline").map(|text| {
            let words: Vec<_> = text.split_whitespace().take_while(|&word| word != "--").collect();
            words.join(" ")
        });
        let config = ConfigText::read(root);
        let preemption = preemption(root, &version, &cmdline, &config);
        Self { release, version, cmdline, preemption, config: config.map(|config| config.summary()) }
    }
}

/// A kernel's build configuration as text.
pub(crate) struct ConfigText {
    path: String,
    text: String,
}

impl ConfigText {
    /// Reads it from the kernel itself or from where distributions keep it.
    pub(crate) fn read(root: &Root) -> Reading<Self> {
        Self::from_kernel(root).or_else(|| {
            root.text("/proc/sys/kernel/osrelease").and_then(|release| {
                Self::from_file(root, format!("/boot/config-{release}"))
                    .or_else(|| Self::from_file(root, format!("/lib/modules/{release}/config")))
            })
        })
    }

    fn from_kernel(root: &Root) -> Reading<Self> {
        let path = "/proc/config.gz";
        root.bytes(path).and_then(|packed| {
            let mut text = String::new();
            let unpacked = GzDecoder::new(&*packed).read_to_string(&mut text);
            unpacked.map(|_| Self { path: path.into(), text }).map_err(|error| format!("{path}: {error}")).into()
        })
    }

    fn from_file(root: &Root, path: String) -> Reading<Self> {
        root.bytes(&path).map(|bytes| Self { text: String::from_utf8_lossy(&bytes).into_owned(), path })
    }

    /// The value of an option such as `CONFIG_HZ`; `n` where it is not set.
    pub(crate) fn option(&self, name: &str) -> &str {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or("n")
    }

    fn preemption(&self) -> Reading<String> {
        let models = [
            ("CONFIG_PREEMPT_NONE", "none"),
            ("CONFIG_PREEMPT_VOLUNTARY", "voluntary"),
            ("CONFIG_PREEMPT", "full"),
            ("CONFIG_PREEMPT_LAZY", "lazy"),
        ];
        let model = models.iter().find(|(option, _)| self.option(option) == "y");
        model.map(|(_, model)| (*model).to_owned()).ok_or_else(|| format!("{}: no preemption model", self.path)).into()
    }

    fn summary(&self) -> ConfigFile {
        ConfigFile {
            path: self.path.clone(),
            sha256: Sha256::digest(&self.text).iter().map(|byte| format!("{byte:02x}")).collect(),
            options: CONFIG_OPTIONS.iter().map(|&name| (name.into(), self.option(name).into())).collect(),
        }
    }
}

/// The first source that knows: the running state, the version string, the boot parameter, the build default.
fn preemption(
    root: &Root,
    version: &Reading<String>,
    cmdline: &Reading<String>,
    config: &Reading<ConfigText>,
) -> Reading<String> {
    let words = |text: &Reading<String>| text.known().map_or_else(String::new, String::clone);
    let (version, cmdline) = (words(version), words(cmdline));
    let parameter = cmdline.split_whitespace().filter_map(|word| word.strip_prefix("preempt=")).next_back();
    let debugfs = "/sys/kernel/debug/sched/preempt";
    between(root, debugfs, '(', ')').or_else(|| match (version.contains("PREEMPT_RT"), parameter) {
        (true, _) => Reading::Known("rt".into()),
        (false, Some(model)) => Reading::Known(model.into()),
        (false, None) => match config {
            Reading::Known(config) => config.preemption(),
            Reading::NotAvailable { why } => Reading::not_available(why.as_str()),
        },
    })
}
