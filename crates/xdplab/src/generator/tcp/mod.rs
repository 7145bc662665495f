//! One TCP flow whose segments are made in the kernel (`bpf/tcp.bpf.c`): a socket makes the connection, then live frames take
//! the place of what it would send, and a program on the interface takes the acknowledgements. Linux 5.18 and later.
//!
//! There is retransmission (after three duplicate acknowledgements, or 200 ms without one, from there on) and a congestion
//! window (RFC 5681), both simple: the peer's stack is what is to be loaded.

mod segment;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::Xdp;
use nix::sys::socket::{SockaddrStorage, bind, getsockname};
use serde::{Deserialize, Serialize};

use self::segment::{ACK, FIN, RST, Template};
use super::live::{Counter, Job};
use super::socket::{Protocol, SocketSpec, Stop, connect_within, open_socket, unless_interrupted};
use super::trafficgen::GapMap;
use super::{GapCounts, LiveFrames, Pace, Rate, TrafficSpec};
use crate::bpf;
use crate::error::{Error, Result};
use crate::packet::{ETHERNET_HEADER_LEN, FCS_LEN, FrameLengths, MacAddr};
use crate::sys::bpf::run_live_frames;
use crate::sys::socket::{TcpInfo, tcp_info};
use crate::topology::NetNs;

/// Members of the programs' maps, as 64-bit words (`bpf/tcp.bpf.c`).
const PLAN: usize = 14 + HEADER_WORDS;
const ACKS: usize = 17;
const SENDS: usize = 14;
/// Words of a frame that are written anew each time.
const HEADER_WORDS: usize = 10;
/// Bytes that the timestamp option takes away from a segment, with padding (RFC 7323, appendix A).
const TIMESTAMPS_LEN: u32 = 12;
/// A live frame is in one page together with the kernel's own data (net/bpf/test_run.c), some 800 bytes.
const LONGEST_FRAME: usize = 3200;
/// So that the words written anew are part of each frame.
const SHORTEST_PAYLOAD: usize = 32;
/// The congestion window at the beginning, in segments (RFC 6928).
const INITIAL_WINDOW: u64 = 10;
/// How long the last acknowledgements may take, and that of the end.
const LAST_ACKS: Duration = Duration::from_millis(40);
const FIN_ACK: Duration = Duration::from_millis(30);

/// What to send, and to whom.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpFlowSpec {
    /// The peer.
    pub to: SocketAddr,
    /// The interface that the connection is bound to, and segments leave by.
    pub interface: String,
    /// Its number.
    pub ifindex: u32,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The CPU that sends.
    pub cpu: usize,
    /// Live frames that the kernel makes at once, 1 to 256.
    pub batch: u32,
    /// Segments to send in all, those sent again among them.
    pub count: Option<u64>,
    /// Payload bytes to deliver, rounded up to whole segments.
    pub bytes: Option<u64>,
    /// Payload bytes of a segment; `None`: as many as the peer, the MTU and a page take.
    pub payload: Option<usize>,
    /// No faster than this; `None`: as fast as the windows allow. Bits are those on the wire, FCS counted.
    pub rate: Option<Rate>,
    /// Segments that leave back to back where there is a rate.
    pub burst: Option<u32>,
    /// Time to live or hop limit, of the handshake too.
    pub ttl: u8,
    /// How long the handshake may take.
    pub timeout: Duration,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpFlowCounts {
    /// Segments handed to the redirect, those sent again among them.
    pub segments: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Times that nothing was acknowledged for 200 ms.
    pub timeouts: u64,
    /// Losses taken from three duplicate acknowledgements.
    pub losses: u64,
    /// Payload bytes sent, each once.
    pub fresh_bytes: u64,
    /// Payload bytes that the peer has acknowledged: goodput.
    pub acked_bytes: u64,
    /// Segments that came from the peer.
    pub from_peer: u64,
    /// Acknowledgements of nothing new among them.
    pub duplicate_acks: u64,
    /// Frames that were made and not sent, since the peer's window or the congestion window was full.
    pub blocked: u64,
    /// The window that the peer has announced last, in bytes.
    pub window: u64,
    /// The congestion window in bytes.
    pub congestion_window: u64,
    /// How the peer has ended the connection, if it has.
    pub closed: Option<Closed>,
}

