//! The keys of a case and their values.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZero;
use std::path::PathBuf;

use serde::de::value::StrDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, de};

use crate::device::VariantSpec;
use crate::kernels::CaseName;
use crate::netlink::XdpMode;
use crate::pool::Group;
use crate::run::{Engine, FrameSource};
use crate::stream::Forwarding;
use crate::topology::PlacementName;

/// What a case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Programs compared slice by slice, as `xdplab ab` does.
    Compare,
    /// Settings of the system compared in turn, as `xdplab ab --baseline-cmd` does.
    Settings,
    /// Packets of one program counted at each stage, with rates.
    Rates,
    /// TCP streams through the chain of three namespaces.
    Stream,
    /// Paths of the page-pool crate compared, as `xdplab pool bench` does.
    Pool,
    /// Guest instructions per packet of a kernel, as `xdplab kernels` counts them.
    Kernels,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Compare, Self::Settings, Self::Rates, Self::Stream, Self::Pool, Self::Kernels];

    pub(super) fn allowed() -> String {
        format!("it is one of {}", Self::ALL.map(|kind| kind.to_string()).join(", "))
    }

    /// The keys of a case of this kind.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Compare => &[
                "baseline",
                "candidates",
                "engine",
                "traffic",
                "seconds",
                "resolve-ns",
                "copies",
                "rounds",
                "slice-packets",
                "margin-ns",
                "floor-ns",
                "xdp-mode",
                "size",
                "ipv6",
                "flows",
                "queues",
                "mtu",
                "placement",
                "setup",
                "restore",
            ],
            Self::Settings => &[
                "baseline",
                "baseline-cmd",
                "candidate-cmds",
                "restore-cmd",
                "settle",
                "visit",
                "seconds",
                "slice-packets",
                "margin-ns",
                "floor-ns",
                "xdp-mode",
                "size",
                "ipv6",
                "flows",
                "queues",
                "mtu",
                "placement",
                "setup",
                "restore",
            ],
            Self::Rates => &[
                "program",
                "seconds",
                "threads",
                "xdp-mode",
                "size",
                "ipv6",
                "flows",
                "queues",
                "mtu",
                "placement",
                "setup",
                "restore",
            ],
            Self::Stream => &["forwarding", "streams", "seconds", "queues", "mtu", "placement", "setup", "restore"],
            Self::Pool => &["group", "seconds", "setup", "restore"],
            Self::Kernels => &[
                "kernel", "program", "xdp-mode", "engine", "case", "packets", "boots", "timeout", "guest", "setup",
                "restore",
            ],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compare => "compare",
            Self::Settings => "settings",
            Self::Rates => "rates",
            Self::Stream => "stream",
            Self::Pool => "pool",
            Self::Kernels => "kernels",
        })
    }
}

/// Every key of every kind; [`Kind::keys`] says which a kind has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Parameters {
    pub(super) baseline: Option<Program>,
    pub(super) candidates: OneOrMore<Program>,
    pub(super) engine: Option<EngineName>,
    pub(super) traffic: FrameSource,
    pub(super) program: OneOrMore<Program>,
    pub(super) threads: Option<NonZero<u16>>,
    pub(super) forwarding: Option<Forwarding>,
    pub(super) streams: Option<NonZero<u16>>,
    pub(super) seconds: Option<Positive>,
    pub(super) resolve_ns: Option<Positive>,
    pub(super) copies: Option<NonZero<u16>>,
    pub(super) rounds: Option<NonZero<u16>>,
    pub(super) slice_packets: Option<NonZero<u32>>,
    pub(super) margin_ns: Option<Positive>,
    pub(super) floor_ns: Option<Positive>,
    pub(super) xdp_mode: Option<Mode>,
    pub(super) size: Option<usize>,
    pub(super) ipv6: bool,
    pub(super) flows: Option<NonZero<u16>>,
    pub(super) queues: Option<NonZero<u16>>,
    pub(super) mtu: Option<u32>,
    pub(super) placement: PlacementName,
    pub(super) baseline_cmd: Option<String>,
    pub(super) candidate_cmds: Vec<String>,
    pub(super) restore_cmd: Option<String>,
    pub(super) settle: Option<Positive>,
    pub(super) visit: Option<Positive>,
    pub(super) group: Option<Group>,
    pub(super) kernel: Option<String>,
    pub(super) case: OneOrMore<CaseName>,
    pub(super) packets: Option<u64>,
    pub(super) boots: Option<u16>,
    pub(super) timeout: Option<NonZero<u32>>,
    pub(super) guest: Option<PathBuf>,
    pub(super) setup: Option<String>,
    pub(super) restore: Option<String>,
}

/// A program, as `xdplab ab` takes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Program(pub(super) VariantSpec);

impl TryFrom<String> for Program {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: crate::error::Error| error.to_string())
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug)]
pub(super) struct OneOrMore<T>(pub(super) Vec<T>);

impl<T> Default for OneOrMore<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMore<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a list of names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMore<T>, E> {
                T::deserialize(StrDeserializer::new(text)).map(|one| OneOrMore(vec![one]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMore<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    all.push(one);
                }
                Ok(OneOrMore(all))
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

/// A finite number above zero.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct Positive(pub(super) f64);

impl TryFrom<f64> for Positive {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        if number > 0.0 && number.is_finite() { Ok(Self(number)) } else { Err(format!("{number} is not above 0")) }
    }
}

/// How XDP is attached.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    #[default]
    Native,
    Skb,
}

impl From<Mode> for XdpMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Native => Self::Native,
            Mode::Skb => Self::Generic,
        }
    }
}

/// What runs the programs.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum EngineName {
    #[default]
    Slices,
    TestRun,
    TestRunCold,
}

impl From<EngineName> for Engine {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Slices => Self::Slices,
            EngineName::TestRun => Self::TestRun { cold: false },
            EngineName::TestRunCold => Self::TestRun { cold: true },
        }
    }
}
