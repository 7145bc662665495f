//! The `ethtool` family (`Documentation/networking/ethtool-netlink.rst`): channels, rings and offload features.

use netlink_packet_core::DefaultNla;
use serde::{Deserialize, Serialize};

use super::attributes::{Attributes, flag_attribute, nested_attribute, string_attribute, u32_attribute};
use super::generic::{Family, Message};
use crate::error::{Error, Result};

/// Numbers of `include/uapi/linux/ethtool_netlink.h`.
mod uapi {
    pub(super) const MSG_FEATURES_GET: u8 = 11;
    pub(super) const MSG_FEATURES_SET: u8 = 12;
    pub(super) const MSG_RINGS_GET: u8 = 15;
    pub(super) const MSG_CHANNELS_GET: u8 = 17;

    /// The attribute with the interface is the first of every request.
    pub(super) const HEADER: u16 = 1;
    pub(super) const HEADER_DEV_INDEX: u16 = 1;

    pub(super) const BITSET_BITS: u16 = 3;
    pub(super) const BITSET_BITS_BIT: u16 = 1;
    pub(super) const BITSET_BIT_NAME: u16 = 2;
    pub(super) const BITSET_BIT_VALUE: u16 = 3;

    pub(super) const FEATURES_HW: u16 = 2;
    pub(super) const FEATURES_WANTED: u16 = 3;
    pub(super) const FEATURES_ACTIVE: u16 = 4;
    pub(super) const FEATURES_NOCHANGE: u16 = 5;

    pub(super) const RINGS_RX_MAX: u16 = 2;
    pub(super) const RINGS_TX_MAX: u16 = 5;
    pub(super) const RINGS_RX: u16 = 6;
    pub(super) const RINGS_TX: u16 = 9;

    pub(super) const CHANNELS_RX_COUNT: u16 = 6;
    pub(super) const CHANNELS_TX_COUNT: u16 = 7;
    pub(super) const CHANNELS_OTHER_COUNT: u16 = 8;
    pub(super) const CHANNELS_COMBINED_COUNT: u16 = 9;
}

/// A socket of the `ethtool` family (Linux 5.6 and later; features since 5.9).
pub struct Ethtool {
    family: Family,
}

/// The channels (queues with an interrupt of their own) in use; `None` where the driver does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Channels that only receive.
    pub rx: Option<u32>,
    /// Channels that only transmit.
    pub tx: Option<u32>,
    /// Channels for other events, e.g. link changes.
    pub other: Option<u32>,
    /// Channels that do both.
    pub combined: Option<u32>,
}

/// The descriptors of each hardware ring; `None` where the driver does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "four numbers with the kernel's names")]
pub struct Rings {
    pub rx: Option<u32>,
    pub rx_max: Option<u32>,
    pub tx: Option<u32>,
    pub tx_max: Option<u32>,
}

/// An offload feature of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// The kernel's name, e.g. `rx-gro` (`net/ethtool/common.c`, `netdev_features_strings`).
    pub name: String,
    /// Whether it is active.
    pub on: bool,
    /// Whether it can't be changed.
    pub fixed: bool,
}

impl Ethtool {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// Where the kernel lacks the family.
    pub fn open() -> Result<Self> {
        Ok(Self { family: Family::open("ethtool", "5.6 or later with CONFIG_ETHTOOL_NETLINK")? })
    }

    /// The channels in use.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver does not tell.
    pub fn channels(&mut self, ifindex: u32) -> Result<Channels> {
        let what = format!("read the channels of the interface with ifindex {ifindex}");
        let answer = self.get("netlink(ETHTOOL_MSG_CHANNELS_GET)", &what, uapi::MSG_CHANNELS_GET, ifindex)?;
        let attributes = answer.attributes();
        Ok(Channels {
            rx: attributes.u32(uapi::CHANNELS_RX_COUNT),
            tx: attributes.u32(uapi::CHANNELS_TX_COUNT),
            other: attributes.u32(uapi::CHANNELS_OTHER_COUNT),
            combined: attributes.u32(uapi::CHANNELS_COMBINED_COUNT),
        })
    }

    /// The sizes of the hardware rings.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver does not tell.
    pub fn rings(&mut self, ifindex: u32) -> Result<Rings> {
        let what = format!("read the ring sizes of the interface with ifindex {ifindex}");
        let answer = self.get("netlink(ETHTOOL_MSG_RINGS_GET)", &what, uapi::MSG_RINGS_GET, ifindex)?;
        let attributes = answer.attributes();
        Ok(Rings {
            rx: attributes.u32(uapi::RINGS_RX),
            rx_max: attributes.u32(uapi::RINGS_RX_MAX),
            tx: attributes.u32(uapi::RINGS_TX),
            tx_max: attributes.u32(uapi::RINGS_TX_MAX),
        })
    }

