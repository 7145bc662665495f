//! Traffic between plain sockets: TCP streams in bulk, and UDP in batches, with what arrived told by who received it.
//!
//! A [`Sink`] receives; a [`SocketRun`] connects to it, sends, and asks it at the end what came. [`between`] does both in one
//! process. Each stream is one connection (or UDP socket), sent by a thread of its own and received by a thread of its own.
//! Sender and sink talk over a TCP connection that is silent but for one question an interval.

mod control;
mod outcome;
mod pace;
mod receiver;
mod run;
mod sender;
mod sink;
mod stream;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use outcome::{Counts, EndReport, Ledger, MachineTime, Outcome, StreamReport, TcpReport};
pub use run::SocketRun;
pub(crate) use run::units_per_second;
pub(super) use run::{connect_within, open_socket, unless_interrupted};
pub use sink::{Session, Sink, SinkSpec};

use super::Rate;
use crate::error::{Error, Result};
use crate::topology::NetNs;

/// The port on which a sink waits, the one that `xdp-trafficgen tcp` connects to if no other is given.
pub const DEFAULT_PORT: u16 = 10_000;

/// What runs between the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Streams of bytes, each sent as fast as the connection takes them.
    Tcp,
    /// Datagrams, many in a call.
    Udp,
}

/// What to send and until when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own on the command line")]
pub struct SocketSpec {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Connections, or UDP sockets.
    pub streams: usize,
    /// Sends no longer than this.
    pub duration: Option<Duration>,
    /// Payload bytes in all over the streams; with UDP, rounded up to whole datagrams.
    pub bytes: Option<u64>,
    /// Datagrams in all over the streams.
    pub count: Option<u64>,
    /// No faster than this, over all streams; `None`: as fast as it goes. Bits are those of the payload.
    pub rate: Option<Rate>,
    /// Bytes of a call (TCP), or of a datagram's payload (UDP). `None`: 128 KiB, or what the MTU of the interface takes.
    pub size: Option<usize>,
    /// Messages of a sendmmsg(2) call (UDP).
    pub batch: usize,
    /// Datagrams that the kernel or the device makes of a message (`UDP_SEGMENT`, Linux 4.18 and later); 1 for none (UDP).
    pub segments: usize,
    /// The receiver takes datagrams of a flow together (`UDP_GRO`, Linux 5.0 and later).
    pub gro: bool,
    /// The receiver's application does not copy what it receives (`MSG_TRUNC`; TCP).
    pub discard: bool,
    /// The largest segment in bytes (`TCP_MAXSEG`; TCP).
    pub max_segment: Option<u32>,
    /// The congestion control (`TCP_CONGESTION`; TCP).
    pub congestion: Option<String>,
    /// Sends small segments at once (`TCP_NODELAY`; TCP).
    pub no_delay: bool,
    /// Bytes of a sender's socket buffer (`SO_SNDBUF`, which the kernel doubles and limits); `None`: as the kernel sees fit.
    pub send_buffer: Option<usize>,
    /// The same of a receiver's (`SO_RCVBUF`).
    pub receive_buffer: Option<usize>,
    /// Sends out of this interface alone (`SO_BINDTODEVICE`).
    pub interface: Option<String>,
    /// Time to live or hop limit (`IP_TTL`, `IPV6_UNICAST_HOPS`); `None`: as the kernel has it.
    #[serde(default)]
    pub ttl: Option<u8>,
    /// The sender's application hands over pages of a file instead of copying bytes (sendfile(2); TCP).
    #[serde(default)]
    pub zero_copy: bool,
    /// There is a sink at the other end. Without one, TCP goes to any server that reads and UDP to wherever; what arrived
    /// is then what the peer's kernel has acknowledged (TCP), or not known (UDP).
    pub sink: bool,
}

/// Who plays one part: in which network namespace, on which CPUs.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Sockets are opened here.
    pub netns: &'a NetNs,
    /// The thread of the n-th stream runs on the n-th of these, in turn; on any where there are none.
    pub cpus: &'a [usize],
}

impl SocketSpec {
    /// Bytes of a TCP call, as iperf3 has it.
    pub const TCP_SIZE: usize = 128 << 10;
    /// Messages of a UDP call.
    pub const BATCH: usize = 64;
    /// The most segments of one message (`UDP_MAX_SEGMENTS`, include/linux/udp.h, before Linux 6.9).
    pub const MAX_SEGMENTS: usize = 64;
    /// The most streams.
    pub const MAX_STREAMS: usize = 128;
    /// The most payload bytes of an IPv4 datagram: 65,535 less the headers.
    const MAX_DATAGRAM: usize = 65_507;

