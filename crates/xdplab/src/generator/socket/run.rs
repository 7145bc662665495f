//! The sending side: connects to a sink, sends, and brings both ends' reports together.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, setsockopt, socket, sockopt,
};

use super::control::{Answer, Control, Expected, Question, SCHEMA, unexpected};
use super::outcome::{Counts, EndReport, MachineClock, Outcome, TcpReport};
use super::sender::{Sender, refused};
use super::stream::{Ended, Progress, Worker, Workers, cpu_of, limit_waits};
use super::{End, Protocol, SocketSpec, Stop};
use crate::error::{Error, ErrorKind, Result};
use crate::generator::Rate;
use crate::generator::live::share;
use crate::netlink::{LinkStats, Rtnl};
use crate::packet::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, UDP_HEADER_LEN};
use crate::reading::Reading;
use crate::sys::socket::{Outgoing, TcpInfo, tcp_info};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How often waits look whether to end.
const STEP: u16 = 10;
/// How long the sink may take for its last report, beside what it waits for itself.
const REPORT: Duration = Duration::from_millis(500);
/// How long what was sent may take to be acknowledged at the end, where there is no sink.
const ACKNOWLEDGE: Duration = Duration::from_millis(60);
/// How often trial datagrams are sent.
const TRIALS: usize = 3;

/// Streams under way. Dropping it ends them.
pub struct SocketRun {
    spec: SocketSpec,
    to: SocketAddr,
    size: usize,
    control: Option<Control>,
    /// Connected, before they are sent over.
    sockets: Vec<OwnedFd>,
    cpus: Vec<usize>,
    workers: Workers,
    /// The kernel's account of each connection before the first byte (TCP).
    before: Vec<TcpInfo>,
    machine: MachineClock,
    /// The interface that datagrams leave by, and its counters before, where nobody else counts.
    interface: Option<(Rtnl, u32, LinkStats)>,
    /// What the sink has told last.
    received: Option<(u64, u64)>,
}

/// What is opened in the sender's network namespace.
struct Opened {
    control: Option<Control>,
    sockets: Vec<OwnedFd>,
    rtnl: Rtnl,
    size: usize,
    ifindex: u32,
}

impl SocketRun {
    /// Connects to the sink at `to`, and sees that UDP datagrams arrive. `stop` ends the wait for a connection.
    ///
    /// # Errors
    /// The spec asks for what can't be, nothing answers at `to`, datagrams do not arrive, or an option was refused.
    pub fn connect(end: &End<'_>, to: SocketAddr, spec: &SocketSpec, stop: Stop<'_>) -> Result<Self> {
        spec.check()?;
        let Opened { control, sockets, rtnl, size, ifindex } = end.netns.run(|| open(to, spec, stop))?;
        let tcp = spec.protocol == Protocol::Tcp;
        let before = sockets.iter().filter(|_| tcp).map(|socket| tcp_info(socket.as_fd())).collect::<Result<_>>()?;
        Ok(Self {
            spec: spec.clone(),
            to,
            size,
            control,
            sockets,
            cpus: end.cpus.to_vec(),
            workers: Workers::default(),
            before,
            machine: MachineClock::start(),
            interface: (!tcp && !spec.sink).then_some((rtnl, ifindex, LinkStats::default())),
            received: None,
        })
    }