/// How a peer ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Closed {
    /// It has closed it (FIN).
    Fin,
    /// It has reset it (RST).
    Reset,
}

/// The programs of a flow, and later its connection.
pub struct TcpFlow {
    spec: TcpFlowSpec,
    /// Goes to the thread that sends.
    object: Option<Ebpf>,
    receive: OwnedFd,
    plan: Array<MapData, [u64; PLAN]>,
    acks: Array<MapData, [u64; ACKS]>,
    sends: Array<MapData, [u64; SENDS]>,
    gaps: GapMap,
    pace: Option<Pace>,
    connection: Option<Connection>,
    frames: Option<LiveFrames>,
}

/// An established connection.
struct Connection {
    /// Kept open so that nobody else gets its port; it sends and receives nothing any more.
    _socket: OwnedFd,
    local: SocketAddr,
    payload: usize,
    /// A segment with sequence numbers of 0 and its checksum left out.
    template: Template,
}

impl TcpFlow {
    /// Loads the programs. The caller attaches [`TcpFlow::receive_fd`] to the interface before it connects.
    ///
    /// # Errors
    /// The kernel refused them.
    pub fn load(spec: TcpFlowSpec) -> Result<Self> {
        if spec.payload.is_some_and(|payload| !(SHORTEST_PAYLOAD..=LONGEST_FRAME).contains(&payload)) {
            let why = format!("{} bytes of payload", spec.payload.unwrap_or(0));
            return Err(Error::usage("make segments", why)
                .remedy(format!("ask for {SHORTEST_PAYLOAD} to what the MTU and a page take")));
        }
        let globals = [("target_ifindex", spec.ifindex)].into();
        let mut object = bpf::load(bpf::TCP, &bpf::Object { globals, ..bpf::Object::default() })?;
        bpf::program(&mut object, "send")?;
        let receive = duplicate(bpf::program(&mut object, "receive")?)?;
        Ok(Self {
            plan: bpf::take_map(&mut object, "plan_map")?,
            acks: bpf::take_map(&mut object, "acks_map")?,
            sends: bpf::take_map(&mut object, "sends_map")?,
            gaps: bpf::take_map(&mut object, "gaps").map(GapMap)?,
            pace: None,
            spec,
            object: Some(object),
            receive,
            connection: None,
            frames: None,
        })
    }

