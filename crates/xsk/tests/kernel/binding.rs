//! Modes, queues, and what a bind that fails says and leaves.

use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::needs::{Need, Tests};
use crate::support::bpf::Redirect;
use crate::support::in_lab;
use crate::support::node::{self, Node};
use xsk::{BindMode, BusyPoll, Config, Error, FramePool, FrameSource, Mode, Socket, Umem};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("the_mode_is_read_back_from_the_kernel", Need::Nothing, modes);
    tests.add("a_queue_out_of_range_is_named_with_the_queues_there_are", Need::Nothing, queue_out_of_range);
    tests.add("an_interface_that_is_not_there_is_named", Need::Nothing, no_interface);
    tests.add("a_taken_queue_is_retried_until_the_deadline", Need::Nothing, queue_busy);
    tests.add("a_bind_succeeds_once_the_queue_is_let_go", Need::Nothing, queue_let_go);
    tests.add("a_queue_can_be_bound_again_right_after_the_close", Need::Nothing, bind_again);
    tests.add("packets_cross_without_need_wakeup", Need::Nothing, || {
        config_carries_packets(Config { need_wakeup: false, ..node::config() });
    });
    tests.add("packets_cross_with_busy_polling", Need::Nothing, || {
        config_carries_packets(Config { busy_poll: Some(BusyPoll::default()), ..node::config() });
    });
    tests.add("busy_polling_is_set_as_asked", Need::Nothing, busy_polling_is_set);
    tests.add("sockets_can_do_without_one_of_the_rings", Need::Nothing, one_sided_sockets);
    tests.add("sharing_a_umem_with_other_flags_is_refused", Need::Nothing, sharing_with_other_flags);
    tests.add("a_umem_over_the_memlock_limit_says_how_much_it_needs", Need::Nothing, memlock_limit);
    tests.add("a_socket_without_the_right_to_it_says_which", Need::Nothing, no_capability);
    tests.add("frames_of_another_umem_are_refused", Need::Nothing, foreign_frames);
}

fn modes() {
    in_lab(1, 1500, |lab| {
        let umem = Umem::new(node::layout()).unwrap();
        for mode in [BindMode::Copy, BindMode::Auto] {
            let socket = Socket::bind(&umem, lab.near, 0, &Config { mode, ..node::config() }).unwrap();
            assert_eq!(socket.mode(), Mode::Copy, "veth copies");
        }
        let config = Config { mode: BindMode::ZeroCopy, ..node::config() };
        let error = Socket::bind(&umem, lab.near, 0, &config).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
        assert_eq!(
            error.to_string(),
            format!(
                "ifindex {} queue 0: bind(AF_XDP): EOPNOTSUPP: the driver has no zero-copy; use BindMode::Auto or \
                 BindMode::Copy",
                lab.near
            )
        );
    });
}

fn queue_out_of_range() {
    in_lab(2, 1500, |lab| {
        assert_eq!(xsk::queue_count(lab.near).unwrap(), 2);
        let umem = Umem::new(node::layout()).unwrap();
        let error = Socket::bind(&umem, lab.near, 2, &node::config()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "ifindex {} queue 2: bind(AF_XDP): EINVAL: queue 2 is out of range, the interface has 2; choose one \
                 below, or add queues (ethtool -L)",
                lab.near
            )
        );
        Socket::bind(&umem, lab.near, 1, &node::config()).unwrap();
    });
}

fn no_interface() {
    in_lab(1, 1500, |_| {
        let umem = Umem::new(node::layout()).unwrap();
        let error = Socket::bind(&umem, 4711, 0, &node::config()).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENODEV));
        assert!(error.to_string().starts_with("ifindex 4711 queue 0: bind(AF_XDP): ENODEV: "), "{error}");
        assert!(
            xsk::ifindex("nowhere").unwrap_err().to_string().starts_with("interface nowhere: if_nametoindex: ENODEV")
        );
    });
}

fn queue_busy() {
    in_lab(1, 1500, |lab| {
        let holder = Node::new(lab.near, 0);
        let umem = Umem::new(node::layout()).unwrap();
        let bind_timeout = Duration::from_millis(120);
        let start = Instant::now();
        let error = Socket::bind(&umem, lab.near, 0, &Config { bind_timeout, ..node::config() }).unwrap_err();
        assert!(start.elapsed() >= bind_timeout);
        assert!(matches!(error, Error::QueueBusy { queue: 0, waited, .. } if waited >= bind_timeout), "{error}");
        assert!(!xsk::queue_is_free(lab.near, 0).unwrap());
        assert_eq!(umem.ledger().free, 512, "a failed bind holds no frames");
        holder.check_ledger();
    });
}

fn queue_let_go() {
    in_lab(1, 1500, |lab| {
        let holder = Node::new(lab.near, 0);
        let closer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(holder);
        });
        let config = Config { bind_timeout: Duration::from_secs(5), ..node::config() };
        let umem = Umem::new(node::layout()).unwrap();
        Socket::bind(&umem, lab.near, 0, &config).unwrap();
        closer.join().unwrap();
    });
}

