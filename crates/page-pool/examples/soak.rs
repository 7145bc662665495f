//! Runs a pool for a given number of operations on all its paths at once and proves that no frame was lost or doubled.
//!
//! `cargo run --release -p page-pool --example soak -- 1000000000`
//!
//! The owner allocates singly, in bulk and as fragments, and returns some of it itself; two other threads return the rest,
//! one through a lane, one through the ring (singly, in bulk, and by a returner). Every frame carries a mark that its user
//! writes after allocation and wipes before the return: a frame handed out twice is seen at once. At the end the ledger must
//! balance and the pool must close without a frame missing. An operation is one allocation with its return.
#![expect(clippy::print_stdout, reason = "it is a program that prints its result")]

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use page_pool::{Builder, Frag, Frame, Owner, ReturnPath, Returner};

const FRAMES: u32 = 8192;
const USED: u8 = 0xa5;

enum Packet {
    Frames(Vec<Frame>),
    Frags(Vec<Frag>),
}

fn main() -> ExitCode {
    let operations = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(10_000_000_u64);
    let mut ok = true;
    for (name, builder) in [("umem", Builder::umem(FRAMES)), ("heap", Builder::heap(FRAMES).ring_size(256))] {
        match run(&builder, operations / 2) {
            Ok(report) => println!("{name}: {report}"),
            Err(error) => {
                println!("{name}: {error}");
                ok = false;
            }
        }
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(builder: &Builder, operations: u64) -> Result<String, Box<dyn std::error::Error>> {
    let start = Instant::now();
    let owner = builder.clone().build()?.bind();
    let lane = owner.returner(ReturnPath::Lane)?;
    let ring = owner.returner(ReturnPath::Ring)?;
    let (to_lane, from_owner) = sync_channel(32);
    let lane = thread::spawn(move || by_returner(lane, &from_owner));
    let (to_ring, from_owner) = sync_channel(32);
    let ring = thread::spawn(move || by_ring(ring, &from_owner));
    let done = allocate(&owner, operations, &to_lane, &to_ring)?;
    drop((to_lane, to_ring));
    let returned =
        lane.join().and_then(|a| ring.join().map(|b| a + b)).map_err(|_panic| "a returning thread panicked")?;

    let ledger = owner.ledger();
    if ledger.user + ledger.batched + ledger.kernel != 0 {
        return Err(format!("frames are missing: {ledger:?}").into());
    }
    let stats = owner.stats();
    let closed = owner.close();
    if !closed.is_clean() || !closed.is_freed() {
        return Err(closed.to_string().into());
    }
    Ok(format!(
        "{done} operations, {returned} of them returned by other threads, in {:.0} s; no frame lost or doubled\n  {stats:?}",
        start.elapsed().as_secs_f64()
    ))
}

type Outcome<T> = Result<T, String>;

fn allocate(owner: &Owner, operations: u64, lane: &SyncSender<Packet>, ring: &SyncSender<Packet>) -> Outcome<u64> {
    let mut done = 0;
    let mut turn = 0_u64;
    let mut local = Vec::new();
    while done < operations {
        turn += 1;
        let to = if turn.is_multiple_of(2) { lane } else { ring };
        match turn % 8 {
            0 => {
                let frags: Vec<_> = (0..64).map_while(|_| owner.frag_alloc(1024)).collect();
                done += frags.len() as u64;
                send(to, Packet::Frags(frags))?;
            }
            1 | 2 => {
                let frames = (0..64).map_while(|_| owner.alloc()).map(|f| mark(f.into_shared()));
                let frames = frames.collect::<Outcome<Vec<_>>>()?;
                done += frames.len() as u64;
                send(to, Packet::Frames(frames))?;
            }
            3 => {
                // More than the cache takes, so that the owner returns through the ring too.
                done += owner.alloc_bulk(&mut local, 200) as u64;
                for frame in &mut local {
                    mark_data(frame.index(), frame.data_mut())?;
                    frame.data_mut()[0] = 0;
                }
                owner.recycle_bulk(&mut local);
            }
            _ => {
                for _ in 0..64 {
                    let Some(frame) = owner.alloc() else { break };
                    let mut frame = mark(frame.into_shared())?;
                    wipe(&mut frame)?;
                    done += 1;
                }
            }
        }
    }
    Ok(done)
}

fn send(to: &SyncSender<Packet>, packet: Packet) -> Outcome<()> {
    to.send(packet).map_err(|_panic| "a returning thread ended early".to_owned())
}

fn mark(mut frame: Frame) -> Outcome<Frame> {
    let index = frame.index();
    mark_data(index, frame.data_mut().ok_or("a new frame is held")?)?;
    Ok(frame)
}

fn mark_data(index: u32, data: &mut [u8]) -> Outcome<()> {
    if std::mem::replace(&mut data[0], USED) == USED {
        return Err(format!("frame {index} was handed out while in use"));
    }
    Ok(())
}

fn wipe(frame: &mut Frame) -> Outcome<()> {
    let index = frame.index();
    let data = frame.data_mut().ok_or("nobody holds the frame")?;
    if std::mem::replace(&mut data[0], 0) != USED {
        return Err(format!("frame {index} was used by somebody else"));
    }
    Ok(())
}

/// Returns everything by a returner; how much it was.
fn by_returner(mut returner: Returner, packets: &Receiver<Packet>) -> u64 {
    let mut n = 0;
    for packet in packets {
        match packet {
            Packet::Frames(frames) => {
                for mut frame in frames {
                    assert_eq!(wipe(&mut frame), Ok(()));
                    n += 1;
                    returner.put(frame);
                }
            }
            Packet::Frags(frags) => {
                n += frags.len() as u64;
                frags.into_iter().for_each(|frag| returner.put_frag(frag));
            }
        }
    }
    n
}

/// Returns singly, in bulk and by a returner, by turns; how much it was.
fn by_ring(mut returner: Returner, packets: &Receiver<Packet>) -> u64 {
    let mut n = 0;
    for (turn, packet) in packets.iter().enumerate() {
        match packet {
            Packet::Frames(mut frames) => {
                n += frames.len() as u64;
                frames.iter_mut().for_each(|frame| assert_eq!(wipe(frame), Ok(())));
                match turn % 3 {
                    0 => drop(frames),
                    1 => Frame::put_bulk(&mut frames),
                    _ => frames.into_iter().for_each(|frame| returner.put(frame)),
                }
            }
            Packet::Frags(frags) => n += frags.len() as u64,
        }
    }
    n
}
