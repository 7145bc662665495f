//! As much of rtnetlink as it takes to make a veth pair.
#![allow(unsafe_code, reason = "raw netlink, so that the tests need no tool on the machine")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const VETH_INFO_PEER: u16 = 1;

/// A netlink message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, ifindex: u32, set: u32, change: u32) -> Self {
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        let mut message = Self(bytes);
        message.interface(ifindex, set, change);
        message
    }

    /// `struct ifinfomsg`.
    fn interface(&mut self, ifindex: u32, set: u32, change: u32) {
        self.0.extend([0; 4]);
        for word in [ifindex, set, change] {
            self.0.extend(word.to_ne_bytes());
        }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |message| message.0.extend(value));
    }

    fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        content(self);
        let len = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn end(&mut self, name: &str, queues: u32, mtu: u32) {
        self.attribute(libc::IFLA_IFNAME, format!("{name}\0").as_bytes());
        self.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
        self.attribute(libc::IFLA_NUM_TX_QUEUES, &queues.to_ne_bytes());
        self.attribute(libc::IFLA_NUM_RX_QUEUES, &queues.to_ne_bytes());
    }

    /// Sends the message and waits for the answer.
    fn ask(mut self) -> io::Result<()> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the buffer is valid for its length.
        if unsafe { libc::send(fd.as_raw_fd(), self.0.as_ptr().cast(), self.0.len(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = [0u8; 4096];
        // SAFETY: the buffer is valid for its length.
        if unsafe { libc::recv(fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) } < 20 {
            return Err(io::Error::last_os_error());
        }
        // struct nlmsgerr after the header: 0, or the negative errno.
        match i32::from_ne_bytes(*answer[16..].first_chunk().unwrap()) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }
}

pub fn add_veth(name: &str, peer: &str, queues: u32, mtu: u32) -> io::Result<()> {
    let mut message = Message::new(libc::RTM_NEWLINK, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, 0, 0, 0);
    message.end(name, queues, mtu);
    message.nest(libc::IFLA_LINKINFO, |info| {
        info.attribute(libc::IFLA_INFO_KIND, b"veth\0");
        info.nest(libc::IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |end| {
                end.interface(0, 0, 0);
                end.end(peer, queues, mtu);
            });
        });
    });
    message.ask()
}

pub fn set_up(ifindex: u32, up: bool) -> io::Result<()> {
    let flag = libc::IFF_UP as u32;
    Message::new(libc::RTM_NEWLINK, 0, ifindex, if up { flag } else { 0 }, flag).ask()
}

pub fn delete(ifindex: u32) -> io::Result<()> {
    Message::new(libc::RTM_DELLINK, 0, ifindex, 0, 0).ask()
}
