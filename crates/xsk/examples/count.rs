//! Sends packets through a veth pair, and counts each of them at the far end: none lost, none twice, all in order.
//!
//! `count [PACKETS] [QUEUES]`, ten million packets on one queue by default. Needs root; makes a network namespace of its
//! own and leaves nothing behind.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::env;
use std::time::Instant;

use support::bpf::Redirect;
use support::in_lab;
use support::node::Node;

/// Packets in flight a queue, below the 256 that a veth queue holds.
const WINDOW: u64 = 128;

fn main() {
    let mut numbers = env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let packets = numbers.next().unwrap_or(10_000_000);
    let queues = numbers.next().unwrap_or(1) as u32;
    let (received, ns) = in_lab(queues, 1500, move |lab| count(lab, packets, queues));
    println!("{packets} packets sent, {received} received in order, on {queues} queues");
    println!("{:.1} ns/packet, sending and receiving on one CPU", ns as f64 / received as f64);
}

fn count(lab: support::Lab, packets: u64, queues: u32) -> (u64, u128) {
    let redirect = Redirect::attach(lab.far).unwrap();
    let mut pairs: Vec<_> = (0..queues)
        .map(|queue| {
            let pair = (Node::new(lab.near, queue), Node::new(lab.far, queue));
            redirect.insert(&pair.1.socket).unwrap();
            pair
        })
        .collect();
    let share = |queue: u64| packets / u64::from(queues) + u64::from(queue < packets % u64::from(queues));
    let mut progress = vec![(0, 0); pairs.len()];
    let start = Instant::now();
    while progress.iter().zip(0..).any(|(&(_, received), queue)| received < share(queue)) {
        for (((near, far), (sent, received)), queue) in pairs.iter_mut().zip(&mut progress).zip(0..) {
            *sent += near.send(*sent, (share(queue) - *sent).min(WINDOW - (*sent - *received)), 60);
            *received = far.receive_in_order(*received);
        }
    }
    let ns = start.elapsed().as_nanos();
    for (near, far) in &mut pairs {
        near.await_completions();
        assert_eq!(near.socket.tx.dropped(), 0, "packets the device dropped");
        near.check_ledger();
        far.check_ledger();
    }
    (pairs.iter().map(|(_, far)| far.socket.rx.received()).sum(), ns)
}
