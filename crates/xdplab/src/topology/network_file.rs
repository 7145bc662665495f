//! What network to build, as a TOML file says it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::lab::LabSpec;
use crate::error::{Error, Result};
use crate::packet::MacAddr;
use crate::toml_file::TomlFile;

/// The topologies that come with the tool.
const BUILTIN: [(&str, &str); 4] = [
    ("veth", include_str!("../../topologies/veth.toml")),
    ("chain", include_str!("../../topologies/chain.toml")),
    ("star", include_str!("../../topologies/star.toml")),
    ("bridge", include_str!("../../topologies/bridge.toml")),
];
/// The longest interface name: `IFNAMSIZ` (`include/uapi/linux/if.h`) less its NUL.
const INTERFACE_NAME_MAX: usize = 15;
/// The longest name of a namespace, so that it fits a file name with that of its lab.
const NAME_MAX: usize = 64;
/// The MTUs of a veth end in bytes: `ETH_MIN_MTU` to `ETH_MAX_MTU` (`include/uapi/linux/if_ether.h`).
const MTUS: std::ops::RangeInclusive<u32> = 68..=65_535;
/// The queues of a veth end.
const QUEUES: std::ops::RangeInclusive<u16> = 1..=LabSpec::MAX_QUEUES;

/// Namespaces and the veth pairs between them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// What it is, in a line.
    #[serde(default)]
    pub about: String,
    /// Receive queues and transmit queues of each end of the links that name none.
    #[serde(default = "one")]
    pub queues: Spanned<u16>,
    /// The MTU in bytes of the links that name none.
    #[serde(default = "mtu")]
    pub mtu: Spanned<u32>,
    /// Offloads of every end, by a name that [`crate::netlink::Ethtool::set_offloads`] takes; those not named stay as veth
    /// has them.
    #[serde(default)]
    pub offloads: BTreeMap<String, bool>,
    /// The namespaces, by name.
    #[serde(rename = "namespace")]
    pub namespaces: BTreeMap<Spanned<String>, NamespaceSpec>,
    /// Bridges, by the name of their interface.
    #[serde(default, rename = "bridge")]
    pub bridges: BTreeMap<Spanned<String>, BridgeSpec>,
    /// The veth pairs.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkSpec>,
}

/// A network namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceSpec {
    /// Whether its stack forwards packets, IPv4 and IPv6.
    #[serde(default)]
    pub forward: bool,
    /// Static routes.
    #[serde(default)]
    pub routes: Vec<RouteSpec>,
}

/// A static route.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSpec {
    /// Where to; `0.0.0.0/0` is the default.
    pub to: Prefix,
    /// By way of this neighbour.
    pub via: IpAddr,
}

/// A bridge.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSpec {
    /// The namespace that it is in.
    pub namespace: Spanned<String>,
}

/// A veth pair.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// One end.
    pub a: EndSpec,
    /// The other.
    pub b: EndSpec,
    /// Receive queues and transmit queues of each end, 1 to 4096.
    #[serde(default)]
    pub queues: Option<Spanned<u16>>,
    /// The MTU of both ends in bytes, 68 to 65535.
    #[serde(default)]
    pub mtu: Option<Spanned<u32>>,
}

/// One end of a veth pair.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndSpec {
    /// The namespace that it is in.
    pub namespace: Spanned<String>,
    /// Its name.
    pub interface: Spanned<String>,
    /// Its MAC address; a locally administered one of its own if none is given.
    #[serde(default)]
    pub mac: Option<MacAddr>,
    /// Its addresses, such as `198.18.0.1/24`. Each becomes a static neighbour of every end with an address in the same
    /// network.
    #[serde(default)]
    pub addresses: Vec<Prefix>,
    /// Offloads beyond those of the whole network.
    #[serde(default)]
    pub offloads: BTreeMap<String, bool>,
    /// The bridge that it is a port of.
    #[serde(default)]
    pub bridge: Option<Spanned<String>>,
}

/// An address with the length of its network's prefix, written as `198.18.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub len: u8,
}

fn one() -> Spanned<u16> {
    Spanned::new(0..0, 1)
}

fn mtu() -> Spanned<u32> {
    Spanned::new(0..0, 1500)
}

/// The names of the topologies that come with the tool.
#[must_use]
pub fn builtin_names() -> Vec<&'static str> {
    BUILTIN.map(|(name, _)| name).to_vec()
}

