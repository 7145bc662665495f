//! `trafficgen tcp`: a TCP flow whose segments are made in the kernel, counted by the programs that make them and take the
//! acknowledgements, by the kernel's tracepoints, and by who receives them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::cpu_cost::CpuCost;
use super::delivery::Delivery;
use super::event::{Attached, End, EndedBy, Start};
use super::interval::Interval;
use super::ledger::{Account, settled};
use super::preflight::{must_be_up, must_take_frames_as_it_is};
use super::readings;
use super::sender::{LOOPBACK, is_kept, observers, refusals};
use super::sent::{Sender, Sending, SendingEnd, SendingThread, SentBy, SentCounters};
use super::session::Source;
use super::signals::Signals;
use crate::bpf;
use crate::device::Attachment;
use crate::error::{Error, Result};
use crate::generator::tcp::{Closed, TcpFlow, TcpFlowCounts, TcpFlowSpec};
use crate::host;
use crate::netlink::{LinkInfo, Rtnl, XdpMode};
use crate::observe::{Interface, Observers, Watch};
use crate::packet::FrameLengths;
use crate::reading::Reading;
use crate::topology::NetNs;
use crate::units::PacketsPerSec;

/// A segment that was sent has arrived or is lost after this time.
const ARRIVES_WITHIN: Duration = Duration::from_millis(50);
/// On a busy machine it takes some time until the sending thread runs.
const THREAD_RUNS_WITHIN: Duration = Duration::from_secs(3);
/// In less than this an acknowledgement need not have come.
const SHORTEST_JUDGED: f64 = 0.5;

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct TcpSendSpec {
    /// The flow; what is told here of the interface's number and MTU is set by [`TcpSender::open`].
    pub flow: TcpFlowSpec,
    /// How the program is attached that takes acknowledgements.
    pub mode: XdpMode,
    /// Go on although nothing is acknowledged.
    pub keep_going: bool,
    /// Take an interface in use.
    pub force: bool,
}

/// One reading of a flow's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpReading {
    /// When it was made.
    pub at: Instant,
    /// The counters.
    pub counts: TcpFlowCounts,
}

/// What was counted between two readings. The windows and how the peer ended the connection are those of the second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TcpInterval {
    /// Seconds between the two.
    pub period_s: f64,
    /// The differences.
    #[serde(flatten)]
    pub counts: TcpFlowCounts,
    /// Payload bits per second handed to the redirect, those sent again among them; absent over no time.
    pub raw_bps: Option<f64>,
    /// Payload bits per second that the peer has acknowledged.
    pub goodput_bps: Option<f64>,
}

/// How a flow was set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpStart {
    /// Our end.
    pub from: SocketAddr,
    /// The peer.
    pub to: SocketAddr,
    /// Payload bytes of a segment.
    pub payload: usize,
    /// The CPU that sends.
    pub cpu: usize,
}

/// A flow out of an interface of the calling thread's network namespace. Dropping it ends it and takes the program away; so
/// does the end of the process.
pub struct TcpSender {
    spec: TcpSendSpec,
    flow: TcpFlow,
    attachment: Option<Attachment>,
    attached: Attached,
    observers: Reading<Observers>,
    delivery: Reading<Delivery>,
    rtnl: Rtnl,
    link: LinkInfo,
    netns: NetNs,
    first: Option<Counters>,
    begun: Instant,
    cost: Option<Reading<CpuCost>>,
}

impl TcpInterval {
    pub(super) fn between(earlier: &TcpReading, later: &TcpReading) -> Self {
        let (then, now) = (&earlier.counts, &later.counts);
        let counts = TcpFlowCounts {
            segments: now.segments - then.segments,
            bytes: now.bytes - then.bytes,
            fresh_bytes: now.fresh_bytes - then.fresh_bytes,
            retransmits: now.retransmits - then.retransmits,
            timeouts: now.timeouts - then.timeouts,
            losses: now.losses - then.losses,
            acked_bytes: now.acked_bytes - then.acked_bytes,
            from_peer: now.from_peer - then.from_peer,
            duplicate_acks: now.duplicate_acks - then.duplicate_acks,
            blocked: now.blocked - then.blocked,
            window: now.window,
            congestion_window: now.congestion_window,
            closed: now.closed,
        };
        let period_s = later.at.saturating_duration_since(earlier.at).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate to show")]
        let bps = |bytes: u64| (period_s > 0.0).then(|| bytes as f64 * 8.0 / period_s);
        Self { period_s, raw_bps: bps(counts.bytes), goodput_bps: bps(counts.acked_bytes), counts }
    }
}

