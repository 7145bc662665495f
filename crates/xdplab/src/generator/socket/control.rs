//! What sender and sink say to each other: one JSON object a line, each question with its answer.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::outcome::EndReport;
use super::{Protocol, SocketSpec, Stop};
use crate::error::{Error, Result};

/// The schema of these lines.
pub(super) const SCHEMA: &str = "xdplab.sink/1";
/// The longest line, many times that of the longest report.
const LONGEST: u64 = 1 << 20;
/// How long the other side may take to answer; a session is set up and reported in less.
const PATIENCE: Duration = Duration::from_secs(5);

/// Questions of the sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Question {
    /// The first one; answered by [`Answer::Ready`].
    Open { schema: String, streams: Expected },
    /// Whether the trial datagram of each UDP stream has come; answered by [`Answer::Tried`].
    Try,
    /// What has come so far; answered by [`Answer::Counted`].
    Count,
    /// Nothing more is sent; answered by [`Answer::Report`].
    Finish,
}

/// What the sink is to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Expected {
    pub(super) protocol: Protocol,
    pub(super) number: usize,
    /// Payload bytes of a datagram.
    pub(super) size: usize,
    pub(super) gro: bool,
    pub(super) discard: bool,
    pub(super) receive_buffer: Option<usize>,
}

/// Answers of the sink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Answer {
    /// The ports that the streams are to go to: one for all with TCP, one for each with UDP.
    Ready { ports: Vec<u16> },
    /// How many streams' trial datagram has come.
    Tried { arrived: usize },
    /// Payload bytes and datagrams received so far, over all streams.
    Counted { bytes: u64, datagrams: u64 },
    /// What was received in all.
    Report(EndReport),
    /// It can't be done, and why.
    Refused { why: String },
}

impl Expected {
    pub(super) fn of(spec: &SocketSpec, size: usize) -> Self {
        let SocketSpec { protocol, streams, gro, discard, receive_buffer, .. } = *spec;
        Self { protocol, number: streams, size, gro, discard, receive_buffer }
    }
}

/// One side of the connection.
#[derive(Debug)]
pub(super) struct Control {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl Control {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        let what = "talk over the control connection";
        stream.set_nodelay(true).map_err(|error| Error::io(what, "setsockopt(TCP_NODELAY)", &error))?;
        Ok(Self { stream: BufReader::new(stream), line: Vec::new() })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    pub(super) fn say(&mut self, message: &impl Serialize) -> Result<()> {
        let what = "say something over the control connection";
        let mut line = serde_json::to_vec(message).map_err(|error| Error::invalid(what, error.to_string()))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(|error| Error::io(what, "send", &error))
    }

    /// The next line, `None` at the end of the connection. `wait` is asked again and again how long to go on waiting.
    pub(super) fn hear<T: DeserializeOwned>(&mut self, mut go_on: impl FnMut() -> bool) -> Result<Option<T>> {
        const STEP: Duration = Duration::from_millis(10);
        let what = "hear something over the control connection";
        let io = |error: &std::io::Error| Error::io(what, "recv", error);
        self.stream().set_read_timeout(Some(STEP)).map_err(|error| io(&error))?;
        loop {
            let room = LONGEST.saturating_sub(self.line.len() as u64);
            match (&mut self.stream).take(room).read_until(b'\n', &mut self.line) {
                Ok(_) if self.line.ends_with(b"\n") => {
                    let line = std::mem::take(&mut self.line);
                    return serde_json::from_slice(&line)
                        .map(Some)
                        .map_err(|error| Error::invalid(what, format!("unexpected words: {error}")));
                }
                Ok(_) if self.line.len() as u64 >= LONGEST => return Err(Error::invalid(what, "a line without end")),
                Ok(_) => return Ok(None),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if !go_on() {
                        return Err(Error::invalid(what, "nobody answers"));
                    }
                }
                Err(error) => return Err(io(&error)),
            }
        }
    }

    /// Asks, and waits for the answer unless `stop` is set.
    pub(super) fn ask(&mut self, question: &Question, stop: Stop<'_>) -> Result<Answer> {
        let what = "ask the sink";
        self.say(question)?;
        let deadline = Instant::now() + PATIENCE;
        match self.hear(|| Instant::now() < deadline && !stop()) {
            Err(_nobody) if stop() => Err(Error::interrupted(what)),
            Err(error) => Err(error.remedy("is it an xdplab trafficgen sink?")),
            Ok(Some(Answer::Refused { why })) => Err(Error::invalid(what, format!("it refuses: {why}"))),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Error::invalid(what, "it has closed the connection")
                .remedy("look what it printed; is it an xdplab trafficgen sink?")),
        }
    }
}

/// An answer to another question than the one asked.
pub(super) fn unexpected(answer: &Answer) -> Error {
    Error::invalid("understand the sink", format!("it answers {answer:?}")).remedy("use the same version at both ends")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Control, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Control::new(listener.accept().unwrap().0).unwrap(), client)
    }

    #[test]
    fn a_line_in_pieces_is_one_message_and_two_lines_at_once_are_two() {
        let (mut control, mut other) = pair();
        other.write_all(br#"{"message":"#).unwrap();
        let mut waits = 0;
        let heard = control.hear::<Question>(|| {
            waits += 1;
            if waits == 1 {
                other.write_all(b"\"try\"}\n{\"message\":\"count\"}\n").unwrap();
            }
            waits < 500
        });
        assert_eq!(heard.unwrap(), Some(Question::Try));
        assert_eq!(control.hear(|| true).unwrap(), Some(Question::Count));
        drop(other);
        assert_eq!(control.hear::<Question>(|| true).unwrap(), None);
    }

    #[test]
    fn silence_nonsense_and_a_line_without_end_are_errors() {
        let (mut control, mut other) = pair();
        assert!(control.hear::<Question>(|| false).unwrap_err().to_string().contains("nobody answers"));
        other.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(control.hear::<Question>(|| true).unwrap_err().to_string().contains("unexpected words"));
        let flood = std::thread::spawn(move || other.write_all(&vec![b'x'; LONGEST as usize + 1]));
        assert!(control.hear::<Question>(|| true).unwrap_err().to_string().contains("without end"));
        drop(control);
        drop(flood.join().unwrap());
    }
}