fn bind_again() {
    in_lab(1, 1500, |lab| {
        let umem = Umem::new(node::layout()).unwrap();
        let mut pool = FramePool::new(&umem);
        for _ in 0..20 {
            let mut socket = Socket::bind(&umem, lab.near, 0, &node::config()).unwrap();
            assert_eq!(socket.fill.refill(&mut pool, 100).unwrap(), 100);
            drop(socket);
            assert_eq!(pool.collect(), 100);
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while !xsk::queue_is_free(lab.near, 0).unwrap() {
            assert!(Instant::now() < deadline, "the queue is let go");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Sends packets between sockets of one configuration.
fn config_carries_packets(config: Config) {
    in_lab(1, 1500, move |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::with(lab.near, 0, node::layout(), &config);
        let mut far = Node::with(lab.far, 0, node::layout(), &config);
        redirect.insert(&far.socket).unwrap();
        let mut next = 0;
        while next < 2000 {
            let sent = near.send(next, 50, 60);
            far.socket.fill.wake().unwrap();
            next = far.await_number(next, next + sent);
        }
        near.await_completions();
        near.check_ledger();
        far.check_ledger();
    });
}

#[expect(unsafe_code, reason = "getsockopt(2)")]
fn busy_polling_is_set() {
    const SO_PREFER_BUSY_POLL: i32 = 69;
    in_lab(1, 1500, |lab| {
        let umem = Umem::new(node::layout()).unwrap();
        let read = |socket: &Socket, option| {
            let (mut value, mut len) = (-1_i32, 4);
            let at = std::ptr::from_mut(&mut value).cast();
            // SAFETY: the pointers are valid for the call, and `len` bounds what is written.
            let result = unsafe {
                libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, at, std::ptr::from_mut(&mut len))
            };
            assert_eq!(result, 0);
            value
        };
        for prefer in [true, false] {
            let busy_poll = Some(BusyPoll { time: Duration::from_micros(37), budget: 16, prefer });
            let socket = Socket::bind(&umem, lab.near, 0, &Config { busy_poll, ..node::config() }).unwrap();
            assert_eq!(read(&socket, libc::SO_BUSY_POLL), 37);
            assert_eq!(read(&socket, SO_PREFER_BUSY_POLL), i32::from(prefer));
        }
    });
}

fn one_sided_sockets() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::with(lab.near, 0, node::layout(), &Config { rx_ring: 0, ..node::config() });
        let mut far = Node::with(lab.far, 0, node::layout(), &Config { tx_ring: 0, ..node::config() });
        redirect.insert(&far.socket).unwrap();
        assert_eq!(near.send(0, 50, 60), 50);
        far.await_number(0, 50);
        assert_eq!((near.socket.rx.drain(1).count(), far.send(0, 1, 60), far.socket.tx.room()), (0, 0, 0));
        near.await_completions();
        near.check_ledger();
        far.check_ledger();
    });
}

fn sharing_with_other_flags() {
    in_lab(2, 1500, |lab| {
        let umem = Umem::new(node::layout()).unwrap();
        let _first = Socket::bind(&umem, lab.near, 0, &node::config()).unwrap();
        let other = Config { need_wakeup: false, ..node::config() };
        let error = Socket::bind(&umem, lab.near, 1, &other).unwrap_err().to_string();
        assert!(error.ends_with("set need_wakeup true and multi_buffer false"), "{error}");
    });
}

fn foreign_frames() {
    in_lab(1, 1500, |lab| {
        let mut near = Node::with(lab.near, 0, node::layout(), &Config { fill_ring: 512, ..node::config() });
        let mut other = FramePool::new(&Umem::new(node::layout()).unwrap());
        let error = near.socket.fill.refill(&mut other, 1).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("fill ring, ifindex {} queue 0: the frame belongs to another", lab.near)),
            "{error}"
        );
        let mut packets = vec![other.take().unwrap().into_segment(0, 60).unwrap()];
        let error = near.socket.tx.send_packet(&mut packets).unwrap_err().to_string();
        assert!(error.starts_with("Tx ring, "), "{error}");
        assert!(near.socket.tx.send(packets).is_err());
        assert_eq!(other.collect(), 2, "frames refused are free");
        near.check_ledger();
    });
}

/// Takes a capability from the calling thread.
#[expect(unsafe_code, reason = "capset(2)")]
fn drop_capability(capability: u32) {
    const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let header = [LINUX_CAPABILITY_VERSION_3, 0];
    // Effective, permitted, inheritable; low and high words.
    let mut sets = [0u32; 6];
    // SAFETY: header and sets have the layout of version 3.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) }, 0);
    sets[0] &= !(1 << capability);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }, 0);
}

fn memlock_limit() {
    const CAP_IPC_LOCK: u32 = 14;
    in_lab(1, 1500, |lab| {
        // No other test minds the limit: their threads keep the capability to exceed it.
        let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
        setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, hard).unwrap();
        drop_capability(CAP_IPC_LOCK);
        let umem = Umem::new(node::layout()).unwrap();
        let outcome = Socket::bind(&umem, lab.near, 0, &node::config());
        setrlimit(Resource::RLIMIT_MEMLOCK, soft, hard).unwrap();
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "umem of 512 frames of 2048 bytes: setsockopt(XDP_UMEM_REG): ENOBUFS: raise RLIMIT_MEMLOCK (ulimit -l) to \
             1024 KiB or add CAP_IPC_LOCK"
        );
    });
}

fn no_capability() {
    const CAP_NET_RAW: u32 = 13;
    in_lab(1, 1500, |lab| {
        drop_capability(CAP_NET_RAW);
        let umem = Umem::new(node::layout()).unwrap();
        let error = Socket::bind(&umem, lab.near, 0, &node::config()).unwrap_err().to_string();
        assert_eq!(error, "socket: socket(AF_XDP): EPERM: run as root, or with CAP_NET_RAW");
    });
}
