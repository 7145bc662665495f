//! `xdplab lab`: topologies with a name, which stay until they are taken down.

use std::convert::Infallible;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{Ending, output};
use crate::error::{Error, Result};
use crate::report;
use crate::topology::{NamedLabs, NetworkSpec, Status, TakenDown, builtin_names};

/// What to do with labs.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a topology that stays until it is taken down
    Up(Up),
    /// Show every lab and whether it is whole
    List(List),
    /// Run a command in a namespace of a lab
    Exec(Exec),
    /// Take labs down
    Down(Down),
}

/// Options of `lab up`.
#[derive(Args, Debug)]
struct Up {
    /// veth, chain, star or bridge, or a TOML file
    ///
    /// veth: two namespaces and a veth pair. chain: three namespaces in a row, the middle one forwards. star: a hub and three
    /// leaves, for redirects to several interfaces. bridge: the same with a bridge in the hub. The namespaces are called
    /// LAB-NAME, such as chain-ns0, and ip netns shows them.
    #[arg(value_name = "NAME|FILE")]
    topology: String,
    /// The lab's name; the topology's or the file's if not given
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// RX and TX queues of each end whose link says nothing else
    #[arg(long, value_name = "N")]
    queues: Option<u16>,
    /// MTU in bytes of each link that says nothing else
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Switch an offload of every end, such as gro=on; a name that ethtool -K knows, or the kernel's
    #[arg(long = "offload", value_name = "NAME=on|off", value_parser = offload)]
    offloads: Vec<(String, bool)>,
}

/// Options of `lab list`.
#[derive(Args, Debug)]
struct List {
    /// Print one JSON object for each lab
    #[arg(long)]
    json: bool,
}

/// Options of `lab exec`.
#[derive(Args, Debug)]
struct Exec {
    /// The lab
    lab: String,
    /// The namespace in the lab
    namespace: String,
    /// The command and its arguments; /sys stays that of the machine
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Options of `lab down`.
#[derive(Args, Debug)]
struct Down {
    /// The labs
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// Every lab, whole or not
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnOff {
    On,
    Off,
}

fn offload(text: &str) -> std::result::Result<(String, bool), String> {
    let (name, state) = text.split_once('=').ok_or("it has no `=`")?;
    let state = OnOff::from_str(state, false).map_err(|_why| format!("`{state}` is neither on nor off"))?;
    Ok((name.to_owned(), matches!(state, OnOff::On)))
}

/// Carries it out.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let labs = NamedLabs::of_machine();
    match &options.command {
        Command::Up(options) => up(&labs, options),
        Command::List(options) => list(&labs, options),
        Command::Exec(options) => exec(&labs, options).map(|never| match never {}),
        Command::Down(options) => down(&labs, options),
    }
}

fn up(labs: &NamedLabs, options: &Up) -> Result<Ending> {
    let (name, spec) = topology(options)?;
    let spec = spec.with(options.queues, options.mtu, options.offloads.iter().cloned())?;
    for stale in labs.remove_stale()? {
        output::note(&format!("removed what was left of the lab {stale}"));
    }
    let lab = labs.up(&name, &spec)?;
    let mut text = format!("{} is up: {}\n", lab.name, lab.about);
    for namespace in &lab.namespaces {
        text += &format!(
            "  xdplab lab exec {} {} COMMAND, or ip netns exec {}\n",
            lab.name, namespace.name, namespace.netns
        );
    }
    output::text(&text)?;
    Ok(Ending::Done)
}

/// The lab's name and what to make.
fn topology(options: &Up) -> Result<(String, NetworkSpec)> {
    let named = |name: &str| options.name.clone().unwrap_or_else(|| name.to_owned());
    if builtin_names().contains(&options.topology.as_str()) {
        return Ok((named(&options.topology), NetworkSpec::builtin(&options.topology)?));
    }
    let path = PathBuf::from(&options.topology);
    if path.extension().is_none() && !path.exists() {
        // Says what there is.
        return NetworkSpec::builtin(&options.topology).map(|spec| (named(&options.topology), spec));
    }
    let spec = NetworkSpec::read(&path)?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    Ok((named(stem), spec))
}

fn list(labs: &NamedLabs, options: &List) -> Result<Ending> {
    let listed = labs.list()?;
    let text = if options.json {
        listed.iter().map(|lab| format!("{}\n", json!({"schema": "xdplab.lab-list/1", "lab": lab}))).collect()
    } else {
        report::labs_text(&listed)
    };
    output::text(&text)?;
    Ok(Ending::Done)
}

/// Becomes the command.
fn exec(labs: &NamedLabs, options: &Exec) -> Result<Infallible> {
    let [program, arguments @ ..] = options.command.as_slice() else {
        return Err(Error::usage("run a command", "none is given"));
    };
    labs.namespace(&options.lab, &options.namespace)?.enter()?;
    let error = Process::new(program).args(arguments).exec();
    Err(Error::io(format!("run {}", Path::new(program).display()), "execve", &error))
}

fn down(labs: &NamedLabs, options: &Down) -> Result<Ending> {
    let names = if options.all {
        labs.list()?
            .into_iter()
            .filter(|listed| listed.status != Status::Changing)
            .map(|listed| listed.lab.name)
            .collect()
    } else {
        options.names.clone()
    };
    for name in names {
        let TakenDown { processes, foreign } = labs.down(&name)?;
        if !processes.is_empty() {
            let processes: Vec<String> = processes.iter().map(u32::to_string).collect();
            output::note(&format!(
                "{name}: processes are still in its namespaces, which live on without links until they end: {}",
                processes.join(", ")
            ));
        }
        for netns in foreign {
            output::note(&format!("{name}: the namespace {netns} is not of this lab and was left alone"));
        }
        output::text(&format!("{name} is down\n"))?;
    }
    Ok(Ending::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offload_has_a_name_and_a_state() {
        assert_eq!(offload("gro=on"), Ok(("gro".into(), true)));
        assert_eq!(offload("tx-udp-segmentation=off"), Ok(("tx-udp-segmentation".into(), false)));
        assert!(offload("gro").is_err() && offload("gro=maybe").is_err());
    }
}
