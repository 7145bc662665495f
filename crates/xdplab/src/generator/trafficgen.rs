//! Live frames that differ from one to the next: how the program that sends them is set up.

use aya::Ebpf;
use aya::maps::{Array, DevMap, MapData};

use super::{Departures, GAP_BUCKETS, GapCounts, Pace};
use crate::bpf;
use crate::error::{Error, Result};
use crate::packet::{Template, Traffic};
use crate::topology::NetNs;

/// What to send and from where.
#[derive(Clone, Debug)]
pub struct TrafficSpec {
    /// The frames.
    pub traffic: Traffic,
    /// When they leave; `None`: as fast as can be.
    pub pace: Option<Pace>,
    /// The interface that frames leave by, in the namespace given at the start.
    pub ifindex: u32,
    /// One thread on each of these CPUs.
    pub cpus: Vec<usize>,
    /// Frames that the kernel makes before it sends them, 1 to 256; with a schedule those of a burst instead.
    pub batch: u32,
    /// How many packets in all over the threads; `None`: until stopped.
    pub count: Option<u64>,
}

/// `struct template` in `bpf/trafficgen.bpf.c`, in words of the machine.
const TEMPLATE_LEN: usize = 16 + TrafficSpec::MAX_FRAME;

/// The gaps that a program counts, `struct gaps` in `bpf/pace.h`.
pub(super) struct GapMap(pub(super) Array<MapData, [u64; 3 + GAP_BUCKETS]>);

impl GapMap {
    pub(super) fn read(&self) -> Result<GapCounts> {
        let counts = self.0.get(&0, 0).map_err(|error| bpf::map_error("read the gaps between departures", &error))?;
        let [bursts, first_ns, last_ns, buckets @ ..] = counts;
        Ok(GapCounts::new(buckets.to_vec(), Departures { bursts, first_ns, last_ns }))
    }
}

/// `struct state` in `bpf/trafficgen.bpf.c`, in words.
const STATE_WORDS: usize = 9;

/// What a program keeps of itself.
pub(super) struct StateMap(Array<MapData, [u64; STATE_WORDS]>);

impl StateMap {
    /// Packets handed to the redirect.
    pub(super) fn packets(&self) -> Result<u64> {
        let state = self.0.get(&0, 0).map_err(|error| bpf::map_error("read the generator's counter", &error))?;
        Ok(state[0])
    }
}

impl TrafficSpec {
    /// The program that sends.
    pub(super) const PROGRAM: &'static str = "transmit";
    /// `TEST_XDP_MAX_BATCH` (net/bpf/test_run.c).
    pub const MAX_BATCH: u32 = 256;
    /// `FRAME_MAX` in `bpf/trafficgen.bpf.c`. The kernel's own limit is lower: a frame shares a page with its headroom and
    /// what the kernel keeps of it.
    const MAX_FRAME: usize = 4080;

    /// The object of one thread, which sends `count` of the packets.
    pub(super) fn load(
        &self,
        thread: usize,
        count: Option<u64>,
        netns: &NetNs,
    ) -> Result<(Ebpf, StateMap, Option<GapMap>)> {
        let longest = self.traffic.longest().len();
        if longest > Self::MAX_FRAME {
            let why = format!("{longest} bytes do not fit a page with what the kernel keeps beside them");
            return Err(
                Error::unsupported("send live frames", why).remedy("send shorter ones, or use xsk-udp or socket")
            );
        }
        let mut object = bpf::load(bpf::TRAFFICGEN, &self.object(thread, count))?;
        // Maps are taken afterwards: they must be there when the program is loaded, which keeps them from then on.
        bpf::program(&mut object, Self::PROGRAM)?;
        let mut target: DevMap<MapData> = bpf::take_map(&mut object, "target")?;
        // The kernel looks for the device in the namespace of the thread that asks.
        netns.run(|| {
            target
                .set(0, self.ifindex, None, 0)
                .map_err(|error| Error::invalid("redirect to the interface", bpf::with_causes(&error)))
        })?;
        if self.is_written() {
            self.fill_templates(bpf::take_map(&mut object, "templates")?)?;
        }
        let gaps = self.pace.map(|_| bpf::take_map(&mut object, "gaps").map(GapMap)).transpose()?;
        let state = bpf::take_map(&mut object, ".bss").map(StateMap)?;
        Ok((object, state, gaps))
    }

    /// Whether frames are written anew from templates.
    fn is_written(&self) -> bool {
        self.traffic.templates().iter().any(|template| template.written > 0)
    }

    fn object(&self, thread: usize, count: Option<u64>) -> bpf::Object {
        let templates = if self.is_written() { self.traffic.templates().len() as u32 } else { 0 };
        let mut globals = vec![("templates_count", templates), ("longest", self.traffic.longest().len() as u32)];
        if let Some(fields) = self.traffic.fields() {
            let [first, ..] = self.traffic.templates() else { return bpf::Object::default() };
            globals.extend([
                ("dst_ports", fields.variation.dst_ports),
                ("src_ports", fields.variation.src_ports),
                ("dst_addrs", fields.variation.dst_addrs),
                ("src_addrs", fields.variation.src_addrs),
                ("first_dst_port", fields.first_dst_port.into()),
                ("first_src_port", fields.first_src_port.into()),
                ("first_dst_addr", fields.first_dst_addr),
                ("first_src_addr", fields.first_src_addr),
                ("udp_offset", fields.udp_offset as u32),
                ("dst_addr_offset", fields.dst_addr_offset as u32),
                ("src_addr_offset", fields.src_addr_offset as u32),
                ("ip_check_offset", fields.ip_check_offset.unwrap_or(0) as u32),
                ("udp_sum", in_memory(first.udp_sum)),
                ("ip_sum", in_memory(first.ip_sum)),
            ]);
        }
        let mut arrays = Vec::new();
        if let Some(pace) = self.pace {
            let threads = self.cpus.len();
            let gap = pace.gap(threads);
            globals.push(("burst", pace.burst));
            arrays.push(("schedule", vec![gap.ns, gap.fraction.into(), gap.ns / threads as u64 * thread as u64]));
            arrays.push(("limit", vec![count.unwrap_or(u64::MAX)]));
        }
        bpf::Object {
            globals: globals.into_iter().collect(),
            arrays: arrays.into_iter().collect(),
            map_entries: [("templates", templates.max(1))].into(),
            ..bpf::Object::default()
        }
    }

    fn fill_templates(&self, mut map: Array<MapData, [u8; TEMPLATE_LEN]>) -> Result<()> {
        for (index, template) in (0..).zip(self.traffic.templates()) {
            map.set(index, in_map(template), 0).map_err(|error| bpf::map_error("fill the frames to send", &error))?;
        }
        Ok(())
    }
}

/// A sum over words of the packet as the program loads those words.
fn in_memory(sum: u16) -> u32 {
    u16::from_ne_bytes(sum.to_be_bytes()).into()
}

fn in_map(template: &Template) -> [u8; TEMPLATE_LEN] {
    let mut bytes = [0; TEMPLATE_LEN];
    let Template { frame, written, udp_sum, ip_sum } = template;
    let words = [frame.len() as u32, *written as u32, in_memory(*udp_sum), in_memory(*ip_sum)];
    for (at, word) in words.into_iter().enumerate() {
        bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[16..16 + frame.len()].copy_from_slice(frame);
    bytes
}
