//! `redirect`, `redirect-map` and `redirect-multi`: packets of some interfaces sent out of others.

use std::thread;
use std::time::{Duration, Instant};

use super::counters::{Counters, XmitCounts};
use super::delivery::Delivery;
use super::event::{Attached, End, EndedBy, Start, Target};
use super::interval::Interval;
use super::readings;
use super::receiver::observe;
use super::redirect_ledger::{Redirected, RedirectedTo, XmitByErrno, limiter};
use super::session::Source;
use super::softirq::SoftirqAccount;
use crate::bpf;
use crate::device::{
    Action, Attachment, Counts, DutProgram, EgressAction, LoadMode, Operation, ProgramSpec, RedirectBy,
    RedirectProgram, RedirectTarget,
};
use crate::error::{Error, Result};
use crate::host;
use crate::netlink::{LinkInfo, Netdev, Rtnl, XdpFeature, XdpMode};
use crate::observe::{Figure, Flow, Interface, Observers, Verdicts};
use crate::reading::Reading;
use crate::topology::NetNs;

/// What to redirect, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectSpec {
    /// How the program redirects.
    pub by: RedirectBy,
    /// Interfaces that the program is attached to.
    pub inputs: Vec<String>,
    /// Interfaces that packets go to.
    pub targets: Vec<String>,
    /// What the programs of the devmap entries do.
    pub egress: Option<EgressAction>,
    /// How the program is attached.
    pub mode: XdpMode,
    /// Redirects that succeed are counted too, which costs something per packet.
    pub stats: bool,
    /// Interfaces in use are taken.
    pub force: bool,
}

/// A redirecting program on interfaces of the calling thread's network namespace, and what is counted of it. Dropping it
/// detaches, and so does the end of the process.
pub struct RedirectDevice {
    attachments: Vec<Attachment>,
    /// On targets; they outlive the attachments above.
    passes: Vec<Pass>,
    program: RedirectProgram,
    observers: Reading<Observers>,
    softirqs: SoftirqAccount,
    rtnl: Rtnl,
    netns: u64,
    spec: RedirectSpec,
    inputs: Vec<LinkInfo>,
    targets: Vec<LinkInfo>,
    receivers: Vec<Reading<Delivery>>,
    start: Start,
}

/// A program on a target that passes every packet.
pub(super) struct Pass {
    ifindex: u32,
    _attachment: Attachment,
}

impl RedirectDevice {
    /// Loads the program, fills its devmap and only then attaches it. Nothing is changed where that is refused.
    ///
    /// # Errors
    /// The process lacks privileges, an interface is not there, in use (unless `force`) or has a program already, or a
    /// target can't take redirected frames.
    pub fn attach(spec: RedirectSpec) -> Result<Self> {
        host::require_privileges()?;
        bpf::read_types_ahead();
        let mut rtnl = Rtnl::open()?;
        let inputs = links(&mut rtnl, &spec.inputs)?;
        let targets = links(&mut rtnl, &spec.targets)?;
        if !spec.force {
            spec.inputs.iter().chain(&spec.targets).try_for_each(|name| host::require_unused(name))?;
        }
        let channels_before = readings::channels(inputs[0].ifindex);
        let rx_queues = inputs.iter().map(|link| readings::rx_queues(link, &readings::channels(link.ifindex)));
        let rx_queues = rx_queues.max().unwrap_or(1);
        let addresses = targets.iter().map(RedirectTarget::of).collect::<Result<Vec<_>>>()?;
        let program = RedirectProgram::load(spec.by, &addresses, spec.egress, rx_queues)?;
        let netns = NetNs::current()?.inode();
        let flows_from = match inputs.as_slice() {
            [input] => Interface { ifindex: input.ifindex, netns },
            _ => Interface { ifindex: 0, netns },
        };
        let observed = Verdicts::Program(program.id());
        let observers = observe(|| Observers::of_verdicts(observed, flows_from, &figures(&spec)));
        let mut device = Self {
            attachments: Vec::new(),
            passes: Vec::new(),
            program,
            observers,
            softirqs: SoftirqAccount::open(&[]),
            rtnl,
            netns,
            spec,
            inputs,
            targets,
            receivers: Vec::new(),
            start: Start::of(""),
        };
        device.prepare_targets()?;
        device.receivers = device.targets.iter().map(|target| Delivery::of(&mut device.rtnl, target)).collect();
        for link in &device.inputs {
            device.attachments.push(Attachment::attach(device.program.fd(), link.ifindex, device.spec.mode)?);
        }
        // Only now is it known of those whose peer is one of the interfaces that the program was attached to.
        device.targets.iter().try_for_each(|target| refuse_deaf(target, device.spec.mode))?;
        device.softirqs = SoftirqAccount::open(&device.input_ifindexes());
        device.start = device.describe(rx_queues, channels_before);
        Ok(device)
    }