    /// Begins to send.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(&mut self) -> Result<()> {
        if let Some((rtnl, ifindex, before)) = &mut self.interface {
            *before = rtnl.link_by_index(*ifindex)?.stats.unwrap_or_default();
        }
        self.machine = MachineClock::start();
        let sockets = std::mem::take(&mut self.sockets);
        self.send(sockets)
    }

    fn send(&mut self, sockets: Vec<OwnedFd>) -> Result<()> {
        let Self { spec, size, cpus, .. } = self;
        let begin = Arc::new(RwLock::new(()));
        // None begins before all are there, or before it is known that one can't be started.
        let _not_yet = begin.write();
        let (number, size) = (sockets.len(), *size);
        for (index, socket) in sockets.into_iter().enumerate() {
            limit_waits(&socket)?;
            let (socket, progress) = (Arc::new(socket), Arc::new(Progress::default()));
            let sender = Sender {
                socket: Arc::clone(&socket),
                progress: Arc::clone(&progress),
                stop: Arc::clone(&self.workers.stop),
                begin: Arc::clone(&begin),
                cpu: cpu_of(cpus, index),
                protocol: spec.protocol,
                size,
                batch: spec.batch,
                segments: spec.segments,
                duration: spec.duration,
                limit: units(spec, size).map(|units| share(units, number, index)),
                rate: spec.rate.map(|rate| units_per_second(rate, spec.protocol, size) / number as f64),
                zero_copy: spec.zero_copy,
            };
            let thread = thread::Builder::new()
                .name(format!("sender/{index}"))
                .spawn(move || sender.run())
                .map_err(|error| Error::io("start a sending thread", "clone", &error))?;
            self.workers.workers.push(Worker { socket, progress, thread: Some(thread) });
        }
        Ok(())
    }

    /// What was asked for, with the sizes that follow from it: bytes of a call (TCP), or of a datagram's payload (UDP).
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether a stream is still sending.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.workers.are_running()
    }

    /// What was counted so far. With `ask` the sink is asked for its part; what it said last stands until it answers.
    ///
    /// # Errors
    /// The kernel does not tell, or the sink is gone.
    pub fn counts(&mut self, ask: bool, stop: Stop<'_>) -> Result<Counts> {
        let mut counts =
            Counts { sent_bytes: self.workers.bytes(), sent_datagrams: self.workers.datagrams(), ..Counts::default() };
        let tcp = self.tcp_reports()?;
        counts.retransmits = tcp.iter().map(|tcp| u64::from(tcp.retransmits)).sum();
        if self.control.is_some() {
            if ask {
                self.ask_for_counts(stop)?;
            }
            let (bytes, datagrams) = self.received.unwrap_or_default();
            (counts.received_bytes, counts.received_datagrams) = (Some(bytes), Some(datagrams));
        } else if self.spec.protocol == Protocol::Tcp {
            counts.received_bytes = Some(tcp.iter().map(|tcp| tcp.acked_bytes).sum());
        }
        Ok(counts)
    }

    fn ask_for_counts(&mut self, stop: Stop<'_>) -> Result<()> {
        let Some(control) = &mut self.control else { return Ok(()) };
        control.say(&Question::Count)?;
        let deadline = Instant::now() + REPORT;
        match control.hear(|| Instant::now() < deadline && !stop()) {
            Ok(Some(Answer::Counted { bytes, datagrams })) => self.received = Some((bytes, datagrams)),
            Ok(Some(other)) => return Err(unexpected(&other)),
            Ok(None) => return Err(Error::invalid("count what arrives", "the sink is gone")),
            Err(error) if error.errno().is_some() => return Err(error),
            Err(_late) => {}
        }
        Ok(())
    }

    /// Waits until all is sent or `stop` is set, and tells how it went.
    ///
    /// # Errors
    /// A thread failed, or the sink did.
    pub fn wait(self, stop: Stop<'_>) -> Result<Outcome> {
        while self.is_running() && !stop() {
            thread::sleep(Duration::from_millis(1));
        }
        self.finish()
    }

    /// Ends the streams, asks the sink what came, and tells how it went.
    ///
    /// # Errors
    /// A thread failed, or the kernel does not tell.
    pub fn finish(mut self) -> Result<Outcome> {
        self.workers.stop();
        let mut ended = self.workers.join()?;
        let received = match self.report() {
            Some(report) => report.into(),
            None => Reading::not_available("there is no sink at the other end"),
        };
        self.account_for(&mut ended)?;
        let sent = EndReport::new(ended, &self.machine);
        let interface = self.interface.as_mut().map(|(rtnl, ifindex, before)| {
            let now = rtnl.link_by_index(*ifindex).map(|link| link.stats.unwrap_or_default());
            Reading::from(now).map(|now| LinkStats {
                tx_bytes: now.tx_bytes.saturating_sub(before.tx_bytes),
                tx_packets: now.tx_packets.saturating_sub(before.tx_packets),
                ..LinkStats::default()
            })
        });
        Ok(Outcome::new(self.spec.clone(), self.to, self.size, sent, received, interface))
    }

    /// The sink's report, if there is a sink.
    fn report(&mut self) -> Option<Result<EndReport>> {
        let control = self.control.as_mut()?;
        let mut ask = || -> Result<EndReport> {
            control.say(&Question::Finish)?;
            let deadline = Instant::now() + REPORT;
            loop {
                match control.hear(|| Instant::now() < deadline)? {
                    Some(Answer::Report(report)) => return Ok(report),
                    // A count that came too late for who asked.
                    Some(Answer::Counted { .. }) => {}
                    Some(other) => return Err(unexpected(&other)),
                    None => return Err(Error::invalid("ask the sink for its report", "it is gone")),
                }
            }
        };
        Some(ask())
    }

    /// Adds the kernel's account of each connection, once all that was sent is acknowledged or has had its time.
    fn account_for(&self, ended: &mut [Ended]) -> Result<()> {
        if self.spec.protocol == Protocol::Udp {
            return Ok(());
        }
        let deadline = Instant::now() + ACKNOWLEDGE;
        let mut reports = self.tcp_reports()?;
        let all_acked = |reports: &[TcpReport], ended: &[Ended]| {
            reports.iter().zip(ended).all(|(tcp, (report, _))| tcp.acked_bytes >= report.bytes)
        };
        while !all_acked(&reports, ended) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
            reports = self.tcp_reports()?;
        }
        for ((report, _), tcp) in ended.iter_mut().zip(reports) {
            report.tcp = Some(tcp);
        }
        Ok(())
    }

    fn tcp_reports(&self) -> Result<Vec<TcpReport>> {
        let workers = self.workers.workers.iter().zip(&self.before);
        let report = |(worker, before): (&Worker, &TcpInfo)| {
            let mut report = TcpReport::since(before, &tcp_info(worker.socket.as_fd())?);
            // The end of the stream is acknowledged like a byte.
            report.acked_bytes = report.acked_bytes.min(worker.progress.bytes());
            Ok(report)
        };
        workers.map(report).collect()
    }
}

