//! Generic netlink: a family is found by its name, a message is a command and attributes.

use std::convert::Infallible;

use netlink_packet_core::{DefaultNla, Emitable, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use netlink_packet_generic::GenlHeader;
use netlink_packet_generic::constants::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_HDRLEN, GENL_ID_CTRL,
};
use netlink_sys::protocols::NETLINK_GENERIC;
use nix::errno::Errno;

use super::attributes::{Attributes, string_attribute};
use super::socket::Socket;
use crate::error::{Error, Result};

/// The version every family used here has had since it exists.
const FAMILY_VERSION: u8 = 1;

/// A message of any family: what is sent, and what came back as its attributes' bytes.
#[derive(Clone, Debug)]
pub(super) struct Message {
    family: u16,
    command: u8,
    attributes: Vec<u8>,
}

impl Message {
    fn new(family: u16, command: u8, attributes: &[DefaultNla]) -> Self {
        let mut bytes = vec![0; attributes.buffer_len()];
        attributes.emit(&mut bytes);
        Self { family, command, attributes: bytes }
    }

    pub(super) fn attributes(&self) -> Attributes<'_> {
        Attributes::new(&self.attributes)
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        GENL_HDRLEN + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        GenlHeader { cmd: self.command, version: FAMILY_VERSION }.emit(buffer);
        buffer[GENL_HDRLEN..].copy_from_slice(&self.attributes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        let attributes = payload.get(GENL_HDRLEN..).unwrap_or_default().to_vec();
        Ok(Self { family: header.message_type, command: payload.first().copied().unwrap_or_default(), attributes })
    }
}

/// A socket for one generic netlink family.
pub(super) struct Family {
    socket: Socket,
    id: u16,
}

impl Family {
    /// Opens the family called `name` in the calling thread's network namespace; `since` says which kernel has it.
    pub(super) fn open(name: &str, since: &str) -> Result<Self> {
        let what = format!("find the generic netlink family {name:?}");
        let mut socket = Socket::open(NETLINK_GENERIC)?;
        let request = Message::new(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &[string_attribute(CTRL_ATTR_FAMILY_NAME, name)]);
        let answers = socket.request("netlink(CTRL_CMD_GETFAMILY)", &what, request, 0).map_err(|error| {
            if error.errno() == Some(Errno::ENOENT) { error.remedy(format!("it needs Linux {since}")) } else { error }
        })?;
        let id = answers.iter().find_map(|answer| answer.attributes().u16(CTRL_ATTR_FAMILY_ID));
        let id = id.ok_or_else(|| Error::invalid(what, "netlink(CTRL_CMD_GETFAMILY): the kernel named no id"))?;
        Ok(Self { socket, id })
    }

    /// Sends one command and returns the messages it is answered with.
    pub(super) fn request(
        &mut self,
        call: &'static str,
        what: &str,
        command: u8,
        attributes: &[DefaultNla],
        flags: u16,
    ) -> Result<Vec<Message>> {
        self.socket.request(call, what, Message::new(self.id, command, attributes), flags)
    }
}
