//! Frames that redirects transmit, by pair of interfaces.

use aya::Ebpf;
use aya::maps::{MapData, MapError, PerCpuArray, PerCpuHashMap};

use super::attach_program;
use super::counters::{Interface, Observed, errno_name};
use crate::bpf;
use crate::reading::Reading;

/// From where to where frames were redirected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Where they came in.
    pub from: Interface,
    /// Its name when the first frame was seen.
    pub from_name: String,
    /// Where they were to go out.
    pub to: Interface,
    /// Its name when the first frame was seen.
    pub to_name: String,
}

/// `xdp_devmap_xmit`: frames of a flow that a redirect gave to the driver's `ndo_xdp_xmit`, up to 16 at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowXmit {
    /// The flow.
    pub flow: Flow,
    /// The error that the driver answered these bulks with, by its name; `None` where it took frames.
    pub errno: Option<String>,
    /// For each possible CPU: frames sent, frames dropped (by the egress program, the driver or an error), bulks.
    pub per_cpu: Vec<[u64; 3]>,
}

/// `struct flow` and `struct flow_xmit` in `bpf/observe.bpf.c`.
type Key = [u32; 5];
type Value = [u64; 7];

/// The counters.
pub(super) struct Flows {
    flows: PerCpuHashMap<MapData, Key, Value>,
    lost: PerCpuArray<MapData, u64>,
}

/// Attaches the observer.
pub(super) fn attach(object: &mut Ebpf) -> Observed<Flows> {
    let attached = attach_program(object, "flow_xmit", "xdp_devmap_xmit");
    let flows = attached.and_then(|()| {
        Ok(Flows { flows: bpf::take_map(object, "flows")?, lost: bpf::take_map(object, "flows_lost")? })
    });
    flows.map_err(|error| error.to_string())
}

impl Flows {
    pub(super) fn read(&self) -> Reading<Vec<FlowXmit>> {
        let read = || -> Result<Vec<FlowXmit>, MapError> {
            self.flows.iter().map(|entry| entry.map(|(key, values)| flow_xmit(key, &values))).collect()
        };
        match self.lost.get(&0, 0).map(|lost| lost.iter().sum::<u64>()) {
            Ok(0) => read().into(),
            Ok(lost) => {
                Reading::not_available(format!("more pairs of interfaces than counters, {lost} bulks uncounted"))
            }
            Err(error) => Reading::not_available(error.to_string()),
        }
    }
}

fn flow_xmit([from_netns, from_ifindex, to_netns, to_ifindex, err]: Key, per_cpu: &[Value]) -> FlowXmit {
    let interface = |netns: u32, ifindex| Interface { ifindex, netns: netns.into() };
    // Only the CPU that saw the first frame noted the names.
    let name = |at: usize| per_cpu.iter().map(|value| text([value[at], value[at + 1]])).find(|name| !name.is_empty());
    FlowXmit {
        flow: Flow {
            from: interface(from_netns, from_ifindex),
            from_name: name(3).unwrap_or_else(|| "?".into()),
            to: interface(to_netns, to_ifindex),
            to_name: name(5).unwrap_or_else(|| "?".into()),
        },
        errno: (err != 0).then(|| errno_name(err as usize)),
        per_cpu: per_cpu.iter().map(|&[sent, drops, bulks, ..]| [sent, drops, bulks]).collect(),
    }
}

/// A text of up to 16 bytes that ends with a NUL.
fn text(words: [u64; 2]) -> String {
    let bytes = words.map(u64::to_ne_bytes).concat();
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_cpu_that_noted_them_and_an_answer_of_0_is_no_error() {
        let word = |text: &[u8; 8]| u64::from_ne_bytes(*text);
        let noted = [1, 2, 3, word(b"veth-in-"), word(b"1\0\0\0\0\0\0\0"), word(b"out0\0\0\0\0"), 0];
        let xmit = flow_xmit([40, 2, 41, 7, 0], &[[0; 7], noted]);
        assert_eq!((xmit.flow.from_name.as_str(), xmit.flow.to_name.as_str()), ("veth-in-1", "out0"));
        assert_eq!(xmit.flow.to, Interface { ifindex: 7, netns: 41 });
        assert_eq!((xmit.errno, xmit.per_cpu), (None, vec![[0; 3], [1, 2, 3]]));
        assert_eq!(flow_xmit([40, 2, 41, 7, 100], &[noted]).errno.as_deref(), Some("ENETDOWN"));
    }
}