    /// What is attached where, once the first reading has been made.
    #[must_use]
    pub fn start(&self, command: &str, started: String) -> Start {
        Start { command: command.into(), started, ..self.start.clone() }
    }

    /// Detaches, waits until the last frames have passed, and tells where all went.
    ///
    /// # Errors
    /// A map could not be read.
    pub fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        let received = total.received.as_ref().filter(|received| received.packets > 0);
        let rx = received.map(|received| self.softirqs.close(received));
        let interface = match self.inputs.as_slice() {
            [input] => readings::counted_since(&mut self.rtnl, input),
            _ => Reading::not_available("the program was attached to several"),
        };
        self.attachments.clear();
        let redirected = self.settle()?;
        let limiter = rx.as_ref().map(|rx| limiter(&redirected, rx));
        let cpus = rx.iter().filter_map(|rx| rx.threads.clone()).collect();
        let softirq = rx.map(|rx| rx.softirq);
        let ledger = redirected.accounts();
        Ok(End { softirq, interface, cpus, ledger, limiter, ..End::new(total, ended_by) })
    }

    /// Lets targets take redirected frames where a program there is what their driver needs for it.
    fn prepare_targets(&mut self) -> Result<()> {
        if self.spec.mode != XdpMode::Native {
            return Ok(());
        }
        let inputs = self.input_ifindexes();
        for target in &self.targets {
            if target.xdp.is_empty() && !inputs.contains(&target.ifindex) {
                self.passes.push(Pass::attach(target)?);
            }
            // A peer that gets the program too can take frames once it has it.
            if !target.peer.is_some_and(|peer| peer.netnsid.is_none() && inputs.contains(&peer.ifindex)) {
                refuse_deaf(target, self.spec.mode)?;
            }
        }
        Ok(())
    }

    fn describe(&self, rx_queues: u32, channels_before: Reading<crate::netlink::Channels>) -> Start {
        let first = &self.inputs[0];
        let attached = Attached {
            interface: first.name.clone(),
            ifindex: first.ifindex,
            driver: readings::driver(&first.name),
            xdp_mode: self.spec.mode,
            program: self.spec.to_string(),
            program_id: self.program.id(),
            frags: bpf::takes_frags(),
            rx_queues,
            channels_before,
            channels_after: readings::channels(first.ifindex),
        };
        let targets = self.targets.iter().map(|target| Target {
            interface: target.name.clone(),
            ifindex: target.ifindex,
            driver: readings::driver(&target.name),
            xdp_features: features(target.ifindex),
            passes: self.passes.iter().any(|pass| pass.ifindex == target.ifindex),
        });
        Start { attached: Some(attached), targets: targets.collect(), notes: self.notes(rx_queues), ..Start::of("") }
    }

    /// What was found that will cost packets or blurs the result, a sentence and a remedy each.
    fn notes(&self, rx_queues: u32) -> Vec<String> {
        let mut notes = Vec::new();
        let redirecting = thread::available_parallelism().map_or(1, |cpus| cpus.get()).min(rx_queues as usize);
        let largest = self.inputs.iter().max_by_key(|link| link.mtu);
        for target in &self.targets {
            let name = &target.name;
            if !target.up {
                notes.push(format!(
                    "{name} is down: redirects to it fail with ENETDOWN; set it up: ip link set {name} up"
                ));
            }
            if let Some(input) = largest.filter(|input| input.mtu > target.mtu) {
                notes.push(format!(
                    "the MTU of {name} is {}, that of {} is {}: longer packets are not redirected (EMSGSIZE); set it to \
                     the same: ip link set {name} mtu {}",
                    target.mtu, input.name, input.mtu, input.mtu
                ));
            }
            if let Reading::Known(channels) = readings::channels(target.ifindex) {
                let tx = channels.tx.unwrap_or(0) + channels.combined.unwrap_or(0);
                if (tx as usize) < redirecting && self.spec.mode == XdpMode::Native {
                    notes.push(format!(
                        "{name} has {tx} TX queues for up to {redirecting} redirecting CPUs, which wait for each other; give \
                         it more: ethtool -L {name}"
                    ));
                }
            }
            if let (Reading::NotAvailable { why }, XdpMode::Native) = (features(target.ifindex), self.spec.mode) {
                notes.push(format!("whether {name} takes redirected frames is not known: {why}"));
            }
        }
        if let Reading::NotAvailable { why } = &self.observers {
            notes.push(format!("errors and transmitted frames are not counted: {why}"));
        }
        notes
    }

    fn input_ifindexes(&self) -> Vec<u32> {
        self.inputs.iter().map(|link| link.ifindex).collect()
    }

    /// Whether these are frames of ours.
    fn is_ours(&self) -> impl Fn(&Flow) -> bool {
        let (netns, inputs) = (self.netns, self.input_ifindexes());
        move |flow| flow.from.netns == netns && inputs.contains(&flow.from.ifindex)
    }

    /// What was counted once it stands still; frames under way when the program was detached have passed then.
    fn settle(&self) -> Result<Redirected> {
        const STEP: Duration = Duration::from_millis(5);
        const DEADLINE: Duration = Duration::from_millis(200);
        let deadline = Instant::now() + DEADLINE;
        let mut redirected = self.redirected()?;
        loop {
            thread::sleep(STEP);
            let again = self.redirected()?;
            if again.accounts() == redirected.accounts() || Instant::now() >= deadline {
                return Ok(again);
            }
            redirected = again;
        }
    }

    fn redirected(&self) -> Result<Redirected> {
        let mut sum = Counts::default();
        self.program.counts()?.into_iter().flatten().for_each(|counts| sum += counts);
        let mut egress_drops = self.program.egress_drops()?.into_iter();
        let targets = self.targets.iter().zip(&self.receivers).map(|(target, receiver)| RedirectedTo {
            interface: target.name.clone(),
            egress_drops: egress_drops.next().unwrap_or(0),
            xmit: (self.spec.mode == XdpMode::Native).then(|| self.xmit_to(target.ifindex)),
            receiver: receiver.as_ref().and_then(Delivery::counted),
        });
        Ok(Redirected {
            received: sum.packets,
            aborted: sum.aborted,
            errors: self.observers.as_ref().and_then(Observers::redirect_errors),
            copies: match self.spec.by {
                RedirectBy::Helper(_) | RedirectBy::Map => 1,
                // The interface that a packet came in by is one of the targets and gets no copy.
                RedirectBy::Broadcast => self.targets.len() as u64 - 1,
            },
            targets: targets.collect(),
        })
    }

    fn xmit_to(&self, ifindex: u32) -> Reading<XmitByErrno> {
        let to = Interface { ifindex, netns: self.netns };
        let xmit = self
            .observers
            .as_ref()
            .and_then(|observers| readings::xmit(observers, self.netns, |flow| flow.to == to && self.is_ours()(flow)));
        xmit.map(|xmit| {
            let mut by_errno = XmitByErrno::new();
            for (hop, counts) in xmit.rows {
                let sum: &mut XmitCounts = by_errno.entry(hop.errno).or_default();
                *sum += counts;
            }
            by_errno
        })
    }
}

