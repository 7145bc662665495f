//! A network namespace with a veth pair, the redirect program, and traffic: for the tests, examples and benchmarks.
#![allow(dead_code, reason = "each user of this module needs another part of it")]
#![allow(unreachable_pub, reason = "a module of test programs")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

pub mod bpf;
pub mod netlink;
pub mod node;

use std::fs;
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// Both ends of a veth pair, by index, in a network namespace of the calling thread's own.
#[derive(Clone, Copy)]
pub struct Lab {
    pub near: u32,
    pub far: u32,
}

impl Lab {
    /// Moves the calling thread into a new namespace and makes a pair of `queues` queues in it. All of it goes away with
    /// the thread and the sockets it opened.
    pub fn new(queues: u32, mtu: u32) -> Self {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        // No packets but the test's own.
        for scope in ["all", "default"] {
            // Kernels without IPv6 have no such file, and no such packets.
            drop(fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1"));
        }
        netlink::add_veth("near", "far", queues, mtu).unwrap();
        let lab = Self { near: xsk::ifindex("near").unwrap(), far: xsk::ifindex("far").unwrap() };
        netlink::set_up(lab.near, true).unwrap();
        netlink::set_up(lab.far, true).unwrap();
        lab
    }
}

/// Runs `test` on a thread, and so in a namespace, of its own, and hands on its panic.
pub fn in_lab<R: Send + 'static>(queues: u32, mtu: u32, test: impl FnOnce(Lab) -> R + Send + 'static) -> R {
    match thread::spawn(move || test(Lab::new(queues, mtu))).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
