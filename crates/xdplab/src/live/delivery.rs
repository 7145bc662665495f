//! Where the packets are counted that an interface has sent.

use super::readings;
use crate::netlink::{LinkInfo, Rtnl};
use crate::packet::MacAddr;
use crate::reading::Reading;

/// The counter of who receives what an interface sends: a second opinion on every sender's own count.
pub(super) struct Delivery {
    /// The interface that counts, at the beginning.
    before: LinkInfo,
    /// It counts packets as received: it is the other end itself.
    is_peer: bool,
}

impl Delivery {
    /// Where packets of `target` are counted, from now on.
    pub(super) fn of(rtnl: &mut Rtnl, target: &LinkInfo) -> Reading<Self> {
        let (Some("veth"), Some(peer)) = (target.kind.as_deref(), target.peer) else {
            return Reading::not_available(format!("{} is no veth: who receives is not known here", target.name));
        };
        // Of a peer in another network namespace veth tells the packets received as those that this end has sent
        // (veth_get_stats64(), drivers/net/veth.c).
        let is_peer = peer.netnsid.is_none();
        let ifindex = if is_peer { peer.ifindex } else { target.ifindex };
        rtnl.link_by_index(ifindex).map(|before| Self { before, is_peer }).into()
    }

    /// The receiver, where it can be seen.
    pub(super) fn peer(&self) -> Option<&LinkInfo> {
        self.is_peer.then_some(&self.before)
    }

    /// Says so where the receiver's stack ignores frames with this destination address; an XDP program takes any.
    pub(super) fn ignored(&self, frame: &[u8]) -> Option<String> {
        let peer = self.peer().filter(|peer| peer.xdp.is_empty())?;
        let (own, to) = (peer.mac?, MacAddr(*frame.first_chunk()?));
        let is_group = to.0[0] & 1 == 1;
        let name = &peer.name;
        (!is_group && own != to).then(|| {
            format!("{name} has no XDP program, and its stack ignores what is sent to {to} instead of {own}: --dst-mac {own}")
        })
    }

    /// Packets since the beginning, and whose counter says so.
    pub(super) fn counted(&self) -> Reading<(String, u64)> {
        let name = &self.before.name;
        let counted = Rtnl::open().map(|mut rtnl| readings::counted_since(&mut rtnl, &self.before));
        Reading::from(counted).and_then(|counted| counted).map(|counted| {
            if self.is_peer {
                (format!("rx_packets of {name}"), counted.rx_packets)
            } else {
                (format!("tx_packets of {name}, since its peer is in another network namespace"), counted.tx_packets)
            }
        })
    }
}
