//! Umems of other layouts, and packets of several frames.

use crate::needs::{HugePages, Need, Tests};
use crate::support::bpf::Redirect;
use crate::support::in_lab;
use crate::support::node::{self, Node, OFFSET, PATIENCE};
use xsk::{Config, FrameSource, Pages, Segment, UmemConfig};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("packets_start_after_the_headroom", Need::Nothing, headroom);
    tests.add("unaligned_frames_carry_packets", Need::Nothing, || layout_carries_packets(unaligned(Pages::Base)));
    tests.add("huge_pages_carry_packets", Need::HugePages, huge_pages);
    tests.add("jumbo_frames_cross_in_several_segments", Need::MultiBuffer, jumbo);
    tests.add("single_buffer_sockets_drop_jumbo_frames_and_say_so", Need::MultiBuffer, jumbo_without_multi_buffer);
    tests.add("a_packet_of_18_segments_is_sent_and_one_of_19_refused", Need::MultiBuffer, most_segments);
}

fn unaligned(pages: Pages) -> UmemConfig {
    // Crosses pages, and is no power of two.
    UmemConfig { frame_size: 3000, unaligned: true, pages, ..node::layout() }
}

/// Sends packets through umems of a layout and checks their bytes and the ledger.
fn layout_carries_packets(layout: UmemConfig) {
    in_lab(1, 1500, move |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::with(lab.near, 0, layout.clone(), &node::config());
        let mut far = Node::with(lab.far, 0, layout, &node::config());
        redirect.insert(&far.socket).unwrap();
        let mut next = 0;
        // Often enough for each frame to be used.
        while next < 3000 {
            let sent = near.send(next, 64, 1000);
            next = far.await_number(next, next + sent);
        }
        near.await_completions();
        near.check_ledger();
        far.check_ledger();
    });
}

fn headroom() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::new(lab.near, 0);
        let mut far = Node::with(lab.far, 0, UmemConfig { headroom: 192, ..node::layout() }, &node::config());
        redirect.insert(&far.socket).unwrap();
        let capacity = far.umem.receive_capacity();
        assert_eq!(capacity, 2048 - 256 - 192);
        assert_eq!(near.send(0, 1, 60), 1);
        assert!(far.socket.rx.wait(PATIENCE).unwrap());
        let segment = far.socket.rx.drain(1).next().unwrap();
        assert_eq!((segment.offset(), segment.len()), (256 + 192, 60));
        assert_eq!(segment.head().len(), 256 + 192);
        far.pool.give(segment.into_frame());
        far.check_ledger();
    });
}

fn huge_pages() {
    let _pages = HugePages::set_aside(4).unwrap();
    layout_carries_packets(UmemConfig { pages: Pages::Huge2M, ..node::layout() });
    layout_carries_packets(unaligned(Pages::Huge2M));
}

fn jumbo_config() -> Config {
    Config { multi_buffer: true, ..node::config() }
}

/// A packet of `len` bytes in segments of at most `part`, its bytes counting up.
fn jumbo_packet(node: &mut Node, len: u32, part: u32) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut start = 0;
    while start < len {
        let size = part.min(len - start);
        let mut segment = node.pool.take().unwrap().into_segment(OFFSET, size).unwrap();
        segment.data_mut().iter_mut().zip(start..).for_each(|(byte, at)| *byte = pattern(at));
        segments.push(segment);
        start += size;
    }
    segments
}

fn pattern(at: u32) -> u8 {
    (at % 251) as u8
}

/// Takes one whole packet and checks its bytes.
fn receive_jumbo(node: &mut Node, len: u32) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    while segments.last().is_none_or(Segment::continues) {
        assert!(node.socket.rx.wait(PATIENCE).unwrap(), "the packet arrives whole");
        // One at a time, across the packet.
        segments.extend(node.socket.rx.drain(1));
    }
    let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.data().to_vec()).collect();
    assert_eq!(bytes, (0..len).map(pattern).collect::<Vec<_>>());
    segments
}

