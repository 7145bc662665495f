//! The test bed: network namespaces, a veth pair, addresses, offloads and who runs on which CPU. Everything made here is
//! gone when its owner is dropped, and when the process dies.

mod lab;
mod netns;
mod placement;
mod sysfs;

pub use lab::{Lab, LabDescription, LabSpec, Port, PortDescription, native_xdp_mtu_limit};
pub use netns::NetNs;
pub use placement::{NapiThread, Placement, PlacementState};
pub use sysfs::Sysfs;
