//! The steps of binding a socket, each with its errors.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::{BindMode, BusyPoll, Config, Mode};
use crate::device::Probe;
use crate::error::{Error, Result, Ring};
use crate::netdev::DeviceFeatures;
use crate::ring::Mapped;
use crate::socket::{Lease, Link, Release};
use crate::sys::{self, Mapping};
use crate::uapi::{self, xdp_desc, xdp_ring_offset};
use crate::umem::{Pages, TxMetadata, Umem};

/// The mapped rings of a new socket.
pub(crate) struct Rings {
    pub(crate) fill: Mapped<u64>,
    pub(crate) rx: Mapped<xdp_desc>,
    pub(crate) tx: Mapped<xdp_desc>,
    pub(crate) completion: Mapped<u64>,
}

/// Binds a socket, and lets those that follow share the umem through it.
pub(crate) fn bind(umem: &Umem, ifindex: u32, queue: u32, config: &Config) -> Result<(Rings, Arc<Link>)> {
    config.check()?;
    let _binding = umem.shared().binding.lock().unwrap_or_else(PoisonError::into_inner);
    let sharer = sharer(umem, ifindex, queue, config)?;
    let mut lease = Lease::new(umem)?;
    let fd = sys::socket().map_err(socket_error)?;
    if sharer.is_none() {
        register(umem, fd.as_raw_fd())?;
    }
    if let Some(busy_poll) = &config.busy_poll {
        set_busy_poll(fd.as_raw_fd(), busy_poll)?;
    }
    let rings = create_rings(fd.as_raw_fd(), config)?;
    let target = Target { ifindex, queue, config, sharer: sharer.as_deref() };
    target.bind(fd.as_raw_fd())?;
    let mode = read_mode(fd.as_raw_fd(), &target)?;
    check_mode(mode, &target, umem)?;
    if mode == Mode::ZeroCopy || umem.layout().tx_metadata != TxMetadata::None {
        let probe = Probe::new().map_err(|source| target.error("socket(AF_XDP) of a probe", "free memory", source))?;
        lease.wait_for(Release { probe, ifindex, queue });
    }
    let link = Arc::new(Link {
        fd,
        lease: Arc::new(lease),
        umem: umem.clone(),
        ifindex,
        queue,
        mode,
        need_wakeup: config.need_wakeup,
        multi_buffer: config.multi_buffer,
        tx_budget: config.tx_budget,
        max_segments: max_segments(mode, ifindex, config),
    });
    umem.shared().sockets().bound.push(Arc::downgrade(&link));
    Ok((rings, link))
}

/// Binds a further socket to the queue of `first`, whose fill and completion ring it shares.
pub(crate) fn bind_sharer(
    first: &Arc<Link>,
    rx_ring: u32,
    tx_ring: u32,
) -> Result<(Mapped<xdp_desc>, Mapped<xdp_desc>, Arc<Link>)> {
    let tx_budget = first.tx_budget;
    let config = Config { rx_ring, tx_ring, need_wakeup: first.need_wakeup, tx_budget, ..Config::default() };
    config.check()?;
    let fd = sys::socket().map_err(socket_error)?;
    let (rx, tx) = create_packet_rings(fd.as_raw_fd(), &config)?;
    set_tx_budget(fd.as_raw_fd(), &config)?;
    let Link { ifindex, queue, mode, need_wakeup, multi_buffer, max_segments, .. } = **first;
    Target { ifindex, queue, config: &config, sharer: Some(first) }.bind(fd.as_raw_fd())?;
    first.lease.share();
    let (lease, umem) = (Arc::clone(&first.lease), first.umem.clone());
    let link = Link { fd, lease, umem, ifindex, queue, mode, need_wakeup, multi_buffer, tx_budget, max_segments };
    Ok((rx, tx, Arc::new(link)))
}

