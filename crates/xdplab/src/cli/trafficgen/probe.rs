//! `xdplab trafficgen probe`.

use clap::{ArgAction, Args};

use crate::cli::{Ending, output};
use crate::error::{Error, Result};
use crate::generator::{LiveFrames, TrafficSpec};
use crate::live::LiveSender;
use crate::packet::Traffic;
use crate::topology::NetNs;

/// Options of `probe`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// Interface to look at too
    #[arg(short = 'i', long = "interface", visible_alias = "ifname", value_name = "IFNAME")]
    interface: Option<String>,
    /// Say more
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
}

/// Exit status 0 if everything is there, 1 otherwise.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let interface = options.interface.as_deref().map_or(Ok(true), probe_interface)?;
    let kernel = probe_kernel()?;
    Ok(if interface && kernel { Ending::Done } else { Ending::Lacking })
}

/// Whether the interface takes redirected frames, by what the kernel says of it; nothing is attached to it.
fn probe_interface(name: &str) -> Result<bool> {
    match LiveSender::probe(name)? {
        Ok(features) => {
            output::text(&format!("Interface {name} takes redirected frames (XDP features: {features}).\n"))?;
            Ok(true)
        }
        Err(lacking) => {
            output::error(&lacking);
            Ok(false)
        }
    }
}

/// Whether live frames can be made: one is sent in an empty network namespace, to an interface that takes none.
fn probe_kernel() -> Result<bool> {
    const LOOPBACK: u32 = 1;
    let one = TrafficSpec {
        traffic: Traffic::replay(vec![vec![0; 60]])?,
        pace: None,
        ifindex: LOOPBACK,
        cpus: crate::sys::affinity::allowed()?.into_iter().take(1).collect(),
        batch: 1,
        count: Some(1),
    };
    match LiveFrames::send(&one, &NetNs::new()?)?.wait() {
        Ok(_sent) => {
            output::text("Kernel supports live packet mode for XDP BPF_PROG_RUN.\n")?;
            Ok(true)
        }
        Err(error) => {
            output::error(&error);
            output::error(&Error::unsupported("use udp and tcp", "the kernel makes no live frames"));
            Ok(false)
        }
    }
}
