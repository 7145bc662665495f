//! The kernel's packet generator, `/proc/net/pktgen` (Documentation/networking/pktgen.rst).

use super::Parser;
use super::block::Blocks;
use super::lines::{Line, between};
use super::model::{Format, Metric, Unit};
use super::number::Stated;

#[derive(Default)]
pub(super) struct Pktgen {
    /// `eth4@0`: one thread.
    device: String,
    devices: u32,
    run: Option<Run>,
}

/// A result's first line.
#[derive(Clone, Copy)]
struct Run {
    elapsed_us: Stated,
    packets: Stated,
}

impl Parser for Pktgen {
    fn line(&mut self, line: &Line<'_>, to: &mut Blocks<'_>) -> bool {
        match *line.words() {
            ["Device:", device] => {
                device.clone_into(&mut self.device);
                true
            }
            ["Result:", "OK:", time, "usec,", packets, ref frame @ ..] => {
                self.result(line.text, time, packets, frame, to)
            }
            [rate, _, _, "errors:", errors] if rate.ends_with("pps") => self.rate(rate, errors, to),
            _ => false,
        }
    }

    fn interrupted(&mut self, _: &mut Blocks<'_>) {
        *self = Self::default();
    }
}

impl Pktgen {
    /// `41725871(c41679853+d46018) usec, 100000000 (60byte,0frags)`.
    fn result(&mut self, text: &str, time: &str, packets: &str, frame: &[&str], to: &mut Blocks<'_>) -> bool {
        let elapsed = time.split_once('(').map_or(time, |(elapsed, _)| elapsed);
        let (Some(elapsed_us), Some(packets)) = (Stated::integer(elapsed), Stated::integer(packets)) else {
            return false;
        };
        self.run = Some(Run { elapsed_us, packets });
        let block = to.block(Format::Pktgen);
        let idle = between(time, "+d", ")").and_then(Stated::integer).filter(|idle| idle.value > 0.0);
        if let Some(idle) = idle {
            block.total(
                &self.device,
                Metric::Counter,
                Unit::Milliseconds,
                Stated { value: idle.value / 1e3, step: 1e-3 },
            );
        }
        block.total(&self.device, Metric::Xmit, Unit::Packets, packets);
        if let Some(bytes) =
            frame.first().and_then(|_| between(text, "(", "byte,").or_else(|| between(text, ", ", "byte,")))
        {
            let bytes = bytes.rsplit('(').next().unwrap_or(bytes);
            block.note(format!("frames of {bytes} bytes without FCS; pktgen's bit rate counts these bytes"));
        }
        true
    }

    /// `2396594pps 1150Mb/sec (1150365120bps) errors: 1417469`.
    fn rate(&mut self, rate: &str, errors: &str, to: &mut Blocks<'_>) -> bool {
        let (Some(rate), Some(errors)) = (rate.strip_suffix("pps").and_then(Stated::integer), Stated::integer(errors))
        else {
            return false;
        };
        let block = to.block(Format::Pktgen);
        let seconds = self.run.map(|run| run.elapsed_us.value / 1e6).filter(|seconds| *seconds > 0.0);
        block.value_over(&self.device, Metric::Xmit, Unit::PacketsPerSecond, rate, seconds);
        block.total(&self.device, Metric::Error, Unit::Events, errors);
        self.devices += 1;
        if let (Some(run), Some(seconds)) = (self.run.take(), seconds)
            && (run.packets.value / seconds - rate.value).abs() > rate.step + rate.value * 1e-3
        {
            block.note(format!(
                "ambiguous: {} packets in {seconds} s are not the {rate} pps printed with them",
                run.packets
            ));
        }
        if errors.value > 0.0 {
            block.note("errors are attempts that the device refused and pktgen made again: `OK` all the same");
        }
        if self.devices > 1 {
            block.note("ambiguous: several threads: their rates add up only if they ran at the same time");
        }
        true
    }
}
