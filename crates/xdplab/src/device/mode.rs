//! Programs that hand packets on, as one side of a comparison: to other interfaces, to other CPUs, or to AF_XDP sockets.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::spec::name_of;
use super::{
    CpumapSpec, EgressAction, LoadMode, RedirectBy, RedirectTarget, Remote, Selection, VariantSpec, XskAction,
    XskVariant,
};
use crate::error::{Error, Result};
use crate::netlink::Rtnl;

/// One of our programs that redirect to other interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectVariant {
    /// How it redirects.
    pub redirect: RedirectBy,
    /// The interfaces, by name; none: the one that the lab brings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// What the programs of the devmap entries do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressAction>,
}

/// One of our programs that redirect to other CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpumapVariant {
    /// How the CPU is chosen.
    pub selection: Selection,
    /// The CPUs to choose from; none: one that the device does not run on.
    pub cpus: Vec<u32>,
    /// Packets that the queue of each CPU holds.
    pub qsize: u32,
    /// What the CPU does.
    pub remote: RemoteAction,
    /// The interface that [`RemoteAction::Redirect`] sends to, by name; none: the one that the lab brings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

/// What a CPU does with a packet that it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteAction {
    /// Without a program: pass it to the network stack
    #[default]
    Disabled,
    /// Drop it
    Drop,
    /// Let a program pass it to the network stack
    Pass,
    /// Send it back to whom it came from, out of another interface
    Redirect,
}

/// What programs handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOn {
    /// Packets redirected to interfaces, each as often as copies of it were to be made.
    pub to_interfaces: u64,
    /// Frames that programs of devmap entries dropped.
    pub egress_drops: u64,
    /// Packets redirected to CPUs.
    pub to_cpus: u64,
    /// Packets redirected to AF_XDP sockets.
    #[serde(default)]
    pub to_sockets: u64,
}

impl AddAssign for HandedOn {
    fn add_assign(&mut self, other: Self) {
        self.to_interfaces += other.to_interfaces;
        self.egress_drops += other.egress_drops;
        self.to_cpus += other.to_cpus;
        self.to_sockets += other.to_sockets;
    }
}

impl VariantSpec {
    /// The specification of a program that hands packets on; `None` if the text begins with no such program's name.
    pub(super) fn parse_mode(text: &str) -> Option<Result<Self>> {
        let mut parts = text.split(':');
        let redirect = match parts.next()? {
            "redirect" => RedirectBy::Helper(LoadMode::Dpa),
            "redirect-map" => RedirectBy::Map,
            "redirect-multi" => RedirectBy::Broadcast,
            "redirect-cpu" => return Some(CpumapVariant::parse(parts, text).map(Self::Cpumap)),
            "xsk-drop" => return Some(XskVariant::parse(XskAction::Drop, parts, text).map(Self::Xsk)),
            "xsk-tx" => return Some(XskVariant::parse(XskAction::Tx, parts, text).map(Self::Xsk)),
            _ => return None,
        };
        Some(RedirectVariant::parse(redirect, parts, text).map(Self::Redirect))
    }

    /// The interfaces that it names to redirect to.
    #[must_use]
    pub fn named_targets(&self) -> &[String] {
        match self {
            Self::Redirect(spec) => &spec.targets,
            Self::Cpumap(spec) => &spec.targets,
            Self::Builtin(_) | Self::Xsk(_) | Self::Object(_) => &[],
        }
    }

    /// Whether it redirects to interfaces. Nobody knows that of a user's program, which does not count here.
    #[must_use]
    pub fn needs_target(&self) -> bool {
        match self {
            Self::Redirect(_) => true,
            Self::Cpumap(spec) => spec.remote == RemoteAction::Redirect,
            Self::Builtin(_) | Self::Xsk(_) | Self::Object(_) => false,
        }
    }

    /// Whether it redirects to CPUs; see [`Self::needs_target`].
    #[must_use]
    pub fn needs_cpus(&self) -> bool {
        matches!(self, Self::Cpumap(_))
    }

