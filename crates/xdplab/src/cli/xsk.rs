//! `xdplab xsk-drop` and `xsk-tx`: options and lines of the `xdp-bench` commands of these names, and some more.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use xsk::BindMode;

use super::live::{self, Mode, Teller};
use super::{Ending, output};
use crate::device::{CopyMode, Handling, XskAction, XskSpec};
use crate::error::{Error, Result};
use crate::live::{Attached, EndedBy, Session, Signals, Source as _, Start, XskDevice, XskLayout, XskStart};

/// Sockets where they share the umem.
const SHARERS: usize = 4;

/// Options of `xsk-drop` and `xsk-tx`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Interface to attach to
    #[arg(value_name = "IFNAME")]
    interface: String,
    /// RX queue whose packets to take
    #[arg(short, long, value_name = "QUEUE", default_value = "0")]
    queue: u32,
    /// Seconds from one line to the next; fractions are taken too
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = live::seconds)]
    interval: Duration,
    /// Bytes a frame: a power of two from 2048 on, or any size with -u
    #[arg(short, long, value_name = "SIZE", default_value = "4096")]
    frame_size: u32,
    /// End after this time; 0 is never
    #[arg(short, long, value_name = "SECONDS", default_value = "0", value_parser = seconds_or_never)]
    duration: Limit,
    /// Most packets handled at once
    #[arg(short, long, value_name = "PACKETS", default_value = "64")]
    batch_size: u32,
    /// Count the interrupts of the first line of /proc/interrupts with this text
    #[arg(short = 'I', long, value_name = "TEXT")]
    irq_string: Option<String>,
    /// Wait for packets in poll(2) instead of looking for them all the time
    #[arg(short, long)]
    poll: bool,
    /// Bind without XDP_USE_NEED_WAKEUP
    #[arg(short = 'm', long)]
    no_need_wakeup: bool,
    /// Frames of any size that may cross pages, on huge pages if any are set aside
    #[arg(short, long)]
    unaligned: bool,
    /// Four sockets with one umem on the queue, which get packets in turn
    #[arg(short = 'M', long)]
    shared_umem: bool,
    /// Start with the kernel's statistics of each socket (Ctrl-\ toggles)
    #[arg(short = 'x', long)]
    extra_stats: bool,
    /// Show nothing before the end
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Show the calls that are made
    #[arg(short, long)]
    app_stats: bool,
    /// Busy polling (SO_PREFER_BUSY_POLL) of 20 us with a budget of one batch
    #[arg(short = 'B', long)]
    busy_poll: bool,
    /// Take packets of several frames
    #[arg(short = 'F', long)]
    frags: bool,
    /// How packets get to and from the umem
    #[arg(short = 'C', long, value_name = "MODE", default_value = "auto")]
    copy_mode: CopyMode,
    /// Taken for compatibility: time is read from the monotonic clock, whose rates no setting of a clock bends
    #[arg(short = 'w', long, value_name = "CLOCK", default_value = "MONOTONIC")]
    clock: Clock,
    /// Scheduling policy of the thread that handles packets
    #[arg(short = 'W', long, value_name = "POLICY", default_value = "SCHED_OTHER")]
    policy: Policy,
    /// Its priority, 1 to 99 with SCHED_FIFO
    #[arg(short = 'U', long = "schpri", value_name = "PRIORITY", default_value = "0")]
    priority: u32,
    /// How to attach; a mode that is refused is never exchanged for another
    #[arg(short = 'A', long, value_name = "MODE", default_value = "native")]
    attach_mode: Mode,
    /// End once at least so many packets were received
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Tell everything in JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Write the record to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Take an interface that carries the default route or this SSH session
    #[arg(long)]
    force: bool,
    /// Say more about what is set up
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
}

/// A duration, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit(pub(super) Option<Duration>);

pub(super) fn seconds_or_never(text: &str) -> std::result::Result<Limit, String> {
    if text == "0" { Ok(Limit(None)) } else { live::seconds(text).map(|seconds| Limit(Some(seconds))) }
}

/// A clock of clock_gettime(2).
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(super) enum Clock {
    Monotonic,
    Realtime,
    Tai,
    Boottime,
}

/// A policy of sched(7).
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Policy {
    /// The usual one; its priority is 0
    #[value(name = "SCHED_OTHER")]
    Other,
    /// Runs until it waits
    #[value(name = "SCHED_FIFO")]
    Fifo,
}

