//! `xdplab redirect`, `redirect-map` and `redirect-multi`: options and lines of the `xdp-bench` commands of these names, and
//! some more.

use clap::Args;

use super::Ending;
use super::live::{self, Mode, Teller};
use crate::device::{EgressAction, LoadMode, RedirectBy};
use crate::error::Result;
use crate::live::{EndedBy, Layout, RedirectDevice, RedirectSpec, Session, Signals, Source as _, Start};

/// Options of `redirect`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Redirect {
    #[command(flatten)]
    pair: Pair,
    /// How to reach packet data
    #[arg(short = 'l', long, value_name = "MODE", default_value = "dpa")]
    load_mode: LoadMode,
    #[command(flatten)]
    common: Redirecting,
}

/// Options of `redirect-map`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct RedirectMap {
    #[command(flatten)]
    pair: Pair,
    #[command(flatten)]
    egress: Egress,
    #[command(flatten)]
    common: Redirecting,
}

/// Options of `redirect-multi`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct RedirectMulti {
    /// Interfaces to redirect from, each to all others
    #[arg(value_name = "IFNAME", required = true, num_args = 2..=32)]
    interfaces: Vec<String>,
    #[command(flatten)]
    egress: Egress,
    #[command(flatten)]
    common: Redirecting,
}

/// From where to where.
#[derive(Args, Debug)]
struct Pair {
    /// Interface to redirect from
    #[arg(value_name = "IFNAME_IN")]
    input: String,
    /// Interface to redirect to
    #[arg(value_name = "IFNAME_OUT")]
    target: String,
}

/// The program of the devmap entry.
#[derive(Args, Debug)]
struct Egress {
    /// Run a program on redirected frames before they are transmitted
    #[arg(short = 'X', long)]
    load_egress: bool,
    /// What that program does [default: forward]
    #[arg(short = 'A', long, value_name = "ACTION", requires = "load_egress")]
    egress_action: Option<EgressAction>,
}

/// Options of all three.
#[derive(Args, Debug)]
struct Redirecting {
    /// Count redirects that succeed too, which costs something per packet
    #[arg(short, long)]
    stats: bool,
    /// How to attach; a mode that is refused is never exchanged for another
    #[arg(short, long, value_name = "MODE", default_value = "native")]
    mode: Mode,
    #[command(flatten)]
    live: live::Common,
}

impl Egress {
    fn action(&self) -> Option<EgressAction> {
        self.load_egress.then_some(self.egress_action.unwrap_or(EgressAction::Forward))
    }
}

impl Redirect {
    pub(crate) fn run(&self) -> Result<Ending> {
        let layout = Layout { redirect_errors: true, ..self.pair.layout() };
        let spec = self.common.spec(RedirectBy::Helper(self.load_mode), self.pair.input(), self.pair.target(), None);
        run("redirect", spec, layout, &self.common.live)
    }
}

impl RedirectMap {
    pub(crate) fn run(&self) -> Result<Ending> {
        let spec = self.common.spec(RedirectBy::Map, self.pair.input(), self.pair.target(), self.egress.action());
        run("redirect-map", spec, self.pair.layout(), &self.common.live)
    }
}

impl RedirectMulti {
    pub(crate) fn run(&self) -> Result<Ending> {
        let (inputs, targets) = (self.interfaces.clone(), self.interfaces.clone());
        let spec = self.common.spec(RedirectBy::Broadcast, inputs, targets, self.egress.action());
        let layout = Layout { label: "Summary".into(), ..Layout::default() };
        run("redirect-multi", spec, layout, &self.common.live)
    }
}

impl Pair {
    fn input(&self) -> Vec<String> {
        vec![self.input.clone()]
    }

    fn target(&self) -> Vec<String> {
        vec![self.target.clone()]
    }

    fn layout(&self) -> Layout {
        Layout { label: format!("{}->{}", self.input, self.target), ..Layout::default() }
    }
}

impl Redirecting {
    fn spec(
        &self,
        by: RedirectBy,
        inputs: Vec<String>,
        targets: Vec<String>,
        egress: Option<EgressAction>,
    ) -> RedirectSpec {
        let (stats, mode, force) = (self.stats, self.mode.into(), self.live.force);
        RedirectSpec { by, inputs, targets, egress, mode, stats, force }
    }
}

fn run(command: &str, spec: RedirectSpec, layout: Layout, options: &live::Common) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let mut device = RedirectDevice::attach(spec)?;
    let session = Session::begin(device.read()?, options.limits())?;
    let start = device.start(command, session.started());
    live::notes(&start, options.verbose);
    let text = start_text(&start);
    let mut teller = Teller::start(options, layout, start, &text)?;
    let (total, ended_by) = if live::immediate_exit() {
        (session.total_now(&mut device)?, EndedBy::ImmediateExit)
    } else {
        session.run(&mut device, &mut signals, &mut teller)?
    };
    let end = device.end(total, ended_by)?;
    drop(device);
    teller.end(end, live::AbortedPackets::Fail)
}

fn start_text(start: &Start) -> String {
    let targets = start.targets.iter().map(|target| (&target.interface, target.ifindex, &target.driver));
    let named = |(interface, ifindex, driver)| format!("{interface} (ifindex {ifindex}; driver {driver})");
    let targets: Vec<String> = targets.map(named).collect();
    let attached = start.attached.as_ref();
    let mode = attached.map_or_else(String::new, |attached| format!(" in {} mode", attached.xdp_mode));
    match attached.filter(|_| targets.len() == 1) {
        Some(input) => {
            let input = format!("{} (ifindex {}; driver {})", input.interface, input.ifindex, input.driver);
            format!("Redirecting from {input} to {}{mode}", targets.concat())
        }
        None => format!("Redirecting between {}{mode}", targets.join(", ")),
    }
}
