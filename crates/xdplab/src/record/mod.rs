//! The record of a run: one JSON file from which everything printed can be told again.

pub mod slices;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::host::Environment;
use crate::import::Imported;
use crate::kernels::KernelsCase;
use crate::live::LiveRun;
use crate::pool::PoolCase;
use crate::rates::RatesCase;
use crate::run::Case;
use crate::scenario::ScenarioRun;
use crate::settings::SettingsCase;
use crate::stream::StreamCase;

/// The schema that this version writes and reads.
pub const SCHEMA: &str = "xdplab.record/1";

/// A run, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// The tool that wrote it.
    pub tool: Tool,
    /// Wall clock at the start, RFC 3339.
    pub started: String,
    /// Wall clock at the end, RFC 3339; absent while the run goes on.
    pub stopped: Option<String>,
    /// The machine.
    pub environment: Environment,
    /// The measured cases, in order; written after each.
    pub cases: Vec<Case>,
    /// Live commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live_runs: Vec<LiveRun>,
    /// Comparisons of settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingsCase>,
    /// Packets of one program counted at each stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<RatesCase>,
    /// TCP streams through a chain of network namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamCase>,
    /// Paths of the page-pool crate compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolCase>,
    /// The scenario that it is a run of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<ScenarioRun>,
    /// Comparisons of kernels by guest instructions; the environment is that of the machine that QEMU ran on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelsCase>,
    /// Results of other tools, for a record that was imported; the environment is then not that of their machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<Imported>,
}

/// The tool that wrote a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `xdplab`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How it was called.
    pub argv: Vec<String>,
    /// SHA-256 of the BPF objects it brought.
    pub bpf_objects_sha256: BTreeMap<String, String>,
}

impl Record {
    /// The record of a run that begins now.
    #[must_use]
    pub fn begin(environment: Environment, argv: Vec<String>) -> Self {
        Self {
            schema: SCHEMA.into(),
            tool: Tool {
                name: "xdplab".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                argv,
                bpf_objects_sha256: crate::bpf::ALL.map(|object| (object.name.to_owned(), object.sha256())).into(),
            },
            started: now(),
            stopped: None,
            environment,
            cases: Vec::new(),
            live_runs: Vec::new(),
            settings: Vec::new(),
            rates: Vec::new(),
            streams: Vec::new(),
            pools: Vec::new(),
            scenario: None,
            kernels: Vec::new(),
            imported: Vec::new(),
        }
    }

    /// The record of results that another machine's tools printed.
    #[must_use]
    pub fn of_imported(imported: Vec<Imported>, argv: Vec<String>) -> Self {
        let environment = Environment::unknown("imported: the text does not tell the machine");
        let begun = Self::begin(environment, argv);
        Self { stopped: Some(now()), imported, ..begun }
    }

    /// Adds a case and the time.
    pub fn add(&mut self, case: Case) {
        self.cases.push(case);
        self.stop();
    }

    /// Says that the run goes on no more.
    pub fn stop(&mut self) {
        self.stopped = Some(now());
    }

    /// Writes the record, in one step: a reader sees the old file or the new one, never half of it.
    ///
    /// # Errors
    /// The file or its folder can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_json(self, path)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The file can't be read, is no record, or is of a schema that this version does not know.
    pub fn read(path: &Path) -> Result<Self> {
        let record: Self = read_json(path, SCHEMA)?;
        let adds_up = |case: &Case| {
            let in_rounds: u128 = case.observed.rounds.iter().map(|slices| *slices as u128).sum();
            in_rounds == case.observed.slices.len() as u128
        };
        if !record.cases.iter().all(adds_up) {
            let what = format!("read the record {}", path.display());
            return Err(Error::usage(what, "the rounds of a case do not add up to its slices"));
        }
        Ok(record)
    }
}

/// Writes a file in one step: a reader sees the old one or the new one, never half of it.
pub(crate) fn write_json(value: &impl Serialize, path: &Path) -> Result<()> {
    let what = || format!("write the record {}", path.display());
    let json = serde_json::to_vec(value).map_err(|error| Error::invalid(what(), error.to_string()))?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    fs::write(partial, json)
        .and_then(|()| fs::rename(partial, path))
        .map_err(|error| Error::io(what(), "write", &error).remedy("name another file with --record FILE"))
}

/// Reads a file that says it is of `schema`.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, schema: &str) -> Result<T> {
    let what = || format!("read the record {}", path.display());
    let text = fs::read_to_string(path).map_err(|error| Error::io(what(), "open", &error))?;
    let head: Head = serde_json::from_str(&text).map_err(|error| Error::usage(what(), error.to_string()))?;
    if head.schema != schema {
        return Err(Error::usage(what(), format!("its schema is `{}`, and this version reads {schema}", head.schema)));
    }
    serde_json::from_str(&text).map_err(|error| Error::usage(what(), error.to_string()))
}

#[derive(Deserialize)]
struct Head {
    schema: String,
}

/// Where a record goes that the user gave no name for: `$XDG_STATE_HOME/xdplab/`, else `~/.local/state/xdplab/` (XDG Base
/// Directory Specification), else the folder for temporary files; the folder is made.
///
/// # Errors
/// The folder can't be made.
pub fn default_path(command: &str) -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    let folder = state.unwrap_or_else(std::env::temp_dir).join("xdplab");
    fs::create_dir_all(&folder).map_err(|error| {
        Error::io(format!("make the folder {}", folder.display()), "mkdir", &error)
            .remedy("name the record's file with --record FILE")
    })?;
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    Ok(folder.join(format!("{command}-{time}-{}.json", std::process::id())))
}

/// The wall clock, RFC 3339.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
