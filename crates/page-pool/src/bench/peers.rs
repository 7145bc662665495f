//! Other pools and allocators on the loops of the pool's own paths. Those that are crates of their own come with the Cargo
//! feature `peers`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{FRAME_SIZE, FRAMES, Path, cross};

/// A pool or allocator that hands out frames of [`FRAME_SIZE`] bytes.
trait Peer {
    type Frame<'a>
    where
        Self: 'a;

    fn take(&self) -> Option<Self::Frame<'_>>;

    fn put<'a>(&'a self, frame: Self::Frame<'a>);

    /// Writes to the first line.
    fn touch(&self, frame: &mut Self::Frame<'_>);
}

/// One allocation and one return.
pub(super) fn single() -> Vec<Path<'static>> {
    vec![
        #[cfg(feature = "peers")]
        one("ArrayQueue", crates::Queue::new()),
        one("Mutex<Vec>", Stack::new()),
        #[cfg(feature = "peers")]
        one("object-pool", crates::object_pool()),
        #[cfg(feature = "peers")]
        one("opool", crates::opool()),
        #[cfg(feature = "peers")]
        one("lockfree-object-pool", crates::lockfree_object_pool()),
        #[cfg(feature = "peers")]
        one("sharded-slab", crates::sharded_slab()),
        #[cfg(feature = "peers")]
        one("mimalloc", Allocator(mimalloc::MiMalloc)),
        #[cfg(feature = "peers")]
        one("jemalloc", Allocator(tikv_jemallocator::Jemalloc)),
        one("malloc of the C library", Allocator(System)),
    ]
}

/// Bursts, the first line of each frame written.
pub(super) fn burst(burst: usize) -> Vec<Path<'static>> {
    vec![
        #[cfg(feature = "peers")]
        many("ArrayQueue", burst, crates::Queue::new()),
        many("Mutex<Vec>", burst, Stack::new()),
        #[cfg(feature = "peers")]
        many("object-pool", burst, crates::object_pool()),
        #[cfg(feature = "peers")]
        many("opool", burst, crates::opool()),
        #[cfg(feature = "peers")]
        many("lockfree-object-pool", burst, crates::lockfree_object_pool()),
        #[cfg(feature = "peers")]
        many("sharded-slab", burst, crates::sharded_slab()),
        #[cfg(feature = "peers")]
        many("mimalloc", burst, Allocator(mimalloc::MiMalloc)),
        #[cfg(feature = "peers")]
        many("jemalloc", burst, Allocator(tikv_jemallocator::Jemalloc)),
        many("malloc of the C library", burst, Allocator(System)),
    ]
}

/// Frames taken here and put back on another CPU. What is much slower than the pool does fewer.
pub(super) fn elsewhere(cpu: usize) -> Vec<Path<'static>> {
    vec![
        #[cfg(feature = "peers")]
        carried("ArrayQueue", 1, cpu, crates::Queue::new()),
        carried("Mutex<Vec>", 16, cpu, Stack::new()),
        #[cfg(feature = "peers")]
        carried("object-pool", 16, cpu, crates::object_pool()),
        #[cfg(feature = "peers")]
        carried("opool", 8, cpu, crates::opool()),
        #[cfg(feature = "peers")]
        carried("mimalloc", 8, cpu, Allocator(mimalloc::MiMalloc)),
        #[cfg(feature = "peers")]
        carried("jemalloc", 32, cpu, Allocator(tikv_jemallocator::Jemalloc)),
        carried("malloc of the C library", 32, cpu, Allocator(System)),
    ]
}

fn one<P: Peer + 'static>(name: &'static str, peer: P) -> Path<'static> {
    Path::new(name, move |n| {
        for _ in 0..n {
            let Some(frame) = peer.take() else { return };
            peer.put(black_box(frame));
        }
    })
}

fn many<P: Peer + 'static>(name: &'static str, burst: usize, peer: P) -> Path<'static> {
    Path::new(name, move |n| {
        let mut frames = Vec::with_capacity(burst);
        for _ in 0..n / burst as u64 {
            frames.extend((0..burst).map_while(|_| peer.take()));
            frames.iter_mut().for_each(|frame| peer.touch(frame));
            frames.drain(..).for_each(|frame| peer.put(frame));
        }
    })
}

