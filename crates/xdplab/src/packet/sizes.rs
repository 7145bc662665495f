//! Sizes of frames in the order in which they are sent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Lengths on the wire in bytes, FCS counted, as a user writes them: `64`, `64,128,1518`, `imix`, `64..1518` or
/// `64..1518:64`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// These in turn.
    List(Vec<usize>),
    /// The simple Internet mix: of 12 packets 7 of 40, 4 of 576 and one of 1500 bytes of IP packet; those whose headers are
    /// longer are as short as they can be.
    Imix,
    /// From the first to the last, so many bytes further with each packet.
    Sweep {
        /// The first.
        from: usize,
        /// None is longer.
        to: usize,
        /// From one to the next.
        step: usize,
    },
}

/// Ethernet header and FCS around the IP packet of the mix.
const AROUND_IP: usize = super::ETHERNET_HEADER_LEN + super::FCS_LEN;

impl Sizes {
    /// The lengths in turn, of frames that can't be shorter than `shortest`: the mix is adapted to that.
    #[must_use]
    pub fn wire(&self, shortest: usize) -> Vec<usize> {
        match self {
            Self::List(sizes) => sizes.clone(),
            Self::Imix => [40, 576, 40, 40, 576, 40, 576, 40, 40, 576, 40, 1500]
                .map(|ip: usize| (ip + AROUND_IP).max(shortest))
                .to_vec(),
            Self::Sweep { from, to, step } => (*from..=*to).step_by(*step).collect(),
        }
    }
}

impl FromStr for Sizes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::usage(format!("read the sizes {text:?}"), why.to_owned())
                .remedy("write 64, 64,128,1518, imix, 64..1518 or 64..1518:64; bytes on the wire, FCS counted")
        };
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_no_number| wrong("it is no number of bytes"));
        if text == "imix" {
            return Ok(Self::Imix);
        }
        let Some((from, rest)) = text.split_once("..") else {
            return Ok(Self::List(text.split(',').map(number).collect::<Result<_>>()?));
        };
        let (to, step) = rest.split_once(':').unwrap_or((rest, "1"));
        let (from, to, step) = (number(from)?, number(to)?, number(step)?);
        if from > to || step == 0 {
            return Err(wrong("a sweep goes upwards"));
        }
        Ok(Self::Sweep { from, to, step })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
                f.write_str(&sizes.join(","))
            }
            Self::Imix => f.write_str("imix"),
            Self::Sweep { from, to, step: 1 } => write!(f, "{from}..{to}"),
            Self::Sweep { from, to, step } => write!(f, "{from}..{to}:{step}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_written() {
        for text in ["64", "64,128,1518", "imix", "64..1518", "64..1518:64"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
        for bad in ["", "x", "64,", "1518..64", "64..128:0", "64..", "-1", "64...70"] {
            let error = bad.parse::<Sizes>().unwrap_err().to_string();
            assert!(error.contains("FCS counted"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_mix_has_seven_four_and_one_of_twelve_and_is_never_too_short() {
        let count =
            |shortest: usize, wire: usize| Sizes::Imix.wire(shortest).iter().filter(|&&size| size == wire).count();
        assert_eq!((count(64, 64), count(64, 594), count(64, 1518)), (7, 4, 1));
        assert_eq!((count(66, 66), count(66, 64)), (7, 0));
    }

    #[test]
    fn a_sweep_has_every_step_and_none_beyond_its_end() {
        let sweep = |text: &str| text.parse::<Sizes>().unwrap().wire(64);
        assert_eq!(sweep("64..67"), [64, 65, 66, 67]);
        assert_eq!(sweep("64..130:32"), [64, 96, 128]);
    }
}
