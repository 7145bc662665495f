//! AF_XDP sockets as one side of a comparison.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xsk::BindMode;

use super::{CopyMode, Handling, XskAction, XskSpec};
use crate::device::VariantSpec;
use crate::device::mode::wrong;
use crate::error::{Error, Result};
use crate::netlink::XdpMode;

/// One of our programs that give packets to an AF_XDP socket, whose thread drops them or sends them back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct XskVariant {
    /// What the thread does with packets.
    pub xsk: XskAction,
    /// The CPU of the thread; none: one that the device does not run on.
    pub cpu: Option<u32>,
    /// Run the thread as SCHED_FIFO with this priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fifo: Option<u32>,
    /// The RX queue, whose packets alone are taken; those of others go to the network stack.
    pub queue: u32,
    /// Most packets handled at once.
    pub batch: u32,
    /// Wait in poll(2) for packets, instead of looking for them.
    pub poll: bool,
    /// Bytes a frame of the umem.
    pub frame_size: u32,
    /// The kernel says when it must be woken.
    pub need_wakeup: bool,
    /// Frames of any size, on huge pages if any are set aside.
    pub unaligned: bool,
    /// Packets of several frames.
    pub frags: bool,
    /// How packets get to and from the umem.
    pub copy_mode: CopyMode,
}

impl XskVariant {
    /// After so long without a packet for one of the sockets the thread sleeps until there is one.
    const REST_AFTER: Duration = Duration::from_millis(1);

    fn new(action: XskAction) -> Self {
        Self {
            xsk: action,
            cpu: None,
            fifo: None,
            queue: 0,
            batch: 64,
            poll: false,
            frame_size: 4096,
            need_wakeup: true,
            unaligned: false,
            frags: false,
            copy_mode: CopyMode::Auto,
        }
    }

    pub(in crate::device) fn parse<'a>(
        action: XskAction,
        parts: impl Iterator<Item = &'a str>,
        text: &str,
    ) -> Result<Self> {
        let mut spec = Self::new(action);
        let number = |what: &str, number: &str| {
            number.parse().map_err(|_no_number| wrong(text, format!("`{number}` is no {what}")))
        };
        for part in parts {
            match part.split_once('=') {
                Some(("cpu", cpu)) => spec.cpu = Some(number("number of a CPU", cpu)?),
                Some(("fifo", priority)) => spec.fifo = Some(number("priority", priority)?),
                Some(("queue", queue)) => spec.queue = number("number of a queue", queue)?,
                Some(("batch", packets)) => spec.batch = number("number of packets", packets)?,
                Some(("frame-size", bytes)) => spec.frame_size = number("number of bytes", bytes)?,
                Some(_) => return Err(wrong(text, format!("`{part}` is none of its options"))),
                None => spec.set(part, text)?,
            }
        }
        Ok(spec)
    }

    fn set(&mut self, option: &str, text: &str) -> Result<()> {
        match option {
            "poll" => self.poll = true,
            "no-need-wakeup" => self.need_wakeup = false,
            "unaligned" => self.unaligned = true,
            "frags" => self.frags = true,
            "copy" => self.copy_mode = CopyMode::Copy,
            "zero-copy" => self.copy_mode = CopyMode::ZeroCopy,
            "busy-poll" => {
                let why = "with busy polling the thread runs the driver, and would do so in the slices of all programs";
                return Err(Error::usage(format!("read the program specification `{text}`"), why)
                    .remedy(format!("measure it by itself: xdplab {} IFACE -B", self.xsk.command())));
            }
            _ => return Err(wrong(text, format!("`{option}` is none of its options"))),
        }
        Ok(())
    }

    /// What its socket has of its own.
    pub(crate) fn handling(&self) -> Handling {
        Handling { action: self.xsk, batch: self.batch, poll: self.poll }
    }

    /// The sockets for all of these that are such variants, one for each that handles packets in another way; `None` without any.
    ///
    /// # Errors
    /// They differ in what the sockets of a queue have in common.
    pub(crate) fn sockets(variants: &[VariantSpec], attach_mode: XdpMode) -> Result<Option<XskSpec>> {
        let mut all = variants.iter().filter_map(VariantSpec::socket);
        let Some(first) = all.next() else { return Ok(None) };
        let mut sockets = vec![first.handling()];
        for other in all {
            if let Some(what) = first.differs_from(other) {
                let why = format!("their {what} differs, and the sockets of a queue have one umem and one thread");
                return Err(Error::usage(format!("open sockets for {first} and {other}"), why)
                    .remedy("give both the same, or compare each with another program in a run of its own"));
            }
            if !sockets.contains(&other.handling()) {
                sockets.push(other.handling());
            }
        }
        Ok(Some(first.spec(sockets, attach_mode)?))
    }

    /// The settings of sockets that are set up as this one is.
    pub(crate) fn spec(&self, sockets: Vec<Handling>, attach_mode: XdpMode) -> Result<XskSpec> {
        let mode = match (attach_mode, self.copy_mode) {
            (XdpMode::Generic, CopyMode::ZeroCopy) => {
                return Err(Error::usage(format!("open a socket for {self}"), "in skb mode every packet is copied")
                    .remedy("attach in native mode, or leave zero-copy out"));
            }
            (XdpMode::Generic, _) => BindMode::Copy,
            (_, mode) => mode.into(),
        };
        Ok(XskSpec {
            sockets,
            queue: self.queue,
            frame_size: self.frame_size,
            need_wakeup: self.need_wakeup,
            unaligned: self.unaligned,
            busy_poll: false,
            frags: self.frags,
            mode,
            fifo: self.fifo,
            cpu: self.cpu,
            rest_after: Some(Self::REST_AFTER),
        })
    }

    /// What both would have to agree in.
    fn differs_from(&self, other: &Self) -> Option<&'static str> {
        [
            ("CPU", self.cpu == other.cpu),
            ("priority", self.fifo == other.fifo),
            ("queue", self.queue == other.queue),
            ("frame size", self.frame_size == other.frame_size),
            ("need-wakeup", self.need_wakeup == other.need_wakeup),
            ("alignment", self.unaligned == other.unaligned),
            ("frags", self.frags == other.frags),
            ("copy mode", self.copy_mode == other.copy_mode),
        ]
        .into_iter()
        .find_map(|(what, same)| (!same).then_some(what))
    }
}

