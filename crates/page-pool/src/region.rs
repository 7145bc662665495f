//! The memory of a pool: one contiguous region of frames of equal, power-of-two size.
#![expect(unsafe_code, reason = "maps and unmaps memory")]

use std::any::Any;
use std::ptr;

use crate::error::{Error, ErrorKind, Result};

/// Which pages back the memory of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Pages of the base size.
    #[default]
    No,
    /// Transparent huge pages where the kernel has them: `madvise(MADV_HUGEPAGE)` on memory aligned to 2 MiB.
    Transparent,
    /// Reserved 2 MiB pages (`MAP_HUGETLB`); building fails if `vm.nr_hugepages` has too few.
    Reserved,
}

const HUGE_PAGE: usize = 2 << 20;

/// Owns the memory, or keeps alive whoever does.
pub(crate) struct Region {
    base: *mut u8,
    bytes: usize,
    backing: Backing,
}

enum Backing {
    Mapped,
    Borrowed { _keepalive: Box<dyn Any + Send> },
}

impl Region {
    /// Anonymous zeroed memory, committed on first touch.
    pub(crate) fn map(bytes: usize, huge: HugePages, numa_node: Option<u32>) -> Result<Self> {
        let region = match huge {
            HugePages::No => Self { base: map(bytes, 0)?, bytes, backing: Backing::Mapped },
            HugePages::Transparent => Self::map_aligned(bytes)?,
            HugePages::Reserved => {
                let bytes = bytes.next_multiple_of(HUGE_PAGE);
                let base = map(bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB)?;
                Self { base, bytes, backing: Backing::Mapped }
            }
        };
        if let Some(node) = numa_node {
            region.prefer_node(node)?;
        }
        Ok(region)
    }

    /// Memory of somebody else.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `bytes` bytes, initialized, and used by nobody else until
    /// `keepalive` is dropped.
    pub(crate) unsafe fn borrow(base: *mut u8, bytes: usize, keepalive: Box<dyn Any + Send>) -> Self {
        Self { base, bytes, backing: Backing::Borrowed { _keepalive: keepalive } }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    fn map_aligned(bytes: usize) -> Result<Self> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let start = map(bytes + HUGE_PAGE, 0)?;
        let before = start.align_offset(HUGE_PAGE);
        // SAFETY: `before` is below HUGE_PAGE, so base .. base + bytes lies within the mapping; the parts cut off are
        // whole pages at its two ends, which nobody has seen.
        let base = unsafe {
            let base = start.add(before);
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            libc::munmap(base.add(bytes).cast(), HUGE_PAGE - before);
            base
        };
        // SAFETY: the range is our own mapping. A kernel without transparent huge pages answers EINVAL: base pages
        // then, as the documentation of the variant says.
        unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(Self { base, bytes, backing: Backing::Mapped })
    }

    /// Prefers memory of a NUMA node for pages not touched yet.
    pub(crate) fn prefer_node(&self, node: u32) -> Result<()> {
        let mask = 1_u64.checked_shl(node).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("NUMA node {node}: only the nodes 0 to 63 are supported"))
        })?;
        // SAFETY: the range is our own mapping and `mask` outlives the call; maxnode counts one bit more than is read.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base,
                self.bytes,
                libc::MPOL_PREFERRED,
                ptr::from_ref(&mask),
                u64::BITS + 1,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(Error::syscall("mbind(2)", format!("prefer NUMA node {node}"))) }
    }
}

fn map(bytes: usize, flags: i32) -> Result<*mut u8> {
    // SAFETY: a new anonymous mapping touches no existing memory.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        let remedy =
            if flags & libc::MAP_HUGETLB == 0 { "" } else { " (raise vm.nr_hugepages or use transparent huge pages)" };
        return Err(Error::syscall("mmap(2)", format!("map {bytes} bytes of frames{remedy}")));
    }
    Ok(base.cast())
}

impl Drop for Region {
    fn drop(&mut self) {
        if matches!(self.backing, Backing::Mapped) {
            // SAFETY: the mapping is ours, and the pool is gone: no frame points into it any more.
            unsafe { libc::munmap(self.base.cast(), self.bytes) };
        }
    }
}
