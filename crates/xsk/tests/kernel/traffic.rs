//! Packets from one end of a veth pair to the other, counted exactly.

use std::thread;

use crate::needs::{Need, Tests};
use crate::support::bpf::Redirect;
use crate::support::node::{self, Node, PATIENCE, check_ledger};
use crate::support::{Lab, in_lab};
use xsk::{CompletionRing, FramePool, FrameSource, RxRing, Socket, TxRing, Umem};

pub(crate) fn add(tests: &mut Tests) {
    let nothing = Need::Nothing;
    tests.add("one_packet_in_flight_goes_round_a_closed_loop", nothing, one_packet_in_flight);
    tests.add("every_packet_arrives_once_on_1_queue", nothing, || exact_counts(1));
    tests.add("every_packet_arrives_once_on_2_queues", nothing, || exact_counts(2));
    tests.add("every_packet_arrives_once_on_3_queues", nothing, || exact_counts(3));
    tests.add("every_packet_arrives_once_on_4_queues", nothing, || exact_counts(4));
    tests.add("four_queues_share_one_umem", nothing, four_queues_share_one_umem);
    tests.add("three_sockets_share_one_queue", nothing, three_sockets_share_one_queue);
    tests.add("recycled_frames_are_received_into_again_and_again", nothing, recycled_frames);
    tests.add("two_devices_share_one_umem", nothing, two_devices_share_one_umem);
    #[cfg(feature = "page-pool")]
    tests.add("frames_of_a_page_pool_go_round", nothing, frames_of_a_page_pool);
    #[cfg(feature = "page-pool")]
    tests.add("frames_of_a_page_pool_in_flight_at_the_close_come_back", nothing, page_pool_closed_in_flight);
    tests.add("a_umem_outlives_the_socket_that_registered_it", nothing, first_sharer_closes);
    tests.add("rings_of_a_socket_work_on_threads_of_their_own", nothing, rings_on_threads);
}

/// A pair with the redirect program on the far end and a socket on each end of each queue.
fn pair(lab: Lab, queues: u32) -> (Vec<Node>, Vec<Node>, Redirect) {
    let redirect = Redirect::attach(lab.far).unwrap();
    let near = (0..queues).map(|queue| Node::new(lab.near, queue)).collect();
    let far: Vec<_> = (0..queues).map(|queue| Node::new(lab.far, queue)).collect();
    far.iter().for_each(|node| redirect.insert(&node.socket).unwrap());
    (near, far, redirect)
}

/// Packets go to each socket on the queue in turn, out of one fill ring, and back through each, into one completion ring.
fn three_sockets_share_one_queue() {
    const PACKETS: u64 = 40;
    in_lab(1, 1500, |lab| {
        let (mut near, mut far, redirect) = pair(lab, 1);
        let back = Redirect::attach(lab.near).unwrap();
        back.insert(&near[0].socket).unwrap();
        let (near, mut far) = (&mut near[0], far.remove(0));
        assert!(far.socket.share_queue(3, 0).unwrap_err().to_string().contains("power of two"));
        let mut sharers = [far.socket.share_queue(64, 64).unwrap(), far.socket.share_queue(64, 64).unwrap()];
        let mut next = 0;
        for round in 0..6 {
            for sharer in &mut sharers {
                redirect.insert_at(0, sharer).unwrap();
                assert_eq!(near.send(next, PACKETS, 60), PACKETS);
                let mut returned = 0;
                while returned < PACKETS {
                    assert!(RxRing::wait_any([&mut sharer.rx, &mut far.socket.rx], PATIENCE).unwrap(), "round {round}");
                    assert_eq!(far.socket.rx.drain(1).count(), 0, "only the sharer is in the map");
                    let sent = sharer.tx.send(sharer.rx.drain(64)).unwrap();
                    sharer.tx.wake().unwrap();
                    returned += u64::from(sent);
                }
                next = near.await_number(next, next + PACKETS);
                let mut completed = |far: &mut Node| {
                    sharer.tx.wake().unwrap();
                    far.socket.completion.recycle(&mut far.pool);
                    far.socket.completion.completed()
                };
                let deadline = std::time::Instant::now() + PATIENCE;
                while completed(&mut far) < next && std::time::Instant::now() < deadline {}
                assert_eq!(far.socket.completion.completed(), next, "completions come to the one ring");
                let fill = far.umem.ledger().user.min(PACKETS as u32);
                far.socket.fill.refill(&mut far.pool, fill).unwrap();
            }
        }
        for sharer in &sharers {
            assert_eq!((sharer.rx.received(), sharer.tx.sent(), sharer.rx.faults()), (6 * PACKETS, 6 * PACKETS, 0));
            assert_eq!(sharer.statistics_reader().read().unwrap().rx_dropped, 0);
        }
        assert_eq!((far.socket.rx.received(), far.socket.completion.faults()), (0, 0));
        let layout = far.umem.layout().frames;
        let ledger = far.umem.ledger();
        assert_eq!((ledger.tx, ledger.rx + ledger.user), (0, layout), "{ledger:?}");
        drop(sharers);
        let Node { umem, mut pool, socket } = far;
        drop(socket);
        pool.collect();
        check_ledger(&umem, &[&pool], &[]);
    });
}

