//! Builds namespaces, links, bridges, addresses and routes as a specification asks.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use super::interface::{Interface, is_usable};
use super::netns::NetNs;
use super::network_file::{EndSpec, LinkSpec, NetworkSpec, Prefix};
use crate::error::{Error, Result};
use crate::netlink::VethEnd;
use crate::packet::MacAddr;

/// A network; the kernel sends nothing through it on its own. Dropping it removes everything.
#[derive(Debug)]
pub struct Network {
    namespaces: BTreeMap<String, NetNs>,
    ports: Vec<NetworkPort>,
    /// The namespace and number of what takes a whole link or bridge with it when it is deleted.
    owned: Vec<(String, u32)>,
}

/// One end of a veth pair.
#[derive(Clone, Debug)]
pub struct NetworkPort {
    /// The namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its number there.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
}

impl Network {
    /// Builds it in namespaces without a name, and waits until frames can pass.
    ///
    /// # Errors
    /// If the machine or the kernel can't hold what `spec` asks for; then nothing is left behind.
    pub fn build(spec: &NetworkSpec) -> Result<Self> {
        let names = spec.namespaces.keys().map(|name| name.get_ref());
        let namespaces = names.map(|name| Ok((name.clone(), NetNs::new()?))).collect::<Result<_>>()?;
        Self::build_in(spec, namespaces)
    }

    /// Builds it in these namespaces, one for each that the specification names.
    ///
    /// # Errors
    /// As [`Network::build`]; the namespaces stay.
    pub(super) fn build_in(spec: &NetworkSpec, namespaces: BTreeMap<String, NetNs>) -> Result<Self> {
        let mut network = Self { namespaces, ports: Vec::new(), owned: Vec::new() };
        for (index, link) in spec.links.iter().enumerate() {
            network.add_link(spec, link, index)?;
        }
        for (name, bridge) in &spec.bridges {
            network.add_bridge(spec, name.get_ref(), bridge.namespace.get_ref())?;
        }
        network.configure(spec)?;
        network.route(spec)?;
        for port in &network.ports {
            let addresses: Vec<IpAddr> = port.addresses.iter().map(|prefix| prefix.address).collect();
            network.interface(port)?.await_ready(&addresses)?;
        }
        Ok(network)
    }

