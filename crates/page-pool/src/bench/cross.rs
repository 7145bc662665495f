//! Frames allocated on one CPU, carried through a queue, and returned on another.

use std::alloc::{GlobalAlloc, System};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use mimalloc::MiMalloc;
use page_pool::{Frame, LocalFrame, Owner, ReturnPath};
use tikv_jemallocator::Jemalloc;

use crate::FRAMES;
use crate::peers::{alloc, free};
use crate::table::Case;

/// Slots of the queue between the threads.
const QUEUE: usize = 1024;
/// Frames handed over at once.
const CHUNK: usize = 32;

/// Pins this thread to a CPU, if there are that many.
pub(crate) fn pin(cpu: usize) {
    // SAFETY: a zeroed set is empty, `cpu` is within it, and the call reads the set only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// All cases of two threads: ns per frame by the clock, the queue included.
pub(crate) fn cases(owner: &Owner, operations: u64) -> Vec<Case<'_>> {
    let n = operations as usize;
    let queue = Arc::new(ArrayQueue::new(FRAMES as usize));
    (0..FRAMES).for_each(|index| assert!(queue.push(index).is_ok(), "there is room for all"));
    let vec = Arc::new(Mutex::new((0..FRAMES).collect::<Vec<u32>>()));
    let mut cases = vec![Case::new("queue only".to_owned(), move || cross(n, || Some(0_u32), Vec::clear))];
    for (name, path) in [("page-pool: lane, bulk 16", ReturnPath::Lane), ("page-pool: ring, bulk 16", ReturnPath::Ring)]
    {
        let Ok(mut returner) = owner.returner(path) else { continue };
        cases.push(Case::new(name.to_owned(), move || {
            cross(
                n,
                || take(owner),
                |frames| {
                    frames.drain(..).for_each(|frame| returner.put(frame));
                    returner.flush();
                },
            )
        }));
    }
    cases.push(Case::new("page-pool: Frame drop".to_owned(), move || cross(n, || take(owner), Vec::clear)));
    cases.push(Case::new("ArrayQueue".to_owned(), move || {
        cross(n, || queue.pop(), |frames| frames.drain(..).for_each(|index| assert!(queue.push(index).is_ok())))
    }));
    cases.push(Case::new("Mutex<Vec>".to_owned(), move || {
        let lock = || vec.lock().unwrap_or_else(PoisonError::into_inner);
        cross(n / 4, || lock().pop(), |frames| frames.drain(..).for_each(|index| lock().push(index)))
    }));
    cases.push(allocator("mimalloc", n / 4, &MiMalloc));
    cases.push(allocator("jemalloc", n / 16, &Jemalloc));
    cases.push(allocator("glibc malloc", n / 16, &System));
    cases
}

fn take(owner: &Owner) -> Option<Frame> {
    owner.alloc().map(LocalFrame::into_shared)
}

fn allocator<'a, A: GlobalAlloc + Sync>(name: &str, n: usize, allocator: &'a A) -> Case<'a> {
    Case::new(name.to_owned(), move || {
        let free = |frames: &mut Vec<usize>| frames.drain(..).for_each(|frame| free(allocator, frame as *mut u8));
        cross(n, || Some(alloc(allocator) as usize), free)
    })
}

/// Takes `n` frames here, carries them to another CPU and puts them back there; ns per frame.
fn cross<T: Send>(n: usize, mut take: impl FnMut() -> Option<T>, mut put: impl FnMut(&mut Vec<T>) + Send) -> f64 {
    let (mut sender, mut receiver) = rtrb::RingBuffer::<T>::new(QUEUE);
    let ready = AtomicBool::new(false);
    let ready = &ready;
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            pin(1);
            ready.store(true, Ordering::Release);
            let mut frames = Vec::with_capacity(2 * CHUNK);
            let mut left = n;
            while left > 0 {
                let slots = receiver.slots().min(2 * CHUNK);
                match receiver.read_chunk(slots) {
                    Ok(chunk) if slots > 0 => frames.extend(chunk),
                    _ => wait(),
                }
                left -= frames.len();
                put(&mut frames);
            }
        });
        while !ready.load(Ordering::Acquire) {
            wait();
        }
        let start = Instant::now();
        let mut frames = Vec::with_capacity(CHUNK);
        let mut left = n;
        while left > 0 {
            while frames.len() < CHUNK.min(left) {
                match take() {
                    Some(frame) => frames.push(frame),
                    None => wait(),
                }
            }
            left -= frames.len();
            while !frames.is_empty() {
                let slots = sender.slots().min(frames.len());
                match sender.write_chunk_uninit(slots) {
                    Ok(chunk) if slots > 0 => drop(chunk.fill_from_iter(frames.drain(..slots))),
                    _ => wait(),
                }
            }
        }
        drop(other.join());
        start.elapsed().as_nanos() as f64 / n as f64
    })
}

/// Waits for the other thread, and lets it run if it shares this CPU with others.
fn wait() {
    (0..64).for_each(|_| std::hint::spin_loop());
    thread::yield_now();
}