/// Ten times as many packets as frames, none of which leaves the rings.
fn recycled_frames() {
    const BATCH: u64 = 100;
    in_lab(1, 1500, |lab| {
        let (mut near, mut far, _redirect) = pair(lab, 1);
        let (near, far) = (&mut near[0], &mut far[0]);
        assert!(far.socket.fill.recycle(&mut near.socket.rx, 1).is_err(), "a ring of another umem");
        let (user, given) = (far.umem.ledger().user, far.socket.fill.given());
        for round in 0..50 {
            assert_eq!(near.send(round * BATCH, BATCH, 60), BATCH);
            let mut packets = 0;
            while packets < BATCH {
                assert!(far.socket.rx.wait(PATIENCE).unwrap());
                let Socket { fill, rx, .. } = &mut far.socket;
                let recycled = fill.recycle(rx, 7).unwrap();
                assert!(recycled.frames == recycled.packets && (1..=7).contains(&recycled.frames), "{recycled:?}");
                packets += u64::from(recycled.packets);
            }
            near.await_completions();
        }
        assert_eq!((far.socket.rx.received(), far.umem.ledger().user), (50 * BATCH, user));
        assert_eq!(far.socket.fill.given(), given + 50 * BATCH);
        far.check_ledger();
    });
}

fn one_packet_in_flight() {
    in_lab(1, 1500, |lab| {
        let (mut near, mut far, _redirect) = pair(lab, 1);
        let back = Redirect::attach(lab.near).unwrap();
        back.insert(&near[0].socket).unwrap();
        let (near, far) = (&mut near[0], &mut far[0]);
        for number in 0..2000 {
            assert_eq!(near.send(number, 1, 60), 1);
            assert!(far.socket.rx.wait(PATIENCE).unwrap(), "packet {number} arrives though it is alone");
            let Socket { rx, tx, .. } = &mut far.socket;
            assert_eq!(tx.send(rx.drain(8)).unwrap(), 1);
            tx.wake().unwrap();
            far.socket.completion.recycle(&mut far.pool);
            far.refill();
            near.await_number(number, number + 1);
        }
        near.await_completions();
        far.await_completions();
        assert!(near.socket.statistics().unwrap().tx_ring_empty_descs.unwrap() > 0, "it went empty with each packet");
        near.check_ledger();
        far.check_ledger();
    });
}

fn exact_counts(queues: u32) {
    const PACKETS: u64 = 20_000;
    in_lab(queues, 1500, move |lab| {
        let (mut near, mut far, _redirect) = pair(lab, queues);
        for (near, far) in near.iter_mut().zip(&mut far) {
            // No more in flight than the veth ring of 256 holds.
            let (mut sent, mut received) = (0, 0);
            while received < PACKETS {
                sent += near.send(sent, (PACKETS - sent).min(64 - (sent - received)), 60);
                received = far.receive_in_order(received);
            }
            assert_eq!((sent, received), (PACKETS, PACKETS));
        }
        for (near, far) in near.iter_mut().zip(&mut far) {
            near.await_completions();
            far.receive_in_order(PACKETS);
            assert_eq!((near.socket.tx.sent(), near.socket.tx.dropped()), (PACKETS, 0));
            assert_eq!(far.socket.rx.received(), PACKETS, "queue {}", far.socket.queue());
            near.check_ledger();
            far.check_ledger();
        }
    });
}

fn four_queues_share_one_umem() {
    in_lab(4, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let umem = Umem::new(node::layout()).unwrap();
        let mut pool = FramePool::new(&umem);
        let mut sockets: Vec<_> =
            (0..4).map(|queue| Socket::bind(&umem, lab.far, queue, &node::config()).unwrap()).collect();
        for socket in &mut sockets {
            redirect.insert(socket).unwrap();
            assert_eq!(socket.fill.refill(&mut pool, 100).unwrap(), 100);
        }
        check_ledger(&umem, &[&pool], &sockets.iter().collect::<Vec<_>>());
        for (queue, socket) in sockets.iter_mut().enumerate() {
            let mut near = Node::new(lab.near, queue as u32);
            let count = 10 + queue as u64;
            assert_eq!(near.send(0, count, 60), count);
            near.await_completions();
            while socket.rx.received() < count && socket.rx.wait(PATIENCE).unwrap() {
                socket.rx.drain(64).for_each(|segment| pool.give(segment.into_frame()));
            }
            assert_eq!(socket.rx.received(), count);
        }
        check_ledger(&umem, &[&pool], &sockets.iter().collect::<Vec<_>>());
        drop(sockets);
        pool.collect();
        assert_eq!(pool.len(), 512, "closing the sockets gives all frames back");
    });
}

