//! `xdplab drop`, `pass` and `tx`: options and lines of the `xdp-bench` commands of these names, and some more.

use clap::Args;

use super::Ending;
use super::live::{self, Mode, Teller};
use crate::device::{Action, LoadMode, Operation, ProgramSpec};
use crate::error::Result;
use crate::live::{Attached, BasicDevice, EndedBy, Layout, Session, Signals, Source as _};

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

/// Runs the command that gives each packet this verdict.
pub(crate) fn run(action: Action, options: &Options) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let default = if action == Action::Tx { Operation::SwapMacs } else { Operation::NoTouch };
    let spec =
        ProgramSpec { load_mode: options.load_mode, ..ProgramSpec::new(action, options.operation.unwrap_or(default)) };
    let layout = Layout {
        label: "Summary".into(),
        drops: action == Action::Drop,
        rx_queues: options.rxq_stats,
        ..Layout::default()
    };
    let mut device = BasicDevice::attach(&options.interface, spec, options.mode.into(), options.live.force)?;
    let session = Session::begin(device.read()?, options.live.limits())?;
    let start = device.start(session.started());
    live::notes(&start, options.live.verbose);
    let text = start.attached.as_ref().map_or_else(String::new, |attached| start_text(action, attached));
    let mut teller = Teller::start(&options.live, layout, start, &text)?;
    let (total, ended_by) = if live::immediate_exit() {
        (session.total_now(&mut device)?, EndedBy::ImmediateExit)
    } else {
        session.run(&mut device, &mut signals, &mut teller)?
    };
    let end = device.end(total, ended_by);
    drop(device);
    teller.end(end, live::AbortedPackets::Fail)
}

fn start_text(action: Action, attached: &Attached) -> String {
    let doing = match action {
        Action::Drop => "Dropping",
        Action::Pass => "Passing",
        Action::Tx => "Hairpinning (XDP_TX)",
    };
    let Attached { interface, ifindex, driver, xdp_mode, .. } = attached;
    format!("{doing} packets on {interface} (ifindex {ifindex}; driver {driver}) in {xdp_mode} mode")
}
