//! Frames allocated on one CPU, carried through a queue, and returned on another.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Path;
use crate::frame::{Frame, LocalFrame};
use crate::owner::Owner;
use crate::returner::ReturnPath;

/// Slots of the queue between the threads.
const QUEUE: usize = 1024;
/// Frames handed over at once.
const CHUNK: usize = 32;

/// Pins the calling thread to a CPU; without effect if there is no such CPU.
pub fn pin(cpu: usize) {
    // SAFETY: a zeroed set is empty, CPU_SET checks its bounds, and the call reads the set only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// The paths of a frame that is returned by another thread, on `cpu`. The time of the queue between them is included; it has
/// a path of its own.
pub(super) fn cross(owner: &Owner, cpu: usize) -> Vec<Path<'_>> {
    let take = || owner.alloc().map(LocalFrame::into_shared);
    let mut paths = Vec::new();
    for (name, path) in [("lane, bulk 16", ReturnPath::Lane), ("ring, bulk 16", ReturnPath::Ring)] {
        let Ok(mut returner) = owner.returner(path) else { continue };
        paths.push(Path::timed(name, 1, move |n| {
            let put = |frames: &mut Vec<Frame>| {
                frames.drain(..).for_each(|frame| returner.put(frame));
                returner.flush();
            };
            carry(n, cpu, take, put)
        }));
    }
    paths.push(Path::timed("Frame drop", 1, move |n| carry(n, cpu, take, Vec::clear)));
    paths.push(Path::timed("Frame::put_bulk", 1, move |n| carry(n, cpu, take, Frame::put_bulk)));
    // As much to carry as a frame's handle.
    paths.push(Path::timed("queue only", 1, move |n| carry(n, cpu, || Some([0_u64; 2]), Vec::clear)));
    paths
}

/// Takes `n` frames here, carries them to a thread on `cpu` and puts them back there. From the first one taken to the last
/// one put.
pub(super) fn carry<T: Send>(
    n: u64,
    cpu: usize,
    mut take: impl FnMut() -> Option<T>,
    mut put: impl FnMut(&mut Vec<T>) + Send,
) -> Duration {
    let (mut sender, mut receiver) = rtrb::RingBuffer::<T>::new(QUEUE);
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let (ready, done) = (&ready, &done);
        let other = scope.spawn(move || {
            pin(cpu);
            let mut frames = Vec::with_capacity(2 * CHUNK);
            let mut left = n;
            ready.store(true, Ordering::Release);
            while left > 0 {
                let slots = receiver.slots().min(2 * CHUNK);
                match receiver.read_chunk(slots) {
                    Ok(chunk) if slots > 0 => frames.extend(chunk),
                    _ => wait(),
                }
                left -= frames.len() as u64;
                put(&mut frames);
            }
            done.store(true, Ordering::Release);
        });
        while !ready.load(Ordering::Acquire) {
            wait();
        }
        let start = Instant::now();
        let mut frames = Vec::with_capacity(CHUNK);
        let mut left = n;
        while left > 0 {
            while frames.len() < CHUNK.min(left as usize) {
                match take() {
                    Some(frame) => frames.push(frame),
                    None => wait(),
                }
            }
            left -= frames.len() as u64;
            while !frames.is_empty() {
                let slots = sender.slots().min(frames.len());
                match sender.write_chunk_uninit(slots) {
                    Ok(chunk) if slots > 0 => drop(chunk.fill_from_iter(frames.drain(..slots))),
                    _ => wait(),
                }
            }
        }
        while !done.load(Ordering::Acquire) && !other.is_finished() {
            wait();
        }
        start.elapsed()
    })
}

/// Waits for the other thread, and lets it run if it shares this CPU with others.
fn wait() {
    (0..64).for_each(|_| hint::spin_loop());
    thread::yield_now();
}
