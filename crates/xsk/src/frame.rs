//! Frames and segments: umem memory that the holder alone may touch.
#![expect(unsafe_code, reason = "a frame is a part of the umem's mapping")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::uapi;
use crate::umem::{Owner, Shared};

/// One frame of a umem, owned: nobody else, the kernel included, reads or writes it.
///
/// Dropping it makes it free again ([`crate::Umem::take_free`]); it cannot be lost. A frame that outlives its umem
/// keeps the memory mapped.
pub struct Frame {
    shared: NonNull<Shared>,
    index: u32,
}

// SAFETY: the frame's bytes belong to this value alone, and Shared is Sync.
unsafe impl Send for Frame {}
// SAFETY: `&Frame` only reads.
unsafe impl Sync for Frame {}

impl Frame {
    /// # Safety
    ///
    /// The frame's owner word says "user", no other `Frame` of this index exists, and `shared` is alive.
    pub(crate) unsafe fn new(shared: NonNull<Shared>, index: u32) -> Self {
        Self { shared, index }
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: the umem is not freed while a frame is the user's.
        unsafe { self.shared.as_ref() }
    }

    /// Gives the frame away to `owner`.
    pub(crate) fn pass_to(self, owner: Owner) {
        let frame = ManuallyDrop::new(self);
        // SAFETY: the frame is forgotten.
        unsafe { Shared::pass(frame.shared, frame.index, owner) };
    }

    /// The frame's address in the umem: bytes from its start.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.shared().addr(self.index)
    }

    /// The frame's place among the frames of its umem, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Gives the frame to an outside pool that remembers its address. [`crate::Umem::unpark`] brings it back.
    #[must_use = "the address is the only way back to the frame"]
    pub fn park(self) -> u64 {
        let addr = self.addr();
        self.pass_to(Owner::PARKED);
        addr
    }

    /// All bytes of the frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let (start, len) = self.span();
        // SAFETY: inside the mapping, initialised, and this value's alone.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// All bytes of the frame.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, len) = self.span();
        // SAFETY: as in `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    fn span(&self) -> (*mut u8, usize) {
        let shared = self.shared();
        let len = shared.config().frame_size as usize;
        // SAFETY: the index is below the number of frames, which all lie in the mapping.
        (unsafe { shared.memory().start().add(self.index as usize * len) }.as_ptr(), len)
    }

    /// A packet of `len` bytes from `offset` on in this frame. The bytes are left as they are.
    ///
    /// # Errors
    ///
    /// The range is empty or does not fit the frame (the kernel would drop it, and the frame with it).
    pub fn into_segment(self, offset: u32, len: u32) -> Result<Segment> {
        let mut segment = Segment { frame: self, offset: 0, len: 0, options: 0 };
        segment.set_range(offset, len)?;
        Ok(segment)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: the frame ends here.
        unsafe { Shared::pass(self.shared, self.index, Owner::FREE) };
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({})", self.index)
    }
}

/// What to ask of the device for one packet (`xsk_tx_metadata`). Linux 6.8; the umem needs
/// [`crate::TxMetadata`], and in zero-copy mode the device the feature ([`crate::DeviceFeatures`]).
///
/// ```
/// use xsk::{Segment, TxMetadata, TxRequest, Umem, UmemConfig};
///
/// # fn main() -> xsk::Result<()> {
/// let umem = Umem::new(UmemConfig { frames: 8, tx_metadata: TxMetadata::Enabled, ..UmemConfig::default() })?;
/// let frame = umem.take_free().next().expect("a new umem has free frames");
/// let mut packet = frame.into_segment(Segment::MIN_REQUEST_OFFSET, 60)?;
/// // UDP over IPv4 without options: the datagram starts at byte 34, its checksum is 6 bytes further.
/// packet.request(&TxRequest { checksum: Some((34, 6)), timestamp: true, ..TxRequest::default() })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "xsk_tx_metadata")]
pub struct TxRequest {
    /// Compute the checksum over all bytes from `start` on and store it at `start + offset`, both counted from the
    /// first byte of the packet, as in `(34, 6)` for UDP over IPv4. The field must hold the pseudo-header's sum.
    #[doc(alias = "XDP_TXMD_FLAGS_CHECKSUM")]
    pub checksum: Option<(u16, u16)>,
    /// Report when the packet was sent ([`crate::Completed::timestamp`]).
    #[doc(alias = "XDP_TXMD_FLAGS_TIMESTAMP")]
    pub timestamp: bool,
    /// Send at this time of the device's clock, in nanoseconds. Linux 6.14.
    #[doc(alias = "XDP_TXMD_FLAGS_LAUNCH_TIME")]
    pub launch_time: Option<u64>,
}

/// A packet or a part of one: a range of bytes in a frame.
#[derive(Debug)]
#[doc(alias = "xdp_desc")]
pub struct Segment {
    frame: Frame,
    offset: u32,
    len: u32,
    options: u32,
}

