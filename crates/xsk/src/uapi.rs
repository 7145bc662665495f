//! Every definition taken from the kernel's user-space interface, and nothing else.
//!
//! Source: `include/uapi/linux/if_xdp.h`, `asm-generic/socket.h`, `linux/netdev.h` and `linux/ethtool.h` of
//! Linux 6.18. Names are the kernel's, so that a search for either finds it. A version in brackets is the first
//! kernel that has the definition; without one it is part of AF_XDP since Linux 5.4.

use std::mem::{offset_of, size_of};

pub(crate) const AF_XDP: i32 = 44;
pub(crate) const SOL_XDP: i32 = 283;

// sockaddr_xdp.sxdp_flags
pub(crate) const XDP_SHARED_UMEM: u16 = 1 << 0;
pub(crate) const XDP_COPY: u16 = 1 << 1;
pub(crate) const XDP_ZEROCOPY: u16 = 1 << 2;
pub(crate) const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
/// Several descriptors a packet (6.6).
pub(crate) const XDP_USE_SG: u16 = 1 << 4;

// xdp_umem_reg.flags
pub(crate) const XDP_UMEM_UNALIGNED_CHUNK_FLAG: u32 = 1 << 0;
/// The kernel computes Tx checksums in software in copy mode (6.8).
pub(crate) const XDP_UMEM_TX_SW_CSUM: u32 = 1 << 1;
/// `tx_metadata_len` is valid (6.11; 6.8 to 6.10 read it without the flag).
pub(crate) const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;

// setsockopt and getsockopt at SOL_XDP
pub(crate) const XDP_MMAP_OFFSETS: i32 = 1;
pub(crate) const XDP_RX_RING: i32 = 2;
pub(crate) const XDP_TX_RING: i32 = 3;
pub(crate) const XDP_UMEM_REG: i32 = 4;
pub(crate) const XDP_UMEM_FILL_RING: i32 = 5;
pub(crate) const XDP_UMEM_COMPLETION_RING: i32 = 6;
pub(crate) const XDP_STATISTICS: i32 = 7;
pub(crate) const XDP_OPTIONS: i32 = 8;
/// Linux 6.17.
pub(crate) const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// `xdp_options.flags`: the socket is bound in zero-copy mode.
pub(crate) const XDP_OPTIONS_ZEROCOPY: u32 = 1 << 0;

/// Ring flags word: the kernel asks to be woken (see `XDP_USE_NEED_WAKEUP`).
pub(crate) const XDP_RING_NEED_WAKEUP: u32 = 1 << 0;

// mmap offsets of the rings
pub(crate) const XDP_PGOFF_RX_RING: i64 = 0;
pub(crate) const XDP_PGOFF_TX_RING: i64 = 0x8000_0000;
pub(crate) const XDP_UMEM_PGOFF_FILL_RING: i64 = 0x1_0000_0000;
pub(crate) const XDP_UMEM_PGOFF_COMPLETION_RING: i64 = 0x1_8000_0000;

// A descriptor's address in unaligned mode: base in the low 48 bits, offset above.
pub(crate) const XSK_UNALIGNED_BUF_OFFSET_SHIFT: u32 = 48;
pub(crate) const XSK_UNALIGNED_BUF_ADDR_MASK: u64 = (1 << XSK_UNALIGNED_BUF_OFFSET_SHIFT) - 1;

// xdp_desc.options
/// The packet continues in the next descriptor (6.6).
pub(crate) const XDP_PKT_CONTD: u32 = 1 << 0;
/// A `xsk_tx_metadata` lies before the packet (6.8).
pub(crate) const XDP_TX_METADATA: u32 = 1 << 1;

// xsk_tx_metadata.flags (6.8; launch time 6.14)
pub(crate) const XDP_TXMD_FLAGS_TIMESTAMP: u64 = 1 << 0;
pub(crate) const XDP_TXMD_FLAGS_CHECKSUM: u64 = 1 << 1;
pub(crate) const XDP_TXMD_FLAGS_LAUNCH_TIME: u64 = 1 << 2;

