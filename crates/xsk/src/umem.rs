//! The umem: packet memory in frames, and the record of who holds each of them.
//!
//! Every frame has one owner, kept in a word of its own: the umem itself (free), a [`Frame`] value (user), an outside
//! pool that remembers the address (parked), or one side of one socket. Only the owner changes the word, so a frame
//! can never be reached twice, whatever addresses the kernel returns, and [`Umem::ledger`] can count all of them at
//! any time.
#![expect(unsafe_code, reason = "frames are parts of one mapping, handed out by owner")]

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::frame::Frame;
use crate::socket::{Link, Release};
use crate::sys::{self, Mapping};
use crate::uapi;

#[cfg(test)]
mod tests;

/// Pages the umem is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Pages of the base size (4 KiB on x86-64).
    #[default]
    Base,
    /// Huge pages of 2 MiB; they must have been set aside in `/proc/sys/vm/nr_hugepages`.
    Huge2M,
    /// Huge pages of 1 GiB.
    Huge1G,
}

impl Pages {
    fn map_flags(self) -> i32 {
        match self {
            Self::Base => 0,
            Self::Huge2M => libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
            Self::Huge1G => libc::MAP_HUGETLB | libc::MAP_HUGE_1GB,
        }
    }

    fn size(self) -> usize {
        match self {
            Self::Base => sys::page_size(),
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }
}

/// Room for requests to the device before each packet to send (`xsk_tx_metadata`). Linux 6.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "XDP_UMEM_TX_METADATA_LEN")]
pub enum TxMetadata {
    /// No room; [`crate::Segment::request`] is refused.
    #[default]
    None,
    /// Room for the requests; what the device can do is in [`crate::DeviceFeatures`].
    Enabled,
    /// As `Enabled`, and the kernel computes checksums in software in copy mode (`XDP_UMEM_TX_SW_CSUM`). For tests.
    #[doc(alias = "XDP_UMEM_TX_SW_CSUM")]
    SoftwareChecksum,
}

/// How a [`Umem`] is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UmemConfig {
    /// Number of frames.
    pub frames: u32,
    /// Bytes a frame: 2048 to one page; a power of two unless `unaligned`, a multiple of 8 in any case.
    pub frame_size: u32,
    /// Bytes kept free before each received packet, beside the 256 bytes that XDP programs own.
    pub headroom: u32,
    /// Pages to use.
    pub pages: Pages,
    /// Frames may have any size and cross pages (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`).
    #[doc(alias = "XDP_UMEM_UNALIGNED_CHUNK_FLAG")]
    pub unaligned: bool,
    /// Room for requests to the device.
    pub tx_metadata: TxMetadata,
}

impl Default for UmemConfig {
    /// 4096 aligned frames of 4096 bytes, no headroom, base pages, no Tx metadata.
    fn default() -> Self {
        Self {
            frames: 4096,
            frame_size: 4096,
            headroom: 0,
            pages: Pages::Base,
            unaligned: false,
            tx_metadata: TxMetadata::None,
        }
    }
}

impl UmemConfig {
    fn check(&self) -> Result<()> {
        let page = sys::page_size() as u32;
        if self.frames == 0 {
            return Err(Error::config("umem frames", "0 frames are too few", "ask for at least one"));
        }
        if !(uapi::XDP_UMEM_MIN_CHUNK_SIZE..=page).contains(&self.frame_size) || !self.frame_size.is_multiple_of(8) {
            return Err(Error::config(
                "umem frame_size",
                format!("{} bytes", self.frame_size),
                format!("choose {} to {page} bytes, a multiple of 8", uapi::XDP_UMEM_MIN_CHUNK_SIZE),
            ));
        }
        if !self.unaligned && !self.frame_size.is_power_of_two() {
            return Err(Error::config(
                "umem frame_size",
                format!("{} bytes is not a power of two", self.frame_size),
                "choose a power of two, or unaligned frames",
            ));
        }
        if self.headroom >= self.frame_size - uapi::XDP_PACKET_HEADROOM {
            return Err(Error::config(
                "umem headroom",
                format!("{} bytes leave no room for a packet in a frame of {}", self.headroom, self.frame_size),
                format!("stay below {}", self.frame_size - uapi::XDP_PACKET_HEADROOM),
            ));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.frames as usize * self.frame_size as usize
    }
}

/// The owner of a frame, in the form kept in its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u16);

impl Owner {
    pub(crate) const FREE: Self = Self(0);
    pub(crate) const USER: Self = Self(1);
    pub(crate) const PARKED: Self = Self(2);
    const FIRST_SOCKET: u16 = 4;