impl NetworkSpec {
    /// One of those that come with the tool.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn builtin(name: &str) -> Result<Self> {
        let found = BUILTIN.iter().find(|(builtin, _)| *builtin == name);
        let (_, text) = found.ok_or_else(|| {
            Error::usage(format!("find the topology {name}"), format!("there is only {}", builtin_names().join(", ")))
                .remedy("or name a file that ends in .toml")
        })?;
        Self::of(&TomlFile::of(format!("read the topology {name}"), *text))
    }

    /// What a file says.
    ///
    /// # Errors
    /// The file can't be read, or what it says does not fit together; with line, key and what is allowed.
    pub fn read(path: &Path) -> Result<Self> {
        Self::of(&TomlFile::read("topology", path)?)
    }

    /// What a text says.
    ///
    /// # Errors
    /// It does not fit together.
    pub fn of(file: &TomlFile) -> Result<Self> {
        let spec: Self = file.parse()?;
        Checked { spec: &spec, file }.check()?;
        Ok(spec)
    }

    /// Queues of each end of the link.
    #[must_use]
    pub fn queues_of(&self, link: &LinkSpec) -> u16 {
        *link.queues.as_ref().unwrap_or(&self.queues).get_ref()
    }

    /// MTU of the link in bytes.
    #[must_use]
    pub fn mtu_of(&self, link: &LinkSpec) -> u32 {
        *link.mtu.as_ref().unwrap_or(&self.mtu).get_ref()
    }

    /// Every end, in order.
    pub fn ends(&self) -> impl Iterator<Item = &EndSpec> {
        self.links.iter().flat_map(|link| [&link.a, &link.b])
    }

    /// Other queues and another MTU for all links that name none, and other offloads for all ends.
    ///
    /// # Errors
    /// Out of range.
    pub fn with(
        mut self,
        queues: Option<u16>,
        mtu: Option<u32>,
        offloads: impl IntoIterator<Item = (String, bool)>,
    ) -> Result<Self> {
        let what = "build the network";
        if let Some(queues) = queues {
            in_range(&QUEUES, queues, "queues").map_err(|why| Error::usage(what, why))?;
            self.queues = Spanned::new(0..0, queues);
        }
        if let Some(mtu) = mtu {
            in_range(&MTUS, mtu, "bytes of MTU").map_err(|why| Error::usage(what, why))?;
            self.mtu = Spanned::new(0..0, mtu);
        }
        for (name, on) in offloads {
            for link in &mut self.links {
                for end in [&mut link.a, &mut link.b] {
                    end.offloads.remove(&name);
                }
            }
            self.offloads.insert(name, on);
        }
        Ok(self)
    }
}

/// A specification and the file that it is from.
struct Checked<'a> {
    spec: &'a NetworkSpec,
    file: &'a TomlFile,
}