    /// The AF_XDP socket that it gives packets to, if that is what it does; see [`Self::needs_target`].
    #[must_use]
    pub fn socket(&self) -> Option<&XskVariant> {
        match self {
            Self::Xsk(spec) => Some(spec),
            Self::Builtin(_) | Self::Redirect(_) | Self::Cpumap(_) | Self::Object(_) => None,
        }
    }

    /// Names the interface to redirect to where the specification names none.
    #[must_use]
    pub fn or_target(mut self, name: &str) -> Self {
        let needed = self.needs_target();
        if let Self::Redirect(RedirectVariant { targets, .. }) | Self::Cpumap(CpumapVariant { targets, .. }) = &mut self
            && needed
            && targets.is_empty()
        {
            targets.push(name.to_owned());
        }
        self
    }

    /// Fits the specification to where it is to run: a lab, which brings an interface to redirect to, or an interface of the
    /// machine (`outside`). A CPU that it leaves open is `cpu`.
    ///
    /// # Errors
    /// An interface or a CPU is to be named and is not, or is named where the lab brings its own.
    pub fn fit(&mut self, outside: bool, cpu: Option<u32>) -> Result<()> {
        let what = format!("place {self}");
        if self.needs_target() && outside && self.named_targets().is_empty() {
            return Err(Error::usage(what, "it names no interface to redirect to").remedy(
                "name it: redirect:IFACE, redirect-map:IFACE, redirect-multi:IFACE,IFACE or remote-redirect=IFACE",
            ));
        }
        if let (false, Some(name)) = (outside, self.named_targets().first()) {
            let why = format!("`{name}` is none of its options, and the lab brings the interface to redirect to");
            return Err(Error::usage(what, why).remedy(format!("{OPTIONS}; name interfaces with --on alone")));
        }
        let cpu = |command: &str| {
            cpu.ok_or_else(|| Error::usage(what, "it names no CPU").remedy(format!("name one: {command}:cpu=N")))
        };
        match self {
            Self::Cpumap(spec) if spec.cpus.is_empty() => spec.cpus.push(cpu("redirect-cpu")?),
            Self::Xsk(spec) if spec.cpu.is_none() => spec.cpu = Some(cpu(spec.xsk.command())?),
            _ => {}
        }
        Ok(())
    }
}

/// The options of all of them.
const OPTIONS: &str = "write redirect[:load-bytes], redirect-map[:egress-forward|:egress-drop], \
                       redirect-multi[:egress-forward|:egress-drop], \
                       redirect-cpu[:cpu=N,…][:qsize=N][:remote-drop|:remote-pass|:remote-redirect][:no-touch|:l4-hash|…], or \
                       xsk-drop|xsk-tx[:cpu=N][:fifo=N][:queue=N][:batch=N][:frame-size=N][:poll][:no-need-wakeup][:unaligned]\
                       [:frags][:copy|:zero-copy]";

pub(super) fn wrong(text: &str, why: impl Into<String>) -> Error {
    Error::usage(format!("read the program specification `{text}`"), why).remedy(OPTIONS)
}

impl RedirectVariant {
    fn parse<'a>(mut redirect: RedirectBy, parts: impl Iterator<Item = &'a str>, text: &str) -> Result<Self> {
        let (mut targets, mut egress) = (Vec::new(), None);
        for part in parts {
            match (&mut redirect, part) {
                (RedirectBy::Helper(mode), "dpa") => *mode = LoadMode::Dpa,
                (RedirectBy::Helper(mode), "load-bytes") => *mode = LoadMode::LoadBytes,
                (RedirectBy::Map | RedirectBy::Broadcast, "egress-forward") => egress = Some(EgressAction::Forward),
                (RedirectBy::Map | RedirectBy::Broadcast, "egress-drop") => egress = Some(EgressAction::Drop),
                (RedirectBy::Broadcast, names) if targets.is_empty() => targets = read_names(names, text)?,
                (RedirectBy::Helper(_) | RedirectBy::Map, name) if targets.is_empty() && !name.contains(',') => {
                    targets = read_names(name, text)?;
                }
                (_, part) => return Err(wrong(text, format!("`{part}` is none of its options"))),
            }
        }
        Ok(Self { redirect, targets, egress })
    }

    /// The interfaces of the calling thread's network namespace.
    pub(super) fn find_targets(&self) -> Result<Vec<RedirectTarget>> {
        find(&self.targets)
    }
}