/// Bytes (TCP) or datagrams (UDP) in all over the streams.
fn units(spec: &SocketSpec, size: usize) -> Option<u64> {
    match spec.protocol {
        Protocol::Tcp => spec.bytes,
        Protocol::Udp => spec.count.or_else(|| Some(spec.bytes?.div_ceil(size as u64))),
    }
}

/// Bytes (TCP) or datagrams of this size (UDP).
pub(crate) fn units_per_second(rate: Rate, protocol: Protocol, size: usize) -> f64 {
    match (rate, protocol) {
        (Rate::PacketsPerSec(packets), _) => packets,
        (Rate::BitsPerSec(bits), Protocol::Tcp) => bits / 8.0,
        (Rate::BitsPerSec(bits), Protocol::Udp) => bits / 8.0 / size as f64,
    }
}

/// Opens the control connection and the streams, in the calling thread's network namespace.
fn open(to: SocketAddr, spec: &SocketSpec, stop: Stop<'_>) -> Result<Opened> {
    let mut rtnl = Rtnl::open()?;
    let ifindex = match &spec.interface {
        Some(name) => rtnl.link_by_name(name)?.ifindex,
        None => rtnl.route_to(to.ip())?,
    };
    let size = size(spec, to.ip(), rtnl.link_by_index(ifindex)?.mtu)?;
    let spec = &SocketSpec { size: Some(size), ..spec.clone() };
    if !spec.sink {
        let sockets = (0..spec.streams).map(|_| connected(to, spec, stop)).collect::<Result<_>>()?;
        return Ok(Opened { control: None, sockets, rtnl, size, ifindex });
    }
    let without_options = SocketSpec { interface: spec.interface.clone(), ..SocketSpec::new(Protocol::Tcp) };
    let control = connected(to, &without_options, stop).map_err(|error| {
        unless_interrupted(error, "start xdplab trafficgen sink there, or give --no-sink to send to another server")
    })?;
    let mut control = Control::new(TcpStream::from(control))?;
    let streams = Expected::of(spec, size);
    let ports = match control.ask(&Question::Open { schema: SCHEMA.into(), streams }, stop)? {
        Answer::Ready { ports } if !ports.is_empty() => ports,
        other => return Err(unexpected(&other)),
    };
    let port = |stream: usize| SocketAddr::new(to.ip(), ports[stream % ports.len()]);
    let with_scope = |stream| match (to, port(stream)) {
        // Of a link-local address the interface is part.
        (SocketAddr::V6(to), SocketAddr::V6(mut port)) => {
            port.set_scope_id(to.scope_id());
            port.into()
        }
        (_, port) => port,
    };
    let sockets: Vec<OwnedFd> =
        (0..spec.streams).map(|stream| connected(with_scope(stream), spec, stop)).collect::<Result<_>>()?;
    if spec.protocol == Protocol::Udp {
        try_out(&mut control, &sockets, size, spec.segments, stop)?;
    }
    Ok(Opened { control: Some(control), sockets, rtnl, size, ifindex })
}

