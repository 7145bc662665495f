//! Other pools and allocators, on the same loops.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::Mutex;

use crossbeam_queue::ArrayQueue;
use mimalloc::MiMalloc;
use tikv_jemallocator::Jemalloc;

use crate::table::Case;
use crate::{FRAME_SIZE, FRAMES};

type Buffer = Box<[u8; FRAME_SIZE as usize]>;

fn buffer() -> Buffer {
    Box::new([0; FRAME_SIZE as usize])
}

pub(crate) fn layout() -> Layout {
    Layout::new::<[u8; FRAME_SIZE as usize]>()
}

struct Buffers;

impl opool::PoolAllocator<Buffer> for Buffers {
    fn allocate(&self) -> Buffer {
        buffer()
    }
}

/// The pools, filled, and memory for those that pool indices only.
pub(crate) struct Peers {
    array_queue: ArrayQueue<u32>,
    mutex_vec: Mutex<Vec<u32>>,
    memory: Vec<u8>,
    object_pool: object_pool::Pool<Buffer>,
    opool: opool::Pool<Buffers, Buffer>,
    linear: lockfree_object_pool::LinearObjectPool<Buffer>,
    slab: sharded_slab::Pool<Vec<u8>>,
}

impl Peers {
    pub(crate) fn new() -> Self {
        let array_queue = ArrayQueue::new(FRAMES as usize);
        (0..FRAMES).for_each(|index| assert!(array_queue.push(index).is_ok(), "there is room for all"));
        Self {
            array_queue,
            mutex_vec: Mutex::new((0..FRAMES).collect()),
            memory: vec![1; FRAMES as usize * FRAME_SIZE as usize],
            object_pool: object_pool::Pool::new(FRAMES as usize, buffer),
            opool: opool::Pool::new_prefilled(FRAMES as usize, Buffers),
            linear: lockfree_object_pool::LinearObjectPool::new(buffer, |_| {}),
            slab: sharded_slab::Pool::new(),
        }
    }

    /// One allocation and one return.
    pub(crate) fn single(&self, operations: u64) -> Vec<Case<'_>> {
        vec![
            one("ArrayQueue", operations, || self.pop(), |index| self.push(index)),
            one("Mutex<Vec>", operations, || self.lock().pop(), |index| self.lock().extend(index)),
            one("object-pool", operations, || self.object_pool.try_pull(), drop),
            one("opool", operations, || self.opool.get(), drop),
            one("lockfree-object-pool (linear)", operations, || self.linear.pull(), drop),
            one(
                "sharded-slab",
                operations,
                || self.slab.create().map(|slot| slot.key()),
                |key| assert!(key.is_some_and(|key| self.slab.clear(key))),
            ),
            one("mimalloc", operations, || alloc(&MiMalloc), |frame| free(&MiMalloc, frame)),
            one("jemalloc", operations, || alloc(&Jemalloc), |frame| free(&Jemalloc, frame)),
            one("glibc malloc", operations, || alloc(&std::alloc::System), |frame| free(&std::alloc::System, frame)),
        ]
    }

    /// Bursts, with the first line of each frame written.
    pub(crate) fn burst(&self, operations: u64, burst: usize) -> Vec<Case<'_>> {
        let base = self.memory.as_ptr().cast_mut();
        let at = move |index: &Option<u32>| {
            // SAFETY: an index is below FRAMES.
            index.map_or(std::ptr::null_mut(), |index| unsafe { base.add(index as usize * FRAME_SIZE as usize) })
        };
        let same = |frame: &*mut u8| *frame;
        vec![
            many("ArrayQueue", operations, burst, at, || self.pop(), |index| self.push(index)),
            many("Mutex<Vec>", operations, burst, at, || self.lock().pop(), |index| self.lock().extend(index)),
            many("mimalloc", operations, burst, same, || alloc(&MiMalloc), |frame| free(&MiMalloc, frame)),
            many("jemalloc", operations, burst, same, || alloc(&Jemalloc), |frame| free(&Jemalloc, frame)),
            many(
                "glibc malloc",
                operations,
                burst,
                same,
                || alloc(&std::alloc::System),
                |frame| {
                    free(&std::alloc::System, frame);
                },
            ),
        ]
    }

    #[inline(always)]
    fn pop(&self) -> Option<u32> {
        self.array_queue.pop()
    }

    #[inline(always)]
    fn push(&self, index: Option<u32>) {
        assert!(index.is_some_and(|index| self.array_queue.push(index).is_ok()));
    }

    #[inline(always)]
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.mutex_vec.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[inline(always)]
pub(crate) fn alloc(allocator: &impl GlobalAlloc) -> *mut u8 {
    // SAFETY: the layout's size is not zero.
    unsafe { allocator.alloc(layout()) }
}

#[inline(always)]
pub(crate) fn free(allocator: &impl GlobalAlloc, frame: *mut u8) {
    // SAFETY: the frame came from `alloc` of the same allocator.
    unsafe { allocator.dealloc(frame, layout()) }
}

fn one<'a, T>(name: &str, operations: u64, get: impl Fn() -> T + 'a, put: impl Fn(T) + 'a) -> Case<'a> {
    Case::cpu(name.to_owned(), operations, move |n| {
        for _ in 0..n {
            put(black_box(get()));
        }
    })
}

fn many<'a, T: 'a>(
    name: &str,
    operations: u64,
    burst: usize,
    memory: impl Fn(&T) -> *mut u8 + 'a,
    get: impl Fn() -> T + 'a,
    put: impl Fn(T) + 'a,
) -> Case<'a> {
    let mut frames = Vec::with_capacity(burst);
    Case::cpu(name.to_owned(), operations, move |n| {
        for _ in 0..n / burst as u64 {
            frames.extend((0..burst).map(|_| get()));
            for frame in &frames {
                let first = memory(frame);
                if !first.is_null() {
                    // SAFETY: the frame is allocated and FRAME_SIZE bytes long.
                    unsafe { first.write_volatile(1) };
                }
            }
            frames.drain(..).for_each(&put);
        }
    })
}
