//! `xdplab redirect-cpu`: options and lines of the `xdp-bench` command of this name, and some more.

use clap::{ArgAction, Args};

use super::Ending;
use super::live::{self, Mode, Teller};
use crate::device::{CpumapSpec, Remote, RemoteAction, Selection};
use crate::error::{Error, Result};
use crate::live::{Attached, CpumapDevice, EndedBy, Layout, Session, Signals, Source as _};
use crate::netlink::Rtnl;

/// Options of `redirect-cpu`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Interface to attach to
    #[arg(value_name = "IFNAME")]
    interface: String,
    /// CPU to redirect to; may be given more than once, and the order counts
    #[arg(short, long = "cpu", value_name = "CPU", required = true, action = ArgAction::Append)]
    cpus: Vec<u32>,
    /// How to choose the CPU for a packet
    #[arg(short = 'p', long = "program-mode", value_name = "MODE", default_value = "l4-hash")]
    selection: Selection,
    /// What the CPU does with the packet
    #[arg(short, long, value_name = "ACTION", default_value = "disabled")]
    remote_action: RemoteAction,
    /// Interface to redirect to on the other CPU, for -r redirect
    #[arg(short = 'D', long, value_name = "IFNAME")]
    redirect_device: Option<String>,
    /// Packets that the queue of each CPU holds
    #[arg(short, long, value_name = "PACKETS", default_value = "2048")]
    qsize: u32,
    /// Make queues and threads anew after each interval, to test the kernel
    #[arg(short = 'x', long)]
    stress_mode: bool,
    /// Taken for compatibility: redirected packets are counted in any case
    #[arg(short, long)]
    stats: bool,
    /// How to attach; a mode that is refused is never exchanged for another
    #[arg(short = 'm', long = "xdp-mode", value_name = "MODE", default_value = "native")]
    mode: Mode,
    #[command(flatten)]
    live: live::Common,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let spec = CpumapSpec {
        selection: options.selection,
        cpus: options.cpus.clone(),
        qsize: options.qsize,
        remote: remote(options.remote_action, options.redirect_device.as_deref())?,
    };
    let layout = Layout { label: format!("{}->?", options.interface), ..Layout::default() };
    let limits = options.live.limits();
    let stress = options.stress_mode.then_some(limits.interval);
    let mut device = CpumapDevice::attach(&options.interface, spec, options.mode.into(), stress, options.live.force)?;
    let session = Session::begin(device.read()?, limits)?;
    let start = device.start(session.started());
    let text = start.attached.as_ref().map_or_else(String::new, |attached| start_text(options, attached));
    live::notes(&start, options.live.verbose);
    let mut teller = Teller::start(&options.live, layout, start, &text)?;
    let (total, ended_by) = if live::immediate_exit() {
        (session.total_now(&mut device)?, EndedBy::ImmediateExit)
    } else {
        session.run(&mut device, &mut signals, &mut teller)?
    };
    let end = device.end(total, ended_by)?;
    drop(device);
    teller.end(end, live::AbortedPackets::Fail)
}

fn remote(action: RemoteAction, device: Option<&str>) -> Result<Remote> {
    let refused = |why: &str, remedy: &str| Err(Error::usage("say what the other CPU does", why).remedy(remedy));
    match (action, device) {
        (RemoteAction::Redirect, None) => refused("-r redirect needs an interface to redirect to", "add -D IFNAME"),
        (RemoteAction::Redirect, Some(name)) => {
            let link = Rtnl::open()?.link_by_name(name)?;
            let mac = link.mac.ok_or_else(|| {
                Error::usage(format!("redirect to {name}"), "it has no MAC address")
                    .remedy("choose an Ethernet interface")
            })?;
            Ok(Remote::Redirect { ifindex: link.ifindex, mac })
        }
        (_, Some(_)) => refused("-D is for -r redirect alone", "add -r redirect, or leave -D out"),
        (RemoteAction::Disabled, None) => Ok(Remote::Disabled),
        (RemoteAction::Drop, None) => Ok(Remote::Drop),
        (RemoteAction::Pass, None) => Ok(Remote::Pass),
    }
}

fn start_text(options: &Options, attached: &Attached) -> String {
    let Attached { interface, ifindex, driver, xdp_mode, .. } = attached;
    let cpus: Vec<String> = options.cpus.iter().map(u32::to_string).collect();
    format!(
        "Redirecting packets on {interface} (ifindex {ifindex}; driver {driver}) in {xdp_mode} mode to CPU {} by {}",
        cpus.join(", "),
        options.selection
    )
}
