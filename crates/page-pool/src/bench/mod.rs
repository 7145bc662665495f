//! The paths a benchmark measures, as plain loops: each does `n` times one allocation and one return. Rounds and statistics
//! are the caller's.
//!
//! They stand here rather than in the benchmark because some of them (the return without any check, the ring from the
//! owner's own thread, the counters left out) are not reachable from outside, and because several programs run them.
//! Beside them stand other ways to the same end: a stack under a mutex and the allocator of the C library, and with the
//! Cargo feature `peers` other crates' pools and allocators.
#![expect(unsafe_code, reason = "takes the paths apart that the types keep together, calls allocators, reads a clock")]

mod bounds;
mod cross;
mod peers;

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

pub use bounds::{BOUNDS, Bound, Limit};
pub use cross::pin;

use crate::builder::Builder;
use crate::error::Result;
use crate::frag_cache::{FragAlloc, FragBuf};
use crate::frame::{Frame, LocalFrame};
use crate::owner::Owner;
use crate::region::HugePages;
use crate::ring::BATCH;
use crate::sync::Ordering;

/// Frames of every pool that is measured.
pub const FRAMES: u32 = 8192;
/// Bytes of every frame.
pub const FRAME_SIZE: u32 = 4096;

/// The pool that is measured: of a fixed population, in transparent huge pages.
///
/// # Errors
/// The memory can't be had.
pub fn owner() -> Result<Owner> {
    let seed = Builder::umem(FRAMES).frame_size(FRAME_SIZE).huge_pages(HugePages::Transparent).build()?;
    Ok(seed.bind())
}

/// One way to allocate and return.
pub struct Path<'a> {
    /// Its name in a table.
    pub name: &'static str,
    /// It does one in so many of the operations asked for.
    one_in: u64,
    run: Box<dyn FnMut(u64) -> Duration + 'a>,
}

impl<'a> Path<'a> {
    /// A path of this thread, timed by the thread's CPU time.
    fn new(name: &'static str, mut run: impl FnMut(u64) + 'a) -> Self {
        Self::timed(name, 1, move |n| {
            let start = thread_cpu_time();
            run(n);
            thread_cpu_time().saturating_sub(start)
        })
    }

    /// A path that takes its time itself.
    fn timed(name: &'static str, one_in: u64, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { name, one_in, run: Box::new(run) }
    }

    /// Allocates and returns up to that many frames (or fragments), fewer on paths that are much slower than the others: how
    /// many, and the time that took.
    pub fn run(&mut self, operations: u64) -> (u64, Duration) {
        // A multiple of all bursts.
        let operations = (operations / self.one_in).next_multiple_of(LONG_BURST as u64);
        (operations, (self.run)(operations))
    }
}

fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` only. It can't fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Paths that are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// One allocation and one return at a time, on the owner's thread.
    Single,
    /// Bursts of 64 frames, a NAPI budget.
    Burst,
    /// Bursts of 512 frames, more than the cache takes.
    LongBurst,
    /// Frames returned by another thread.
    Cross,
    /// Fragments of 512 bytes.
    Frags,
    /// Fragments of 2048 bytes.
    LargeFrags,
    /// Drops from a window of frames in flight.
    Window,
}

const BURST: usize = 64;
const LONG_BURST: usize = 512;

impl Group {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Single, Self::Burst, Self::LongBurst, Self::Cross, Self::Frags, Self::LargeFrags, Self::Window];

    /// What one operation is.
    #[must_use]
    pub fn operation(self) -> &'static str {
        match self {
            Self::Single => "one allocation and one return of a frame",
            Self::Burst => "one allocation and one return in bursts of 64 frames, the first line of each written",
            Self::LongBurst => "one allocation and one return in bursts of 512 frames, the first line of each written",
            Self::Cross => "one allocation, the way through a queue to another CPU, and one return there",
            Self::Frags => "one allocation and one return of a 512-byte fragment, in bursts of 64",
            Self::LargeFrags => "one allocation and one return of a 2048-byte fragment, in bursts of 64",
            Self::Window => "one drop and one allocation with 2048 frames in flight",
        }
    }

    /// The pool's own paths. Frames that another thread returns are returned on `other_cpu`.
    #[must_use]
    pub fn own_paths(self, owner: &Owner, other_cpu: usize) -> Vec<Path<'_>> {
        match self {
            Self::Single => single(owner),
            Self::Burst => burst(owner, BURST),
            Self::LongBurst => burst(owner, LONG_BURST),
            Self::Cross => cross::cross(owner, other_cpu),
            Self::Frags => frags(owner, 512),
            Self::LargeFrags => frags(owner, 2048),
            Self::Window => window(owner),
        }
    }

    /// Other pools and allocators on the same loops.
    #[must_use]
    pub fn other_paths(self, other_cpu: usize) -> Vec<Path<'static>> {
        match self {
            Self::Single => peers::single(),
            Self::Burst => peers::burst(BURST),
            Self::LongBurst => peers::burst(LONG_BURST),
            Self::Cross => peers::elsewhere(other_cpu),
            Self::Frags | Self::LargeFrags | Self::Window => Vec::new(),
        }
    }
}

/// One allocation and one return on the owner's thread (page_pool01 to 03 of the kernel's bench module).
fn single(owner: &Owner) -> Vec<Path<'_>> {
    vec![
        Path::new("direct, explicit", |n| direct::<true>(owner, n)),
        Path::new("direct, explicit, no counters", |n| direct::<false>(owner, n)),
        Path::new("LocalFrame drop", |n| local(owner, n)),
        Path::new("Frame drop", |n| frame(owner, n)),
        Path::new("ring, single", |n| ring(owner, n)),
        Path::new("ring, bulk 16", |n| ring_bulk(owner, n)),
    ]
}

/// `burst` allocations, a write to the first line of each frame, `burst` returns.
fn burst(owner: &Owner, burst: usize) -> Vec<Path<'_>> {
    let (mut local, mut shared) = (Vec::new(), Vec::new());
    let (mut bulk, mut ring, mut ring_bulk) = (Vec::new(), Vec::new(), Vec::new());
    vec![
        Path::new("LocalFrame drop", move |n| bursts(n, burst, owner, &mut local, alloc_each, Vec::clear)),
        Path::new("Frame drop", move |n| bursts(n, burst, owner, &mut shared, alloc_shared, Vec::clear)),
        Path::new("bulk alloc and return", move |n| {
            bursts(n, burst, owner, &mut bulk, alloc_bulk, |frames| owner.recycle_bulk(frames));
        }),
        Path::new("ring, single", move |n| {
            bursts(n, burst, owner, &mut ring, alloc_bulk, |frames| {
                frames.drain(..).for_each(|frame| owner.pool().recycle_one_in_ring(frame.into_index()));
            });
        }),
        Path::new("ring, bulk 16", move |n| {
            bursts(n, burst, owner, &mut ring_bulk, alloc_bulk, |frames| bulk_into_ring(owner, frames));
        }),
    ]
}

/// Fragments of `size` bytes in bursts of 64, beside whole frames and the counter-example of an atomic increment for each
/// fragment.
fn frags(owner: &Owner, size: usize) -> Vec<Path<'_>> {
    let cache = crate::FragCache::new();
    let mut whole = Vec::new();
    vec![
        Path::new("whole frame", move |n| {
            bursts(n, BURST, owner, &mut whole, alloc_shared, Vec::clear);
        }),
        Path::new("pool fragment, bias", move |n| frag_bursts(owner, n, size)),
        Path::new("pool fragment, atomic increment", move |n| atomic_frag_bursts(owner, n, size)),
        Path::new("page_frag_cache", move |n| frag_bursts(&cache, n, size)),
    ]
}

/// Drops from a window of 2048 frames in flight, as a NIC's ring keeps them: what it costs to look whether a frame has
/// fragments.
fn window(owner: &Owner) -> Vec<Path<'_>> {
    let window = Rc::new(Window::default());
    let look = |name, look: fn(&Window, &Owner, u64)| {
        let window = Rc::clone(&window);
        Path::new(name, move |n| look(&window, owner, n))
    };
    vec![
        look("no look", |window, owner, n| window.renew(owner, n, |_| 0)),
        look("flag", |window, owner, n| window.renew(owner, n, look_at_flag)),
        look("side table, always read", |window, owner, n| window.renew(owner, n, look_at_table)),
        look("in-frame tail, always read", |window, owner, n| window.renew(owner, n, look_at_tail)),
    ]
}

fn direct<const STATS: bool>(owner: &Owner, n: u64) {
    let pool = owner.pool();
    for _ in 0..n {
        // SAFETY: an `Owner` is on its thread, and the frame is new, so this is its only reference.
        let frame = unsafe { pool.alloc::<STATS>().map(|index| LocalFrame::new(pool, index)) };
        let Some(frame) = frame else { return };
        // SAFETY: as above; the index is given up.
        unsafe { pool.recycle_direct(black_box(frame).into_index()) };
    }
}

fn local(owner: &Owner, n: u64) {
    for _ in 0..n {
        let Some(frame) = owner.alloc() else { return };
        drop(black_box(frame));
    }
}

fn frame(owner: &Owner, n: u64) {
    for _ in 0..n {
        let Some(frame) = owner.alloc() else { return };
        drop(black_box(frame.into_shared()));
    }
}

fn ring(owner: &Owner, n: u64) {
    for _ in 0..n {
        let Some(frame) = owner.alloc() else { return };
        owner.pool().recycle_one_in_ring(black_box(frame).into_index());
    }
}

fn ring_bulk(owner: &Owner, n: u64) {
    let mut batch = [0; BATCH];
    for _ in 0..n / BATCH as u64 {
        for slot in &mut batch {
            let Some(frame) = owner.alloc() else { return };
            *slot = black_box(frame).into_index();
        }
        owner.pool().recycle_in_ring(&batch);
    }
}

fn bursts<'o, T: Touch>(
    n: u64,
    burst: usize,
    owner: &'o Owner,
    frames: &mut Vec<T>,
    alloc: impl Fn(&'o Owner, &mut Vec<T>, usize),
    end: impl Fn(&mut Vec<T>),
) {
    for _ in 0..n / burst as u64 {
        alloc(owner, frames, burst);
        frames.iter_mut().for_each(Touch::touch);
        end(frames);
    }
}

fn alloc_each<'o>(owner: &'o Owner, frames: &mut Vec<LocalFrame<'o>>, burst: usize) {
    for _ in 0..burst {
        let Some(frame) = owner.alloc() else { return };
        frames.push(frame);
    }
}

fn alloc_shared(owner: &Owner, frames: &mut Vec<Frame>, burst: usize) {
    for _ in 0..burst {
        let Some(frame) = owner.alloc() else { return };
        frames.push(frame.into_shared());
    }
}

fn alloc_bulk<'o>(owner: &'o Owner, frames: &mut Vec<LocalFrame<'o>>, burst: usize) {
    owner.alloc_bulk(frames, burst);
}

fn bulk_into_ring(owner: &Owner, frames: &mut Vec<LocalFrame<'_>>) {
    let mut batch = [0; BATCH];
    let mut n = 0;
    for frame in frames.drain(..) {
        batch[n] = frame.into_index();
        n += 1;
        if n == BATCH {
            owner.pool().recycle_in_ring(&batch);
            n = 0;
        }
    }
    owner.pool().recycle_in_ring(&batch[..n]);
}

/// Writes to the first line of the data, as a driver or a header rewrite does.
trait Touch {
    fn touch(&mut self);
}

impl Touch for LocalFrame<'_> {
    #[inline(always)]
    fn touch(&mut self) {
        black_box(self.data_mut())[0] = 1;
    }
}

impl Touch for Frame {
    #[inline(always)]
    fn touch(&mut self) {
        if let Some(data) = self.data_mut() {
            black_box(data)[0] = 1;
        }
    }
}

fn frag_bursts<A: FragAlloc>(source: &A, n: u64, size: usize) {
    let mut frags = Vec::with_capacity(64);
    for _ in 0..n / 64 {
        frags.extend((0..64).map_while(|_| source.frag_alloc(size)));
        frags.iter_mut().for_each(|frag: &mut A::Frag| black_box(frag.data_mut())[0] = 1);
        frags.clear();
    }
}

/// What the bias saves: here each fragment increments the count.
fn atomic_frag_bursts(owner: &Owner, n: u64, size: usize) {
    let pool = owner.pool();
    let mut page: Option<(Frame, usize)> = None;
    let mut frags = Vec::with_capacity(64);
    for _ in 0..n / 64 {
        for _ in 0..64 {
            let used_up = page.as_ref().is_none_or(|(_, offset)| offset + size > pool.frame_size());
            if used_up {
                page = owner.alloc().map(|frame| (frame.into_shared(), 0));
            }
            let Some((frame, offset)) = &mut page else { return };
            pool.refs(frame.index()).fetch_add(1, Ordering::Relaxed);
            // SAFETY: the reference just made goes with bytes no other fragment has.
            frags.push(unsafe { crate::Frag::new(pool, frame.index(), *offset, size) });
            *offset += size;
        }
        frags.iter_mut().for_each(|frag| black_box(frag.data_mut())[0] = 1);
        frags.clear();
    }
}

/// Frames in flight.
#[derive(Default)]
struct Window {
    frames: RefCell<Vec<Frame>>,
}

impl Window {
    /// Drops the oldest frame and takes a new one, `n` times.
    fn renew(&self, owner: &Owner, n: u64, look: impl Fn(&Frame) -> u64) {
        const FRAMES: usize = 2048;
        let mut frames = self.frames.borrow_mut();
        if frames.is_empty() {
            alloc_shared(owner, &mut frames, FRAMES);
        }
        let mut seen = 0;
        for oldest in (0..FRAMES).cycle().take(n as usize) {
            let Some(new) = owner.alloc() else { return };
            let oldest = &mut frames[oldest];
            seen += look(oldest);
            *oldest = new.into_shared(); // drops the oldest in place
        }
        black_box(seen);
    }
}

fn look_at_flag(frame: &Frame) -> u64 {
    if frame.has_frags() { look_at_table(frame) } else { 0 }
}

fn look_at_table(frame: &Frame) -> u64 {
    // SAFETY: the frame is borrowed.
    unsafe { frame.pool().frag_tables().count(frame.index()) as u64 }
}

/// Where the kernel keeps skb_shared_info: 320 bytes before the end of the frame.
fn look_at_tail(frame: &Frame) -> u64 {
    let tail = frame.data().len().saturating_sub(320);
    frame.data()[tail].into()
}
