//! The paths a benchmark measures, as plain loops: each function does `n` times one allocation and one return. Timing,
//! rounds and statistics are the caller's.
//!
//! They stand here rather than in the benchmark because some of them (the return without any check, the ring from the
//! owner's own thread, the counters left out) are not reachable from outside, and because several programs run them.
#![expect(unsafe_code, reason = "takes the paths apart that the types keep together")]

use std::hint::black_box;

use crate::frag_cache::{FragAlloc, FragBuf};
use crate::frame::{Frame, LocalFrame};
use crate::owner::Owner;
use crate::ring::BATCH;
use crate::sync::Ordering;

/// A path of one thread: what it is called, and the loop that runs it.
pub struct Path<'a> {
    /// Its name in a table.
    pub name: &'static str,
    /// Allocates and returns that many frames (or fragments).
    pub run: Box<dyn FnMut(u64) + 'a>,
}

impl<'a> Path<'a> {
    /// A named path.
    pub fn new(name: &'static str, run: impl FnMut(u64) + 'a) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// The paths of one allocation and one return on the owner's thread (page_pool01 to 03 of the kernel's bench module).
#[must_use]
pub fn single(owner: &Owner) -> Vec<Path<'_>> {
    vec![
        Path::new("direct, explicit", |n| direct::<true>(owner, n)),
        Path::new("direct, explicit, no counters", |n| direct::<false>(owner, n)),
        Path::new("LocalFrame drop", |n| local(owner, n)),
        Path::new("Frame drop", |n| frame(owner, n)),
        Path::new("ring, single", |n| ring(owner, n)),
        Path::new("ring, bulk 16", |n| ring_bulk(owner, n)),
    ]
}

/// The paths of a burst: `burst` allocations, a write to the first line of each frame, `burst` returns.
#[must_use]
pub fn burst(owner: &Owner, burst: usize) -> Vec<Path<'_>> {
    let (mut local, mut shared) = (Vec::new(), Vec::new());
    let (mut bulk, mut ring, mut ring_bulk) = (Vec::new(), Vec::new(), Vec::new());
    vec![
        Path::new("LocalFrame drop", move |n| bursts(n, burst, owner, &mut local, alloc_each, Vec::clear)),
        Path::new("Frame drop", move |n| {
            bursts(n, burst, owner, &mut shared, alloc_shared, Vec::clear);
        }),
        Path::new("bulk alloc and return", move |n| {
            bursts(n, burst, owner, &mut bulk, alloc_bulk, |frames| owner.recycle_bulk(frames));
        }),
        Path::new("ring, single", move |n| {
            bursts(n, burst, owner, &mut ring, alloc_bulk, |frames| {
                frames.drain(..).for_each(|frame| owner.pool().recycle_in_ring(&[frame.into_index()]));
            });
        }),
        Path::new("ring, bulk 16", move |n| {
            bursts(n, burst, owner, &mut ring_bulk, alloc_bulk, |frames| bulk_into_ring(owner, frames));
        }),
    ]
}

/// Fragments of `size` bytes in bursts of 64, beside whole frames and the counter-example of an atomic increment for each
/// fragment.
#[must_use]
pub fn frags(owner: &Owner, size: usize) -> Vec<Path<'_>> {
    let cache = crate::FragCache::new();
    let mut whole = Vec::new();
    vec![
        Path::new("whole frame", move |n| {
            bursts(n, 64, owner, &mut whole, alloc_shared, Vec::clear);
        }),
        Path::new("pool fragment, bias", move |n| frag_bursts(owner, n, size)),
        Path::new("pool fragment, atomic increment", move |n| atomic_frag_bursts(owner, n, size)),
        Path::new("page_frag_cache", move |n| frag_bursts(&cache, n, size)),
    ]
}

/// Drops from a window of 2048 frames in flight, as a NIC's ring keeps them: what it costs to look whether a frame has
/// fragments.
#[must_use]
pub fn window(owner: &Owner) -> Vec<Path<'_>> {
    let names = ["no look", "flag", "side table, always read", "in-frame tail, always read"];
    let looks: [fn(&Frame); 4] = [|_| (), look_at_flag, look_at_table, look_at_tail];
    names
        .into_iter()
        .zip(looks)
        .map(|(name, look)| Path::new(name, move |n| drop_from_window(owner, n, look)))
        .collect()
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
        owner.pool().recycle_in_ring(&[black_box(frame).into_index()]);
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

fn drop_from_window(owner: &Owner, n: u64, look: impl Fn(&Frame)) {
    let mut window = Vec::new();
    alloc_shared(owner, &mut window, 2048);
    let mut oldest = 0;
    for _ in 0..n {
        let Some(new) = owner.alloc() else { return };
        look(&window[oldest]);
        window[oldest] = new.into_shared(); // drops the oldest in place
        oldest = (oldest + 1) % 2048;
    }
}

fn look_at_flag(frame: &Frame) {
    if black_box(frame.has_frags()) {
        look_at_table(frame);
    }
}

fn look_at_table(frame: &Frame) {
    // SAFETY: the frame is the head of its index; the length is an initialized u32.
    black_box(unsafe { (*frame.frag_table()).frags().len() });
}

/// Where the kernel keeps skb_shared_info: 320 bytes before the end of the frame.
fn look_at_tail(frame: &Frame) {
    let tail = frame.data().len().saturating_sub(320);
    black_box(frame.data()[tail]);
}