    /// The Rx side (fill ring, kernel, Rx ring) of the socket in `slot`.
    pub(crate) fn rx(slot: u16) -> Self {
        Self(Self::FIRST_SOCKET + 2 * slot)
    }

    /// The Tx side (Tx ring, kernel, completion ring) of the socket in `slot`.
    pub(crate) fn tx(slot: u16) -> Self {
        Self(Self::FIRST_SOCKET + 2 * slot + 1)
    }
}

/// Who holds how many frames of a umem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All frames of the umem.
    pub frames: u32,
    /// Held by nobody: never taken, dropped, or left over from closed sockets. [`Umem::take_free`] hands them out.
    pub free: u32,
    /// Held as [`Frame`] values, also inside pools and segments.
    pub user: u32,
    /// Known by address to an outside pool ([`Frame::park`]).
    pub parked: u32,
    /// In a fill ring, in the kernel to receive into, or in an Rx ring.
    pub rx: u32,
    /// In a Tx ring, in the kernel to be sent, or in a completion ring.
    pub tx: u32,
}

/// What [`Umem`] handles, sockets and frames refer to.
pub(crate) struct Shared {
    memory: Mapping,
    config: UmemConfig,
    owners: Box<[AtomicU16]>,
    sockets: Mutex<Sockets>,
    /// Held while a socket is bound, so that the second of two at once shares the umem the first registers.
    pub(crate) binding: Mutex<()>,
}

/// The sockets of one umem.
#[derive(Default)]
pub(crate) struct Sockets {
    /// Those that are bound; a further one shares the umem through any of them.
    pub(crate) bound: Vec<Weak<Link>>,
    /// Slots given back by closed sockets.
    free_slots: Vec<u16>,
    slots: u16,
    /// Closed sockets whose frames the kernel had not let go of in time, by slot.
    held: Vec<(Release, u16)>,
}

impl Sockets {
    /// A number for a new socket that no other socket of the umem has.
    pub(crate) fn take_slot(&mut self) -> Result<u16> {
        if let Some(slot) = self.free_slots.pop() {
            return Ok(slot);
        }
        if self.slots >= (u16::MAX - Owner::FIRST_SOCKET) / 2 {
            return Err(Error::config("umem sockets", format!("{} are open", self.slots), "close some of them"));
        }
        self.slots += 1;
        Ok(self.slots - 1)
    }
}

impl Shared {
    pub(crate) fn config(&self) -> &UmemConfig {
        &self.config
    }

    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Bytes before a packet that hold requests to the device.
    pub(crate) fn tx_metadata_len(&self) -> u32 {
        match self.config.tx_metadata {
            TxMetadata::None => 0,
            TxMetadata::Enabled | TxMetadata::SoftwareChecksum => uapi::TX_METADATA_LEN,
        }
    }

    pub(crate) fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn word(&self, index: u32) -> &AtomicU16 {
        &self.owners[index as usize]
    }

    /// Passes a frame from the user to a new owner.
    ///
    /// # Safety
    ///
    /// The caller has the frame, and gives it up here.
    pub(crate) unsafe fn pass(this: NonNull<Self>, index: u32, owner: Owner) {
        // SAFETY: the umem is not freed while a frame is the user's.
        let word = unsafe { this.as_ref() }.word(index);
        // The umem may be freed from the moment of the store on, so that nothing but the word is borrowed then.
        word.store(owner.0, Ordering::Release);
    }

