//! The pool's paths beside other pools and allocators, in one interleaved run.
//!
//! `cargo bench -p page-pool --features bench [-- ROUNDS [OPERATIONS]]`
//!
//! Each round runs every case once, starting one case later than the round before, so that all see the same drift. One
//! thread's cases are timed by its CPU time, cases of two threads by the clock. Ratios are taken within a round; medians
//! and 10th percentiles (p10) over the rounds are printed. Without `--bench` (as `cargo test --benches` calls it) one
//! short round is run.
#![expect(clippy::print_stdout, reason = "it is a program that prints tables")]
#![expect(unsafe_code, reason = "reads a clock, pins threads, calls allocators")]

mod bounds;
mod cross;
mod peers;
mod table;

use std::process::ExitCode;

use page_pool::bench::Path;
use page_pool::{Builder, HugePages, Owner};
use table::{Case, Table};

/// Frames of every pool.
const FRAMES: u32 = 8192;
/// Bytes of every frame.
const FRAME_SIZE: u32 = 4096;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let short = !args.iter().any(|arg| arg == "--bench");
    args.retain(|arg| !arg.starts_with("--"));
    let number = |i: usize, default: u64| args.get(i).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (rounds, operations) = if short { (1, 2048) } else { (number(0, 41), number(1, 200_000)) };
    match run(rounds as usize, operations) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if short => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(rounds: usize, operations: u64) -> page_pool::Result<bool> {
    cross::pin(0);
    let owner = pool()?;
    let peers = peers::Peers::new();
    println!("{rounds} rounds, {operations} operations a round; ns per allocation and return\n");

    let mut cases = own(page_pool::bench::single(&owner), operations);
    cases.extend(peers.single(operations));
    let t1 = Table::print("T1 one frame, same thread", cases, rounds);

    let mut cases = own(page_pool::bench::burst(&owner, 64), operations);
    cases.extend(peers.burst(operations, 64));
    let t2 = Table::print("T2 burst of 64, first line of each frame written, same thread", cases, rounds);

    let mut cases = own(page_pool::bench::burst(&owner, 512), operations);
    cases.extend(peers.burst(operations, 512));
    Table::print("T2 burst of 512 (exceeds the cache)", cases, rounds);

    let t3 = Table::print("T3 allocated here, returned by another thread", cross::cases(&owner, operations), rounds);
    Table::print(
        "T4 fragments of 2048 bytes, burst of 64",
        own(page_pool::bench::frags(&owner, 2048), operations),
        rounds,
    );
    Table::print(
        "T4 fragments of 512 bytes, burst of 64",
        own(page_pool::bench::frags(&owner, 512), operations),
        rounds,
    );
    let t5 =
        Table::print("T5 drop from a window of 2048 frames", own(page_pool::bench::window(&owner), operations), rounds);

    let closed = owner.close();
    println!("{closed}");
    Ok(bounds::check(&t1, &t2, &t3, &t5) && closed.is_clean())
}

fn pool() -> page_pool::Result<Owner> {
    let seed = Builder::umem(FRAMES).frame_size(FRAME_SIZE).huge_pages(HugePages::Transparent).build()?;
    Ok(seed.bind())
}

/// The pool's own paths as cases timed by thread CPU time.
fn own(paths: Vec<Path<'_>>, operations: u64) -> Vec<Case<'_>> {
    paths.into_iter().map(|path| Case::cpu(format!("page-pool: {}", path.name), operations, path.run)).collect()
}