impl Source for RedirectDevice {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let received = readings::received(at, self.program.counts()?);
        let observers = self.observers.as_ref();
        let named = |read: fn(&Observers) -> _| readings::named(|| observers.clone().and_then(read));
        let redirects = || readings::per_cpu(|| observers.clone().and_then(Observers::redirects_per_cpu));
        let xmit = || observers.clone().and_then(|observers| readings::xmit(observers, self.netns, self.is_ours()));
        Ok(Counters {
            received: Some(received),
            exceptions: Some(named(Observers::exceptions_per_cpu)),
            redirects: self.spec.stats.then(redirects),
            redirect_errors: Some(named(Observers::redirect_errors_per_cpu)),
            xmit: (self.spec.mode == XdpMode::Native).then(xmit),
            ..Counters::empty(at)
        })
    }

    fn check(&mut self) -> Result<()> {
        let mut links = self.inputs.iter().chain(&self.targets);
        links.try_for_each(|link| readings::check_there(&mut self.rtnl, link))
    }
}

impl Pass {
    pub(super) fn attach(target: &LinkInfo) -> Result<Self> {
        let rx_queues = readings::rx_queues(target, &readings::channels(target.ifindex));
        let program = DutProgram::load(ProgramSpec::new(Action::Pass, Operation::NoTouch), rx_queues)?;
        let attachment = Attachment::attach(program.fd(), target.ifindex, XdpMode::Native)?;
        Ok(Self { ifindex: target.ifindex, _attachment: attachment })
    }
}