impl Checked<'_> {
    fn check(&self) -> Result<()> {
        let Self { spec, file } = self;
        if spec.namespaces.is_empty() {
            return Err(file.wrong(&(0..0), "there is no [namespace.NAME]; at least one is needed"));
        }
        for name in spec.namespaces.keys() {
            check_name(name.get_ref()).map_err(|why| file.wrong(&name.span(), why))?;
        }
        self.range(&spec.queues, &QUEUES, "queues")?;
        self.range(&spec.mtu, &MTUS, "bytes of MTU")?;
        let mut interfaces = BTreeSet::new();
        for (name, bridge) in &spec.bridges {
            self.namespace(&bridge.namespace)?;
            self.interface(name, bridge.namespace.get_ref(), &mut interfaces)?;
        }
        for link in &spec.links {
            link.queues.as_ref().map_or(Ok(()), |queues| self.range(queues, &QUEUES, "queues"))?;
            link.mtu.as_ref().map_or(Ok(()), |mtu| self.range(mtu, &MTUS, "bytes of MTU"))?;
            for end in [&link.a, &link.b] {
                self.namespace(&end.namespace)?;
                self.interface(&end.interface, end.namespace.get_ref(), &mut interfaces)?;
                self.bridge_of(end)?;
            }
        }
        Ok(())
    }

    fn range<T: PartialOrd + fmt::Display + Copy>(
        &self,
        value: &Spanned<T>,
        allowed: &std::ops::RangeInclusive<T>,
        unit: &str,
    ) -> Result<()> {
        in_range(allowed, *value.get_ref(), unit).map_err(|why| self.file.wrong(&value.span(), why))
    }

    fn namespace(&self, name: &Spanned<String>) -> Result<()> {
        let names = &self.spec.namespaces;
        if names.contains_key(name.get_ref().as_str()) {
            return Ok(());
        }
        let known: Vec<&str> = names.keys().map(|name| name.get_ref().as_str()).collect();
        let why = format!("there is no namespace `{}`, only {}", name.get_ref(), known.join(", "));
        Err(self.file.wrong(&name.span(), why))
    }

    fn interface(&self, name: &Spanned<String>, namespace: &str, seen: &mut BTreeSet<(String, String)>) -> Result<()> {
        let refuse = |why: String| Err(self.file.wrong(&name.span(), why));
        let text = name.get_ref().as_str();
        // dev_valid_name(), net/core/dev.c.
        let valid = (1..=INTERFACE_NAME_MAX).contains(&text.len())
            && !matches!(text, "." | ".." | "lo")
            && !text.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%'));
        if !valid {
            return refuse(format!(
                "`{text}` is no name for an interface: 1 to {INTERFACE_NAME_MAX} bytes without blanks, `/`, `:` and `%`, and \
                 not lo"
            ));
        }
        if !seen.insert((namespace.to_owned(), text.to_owned())) {
            return refuse(format!("{namespace} has two interfaces called `{text}`"));
        }
        Ok(())
    }

    fn bridge_of(&self, end: &EndSpec) -> Result<()> {
        let Some(name) = &end.bridge else { return Ok(()) };
        let refuse = |why: String| Err(self.file.wrong(&name.span(), why));
        let Some(bridge) = self.spec.bridges.get(name.get_ref().as_str()) else {
            let known: Vec<&str> = self.spec.bridges.keys().map(|name| name.get_ref().as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { format!("only {}", known.join(", ")) };
            return refuse(format!("there is no bridge `{}`, {known}", name.get_ref()));
        };
        if bridge.namespace.get_ref() != end.namespace.get_ref() {
            return refuse(format!("the bridge is in {}, and this end in {}", bridge.namespace, end.namespace));
        }
        if !end.addresses.is_empty() {
            return refuse("a port of a bridge has no addresses".into());
        }
        Ok(())
    }
}

fn in_range<T: PartialOrd + fmt::Display>(
    allowed: &std::ops::RangeInclusive<T>,
    value: T,
    unit: &str,
) -> Result<(), String> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(format!("{value} is not from {} to {} {unit}", allowed.start(), allowed.end()))
}

/// Whether a lab or a namespace can have this name: it becomes a part of a file name.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && name.len() <= NAME_MAX && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is no name: 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`, beginning with a letter or a digit"
    ))
}