impl TcpSender {
    /// Attaches the program that takes acknowledgements, and makes the connection.
    ///
    /// # Errors
    /// The process lacks privileges, there is no such interface, it is in use (unless `force`), has a program already or takes
    /// no redirected frames, or nobody answers.
    pub fn open(mut spec: TcpSendSpec) -> Result<Self> {
        host::require_privileges()?;
        bpf::read_types_ahead();
        let mut rtnl = Rtnl::open()?;
        let link = rtnl.link_by_name(&spec.flow.interface)?;
        if !spec.force {
            host::require_unused(&spec.flow.interface)?;
        }
        must_be_up(&link)?;
        let netns = NetNs::current()?;
        (spec.flow.ifindex, spec.flow.mtu) = (link.ifindex, link.mtu);
        let mut flow = TcpFlow::load(spec.flow.clone())?;
        let channels_before = readings::channels(link.ifindex);
        let attachment = Attachment::attach(flow.receive_fd(), link.ifindex, spec.mode)?;
        must_take_frames_as_it_is(&link)?;
        let watch = Watch {
            device: Interface { ifindex: LOOPBACK, netns: netns.inode() },
            xmit_to: Interface { ifindex: link.ifindex, netns: netns.inode() },
        };
        let observers = observers(watch);
        flow.connect(&Signals::pending)?;
        let link = rtnl.link_by_index(link.ifindex)?;
        let attached = Attached {
            interface: link.name.clone(),
            ifindex: link.ifindex,
            driver: readings::driver(&link.name),
            xdp_mode: attachment.mode(),
            program: "receive".into(),
            program_id: link.xdp.first().map_or(0, |attached| attached.prog_id),
            frags: bpf::takes_frags(),
            rx_queues: readings::rx_queues(&link, &channels_before),
            channels_after: readings::channels(link.ifindex),
            channels_before,
        };
        Ok(Self {
            spec,
            flow,
            attachment: Some(attachment),
            attached,
            observers,
            delivery: Reading::not_available("nothing was sent"),
            rtnl,
            link,
            netns,
            first: None,
            begun: Instant::now(),
            cost: None,
        })
    }

    fn frame_lengths(&self) -> FrameLengths {
        self.flow.frame_lengths(self.flow.payload_len().unwrap_or(0))
    }

    fn threads(&self) -> Vec<SendingThread> {
        vec![SendingThread { cpu: self.spec.flow.cpu, queue: None }]
    }

    fn accounts(&mut self) -> Result<Vec<Reading<Account>>> {
        let Some(first) = self.first.clone() else { return Ok(Vec::new()) };
        let interval = Interval::between(&first, &self.read()?, false, &super::WallClock::start(first.at));
        let counts = interval.tcp.map(|tcp| tcp.counts).unwrap_or_default();
        let xmit = interval.xmit.unwrap_or_else(|| Reading::not_available("not observed"));
        let errors = interval.redirect_errors.unwrap_or_else(|| Reading::not_available("not observed"));
        let to = format!("given to {}", self.link.name);
        let given = xmit.and_then(|xmit| errors.map(|errors| (xmit.total, errors.packets)));
        let by_program = given.as_ref().map(|(xmit, errors)| {
            let parts =
                [(to.as_str(), xmit.sent), ("not taken by its driver", xmit.drops), ("not redirected", *errors)];
            Account::new("segments sent", counts.segments, parts)
        });
        let delivered = self.delivery.as_ref().and_then(Delivery::counted);
        let by_receiver = given.and_then(|(xmit, _)| {
            delivered.map(|(counter, packets)| Account::new(&to, xmit.sent, [(counter.as_str(), packets)]))
        });
        let bytes = Account::new("payload bytes sent once", counts.fresh_bytes, [("acknowledged", counts.acked_bytes)]);
        Ok(vec![by_program, by_receiver, Reading::Known(bytes)])
    }

