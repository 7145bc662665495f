//! What is looked at before anything is sent out of an interface: whether it is up, takes the frames, and is taken for what
//! it is. By what the kernel says of it, not by the names of drivers.

use super::redirect::{Pass, features};
use crate::error::{Error, Result};
use crate::netlink::{LinkInfo, Rtnl, XdpFeature};
use crate::packet::Traffic;
use crate::reading::Reading;

/// With `keep_going` what speaks against sending is a note.
pub(super) fn or_note<T: Default>(checked: Result<T>, keep_going: bool, notes: &mut Vec<String>) -> Result<T> {
    match checked {
        Err(error) if keep_going => {
            notes.push(error.to_string());
            Ok(T::default())
        }
        checked => checked,
    }
}

/// Refuses an interface that is down.
pub(super) fn must_be_up(target: &LinkInfo) -> Result<()> {
    let name = &target.name;
    if target.up {
        return Ok(());
    }
    Err(Error::invalid(format!("send packets out of {name}"), "it is down (ENETDOWN)")
        .remedy(format!("ip link set {name} up")))
}

/// What is wrong with an interface, if it shows it.
pub(super) fn link_fault(rtnl: &mut Rtnl, ifindex: u32) -> Option<String> {
    match rtnl.link_by_index(ifindex) {
        Err(error) => Some(error.to_string()),
        Ok(link) if !link.up => Some(format!("{} is down (ENETDOWN)", link.name)),
        Ok(link) if !link.oper_up && link.kind.as_deref() == Some("veth") => {
            Some(format!("{} has no carrier, since its peer is down", link.name))
        }
        Ok(_) => None,
    }
}

/// Refuses frames that are longer than the kernel redirects to the interface (`xdp_ok_fwd_dev()`, net/core/dev.h).
pub(super) fn must_fit(target: &LinkInfo, traffic: &Traffic) -> Result<()> {
    const HEADERS: usize = crate::packet::ETHERNET_HEADER_LEN + crate::packet::VLAN_TAG_LEN;
    let longest = traffic.longest().len();
    let limit = target.mtu as usize + HEADERS;
    if longest <= limit {
        return Ok(());
    }
    let name = &target.name;
    let what = format!("send frames of {longest} bytes without FCS out of {name}");
    let needed = longest - HEADERS;
    Err(Error::usage(
        what,
        format!("its MTU is {}, so that longer ones than {limit} are refused (EMSGSIZE)", target.mtu),
    )
    .remedy(format!("send shorter ones, or ip link set {name} mtu {needed}, its peer too")))
}

/// Makes sure that the interface takes redirected frames by what the kernel says of it, if need be with a program of ours
/// on it, as many drivers want it. A program that is there is left alone.
pub(super) fn must_take_frames(target: &LinkInfo) -> Result<Option<Pass>> {
    let Err(deaf) = must_take_frames_as_it_is(target) else { return Ok(None) };
    if !target.xdp.is_empty() {
        return Err(deaf);
    }
    let Ok(pass) = Pass::attach(target) else { return Err(deaf) };
    must_take_frames_as_it_is(target).map(|()| Some(pass)).map_err(|_still| deaf)
}

/// The same with what is there.
pub(crate) fn must_take_frames_as_it_is(target: &LinkInfo) -> Result<()> {
    let Reading::Known(features) = features(target.ifindex) else { return Ok(()) };
    if features.contains(&XdpFeature::NdoXmit) {
        return Ok(());
    }
    let LinkInfo { name, ifindex, .. } = target;
    // Scripts look for the sentence after the colon.
    let what = format!("send packets out of {name} (ifindex {ifindex})");
    let sentence = format!("Interface {name} does not support sending packets via XDP.");
    Err(match (target.kind.as_deref() == Some("veth"), features.is_empty()) {
        (true, false) => Error::unsupported(what, format!("{sentence} Its peer has no NAPI (EOPNOTSUPP)")).remedy(
            "attach a native XDP program to the peer, or turn its GRO on while it is up: ethtool -K PEER gro on",
        ),
        (true, true) => {
            Error::unsupported(what, format!("{sentence} It has fewer RX queues than its peer has TX queues"))
                .remedy(format!("give it more: ethtool -L {name} rx N"))
        }
        (false, _) => Error::unsupported(what, format!("{sentence} Its driver has no ndo_xdp_xmit now (EOPNOTSUPP)"))
            .remedy("use xsk-udp or socket"),
    })
}