fn two_devices_share_one_umem() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let umem = Umem::new(node::layout()).unwrap();
        let mut pool = FramePool::new(&umem);
        let mut near = Socket::bind(&umem, lab.near, 0, &node::config()).unwrap();
        let mut far = Socket::bind(&umem, lab.far, 0, &node::config()).unwrap();
        redirect.insert(&far).unwrap();
        far.fill.refill(&mut pool, 200).unwrap();
        let mut packets: Vec<_> = (0..100).map(|number| node::packet(&mut pool, number, 60).unwrap()).collect();
        assert_eq!(near.tx.send(packets.drain(..)).unwrap(), 100);
        near.tx.wake().unwrap();
        let mut next = 0;
        while next < 100 && far.rx.wait(PATIENCE).unwrap() {
            for segment in far.rx.drain(64) {
                assert_eq!(node::number(&segment), next);
                next += 1;
                pool.give(segment.into_frame());
            }
        }
        assert_eq!(next, 100);
        near.completion.recycle(&mut pool);
        check_ledger(&umem, &[&pool], &[&near, &far]);
        let error = Socket::bind(&umem, lab.far, 0, &node::config()).unwrap_err().to_string();
        assert!(error.contains("EINVAL: a further socket of a umem needs a queue of its own"), "{error}");
        drop((near, far));
        pool.collect();
        check_ledger(&umem, &[&pool], &[]);
    });
}

#[cfg(feature = "page-pool")]
fn frames_of_a_page_pool() {
    in_lab(1, 1500, |lab| {
        const PACKETS: u64 = 2000;
        let redirect = Redirect::attach(lab.far).unwrap();
        let umem = Umem::new(node::layout()).unwrap();
        let mut pool = xsk::PagePool::new(&umem).unwrap();
        let mut near = Node::new(lab.near, 0);
        let mut far = Socket::bind(&umem, lab.far, 0, &node::config()).unwrap();
        redirect.insert(&far).unwrap();
        let mut next = 0;
        while next < PACKETS {
            far.fill.refill(&mut pool, 64).unwrap();
            let end = next + near.send(next, 50, 60);
            while next < end && far.rx.wait(PATIENCE).unwrap() {
                for segment in far.rx.drain(64) {
                    assert_eq!(node::number(&segment), next);
                    next += 1;
                    pool.give(segment.into_frame());
                }
            }
            assert_eq!(next, end, "all packets sent arrive");
            let (ledger, pooled) = (umem.ledger(), pool.ledger());
            assert_eq!(u64::from(ledger.rx), far.rx_frames());
            assert_eq!((pooled.kernel, ledger.parked + ledger.rx), (ledger.rx, ledger.frames), "pool + rings = all");
        }
        drop(far);
        pool.collect();
        assert_eq!((umem.ledger().parked, pool.ledger().outstanding()), (512, 0));
    });
}