    /// Every offload feature the kernel knows, in its order.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn features(&mut self, ifindex: u32) -> Result<Vec<Feature>> {
        let what = format!("read the offload features of the interface with ifindex {ifindex}");
        let answer = self.get("netlink(ETHTOOL_MSG_FEATURES_GET)", &what, uapi::MSG_FEATURES_GET, ifindex)?;
        Ok(features_of(answer.attributes()))
    }

    /// Switches offloads on or off until the guard is dropped. Each is named by the kernel (`rx-gro`) or by the short name
    /// that `ethtool -K` takes for a group (`gro`, `gso`, `tso`, `tx`, `rx`, `sg`, `lro`).
    ///
    /// # Errors
    /// If the interface has no such offload, or one that is not as asked can't be changed; then everything is as before.
    pub fn set_offloads(mut self, ifindex: u32, offloads: &[(&str, bool)]) -> Result<OffloadGuard> {
        let before = self.features(ifindex)?;
        let wanted = resolve(ifindex, &before, offloads)?;
        let restore = wanted.iter().map(|(name, on)| (name.clone(), !on)).collect();
        let mut guard = OffloadGuard { ethtool: self, ifindex, restore };
        guard.ethtool.set_features(ifindex, &wanted)?;
        let after = guard.ethtool.features(ifindex)?;
        // Switching one may have switched others that depend on it.
        guard.restore = before
            .iter()
            .filter(|was| after.iter().any(|is| is.name == was.name && is.on != was.on))
            .map(|was| (was.name.clone(), was.on))
            .collect();
        let refused = wanted.iter().find(|(name, on)| after.iter().any(|is| is.name == *name && is.on != *on));
        match refused {
            Some((name, on)) => Err(Error::unsupported(set_what(ifindex, name, *on), "the kernel leaves it as it was")
                .remedy("it may depend on another one, as tso does on tx")),
            None => Ok(guard),
        }
    }

    fn set_features(&mut self, ifindex: u32, features: &[(String, bool)]) -> Result<()> {
        if features.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = features.iter().map(|(name, _)| name.as_str()).collect();
        let what = format!("set {} of the interface with ifindex {ifindex}", names.join(", "));
        let bits: Vec<_> = features.iter().map(|(name, on)| bit(name, *on)).collect();
        let request =
            [header(ifindex), nested_attribute(uapi::FEATURES_WANTED, &[nested_attribute(uapi::BITSET_BITS, &bits)])];
        self.family.request("netlink(ETHTOOL_MSG_FEATURES_SET)", &what, uapi::MSG_FEATURES_SET, &request, 0)?;
        Ok(())
    }

    fn get(&mut self, call: &'static str, what: &str, command: u8, ifindex: u32) -> Result<Message> {
        let answers = self.family.request(call, what, command, &[header(ifindex)], 0)?;
        answers.into_iter().next().ok_or_else(|| Error::invalid(what, format!("{call}: the kernel answered nothing")))
    }
}

/// Offloads that were switched; dropping it switches them back.
#[must_use = "the offloads are switched back when it is dropped"]
pub struct OffloadGuard {
    ethtool: Ethtool,
    ifindex: u32,
    restore: Vec<(String, bool)>,
}

impl OffloadGuard {
    /// What was changed, as it was before.
    #[must_use]
    pub fn before(&self) -> &[(String, bool)] {
        &self.restore
    }

    /// Leaves the offloads as they are now, e.g. on an interface that is thrown away.
    pub fn keep(mut self) {
        self.restore.clear();
    }

    /// Switches back now, to know whether it was done.
    ///
    /// # Errors
    /// If the kernel refuses or the interface is gone.
    pub fn restore(mut self) -> Result<()> {
        let features = std::mem::take(&mut self.restore);
        self.ethtool.set_features(self.ifindex, &features)
    }
}

impl Drop for OffloadGuard {
    fn drop(&mut self) {
        // An interface that is gone needs nothing switched back; who must know calls `restore`.
        drop(self.ethtool.set_features(self.ifindex, &self.restore));
    }
}

fn header(ifindex: u32) -> DefaultNla {
    nested_attribute(uapi::HEADER, &[u32_attribute(uapi::HEADER_DEV_INDEX, ifindex)])
}

fn bit(name: &str, on: bool) -> DefaultNla {
    let mut attributes = vec![string_attribute(uapi::BITSET_BIT_NAME, name)];
    if on {
        attributes.push(flag_attribute(uapi::BITSET_BIT_VALUE));
    }
    nested_attribute(uapi::BITSET_BITS_BIT, &attributes)
}