/// Runs the command that does this to packets.
pub(crate) fn run(action: XskAction, options: &Options) -> Result<Ending> {
    let mut signals = Signals::keep()?;
    let spec = spec(action, options)?;
    let common = common(options);
    let layout = XskLayout {
        interface: options.interface.clone(),
        queue: options.queue,
        receives: true,
        sends: action == XskAction::Tx,
        frags: options.frags,
        calls: options.app_stats,
        quiet: options.quiet,
    };
    let irq = options.irq_string.as_deref();
    let mut device = XskDevice::attach(&options.interface, spec, options.attach_mode.into(), irq, options.force)?;
    let session = Session::begin(device.read()?, common.limits())?;
    let start = device.start(session.started());
    notes(&start, options.verbose);
    let text = start.attached.as_ref().zip(start.xsk.as_ref());
    let text = text.map_or_else(String::new, |(attached, xsk)| start_text(action, attached, xsk));
    let mut teller = Teller::start(&common, layout, start, &text)?;
    let (total, ended_by) = if live::immediate_exit() {
        (session.total_now(&mut device)?, EndedBy::ImmediateExit)
    } else {
        session.run(&mut device, &mut signals, &mut teller)?
    };
    let end = device.end(total, ended_by)?;
    drop(device);
    teller.end(end, live::AbortedPackets::Fail)
}

fn spec(action: XskAction, options: &Options) -> Result<XskSpec> {
    let handling = Handling { action, batch: options.batch_size, poll: options.poll };
    Ok(XskSpec {
        sockets: vec![handling; if options.shared_umem { SHARERS } else { 1 }],
        queue: options.queue,
        frame_size: options.frame_size,
        need_wakeup: !options.no_need_wakeup,
        unaligned: options.unaligned,
        busy_poll: options.busy_poll,
        frags: options.frags,
        mode: bind_mode(options.attach_mode, options.copy_mode)?,
        fifo: fifo(options.policy, options.priority)?,
        cpu: None,
        rest_after: None,
    })
}

pub(super) fn bind_mode(attach_mode: Mode, copy_mode: CopyMode) -> Result<BindMode> {
    match (attach_mode, copy_mode) {
        (Mode::Skb, CopyMode::ZeroCopy) => Err(Error::usage("use zero-copy", "in skb mode every packet is copied")
            .remedy("attach in native mode, or leave -C out")),
        (Mode::Skb, _) => Ok(BindMode::Copy),
        (Mode::Native, mode) => Ok(mode.into()),
    }
}

pub(super) fn fifo(policy: Policy, priority: u32) -> Result<Option<u32>> {
    match (policy, priority) {
        (Policy::Other, 0) => Ok(None),
        (Policy::Other, priority) => {
            let why = format!("{priority} is none of SCHED_OTHER, which has 0 alone");
            Err(Error::usage("set the priority", why).remedy("add -W SCHED_FIFO, or leave -U out"))
        }
        (Policy::Fifo, priority @ 1..=99) => Ok(Some(priority)),
        (Policy::Fifo, priority) => {
            let why = format!("{priority} is none of SCHED_FIFO");
            Err(Error::usage("set the priority", why).remedy("add -U with 1 to 99"))
        }
    }
}

fn common(options: &Options) -> live::Common {
    live::Common {
        interval: options.interval,
        extended: options.extra_stats,
        duration: options.duration.0,
        count: options.count,
        json: options.json,
        record: options.record.clone(),
        force: options.force,
        verbose: options.verbose,
    }
}

fn start_text(action: XskAction, attached: &Attached, XskStart { queue, mode, .. }: &XskStart) -> String {
    let doing = match action {
        XskAction::Drop => "Dropping",
        XskAction::Tx => "Hairpinning",
    };
    let Attached { interface, ifindex, driver, xdp_mode, .. } = attached;
    format!(
        "{doing} packets on {interface} (ifindex {ifindex}; queue {queue}; driver {driver}) using AF_XDP sockets in {mode} \
         mode, attached in {xdp_mode} mode"
    )
}

fn notes(start: &Start, verbose: u8) {
    live::notes(start, verbose);
    if let Some(XskStart { sockets, frame_size, huge_pages, batch, .. }) = start.xsk.as_ref().filter(|_| verbose > 0) {
        let pages = if *huge_pages { "huge" } else { "base" };
        output::note(&format!(
            "{sockets} sockets, frames of {frame_size} bytes on {pages} pages, batches of up to {batch}"
        ));
    }
}