/// Packets arrive, go back and complete, all in frames of one page pool; the sockets close at the worst moment.
#[cfg(feature = "page-pool")]
fn page_pool_closed_in_flight() {
    in_lab(1, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let back = Redirect::attach(lab.near).unwrap();
        let umem = Umem::new(node::layout()).unwrap();
        let mut pool = xsk::PagePool::new(&umem).unwrap();
        for round in 0..5 {
            let mut near = Node::new(lab.near, 0);
            let mut far = Socket::bind(&umem, lab.far, 0, &node::config()).unwrap();
            redirect.insert(&far).unwrap();
            back.insert(&near.socket).unwrap();
            let check = |pool: &xsk::PagePool, far: &Socket, user: u32| {
                let (ledger, pooled) = (umem.ledger(), pool.ledger());
                assert_eq!((u64::from(ledger.rx), u64::from(ledger.tx)), (far.rx_frames(), far.tx_frames()));
                assert_eq!((ledger.user, ledger.free), (user, 0), "{ledger:?}");
                assert_eq!(ledger.parked + ledger.rx + ledger.tx + user, ledger.frames, "pool + rings + user = all");
                assert_eq!(pooled.kernel, ledger.frames - ledger.parked, "the pool's books agree");
            };
            assert_eq!(far.fill.refill(&mut pool, 200).unwrap(), 200);
            check(&pool, &far, 0);
            for step in 0..4 {
                assert_eq!(near.send(step * 30, 30, 60), 30);
                let mut echoed = 0;
                while echoed < 30 {
                    assert!(far.rx.wait(PATIENCE).unwrap(), "packet {echoed} of step {step} arrives");
                    echoed += far.tx.send(far.rx.drain(8)).unwrap();
                    far.tx.wake().unwrap();
                    check(&pool, &far, 0);
                }
                near.await_number(step * 30, (step + 1) * 30);
                if step < 2 {
                    far.completion.recycle(&mut pool);
                    check(&pool, &far, 0);
                }
            }
            // Sent and not completed: the last steps. Received and not read, held by the user, queued and not sent:
            assert_eq!(near.send(0, 30, 60), 30);
            assert!(far.rx.wait(PATIENCE).unwrap());
            let held: Vec<_> = far.rx.drain(5).collect();
            let queued = std::iter::from_fn(|| pool.take()?.into_segment(0, 60).ok());
            assert_eq!(far.tx.send(queued.take(10)).unwrap(), 10);
            check(&pool, &far, held.len() as u32);
            assert!(far.tx_frames() >= 10 + 60 && !held.is_empty(), "round {round}");
            drop(far);
            assert_eq!((umem.ledger().rx, umem.ledger().tx), (0, 0), "a closed socket holds nothing");
            held.into_iter().for_each(|segment| pool.give(segment.into_frame()));
            pool.collect();
            assert_eq!((umem.ledger().parked, pool.ledger().outstanding()), (512, 0));
            near.await_completions();
            near.check_ledger();
        }
    });
}

fn first_sharer_closes() {
    in_lab(2, 1500, |lab| {
        let redirect = Redirect::attach(lab.far).unwrap();
        let umem = Umem::new(node::layout()).unwrap();
        let mut pool = FramePool::new(&umem);
        let mut first = Socket::bind(&umem, lab.far, 0, &node::config()).unwrap();
        let second = Socket::bind(&umem, lab.far, 1, &node::config()).unwrap();
        first.fill.refill(&mut pool, 50).unwrap();
        drop(first);
        assert_eq!(pool.collect(), 50);
        let socket = Socket::bind(&umem, lab.far, 0, &node::config()).unwrap();
        let mut far = Node { umem, pool, socket };
        redirect.insert(&far.socket).unwrap();
        far.refill();
        let mut near = Node::new(lab.near, 0);
        assert_eq!(near.send(0, 20, 60), 20);
        far.await_number(0, 20);
        check_ledger(&far.umem, &[&far.pool], &[&far.socket, &second]);
    });
}

/// Two of the rings; the others are dropped here, and the socket stays open for these.
fn sending_side(socket: Socket) -> (TxRing, CompletionRing) {
    let Socket { tx, completion, .. } = socket;
    (tx, completion)
}

fn rings_on_threads() {
    in_lab(1, 1500, |lab| {
        const PACKETS: u64 = 5000;
        let (mut near, mut far, _redirect) = pair(lab, 1);
        let (near, mut far) = (near.remove(0), far.remove(0));
        let Node { umem, mut pool, socket } = near;
        let (mut tx, mut completion) = sending_side(socket);
        let (acknowledge, acknowledged) = std::sync::mpsc::channel();
        let sender = thread::spawn(move || {
            let mut received = 0;
            for number in 0..PACKETS {
                let packet = loop {
                    completion.recycle(&mut pool);
                    if let Some(packet) = node::packet(&mut pool, number, 60) {
                        break packet;
                    }
                };
                assert_eq!(tx.send([packet]).unwrap(), 1);
                tx.wake().unwrap();
                // No more in flight than the veth ring of 256 holds.
                while number + 1 - received >= 64 {
                    received = acknowledged.recv_timeout(PATIENCE).unwrap();
                }
            }
            (tx, completion, pool, acknowledged)
        });
        let receiver = thread::spawn(move || {
            let mut next = 0;
            while next < PACKETS && far.socket.rx.wait(PATIENCE).unwrap() {
                next = far.receive_in_order(next);
                acknowledge.send(next).unwrap();
            }
            assert_eq!(next, PACKETS);
            far
        });
        // Kept until both are done, so that the receiver can report to the end.
        let (tx, mut completion, mut pool, _acknowledged) = sender.join().unwrap();
        receiver.join().unwrap().check_ledger();
        completion.recycle(&mut pool);
        assert_eq!((tx.sent(), completion.completed()), (PACKETS, PACKETS));
        drop((tx, completion));
        pool.collect();
        assert_eq!(pool.len() as u32, umem.layout().frames);
    });
}
