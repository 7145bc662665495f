//! `features INTERFACE`: what an interface and its driver can do for AF_XDP.
#![allow(clippy::print_stdout, reason = "an example")]

use std::env;

use xsk::{DeviceFeatures, ifindex, queue_count};

fn main() -> xsk::Result<()> {
    let name = env::args().nth(1).unwrap_or_else(|| "lo".into());
    let ifindex = ifindex(&name)?;
    println!("{name}: {:#?}", DeviceFeatures::of(ifindex)?);
    match queue_count(ifindex) {
        Ok(queues) => println!("queues: {queues}"),
        Err(error) => println!("queues: not available ({error})"),
    }
    Ok(())
}