/// A bound socket of the same umem to share it through. One of the same queue goes first: only through it does the
/// kernel notice that the queue has this umem already, and say so at once.
fn sharer(umem: &Umem, ifindex: u32, queue: u32, config: &Config) -> Result<Option<Arc<Link>>> {
    let mut sockets = umem.shared().sockets();
    sockets.bound.retain(|link| link.strong_count() > 0);
    let mut links: Vec<_> = sockets.bound.iter().filter_map(Weak::upgrade).collect();
    // Released before any link: dropping the last link of a socket takes this lock.
    drop(sockets);
    links.sort_by_key(|link| (link.ifindex, link.queue) != (ifindex, queue));
    let sharer = links.into_iter().next();
    let Some(first) = &sharer else { return Ok(None) };
    if first.need_wakeup != config.need_wakeup || first.multi_buffer != config.multi_buffer {
        return Err(Error::config(
            "shared umem",
            "need_wakeup and multi_buffer are those of its first socket",
            format!("set need_wakeup {} and multi_buffer {}", first.need_wakeup, first.multi_buffer),
        ));
    }
    Ok(sharer)
}

fn socket_error(source: io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::EPERM) => "run as root, or with CAP_NET_RAW",
        Some(libc::EAFNOSUPPORT) => "use a kernel with CONFIG_XDP_SOCKETS",
        _ => "raise the limit of open files",
    };
    Error::Call { subject: "socket".into(), call: "socket(AF_XDP)", remedy: remedy.into(), source }
}

fn register(umem: &Umem, fd: RawFd) -> Result<()> {
    let layout = umem.layout();
    let unaligned = if layout.unaligned { uapi::XDP_UMEM_UNALIGNED_CHUNK_FLAG } else { 0 };
    let metadata = match layout.tx_metadata {
        TxMetadata::None => 0,
        TxMetadata::Enabled => uapi::XDP_UMEM_TX_METADATA_LEN,
        TxMetadata::SoftwareChecksum => uapi::XDP_UMEM_TX_METADATA_LEN | uapi::XDP_UMEM_TX_SW_CSUM,
    };
    let mut registration = uapi::xdp_umem_reg {
        addr: umem.shared().memory().start().as_ptr().expose_provenance() as u64,
        len: u64::from(layout.frames) * u64::from(layout.frame_size),
        chunk_size: layout.frame_size,
        headroom: layout.headroom,
        flags: unaligned | metadata,
        tx_metadata_len: umem.shared().tx_metadata_len(),
    };
    let mut outcome = sys::setsockopt(fd, uapi::SOL_XDP, uapi::XDP_UMEM_REG, &registration);
    let invalid = outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
    if metadata != 0 && invalid && knows_tx_metadata(&registration) {
        registration.flags &= !uapi::XDP_UMEM_TX_METADATA_LEN;
        outcome = sys::setsockopt(fd, uapi::SOL_XDP, uapi::XDP_UMEM_REG, &registration);
    }
    outcome.map_err(|source| {
        let remedy = match source.raw_os_error() {
            Some(libc::ENOBUFS) => {
                format!(
                    "raise RLIMIT_MEMLOCK (ulimit -l) to {} KiB or add CAP_IPC_LOCK",
                    registration.len.div_ceil(1024)
                )
            }
            Some(libc::EINVAL) if metadata != 0 => "Tx metadata needs Linux 6.8".into(),
            _ => "ask for fewer frames".into(),
        };
        let subject = format!("umem of {} frames of {} bytes", layout.frames, layout.frame_size);
        Error::Call { subject, call: "setsockopt(XDP_UMEM_REG)", remedy, source }
    })
}

/// Whether the kernel has Tx metadata, though not the flag that announces it: Linux 6.8 to 6.10. Older ones would
/// ignore the length without a word; they do not know the software checksum either.
fn knows_tx_metadata(registration: &uapi::xdp_umem_reg) -> bool {
    let unaligned = registration.flags & uapi::XDP_UMEM_UNALIGNED_CHUNK_FLAG;
    let trial = uapi::xdp_umem_reg { flags: unaligned | uapi::XDP_UMEM_TX_SW_CSUM, ..*registration };
    sys::socket().is_ok_and(|fd| sys::setsockopt(fd.as_raw_fd(), uapi::SOL_XDP, uapi::XDP_UMEM_REG, &trial).is_ok())
}

