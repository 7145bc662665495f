//! Frames in the kernel's hands.

use crate::error::{Error, ErrorKind, Result};
use crate::pool::Pool;
use crate::sync::Ordering;

/// Where a frame starts in the umem, in bytes: what goes into a fill ring, and with the offset of the packet added into a
/// TX descriptor. While the kernel has a frame, this address is all there is of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UmemAddr(u64);

impl From<UmemAddr> for u64 {
    fn from(addr: UmemAddr) -> Self {
        addr.0
    }
}

/// From an address in a descriptor (aligned chunk mode).
impl From<u64> for UmemAddr {
    fn from(addr: u64) -> Self {
        Self(addr)
    }
}

impl UmemAddr {
    /// The frame's only reference becomes an address. The caller has given up every other form of it.
    #[inline]
    pub(crate) fn hand_out(pool: Pool, index: u32) -> Self {
        // Relaxed: the address reaches whoever takes it back through the kernel, with the kernel's barriers.
        pool.shared().in_kernel[index as usize].store(true, Ordering::Relaxed);
        Self(u64::from(index) << pool.shared().frame_shift)
    }

    /// The index at this address, which is not in the kernel's hands any more.
    #[inline]
    pub(crate) fn take_back(self, pool: Pool) -> Result<u32> {
        let shared = pool.shared();
        let index = self.0 >> shared.frame_shift;
        let in_kernel = usize::try_from(index).ok().and_then(|index| shared.in_kernel.get(index));
        // A swap, so that of two threads that give back the same address one is told.
        match in_kernel.map(|in_kernel| in_kernel.swap(false, Ordering::Relaxed)) {
            Some(true) => Ok(index as u32),
            Some(false) => Err(self.refused(format!("frame {index} is not in the kernel's hands (returned twice?)"))),
            None => Err(self.refused(format!("the umem has only {} frames", shared.refs.len()))),
        }
    }

    /// The index, if the kernel has it.
    pub(crate) fn reclaim(pool: Pool, index: u32) -> Option<u32> {
        pool.shared().in_kernel[index as usize].swap(false, Ordering::Relaxed).then_some(index)
    }

    #[cold]
    fn refused(self, why: String) -> Error {
        Error::new(ErrorKind::NotInKernel, format!("take back umem address {:#x}: {why}", self.0))
    }
}
