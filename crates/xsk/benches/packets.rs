//! What frames and packets cost, in nanoseconds: the median of the samples, and their range.
//!
//! The packets cross a veth pair in copy mode, so most of their time is the kernel's. Needs root for them.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::Instant;

use support::bpf::Redirect;
use support::in_lab;
use support::node::{self, Node, PATIENCE};
use xsk::{FramePool, FrameSource, Umem};

const SAMPLES: usize = 21;

fn main() {
    let mut pool = FramePool::new(&Umem::new(node::layout()).unwrap());
    report("take a frame from a pool and give it back", 1_000_000, || {
        let frame = black_box(pool.take()).unwrap();
        pool.give(frame);
    });
    report("write a packet of 60 bytes into a frame", 1_000_000, || {
        let packet = black_box(node::packet(&mut pool, 1, 60)).unwrap();
        pool.give(packet.into_frame());
    });
    if !nix::unistd::geteuid().is_root() {
        println!("packets across veth: not available (needs root)");
        return;
    }
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::new(lab.near, 0);
        let mut far = Node::new(lab.far, 0);
        redirect.insert(&far.socket).unwrap();
        let mut next = 0;
        report("one packet across veth, alone", 5_000, || {
            near.send(next, 1, 60);
            assert!(far.socket.rx.wait(PATIENCE).unwrap());
            next = far.receive_in_order(next);
        });
        let (mut sent, start) = (next, next);
        report_per("packet across veth, 64 at a time", 64, 500, || {
            sent += near.send(sent, 64, 60);
            next = far.await_number(next, sent);
        });
        assert_eq!(next - start, sent - start);
    });
}

fn report(what: &str, count: u32, step: impl FnMut()) {
    report_per(what, 1, count, step);
}

/// Times `count` steps of `each` things a sample.
fn report_per(what: &str, each: u32, count: u32, mut step: impl FnMut()) {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            (0..count).for_each(|_| step());
            start.elapsed().as_nanos() as f64 / f64::from(count * each)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!("{what}: {:.2} ns ({:.2} to {:.2})", samples[SAMPLES / 2], samples[0], samples[SAMPLES - 1]);
}