fn set_busy_poll(fd: RawFd, busy_poll: &BusyPoll) -> Result<()> {
    let time = busy_poll.time.as_micros().try_into().unwrap_or(i32::MAX);
    let options = [
        (uapi::SO_PREFER_BUSY_POLL, i32::from(busy_poll.prefer), "setsockopt(SO_PREFER_BUSY_POLL)"),
        (uapi::SO_BUSY_POLL, time, "setsockopt(SO_BUSY_POLL)"),
        (uapi::SO_BUSY_POLL_BUDGET, i32::from(busy_poll.budget), "setsockopt(SO_BUSY_POLL_BUDGET)"),
    ];
    for (option, value, call) in options {
        sys::setsockopt(fd, libc::SOL_SOCKET, option, &value).map_err(|source| {
            let remedy = match source.raw_os_error() {
                Some(libc::EPERM) => "add CAP_NET_ADMIN",
                Some(libc::ENOPROTOOPT) => "busy polling needs Linux 5.11 with CONFIG_NET_RX_BUSY_POLL",
                _ => "choose a smaller value",
            };
            Error::Call { subject: "busy polling".into(), call, remedy: remedy.into(), source }
        })?;
    }
    Ok(())
}

fn create_rings(fd: RawFd, config: &Config) -> Result<Rings> {
    let sizes = [
        (Ring::Fill, uapi::XDP_UMEM_FILL_RING, config.fill_ring, "setsockopt(XDP_UMEM_FILL_RING)"),
        (
            Ring::Completion,
            uapi::XDP_UMEM_COMPLETION_RING,
            config.completion_ring,
            "setsockopt(XDP_UMEM_COMPLETION_RING)",
        ),
    ];
    for (ring, option, size, call) in sizes {
        set_size(fd, ring, option, size, call)?;
    }
    let (rx, tx) = create_packet_rings(fd, config)?;
    set_tx_budget(fd, config)?;
    let offsets = offsets(fd)?;
    Ok(Rings {
        fill: map_ring(fd, Ring::Fill, &offsets.fr, config.fill_ring, uapi::XDP_UMEM_PGOFF_FILL_RING)?,
        rx,
        tx,
        completion: map_ring(
            fd,
            Ring::Completion,
            &offsets.cr,
            config.completion_ring,
            uapi::XDP_UMEM_PGOFF_COMPLETION_RING,
        )?,
    })
}

fn create_packet_rings(fd: RawFd, config: &Config) -> Result<(Mapped<xdp_desc>, Mapped<xdp_desc>)> {
    set_size(fd, Ring::Rx, uapi::XDP_RX_RING, config.rx_ring, "setsockopt(XDP_RX_RING)")?;
    set_size(fd, Ring::Tx, uapi::XDP_TX_RING, config.tx_ring, "setsockopt(XDP_TX_RING)")?;
    let offsets = offsets(fd)?;
    Ok((
        map_ring(fd, Ring::Rx, &offsets.rx, config.rx_ring, uapi::XDP_PGOFF_RX_RING)?,
        map_ring(fd, Ring::Tx, &offsets.tx, config.tx_ring, uapi::XDP_PGOFF_TX_RING)?,
    ))
}

fn set_tx_budget(fd: RawFd, config: &Config) -> Result<()> {
    let Some(budget) = config.tx_budget else { return Ok(()) };
    match sys::setsockopt(fd, uapi::SOL_XDP, uapi::XDP_MAX_TX_SKB_BUDGET, &budget.cast_signed()) {
        // A kernel that does not know it keeps its own.
        Err(source) if source.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(Error::Call {
            subject: format!("Tx budget of {budget} packets"),
            call: "setsockopt(XDP_MAX_TX_SKB_BUDGET)",
            remedy: "choose 32 up to the entries of the Tx ring".into(),
            source,
        }),
        _ => Ok(()),
    }
}

fn set_size(fd: RawFd, ring: Ring, option: i32, size: u32, call: &'static str) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    sys::setsockopt(fd, uapi::SOL_XDP, option, &size.cast_signed())
        .map_err(|source| ring_error(ring, size, call, source))
}

fn offsets(fd: RawFd) -> Result<uapi::xdp_mmap_offsets> {
    let mut offsets = uapi::xdp_mmap_offsets::default();
    let len = sys::getsockopt(fd, uapi::XDP_MMAP_OFFSETS, &mut offsets).map_err(|source| Error::Call {
        subject: "rings".into(),
        call: "getsockopt(XDP_MMAP_OFFSETS)",
        remedy: "use Linux 5.4 or later".into(),
        source,
    })?;
    if len < size_of::<uapi::xdp_mmap_offsets>() {
        return Err(Error::config("kernel", "has AF_XDP without ring flags", "use Linux 5.4 or later"));
    }
    Ok(offsets)
}

