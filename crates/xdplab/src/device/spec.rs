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
    /// Dependent 64-bit multiplications added to each packet, 0 to 16: a planted cost for testing the instrument.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra_mul: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a function of a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ProgramSpec {
    /// The most multiplications that a program can be made to add.
    pub const MAX_EXTRA_MUL: u32 = 16;

    /// A program with direct packet access and nothing planted.
    #[must_use]
    pub fn new(action: Action, operation: Operation) -> Self {
        Self { action, operation, load_mode: LoadMode::Dpa, extra_mul: 0 }
    }

    /// The name of the program's function in `bpf/dut.bpf.c`.
    #[must_use]
    pub(crate) fn function(&self) -> &'static str {
        match (self.operation, self.load_mode) {
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
        if self.extra_mul > 0 {
            write!(f, ":mul={}", self.extra_mul)?;
        }
        Ok(())
    }
}

impl FromStr for ProgramSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| {
            Error::usage(format!("read the program specification `{text}`"), why)
                .remedy("write ACTION:OPERATION[:load-bytes][:mul=N], such as drop:read-data")
        };
        let mut parts = text.split(':');
        let action = parse_name(parts.next(), "action").map_err(&wrong)?;
        let operation = parse_name(parts.next(), "operation").map_err(&wrong)?;
        let mut spec = Self::new(action, operation);
        for part in parts {
            match part.strip_prefix("mul=") {
                Some(number) => {
                    spec.extra_mul = number
                        .parse()
                        .ok()
                        .filter(|number| *number <= Self::MAX_EXTRA_MUL)
                        .ok_or_else(|| wrong(format!("mul takes 0 to {}, not `{number}`", Self::MAX_EXTRA_MUL)))?;
                }
                None => spec.load_mode = parse_name(Some(part), "load mode").map_err(&wrong)?,
            }
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
        for text in ["drop:no-touch", "tx:swap-macs:load-bytes", "pass:parse-ip", "drop:no-touch:mul=2"] {
            assert_eq!(text.parse::<ProgramSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_wrong_specification_names_what_is_allowed() {
        let error = |text: &str| text.parse::<ProgramSpec>().unwrap_err().to_string();
        assert!(error("frob:no-touch").contains("no action `frob`, only drop, pass, tx"));
        assert!(error("drop").contains("the operation is missing"));
        assert!(error("drop:no-touch:mul=17").contains("mul takes 0 to 16, not `17`"));
        assert!(error("drop:no-touch:load-byte").contains("only dpa, load-bytes"));
    }
}