    fn limiter(&self, total: &Interval) -> Option<Reading<String>> {
        let counts = total.tcp?.counts;
        let gaps = total.sent.as_ref().and_then(|sent| sent.gaps);
        if self.flow.pace().zip(gaps).is_some_and(|(pace, gaps)| is_kept(pace, &gaps)) {
            return Some(Reading::Known("the rate asked for".into()));
        }
        let blocked = counts.blocked as f64 / (counts.blocked + counts.segments).max(1) as f64;
        Some(Reading::Known(if blocked < 0.05 {
            "the sending thread: its windows were seldom full".into()
        } else if counts.congestion_window < counts.window {
            format!("the congestion window after losses, full for {:.0} % of the frames made", blocked * 100.0)
        } else {
            format!("the peer's window, full for {:.0} % of the frames made", blocked * 100.0)
        }))
    }
}

impl Source for TcpSender {
    fn read(&mut self) -> Result<Counters> {
        let at = Instant::now();
        let counts = self.flow.counts()?;
        let sent = SentBy { packets: counts.segments, bytes: counts.segments * self.frame_lengths().l2 as u64 };
        let observers = self.observers.as_ref();
        let to = Interface { ifindex: self.link.ifindex, netns: self.netns.inode() };
        let from = Interface { ifindex: LOOPBACK, netns: self.netns.inode() };
        let xmit = observers.clone().and_then(|observers| {
            readings::xmit(observers, self.netns.inode(), |flow| flow.from == from && flow.to == to)
        });
        Ok(Counters {
            sent: Some(SentCounters { senders: vec![sent], gaps: self.flow.gaps()?, ..SentCounters::zero(at, 1) }),
            redirect_errors: Some(readings::named(|| observers.and_then(Observers::redirect_errors_per_cpu))),
            xmit: Some(xmit),
            tcp: Some(TcpReading { at, counts }),
            ..Counters::empty(at)
        })
    }

    fn check(&mut self) -> Result<()> {
        readings::check_there(&mut self.rtnl, &self.link)?;
        self.flow.check()
    }

    fn ended(&mut self) -> Result<Option<EndedBy>> {
        Ok(match self.flow.counts()?.closed {
            Some(Closed::Fin) => Some(EndedBy::PeerClosed),
            Some(Closed::Reset) => Some(EndedBy::PeerReset),
            None => self.flow.is_done()?.then_some(EndedBy::Count),
        })
    }

    fn judge(&mut self, interval: &Interval) -> Result<()> {
        let Some(tcp) = interval.tcp.filter(|_| !self.spec.keep_going) else { return Ok(()) };
        if self.flow.pace().is_some_and(|pace| pace.pps * tcp.period_s < f64::from(pace.burst) * 3.0) {
            return Ok(());
        }
        if tcp.counts.acked_bytes > 0 || tcp.period_s < SHORTEST_JUDGED || tcp.counts.closed.is_some() {
            return Ok(());
        }
        let TcpFlowCounts { segments, blocked, from_peer, window, .. } = tcp.counts;
        if segments + blocked == 0 && self.begun.elapsed() < THREAD_RUNS_WITHIN {
            return Ok(());
        }
        let mut why = refusals(interval);
        why.push(format!("{segments} segments were sent, {from_peer} came back, the peer's window is {window} bytes"));
        let what = format!("send to {}", self.spec.flow.to);
        let empty = format!("nothing was acknowledged in {:.1} s: {}", tcp.period_s, why.join("; "));
        Err(Error::invalid(what, empty).remedy("--keep-going goes on all the same"))
    }

