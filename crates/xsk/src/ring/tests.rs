//! The rings over plain memory against a queue as the model, and under loom with a thread in the kernel's place.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32 as LoomU32;
use proptest::prelude::*;

use super::*;

/// Offsets like the kernel's: the words in cache lines of their own, then the entries.
const OFFSET: xdp_ring_offset = xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };

/// Two rings over one piece of plain memory, as the two processes of a ring have them.
pub(crate) fn twin_rings<E: Copy>(capacity: u32, start: u32) -> [Mapped<E>; 2] {
    // SAFETY: a NUL-terminated name; the descriptor is new and nobody else's.
    let memory = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC)) };
    let len = Mapped::<E>::len(&OFFSET, capacity);
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { libc::ftruncate(memory.as_raw_fd(), len as i64) }, 0);
    let map = || Mapped::new(Mapping::ring(memory.as_raw_fd(), len, 0).unwrap(), &OFFSET, capacity).unwrap();
    let ring: Mapped<E> = map();
    ring.store_producer(start, Ordering::Relaxed);
    ring.store_consumer(start, Ordering::Relaxed);
    [ring, map()]
}

fn plain_ring(capacity: u32, start: u32) -> (Producer<Mapped<u64>>, Consumer<Mapped<u64>>) {
    let [one, other] = twin_rings(capacity, start);
    (Producer::new(one), Consumer::new(other))
}

#[derive(Clone, Debug)]
enum Step {
    Push(u8),
    Publish,
    Pop(u8),
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..12u8).prop_map(Step::Push),
        Just(Step::Publish),
        (1..12u8).prop_map(Step::Pop),
        Just(Step::Release),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn a_ring_behaves_as_a_bounded_queue(power in 0u32..5, start: u32, steps in steps()) {
        let capacity = 1 << power;
        let (mut producer, mut consumer) = plain_ring(capacity, start);
        let (mut written, mut published, mut read) = (VecDeque::new(), VecDeque::new(), 0u32);
        let mut next = 0u64;
        for step in steps {
            match step {
                Step::Push(count) => for _ in 0..count {
                    let in_ring = written.len() + published.len() + read as usize;
                    let pushed = producer.push(next);
                    prop_assert_eq!(pushed, in_ring < capacity as usize);
                    if pushed {
                        written.push_back(next);
                        next += 1;
                    }
                },
                Step::Publish => {
                    producer.publish();
                    published.append(&mut written);
                }
                Step::Pop(count) => {
                    let available = consumer.available(capacity);
                    prop_assert_eq!(available as usize, published.len());
                    for _ in 0..count {
                        let entry = consumer.pop();
                        prop_assert_eq!(entry, published.pop_front());
                        read += u32::from(entry.is_some());
                    }
                }
                Step::Release => {
                    consumer.release();
                    read = 0;
                }
            }
            prop_assert_eq!(producer.pending() as usize, written.len() + published.len() + read as usize);
        }
    }

    #[test]
    fn no_index_of_the_peer_reaches_outside_the_ring(start: u32, peer: u32) {
        let [near, far] = twin_rings::<u64>(8, start);
        let mut producer = Producer::new(near);
        far.store_consumer(peer, Ordering::Relaxed);
        prop_assert!(producer.free(8) <= 8);
        prop_assert!(producer.pending() <= 8);
        let honest = start.wrapping_sub(peer) <= 8;
        prop_assert_eq!(producer.free(1) == 0, !honest || start.wrapping_sub(peer) == 8);

        let [near, far] = twin_rings::<u64>(8, start);
        let mut consumer = Consumer::new(near);
        far.store_producer(peer, Ordering::Relaxed);
        let claimed = peer.wrapping_sub(start);
        prop_assert_eq!(consumer.available(8), if claimed <= 8 { claimed } else { 0 });
        prop_assert_eq!(consumer.pop().is_some(), (1..=8).contains(&claimed));
    }
}

#[test]
fn offsets_that_do_not_fit_the_mapping_are_refused() {
    let len = Mapped::<u64>::len(&OFFSET, 4);
    let ring = |offset, capacity| Mapped::<u64>::new(Mapping::anonymous(len, 0).unwrap(), &offset, capacity);
    assert!(ring(OFFSET, 4).is_some());
    assert!(ring(OFFSET, 0).is_some());
    assert!(ring(OFFSET, 3).is_none());
    assert!(ring(OFFSET, 8).is_none());
    assert!(ring(xdp_ring_offset { producer: 2, ..OFFSET }, 4).is_none());
    assert!(ring(xdp_ring_offset { consumer: len as u64 - 2, ..OFFSET }, 4).is_none());
    assert!(ring(xdp_ring_offset { flags: len as u64, ..OFFSET }, 4).is_none());
    assert!(ring(xdp_ring_offset { desc: 196, ..OFFSET }, 4).is_none());
}

