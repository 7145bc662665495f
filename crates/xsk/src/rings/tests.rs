//! The rings of frames with the test in the kernel's place, honest and not.

use std::fs::File;
use std::ops::RangeInclusive;

use proptest::prelude::*;

use super::*;
use crate::config::Mode;
use crate::ring::tests::twin_rings;
use crate::socket::Lease;
use crate::uapi::XDP_PKT_CONTD;
use crate::{FramePool, Umem, UmemConfig};

const CAPACITY: u32 = 8;
const FRAMES: u32 = 16;

/// The rings of a socket, and the kernel's ends of them.
struct Bench {
    umem: Umem,
    pool: FramePool,
    fill: FillRing,
    rx: RxRing,
    tx: TxRing,
    completion: CompletionRing,
    kernel_fill: Consumer<Mapped<u64>>,
    kernel_rx: Producer<Mapped<xdp_desc>>,
    kernel_tx: Consumer<Mapped<xdp_desc>>,
    kernel_completion: Producer<Mapped<u64>>,
}

impl Bench {
    fn new() -> Self {
        let umem = Umem::new(UmemConfig { frames: FRAMES, frame_size: 2048, ..UmemConfig::default() }).unwrap();
        let link = Arc::new(Link {
            fd: File::open("/dev/null").unwrap().into(),
            lease: Arc::new(Lease::new(&umem).unwrap()),
            umem: umem.clone(),
            ifindex: 1,
            queue: 0,
            mode: Mode::Copy,
            need_wakeup: true,
            multi_buffer: true,
            tx_budget: None,
            max_segments: 3,
        });
        let [fill, kernel_fill] = twin_rings(CAPACITY, u32::MAX - 3);
        let [rx, kernel_rx] = twin_rings(CAPACITY, 0);
        let [tx, kernel_tx] = twin_rings(CAPACITY, 0);
        let [completion, kernel_completion] = twin_rings(CAPACITY, 0);
        Self {
            pool: FramePool::new(&umem),
            umem,
            fill: FillRing::new(fill, Arc::clone(&link)),
            rx: RxRing::new(rx, Arc::clone(&link)),
            tx: TxRing::new(tx, Arc::clone(&link)),
            completion: CompletionRing::new(completion, link),
            kernel_fill: Consumer::new(kernel_fill),
            kernel_rx: Producer::new(kernel_rx),
            kernel_tx: Consumer::new(kernel_tx),
            kernel_completion: Producer::new(kernel_completion),
        }
    }

    /// The kernel takes an address out of the fill ring.
    fn kernel_takes(&mut self) -> Option<u64> {
        self.kernel_fill.available(1);
        let addr = self.kernel_fill.pop();
        self.kernel_fill.release();
        addr
    }

    fn kernel_receives(&mut self, addr: u64, len: u32) {
        assert!(self.kernel_rx.push(xdp_desc { addr, len, options: 0 }));
        self.kernel_rx.publish();
    }

    /// Checks each party's count against the umem's.
    fn check_ledger(&self, held: usize) {
        let ledger = self.umem.ledger();
        assert_eq!(ledger.user as usize, self.pool.len() + held);
        assert_eq!(u64::from(ledger.rx), self.fill.given() - self.rx.received());
        assert_eq!(u64::from(ledger.tx), self.tx.sent() - self.completion.completed());
        assert_eq!(ledger.free, 0);
    }
}

#[test]
fn an_address_of_a_frame_the_kernel_does_not_hold_makes_no_frame() {
    let mut bench = Bench::new();
    assert_eq!(bench.fill.refill(&mut bench.pool, 2).unwrap(), 2);
    let addr = bench.kernel_takes().unwrap();
    let mine = bench.pool.take().unwrap();
    for forged in [mine.addr(), addr + 3 * 2048, u64::MAX, u64::from(FRAMES) * 2048, 1 << 48] {
        bench.kernel_receives(forged, 60);
        assert_eq!(bench.rx.drain(8).count(), 0, "{forged:#x}");
    }
    assert_eq!((bench.rx.received(), bench.rx.faults()), (0, 5));
    bench.kernel_receives(addr + 256, 60);
    bench.kernel_receives(addr + 256, 60);
    let received: Vec<_> = bench.rx.drain(8).collect();
    assert_eq!((received.len(), received[0].offset(), received[0].len()), (1, 256, 60));
    assert_eq!(bench.rx.faults(), 6, "the second time the frame is the user's");
    bench.check_ledger(2);
}

#[test]
fn a_length_beyond_the_frame_makes_no_segment_and_frees_the_frame() {
    let mut bench = Bench::new();
    bench.fill.refill(&mut bench.pool, 2).unwrap();
    for len in [2048 - 255, u32::MAX] {
        let addr = bench.kernel_takes().unwrap();
        bench.kernel_receives(addr + 256, len);
    }
    assert_eq!(bench.rx.drain(8).count(), 0);
    assert_eq!(bench.rx.faults(), 2);
    assert_eq!(bench.pool.collect(), 2);
    bench.check_ledger(0);
}