    /// The program that takes acknowledgements; before the connection is made, and for all other packets, it passes.
    #[must_use]
    pub fn receive_fd(&self) -> BorrowedFd<'_> {
        self.receive.as_fd()
    }

    /// Makes the connection by a socket in the calling thread's network namespace, and takes it over. `stop` ends the wait.
    ///
    /// # Errors
    /// Nobody answers, or the answer does not come in by the interface.
    pub fn connect(&mut self, stop: Stop<'_>) -> Result<()> {
        let spec = self.spec.clone();
        let what = || format!("connect to {} out of {}", spec.to, spec.interface);
        let options = SocketSpec {
            interface: Some(self.spec.interface.clone()),
            ttl: Some(self.spec.ttl),
            ..SocketSpec::new(Protocol::Tcp)
        };
        let socket = open_socket(self.spec.to, &options)?;
        let any: SocketAddr = if self.spec.to.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        bind(socket_number(&socket), &SockaddrStorage::from(any))
            .map_err(|errno| Error::syscall(what(), "bind", errno))?;
        let mut plan = watch(self.spec.to, local_address(&socket)?.port());
        self.set_plan(plan)?;
        connect_within(&socket, self.spec.to, self.spec.timeout, stop).map_err(|error| {
            let remedy = "is there a server? xdplab trafficgen sink is one; -t gives it more time";
            unless_interrupted(error.concerning(what()), remedy)
        })?;
        let (local, info) = (local_address(&socket)?, tcp_info(socket.as_fd())?);
        let mut acks = self.acks()?;
        if acks[0] == 0 {
            let why = format!("its answer did not come in by {}", self.spec.interface);
            return Err(Error::invalid(what(), why).remedy("choose the interface that the route to it leads out of"));
        }
        let payload = self.payload(&info)?;
        let ttl = self.spec.ttl;
        let template = Template { peer_mac: mac(acks[3]), own_mac: mac(acks[4]), local, to: self.spec.to, ttl };
        self.pace = self.schedule(payload)?;
        (acks[7], acks[14], acks[15]) = (info.snd_wnd.into(), INITIAL_WINDOW * payload as u64, u64::MAX);
        acks[13] = acks[1];
        self.acks.set(0, acks, 0).map_err(|error| bpf::map_error("set the flow's windows", &error))?;
        let mut sends = [0; SENDS];
        (sends[5], sends[6], sends[8]) = (acks[1], acks[1], acks[1]);
        self.sends.set(0, sends, 0).map_err(|error| bpf::map_error("set the flow's sequence numbers", &error))?;
        let frame = template.frame(payload, 0, 0, ACK);
        let gap = self.pace.map(|pace| pace.gap(1));
        plan[5..14].copy_from_slice(&[
            template.tcp_offset() as u64,
            payload as u64,
            template.partial_sum(&frame),
            info.snd_wscale.into(),
            self.spec.count.unwrap_or(0),
            self.spec.bytes.unwrap_or(0),
            self.pace.map_or(0, |pace| pace.burst.into()),
            gap.map_or(0, |gap| gap.ns),
            gap.map_or(0, |gap| gap.fraction.into()),
        ]);
        for (word, bytes) in plan[14..].iter_mut().zip(frame.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        plan[4] = 1;
        self.set_plan(plan)?;
        self.connection = Some(Connection { _socket: socket, local, payload, template });
        Ok(())
    }

    /// Begins to send, from a thread in `netns`.
    ///
    /// # Errors
    /// There is no connection, or the thread could not be started or pinned.
    pub fn start(&mut self, netns: &NetNs) -> Result<()> {
        let what = "send segments";
        let none = || Error::invalid(what, "there is no connection");
        let (connection, mut object) =
            (self.connection.as_ref().ok_or_else(none)?, self.object.take().ok_or_else(none)?);
        let job = Job {
            program: "send",
            frame: &connection.template.frame(connection.payload, 0, 0, ACK),
            cpus: &[self.spec.cpu],
            batch: self.pace.map_or(self.spec.batch, |pace| pace.burst.min(TrafficSpec::MAX_BATCH)),
            // What is left is told by the programs; they make frames all the time, and send those that they may.
            count: None,
            packets_per_call: u32::MAX.into(),
            paced: true,
        };
        let counter = Counter::PerCpu(bpf::take_map(&mut object, "packets")?);
        let mut loaded = Some((object, counter));
        let mut frames = LiveFrames::launch(&job, netns, |_thread| loaded.take().ok_or_else(none))?;
        frames.go();
        self.frames = Some(frames);
        Ok(())
    }

    /// Our end of the connection.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.connection.as_ref().map(|connection| connection.local)
    }

    /// Payload bytes of a segment, once connected.
    #[must_use]
    pub fn payload_len(&self) -> Option<usize> {
        self.connection.as_ref().map(|connection| connection.payload)
    }

    /// Lengths of a frame with so much payload.
    #[must_use]
    pub fn frame_lengths(&self, payload: usize) -> FrameLengths {
        let l2 = Template::headers_len(self.spec.to) + payload;
        FrameLengths { payload, l2, wire: l2 + FCS_LEN }
    }

    /// When segments leave, once connected; `None`: as fast as the windows allow.
    #[must_use]
    pub fn pace(&self) -> Option<Pace> {
        self.pace
    }

    /// Gaps between scheduled departures; `None` without a schedule.
    ///
    /// # Errors
    /// The map can't be read.
    pub fn gaps(&self) -> Result<Option<GapCounts>> {
        self.pace.map(|_| self.gaps.read()).transpose()
    }

    fn schedule(&self, payload: usize) -> Result<Option<Pace>> {
        let TcpFlowSpec { rate, burst, .. } = self.spec;
        let pps = rate.map(|rate| rate.pps(self.frame_lengths(payload).wire as f64));
        pps.map(|pps| Pace::new(pps, 1, burst, Pace::LIVE_FRAMES_SINGLY)).transpose()
    }

    /// Succeeds as long as segments are made.
    ///
    /// # Errors
    /// Why the thread has ended.
    pub fn check(&mut self) -> Result<()> {
        match &mut self.frames {
            Some(frames) if !frames.is_running() => {
                frames.end()?;
                Err(Error::invalid("send segments", "the sending thread has ended"))
            }
            _ => Ok(()),
        }
    }

    /// What was counted so far.
    ///
    /// # Errors
    /// A map can't be read.
    pub fn counts(&self) -> Result<TcpFlowCounts> {
        let (acks, sends) = (self.acks()?, self.sends()?);
        let payload = self.payload_len().unwrap_or(0) as u64;
        Ok(TcpFlowCounts {
            segments: sends[0],
            bytes: sends[0] * payload,
            fresh_bytes: sends[1],
            retransmits: sends[2],
            timeouts: sends[3],
            blocked: sends[4],
            losses: acks[12],
            acked_bytes: acks[8],
            from_peer: acks[9],
            duplicate_acks: acks[10],
            window: acks[7],
            congestion_window: acks[14],
            closed: match acks[16] {
                0 => None,
                1 => Some(Closed::Fin),
                _ => Some(Closed::Reset),
            },
        })
    }

    /// Whether there is something left to send, or to be acknowledged.
    ///
    /// # Errors
    /// A map can't be read.
    pub fn is_done(&self) -> Result<bool> {
        let counts = self.counts()?;
        let all_sent = self.spec.count.is_some_and(|count| counts.segments >= count);
        let all_acked = self.spec.bytes.is_some_and(|bytes| counts.acked_bytes >= bytes);
        Ok(counts.closed.is_some() || all_sent || all_acked)
    }

    /// Ends the sending, waits for the last acknowledgements, and tells how long the thread ran.
    ///
    /// # Errors
    /// The thread failed, or a map can't be read.
    pub fn stop(&mut self) -> Result<Option<Duration>> {
        let Some(mut frames) = self.frames.take() else { return Ok(None) };
        frames.end()?;
        self.wait_until(LAST_ACKS, |flow| Ok(flow.sends()?[6] == flow.acks()?[5] || flow.counts()?.closed.is_some()))?;
        Ok(frames.cpu_times().first().copied())
    }

    /// Says to the peer that nothing more comes (FIN), then that the connection is gone (RST), unless it was the peer who reset
    /// it. To be called in the network namespace of the interface, after [`TcpFlow::stop`].
    ///
    /// # Errors
    /// The kernel sends no frame, or a map can't be read.
    pub fn close(&mut self) -> Result<()> {
        let reset = self.counts()?.closed == Some(Closed::Reset);
        if !reset {
            self.say_goodbye()?;
        }
        self.connection = None;
        Ok(())
    }

    /// After the last byte that is acknowledged: what was sent beyond it and got lost is not sent again.
    fn say_goodbye(&self) -> Result<()> {
        let Some(Connection { template, .. }) = &self.connection else { return Ok(()) };
        let mut sender = bpf::load(
            bpf::GENERATOR,
            &bpf::Object { globals: [("target_ifindex", self.spec.ifindex)].into(), ..bpf::Object::default() },
        )?;
        let sender = duplicate(bpf::program(&mut sender, "send")?)?;
        let say = |seq: u32, flags: u8| -> Result<()> {
            let frame = template.frame(0, seq, self.acks()?[2] as u32, flags);
            run_live_frames(sender.as_fd(), &frame, 1, "end the connection").map(drop)
        };
        let acked = self.acks()?[5] as u32;
        say(acked, FIN | ACK)?;
        let after_fin = acked.wrapping_add(1);
        self.wait_until(FIN_ACK, |flow| Ok(flow.acks()?[6] as u32 == after_fin))?;
        let last = self.acks()?[6] as u32;
        say(if last == after_fin { after_fin } else { acked }, RST | ACK)
    }

    fn wait_until(&self, limit: Duration, condition: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !condition(self)? && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn payload(&self, info: &TcpInfo) -> Result<usize> {
        let headers = Template::headers_len(self.spec.to);
        let timestamps = if info.timestamps { TIMESTAMPS_LEN } else { 0 };
        // Our segments have no options.
        let most = (info.snd_mss + timestamps) as usize;
        let most = most.min((self.spec.mtu as usize + ETHERNET_HEADER_LEN).min(LONGEST_FRAME).saturating_sub(headers));
        match self.spec.payload {
            Some(payload) if payload > most => {
                let why = format!(
                    "{payload} bytes of payload are more than the {most} that the peer, the MTU and a page take"
                );
                Err(Error::usage("make segments", why).remedy("a smaller --size, or a larger MTU at both ends"))
            }
            Some(payload) => Ok(payload),
            None => Ok(most),
        }
    }

    fn set_plan(&mut self, plan: [u64; PLAN]) -> Result<()> {
        self.plan.set(0, plan, 0).map_err(|error| bpf::map_error("tell the flow's programs what to do", &error))
    }

    fn acks(&self) -> Result<[u64; ACKS]> {
        self.acks.get(&0, 0).map_err(|error| bpf::map_error("read what was acknowledged", &error))
    }

    fn sends(&self) -> Result<[u64; SENDS]> {
        self.sends.get(&0, 0).map_err(|error| bpf::map_error("read what was sent", &error))
    }
}

