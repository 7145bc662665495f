//! Which of our programs: verdict, packet operation and the way it reaches the packet.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The verdict that a program gives every packet it can handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// `XDP_DROP`: the page goes straight back to the driver's pool.
    Drop,
    /// `XDP_PASS`: the kernel builds an skb and the stack takes it.
    Pass,
    /// `XDP_TX`: sent back out of the interface it came in on.
    Tx,
}

impl Action {
    /// The number of enum xdp_action, include/uapi/linux/bpf.h.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Drop => 1,
            Self::Pass => 2,
            Self::Tx => 3,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

/// What a program does with a packet before its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Nothing but the verdict; the packet is not even counted.
    Uncounted,
    /// Packet memory is not touched.
    NoTouch,
    /// The EtherType is read, which brings the first cache line of the packet in.
    ReadData,
    /// Ethernet, up to two VLAN tags and the IPv4 or IPv6 header are parsed.
    ParseIp,
    /// Source and destination MAC are exchanged.
    SwapMacs,
}

/// How a program reaches the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LoadMode {
    /// Direct packet access: pointers into the linear part, bounds checked by the verifier.
    #[default]
    Dpa,
    /// The helpers `bpf_xdp_load_bytes()` and `bpf_xdp_store_bytes()`, which reach fragments too; kernel 5.18.
    LoadBytes,
}

/// One of our programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSpec {
    /// The verdict.
    pub action: Action,
    /// The packet operation.
    pub operation: Operation,
    /// How it reaches the packet.
    pub load_mode: LoadMode,
    /// A cost planted for testing the instrument.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted: Option<Planted>,
}

/// A planted cost (`planted_cost` in `bpf/dut.bpf.c`): a chain of dependent instructions from a random number to three
/// branches, of which one at least is predicted wrongly 7 times out of 8 and waits for the chain. Every planted program has
/// chain and branches, so compare planted programs with each other: `mul=0` is their baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Planted {
    /// Dependent 64-bit multiplications in the chain, 0 to 16, of 7/8 of 3 to 4 clock cycles each.
    Mul(u32),
    /// Dependent additions in the chain, 0 to 8, of 7/8 of a clock cycle each.
    Add(u32),
    /// The chain waits for a cache line out of 64 KiB, which is not in the first level cache as a rule.
    Touch,
    /// The chain waits for a key to be looked up in an empty hash map.
    Lookup,
}

impl Planted {
    /// The most multiplications.
    const MAX_MUL: u32 = 16;
    /// The most additions.
    const MAX_ADD: u32 = 8;

    /// The globals of `bpf/dut.bpf.c`, which are 0 for what is not planted.
    pub(crate) fn globals(planted: Option<Self>) -> [(&'static str, u32); 5] {
        let count = |of: fn(Self) -> Option<u32>| planted.and_then(of).unwrap_or(0);
        let is = |what: Self| u32::from(planted == Some(what));
        [
            ("planted", u32::from(planted.is_some())),
            ("extra_mul", count(|planted| if let Self::Mul(count) = planted { Some(count) } else { None })),
            ("extra_add", count(|planted| if let Self::Add(count) = planted { Some(count) } else { None })),
            ("extra_touch", is(Self::Touch)),
            ("extra_lookup", is(Self::Lookup)),
        ]
    }

    /// Reads what [`fmt::Display`] writes; `None` if it is something else.
    fn parse(text: &str) -> Option<Result<Self, String>> {
        let count = |number: &str, what: &str, most: u32| {
            let count = number.parse().ok().filter(|count| *count <= most);
            count.ok_or_else(|| format!("{what} takes 0 to {most}, not `{number}`"))
        };
        match text.split_once('=') {
            Some(("mul", number)) => Some(count(number, "mul", Self::MAX_MUL).map(Self::Mul)),
            Some(("add", number)) => Some(count(number, "add", Self::MAX_ADD).map(Self::Add)),
            _ if text == "touch" => Some(Ok(Self::Touch)),
            _ if text == "lookup" => Some(Ok(Self::Lookup)),
            _ => None,
        }
    }
}

impl FromStr for Planted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::usage(format!("plant `{text}`"), why);
        let known = Self::parse(text).ok_or_else(|| wrong("there is only mul=N, add=N, touch and lookup".into()))?;
        known.map_err(wrong)
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mul(count) => write!(f, "mul={count}"),
            Self::Add(count) => write!(f, "add={count}"),
            Self::Touch => write!(f, "touch"),
            Self::Lookup => write!(f, "lookup"),
        }
    }
}