/// Room before a received packet that belongs to XDP programs (`linux/bpf.h`).
pub(crate) const XDP_PACKET_HEADROOM: u32 = 256;
/// Smallest frame (`XDP_UMEM_MIN_CHUNK_SIZE`, net/xdp/xdp_umem.c); the largest is one page.
pub(crate) const XDP_UMEM_MIN_CHUNK_SIZE: u32 = 2048;
/// Most descriptors of one packet in copy mode: the linear part and `MAX_SKB_FRAGS` fragments, whose lowest
/// configurable value is 17 (net/Kconfig).
pub(crate) const MAX_SEGMENTS: usize = 18;
/// `tx_metadata_len` must stay below this (net/xdp/xdp_umem.c).
pub(crate) const TX_METADATA_LEN: u32 = size_of::<xsk_tx_metadata>() as u32;

// Busy polling, at SOL_SOCKET (5.11; SO_BUSY_POLL 3.11)
pub(crate) const SO_BUSY_POLL: i32 = 46;
pub(crate) const SO_PREFER_BUSY_POLL: i32 = 69;
pub(crate) const SO_BUSY_POLL_BUDGET: i32 = 70;

// Generic netlink: linux/genetlink.h, linux/netdev.h (6.3; xsk features 6.8)
pub(crate) const GENL_ID_CTRL: u16 = 16;
pub(crate) const CTRL_CMD_GETFAMILY: u8 = 3;
pub(crate) const CTRL_ATTR_FAMILY_ID: u16 = 1;
pub(crate) const CTRL_ATTR_FAMILY_NAME: u16 = 2;
pub(crate) const NETDEV_FAMILY_NAME: &[u8] = b"netdev\0";
pub(crate) const NETDEV_CMD_DEV_GET: u8 = 1;
pub(crate) const NETDEV_A_DEV_IFINDEX: u16 = 1;
pub(crate) const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
pub(crate) const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
pub(crate) const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
pub(crate) const NETDEV_XDP_ACT_BASIC: u64 = 1 << 0;
pub(crate) const NETDEV_XDP_ACT_REDIRECT: u64 = 1 << 1;
pub(crate) const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 1 << 3;
pub(crate) const NETDEV_XDP_ACT_RX_SG: u64 = 1 << 5;
pub(crate) const NETDEV_XSK_FLAGS_TX_TIMESTAMP: u64 = 1 << 0;
pub(crate) const NETDEV_XSK_FLAGS_TX_CHECKSUM: u64 = 1 << 1;
pub(crate) const NETDEV_XSK_FLAGS_TX_LAUNCH_TIME_FIFO: u64 = 1 << 2;

// linux/ethtool.h
pub(crate) const ETHTOOL_GCHANNELS: u32 = 0x3c;

