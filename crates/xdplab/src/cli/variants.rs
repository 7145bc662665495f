//! Baseline and candidates as typed, and what is set in the objects of users.

use clap::Args;

use crate::device::{Action, Integer, ObjectSpec, Operation, ProgramSpec, UserObject, VariantSpec};
use crate::error::{Error, Result};

/// What to compare.
#[derive(Args, Debug)]
pub(crate) struct Variants {
    /// The program that the others are compared with: ACTION:OPERATION[:load-bytes], redirect…, xsk-drop, xsk-tx, FILE.o or
    /// FILE.o:PROGRAM
    ///
    /// ACTION is drop, pass or tx; OPERATION is no-touch, read-data, parse-ip or swap-macs.
    ///
    /// redirect[:load-bytes], redirect-map and redirect-multi, the last two also with :egress-forward or :egress-drop, send
    /// packets out of another interface: one that the lab brings, or with --on the one that is named, as in
    /// redirect-map:IFACE:egress-drop (redirect-multi:IFACE,IFACE). redirect-cpu gives them to another CPU; it takes :cpu=N
    /// (not the device's if left out), :qsize=N, :remote-drop, :remote-pass or :remote-redirect[=IFACE], and the names of
    /// its program modes (:no-touch, :l4-hash, …), with the defaults of the command of this name.
    ///
    /// xsk-drop and xsk-tx give them to an AF_XDP socket, which a thread on another CPU empties: the cost is that of the device's
    /// CPU. They take :cpu=N (of the thread; not the device's if left out), :fifo=N (its SCHED_FIFO priority), :queue=N, :batch=N, :frame-size=N, :poll,
    /// :no-need-wakeup, :unaligned, :frags, and :copy or :zero-copy, with the defaults of the commands of these names. The
    /// sockets of a run share a umem and the thread, so all but :batch and :poll must be the same where there are several.
    ///
    /// FILE.o is an object file of your
    /// own, built by clang -target bpf -g; PROGRAM is the function where it has several for XDP. Only that program is loaded,
    /// with those it tail-calls out of a table that the object fills in. Its other maps start empty.
    #[arg(long, value_name = "SPEC", required_unless_present = "baseline_cmd")]
    baseline: Option<VariantSpec>,
    /// A program to compare with the baseline; repeat it for several
    #[arg(long = "candidate", value_name = "SPEC", required_unless_present = "baseline_cmd")]
    candidates: Vec<VariantSpec>,
    /// Set a global variable of an object file; SIDE is baseline, candidate, candidate2, …, and all of them if left out
    #[arg(long = "global", value_name = "[SIDE:]NAME=VALUE")]
    globals: Vec<Setting<Integer>>,
    /// Size a map that an object file leaves to its loader (max_entries); SIDE as for --global
    #[arg(long, value_name = "[SIDE:]NAME=N")]
    map_entries: Vec<Setting<u32>>,
}

/// `[SIDE:]NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting<T> {
    /// Which variant, baseline first; `None`: every object.
    side: Option<usize>,
    name: String,
    value: T,
}

impl<T: std::str::FromStr> std::str::FromStr for Setting<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, value) = text.split_once('=').ok_or("it has no `=`")?;
        let (side, name) = match place.split_once(':') {
            None => (None, place),
            Some((side, name)) => (Some(index_of(side).ok_or(format!("there is no side `{side}`"))?), name),
        };
        let value = value.parse().map_err(|_reason| format!("`{value}` is no number that fits"))?;
        Ok(Self { side, name: name.to_owned(), value })
    }
}

/// `baseline` is 0, `candidate` and `candidate1` are 1, and so on.
fn index_of(side: &str) -> Option<usize> {
    match side.strip_prefix("candidate") {
        None => (side == "baseline").then_some(0),
        Some("") => Some(1),
        Some(number) => number.parse().ok().filter(|index| *index > 0),
    }
}

impl Variants {
    /// The baseline; where settings are compared it may be left out.
    fn program(&self) -> VariantSpec {
        let no_touch = || ProgramSpec::new(Action::Drop, Operation::NoTouch).into();
        self.baseline.clone().unwrap_or_else(no_touch)
    }

    /// Interfaces that are named to redirect to.
    pub(crate) fn named_targets(&self) -> impl Iterator<Item = &String> {
        self.baseline.iter().chain(&self.candidates).flat_map(VariantSpec::named_targets)
    }

    /// Baseline and candidates, with the settings in their objects, whose files have been read and found fit.
    pub(crate) fn resolve(&self) -> Result<(VariantSpec, Vec<VariantSpec>)> {
        let mut all: Vec<VariantSpec> = [self.program()].into_iter().chain(self.candidates.iter().cloned()).collect();
        for Setting { side, name, value } in &self.globals {
            for object in objects(&mut all, *side, &format!("set {name}"))? {
                object.globals.insert(name.clone(), *value);
            }
        }
        for Setting { side, name, value } in &self.map_entries {
            if *value == 0 {
                return Err(Error::usage(format!("size the map {name}"), "a map has at least one entry"));
            }
            for object in objects(&mut all, *side, &format!("size the map {name}"))? {
                object.map_entries.insert(name.clone(), *value);
            }
        }
        for variant in &mut all {
            if let VariantSpec::Object(spec) = variant {
                *spec = UserObject::open(spec)?.spec().clone();
            }
        }
        let baseline = all.remove(0);
        Ok((baseline, all))
    }
}

/// The objects that a setting is for; at least one.
fn objects<'a>(all: &'a mut [VariantSpec], side: Option<usize>, what: &str) -> Result<Vec<&'a mut ObjectSpec>> {
    let count = all.len() - 1;
    let chosen = match side {
        None => all,
        Some(side) => all.get_mut(side..=side).ok_or_else(|| {
            Error::usage(
                what,
                format!("there is no candidate{side}, only {count} candidate{}", if count == 1 { "" } else { "s" }),
            )
        })?,
    };
    let names: Vec<String> = chosen.iter().map(ToString::to_string).collect();
    let objects: Vec<&mut ObjectSpec> = chosen
        .iter_mut()
        .filter_map(|variant| match variant {
            VariantSpec::Object(spec) => Some(spec),
            _ => None,
        })
        .collect();
    if objects.is_empty() {
        return Err(Error::usage(what, format!("no object file is among {}", names.join(", "))));
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_names_its_side_or_none() {
        let read = |text: &str| text.parse::<Setting<u32>>();
        let setting = |side, name: &str, value| Ok(Setting { side, name: name.to_owned(), value });
        assert_eq!(read("flows=64"), setting(None, "flows", 64));
        assert_eq!(read("baseline:flows=64"), setting(Some(0), "flows", 64));
        assert_eq!(read("candidate:flows=1"), setting(Some(1), "flows", 1));
        assert_eq!(read("candidate3:flows=1"), setting(Some(3), "flows", 1));
        for wrong in ["flows", "side:flows=1", "candidate0:flows=1", "flows=x", "flows=-1", "flows=4294967296"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
