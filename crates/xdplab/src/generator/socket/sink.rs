//! The receiving side: a server that takes sessions of senders, and bare streams of anybody.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use super::control::{Answer, Control, Expected, Question, SCHEMA};
use super::outcome::{EndReport, MachineClock};
use super::receiver::{DRAIN, Receiver};
use super::stream::{Progress, Worker, Workers, cpu_of, limit_waits};
use super::{Protocol, SocketSpec};
use crate::error::{Error, Result};
use crate::sys::affinity::Pinned;
use crate::topology::NetNs;

/// How often a thread that waits looks whether to end.
const STEP: Duration = Duration::from_millis(20);
/// How long the connections of a session may take to come, and its trial datagrams.
const CONNECTIONS: Duration = Duration::from_secs(3);
const TRIAL: Duration = Duration::from_millis(300);

/// Where to wait for senders, and on which CPUs to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkSpec {
    /// Address and port; port 0 is any that is free.
    pub address: SocketAddr,
    /// The thread of a session's n-th stream runs on the n-th of these, in turn; on any where there are none.
    pub cpus: Vec<usize>,
}

/// What came in one session, or in a bare stream.
#[derive(Debug)]
pub struct Session {
    /// Who sent it.
    pub from: SocketAddr,
    /// Whether it is a stream without a session: of `xdplab trafficgen tcp`, or of any other sender.
    pub bare: bool,
    /// What was received, or why nothing was.
    pub report: Result<EndReport>,
}

/// A server that receives. Dropping it ends it and its sessions.
#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
    sessions: mpsc::Receiver<Session>,
}

impl Sink {
    /// Begins to wait for senders in `netns`.
    ///
    /// # Errors
    /// The namespace can't be entered, the address is not to be had there, or a CPU is not there.
    pub fn start(netns: &NetNs, spec: &SinkSpec) -> Result<Self> {
        let what = || format!("wait for senders at {}", spec.address);
        let io =
            |call| move |error: std::io::Error| Error::io(what(), call, &error).remedy("choose another with --port");
        // A thread that can't run there would leave its sender waiting.
        spec.cpus.iter().try_for_each(|cpu| Pinned::to(*cpu).map(drop))?;
        let listener = netns.run(|| TcpListener::bind(spec.address).map_err(io("bind")))?;
        let address = listener.local_addr().map_err(io("getsockname"))?;
        let listener = OwnedFd::from(listener);
        limit_waits(&listener)?;
        let (tell, sessions) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server { cpus: spec.cpus.clone(), stop: Arc::clone(&stop), bare: AtomicUsize::new(0) };
        let netns = netns.try_clone()?;
        let acceptor = thread::Builder::new()
            .name("sink".into())
            .spawn(move || {
                // Threads that this one starts are in its namespace, and so are their sockets.
                if netns.enter().is_ok() {
                    Arc::new(server).accept(&TcpListener::from(listener), &tell);
                }
            })
            .map_err(|error| Error::io("start a sink", "clone", &error))?;
        Ok(Self { address, stop, acceptor: Some(acceptor), sessions })
    }

    /// Where it waits.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next session that has ended, if one does within `wait`.
    #[must_use]
    pub fn ended(&self, wait: Duration) -> Option<Session> {
        self.sessions.recv_timeout(wait).ok()
    }

    /// Ends it, and returns the sessions that had not been asked for, those that this has ended among them.
    #[must_use]
    pub fn stop(mut self) -> Vec<Session> {
        self.halt();
        self.sessions.try_iter().collect()
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of that thread has been printed.
        drop(self.acceptor.take().map(JoinHandle::join));
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.halt();
    }
}

/// What all threads of a sink share.
#[derive(Debug)]
struct Server {
    cpus: Vec<usize>,
    stop: Arc<AtomicBool>,
    /// Bare streams so far.
    bare: AtomicUsize,
}