impl ProgramSpec {
    /// A program with direct packet access and nothing planted.
    #[must_use]
    pub fn new(action: Action, operation: Operation) -> Self {
        Self { action, operation, load_mode: LoadMode::Dpa, planted: None }
    }

    /// The name of the program's function in `bpf/dut.bpf.c`.
    #[must_use]
    pub(crate) fn function(&self) -> &'static str {
        match (self.operation, self.load_mode) {
            (Operation::Uncounted, _) => "uncounted",
            (Operation::NoTouch, _) => "no_touch",
            (Operation::ReadData, LoadMode::Dpa) => "read_data",
            (Operation::ReadData, LoadMode::LoadBytes) => "read_data_load",
            (Operation::ParseIp, LoadMode::Dpa) => "parse_ip",
            (Operation::ParseIp, LoadMode::LoadBytes) => "parse_ip_load",
            (Operation::SwapMacs, LoadMode::Dpa) => "swap_macs_prog",
            (Operation::SwapMacs, LoadMode::LoadBytes) => "swap_macs_load",
        }
    }
}

pub(super) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl fmt::Display for ProgramSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.action, name_of(&self.operation))?;
        if self.load_mode != LoadMode::Dpa {
            write!(f, ":{}", name_of(&self.load_mode))?;
        }
        self.planted.map_or(Ok(()), |planted| write!(f, ":{planted}"))
    }
}

impl FromStr for ProgramSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| {
            Error::usage(format!("read the program specification `{text}`"), why).remedy(
                "write ACTION:OPERATION[:load-bytes][:mul=N|add=N|touch|lookup], such as drop:read-data; or redirect, \
                 redirect-map, redirect-multi, redirect-cpu, xsk-drop or xsk-tx",
            )
        };
        let mut parts = text.split(':');
        let action = parse_name(parts.next(), "action").map_err(&wrong)?;
        let operation = parse_name(parts.next(), "operation").map_err(&wrong)?;
        let mut spec = Self::new(action, operation);
        for part in parts {
            match Planted::parse(part) {
                Some(planted) => spec.planted = Some(planted.map_err(&wrong)?),
                None => spec.load_mode = parse_name(Some(part), "load mode").map_err(&wrong)?,
            }
        }
        if spec.operation == Operation::Uncounted && spec.planted.is_some() {
            return Err(wrong("uncounted does nothing, so nothing is planted there".into()));
        }
        Ok(spec)
    }
}

fn parse_name<T: ValueEnum>(text: Option<&str>, kind: &str) -> Result<T, String> {
    let text = text.ok_or_else(|| format!("the {kind} is missing"))?;
    T::from_str(text, false).map_err(|_no_reason_given| {
        let known: Vec<String> = T::value_variants().iter().map(name_of).collect();
        format!("there is no {kind} `{text}`, only {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_reads_back_as_it_was_written() {
        for text in
            ["drop:no-touch", "tx:swap-macs:load-bytes", "pass:parse-ip", "drop:no-touch:mul=2", "drop:no-touch:touch"]
        {
            assert_eq!(text.parse::<ProgramSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_wrong_specification_names_what_is_allowed() {
        let error = |text: &str| text.parse::<ProgramSpec>().unwrap_err().to_string();
        assert!(error("frob:no-touch").contains("no action `frob`, only drop, pass, tx"));
        assert!(error("drop").contains("the operation is missing"));
        assert!(error("drop:no-touch:mul=17").contains("mul takes 0 to 16, not `17`"));
        assert!(error("drop:no-touch:add=-1").contains("add takes 0 to 8, not `-1`"));
        assert!(error("drop:uncounted:touch").contains("nothing is planted there"));
        assert!(error("drop:no-touch:load-byte").contains("only dpa, load-bytes"));
    }
}
