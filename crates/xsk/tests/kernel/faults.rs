//! Faults put in on purpose: no frame is lost, and each lost packet is counted somewhere.

use crate::needs::{Need, Tests};
use crate::support::bpf::Redirect;
use crate::support::node::{self, Node, check_ledger};
use crate::support::{in_lab, netlink};
use xsk::{Config, FrameSource};

pub(crate) fn add(tests: &mut Tests) {
    tests.add("frames_in_flight_at_the_close_come_back", Need::Nothing, close_in_flight);
    tests.add("an_interface_down_is_an_error_and_loses_no_frame", Need::Nothing, interface_down);
    tests.add("a_peer_down_drops_packets_and_no_frame", Need::Nothing, peer_down);
    tests.add("a_detached_program_stops_packets_until_it_is_back", Need::Nothing, program_detached);
    tests.add("an_overflowing_rx_ring_is_counted_to_the_packet", Need::Nothing, rx_ring_overflow);
    tests.add("an_empty_fill_ring_is_counted_to_the_packet", Need::Nothing, fill_ring_empty);
    tests.add("a_full_tx_ring_takes_no_frame", Need::Nothing, tx_ring_full);
    tests.add("a_full_completion_ring_holds_packets_back", Need::Nothing, completion_ring_full);
    tests.add("an_interface_that_vanishes_gives_its_frames_back", Need::Nothing, interface_vanishes);
}

fn close_in_flight() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::new(lab.near, 0);
        let far = Node::new(lab.far, 0);
        redirect.insert(&far.socket).unwrap();
        // Some received but not read, some sent but not completed, some queued but never sent.
        assert_eq!(near.send(0, 60, 60), 60);
        let Node { socket, pool, .. } = &mut near;
        let queued: Vec<_> = (0..40).map(|number| node::packet(pool, number, 60).unwrap()).collect();
        assert_eq!(socket.tx.send(queued).unwrap(), 40);
        near.check_ledger();
        far.check_ledger();
        for node in [near, far] {
            let Node { umem, mut pool, mut socket } = node;
            let held = socket.rx.drain(3).next();
            let (in_pool, held_frames) = (pool.len(), usize::from(held.is_some()));
            drop(socket);
            let ledger = umem.ledger();
            assert_eq!((ledger.rx, ledger.tx), (0, 0), "a closed socket holds nothing");
            assert_eq!(pool.collect(), 512 - in_pool - held_frames);
            pool.extend(held.map(xsk::Segment::into_frame));
            check_ledger(&umem, &[&pool], &[]);
        }
    });
}

fn interface_down() {
    in_lab(1, 1500, |lab| {
        let mut near = Node::new(lab.near, 0);
        netlink::set_up(lab.near, false).unwrap();
        let Node { socket, pool, .. } = &mut near;
        assert_eq!(socket.tx.send(node::packet(pool, 0, 60)).unwrap(), 1);
        let error = near.socket.tx.wake().unwrap_err().to_string();
        assert_eq!(error, format!("Tx ring, ifindex {} queue 0: sendto: ENETDOWN: set the interface up", lab.near));
        assert_eq!(near.socket.tx.pending(), 1, "the packet stays queued");
        near.check_ledger();
        netlink::set_up(lab.near, true).unwrap();
        near.await_completions();
        near.check_ledger();
    });
}

fn peer_down() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::new(lab.near, 0);
        let mut far = Node::new(lab.far, 0);
        redirect.insert(&far.socket).unwrap();
        netlink::set_up(lab.far, false).unwrap();
        assert_eq!(near.send(0, 50, 60), 50);
        near.await_completions();
        assert_eq!(near.socket.tx.dropped(), 50, "each packet is reported as dropped by the device");
        near.check_ledger();
        far.check_ledger();
        netlink::set_up(lab.far, true).unwrap();
        assert_eq!(near.send(0, 50, 60), 50);
        far.await_number(0, 50);
        near.await_completions();
        near.check_ledger();
        far.check_ledger();
    });
}