#[test]
fn an_empty_ring_takes_and_gives_nothing() {
    let (mut producer, mut consumer) = plain_ring(0, 0);
    assert_eq!((producer.free(1), producer.pending(), producer.push(1)), (0, 0, false));
    assert_eq!((consumer.available(1), consumer.pop()), (0, None));
}

/// A ring whose every access loom orders, and whose entries it watches for races.
struct LoomRing {
    producer: LoomU32,
    consumer: LoomU32,
    entries: Vec<UnsafeCell<u64>>,
}

impl LoomRing {
    fn new(capacity: u32) -> Arc<Self> {
        // Close to the end of the numbers, so that the indices wrap.
        let start = u32::MAX;
        let entries = (0..capacity).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { producer: LoomU32::new(start), consumer: LoomU32::new(start), entries })
    }

    fn entry(&self, index: u32) -> &UnsafeCell<u64> {
        &self.entries[index as usize % self.entries.len()]
    }
}

impl Memory for Arc<LoomRing> {
    type Entry = u64;

    fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }
    fn load_producer(&self, order: Ordering) -> u32 {
        self.producer.load(order)
    }
    fn store_producer(&self, value: u32, order: Ordering) {
        self.producer.store(value, order);
    }
    fn load_consumer(&self, order: Ordering) -> u32 {
        self.consumer.load(order)
    }
    fn store_consumer(&self, value: u32, order: Ordering) {
        self.consumer.store(value, order);
    }
    fn flags(&self) -> u32 {
        0
    }
    unsafe fn read(&self, index: u32) -> u64 {
        // SAFETY: loom fails the test if another thread writes the entry meanwhile.
        self.entry(index).with(|entry| unsafe { *entry })
    }
    unsafe fn write(&self, index: u32, entry: u64) {
        // SAFETY: loom fails the test if another thread uses the entry meanwhile.
        self.entry(index).with_mut(|slot| unsafe { *slot = entry });
    }
}

#[test]
fn entries_cross_threads_in_order_and_without_races() {
    const ENTRIES: u64 = 3;
    let mut model = loom::model::Builder::new();
    // All interleavings with up to three forced switches; all of them take minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let ring = LoomRing::new(2);
        let mut producer = Producer::new(Arc::clone(&ring));
        let mut consumer = Consumer::new(ring);
        let kernel = loom::thread::spawn(move || {
            let mut next = 0;
            while next < ENTRIES {
                consumer.available(2);
                while let Some(entry) = consumer.pop() {
                    assert_eq!(entry, next);
                    next += 1;
                }
                consumer.release();
                loom::thread::yield_now();
            }
        });
        let mut next = 0;
        while next < ENTRIES {
            while next < ENTRIES && producer.push(next) {
                next += 1;
            }
            producer.publish();
            loom::thread::yield_now();
        }
        kernel.join().unwrap();
        assert_eq!(producer.pending(), 0);
    });
}

#[test]
fn a_frame_goes_round_two_rings_without_a_race_on_its_bytes() {
    loom::model(|| {
        // The frame's bytes: written by the user, then by the kernel, then read by the user.
        let bytes = Arc::new(UnsafeCell::new(0u64));
        let (fill, rx) = (LoomRing::new(1), LoomRing::new(1));
        let mut to_kernel = Producer::new(Arc::clone(&fill));
        let mut from_kernel = Consumer::new(Arc::clone(&rx));
        let kernel_bytes = Arc::clone(&bytes);
        let kernel = loom::thread::spawn(move || {
            let (mut fill, mut rx) = (Consumer::new(fill), Producer::new(rx));
            while fill.available(1) == 0 {
                loom::thread::yield_now();
            }
            let addr = fill.pop().unwrap();
            fill.release();
            // SAFETY: loom fails the test if another thread uses the bytes meanwhile.
            kernel_bytes.with_mut(|bytes| unsafe { *bytes += 1 });
            assert!(rx.push(addr));
            rx.publish();
        });
        // SAFETY: as above.
        bytes.with_mut(|bytes| unsafe { *bytes = 41 });
        assert!(to_kernel.push(7));
        to_kernel.publish();
        while from_kernel.available(1) == 0 {
            loom::thread::yield_now();
        }
        assert_eq!(from_kernel.pop(), Some(7));
        from_kernel.release();
        // SAFETY: as above.
        assert_eq!(bytes.with(|bytes| unsafe { *bytes }), 42);
        kernel.join().unwrap();
    });
}