impl Prefix {
    /// Whether both are addresses of one network.
    #[must_use]
    pub fn is_on_link(&self, other: &Self) -> bool {
        let shared = match (self.address, other.address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        shared >= u32::from(self.len)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no address with its prefix, such as 198.18.0.1/24 or 2001:2::1/64");
        let (address, len) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_reason| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let len = len.parse().ok().filter(|len| *len <= most).ok_or_else(wrong)?;
        Ok(Self { address, len })
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let error = NetworkSpec::of(&TomlFile::of("read the topology t.toml", text)).unwrap_err().to_string();
        error.strip_prefix("can't read the topology t.toml: ").unwrap().to_owned()
    }

    #[test]
    fn every_topology_that_comes_with_the_tool_is_one() {
        for name in builtin_names() {
            let spec = NetworkSpec::builtin(name).unwrap();
            assert!(!spec.about.is_empty() && !spec.links.is_empty(), "{name}");
        }
        let error = NetworkSpec::builtin("ring").unwrap_err().to_string();
        assert!(error.contains("there is only veth, chain, star, bridge; or name a file"), "{error}");
    }

    #[test]
    fn every_mistake_is_told_with_line_key_and_what_is_allowed() {
        let pair = |end: &str| {
            format!(
                "[namespace.a]\n[namespace.b]\n[[link]]\na = {{ namespace = \"a\", interface = \"v0\" }}\nb = {{ {end} }}\n"
            )
        };
        let cases = [
            (String::new(), "line 1: missing field `namespace`"),
            ("[namespace]\n".into(), "there is no [namespace.NAME]; at least one is needed"),
            ("[namespace.'a b']\n".into(), "line 1, key `namespace.a b`: `a b` is no name: 1 to 64 letters"),
            ("queues = 0\n[namespace.a]\n".into(), "line 1, key `queues`: 0 is not from 1 to 4096 queues"),
            ("mtu = 65536\n[namespace.a]\n".into(), "line 1, key `mtu`: 65536 is not from 68 to 65535 bytes of MTU"),
            ("mtu = -1\n[namespace.a]\n".into(), "line 1, key `mtu`: invalid value: integer `-1`, expected u32"),
            (
                "[namespace.a]\nforwards = true\n".into(),
                "line 2, key `namespace.a.forwards`: unknown field `forwards`, expected",
            ),
            (
                "[namespace.a]\nroutes = [{ to = \"x\", via = \"198.18.0.1\" }]\n".into(),
                "line 2, key `namespace.a.routes[0].to`: `x` is no address with its prefix",
            ),
            (
                pair("namespace = \"c\", interface = \"v0\""),
                "line 5, key `link[0].b.namespace`: there is no namespace `c`, only a, b",
            ),
            (
                pair("namespace = \"a\", interface = \"v0\""),
                "line 5, key `link[0].b.interface`: a has two interfaces called `v0`",
            ),
            (pair("namespace = \"b\", interface = \"sixteen bytes ok\""), "is no name for an interface: 1 to 15 bytes"),
            (pair("namespace = \"b\""), "line 5, key `link[0].b`: missing field `interface`"),
            (pair("namespace = \"b\", interface = \"v1\", mac = \"02:00\""), "line 5, key `link[0].b.mac`: "),
            (
                pair("namespace = \"b\", interface = \"v1\", addresses = [\"198.18.0.1/33\"]"),
                "key `link[0].b.addresses`: `198.18.0.1/33` is no address",
            ),
            (
                pair("namespace = \"b\", interface = \"v1\", bridge = \"br0\""),
                "key `link[0].b.bridge`: there is no bridge `br0`, none",
            ),
            (
                pair("namespace = \"b\", interface = \"v1\", bridge = \"br0\"") + "[bridge.br0]\nnamespace = \"a\"\n",
                "the bridge is in a, and this end in b",
            ),
            (
                pair("namespace = \"b\", interface = \"v1\", bridge = \"br0\", addresses = [\"198.18.0.1/24\"]")
                    + "[bridge.br0]\nnamespace = \"b\"\n",
                "a port of a bridge has no addresses",
            ),
            (
                pair("namespace = \"b\", interface = \"v1\"") + "queues = 5000\n",
                "line 6, key `link[0].queues`: 5000 is not from 1 to 4096",
            ),
        ];
        for (text, expected) in cases {
            let refusal = refusal(&text);
            assert!(refusal.contains(expected), "{text}\n{refusal}\n{expected}");
        }
    }

    #[test]
    fn addresses_of_one_network_are_on_one_link() {
        let on_link = |a: &str, b: &str| a.parse::<Prefix>().unwrap().is_on_link(&b.parse().unwrap());
        assert!(on_link("198.18.0.1/24", "198.18.0.2/24"));
        assert!(!on_link("198.18.0.1/24", "198.18.1.1/24"));
        assert!(on_link("198.18.0.1/16", "198.18.1.1/24") && on_link("0.0.0.0/0", "255.0.0.0/8"));
        assert!(on_link("2001:2::1/64", "2001:2::2/64") && !on_link("2001:2::1/128", "2001:2::2/64"));
        assert!(!on_link("198.18.0.1/24", "2001:2::1/64"));
    }

    #[test]
    fn what_the_command_line_sets_holds_for_every_end() {
        let spec = NetworkSpec::builtin("chain").unwrap().with(Some(4), Some(9000), [("gro".into(), false)]).unwrap();
        assert!(spec.links.iter().all(|link| (spec.queues_of(link), spec.mtu_of(link)) == (4, 9000)));
        assert!(spec.ends().all(|end| !end.offloads.contains_key("gro")) && !spec.offloads["gro"]);
        let error = spec.with(Some(0), None, []).unwrap_err().to_string();
        assert_eq!(error, "can't build the network: 0 is not from 1 to 4096 queues");
    }
}