    /// Moves a frame from one owner to another if it is the first one's. Only for owners that one thread at a time
    /// can act for: a socket's ring, or a `Frame`.
    pub(crate) fn move_owner(&self, index: u32, from: Owner, to: Owner) -> bool {
        let word = self.word(index);
        let is_owner = word.load(Ordering::Acquire) == from.0;
        if is_owner {
            word.store(to.0, Ordering::Release);
        }
        is_owner
    }

    /// As [`Shared::move_owner`], for owners that several threads may act for at once (free, parked).
    fn claim(&self, index: u32, from: Owner) -> bool {
        let word = self.word(index);
        word.load(Ordering::Relaxed) == from.0
            && word.compare_exchange(from.0, Owner::USER.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The frame and the offset in it of an address in a descriptor, or `None` outside the umem.
    pub(crate) fn locate(&self, addr: u64) -> Option<(u32, u32)> {
        let frame_size = u64::from(self.config.frame_size);
        let (index, offset) = if self.config.unaligned {
            let at = (addr & uapi::XSK_UNALIGNED_BUF_ADDR_MASK) + (addr >> uapi::XSK_UNALIGNED_BUF_OFFSET_SHIFT);
            (at / frame_size, at % frame_size)
        } else {
            (addr >> frame_size.trailing_zeros(), addr & (frame_size - 1))
        };
        (index < u64::from(self.config.frames)).then_some((index as u32, offset as u32))
    }

    /// Where the frame of an address starts, if it is `owner`'s.
    pub(crate) fn addr_of(&self, addr: u64, owner: Owner) -> Option<u64> {
        let (index, _) = self.locate(addr)?;
        (self.word(index).load(Ordering::Relaxed) == owner.0).then(|| self.addr(index))
    }

    pub(crate) fn addr(&self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.config.frame_size)
    }

    /// Frees every frame of a closed socket and its slot. The kernel must have let go of them.
    pub(crate) fn free_socket(&self, slot: u16) {
        let (rx, tx) = (Owner::rx(slot), Owner::tx(slot));
        for index in 0..self.config.frames {
            if !self.move_owner(index, rx, Owner::FREE) {
                self.move_owner(index, tx, Owner::FREE);
            }
        }
        self.sockets().free_slots.push(slot);
    }

    /// Keeps the frames of a closed socket out of reach until the kernel has let go of them.
    pub(crate) fn hold_socket(&self, release: Release, slot: u16) {
        self.sockets().held.push((release, slot));
    }

    /// Frees the frames of closed sockets that the kernel has let go of by now.
    fn free_held_sockets(&self) {
        let mut sockets = self.sockets();
        let (released, held) = mem::take(&mut sockets.held).into_iter().partition(|(release, _)| release.is_done());
        sockets.held = held;
        drop(sockets);
        let released: Vec<(Release, u16)> = released;
        released.into_iter().for_each(|(_, slot)| self.free_socket(slot));
    }

    fn holds_user_frames(&self) -> bool {
        self.owners.iter().any(|word| word.load(Ordering::Acquire) == Owner::USER.0)
    }
}

/// The last of these to go frees the memory, unless a [`Frame`] is still out: then the memory stays for good, so that
/// the frame remains valid.
struct Anchor(NonNull<Shared>);

// SAFETY: Shared is Send and Sync, and the anchor is the only one to free it.
unsafe impl Send for Anchor {}
// SAFETY: as above.
unsafe impl Sync for Anchor {}

impl Drop for Anchor {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a leaked box and is freed here only.
        let shared = unsafe { ManuallyDrop::new(Box::from_raw(self.0.as_ptr())) };
        if !shared.holds_user_frames() {
            // No umem handle is left to make a frame, and no frame: nothing can reach the memory any more. A frame
            // dropped by another thread has made its last access when its word is seen here.
            drop(ManuallyDrop::into_inner(shared));
        }
    }
}

/// Packet memory in frames of one size. Cloning gives another handle to the same memory.
///
/// The memory is registered with the kernel when the first socket is bound, and shared by those that follow.
#[derive(Clone)]
#[doc(alias = "XDP_UMEM_REG")]
pub struct Umem {
    anchor: Arc<Anchor>,
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem").field("layout", self.layout()).field("ledger", &self.ledger()).finish()
    }
}