/// The features of an answer. `HW` names every feature and marks those that can be changed; the other sets name only
/// their members (`net/ethtool/features.c`).
fn features_of(answer: Attributes<'_>) -> Vec<Feature> {
    let names = |set| bits_of(answer, set).map(|(name, _)| name).collect::<Vec<_>>();
    let (active, fixed) = (names(uapi::FEATURES_ACTIVE), names(uapi::FEATURES_NOCHANGE));
    bits_of(answer, uapi::FEATURES_HW)
        .map(|(name, changeable)| Feature {
            on: active.contains(&name),
            fixed: !changeable || fixed.contains(&name),
            name,
        })
        .collect()
}

/// The bits of a bitset that are listed, each with its name and whether it is marked as set.
fn bits_of(answer: Attributes<'_>, set: u16) -> impl Iterator<Item = (String, bool)> {
    let bits = answer.nested(set).and_then(|set| set.nested(uapi::BITSET_BITS));
    bits.into_iter().flat_map(Attributes::iter).filter_map(|(_, bit)| {
        let bit = Attributes::new(bit);
        Some((bit.string(uapi::BITSET_BIT_NAME)?, bit.has(uapi::BITSET_BIT_VALUE)))
    })
}

/// The features of the interface that are not yet as `offloads` asks.
fn resolve(ifindex: u32, features: &[Feature], offloads: &[(&str, bool)]) -> Result<Vec<(String, bool)>> {
    let mut wanted = Vec::new();
    for &(offload, on) in offloads {
        let named: Vec<_> = features.iter().filter(|feature| is_named(&feature.name, offload)).collect();
        let what = || set_what(ifindex, offload, on);
        if named.is_empty() {
            return Err(Error::usage(what(), "the kernel knows no such offload"));
        }
        let changeable = || named.iter().filter(|feature| !feature.fixed);
        // Of a group those that the interface can't change are no obstacle to switching the others on.
        if let Some(fixed) = named.iter().find(|feature| feature.fixed && feature.on && !on) {
            return Err(Error::unsupported(what(), format!("{} is fixed there", fixed.name)));
        }
        if on && changeable().count() == 0 && !named.iter().any(|feature| feature.on) {
            return Err(Error::unsupported(what(), format!("{} is fixed there", named[0].name)));
        }
        wanted.extend(changeable().filter(|feature| feature.on != on).map(|feature| (feature.name.clone(), on)));
    }
    Ok(wanted)
}

/// Whether `offload` is the feature's own name, or the short name of `ethtool -K` for the group it belongs to.
fn is_named(feature: &str, offload: &str) -> bool {
    match offload {
        "gro" => feature == "rx-gro",
        "lro" => feature == "rx-lro",
        "rx" => feature == "rx-checksum",
        "gso" => feature == "tx-generic-segmentation",
        "sg" => feature.starts_with("tx-scatter-gather"),
        "tx" => feature.starts_with("tx-checksum-"),
        "tso" => feature.starts_with("tx-tcp") && feature.ends_with("-segmentation"),
        _ => feature == offload,
    }
}

fn set_what(ifindex: u32, offload: &str, on: bool) -> String {
    format!("switch {offload} {} on the interface with ifindex {ifindex}", if on { "on" } else { "off" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(name: &str, on: bool, fixed: bool) -> Feature {
        Feature { name: name.to_owned(), on, fixed }
    }

    fn features() -> Vec<Feature> {
        vec![
            feature("tx-checksum-ipv4", false, true),
            feature("tx-checksum-ip-generic", true, false),
            feature("tx-tcp-segmentation", true, false),
            feature("tx-tcp6-segmentation", false, false),
            feature("rx-gro", false, false),
            feature("tx-lockless", true, true),
        ]
    }

    #[test]
    fn a_short_name_stands_for_the_changeable_features_of_its_group() {
        let wanted = resolve(4, &features(), &[("tx", false), ("tso", true), ("gro", false)]).unwrap();
        assert_eq!(wanted, [("tx-checksum-ip-generic".to_owned(), false), ("tx-tcp6-segmentation".to_owned(), true)]);
    }

    #[test]
    fn what_can_not_be_as_asked_is_an_error() {
        let unknown = resolve(4, &features(), &[("warp", true)]).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "can't switch warp on on the interface with ifindex 4: the kernel knows no such offload"
        );
        let fixed = resolve(4, &features(), &[("tx-lockless", false)]).unwrap_err();
        assert_eq!(
            fixed.to_string(),
            "can't switch tx-lockless off on the interface with ifindex 4: tx-lockless is fixed there"
        );
        assert!(resolve(4, &features(), &[("tx-checksum-ipv4", true)]).is_err());
    }
}
