//! The thread that receives one stream.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};

use super::stream::{CpuTime, Ended, Progress, again};
use super::{Errors, Protocol};
use crate::error::Result;
use crate::reading::Reading;
use crate::sys::affinity::Pinned;
use crate::sys::socket::{Incoming, dropped, set_receive_low_water};

/// Bytes of a call (TCP): two calls of a sender, since a veth pair of one flow was fastest with that.
const CALL: usize = 256 << 10;
/// A waiting receiver is woken once a call's worth of bytes is there, or after a short while: to wake it for each segment
/// would cost the sender more than the segment.
const LOW_WATER: i32 = CALL as i32;
/// Messages of a call (UDP).
const BATCH: usize = 64;
/// The most that one message can bring (UDP), datagrams taken together among it.
const LONGEST: usize = 65_535;

/// How long what was under way at the end may still come.
pub(super) const DRAIN: Duration = Duration::from_millis(40);

/// One stream as it is received.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) progress: Arc<Progress>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) cpu: Option<usize>,
    pub(super) protocol: Protocol,
    /// Payload bytes of a datagram.
    pub(super) size: usize,
    /// Datagrams come together (UDP).
    pub(super) gro: bool,
    /// Received bytes are not copied (TCP).
    pub(super) discard: bool,
}

impl Receiver {
    /// Receives until the end of the stream (TCP) or until it is stopped; what had come until then is counted.
    pub(super) fn run(&self) -> Result<Ended> {
        let ended = self.receive();
        if !ended.as_ref().is_ok_and(|(report, _)| report.complete) {
            // Nobody reads any more: the sender is told, instead of waiting for room. It may know already.
            shutdown(self.socket.as_raw_fd(), Shutdown::Both).unwrap_or_default();
        }
        ended
    }

    fn receive(&self) -> Result<Ended> {
        let _pinned = self.cpu.map(Pinned::to).transpose()?;
        let time = CpuTime::now()?;
        let mut moments = None;
        let mut errors = Errors::new();
        let end = match self.protocol {
            Protocol::Tcp => self.stream(&mut moments)?,
            Protocol::Udp => self.datagrams(&mut moments),
        };
        if let Err(errno) = end {
            errors.insert(format!("{errno:?}"), 1);
        }
        let mut report = self.progress.report(self.cpu, CpuTime::now()?.since(time));
        report.complete = end == Ok(true);
        report.errors = errors;
        if self.protocol == Protocol::Udp {
            report.socket_drops = Some(Reading::from(dropped(self.socket.as_fd())).map(u64::from));
        }
        Ok((report, moments))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the end of the stream was reached.
    fn stream(&self, moments: &mut Option<(Instant, Instant)>) -> Result<nix::Result<bool>> {
        let mut block = vec![0; CALL];
        let flags = if self.discard { MsgFlags::MSG_TRUNC } else { MsgFlags::empty() };
        loop {
            match recv(self.socket.as_raw_fd(), &mut block, flags) {
                Ok(bytes) => {
                    let now = Instant::now();
                    if bytes > 0 && moments.is_none() {
                        // Not before: the time of the first byte is when it came.
                        set_receive_low_water(self.socket.as_fd(), LOW_WATER)?;
                    }
                    // The end of the stream is part of its time, and so is each byte before another end.
                    if bytes > 0 || moments.is_some() {
                        *moments = Some((moments.map_or(now, |(first, _)| first), now));
                    }
                    if bytes == 0 {
                        return Ok(Ok(true));
                    }
                    self.progress.add(bytes as u64, 0);
                }
                Err(errno) if again(errno) => {}
                Err(errno) => return Ok(Err(errno)),
            }
            if self.stopped() {
                return Ok(Ok(false));
            }
        }
    }

    /// Counts datagrams until it is stopped and none is left.
    fn datagrams(&self, moments: &mut Option<(Instant, Instant)>) -> nix::Result<bool> {
        let room = if self.gro { LONGEST } else { self.size };
        let mut incoming = Incoming::new(room, BATCH);
        let mut deadline = None;
        loop {
            if self.stopped() && Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + DRAIN) {
                return Ok(false);
            }
            match incoming.receive(self.socket.as_fd()) {
                Ok(lengths) => {
                    let now = Instant::now();
                    let (mut bytes, mut datagrams) = (0, 0);
                    for length in lengths {
                        bytes += length as u64;
                        datagrams += length.div_ceil(self.size).max(1) as u64;
                    }
                    self.progress.add(bytes, datagrams);
                    *moments = Some((moments.map_or(now, |(first, _)| first), now));
                }
                Err(errno) if again(errno) => {
                    if self.stopped() {
                        return Ok(true);
                    }
                }
                // An answer to what this socket never sent.
                Err(Errno::ECONNREFUSED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}