fn size(spec: &SocketSpec, to: IpAddr, mtu: u32) -> Result<usize> {
    let header = if to.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
    let size = match (spec.size, spec.protocol) {
        (Some(size), _) => size,
        (None, Protocol::Tcp) => SocketSpec::TCP_SIZE,
        (None, Protocol::Udp) => {
            (mtu as usize).saturating_sub(header + UDP_HEADER_LEN).clamp(1, SocketSpec::MAX_DATAGRAM)
        }
    };
    SocketSpec { size: Some(size), ..spec.clone() }.check()?;
    Ok(size)
}

/// Sends a datagram over each stream until the sink has one of each.
fn try_out(control: &mut Control, sockets: &[OwnedFd], size: usize, segments: usize, stop: Stop<'_>) -> Result<()> {
    let what = "send a trial datagram over each stream";
    let mut last = 0;
    for _ in 0..TRIALS {
        for socket in sockets {
            match Outgoing::new(vec![0; size], 1).send(socket.as_fd(), 1) {
                Ok(_) | Err(Errno::ECONNREFUSED | Errno::ENOBUFS) => {}
                Err(errno) => return Err(refused(size, segments, errno)),
            }
        }
        match control.ask(&Question::Try, stop)? {
            Answer::Tried { arrived } if arrived == sockets.len() => return Ok(()),
            Answer::Tried { arrived } => last = arrived,
            other => return Err(unexpected(&other)),
        }
    }
    let why = format!("{last} of {} arrived, though TCP to the same address gets through", sockets.len());
    Err(Error::invalid(what, why).remedy("a smaller --size, if the path does not take these; or a filter drops UDP"))
}

/// A socket connected to `to`, with the options that must be set before.
fn connected(to: SocketAddr, spec: &SocketSpec, stop: Stop<'_>) -> Result<OwnedFd> {
    let socket = open_socket(to, spec)?;
    connect_within(&socket, to, CONNECT, stop)?;
    Ok(socket)
}

/// A socket that can be connected to `to`, with the options of `spec`; its calls do not wait.
pub(in crate::generator) fn open_socket(to: SocketAddr, spec: &SocketSpec) -> Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = if spec.protocol == Protocol::Tcp { SockType::Stream } else { SockType::Datagram };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, kind, flags, None)
        .map_err(|errno| Error::syscall(format!("open a socket to {to}"), "socket", errno))?;
    set_options(&socket, spec)?;
    Ok(socket)
}