fn jumbo() {
    in_lab(1, 9000, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let back = Redirect::attach(lab.near).unwrap();
        let mut near = Node::with(lab.near, 0, node::layout(), &jumbo_config());
        let mut far = Node::with(lab.far, 0, node::layout(), &jumbo_config());
        redirect.insert(&far.socket).unwrap();
        back.insert(&near.socket).unwrap();
        for round in 0..200 {
            let len = 60 + round * 44;
            let mut packet = jumbo_packet(&mut near, len, 1800);
            let parts = packet.len();
            assert!(near.socket.tx.send_packet(&mut packet).unwrap());
            near.socket.tx.wake().unwrap();
            let mut received = receive_jumbo(&mut far, len);
            assert_eq!(received.len() > 1, len > far.umem.receive_capacity());
            assert!(received.len() >= parts, "{parts} segments of 1800 bytes need as many of 1792");
            // And back, as it came.
            assert!(far.socket.tx.send_packet(&mut received).unwrap());
            far.socket.tx.wake().unwrap();
            far.socket.completion.recycle(&mut far.pool);
            far.refill();
            receive_jumbo(&mut near, len).into_iter().for_each(|segment| near.pool.give(segment.into_frame()));
            near.socket.completion.recycle(&mut near.pool);
            near.refill();
        }
        near.await_completions();
        far.await_completions();
        near.check_ledger();
        far.check_ledger();
        let single = receive_and_send_part_of_a_packet(&mut near, &mut far);
        assert!(single.contains("is a part of a longer packet"), "{single}");
        far.pool.collect();
        far.check_ledger();
    });
}

/// The error of sending the first segment of a longer packet as if it were a packet.
fn receive_and_send_part_of_a_packet(near: &mut Node, far: &mut Node) -> String {
    let mut packet = jumbo_packet(near, 4000, 1800);
    assert!(near.socket.tx.send_packet(&mut packet).unwrap());
    near.socket.tx.wake().unwrap();
    let segments = receive_jumbo(far, 4000);
    far.socket.tx.send(segments).unwrap_err().to_string()
}

fn jumbo_without_multi_buffer() {
    in_lab(1, 9000, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::with(lab.near, 0, node::layout(), &jumbo_config());
        let mut far = Node::new(lab.far, 0);
        redirect.insert(&far.socket).unwrap();
        let mut packet = jumbo_packet(&mut near, 5000, 1800);
        assert!(near.socket.tx.send_packet(&mut packet).unwrap());
        near.socket.tx.wake().unwrap();
        near.await_completions();
        let mut packet = jumbo_packet(&mut far, 5000, 1800);
        let error = far.socket.tx.send_packet(&mut packet).unwrap_err().to_string();
        assert!(error.contains("set Config::multi_buffer"), "{error}");
        packet.into_iter().for_each(|segment| far.pool.give(segment.into_frame()));
        assert_eq!(far.socket.rx.drain(8).count(), 0);
        assert_eq!(far.socket.statistics().unwrap().rx_dropped, 1, "the kernel counts the packet as dropped");
        far.check_ledger();
        near.check_ledger();
    });
}

fn most_segments() {
    in_lab(1, 9000, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::with(lab.near, 0, node::layout(), &jumbo_config());
        let mut far = Node::with(lab.far, 0, node::layout(), &jumbo_config());
        redirect.insert(&far.socket).unwrap();
        let mut packet = jumbo_packet(&mut near, 18 * 100, 100);
        assert!(near.socket.tx.send_packet(&mut packet).unwrap());
        near.socket.tx.wake().unwrap();
        receive_jumbo(&mut far, 18 * 100).into_iter().for_each(|segment| far.pool.give(segment.into_frame()));
        near.await_completions();
        let mut packet = jumbo_packet(&mut near, 19 * 100, 100);
        let error = near.socket.tx.send_packet(&mut packet).unwrap_err().to_string();
        assert!(error.contains("19 segments where 1 to 18 can be sent"), "{error}");
        assert_eq!(packet.len(), 19, "a refused packet stays with the caller");
        assert!(near.socket.tx.send_packet(&mut Vec::new()).is_err());
        packet.into_iter().for_each(|segment| near.pool.give(segment.into_frame()));
        near.check_ledger();
        far.check_ledger();
    });
}
