//! Requests to the device with the packet (Tx metadata), in copy mode, where the kernel answers them.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use crate::needs::{Need, Tests};
use crate::support::bpf::Redirect;
use crate::support::in_lab;
use crate::support::node::{self, Node, OFFSET, PATIENCE};
use xsk::{Completed, DeviceFeatures, FrameSource, Segment, TxMetadata, TxRequest, UmemConfig};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("a_requested_checksum_is_computed", Need::TxMetadata, checksum);
    tests.add("a_requested_timestamp_comes_with_the_completion", Need::TxMetadata, timestamp);
    tests.add("what_a_device_can_do_is_read_from_the_kernel", Need::TxMetadata, device_features);
    tests.add("requests_that_cannot_be_met_are_refused", Need::TxMetadata, refused_requests);
    tests.add("frames_stay_out_of_reach_while_the_kernel_holds_them", Need::TxMetadata, frames_the_kernel_holds);
    tests.add("closing_with_tx_metadata_gives_the_frames_back", Need::TxMetadata, close_with_metadata);
}

fn device_features() {
    in_lab(1, 1500, |lab| {
        let features = DeviceFeatures::of(lab.near).unwrap();
        assert!(features.xdp && features.redirect && !features.zero_copy, "{features:?}");
        assert!(!features.tx_timestamp && !features.tx_checksum && !features.tx_launch_time, "{features:?}");
        let error = DeviceFeatures::of(4711).unwrap_err().to_string();
        assert!(error.starts_with("ifindex 4711: netlink(netdev): ENODEV: "), "{error}");
    });
}

fn layout(tx_metadata: TxMetadata) -> UmemConfig {
    UmemConfig { tx_metadata, ..node::layout() }
}

/// The ones' complement sum of `bytes` (RFC 1071).
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| low.into())).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

fn checksum() {
    in_lab(1, 1500, |lab| {
        const START: u16 = 34;
        const OFFSET_OF_SUM: u16 = 6;
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::with(lab.near, 0, layout(TxMetadata::SoftwareChecksum), &node::config());
        let mut far = Node::new(lab.far, 0);
        redirect.insert(&far.socket).unwrap();
        for len in [60, 61, 1000] {
            let mut packet = node::packet(&mut near.pool, 0, len).unwrap();
            packet.data_mut()[22..].iter_mut().zip(1u32..).for_each(|(byte, at)| *byte = (at * 7) as u8);
            let field = usize::from(START + OFFSET_OF_SUM);
            packet.data_mut()[field..field + 2].fill(0);
            packet.request(&TxRequest { checksum: Some((START, OFFSET_OF_SUM)), ..TxRequest::default() }).unwrap();
            assert_eq!(near.socket.tx.send([packet]).unwrap(), 1);
            near.socket.tx.wake().unwrap();
            assert!(far.socket.rx.wait(PATIENCE).unwrap());
            let received = far.socket.rx.drain(1).next().unwrap();
            assert_ne!(received.data()[field..field + 2], [0, 0]);
            assert_eq!(ones_complement_sum(&received.data()[usize::from(START)..]), 0xffff, "a sum over all is -0");
            far.pool.give(received.into_frame());
            near.await_completions();
        }
        near.check_ledger();
        far.check_ledger();
    });
}

/// Waits for the completion of one packet.
fn await_completion(node: &mut Node) -> Completed {
    let deadline = Instant::now() + PATIENCE;
    loop {
        node.socket.tx.wake().unwrap();
        if let Some(completed) = node.socket.completion.drain(1).next() {
            return completed;
        }
        assert!(Instant::now() < deadline, "the packet completes");
    }
}

fn timestamp() {
    in_lab(1, 1500, |lab| {
        let _redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::with(lab.near, 0, layout(TxMetadata::Enabled), &node::config());
        let request = TxRequest { timestamp: true, ..TxRequest::default() };
        let mut last = 0;
        for _ in 0..3 {
            let mut packet = node::packet(&mut near.pool, 0, 60).unwrap();
            packet.request(&request).unwrap();
            assert_eq!(near.socket.tx.send([packet]).unwrap(), 1);
            let completed = await_completion(&mut near);
            let time = completed.timestamp().expect("copy mode answers with the kernel's clock");
            assert!(time > last, "time goes on");
            last = time;
            // The same frame without a request: no stale answer.
            let packet = completed.into_frame().into_segment(OFFSET, 60).unwrap();
            assert_eq!(near.socket.tx.send([packet]).unwrap(), 1);
            let completed = await_completion(&mut near);
            assert_eq!(completed.timestamp(), None);
            near.pool.give(completed.into_frame());
        }
        near.check_ledger();
    });
}

fn refused_requests() {
    in_lab(1, 1500, |lab| {
        let request = TxRequest { checksum: Some((34, 16)), ..TxRequest::default() };
        let mut plain = Node::new(lab.near, 0);
        let mut packet = node::packet(&mut plain.pool, 0, 60).unwrap();
        let error = packet.request(&request).unwrap_err().to_string();
        assert_eq!(error, "segment: the umem has no Tx metadata; set UmemConfig::tx_metadata");
        let mut node = Node::with(lab.far, 0, layout(TxMetadata::Enabled), &node::config());
        let refusal = |packet: &mut Segment| packet.request(&request).unwrap_err().to_string();
        let mut packet = node::packet(&mut node.pool, 0, 60).unwrap();
        packet.set_range(Segment::MIN_REQUEST_OFFSET - 1, 60).unwrap();
        assert!(refusal(&mut packet).contains("too few for the Tx metadata of 24"));
        packet.set_range(Segment::MIN_REQUEST_OFFSET, 51).unwrap();
        assert!(refusal(&mut packet).contains("lies outside 51 bytes"));
        packet.set_range(Segment::MIN_REQUEST_OFFSET, 52).unwrap();
        packet.request(&request).unwrap();
        assert_eq!(node.socket.tx.send([packet]).unwrap(), 1);
        node.await_completions();
        node.check_ledger();
    });
}

#[expect(unsafe_code, reason = "a duplicate of the descriptor is what keeps the kernel's socket open")]
fn frames_the_kernel_holds() {
    in_lab(1, 1500, |lab| {
        let near = Node::with(lab.near, 0, layout(TxMetadata::Enabled), &node::config());
        let Node { umem, mut pool, socket } = near;
        let held = socket.rx_frames() as usize;
        assert!(held > 0);
        // SAFETY: the socket is open.
        let other = nix::unistd::dup(unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }).unwrap();
        drop(socket);
        assert_eq!(pool.collect(), 0, "the kernel's socket is still open");
        assert_eq!(umem.ledger().rx as usize, held);
        drop(other);
        let deadline = Instant::now() + PATIENCE;
        while pool.collect() < held {
            assert!(Instant::now() < deadline, "the frames come back");
        }
        node::check_ledger(&umem, &[&pool], &[]);
    });
}

fn close_with_metadata() {
    in_lab(1, 1500, |lab| {
        let mut near = Node::with(lab.near, 0, layout(TxMetadata::Enabled), &node::config());
        assert_eq!(near.send(0, 30, 60), 30);
        let Node { umem, mut pool, socket } = near;
        drop(socket);
        pool.collect();
        node::check_ledger(&umem, &[&pool], &[]);
    });
}