fn links(rtnl: &mut Rtnl, names: &[String]) -> Result<Vec<LinkInfo>> {
    let mut links: Vec<LinkInfo> = Vec::new();
    for name in names {
        let link = rtnl.link_by_name(name)?;
        if links.iter().any(|other| other.ifindex == link.ifindex) {
            return Err(Error::usage(format!("redirect packets to {name}"), "it is named twice"));
        }
        links.push(link);
    }
    Ok(links)
}

fn figures(spec: &RedirectSpec) -> Vec<Figure> {
    let mut figures = vec![Figure::Exceptions, Figure::RedirectErrors, Figure::Flows];
    figures.extend(spec.stats.then_some(Figure::Redirects));
    figures
}

/// Refuses a target to which the kernel redirects nothing (`EOPNOTSUPP`, or no copy at all of a broadcast).
pub(super) fn refuse_deaf(target: &LinkInfo, mode: XdpMode) -> Result<()> {
    let Reading::Known(features) = features(target.ifindex) else { return Ok(()) };
    if mode != XdpMode::Native || features.contains(&XdpFeature::NdoXmit) {
        return Ok(());
    }
    let LinkInfo { name, ifindex, .. } = target;
    let what = format!("redirect packets to {name} (ifindex {ifindex})");
    let is_veth = target.kind.as_deref() == Some("veth");
    Err(match (is_veth, features.is_empty()) {
        (true, false) => Error::unsupported(what, "its peer takes no redirected frames (EOPNOTSUPP): it has no NAPI")
            .remedy("give the peer an XDP program, or GRO while it is up: ethtool -K PEER gro on"),
        (true, true) => {
            Error::unsupported(what, "it has fewer RX queues than its peer has TX queues, so it has no native XDP")
                .remedy(format!("give it more: ethtool -L {name} rx N"))
        }
        (false, _) => Error::unsupported(what, "its driver transmits no redirected frames (EOPNOTSUPP)")
            .remedy("take another interface, or ask for skb mode"),
    })
}

pub(super) fn features(ifindex: u32) -> Reading<Vec<XdpFeature>> {
    Netdev::open().and_then(|mut netdev| netdev.xdp(ifindex)).map(|xdp| xdp.features).into()
}

impl std::fmt::Display for RedirectSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.by.command())?;
        if self.by == RedirectBy::Helper(LoadMode::LoadBytes) {
            f.write_str(":load-bytes")?;
        }
        match self.egress {
            Some(EgressAction::Forward) => f.write_str(":egress-forward"),
            Some(EgressAction::Drop) => f.write_str(":egress-drop"),
            None => Ok(()),
        }
    }
}