/// A remedy for an error, but not for the user's own signal.
pub(in crate::generator) fn unless_interrupted(error: Error, remedy: &str) -> Error {
    match error.kind() {
        ErrorKind::Interrupted => error,
        _ => error.remedy(remedy),
    }
}

/// Connects it, or gives up after `limit` or when `stop` is set. Its calls wait from then on.
pub(in crate::generator) fn connect_within(
    socket: &OwnedFd,
    to: SocketAddr,
    limit: Duration,
    stop: Stop<'_>,
) -> Result<()> {
    let what = || format!("connect to {to}");
    let failed = |errno| Error::syscall(what(), "connect", errno);
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) if await_connection(socket, limit, stop).map_err(failed)? => {}
        Err(Errno::EINPROGRESS) => return Err(Error::interrupted(what())),
        Err(errno) => return Err(failed(errno)),
    }
    fcntl(socket, FcntlArg::F_SETFL(OFlag::empty()))
        .map(drop)
        .map_err(|errno| Error::syscall(what(), "fcntl(F_SETFL)", errno))
}

/// Whether it was established; `false` if `stop` came before.
fn await_connection(socket: &OwnedFd, limit: Duration, stop: Stop<'_>) -> nix::Result<bool> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if stop() {
            return Ok(false);
        }
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, PollTimeout::from(STEP)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => {
                return match getsockopt(socket, sockopt::SocketError)? {
                    0 => Ok(true),
                    errno => Err(Errno::from_raw(errno)),
                };
            }
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ETIMEDOUT)
}

/// Whichever of the two the socket's family knows.
fn set_ttl(socket: &OwnedFd, ttl: u8) -> Result<()> {
    let ttl = ttl.into();
    let set = setsockopt(socket, sockopt::Ipv6Ttl, &ttl).or_else(|_v4| setsockopt(socket, sockopt::Ipv4Ttl, &ttl));
    set.map_err(|errno| Error::syscall(format!("send with a TTL of {ttl}"), "setsockopt(IP_TTL)", errno))
}

fn set_options(socket: &OwnedFd, spec: &SocketSpec) -> Result<()> {
    let failed = |what: String, call| move |errno| Error::syscall(what, call, errno);
    if let Some(name) = &spec.interface {
        setsockopt(socket, sockopt::BindToDevice, &name.into())
            .map_err(failed(format!("send out of {name} alone"), "setsockopt(SO_BINDTODEVICE)"))?;
    }
    if let Some(ttl) = spec.ttl {
        set_ttl(socket, ttl)?;
    }
    if let Some(bytes) = spec.send_buffer {
        setsockopt(socket, sockopt::SndBuf, &bytes)
            .map_err(failed(format!("send from {bytes} bytes"), "setsockopt(SO_SNDBUF)"))?;
    }
    if let Some(bytes) = spec.max_segment {
        setsockopt(socket, sockopt::TcpMaxSeg, &bytes)
            .map_err(failed(format!("make segments of {bytes} bytes at most"), "setsockopt(TCP_MAXSEG)"))?;
    }
    if let Some(name) = &spec.congestion {
        setsockopt(socket, sockopt::TcpCongestion, &name.into()).map_err(|errno| {
            failed(format!("use the congestion control {name}"), "setsockopt(TCP_CONGESTION)")(errno)
                .remedy("/proc/sys/net/ipv4/tcp_available_congestion_control tells which there are")
        })?;
    }
    if spec.no_delay {
        setsockopt(socket, sockopt::TcpNoDelay, &true)
            .map_err(failed("send small segments at once".into(), "setsockopt(TCP_NODELAY)"))?;
    }
    if spec.segments > 1 {
        let size = i32::try_from(spec.size.unwrap_or(0)).unwrap_or(0);
        setsockopt(socket, sockopt::UdpGsoSegment, &size)
            .map_err(failed("let the kernel make datagrams of a message".into(), "setsockopt(UDP_SEGMENT)"))?;
    }
    Ok(())
}