    /// One stream, as fast as it goes, until it is stopped.
    #[must_use]
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            streams: 1,
            duration: None,
            bytes: None,
            count: None,
            rate: None,
            size: None,
            batch: Self::BATCH,
            segments: 1,
            gro: false,
            discard: false,
            max_segment: None,
            congestion: None,
            no_delay: false,
            send_buffer: None,
            receive_buffer: None,
            interface: None,
            ttl: None,
            zero_copy: false,
            sink: true,
        }
    }

    /// Refuses what no socket can do, and what would have no effect.
    fn check(&self) -> Result<()> {
        let refuse = |why: &str, remedy: &str| Err(Error::usage("send", why).remedy(remedy));
        let udp = self.protocol == Protocol::Udp;
        if !(1..=Self::MAX_STREAMS).contains(&self.streams) {
            return refuse(&format!("{} streams", self.streams), &format!("ask for 1 to {}", Self::MAX_STREAMS));
        }
        let of_tcp = self.discard || self.no_delay || self.zero_copy;
        if udp && (of_tcp || self.max_segment.is_some() || self.congestion.is_some()) {
            return refuse("an option of TCP was given with UDP", "leave it out");
        }
        if !udp && (self.segments != 1 || self.gro || self.batch != Self::BATCH || self.count.is_some()) {
            return refuse("an option of UDP was given with TCP", "leave it out, or add --udp");
        }
        if matches!(self.rate, Some(Rate::PacketsPerSec(_))) && !udp {
            return refuse("TCP makes segments as it likes, so that it has no rate in packets", "give a rate in bits");
        }
        if self.bytes.is_some() && self.count.is_some() {
            return refuse("both a number of bytes and one of datagrams was given", "give one of them");
        }
        if !(1..=1024).contains(&self.batch) {
            return refuse(&format!("a batch of {}", self.batch), "ask for 1 to 1024 messages");
        }
        if !(1..=Self::MAX_SEGMENTS).contains(&self.segments) {
            return refuse(&format!("{} segments", self.segments), &format!("ask for 1 to {}", Self::MAX_SEGMENTS));
        }
        match self.size {
            Some(0) => refuse("0 bytes", "ask for 1 or more"),
            Some(size) if udp && size * self.segments > Self::MAX_DATAGRAM => refuse(
                &format!("{} bytes in a message", size * self.segments),
                &format!("ask for {} or less, all its segments together", Self::MAX_DATAGRAM),
            ),
            Some(size) if size > 64 << 20 => refuse(&format!("{size} bytes in a call"), "ask for 64 MiB or less"),
            _ => Ok(()),
        }
    }
}

/// Runs streams from one end to a sink at the other, in this process, and tells how they went. `address` is the receiver's;
/// the control connection takes the same way. `stop` ends it early.
///
/// # Errors
/// A namespace can't be entered, the receiver can't be reached, or an option was refused.
pub fn between(
    sender: &End<'_>,
    receiver: &End<'_>,
    address: IpAddr,
    spec: &SocketSpec,
    stop: Stop<'_>,
) -> Result<Outcome> {
    let any_port = SocketAddr::new(address, 0);
    let sink = Sink::start(receiver.netns, &SinkSpec { address: any_port, cpus: receiver.cpus.to_vec() })?;
    let mut run = SocketRun::connect(sender, sink.address(), spec, stop)?;
    run.start()?;
    run.wait(stop)
}

/// Whether to end before the time.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// How many there were of each error, by errno name.
type Errors = BTreeMap<String, u64>;

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp() -> SocketSpec {
        SocketSpec::new(Protocol::Tcp)
    }

    fn udp() -> SocketSpec {
        SocketSpec::new(Protocol::Udp)
    }

    #[test]
    fn what_no_socket_can_do_is_refused_with_a_remedy() {
        tcp().check().unwrap();
        udp().check().unwrap();
        let bad = [
            (SocketSpec { streams: 0, ..tcp() }, "0 streams"),
            (SocketSpec { streams: 129, ..tcp() }, "129 streams"),
            (SocketSpec { discard: true, ..udp() }, "an option of TCP"),
            (SocketSpec { congestion: Some("reno".into()), ..udp() }, "an option of TCP"),
            (SocketSpec { zero_copy: true, ..udp() }, "an option of TCP"),
            (SocketSpec { gro: true, ..tcp() }, "an option of UDP"),
            (SocketSpec { count: Some(1), ..tcp() }, "an option of UDP"),
            (SocketSpec { rate: Some(Rate::PacketsPerSec(1.0)), ..tcp() }, "no rate in packets"),
            (SocketSpec { bytes: Some(1), count: Some(1), ..udp() }, "both"),
            (SocketSpec { batch: 0, ..udp() }, "a batch of 0"),
            (SocketSpec { segments: 65, ..udp() }, "65 segments"),
            (SocketSpec { size: Some(0), ..tcp() }, "0 bytes"),
            (SocketSpec { size: Some(1472), segments: 45, ..udp() }, "66240 bytes in a message"),
            (SocketSpec { size: Some(65 << 20), ..tcp() }, "in a call"),
        ];
        for (spec, word) in bad {
            let error = spec.check().unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("; "), "{error}");
        }
        let largest = SocketSpec { size: Some(1472), segments: 44, ..udp() };
        largest.check().unwrap();
    }
}
