//! The test bed: network namespaces, a veth pair, addresses, offloads and who runs on which CPU. Everything made here is
//! gone when its owner is dropped, and when the process dies; one of [`NamedLabs`] alone outlives its process.

mod interface;
mod lab;
mod named;
mod netns;
mod network;
mod network_file;
mod placement;
mod sysfs;

pub use lab::{Exit, Lab, LabDescription, LabSpec, Port, PortDescription, REDIRECT_TARGET, native_xdp_mtu_limit};
pub use named::{Listed, NamedLab, NamedLabs, NamedNamespace, Status, TakenDown};
pub use netns::NetNs;
pub use network::{Network, NetworkPort};
pub use network_file::{BridgeSpec, EndSpec, LinkSpec, NamespaceSpec, NetworkSpec, Prefix, RouteSpec, builtin_names};
pub use placement::{NapiThread, Placement, PlacementName, PlacementState};
pub use sysfs::Sysfs;