fn map_ring<E: Copy>(fd: RawFd, ring: Ring, offset: &xdp_ring_offset, size: u32, at: i64) -> Result<Mapped<E>> {
    let len = Mapped::<E>::len(offset, size);
    // A ring the socket goes without is an empty one of its own.
    let mapping = if size == 0 { Mapping::anonymous(len, 0) } else { Mapping::ring(fd, len, at) };
    mapping
        .and_then(|mapping| {
            Mapped::new(mapping, offset, size).ok_or_else(|| io::Error::other("offsets outside the mapping"))
        })
        .map_err(|source| ring_error(ring, size, "mmap", source))
}

fn ring_error(ring: Ring, size: u32, call: &'static str, source: io::Error) -> Error {
    Error::Call { subject: format!("{ring} of {size} entries"), call, remedy: "choose a smaller ring".into(), source }
}

/// What a socket is bound to, for the bind and its errors.
struct Target<'a> {
    ifindex: u32,
    queue: u32,
    config: &'a Config,
    sharer: Option<&'a Link>,
}

impl Target<'_> {
    fn bind(&self, fd: RawFd) -> Result<()> {
        let address = uapi::sockaddr_xdp {
            sxdp_family: uapi::AF_XDP as u16,
            // A shared umem comes with the flags of its first socket; any other flag is refused.
            sxdp_flags: if self.sharer.is_some() { uapi::XDP_SHARED_UMEM } else { self.config.bind_flags() },
            sxdp_ifindex: self.ifindex,
            sxdp_queue_id: self.queue,
            sxdp_shared_umem_fd: self.sharer.map_or(0, |first| first.fd.as_raw_fd().cast_unsigned()),
        };
        let start = Instant::now();
        let mut pause = Duration::from_micros(500);
        loop {
            let Err(source) = sys::bind(fd, &address) else { return Ok(()) };
            if source.raw_os_error() != Some(libc::EBUSY) {
                return Err(self.error("bind(AF_XDP)", &self.remedy(&source), source));
            }
            let waited = start.elapsed();
            if waited >= self.config.bind_timeout {
                return Err(Error::QueueBusy { ifindex: self.ifindex, queue: self.queue, waited });
            }
            thread::sleep(pause.min(self.config.bind_timeout - waited));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn remedy(&self, error: &io::Error) -> String {
        match error.raw_os_error() {
            Some(libc::EINVAL) => self.invalid_remedy(),
            Some(libc::ENODEV) => "there is no such interface in the network namespace of this thread".into(),
            Some(libc::EOPNOTSUPP) if self.config.mode == BindMode::ZeroCopy => {
                let with = if self.config.multi_buffer { " with multi_buffer" } else { "" };
                format!("the driver has no zero-copy{with}; use BindMode::Auto or BindMode::Copy")
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => "ask for fewer frames or smaller rings".into(),
            _ => "check the interface and its driver".into(),
        }
    }

    /// The kernel says EINVAL for several things; tells them apart as far as can be seen from here.
    fn invalid_remedy(&self) -> String {
        match sys::queue_count(self.ifindex) {
            Ok(queues) if self.queue >= queues => format!(
                "queue {} is out of range, the interface has {queues}; choose one below, or add queues (ethtool -L)",
                self.queue
            ),
            _ if self.sharer.is_some() => "a further socket of a umem needs a queue of its own".into(),
            _ if self.config.multi_buffer => "the queue is out of range, or multi_buffer needs Linux 6.6".into(),
            _ => "choose a queue that the interface has".into(),
        }
    }

    fn error(&self, call: &'static str, remedy: &str, source: io::Error) -> Error {
        let subject = format!("ifindex {} queue {}", self.ifindex, self.queue);
        Error::Call { subject, call, remedy: remedy.into(), source }
    }
}

fn read_mode(fd: RawFd, target: &Target<'_>) -> Result<Mode> {
    let mut options = uapi::xdp_options::default();
    sys::getsockopt(fd, uapi::XDP_OPTIONS, &mut options)
        .map_err(|source| target.error("getsockopt(XDP_OPTIONS)", "use Linux 5.4 or later", source))?;
    Ok(if options.flags & uapi::XDP_OPTIONS_ZEROCOPY != 0 { Mode::ZeroCopy } else { Mode::Copy })
}

/// Refuses a mode that was not asked for, or that would lose frames.
fn check_mode(mode: Mode, target: &Target<'_>, umem: &Umem) -> Result<()> {
    let asked = target.config.mode;
    if (asked == BindMode::Copy && mode != Mode::Copy) || (asked == BindMode::ZeroCopy && mode != Mode::ZeroCopy) {
        let problem = format!("asked for {asked:?}, the kernel gave {mode:?}");
        return Err(Error::config("mode", problem, "sockets of one umem share its mode: use a umem of its own"));
    }
    let layout = umem.layout();
    let crosses_pages = layout.unaligned && layout.pages == Pages::Base && !layout.frame_size.is_power_of_two();
    if mode == Mode::ZeroCopy && crosses_pages {
        // The kernel would swallow every frame that crosses pages that are not adjacent (xp_check_unaligned).
        return Err(Error::config(
            "umem",
            "unaligned frames cross base pages, which zero-copy cannot use",
            "use huge pages, a power of two as frame_size, or BindMode::Copy",
        ));
    }
    Ok(())
}

/// The kernel swallows the frames of a packet with more segments than the device takes (net/xdp/xsk_queue.h,
/// `xskq_cons_read_desc_batch`).
fn max_segments(mode: Mode, ifindex: u32, config: &Config) -> usize {
    if !config.multi_buffer {
        return 1;
    }
    if mode == Mode::Copy {
        return uapi::MAX_SEGMENTS;
    }
    let segments = DeviceFeatures::of(ifindex).ok().and_then(|features| features.zero_copy_segments);
    segments.map_or(1, |segments| uapi::MAX_SEGMENTS.min(segments as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::umem::UmemConfig;

    fn check(asked: BindMode, given: Mode, layout: UmemConfig) -> Result<()> {
        let config = Config { mode: asked, ..Config::default() };
        let target = Target { ifindex: 1, queue: 0, config: &config, sharer: None };
        check_mode(given, &target, &Umem::new(UmemConfig { frames: 4, ..layout })?)
    }

    #[test]
    fn only_a_mode_that_was_asked_for_is_accepted() {
        let accepted = |asked, given| check(asked, given, UmemConfig::default()).is_ok();
        for given in [Mode::Copy, Mode::ZeroCopy] {
            assert!(accepted(BindMode::Auto, given));
            assert_eq!(accepted(BindMode::Copy, given), given == Mode::Copy);
            assert_eq!(accepted(BindMode::ZeroCopy, given), given == Mode::ZeroCopy);
        }
        let error = check(BindMode::ZeroCopy, Mode::Copy, UmemConfig::default()).unwrap_err().to_string();
        assert!(error.starts_with("mode: asked for ZeroCopy, the kernel gave Copy; "), "{error}");
    }

    #[test]
    fn zero_copy_refuses_frames_that_cross_base_pages() {
        let unaligned = |frame_size| UmemConfig { frame_size, unaligned: true, ..UmemConfig::default() };
        let error = check(BindMode::Auto, Mode::ZeroCopy, unaligned(3000)).unwrap_err().to_string();
        assert!(error.starts_with("umem: unaligned frames cross base pages"), "{error}");
        assert!(check(BindMode::Auto, Mode::ZeroCopy, unaligned(2048)).is_ok());
        assert!(check(BindMode::Auto, Mode::Copy, unaligned(3000)).is_ok());
    }

    #[test]
    fn the_mode_goes_into_the_flags_of_the_bind() {
        let flags = |mode| Config { mode, need_wakeup: false, ..Config::default() }.bind_flags();
        let of_modes = [BindMode::Auto, BindMode::Copy, BindMode::ZeroCopy].map(flags);
        assert_eq!(of_modes, [0, uapi::XDP_COPY, uapi::XDP_ZEROCOPY]);
    }
}