#[test]
fn a_completion_of_a_frame_not_sent_makes_no_frame() {
    let mut bench = Bench::new();
    bench.fill.refill(&mut bench.pool, 1).unwrap();
    let filled = bench.kernel_takes().unwrap();
    for forged in [filled, u64::MAX, 9 * 2048] {
        assert!(bench.kernel_completion.push(forged));
    }
    bench.kernel_completion.publish();
    assert_eq!(bench.completion.recycle(&mut bench.pool), 0);
    assert_eq!((bench.completion.completed(), bench.completion.faults()), (0, 3));
    bench.check_ledger(0);
}

#[test]
fn segments_not_taken_from_a_drain_stay_in_the_ring() {
    let mut bench = Bench::new();
    bench.fill.refill(&mut bench.pool, 5).unwrap();
    for _ in 0..5 {
        let addr = bench.kernel_takes().unwrap();
        bench.kernel_receives(addr, 60);
    }
    assert_eq!(bench.rx.drain(2).count(), 2);
    assert!(bench.rx.drain(8).next().is_some());
    assert_eq!(bench.kernel_rx.pending(), 2);
    assert_eq!(bench.rx.drain(8).count(), 2);
    assert_eq!((bench.rx.received(), bench.rx.faults(), bench.kernel_rx.pending()), (5, 0, 0));
}

#[test]
fn a_packet_of_several_segments_is_queued_whole_or_not_at_all() {
    let mut bench = Bench::new();
    let mut packet = |count: u32| -> Vec<Segment> {
        (0..count).map(|_| bench.pool.take().unwrap().into_segment(0, 100).unwrap()).collect()
    };
    let (mut first, mut second, mut third) = (packet(3), packet(3), packet(3));
    let mut long = packet(4);
    assert!(bench.tx.send_packet(&mut long).unwrap_err().to_string().contains("4 segments where 1 to 3"));
    assert!(bench.tx.send_packet(&mut first).unwrap());
    assert!(bench.tx.send_packet(&mut second).unwrap());
    assert!(!bench.tx.send_packet(&mut third).unwrap(), "two entries are too few for it");
    assert_eq!((first.len(), second.len(), third.len(), long.len()), (0, 0, 3, 4));
    assert_eq!(bench.kernel_tx.available(8), 6);
    let continued: Vec<_> = std::iter::from_fn(|| bench.kernel_tx.pop()).map(|desc| desc.options).collect();
    assert_eq!(continued, [XDP_PKT_CONTD, XDP_PKT_CONTD, 0].repeat(2));
}

#[test]
fn dropping_the_last_ring_frees_the_frames_of_the_socket() {
    let Bench { umem, mut pool, mut fill, rx, mut tx, completion, .. } = Bench::new();
    fill.refill(&mut pool, 5).unwrap();
    tx.send([pool.take().unwrap().into_segment(0, 60).unwrap()]).unwrap();
    drop((fill, rx, tx));
    assert_eq!((umem.ledger().rx, umem.ledger().tx), (5, 1), "one ring keeps the socket open");
    drop(completion);
    assert_eq!((umem.ledger().rx, umem.ledger().tx, umem.ledger().free), (0, 0, 6));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Fill(u32),
    KernelReceives,
    KernelForges(u64),
    Receive(u32),
    Send(u32),
    KernelSends,
    Recycle,
}

fn step() -> impl Strategy<Value = Step> {
    const COUNT: RangeInclusive<u32> = 0..=12;
    prop_oneof![
        COUNT.prop_map(Step::Fill),
        Just(Step::KernelReceives),
        (0..FRAMES as u64 + 2).prop_map(|index| Step::KernelForges(index * 2048)),
        COUNT.prop_map(Step::Receive),
        COUNT.prop_map(Step::Send),
        Just(Step::KernelSends),
        Just(Step::Recycle),
    ]
}

proptest! {
    #[test]
    fn the_ledger_adds_up_after_any_steps(steps in prop::collection::vec(step(), 0..120)) {
        let mut bench = Bench::new();
        let mut held: Vec<Segment> = Vec::new();
        for step in steps {
            match step {
                Step::Fill(count) => {
                    bench.fill.refill(&mut bench.pool, count).unwrap();
                }
                Step::KernelReceives => if bench.kernel_rx.free(1) > 0 && let Some(addr) = bench.kernel_takes() {
                    bench.kernel_receives(addr + 256, 60);
                },
                Step::KernelForges(addr) => if bench.kernel_rx.free(1) > 0 && bench.kernel_completion.free(1) > 0 {
                    bench.kernel_receives(addr, 60);
                    assert!(bench.kernel_completion.push(addr));
                    bench.kernel_completion.publish();
                },
                Step::Receive(max) => held.extend(bench.rx.drain(max)),
                Step::Send(count) => {
                    let count = held.len().min(count as usize);
                    let room = bench.tx.room() as usize;
                    let mut packets = held.drain(..count.min(room));
                    bench.tx.send(&mut packets).unwrap();
                }
                Step::KernelSends => {
                    bench.kernel_tx.available(1);
                    if bench.kernel_completion.free(1) > 0 && let Some(desc) = bench.kernel_tx.pop() {
                        bench.kernel_tx.release();
                        assert!(bench.kernel_completion.push(desc.addr));
                        bench.kernel_completion.publish();
                    }
                }
                Step::Recycle => {
                    bench.completion.recycle(&mut bench.pool);
                }
            }
            bench.check_ledger(held.len());
        }
    }
}
