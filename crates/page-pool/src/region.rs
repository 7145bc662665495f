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
    page_size: usize,
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
            HugePages::No => Self { base: map(bytes, 0)?, bytes, page_size: page_size(), backing: Backing::Mapped },
            HugePages::Transparent => Self::map_aligned(bytes)?,
            HugePages::Reserved => {
                let bytes = bytes.next_multiple_of(HUGE_PAGE);
                let base = map(bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB)?;
                Self { base, bytes, page_size: HUGE_PAGE, backing: Backing::Mapped }
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
        Self { base, bytes, page_size: page_size(), backing: Backing::Borrowed { _keepalive: keepalive } }
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
        Ok(Self { base, bytes, page_size: page_size(), backing: Backing::Mapped })
    }

    /// Was it mapped here?
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.backing, Backing::Mapped)
    }

    /// Bytes of the smallest page that can be given back.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Gives memory back to the kernel; it is zero, and comes from the preferred node, when it is touched again.
    ///
    /// # Safety
    /// The range is whole pages of this region, which is mapped here, and nobody uses its contents.
    pub(crate) unsafe fn discard(&self, start: *mut u8, bytes: usize) {
        // SAFETY: passed on to the caller. A failure leaves the memory as it is, where it is.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) };
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

fn page_size() -> usize {
    // SAFETY: no pointers are passed.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The NUMA node of the page at each address; none for one that was never touched.
pub(crate) fn nodes(pages: &[*mut u8]) -> Result<Vec<Option<u32>>> {
    let mut status = vec![0_i32; pages.len()];
    // SAFETY: without a list of nodes, move_pages(2) moves nothing: it writes as many numbers to `status` as there are
    // addresses in `pages`, and reads nothing behind those.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), ptr::null::<i32>(), status.as_mut_ptr(), 0)
    };
    if result != 0 {
        return Err(Error::syscall("move_pages(2)", "find the NUMA nodes of the frames"));
    }
    Ok(status.into_iter().map(|node| u32::try_from(node).ok()).collect())
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
        if self.is_own() {
            // SAFETY: the mapping is ours, and the pool is gone: no frame points into it any more.
            unsafe { libc::munmap(self.base.cast(), self.bytes) };
        }
    }
}