    /// The namespace of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn namespace(&self, name: &str) -> Result<&NetNs> {
        self.namespaces.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.namespaces.keys().map(String::as_str).collect();
            Error::usage(format!("find the namespace {name}"), format!("there is only {}", known.join(", ")))
        })
    }

    /// Every end of a link.
    #[must_use]
    pub fn ports(&self) -> &[NetworkPort] {
        &self.ports
    }

    /// The end of this name in this namespace.
    ///
    /// # Errors
    /// There is none.
    pub fn port(&self, namespace: &str, name: &str) -> Result<&NetworkPort> {
        let found = self.ports.iter().find(|port| port.namespace == namespace && port.name == name);
        found.ok_or_else(|| Error::usage(format!("find {name} in {namespace}"), "the network has no such end"))
    }

    /// Leaves everything where it is.
    pub(super) fn keep(mut self) {
        self.owned.clear();
    }

    fn add_link(&mut self, spec: &NetworkSpec, link: &LinkSpec, index: usize) -> Result<()> {
        let ends = [(&link.a, mac_of(&link.a, index, 1)), (&link.b, mac_of(&link.b, index, 2))];
        let [a, b] = ends.map(|(end, mac)| -> Result<VethEnd<'_>> {
            let netns = self.namespace(end.namespace.get_ref())?.as_fd();
            let (queues, mtu) = (spec.queues_of(link), spec.mtu_of(link));
            Ok(VethEnd { name: end.interface.get_ref(), netns, mac, queues, mtu })
        });
        self.namespace(link.a.namespace.get_ref())?.rtnl()?.add_veth([a?, b?])?;
        let of_a = self.ports.len();
        for (end, mac) in ends {
            let (namespace, name) = (end.namespace.get_ref().clone(), end.interface.get_ref().clone());
            let ifindex = self.namespace(&namespace)?.rtnl()?.link_by_name(&name)?.ifindex;
            self.ports.push(NetworkPort { namespace, name, ifindex, mac, addresses: end.addresses.clone() });
        }
        let NetworkPort { namespace, ifindex, .. } = &self.ports[of_a];
        self.owned.push((namespace.clone(), *ifindex));
        Ok(())
    }

    fn add_bridge(&mut self, spec: &NetworkSpec, name: &str, namespace: &str) -> Result<()> {
        let netns = self.namespace(namespace)?;
        let mut rtnl = netns.rtnl()?;
        rtnl.add_bridge(name)?;
        let ifindex = rtnl.link_by_name(name)?.ifindex;
        let bridge = Interface { netns, name, ifindex };
        bridge.silence(&mut rtnl)?;
        for (port, end) in self.ports.iter().zip(spec.ends()) {
            if port.namespace == namespace && end.bridge.as_ref().is_some_and(|of| of.get_ref() == name) {
                rtnl.set_bridge(port.ifindex, ifindex)?;
            }
        }
        rtnl.set_up(ifindex)?;
        self.owned.push((namespace.to_owned(), ifindex));
        Ok(())
    }

    fn configure(&self, spec: &NetworkSpec) -> Result<()> {
        for (port, end) in self.ports.iter().zip(spec.ends()) {
            let common = spec.offloads.iter().filter(|(name, _)| !end.offloads.contains_key(*name));
            let offloads = common.chain(&end.offloads).map(|(name, on)| (name.as_str(), *on));
            let addresses = port.addresses.iter().map(|prefix| (prefix.address, prefix.len));
            self.interface(port)?.configure(offloads, addresses, self.neighbours(port))?;
        }
        Ok(())
    }

    /// Every other address in a network of the port's.
    fn neighbours(&self, port: &NetworkPort) -> impl Iterator<Item = (IpAddr, MacAddr)> {
        let others =
            self.ports.iter().filter(move |other| other.ifindex != port.ifindex || other.namespace != port.namespace);
        others.flat_map(move |other| {
            let near =
                other.addresses.iter().filter(|theirs| port.addresses.iter().any(|ours| ours.is_on_link(theirs)));
            near.map(move |theirs| (theirs.address, other.mac))
        })
    }

    fn route(&self, spec: &NetworkSpec) -> Result<()> {
        for (name, namespace) in &spec.namespaces {
            let netns = self.namespace(name.get_ref())?;
            if namespace.forward {
                netns.run(forward)?;
            }
            let mut rtnl = netns.rtnl()?;
            for route in namespace.routes.iter().filter(|route| is_usable(route.via)) {
                rtnl.add_route((route.to.address, route.to.len), route.via)?;
            }
        }
        Ok(())
    }

    fn interface<'a>(&'a self, port: &'a NetworkPort) -> Result<Interface<'a>> {
        Ok(Interface { netns: self.namespace(&port.namespace)?, name: &port.name, ifindex: port.ifindex })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The namespaces would take all with them, but only some time after they are closed, and not while a socket still
        // holds one.
        for (namespace, ifindex) in &self.owned {
            drop(self.namespace(namespace).and_then(|netns| netns.rtnl()?.delete_link(*ifindex)));
        }
    }
}

/// The MAC address of an end, locally administered as those of [`super::Lab`] unless it has one.
fn mac_of(end: &EndSpec, link: usize, number: u8) -> MacAddr {
    let [.., high, low] = link.to_be_bytes();
    end.mac.unwrap_or(MacAddr([0x02, 0x58, 0x44, high, low, number]))
}

/// Lets the stack of the calling thread's network namespace forward packets.
fn forward() -> Result<()> {
    for path in ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"] {
        match fs::write(path, "1") {
            Err(error) if error.kind() == ErrorKind::NotFound && path.contains("ipv6") => {} // The kernel has no IPv6.
            written => written.map_err(|error| Error::io(format!("write 1 to {path}"), "write", &error))?,
        }
    }
    Ok(())
}