impl Server {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, tell: &mpsc::Sender<Session>) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        while !self.stopped() {
            match listener.accept() {
                Ok((stream, from)) => {
                    let (server, tell) = (Arc::clone(self), tell.clone());
                    let serve = move || {
                        if let Some(session) = server.serve(stream, from) {
                            // Nobody hears of a session that ends after its sink.
                            tell.send(session).unwrap_or_default();
                        }
                    };
                    threads.extend(thread::Builder::new().name("session".into()).spawn(serve));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                // No descriptor is left, or the connection is gone already.
                Err(_) => thread::sleep(STEP),
            }
            threads.retain(|thread| !thread.is_finished());
        }
        for thread in threads {
            drop(thread.join());
        }
    }

    /// Serves a connection; `None` if not a byte came.
    fn serve(&self, stream: TcpStream, from: SocketAddr) -> Option<Session> {
        let bare = self.first_byte(&stream)? != b'{';
        let report = if bare { self.bare(stream) } else { self.session(stream) };
        Some(Session { from, bare, report })
    }

    fn first_byte(&self, stream: &TcpStream) -> Option<u8> {
        stream.set_read_timeout(Some(STEP)).ok()?;
        let mut byte = [0];
        loop {
            match stream.peek(&mut byte) {
                Ok(0) => return None,
                Ok(_) => return Some(byte[0]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if self.stopped() {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
    }

    fn bare(&self, stream: TcpStream) -> Result<EndReport> {
        let machine = MachineClock::start();
        let socket = Arc::new(OwnedFd::from(stream));
        limit_waits(&socket)?;
        let receiver = Receiver {
            socket,
            progress: Arc::default(),
            stop: Arc::clone(&self.stop),
            cpu: cpu_of(&self.cpus, self.bare.fetch_add(1, Ordering::Relaxed)),
            protocol: Protocol::Tcp,
            size: 1,
            gro: false,
            discard: false,
        };
        Ok(EndReport::new(vec![receiver.run()?], &machine))
    }

    fn session(&self, stream: TcpStream) -> Result<EndReport> {
        let mut control = Control::new(stream)?;
        let opened = self.open(&mut control);
        let reception = match opened {
            Ok(reception) => reception,
            Err(error) => {
                control.say(&Answer::Refused { why: error.to_string() })?;
                return Err(error);
            }
        };
        self.receive(&mut control, reception)
    }

    fn open(&self, control: &mut Control) -> Result<Reception> {
        let what = "open a session";
        let Some(Question::Open { schema, streams }) = control.hear(|| !self.stopped())? else {
            return Err(Error::invalid(what, "it began with another word"));
        };
        if schema != SCHEMA {
            let why = format!("the sender speaks {schema}, this version {SCHEMA}");
            return Err(Error::invalid(what, why).remedy("use the same version at both ends"));
        }
        if !(1..=SocketSpec::MAX_STREAMS).contains(&streams.number) || streams.size == 0 {
            return Err(Error::invalid(what, format!("it asks for {streams:?}")));
        }
        let address = control.stream().local_addr().map_err(|error| Error::io(what, "getsockname", &error))?;
        let mut reception = Reception::open(streams, address.ip())?;
        control.say(&Answer::Ready { ports: reception.ports.clone() })?;
        reception.take_connections(|| !self.stopped())?;
        if streams.protocol == Protocol::Tcp {
            reception.start(&self.cpus)?;
        }
        Ok(reception)
    }

    fn receive(&self, control: &mut Control, mut reception: Reception) -> Result<EndReport> {
        let what = "receive";
        loop {
            match control.hear(|| !self.stopped())? {
                Some(Question::Try) => {
                    let arrived = reception.try_out(|| !self.stopped())?;
                    if arrived == reception.expected.number && reception.workers.workers.is_empty() {
                        reception.start(&self.cpus)?;
                    }
                    control.say(&Answer::Tried { arrived })?;
                }
                Some(Question::Count) => {
                    let (bytes, datagrams) = (reception.workers.bytes(), reception.workers.datagrams());
                    control.say(&Answer::Counted { bytes, datagrams })?;
                }
                Some(Question::Finish) => {
                    let report = reception.finish()?;
                    control.say(&Answer::Report(report.clone()))?;
                    return Ok(report);
                }
                Some(Question::Open { .. }) => return Err(Error::invalid(what, "the session was opened twice")),
                None => return Err(Error::invalid(what, "the sender is gone without a word")),
            }
        }
    }
}

/// The sockets of a session, and the threads that read them.
#[derive(Debug)]
struct Reception {
    expected: Expected,
    ports: Vec<u16>,
    /// Takes the connections (TCP).
    listener: Option<TcpListener>,
    sockets: Vec<Arc<OwnedFd>>,
    workers: Workers,
    machine: MachineClock,
}

impl Reception {
    /// Opens what the streams are to come to, at the address that the control connection came to.
    fn open(expected: Expected, address: IpAddr) -> Result<Self> {
        let (mut listener, mut sockets, mut ports) = (None, Vec::new(), Vec::new());
        let what = "open sockets to receive on";
        let io = |call| move |error: std::io::Error| Error::io(what, call, &error);
        let any_port = SocketAddr::new(address, 0);
        match expected.protocol {
            Protocol::Tcp => {
                let opened = TcpListener::bind(any_port).map_err(io("bind"))?;
                // Before the first connection, whose window is scaled by it.
                set_receive_buffer(&opened, expected.receive_buffer)?;
                ports.push(opened.local_addr().map_err(io("getsockname"))?.port());
                listener = Some(opened);
            }
            Protocol::Udp => {
                for _ in 0..expected.number {
                    let socket = UdpSocket::bind(any_port).map_err(io("bind"))?;
                    set_receive_buffer(&socket, expected.receive_buffer)?;
                    ports.push(socket.local_addr().map_err(io("getsockname"))?.port());
                    let socket = OwnedFd::from(socket);
                    limit_waits(&socket)?;
                    sockets.push(Arc::new(socket));
                }
            }
        }
        let (workers, machine) = (Workers::default(), MachineClock::start());
        Ok(Self { expected, ports, listener, sockets, workers, machine })
    }

    /// Takes as many connections as were announced (TCP).
    fn take_connections(&mut self, go_on: impl Fn() -> bool) -> Result<()> {
        let what = "take the session's connections";
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let listener = OwnedFd::from(listener);
        limit_waits(&listener)?;
        let listener = TcpListener::from(listener);
        let deadline = Instant::now() + CONNECTIONS;
        while self.sockets.len() < self.expected.number {
            match listener.accept() {
                Ok((stream, _)) => {
                    let socket = OwnedFd::from(stream);
                    limit_waits(&socket)?;
                    self.sockets.push(Arc::new(socket));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if Instant::now() >= deadline || !go_on() {
                        let why = format!("{} of {} have come", self.sockets.len(), self.expected.number);
                        return Err(Error::invalid(what, why));
                    }
                }
                Err(error) => return Err(Error::io(what, "accept", &error)),
            }
        }
        Ok(())
    }

    /// How many sockets a datagram has come to; whatever has come is taken away, and is not counted.
    fn try_out(&self, go_on: impl Fn() -> bool) -> Result<usize> {
        let deadline = Instant::now() + TRIAL;
        let mut arrived = 0;
        for socket in &self.sockets {
            let socket = UdpSocket::from(clone(socket)?);
            let mut byte = [0];
            let came = |result: std::io::Result<usize>| result.is_ok();
            let mut has_come = came(socket.recv(&mut byte));
            while !has_come && Instant::now() < deadline && go_on() {
                has_come = came(socket.recv(&mut byte));
            }
            arrived += usize::from(has_come);
        }
        Ok(arrived)
    }

    fn start(&mut self, cpus: &[usize]) -> Result<()> {
        let Expected { protocol, size, gro, discard, .. } = self.expected;
        for (index, socket) in self.sockets.drain(..).enumerate() {
            if gro {
                setsockopt(&socket.as_fd(), sockopt::UdpGroSegment, &true)
                    .map_err(|errno| Error::syscall("take datagrams together", "setsockopt(UDP_GRO)", errno))?;
            }
            let progress = Arc::new(Progress::default());
            let receiver = Receiver {
                socket: Arc::clone(&socket),
                progress: Arc::clone(&progress),
                stop: Arc::clone(&self.workers.stop),
                cpu: cpu_of(cpus, index),
                protocol,
                size,
                gro,
                discard,
            };
            let thread = thread::Builder::new()
                .name(format!("sink/{index}"))
                .spawn(move || receiver.run())
                .map_err(|error| Error::io("start a receiving thread", "clone", &error))?;
            self.workers.workers.push(Worker { socket, progress, thread: Some(thread) });
        }
        Ok(())
    }

    /// Waits a short while for what is under way, and tells what has come.
    fn finish(&mut self) -> Result<EndReport> {
        let deadline = Instant::now() + DRAIN;
        if self.expected.protocol == Protocol::Udp {
            self.workers.stop();
        }
        while self.workers.are_running() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        self.workers.stop();
        Ok(EndReport::new(self.workers.join()?, &self.machine))
    }
}

fn clone(socket: &OwnedFd) -> Result<OwnedFd> {
    socket.try_clone().map_err(|error| Error::io("hold a socket once more", "fcntl(F_DUPFD_CLOEXEC)", &error))
}

fn set_receive_buffer(socket: &impl std::os::fd::AsFd, bytes: Option<usize>) -> Result<()> {
    let Some(bytes) = bytes else { return Ok(()) };
    setsockopt(socket, sockopt::RcvBuf, &bytes)
        .map_err(|errno| Error::syscall(format!("receive into {bytes} bytes"), "setsockopt(SO_RCVBUF)", errno))
}
