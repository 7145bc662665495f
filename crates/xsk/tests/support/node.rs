//! A socket with its pool, and the traffic of the tests: Ethernet frames of an experimental type with a number each.

use std::time::{Duration, Instant};

use xsk::{Config, FramePool, FrameSource, Segment, Socket, Umem, UmemConfig};

/// IEEE 802 "local experimental ethertype 1".
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Bytes before the number: both addresses and the type.
const HEADER: usize = 14;

/// The first offset with room for the number, a multiple of 8 and with room for Tx metadata.
pub const OFFSET: u32 = 64;

/// Long enough for any packet of a test on a busy or an emulated machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Node {
    pub umem: Umem,
    pub pool: FramePool,
    pub socket: Socket,
}

/// Small enough for RLIMIT_MEMLOCK, with room for both sides.
pub fn layout() -> UmemConfig {
    UmemConfig { frames: 512, frame_size: 2048, ..UmemConfig::default() }
}

pub fn config() -> Config {
    Config { fill_ring: 256, rx_ring: 256, tx_ring: 256, completion_ring: 256, ..Config::default() }
}

impl Node {
    pub fn new(ifindex: u32, queue: u32) -> Self {
        Self::with(ifindex, queue, layout(), &config())
    }

    /// Binds a socket with a umem of its own and fills its fill ring.
    pub fn with(ifindex: u32, queue: u32, layout: UmemConfig, config: &Config) -> Self {
        let umem = Umem::new(layout).unwrap();
        let socket = Socket::bind(&umem, ifindex, queue, config).unwrap();
        let mut node = Self { pool: FramePool::new(&umem), umem, socket };
        node.refill();
        node
    }

    /// Tops the fill ring up with half of the frames.
    pub fn refill(&mut self) {
        let room = (u64::from(self.umem.layout().frames) / 2).saturating_sub(self.socket.rx_frames());
        self.socket.fill.refill(&mut self.pool, room as u32).unwrap();
        if self.socket.fill.needs_wakeup() {
            self.socket.fill.wake().unwrap();
        }
    }

    /// Queues packets of `len` bytes numbered from `first` as far as frames and ring allow, wakes the kernel, and
    /// returns how many were queued.
    pub fn send(&mut self, first: u64, count: u64, len: u32) -> u64 {
        let pool = &mut self.pool;
        let mut number = first;
        let packets = std::iter::from_fn(|| {
            let packet = packet(pool, number, len)?;
            number += 1;
            Some(packet)
        });
        let sent = self.socket.tx.send(packets.take(count as usize)).unwrap();
        self.socket.tx.wake().unwrap();
        self.socket.completion.recycle(&mut self.pool);
        u64::from(sent)
    }

    /// Takes what has arrived, checks that the numbers go on from `next` without a gap, and returns the next one.
    pub fn receive_in_order(&mut self, mut next: u64) -> u64 {
        for segment in self.socket.rx.drain(u32::MAX) {
            assert_eq!(number(&segment), next, "packets in order");
            next += 1;
            self.pool.give(segment.into_frame());
        }
        self.refill();
        next
    }

    /// As [`Node::receive_in_order`] until packet `end` is the next.
    pub fn await_number(&mut self, mut next: u64, end: u64) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        while next < end && Instant::now() < deadline {
            self.socket.rx.wait(Duration::from_millis(10)).unwrap();
            next = self.receive_in_order(next);
        }
        assert_eq!(next, end, "all packets sent arrive");
        next
    }

    /// Waits until all frames sent have come back.
    pub fn await_completions(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.socket.tx_frames() > 0 && Instant::now() < deadline {
            self.socket.tx.wake().unwrap();
            self.socket.completion.recycle(&mut self.pool);
        }
        assert_eq!(self.socket.tx_frames(), 0, "all frames sent come back");
    }

    /// Checks that pool and rings hold all frames, each as many as they say.
    pub fn check_ledger(&self) {
        check_ledger(&self.umem, &[&self.pool], &[&self.socket]);
    }
}

/// Checks that the pools and the sockets of a umem hold all of its frames, each as many as they say, and that the
/// kernel returned no address it should not have.
pub fn check_ledger(umem: &Umem, pools: &[&FramePool], sockets: &[&Socket]) {
    let ledger = umem.ledger();
    let pooled: usize = pools.iter().map(|pool| pool.len()).sum();
    let rx: u64 = sockets.iter().map(|socket| socket.rx_frames()).sum();
    let tx: u64 = sockets.iter().map(|socket| socket.tx_frames()).sum();
    assert_eq!(ledger.user as usize, pooled, "frames out are frames in the pool: {ledger:?}");
    assert_eq!((u64::from(ledger.rx), u64::from(ledger.tx)), (rx, tx), "as the sockets count: {ledger:?}");
    assert_eq!(ledger.user + ledger.rx + ledger.tx, ledger.frames, "pool + rings = all: {ledger:?}");
    for socket in sockets {
        assert_eq!((socket.rx.faults(), socket.completion.faults()), (0, 0), "addresses the kernel returned");
        let statistics = socket.statistics().unwrap();
        assert_eq!(
            (statistics.rx_invalid_descs, statistics.tx_invalid_descs),
            (0, 0),
            "addresses the kernel was given"
        );
    }
}

/// A packet of `len` bytes (without FCS) with a number, or `None` without a frame.
pub fn packet(pool: &mut FramePool, number: u64, len: u32) -> Option<Segment> {
    let mut packet = pool.take()?.into_segment(OFFSET, len).unwrap();
    let data = packet.data_mut();
    data[..6].fill(0xff);
    data[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    data[12..14].copy_from_slice(&ETHERTYPE);
    data[HEADER..HEADER + 8].copy_from_slice(&number.to_be_bytes());
    Some(packet)
}

pub fn number(segment: &Segment) -> u64 {
    let data = segment.data();
    assert_eq!(data[12..14], ETHERTYPE, "a packet of the test");
    u64::from_be_bytes(*data[HEADER..].first_chunk().unwrap())
}