impl Segment {
    /// A received segment; `None` if the range does not lie in the frame.
    pub(crate) fn received(frame: Frame, offset: u32, len: u32, options: u32) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= frame.shared().config().frame_size).then_some(Self { frame, offset, len, options })
    }

    /// The bytes of the packet.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.frame.bytes()[self.range()]
    }

    /// The bytes of the packet.
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.frame.bytes_mut()[range]
    }

    fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }

    /// The bytes of the frame before the packet: headroom, and what an XDP program left as metadata, at its end.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.frame.bytes()[..self.offset as usize]
    }

    /// Where the packet starts in the frame, in bytes.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Bytes of the packet in this frame.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a segment to send is never empty")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the packet goes on in the next segment (`XDP_PKT_CONTD`). Linux 6.6.
    #[must_use]
    #[doc(alias = "XDP_PKT_CONTD")]
    pub fn continues(&self) -> bool {
        self.options & uapi::XDP_PKT_CONTD != 0
    }

    /// Moves or resizes the packet within the frame. Takes back a [`Segment::request`].
    ///
    /// # Errors
    ///
    /// The range is empty or does not fit the frame; the segment stays as it was.
    pub fn set_range(&mut self, offset: u32, len: u32) -> Result<()> {
        let frame_size = self.frame.shared().config().frame_size;
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > frame_size) {
            return Err(Error::Segment {
                problem: format!("{len} bytes at offset {offset} do not fit a frame of {frame_size}"),
                remedy: "send at least one byte, within the frame",
            });
        }
        (self.offset, self.len) = (offset, len);
        self.options &= !uapi::XDP_TX_METADATA;
        Ok(())
    }

    /// Asks something of the device for the packet that starts here.
    ///
    /// # Errors
    ///
    /// The umem has no Tx metadata, there is no room before the packet, or the checksum field lies outside it (the
    /// kernel would refuse the packet again and again).
    pub fn request(&mut self, request: &TxRequest) -> Result<()> {
        let room = self.frame.shared().tx_metadata_len();
        if room == 0 {
            return Err(Error::Segment {
                problem: "the umem has no Tx metadata".into(),
                remedy: "set UmemConfig::tx_metadata",
            });
        }
        if self.offset < room {
            return Err(Error::Segment {
                problem: format!("{} bytes before the packet are too few for the Tx metadata of {room}", self.offset),
                remedy: "start the packet at Segment::MIN_REQUEST_OFFSET or later",
            });
        }
        let (csum_start, csum_offset) = request.checksum.unwrap_or_default();
        if request.checksum.is_some() && u32::from(csum_start) + u32::from(csum_offset) + 2 > self.len {
            return Err(Error::Segment {
                problem: format!("the checksum at {csum_start} + {csum_offset} lies outside {} bytes", self.len),
                remedy: "count from the first byte of the packet",
            });
        }
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags = flag(request.timestamp, uapi::XDP_TXMD_FLAGS_TIMESTAMP)
            | flag(request.checksum.is_some(), uapi::XDP_TXMD_FLAGS_CHECKSUM)
            | flag(request.launch_time.is_some(), uapi::XDP_TXMD_FLAGS_LAUNCH_TIME);
        let launch_time = request.launch_time.unwrap_or_default();
        self.write_metadata(&uapi::xsk_tx_metadata { flags, csum_start, csum_offset, launch_time });
        self.options |= uapi::XDP_TX_METADATA;
        Ok(())
    }

    /// First offset at which a packet can have a [`Segment::request`].
    pub const MIN_REQUEST_OFFSET: u32 = uapi::TX_METADATA_LEN;

    fn write_metadata(&mut self, metadata: &uapi::xsk_tx_metadata) {
        let start = (self.offset - uapi::TX_METADATA_LEN) as usize;
        let bytes = &mut self.frame.bytes_mut()[start..];
        bytes[..8].copy_from_slice(&metadata.flags.to_ne_bytes());
        bytes[8..10].copy_from_slice(&metadata.csum_start.to_ne_bytes());
        bytes[10..12].copy_from_slice(&metadata.csum_offset.to_ne_bytes());
        bytes[12..16].fill(0);
        bytes[16..24].copy_from_slice(&metadata.launch_time.to_ne_bytes());
    }

    /// The frame, without the packet's place in it.
    #[must_use]
    pub fn into_frame(self) -> Frame {
        self.frame
    }

    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The Tx descriptor; the frame must then be passed to the socket.
    pub(crate) fn descriptor(&mut self, continues: bool) -> uapi::xdp_desc {
        let requested = self.options & uapi::XDP_TX_METADATA;
        let room = self.frame.shared().tx_metadata_len();
        if room > 0 && requested == 0 && self.offset >= room {
            // So that a completion cannot mistake old bytes for an answer.
            self.write_metadata(&uapi::xsk_tx_metadata::default());
        }
        let continued = if continues { uapi::XDP_PKT_CONTD } else { 0 };
        let addr = self.frame.addr() + u64::from(self.offset);
        uapi::xdp_desc { addr, len: self.len, options: requested | continued }
    }
}

/// A frame whose packet the kernel is done with.
#[derive(Debug)]
pub struct Completed {
    frame: Frame,
    offset: u32,
}

impl Completed {
    pub(crate) fn new(frame: Frame, offset: u32) -> Self {
        Self { frame, offset }
    }

    /// When the packet was sent, if that was requested and answered: nanoseconds of the device's clock in zero-copy
    /// mode; in copy mode the kernel's TAI clock at the completion.
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        let room = self.frame.shared().tx_metadata_len();
        if room == 0 || self.offset < room {
            return None;
        }
        let metadata = &self.frame.bytes()[(self.offset - room) as usize..];
        let word = |at: usize| metadata[at..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let requested = word(0)? & uapi::XDP_TXMD_FLAGS_TIMESTAMP != 0;
        // An unanswered request still holds the checksum's place there, which is below 2^32.
        word(uapi::TX_TIMESTAMP_OFFSET).filter(|&time| requested && time > u64::from(u32::MAX))
    }

    /// The frame.
    #[must_use]
    pub fn into_frame(self) -> Frame {
        self.frame
    }
}