#[repr(C)]
#[derive(Default)]
pub(crate) struct ethtool_channels {
    pub(crate) cmd: u32,
    /// `max_rx`, `max_tx`, `max_other`, `max_combined`.
    pub(crate) max: [u32; 4],
    pub(crate) rx_count: u32,
    pub(crate) tx_count: u32,
    pub(crate) other_count: u32,
    pub(crate) combined_count: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct sockaddr_xdp {
    pub(crate) sxdp_family: u16,
    pub(crate) sxdp_flags: u16,
    pub(crate) sxdp_ifindex: u32,
    pub(crate) sxdp_queue_id: u32,
    pub(crate) sxdp_shared_umem_fd: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct xdp_ring_offset {
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    pub(crate) desc: u64,
    pub(crate) flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct xdp_mmap_offsets {
    pub(crate) rx: xdp_ring_offset,
    pub(crate) tx: xdp_ring_offset,
    pub(crate) fr: xdp_ring_offset,
    pub(crate) cr: xdp_ring_offset,
}

/// The layout of Linux 6.8 and later; older kernels read only what they know of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct xdp_umem_reg {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) chunk_size: u32,
    pub(crate) headroom: u32,
    pub(crate) flags: u32,
    pub(crate) tx_metadata_len: u32,
}

/// Version 2 (5.9): the last three counters are missing before.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct xdp_statistics {
    pub(crate) rx_dropped: u64,
    pub(crate) rx_invalid_descs: u64,
    pub(crate) tx_invalid_descs: u64,
    pub(crate) rx_ring_full: u64,
    pub(crate) rx_fill_ring_empty_descs: u64,
    pub(crate) tx_ring_empty_descs: u64,
}

/// Bytes of `xdp_statistics` before version 2.
pub(crate) const XDP_STATISTICS_V1_SIZE: usize = offset_of!(xdp_statistics, rx_ring_full);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct xdp_options {
    pub(crate) flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct xdp_desc {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

/// The request form of the union; `completion.tx_timestamp` lies over `csum_start` and what follows it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct xsk_tx_metadata {
    pub(crate) flags: u64,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
    pub(crate) launch_time: u64,
}

/// Where `completion.tx_timestamp` lies in [`xsk_tx_metadata`].
pub(crate) const TX_TIMESTAMP_OFFSET: usize = offset_of!(xsk_tx_metadata, csum_start);

// The sizes and offsets the kernel's compiler gives them.
const _: () = {
    assert!(size_of::<sockaddr_xdp>() == 16);
    assert!(size_of::<xdp_mmap_offsets>() == 128);
    assert!(size_of::<xdp_umem_reg>() == 32);
    assert!(size_of::<xdp_statistics>() == 48);
    assert!(size_of::<xdp_desc>() == 16);
    assert!(size_of::<ethtool_channels>() == 36);
    assert!(size_of::<xsk_tx_metadata>() == 24);
    assert!(offset_of!(xsk_tx_metadata, launch_time) == 16);
    assert!(TX_TIMESTAMP_OFFSET == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Each definition that the libc crate has too, against it.
    macro_rules! same_as_libc {
        ($($name:ident)*) => {
            $(assert_eq!(i128::from($name), i128::from(libc::$name), stringify!($name));)*
        };
    }

    #[test]
    fn definitions_agree_with_those_of_libc() {
        same_as_libc!(AF_XDP SOL_XDP XDP_SHARED_UMEM XDP_COPY XDP_ZEROCOPY XDP_USE_NEED_WAKEUP XDP_USE_SG);
        same_as_libc!(XDP_UMEM_UNALIGNED_CHUNK_FLAG XDP_UMEM_TX_SW_CSUM XDP_UMEM_TX_METADATA_LEN);
        same_as_libc!(XDP_MMAP_OFFSETS XDP_RX_RING XDP_TX_RING XDP_UMEM_REG XDP_UMEM_FILL_RING);
        same_as_libc!(XDP_UMEM_COMPLETION_RING XDP_STATISTICS XDP_OPTIONS XDP_OPTIONS_ZEROCOPY XDP_RING_NEED_WAKEUP);
        same_as_libc!(XDP_PGOFF_RX_RING XDP_PGOFF_TX_RING XDP_UMEM_PGOFF_FILL_RING XDP_UMEM_PGOFF_COMPLETION_RING);
        same_as_libc!(XSK_UNALIGNED_BUF_OFFSET_SHIFT XSK_UNALIGNED_BUF_ADDR_MASK XDP_PKT_CONTD XDP_TX_METADATA);
        same_as_libc!(XDP_TXMD_FLAGS_TIMESTAMP XDP_TXMD_FLAGS_CHECKSUM);
        same_as_libc!(SO_BUSY_POLL SO_PREFER_BUSY_POLL SO_BUSY_POLL_BUDGET);
    }
}