fn carried<P>(name: &'static str, one_in: u64, cpu: usize, peer: P) -> Path<'static>
where
    P: Peer + Sync + 'static,
    for<'a> P::Frame<'a>: Send,
{
    Path::timed(name, one_in, move |n| {
        cross::carry(n, cpu, || peer.take(), |frames| frames.drain(..).for_each(|frame| peer.put(frame)))
    })
}

/// A frame of a pool that knows its frames by number.
struct Numbered<'a> {
    number: u32,
    memory: &'a Memory,
}

/// The memory of one frame.
struct Memory {
    first: AtomicU8,
    _rest: [u8; FRAME_SIZE as usize - 1],
}

/// Memory for the frames of a pool that knows them by number, touched once.
struct Memories(Vec<Memory>);

impl Memories {
    fn new() -> Self {
        let memory = |_| Memory { first: AtomicU8::new(1), _rest: [1; FRAME_SIZE as usize - 1] };
        Self((0..FRAMES).map(memory).collect())
    }

    #[inline(always)]
    fn frame(&self, number: u32) -> Numbered<'_> {
        Numbered { number, memory: &self.0[number as usize] }
    }
}

impl Numbered<'_> {
    #[inline(always)]
    fn touch(&self) {
        self.memory.first.store(1, Ordering::Relaxed);
    }
}

struct Stack {
    numbers: Mutex<Vec<u32>>,
    memory: Memories,
}

impl Stack {
    fn new() -> Self {
        Self { numbers: Mutex::new((0..FRAMES).collect()), memory: Memories::new() }
    }

    #[inline(always)]
    fn numbers(&self) -> MutexGuard<'_, Vec<u32>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer for Stack {
    type Frame<'a> = Numbered<'a>;

    #[inline(always)]
    fn take(&self) -> Option<Numbered<'_>> {
        let number = self.numbers().pop()?;
        Some(self.memory.frame(number))
    }

    #[inline(always)]
    fn put<'a>(&'a self, frame: Numbered<'a>) {
        self.numbers().push(frame.number);
    }

    #[inline(always)]
    fn touch(&self, frame: &mut Numbered<'_>) {
        frame.touch();
    }
}

/// An allocator that is asked for each frame anew.
struct Allocator<A>(A);

/// An allocated frame.
struct Allocated(NonNull<u8>);

// SAFETY: an allocation is its holder's alone, on whichever thread.
unsafe impl Send for Allocated {}

const LAYOUT: Layout = Layout::new::<[u8; FRAME_SIZE as usize]>();

impl<A: GlobalAlloc> Peer for Allocator<A> {
    type Frame<'a>
        = Allocated
    where
        A: 'a;

    #[inline(always)]
    fn take(&self) -> Option<Allocated> {
        // SAFETY: the layout's size is not zero.
        NonNull::new(unsafe { self.0.alloc(LAYOUT) }).map(Allocated)
    }

    #[inline(always)]
    fn put(&self, frame: Allocated) {
        // SAFETY: the frame came from this allocator, and is given up.
        unsafe { self.0.dealloc(frame.0.as_ptr(), LAYOUT) }
    }

    #[inline(always)]
    fn touch(&self, frame: &mut Allocated) {
        // SAFETY: the frame is allocated and its holder's alone.
        unsafe { frame.0.write_volatile(1) };
    }
}

#[cfg(feature = "peers")]
mod crates {
    use std::hint::black_box;

    use crossbeam_queue::ArrayQueue;
    use lockfree_object_pool::LinearObjectPool;

    use super::super::{FRAME_SIZE, FRAMES};
    use super::{Memories, Numbered, Peer};

    type Buffer = Box<[u8; FRAME_SIZE as usize]>;

    fn buffer() -> Buffer {
        Box::new([1; FRAME_SIZE as usize])
    }

    #[inline(always)]
    fn write_first(buffer: &mut [u8; FRAME_SIZE as usize]) {
        black_box(buffer)[0] = 1;
    }

    /// The usual pool: a queue of the frames that are free.
    pub(super) struct Queue {
        numbers: ArrayQueue<u32>,
        memory: Memories,
    }

