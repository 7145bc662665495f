//! The kernel's own words when it refuses to attach an XDP program by `bpf_link`, which has no other way to say them.

use aya::Ebpf;
use aya::maps::{Array, MapData};

use super::attach;
use crate::bpf;

/// Listens to `bpf_xdp_link_attach_failed` (kernel 6.6) for this process.
pub struct AttachMessage {
    message: Array<MapData, [u8; 128]>,
    _object: Ebpf,
}

impl AttachMessage {
    /// Starts to listen; `None` where this kernel can't be listened to. The message is a help and never a need.
    #[must_use]
    pub fn listen() -> Option<Self> {
        let mut object = bpf::load(
            bpf::OBSERVE,
            &bpf::Object {
                globals: [("tgid", std::process::id())].into(),
                needs_kernel_types: true,
                ..bpf::Object::default()
            },
        )
        .ok()?;
        attach(&mut object, "bpf_xdp_link_attach_failed").ok()?;
        let message = bpf::take_map(&mut object, "attach_message").ok()?;
        Some(Self { message, _object: object })
    }

    /// What the kernel said last; empty if it said nothing.
    #[must_use]
    pub fn text(&self) -> String {
        let bytes = self.message.get(&0, 0).unwrap_or([0; 128]);
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}
