//! `xdplab monitor`: options and lines of `xdp-monitor`, and some more.

use clap::Args;

use super::live::{self, Teller};
use super::{Ending, output};
use crate::error::{Error, Result};
use crate::live::{End, EndedBy, Layout, Monitor, Session, Signals, Source as _};

/// Options of `monitor`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Count redirects that succeed too: some 44 ns for each on the reference machine, instead of 6
    #[arg(short, long)]
    stats: bool,
    #[command(flatten)]
    live: live::Common,
}

pub(crate) fn run(options: &Options) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let limits = options.live.limits();
    if limits.count.is_some() {
        return Err(Error::usage("end after a number of packets", "monitor attaches no program that could count them")
            .remedy("give --duration"));
    }
    let layout = Layout { label: "Summary".into(), redirect_errors: true, xmit_total: true, ..Layout::default() };
    let mut monitor = Monitor::attach(options.stats)?;
    let first = monitor.read()?;
    let session = Session::begin(first.clone(), limits)?;
    let start = monitor.start(&first, session.started());
    live::notes(&start, options.live.verbose);
    if !options.stats {
        output::note("Redirects that succeed are not counted: -s (--stats) counts them, at a cost per packet");
    }
    let mut teller = Teller::start(&options.live, layout, start, "Watching XDP on all interfaces")?;
    let (total, ended_by) = if live::immediate_exit() {
        (session.total_now(&mut monitor)?, EndedBy::ImmediateExit)
    } else {
        session.run(&mut monitor, &mut signals, &mut teller)?
    };
    drop(monitor);
    teller.end(End::new(total, ended_by), live::AbortedPackets::Tell)
}