fn duplicate(program: &Xdp) -> Result<OwnedFd> {
    let what = "hold a program once more";
    let fd = program.fd().map_err(|error| Error::invalid(what, error.to_string()))?;
    fd.as_fd().try_clone_to_owned().map_err(|error| Error::io(what, "fcntl(F_DUPFD_CLOEXEC)", &error))
}

fn socket_number(socket: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd as _;
    socket.as_raw_fd()
}

fn local_address(socket: &OwnedFd) -> Result<SocketAddr> {
    let what = "read the connection's own address";
    let address: SockaddrStorage =
        getsockname(socket_number(socket)).map_err(|errno| Error::syscall(what, "getsockname", errno))?;
    let v4 = address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    let v6 = || address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into()));
    v4.or_else(v6).ok_or_else(|| Error::invalid(what, "it is of another family"))
}

/// What the receiving program is to look for before there is a connection.
fn watch(peer: SocketAddr, local_port: u16) -> [u64; PLAN] {
    let mut plan = [0; PLAN];
    let (ether_type, mut address) = match peer {
        SocketAddr::V4(peer) => (0x0800_u16, peer.ip().octets().to_vec()),
        SocketAddr::V6(peer) => (0x86dd, peer.ip().octets().to_vec()),
    };
    address.resize(16, 0);
    plan[0] = u16::from_ne_bytes(ether_type.to_be_bytes()).into();
    for (word, bytes) in plan[1..3].iter_mut().zip(address.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let [a, b, c, d] = [peer.port().to_be_bytes(), local_port.to_be_bytes()].concat()[..] else { return plan };
    plan[3] = u32::from_ne_bytes([a, b, c, d]).into();
    plan
}

fn mac(word: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = word.to_ne_bytes();
    MacAddr([a, b, c, d, e, f]).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_look_for_the_peer_s_frames_as_they_stand_on_the_wire() {
        let plan = watch("198.18.0.2:10000".parse().unwrap(), 40_000);
        assert_eq!(plan[0], u64::from(u16::from_ne_bytes([0x08, 0x00])));
        assert_eq!(plan[1].to_ne_bytes()[..4], [198, 18, 0, 2]);
        assert_eq!((plan[3] as u32).to_ne_bytes(), [0x27, 0x10, 0x9c, 0x40]);
        let plan = watch("[2001:2::2]:10000".parse().unwrap(), 40_000);
        assert_eq!(plan[0], u64::from(u16::from_ne_bytes([0x86, 0xdd])));
        assert_eq!(plan[2].to_ne_bytes(), [0, 0, 0, 0, 0, 0, 0, 2]);
    }
}