    fn stop(&mut self) -> Result<()> {
        let role = format!("sending thread on CPU {}", self.spec.flow.cpu);
        if let Some(busy) = self.flow.stop()? {
            let segments = self.flow.counts()?.segments;
            self.cost = Some(Reading::Known(CpuCost::of(role, busy, self.begun.elapsed(), segments)));
        }
        Ok(())
    }
}

impl Sender for TcpSender {
    fn begin(&mut self) -> Result<Counters> {
        self.delivery = Delivery::of(&mut self.rtnl, &self.link);
        self.link = self.rtnl.link_by_index(self.link.ifindex)?;
        let first = self.read()?;
        self.first = Some(first.clone());
        self.begun = Instant::now();
        self.flow.start(&self.netns)?;
        Ok(first)
    }

    fn start(&self, started: String) -> Start {
        let tcp = self.flow.local().map(|from| TcpStart {
            from,
            to: self.spec.flow.to,
            payload: self.flow.payload_len().unwrap_or(0),
            cpu: self.spec.flow.cpu,
        });
        let mut notes = Vec::new();
        if let Reading::NotAvailable { why } = &self.observers {
            notes.push(format!("errors and transmitted segments are not counted: {why}"));
        }
        let lengths = self.frame_lengths();
        let sending = Sending {
            threads: self.threads(),
            shortest: lengths,
            longest: lengths,
            frames: 1,
            flows: 1,
            batch: self.spec.flow.batch,
            rate: self.spec.flow.rate,
            pace: self.flow.pace(),
            trial: Reading::Known("arrived and was answered: the handshake".into()),
            alone: None,
        };
        Start {
            attached: Some(self.attached.clone()),
            tcp,
            sending: Some(sending),
            notes,
            started,
            ..Start::of("trafficgen tcp")
        }
    }

    fn end(&mut self, total: Interval, ended_by: EndedBy) -> Result<End> {
        self.stop()?;
        let ledger = settled(ARRIVES_WITHIN, || self.accounts())?;
        let interface = readings::counted_since(&mut self.rtnl, &self.link);
        self.flow.close()?;
        self.attachment = None;
        let acked = total.tcp.map_or(0, |tcp| tcp.counts.acked_bytes);
        let ended_by = match &ended_by {
            EndedBy::Failed(_) | EndedBy::ImmediateExit | EndedBy::OutputClosed => ended_by,
            EndedBy::Signal(_) if total.period_s < SHORTEST_JUDGED => ended_by,
            _ if acked == 0 && !self.spec.keep_going => {
                EndedBy::Failed(format!("nothing was acknowledged before the end ({ended_by:?})"))
            }
            _ => ended_by,
        };
        let sending = SendingEnd {
            threads: self.threads(),
            asked: self.flow.pace().map(|pace| PacketsPerSec(pace.pps)),
            burst: self.flow.pace().map_or(1, |pace| pace.burst),
            scaling: None,
        };
        Ok(End {
            interface,
            limiter: self.limiter(&total),
            sending: Some(sending),
            cpus: self.cost.take().into_iter().collect(),
            ledger,
            ..End::new(total, ended_by)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_what_was_acknowledged_and_the_raw_rate_what_was_sent() {
        let start = Instant::now();
        let counts = |segments, acked_bytes| TcpFlowCounts {
            segments,
            bytes: segments * 1440,
            acked_bytes,
            window: 65_536,
            ..TcpFlowCounts::default()
        };
        let reading = |ms, counts| TcpReading { at: start + Duration::from_millis(ms), counts };
        let interval = TcpInterval::between(&reading(0, counts(100, 1000)), &reading(2000, counts(200, 121_000)));
        assert_eq!((interval.counts.segments, interval.counts.acked_bytes), (100, 120_000));
        assert_eq!((interval.raw_bps, interval.goodput_bps), (Some(576_000.0), Some(480_000.0)));
        assert_eq!(interval.counts.window, 65_536, "the windows are not differences");
        let json = serde_json::to_string(&interval).unwrap();
        assert_eq!(serde_json::from_str::<TcpInterval>(&json).unwrap(), interval);
    }
}