impl CpumapVariant {
    /// Packets that a queue holds where nothing else is said, as for the command `redirect-cpu`.
    pub const QSIZE: u32 = 2048;

    fn parse<'a>(parts: impl Iterator<Item = &'a str>, text: &str) -> Result<Self> {
        let mut spec = Self {
            selection: Selection::L4Hash,
            cpus: Vec::new(),
            qsize: Self::QSIZE,
            remote: RemoteAction::Disabled,
            targets: Vec::new(),
        };
        for part in parts {
            match part.split_once('=') {
                Some(("cpu", cpus)) => {
                    spec.cpus =
                        read_list(cpus).ok_or_else(|| wrong(text, format!("`{cpus}` are no numbers of CPUs")))?;
                }
                Some(("qsize", packets)) => {
                    spec.qsize =
                        packets.parse().map_err(|_no_number| wrong(text, format!("`{packets}` is no queue size")))?;
                }
                Some(("remote-redirect", name)) => {
                    (spec.remote, spec.targets) = (RemoteAction::Redirect, read_names(name, text)?);
                }
                _ => {
                    let remote = part.strip_prefix("remote-").and_then(|name| RemoteAction::from_str(name, false).ok());
                    match (remote, Selection::from_str(part, false)) {
                        (Some(remote), _) => spec.remote = remote,
                        (None, Ok(selection)) => spec.selection = selection,
                        (None, Err(_no_reason_given)) => {
                            return Err(wrong(text, format!("`{part}` is none of its options")));
                        }
                    }
                }
            }
        }
        Ok(spec)
    }

    /// With the interface of the calling thread's network namespace that the other CPU redirects to.
    pub(crate) fn resolve(&self) -> Result<CpumapSpec> {
        let remote = match self.remote {
            RemoteAction::Disabled => Remote::Disabled,
            RemoteAction::Drop => Remote::Drop,
            RemoteAction::Pass => Remote::Pass,
            RemoteAction::Redirect => {
                let targets = find(&self.targets)?;
                let target = targets.first().ok_or_else(|| Error::usage(format!("load {self}"), "it has no target"))?;
                Remote::Redirect { ifindex: target.ifindex, mac: target.mac }
            }
        };
        Ok(CpumapSpec { selection: self.selection, cpus: self.cpus.clone(), qsize: self.qsize, remote })
    }
}

/// Names with commas between them.
fn read_names(text: &str, of: &str) -> Result<Vec<String>> {
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err(wrong(of, "the name of an interface is empty"));
    }
    Ok(names)
}

/// Numbers with commas between them.
fn read_list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

fn find(names: &[String]) -> Result<Vec<RedirectTarget>> {
    let mut rtnl = Rtnl::open()?;
    names.iter().map(|name| RedirectTarget::of(&rtnl.link_by_name(name)?)).collect()
}

impl fmt::Display for RedirectVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.redirect.command())?;
        if !self.targets.is_empty() {
            write!(f, ":{}", self.targets.join(","))?;
        }
        if self.redirect == RedirectBy::Helper(LoadMode::LoadBytes) {
            f.write_str(":load-bytes")?;
        }
        self.egress.map_or(Ok(()), |egress| write!(f, ":egress-{}", name_of(&egress)))
    }
}

