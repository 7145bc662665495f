//! One request and its answers over a netlink socket.

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::SocketAddr;
use nix::errno::Errno;

use super::attributes::Attributes;
use crate::error::{Error, Result};

/// `NLMSGERR_ATTR_MSG` of `include/uapi/linux/netlink.h`: the kernel's own words about a failure.
const NLMSGERR_ATTR_MSG: u16 = 1;
/// Size of `struct nlmsghdr`; an error carries that of the request before its attributes.
const NLMSG_HDRLEN: usize = 16;
/// How often a list that changed while it was read is read again.
const DUMP_ATTEMPTS: u32 = 8;

/// A netlink socket on which one request at a time is answered.
pub(super) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
}

/// What ended the answers to a request.
enum End {
    /// The request was done, or the list is complete.
    Complete,
    /// The list changed while it was read (`NLM_F_DUMP_INTR`).
    Interrupted,
}

impl Socket {
    /// Opens a socket of `protocol` (`NETLINK_ROUTE`, …) in the calling thread's network namespace.
    pub(super) fn open(protocol: isize) -> Result<Self> {
        let open = || -> io::Result<netlink_sys::Socket> {
            let mut socket = netlink_sys::Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            socket.set_ext_ack(true)?;
            // An error then repeats only the header of the request, so that the attributes after it are found at once.
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|error| Error::io("open a netlink socket", "socket(AF_NETLINK)", &error))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends `message` and returns every message the kernel answers with before it says that the request is done.
    ///
    /// `flags` are added to `NLM_F_REQUEST`; `call` and `what` go into the error.
    pub(super) fn request<M>(&mut self, call: &'static str, what: &str, message: M, flags: u16) -> Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Clone + Debug,
    {
        // A dump is ended by NLMSG_DONE, everything else by its acknowledgement.
        let flags = NLM_F_REQUEST | flags | if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        for _ in 0..DUMP_ATTEMPTS {
            self.send(call, what, message.clone(), flags)?;
            let mut answers = Vec::new();
            match self.receive(call, what, &mut answers)? {
                End::Complete => return Ok(answers),
                End::Interrupted => {}
            }
        }
        Err(Error::invalid(what, format!("{call}: the list changed each of {DUMP_ATTEMPTS} times it was read")))
    }

    fn send<M: NetlinkSerializable>(&mut self, call: &'static str, what: &str, message: M, flags: u16) -> Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(|error| Error::io(what, call, &error))?;
        Ok(())
    }

    fn receive<M: NetlinkDeserializable + Debug>(
        &mut self,
        call: &'static str,
        what: &str,
        answers: &mut Vec<M>,
    ) -> Result<End> {
        let mut end = End::Complete;
        loop {
            let datagram = self.receive_datagram().map_err(|error| Error::io(what, call, &error))?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<M>::deserialize(rest)
                    .map_err(|error| Error::invalid(what, format!("{call}: answer not understood: {error}")))?;
                let length = (message.header.length as usize).max(NLMSG_HDRLEN);
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue; // Left over from a request that was given up.
                }
                if message.header.flags & NLM_F_DUMP_INTR != 0 {
                    end = End::Interrupted;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(done) => {
                        return outcome(call, what, done.code, &done.extended_ack).map(|()| end);
                    }
                    NetlinkPayload::Error(error) => {
                        let has_text = message.header.flags & NLM_F_ACK_TLVS != 0;
                        let attributes = error.header.get(NLMSG_HDRLEN..).filter(|_| has_text).unwrap_or_default();
                        return outcome(call, what, error.raw_code(), attributes).map(|()| end);
                    }
                    NetlinkPayload::Overrun(_) => return Err(Error::syscall(what, call, Errno::ENOBUFS)),
                    _ => {}
                }
            }
        }
    }

    fn receive_datagram(&self) -> io::Result<Vec<u8>> {
        loop {
            match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return received.map(|(bytes, _)| bytes),
            }
        }
    }
}

/// An acknowledgement's code (0 or a negative errno) and extended-ack attributes as a result.
fn outcome(call: &'static str, what: &str, code: i32, extended_ack: &[u8]) -> Result<()> {
    if code >= 0 {
        return Ok(());
    }
    let text = Attributes::new(extended_ack).string(NLMSGERR_ATTR_MSG).unwrap_or_default();
    Err(Error::syscall(what, call, Errno::from_raw(-code)).kernel_says(text))
}
