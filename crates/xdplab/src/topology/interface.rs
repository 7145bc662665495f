//! One end of a veth pair, while it is set up.

use std::fs;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::netns::NetNs;
use crate::error::{Error, Result};
use crate::netlink::{Ethtool, Rtnl};
use crate::packet::MacAddr;

/// How long the kernel may take until an end sends and receives.
const READY_DEADLINE: Duration = Duration::from_secs(5);

/// An interface of a lab in its namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface<'a> {
    pub(super) netns: &'a NetNs,
    pub(super) name: &'a str,
    pub(super) ifindex: u32,
}

impl Interface<'_> {
    /// Goes up, sets offloads and gets addresses and static neighbours. IPv6 ones are left out where the kernel has none.
    pub(super) fn configure<'o>(
        &self,
        offloads: impl IntoIterator<Item = (&'o str, bool)>,
        addresses: impl IntoIterator<Item = (IpAddr, u8)>,
        neighbours: impl IntoIterator<Item = (IpAddr, MacAddr)>,
    ) -> Result<()> {
        let mut rtnl = self.netns.rtnl()?;
        self.silence(&mut rtnl)?;
        rtnl.set_up(self.ifindex)?;
        // Only now: veth_set_features() lets the peer take redirected frames only if GRO comes on while the end is up.
        let offloads: Vec<_> = offloads.into_iter().collect();
        self.netns.run(Ethtool::open)?.set_offloads(self.ifindex, &offloads)?.keep();
        for (address, prefix_len) in addresses.into_iter().filter(|(address, _)| is_usable(*address)) {
            rtnl.add_address(self.ifindex, address, prefix_len)?;
        }
        for (address, mac) in neighbours.into_iter().filter(|(address, _)| is_usable(*address)) {
            rtnl.add_neighbour(self.ifindex, address, mac)?;
        }
        Ok(())
    }

    /// Keeps the kernel from sending anything through it on its own.
    pub(super) fn silence(&self, rtnl: &mut Rtnl) -> Result<()> {
        rtnl.set_no_arp(self.ifindex)?;
        if has_ipv6() { rtnl.set_no_link_local_address(self.ifindex) } else { Ok(()) }
    }

    /// Waits until what is sent here leaves, and what is sent to these addresses is received.
    pub(super) fn await_ready(&self, addresses: &[IpAddr]) -> Result<()> {
        let mut rtnl = self.netns.rtnl()?;
        let deadline = Instant::now() + READY_DEADLINE;
        while !self.is_ready(&mut rtnl, addresses)? {
            if Instant::now() > deadline {
                let why = format!("it is not ready after {} s", READY_DEADLINE.as_secs());
                return Err(Error::invalid(format!("bring {} up", self.name), why));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn is_ready(&self, rtnl: &mut Rtnl, addresses: &[IpAddr]) -> Result<bool> {
        if !rtnl.link_by_index(self.ifindex)?.oper_up {
            return Ok(false);
        }
        for address in addresses.iter().filter(|address| is_usable(**address)) {
            if !rtnl.is_local(*address)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether the kernel can have this address.
pub(super) fn is_usable(address: IpAddr) -> bool {
    address.is_ipv4() || has_ipv6()
}

/// Whether the kernel has IPv6: built in and not switched off by `ipv6.disable=1`.
pub(super) fn has_ipv6() -> bool {
    fs::exists("/proc/net/if_inet6").unwrap_or(false)
}