impl fmt::Display for CpumapVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redirect-cpu")?;
        if !self.cpus.is_empty() {
            let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
            write!(f, ":cpu={}", cpus.join(","))?;
        }
        if self.selection != Selection::L4Hash {
            write!(f, ":{}", self.selection)?;
        }
        if self.qsize != Self::QSIZE {
            write!(f, ":qsize={}", self.qsize)?;
        }
        if self.remote != RemoteAction::Disabled {
            write!(f, ":remote-{}", name_of(&self.remote))?;
        }
        self.targets.first().map_or(Ok(()), |target| write!(f, "={target}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> VariantSpec {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_specification_reads_back_as_it_was_written_and_survives_json() {
        for text in [
            "redirect",
            "redirect:eth1:load-bytes",
            "redirect-map",
            "redirect-map:egress-drop",
            "redirect-map:eth1:egress-forward",
            "redirect-multi:eth1,eth2",
            "redirect-cpu",
            "redirect-cpu:cpu=0,3:no-touch:qsize=64:remote-drop",
            "redirect-cpu:remote-redirect=eth1",
        ] {
            let spec = read(text);
            assert_eq!(spec.to_string(), text);
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<VariantSpec>(&json).unwrap(), spec, "{json}");
        }
    }

    #[test]
    fn the_order_of_options_does_not_matter_and_defaults_are_those_of_the_commands() {
        assert_eq!(read("redirect-cpu:qsize=192:remote-pass:cpu=1"), read("redirect-cpu:cpu=1:remote-pass:qsize=192"));
        assert_eq!(read("redirect-cpu:l4-hash:qsize=2048:remote-disabled"), read("redirect-cpu"));
        assert_eq!(read("redirect:dpa"), read("redirect"));
    }

    #[test]
    fn a_wrong_option_is_told_with_those_there_are() {
        for (text, word) in [
            ("redirect-map:eth1:eth2", "`eth2` is none of its options"),
            ("redirect-map:eth1,eth2", "`eth1,eth2` is none of its options"),
            ("redirect:eth1:egress-drop", "`egress-drop` is none of its options"),
            ("redirect-multi:eth1,", "the name of an interface is empty"),
            ("redirect-cpu:cpu=", "`` are no numbers of CPUs"),
            ("redirect-cpu:qsize=-1", "`-1` is no queue size"),
            ("redirect-cpu:eth1", "`eth1` is none of its options"),
        ] {
            let error = text.parse::<VariantSpec>().unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("redirect-map[:egress-forward|:egress-drop]"), "{error}");
        }
    }

    #[test]
    fn what_is_left_open_is_filled_in_by_the_place() {
        let fit = |text: &str, outside, cpu| {
            let mut spec = read(text);
            spec.fit(outside, cpu).map(|()| spec.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(fit("redirect-cpu:qsize=64", false, Some(3)).unwrap(), "redirect-cpu:cpu=3:qsize=64");
        assert_eq!(fit("redirect-cpu:cpu=1", false, Some(3)).unwrap(), "redirect-cpu:cpu=1");
        assert!(fit("redirect-cpu", true, None).unwrap_err().contains("name one: redirect-cpu:cpu=N"));
        assert_eq!(fit("xsk-tx:poll", false, Some(3)).unwrap(), "xsk-tx:cpu=3:poll");
        assert!(fit("xsk-tx", true, None).unwrap_err().contains("name one: xsk-tx:cpu=N"));
        assert_eq!(fit("redirect-map", false, None).unwrap(), "redirect-map");
        assert_eq!(fit("redirect-map:eth1", true, None).unwrap(), "redirect-map:eth1");
        assert!(fit("redirect-map", true, None).unwrap_err().contains("it names no interface to redirect to"));
        let error = fit("redirect-map:egress-dorp", false, None).unwrap_err();
        assert!(error.contains("`egress-dorp` is none of its options, and the lab brings"), "{error}");
        assert_eq!(fit("drop:no-touch", true, None).unwrap(), "drop:no-touch");
    }

    #[test]
    fn only_what_redirects_to_interfaces_gets_a_target() {
        let target = |text: &str| read(text).or_target("out0").named_targets().to_vec();
        assert_eq!(target("redirect-map:egress-drop"), ["out0"]);
        assert_eq!(target("redirect-multi:a,b"), ["a", "b"]);
        assert_eq!(target("redirect-cpu:remote-redirect"), ["out0"]);
        assert!(target("redirect-cpu:remote-drop").is_empty() && target("drop:no-touch").is_empty());
    }
}
