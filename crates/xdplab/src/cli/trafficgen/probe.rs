//! `xdplab trafficgen probe`.

use clap::{ArgAction, Args};
use serde::Serialize;

use super::elsewhere::{Elsewhere, Lacks, Refused};
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
    /// Tell everything in JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    elsewhere: Elsewhere<Self>,
}

impl Lacks for Options {
    const REFUSED: &[Refused] = &[
        ("duration", NOTHING_SENT),
        ("count", NOTHING_SENT),
        ("num-packets", NOTHING_SENT),
        ("rate", NOTHING_SENT),
        ("burst", NOTHING_SENT),
        ("pkt-size", NOTHING_SENT),
        ("vlan", NOTHING_SENT),
        ("hop-limit", NOTHING_SENT),
        ("ttl", NOTHING_SENT),
        ("dst-addr", NOTHING_SENT),
        ("src-addr", NOTHING_SENT),
        ("dyn-ports", NOTHING_SENT),
        ("src-ports", NOTHING_SENT),
        ("dst-addrs", NOTHING_SENT),
        ("src-addrs", NOTHING_SENT),
        ("threads", NOTHING_SENT),
        ("cpus", NOTHING_SENT),
        ("queue", NOTHING_SENT),
        ("batch-size", NOTHING_SENT),
        ("pcap", NOTHING_SENT),
        ("record", "nothing is measured; --json tells what was found"),
    ];
}

/// Why no option says what is sent.
const NOTHING_SENT: &str = "probe sends nothing but one frame into an empty network namespace";

/// What was looked at, and what it lacks.
#[derive(Serialize)]
struct Found {
    schema: &'static str,
    what: String,
    supported: bool,
    /// What is there, or why it is not.
    detail: String,
}

/// Exit status 0 if everything is there, 1 otherwise.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    options.elsewhere.refuse()?;
    let interface = options.interface.as_deref().map_or(Ok(true), |name| options.interface(name))?;
    let kernel = options.kernel()?;
    Ok(if interface && kernel { Ending::Done } else { Ending::Lacking })
}

impl Options {
    /// Whether the interface takes redirected frames, by what the kernel says of it; nothing is attached to it.
    fn interface(&self, name: &str) -> Result<bool> {
        let what = format!("Interface {name} takes redirected frames");
        let probed = LiveSender::probe(name)?.map(|features| format!("XDP features: {features}"));
        self.tell(&what, probed, |features| format!("{what} ({features}).\n"))
    }

    fn kernel(&self) -> Result<bool> {
        const SENTENCE: &str = "Kernel supports live packet mode for XDP BPF_PROG_RUN";
        let probed = send_one().map(|()| "a frame was sent".to_owned());
        let supported = self.tell(SENTENCE, probed, |_detail| format!("{SENTENCE}.\n"))?;
        if !supported && !self.json {
            output::error(&Error::unsupported("use udp and tcp", "the kernel makes no live frames"));
        }
        Ok(supported)
    }

    fn tell(&self, what: &str, found: Result<String>, text: impl FnOnce(&str) -> String) -> Result<bool> {
        let supported = found.is_ok();
        if self.json {
            let detail = found.unwrap_or_else(|lacking| lacking.to_string());
            let found = Found { schema: "xdplab.probe/1", what: what.into(), supported, detail };
            let line = serde_json::to_string(&found);
            let line = line.map_err(|error| Error::invalid("write what was found as JSON", error.to_string()))?;
            output::text(&(line + "\n"))?;
            return Ok(supported);
        }
        match found {
            Ok(detail) => output::text(&text(&detail))?,
            Err(lacking) => output::error(&lacking),
        }
        Ok(supported)
    }
}

/// Makes one live frame in an empty network namespace, for an interface that takes none.
fn send_one() -> Result<()> {
    const LOOPBACK: u32 = 1;
    let one = TrafficSpec {
        traffic: Traffic::replay(vec![vec![0; 60]])?,
        pace: None,
        ifindex: LOOPBACK,
        cpus: crate::sys::affinity::allowed()?.into_iter().take(1).collect(),
        batch: 1,
        count: Some(1),
    };
    LiveFrames::send(&one, &NetNs::new()?)?.wait().map(drop)
}
