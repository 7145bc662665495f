//! A thread that owns a pool and hands frames out, and threads that use and return them.
//!
//! `cargo run -p page-pool --example threads`
#![expect(clippy::print_stdout, reason = "it is a program that prints its result")]

use std::sync::mpsc::sync_channel;
use std::thread;

use page_pool::{Builder, Frame, ReturnPath};

const PACKETS: usize = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let owner = Builder::heap(4096).frame_size(2048).returners(2).build()?.bind();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (to_worker, frames) = sync_channel::<Frame>(256);
        // A lane of its own: no lock is shared with the other worker.
        let mut returner = owner.returner(ReturnPath::Lane)?;
        let sum = thread::spawn(move || {
            let mut sum = 0;
            for frame in frames {
                sum += u64::from(frame.data()[0]);
                returner.put(frame);
            }
            sum
        });
        workers.push((to_worker, sum));
    }
    for packet in 0..PACKETS {
        let Some(mut frame) = owner.alloc() else { return Err("the workers have all frames".into()) };
        frame.data_mut()[0] = packet as u8;
        workers[packet % 2].0.send(frame.into_shared())?;
    }
    for (to_worker, sum) in workers {
        drop(to_worker);
        println!("a worker added up {}", sum.join().map_err(|_panic| "a worker panicked")?);
    }
    println!("{:?}\n{:?}\n{}", owner.stats(), owner.ledger(), owner.close());
    Ok(())
}