impl fmt::Display for XskVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::new(self.xsk);
        f.write_str(self.xsk.command())?;
        if let Some(cpu) = self.cpu {
            write!(f, ":cpu={cpu}")?;
        }
        if let Some(priority) = self.fifo {
            write!(f, ":fifo={priority}")?;
        }
        for (name, value, default) in [
            ("queue", self.queue, default.queue),
            ("batch", self.batch, default.batch),
            ("frame-size", self.frame_size, default.frame_size),
        ] {
            if value != default {
                write!(f, ":{name}={value}")?;
            }
        }
        for (name, given) in [
            ("poll", self.poll),
            ("no-need-wakeup", !self.need_wakeup),
            ("unaligned", self.unaligned),
            ("frags", self.frags),
            ("copy", self.copy_mode == CopyMode::Copy),
            ("zero-copy", self.copy_mode == CopyMode::ZeroCopy),
        ] {
            if given {
                write!(f, ":{name}")?;
            }
        }
        Ok(())
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
            "xsk-drop",
            "xsk-tx",
            "xsk-drop:cpu=1:fifo=7:queue=2:batch=8:frame-size=2048:poll:no-need-wakeup:unaligned:frags:copy",
            "xsk-tx:zero-copy",
        ] {
            let spec = read(text);
            assert_eq!(spec.to_string(), text);
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<VariantSpec>(&json).unwrap(), spec, "{json}");
        }
        assert_eq!(read("xsk-drop:poll:batch=64"), read("xsk-drop:poll"));
    }

    #[test]
    fn a_wrong_option_is_told_with_those_there_are() {
        for (text, word) in [
            ("xsk-drop:eth1", "`eth1` is none of its options"),
            ("xsk-drop:qsize=8", "`qsize=8` is none of its options"),
            ("xsk-tx:cpu=", "`` is no number of a CPU"),
            ("xsk-tx:batch=-1", "`-1` is no number of packets"),
            ("xsk-tx:frame-size=4k", "`4k` is no number of bytes"),
        ] {
            let error = text.parse::<VariantSpec>().unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("xsk-drop|xsk-tx[:cpu=N]"), "{error}");
        }
        let error = "xsk-tx:busy-poll".parse::<VariantSpec>().unwrap_err().to_string();
        assert!(error.contains("the thread runs the driver") && error.ends_with("xdplab xsk-tx IFACE -B"), "{error}");
    }

    #[test]
    fn variants_that_handle_packets_alike_have_one_socket() {
        let sockets = |texts: &[&str]| {
            let variants: Vec<VariantSpec> = texts.iter().map(|text| read(text)).collect();
            XskVariant::sockets(&variants, XdpMode::Native)
        };
        assert_eq!(sockets(&["drop:no-touch", "redirect-map"]).unwrap(), None);
        let spec = sockets(&["xsk-drop", "drop:no-touch", "xsk-drop", "xsk-tx", "xsk-drop:batch=8"]).unwrap().unwrap();
        let handled: Vec<_> = spec.sockets.iter().map(|socket| (socket.action, socket.batch)).collect();
        assert_eq!(handled, [(XskAction::Drop, 64), (XskAction::Tx, 64), (XskAction::Drop, 8)]);
        let error = sockets(&["xsk-drop", "xsk-drop:frame-size=2048"]).unwrap_err().to_string();
        assert!(error.contains("their frame size differs, and the sockets of a queue have one umem"), "{error}");
    }

    #[test]
    fn in_skb_mode_packets_are_copied() {
        let mode = |text: &str| {
            let spec = XskVariant::sockets(&[read(text)], XdpMode::Generic)?;
            Ok::<_, Error>(spec.unwrap().mode)
        };
        assert_eq!(mode("xsk-drop").unwrap(), BindMode::Copy);
        let error = mode("xsk-drop:zero-copy").unwrap_err().to_string();
        assert!(error.contains("in skb mode every packet is copied"), "{error}");
    }
}