    impl Queue {
        pub(super) fn new() -> Self {
            let numbers = ArrayQueue::new(FRAMES as usize);
            (0..FRAMES).for_each(|number| assert!(numbers.push(number).is_ok(), "there is room for all"));
            Self { numbers, memory: Memories::new() }
        }
    }

    impl Peer for Queue {
        type Frame<'a> = Numbered<'a>;

        #[inline(always)]
        fn take(&self) -> Option<Numbered<'_>> {
            let number = self.numbers.pop()?;
            Some(self.memory.frame(number))
        }

        #[inline(always)]
        fn put<'a>(&'a self, frame: Numbered<'a>) {
            assert!(self.numbers.push(frame.number).is_ok(), "there is room for all");
        }

        #[inline(always)]
        fn touch(&self, frame: &mut Numbered<'_>) {
            frame.touch();
        }
    }

    pub(super) fn object_pool() -> object_pool::Pool<Buffer> {
        object_pool::Pool::new(FRAMES as usize, buffer)
    }

    impl Peer for object_pool::Pool<Buffer> {
        type Frame<'a> = object_pool::Reusable<'a, Buffer>;

        #[inline(always)]
        fn take(&self) -> Option<Self::Frame<'_>> {
            self.try_pull()
        }

        #[inline(always)]
        fn put<'a>(&'a self, frame: Self::Frame<'a>) {
            drop(frame);
        }

        #[inline(always)]
        fn touch(&self, frame: &mut Self::Frame<'_>) {
            write_first(frame);
        }
    }

    pub(super) struct Buffers;

    impl opool::PoolAllocator<Buffer> for Buffers {
        fn allocate(&self) -> Buffer {
            buffer()
        }
    }

    pub(super) fn opool() -> opool::Pool<Buffers, Buffer> {
        opool::Pool::new_prefilled(FRAMES as usize, Buffers)
    }

    impl Peer for opool::Pool<Buffers, Buffer> {
        type Frame<'a> = opool::RefGuard<'a, Buffers, Buffer>;

        #[inline(always)]
        fn take(&self) -> Option<Self::Frame<'_>> {
            Some(self.get())
        }

        #[inline(always)]
        fn put<'a>(&'a self, frame: Self::Frame<'a>) {
            drop(frame);
        }

        #[inline(always)]
        fn touch(&self, frame: &mut Self::Frame<'_>) {
            write_first(frame);
        }
    }

    pub(super) fn lockfree_object_pool() -> LinearObjectPool<Buffer> {
        LinearObjectPool::new(buffer, |_| {})
    }

    impl Peer for LinearObjectPool<Buffer> {
        type Frame<'a> = lockfree_object_pool::LinearReusable<'a, Buffer>;

        #[inline(always)]
        fn take(&self) -> Option<Self::Frame<'_>> {
            Some(self.pull())
        }

        #[inline(always)]
        fn put<'a>(&'a self, frame: Self::Frame<'a>) {
            drop(frame);
        }

        #[inline(always)]
        fn touch(&self, frame: &mut Self::Frame<'_>) {
            write_first(frame);
        }
    }

    /// A buffer that is kept from one use to the next.
    pub(super) struct Kept(Buffer);

    impl Default for Kept {
        fn default() -> Self {
            Self(buffer())
        }
    }

    impl sharded_slab::Clear for Kept {
        fn clear(&mut self) {}
    }

    pub(super) fn sharded_slab() -> sharded_slab::Pool<Kept> {
        sharded_slab::Pool::new()
    }

    impl Peer for sharded_slab::Pool<Kept> {
        type Frame<'a> = sharded_slab::pool::RefMut<'a, Kept>;

        #[inline(always)]
        fn take(&self) -> Option<Self::Frame<'_>> {
            self.create()
        }

        #[inline(always)]
        fn put<'a>(&'a self, frame: Self::Frame<'a>) {
            let key = frame.key();
            drop(frame);
            assert!(self.clear(key), "the frame was in use");
        }

        #[inline(always)]
        fn touch(&self, frame: &mut Self::Frame<'_>) {
            write_first(&mut frame.0);
        }
    }
}