impl Umem {
    /// Maps the memory of a umem. All frames are free.
    ///
    /// # Errors
    ///
    /// A size the kernel would refuse, or no memory (huge pages must have been set aside).
    pub fn new(config: UmemConfig) -> Result<Self> {
        config.check()?;
        let len = config.bytes().next_multiple_of(config.pages.size());
        let memory = Mapping::anonymous(len, config.pages.map_flags()).map_err(|source| Error::Call {
            subject: format!("umem of {} frames of {} bytes", config.frames, config.frame_size),
            call: "mmap",
            remedy: match config.pages {
                Pages::Base => "ask for fewer frames".into(),
                pages => format!(
                    "set aside {} huge pages in /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, or use base pages",
                    len / pages.size(),
                    pages.size() / 1024
                ),
            },
            source,
        })?;
        let owners = (0..config.frames).map(|_| AtomicU16::new(Owner::FREE.0)).collect();
        let shared = Box::new(Shared { memory, config, owners, sockets: Mutex::default(), binding: Mutex::default() });
        Ok(Self { anchor: Arc::new(Anchor(NonNull::from(Box::leak(shared)))) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: the anchor keeps the memory alive.
        unsafe { self.anchor.0.as_ref() }
    }

    /// Takes the free frames: all of them at first, later those dropped or left over from closed sockets.
    pub fn take_free(&self) -> impl Iterator<Item = Frame> {
        self.shared().free_held_sockets();
        (0..self.layout().frames).filter_map(|index| self.claim_frame(index, Owner::FREE))
    }

    /// Takes back a frame given away by [`Frame::park`]. `None` if no parked frame starts at `addr`.
    #[must_use]
    pub fn unpark(&self, addr: u64) -> Option<Frame> {
        let (index, _) = self.shared().locate(addr)?;
        if self.shared().addr(index) == addr { self.claim_frame(index, Owner::PARKED) } else { None }
    }

    /// As [`Umem::frame_of`], for owners that several threads may act for at once.
    pub(crate) fn claim_frame(&self, index: u32, from: Owner) -> Option<Frame> {
        // SAFETY: the claim made this caller the frame's only owner.
        self.shared().claim(index, from).then(|| unsafe { Frame::new(self.anchor.0, index) })
    }

    /// Hands out a frame that belongs to `from`; `None` if it does not.
    pub(crate) fn frame_of(&self, index: u32, from: Owner) -> Option<Frame> {
        // SAFETY: `from` was the frame's only owner and is the caller, by the contract of move_owner.
        self.shared().move_owner(index, from, Owner::USER).then(|| unsafe { Frame::new(self.anchor.0, index) })
    }

    /// Whether a frame is one of this umem's.
    pub(crate) fn owns(&self, frame: &Frame) -> bool {
        std::ptr::eq(self.shared(), frame.shared())
    }

    /// Counts the frames by owner. Exact while no other thread moves frames; then
    /// `free + user + parked + rx + tx == frames` holds by itself, and what can be checked is that each party holds as
    /// many as it says.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger { frames: self.layout().frames, ..Ledger::default() };
        for word in &self.shared().owners {
            let count = match Owner(word.load(Ordering::Acquire)) {
                Owner::FREE => &mut ledger.free,
                Owner::USER => &mut ledger.user,
                Owner::PARKED => &mut ledger.parked,
                Owner(socket) if socket.is_multiple_of(2) => &mut ledger.rx,
                Owner(_) => &mut ledger.tx,
            };
            *count += 1;
        }
        ledger
    }

    /// The configuration it was made with.
    #[must_use]
    pub fn layout(&self) -> &UmemConfig {
        self.shared().config()
    }

    /// Most bytes of one received segment: the frame without headroom and the XDP programs' 256 bytes.
    #[must_use]
    pub fn receive_capacity(&self) -> u32 {
        self.layout().frame_size - uapi::XDP_PACKET_HEADROOM - self.layout().headroom
    }
}