fn program_detached() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::new(lab.near, 0);
        let mut far = Node::new(lab.far, 0);
        redirect.insert(&far.socket).unwrap();
        assert_eq!(near.send(0, 50, 60), 50);
        far.await_number(0, 50);
        drop(redirect);
        assert_eq!(near.send(0, 50, 60), 50);
        near.await_completions();
        assert_eq!(far.receive_in_order(50), 50, "without the program nothing arrives");
        let redirect = Redirect::attach(lab.far).unwrap();
        redirect.insert(&far.socket).unwrap();
        assert_eq!(near.send(50, 50, 60), 50);
        far.await_number(50, 100);
        near.await_completions();
        near.check_ledger();
        far.check_ledger();
    });
}

fn rx_ring_overflow() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::new(lab.near, 0);
        let mut far = Node::with(lab.far, 0, node::layout(), &Config { rx_ring: 32, ..node::config() });
        redirect.insert(&far.socket).unwrap();
        for batch in 0..10 {
            assert_eq!(near.send(batch * 20, 20, 60), 20);
            near.await_completions();
        }
        let statistics = far.socket.statistics().unwrap();
        let received = far.socket.rx.drain(u32::MAX).map(|segment| far.pool.give(segment.into_frame())).count() as u64;
        assert_eq!(received, 32);
        let lost = statistics.rx_ring_full.unwrap();
        assert_eq!(received + lost + near.socket.tx.dropped(), 200, "{statistics:?}");
        near.check_ledger();
        far.check_ledger();
    });
}

fn fill_ring_empty() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let mut near = Node::new(lab.near, 0);
        let mut far = Node::with(lab.far, 0, xsk::UmemConfig { frames: 20, ..node::layout() }, &node::config());
        assert_eq!(far.socket.rx_frames(), 10, "half of the frames");
        redirect.insert(&far.socket).unwrap();
        assert_eq!(near.send(0, 60, 60), 60);
        near.await_completions();
        assert_eq!(far.socket.rx.drain(u32::MAX).map(|segment| far.pool.give(segment.into_frame())).count(), 10);
        let statistics = far.socket.statistics().unwrap();
        assert_eq!(statistics.rx_dropped, 50, "{statistics:?}");
        assert!(statistics.rx_fill_ring_empty_descs.unwrap() >= 50, "{statistics:?}");
        near.check_ledger();
        far.check_ledger();
        far.refill();
        assert_eq!(near.send(0, 5, 60), 5);
        far.await_number(0, 5);
    });
}

fn tx_ring_full() {
    in_lab(1, 1500, |lab| {
        let mut near = Node::with(lab.near, 0, node::layout(), &Config { tx_ring: 8, ..node::config() });
        let Node { socket, pool, .. } = &mut near;
        let before = pool.len();
        let packets = std::iter::from_fn(|| node::packet(pool, 0, 60));
        assert_eq!(socket.tx.send(packets.take(20)).unwrap(), 8);
        assert_eq!((socket.tx.room(), pool.len()), (0, before - 8), "no frame is taken without room");
        near.check_ledger();
        near.await_completions();
        near.check_ledger();
    });
}

fn completion_ring_full() {
    in_lab(1, 1500, |lab| {
        let mut near = Node::with(lab.near, 0, node::layout(), &Config { completion_ring: 16, ..node::config() });
        let Node { socket, pool, .. } = &mut near;
        let packets: Vec<_> = (0..60).map(|number| node::packet(pool, number, 60).unwrap()).collect();
        assert_eq!(socket.tx.send(packets).unwrap(), 60);
        let left = socket.tx.wake().unwrap();
        // Kernels up to 6.12 at least tell only of the last one that it was taken.
        assert!(left == 60 - 16 || left == 60, "what has no room to complete is not sent: {left}");
        near.check_ledger();
        near.await_completions();
        assert_eq!(near.socket.completion.completed(), 60);
        near.check_ledger();
    });
}

fn interface_vanishes() {
    in_lab(1, 1500, |lab| {
        let near = Node::new(lab.near, 0);
        netlink::delete(lab.near).unwrap();
        let Node { umem, mut pool, mut socket } = near;
        assert_eq!(socket.tx.send(node::packet(&mut pool, 0, 60)).unwrap(), 1);
        let error = socket.tx.wake().unwrap_err().to_string();
        assert!(error.contains("the interface is gone"), "{error}");
        drop(socket);
        pool.collect();
        check_ledger(&umem, &[&pool], &[]);
    });
}
