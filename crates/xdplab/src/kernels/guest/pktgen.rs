//! pktgen as a sender of counted packets.

use std::thread::sleep;
use std::time::Duration;

use super::meter::{KSOFTIRQD, threads};
use crate::error::{Error, Result};
use crate::generator::pktgen::{Pktgen, PktgenSpec, XmitMode};
use crate::packet::{ETHERNET_HEADER_LEN, MIN_L2_LEN, Vlan};
use crate::sys::sched::set_fifo_of;
use crate::topology::Port;

/// How often pktgen is looked at. Its thread pays for the timer that ends the sleep, so the sleep is longer than a call of any case;
/// where instructions are counted, idle time passes at once.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Has ksoftirqd run as soon as it is woken. Kernels before 6.2 leave all softirqs to it from then on (`ksoftirqd_running`,
/// kernel/softirq.c), and pktgen would go on sending into a ring that nobody empties.
pub(super) fn prepare() -> Result<()> {
    threads(KSOFTIRQD)?.into_iter().try_for_each(|pid| set_fifo_of(pid, 1))
}

/// Sends so many packets of this MTU, or the shortest, in the calling thread's network namespace, and waits until they are sent.
///
/// # Errors
/// The kernel has no pktgen, or not all were sent.
pub(super) fn send(port: &Port, peer: &Port, mtu: Option<u32>, packets: u64) -> Result<()> {
    let mut pktgen = Pktgen::configure(&PktgenSpec {
        interface: port.name.clone(),
        size: mtu.map_or(MIN_L2_LEN as u32, |mtu| mtu + ETHERNET_HEADER_LEN as u32),
        destination: (peer.ipv4.into(), peer.ipv4.into()),
        dst_mac: peer.mac,
        dst_ports: None,
        udp_checksum: false,
        vlan: Vlan::None,
        threads: 1,
        first_thread: 0,
        clones: 0,
        burst: 1,
        count_per_thread: packets,
        delay_ns: 0,
        rate_pps: None,
        flows: 1,
        mode: XmitMode::StartXmit,
    })?;
    pktgen.start()?;
    while pktgen.is_running() {
        sleep(LOOK_EVERY);
    }
    let (sent, errors) =
        pktgen.results()?.iter().fold((0, 0), |(sent, errors), result| (sent + result.packets, errors + result.errors));
    if (sent, errors) == (packets, 0) {
        return Ok(());
    }
    Err(Error::invalid(format!("send {packets} packets by pktgen"), format!("{sent} were sent, with {errors} errors")))
}
