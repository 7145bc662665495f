//! `xdplab drop`, `pass` and `tx`: options and lines of the `xdp-bench` commands of these names, and some more.

use clap::{Args, ValueEnum};

use super::live::{self, Teller};
use super::{Ending, output};
use crate::device::{Action, LoadMode, Operation, ProgramSpec};
use crate::error::Result;
use crate::live::{BasicDevice, EndedBy, Layout, Session, Signals, Source as _, Start};
use crate::netlink::XdpMode;

/// Options of `drop`, `pass` and `tx`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Interface to attach to
    #[arg(value_name = "IFNAME")]
    interface: String,
    /// What to do with each packet first [default: no-touch, for tx swap-macs]
    #[arg(short = 'p', long = "packet-operation", alias = "program-mode", value_name = "ACTION")]
    operation: Option<Operation>,
    /// How to reach packet data
    #[arg(short = 'l', long, value_name = "MODE", default_value = "dpa")]
    load_mode: LoadMode,
    /// Show packets by RX queue too, in extended output mode
    #[arg(short = 'r', long, alias = "r")]
    rxq_stats: bool,
    /// How to attach; a mode that is refused is never exchanged for another
    #[arg(short = 'm', long = "xdp-mode", value_name = "MODE", default_value = "native")]
    mode: Mode,
    #[command(flatten)]
    live: live::Common,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// In the driver
    Native,
    /// On socket buffers (generic XDP), much slower
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

/// Runs the command that gives each packet this verdict.
pub(crate) fn run(action: Action, options: &Options) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let default = if action == Action::Tx { Operation::SwapMacs } else { Operation::NoTouch };
    let spec =
        ProgramSpec { load_mode: options.load_mode, ..ProgramSpec::new(action, options.operation.unwrap_or(default)) };
    let layout = Layout { label: "Summary".into(), drops: action == Action::Drop, rx_queues: options.rxq_stats };
    let mut device = BasicDevice::attach(&options.interface, spec, options.mode.into(), options.live.force)?;
    let session = Session::begin(device.read()?, options.live.limits())?;
    let start = device.start(session.started());
    live::notes(&start, options.live.verbose).iter().for_each(|line| output::note(line));
    let text = start_text(action, &start);
    let mut teller = Teller::start(&options.live, layout, start, &text)?;
    let (total, ended_by) = if live::immediate_exit() {
        (session.total_now(&mut device)?, EndedBy::ImmediateExit)
    } else {
        session.run(&mut device, &mut signals, &mut teller)?
    };
    let end = device.end(total, ended_by);
    drop(device);
    teller.end(end, live::AbortedPackets::Tell)
}

fn start_text(action: Action, start: &Start) -> String {
    let doing = match action {
        Action::Drop => "Dropping",
        Action::Pass => "Passing",
        Action::Tx => "Hairpinning (XDP_TX)",
    };
    let Start { interface, ifindex, driver, xdp_mode, .. } = start;
    format!("{doing} packets on {interface} (ifindex {ifindex}; driver {driver}) in {xdp_mode} mode")
}
