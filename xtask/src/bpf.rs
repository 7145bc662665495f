//! Builds `crates/xdplab/bpf/*.bpf.c` and `bpf/tests/*.bpf.c` into `bpf/objects/` and describes them in `MANIFEST.toml`.
//!
//! The objects are committed so that a build of xdplab needs no clang; the check rebuilds them and compares bytes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use sha2::{Digest, Sha256};

const COMPILER: &str = "clang-19";
const STRIP: &str = "llvm-strip-19";
/// `-mcpu=v3` (kernel 5.1) gives 32-bit ALU and jump instructions; `-g` gives the BTF, of which the DWARF is stripped.
const FLAGS: &[&str] = &[
    "-target",
    "bpf",
    "-mcpu=v3",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-const-variable",
    "-Wno-unused-parameter",
];

#[derive(Serialize)]
struct Manifest {
    compiler: String,
    flags: String,
    objects: BTreeMap<String, Object>,
}

#[derive(Serialize)]
struct Object {
    source: String,
    /// SHA-256 over the source and the headers it includes, in this order.
    source_sha256: String,
    object_sha256: String,
}

/// Builds into the tree.
pub(crate) fn build() -> Result<()> {
    let objects = source_folder().join("objects");
    fs::create_dir_all(&objects).with_context(|| format!("can't create {}", objects.display()))?;
    build_into(&objects)
}

/// Builds into a temporary folder and compares it with the tree, byte for byte.
pub(crate) fn check() -> Result<()> {
    let fresh = tempfile::tempdir().context("can't create a temporary folder")?;
    build_into(fresh.path())?;
    let committed = source_folder().join("objects");
    let (fresh, committed) = (read_folder(fresh.path())?, read_folder(&committed)?);
    let differing: Vec<&String> = fresh
        .keys()
        .chain(committed.keys())
        .filter(|name| fresh.get(*name) != committed.get(*name))
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    ensure!(
        differing.is_empty(),
        "these differ from what a build gives: {differing:?}; run cargo xtask bpf and commit"
    );
    Ok(())
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/xdplab/bpf")
}

fn read_folder(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    entries
        .map(|entry| {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Ok((name, fs::read(&path).with_context(|| format!("can't read {}", path.display()))?))
        })
        .collect()
}

fn build_into(folder: &Path) -> Result<()> {
    let mut objects = BTreeMap::new();
    for (name, source) in read_folder_sources()? {
        let file = format!("{}.bpf.o", name.replace('/', "-"));
        let output = folder.join(&file);
        compile(&name, &output)?;
        let hash = |parts: &[&[u8]]| {
            let mut digest = Sha256::new();
            parts.iter().for_each(|part| digest.update(part));
            digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let object = fs::read(&output).with_context(|| format!("can't read {}", output.display()))?;
        objects.insert(
            file,
            Object {
                source: format!("{name}.bpf.c"),
                source_sha256: hash(&[source.as_bytes(), headers(&name, &source)?.as_bytes()]),
                object_sha256: hash(&[&object]),
            },
        );
    }
    let manifest = Manifest { compiler: compiler_version()?, flags: FLAGS.join(" "), objects };
    let path = folder.join("MANIFEST.toml");
    fs::write(&path, toml::to_string(&manifest)?).with_context(|| format!("can't write {}", path.display()))
}

/// The headers that a source includes, one after the other.
fn headers(name: &str, source: &str) -> Result<String> {
    let folder = source_folder().join(name);
    let included = source.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    let read = |header: &str| {
        let path = folder.with_file_name(header);
        fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))
    };
    included.map(read).collect()
}

/// The sources by name below the source folder, without `.bpf.c`: ours, and those of users' objects for tests.
fn read_folder_sources() -> Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    for prefix in ["", "tests/"] {
        let folder = source_folder().join(prefix);
        for entry in fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_suffix(".bpf.c"))
            else {
                continue;
            };
            let source = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
            sources.push((format!("{prefix}{name}"), source));
        }
    }
    sources.sort();
    ensure!(!sources.is_empty(), "no BPF sources found");
    Ok(sources)
}

/// Compiles in the source folder under a relative name, so that no path of this machine gets into the object.
fn compile(name: &str, output: &Path) -> Result<()> {
    let source = format!("{name}.bpf.c");
    let mut clang = Command::new(COMPILER);
    clang.current_dir(source_folder()).args(FLAGS).arg("-fdebug-compilation-dir=.").args(["-c", &source, "-o"]);
    run(clang.arg(output))?;
    run(Command::new(STRIP).arg("-g").arg(output))
}

fn compiler_version() -> Result<String> {
    let output = Command::new(COMPILER).arg("--version").output().with_context(|| missing(COMPILER))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| missing(&program))?;
    if !status.success() {
        bail!("{program} failed: {status}");
    }
    Ok(())
}

fn missing(program: &str) -> String {
    format!("can't run {program}; on Debian: apt-get install clang-19 llvm-19")
}
