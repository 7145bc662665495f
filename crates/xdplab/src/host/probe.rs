//! Whether this kernel, with this process's privileges, can do what xdplab builds on. Each probe really tries; nothing it
//! makes outlives it.

use std::os::fd::AsFd as _;

use aya::Btf;
use aya_obj::btf::BtfKind;
use aya_obj::generated::{BPF_F_XDP_HAS_FRAGS, XDP_FLAGS_DRV_MODE, bpf_attach_type, bpf_map_type, bpf_prog_type};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::caps::{Capability, EffectiveCaps};
use crate::error::{Error, Result};
use crate::netlink::Netdev;
use crate::packet::{FlowSpec, FrameSize, build_udp_frame};
use crate::reading::Reading;
use crate::sys::bpf::{self, Program};
use crate::sys::link;
use crate::topology::{Lab, LabSpec, Placement};

/// The tracepoints that observers use, and what each tells.
pub(crate) const TRACEPOINTS: [(&str, &str); 17] = [
    ("xdp_exception", "XDP_ABORTED and failed XDP_TX"),
    ("xdp_redirect", "redirects one by one (costs per packet)"),
    ("xdp_redirect_err", "failed redirects by errno"),
    ("xdp_redirect_map", "redirects by map before Linux 5.6; xdp_redirect tells them since"),
    ("xdp_redirect_map_err", "failed redirects by map before Linux 5.6; xdp_redirect_err tells them since"),
    ("xdp_devmap_xmit", "frames transmitted and dropped per bulk, with the driver's errno"),
    ("xdp_cpumap_enqueue", "frames queued to another CPU and lost before it"),
    ("xdp_cpumap_kthread", "frames taken from the queue, and the XDP verdicts on them"),
    ("bpf_xdp_link_attach_failed", "the kernel's words on a failed attachment"),
    ("napi_poll", "packets per poll, and whether the budget was used up (saturation)"),
    ("page_pool_state_hold", "pages taken from the page allocator"),
    ("page_pool_state_release", "pages given back to the page allocator"),
    ("page_pool_release", "page_pools waiting for their last pages (leaks)"),
    ("softirq_entry", "busy time of each CPU (start)"),
    ("softirq_exit", "busy time of each CPU (end)"),
    ("mem_connect", "memory models of RX queues"),
    ("mem_disconnect", "memory models of RX queues gone"),
];

/// What an XDP program returns to have the frame dropped (`XDP_DROP`).
const XDP_DROP: i32 = 1;
/// A kernel function that only the kernel's own tests call (`net/bpf/test_run.c`, Linux 5.5 and later).
const FENTRY_TARGET: &str = "bpf_fentry_test1";
/// Frames of the live-frames try.
const LIVE_FRAMES: u32 = 64;

/// The answer to a question of the form "is it so?"; yes is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It was tried or read, and it is so.
    Yes,
    /// It was tried or read, and it is not so.
    No,
    /// It could not be found out.
    Unknown,
}

/// An answer and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) answer: Answer,
    pub(crate) detail: String,
}

impl Finding {
    pub(crate) fn yes(detail: impl Into<String>) -> Self {
        Self { answer: Answer::Yes, detail: detail.into() }
    }

    pub(crate) fn no(detail: impl Into<String>) -> Self {
        Self { answer: Answer::No, detail: detail.into() }
    }

    pub(crate) fn unknown(detail: impl Into<String>) -> Self {
        Self { answer: Answer::Unknown, detail: detail.into() }
    }

    /// Yes or no.
    pub(crate) fn whether(yes: bool, detail: impl Into<String>) -> Self {
        if yes { Self::yes(detail) } else { Self::no(detail) }
    }

    /// What `judge` finds in the value; unknown where there is none.
    pub(crate) fn of<T>(reading: &Reading<T>, judge: impl FnOnce(&T) -> Self) -> Self {
        match reading {
            Reading::Known(value) => judge(value),
            Reading::NotAvailable { why } => Self::unknown(why),
        }
    }
}

/// The probes' common knowledge.
pub(crate) struct Prober {
    caps: EffectiveCaps,
    btf: std::result::Result<Btf, String>,
}

impl Prober {
    pub(crate) fn new(caps: EffectiveCaps) -> Self {
        Self { caps, btf: Btf::from_sys_fs().map_err(|error| error.to_string()) }
    }

    /// The kernel describes its own types.
    pub(crate) fn btf(&self) -> Finding {
        match &self.btf {
            Ok(_) => Finding::yes("/sys/kernel/btf/vmlinux"),
            Err(why) => Finding::no(why),
        }
    }

    /// The kernel has the tracepoint. Its BTF has a type for the programs of each (`include/trace/bpf_probe.h`).
    pub(crate) fn tracepoint(&self, name: &str) -> Finding {
        let Ok(btf) = &self.btf else { return Finding::unknown("needs BTF") };
        match btf.id_by_type_name_kind(&btf_trace(name), BtfKind::Typedef) {
            Ok(_) => Finding::yes("present"),
            Err(_absent) => Finding::no("absent from this kernel"),
        }
    }

    /// Programs attach to tracepoints with typed arguments (`tp_btf`, Linux 5.5 and later).
    pub(crate) fn tp_btf(&self) -> Finding {
        self.tracing(bpf_attach_type::BPF_TRACE_RAW_TP, &btf_trace("xdp_exception"), BtfKind::Typedef)
    }

    /// Programs attach to the entry of kernel functions.
    pub(crate) fn fentry(&self) -> Finding {
        self.tracing(bpf_attach_type::BPF_TRACE_FENTRY, FENTRY_TARGET, BtfKind::Func)
    }

    fn tracing(&self, attach_type: bpf_attach_type, target: &str, kind: BtfKind) -> Finding {
        let Ok(btf) = &self.btf else { return Finding::unknown("needs BTF") };
        let Ok(attach_btf_id) = btf.id_by_type_name_kind(target, kind) else {
            return Finding::no(format!("the kernel has no {target}"));
        };
        self.attempt(&[Capability::Bpf, Capability::Perfmon], || {
            let prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING;
            let program = Program { prog_type, attach_type, flags: 0, attach_btf_id, returns: 0 };
            let program = program.load("load a tracing program")?;
            bpf::attach_tracing(program.as_fd(), "attach a tracing program")?;
            Ok(format!("loaded and attached to {target}"))
        })
    }

    /// `BPF_PROG_TEST_RUN` makes live frames: the generator that needs no NIC.
    pub(crate) fn live_frames(&self) -> Finding {
        self.attempt(&XDP, || {
            let program = xdp(bpf_attach_type::BPF_XDP, 0).load("load an XDP program")?;
            let flow = FlowSpec::lab_v4();
            let frame = build_udp_frame(&flow, FrameSize::shortest(&flow))?;
            bpf::run_live_frames(program.as_fd(), &frame, LIVE_FRAMES, "run an XDP program on live frames")?;
            Ok(format!("ran XDP_DROP on {LIVE_FRAMES} live frames"))
        })
    }

    /// XDP programs may take frames of several buffers.
    pub(crate) fn frags(&self) -> Finding {
        self.attempt(&XDP, || {
            xdp(bpf_attach_type::BPF_XDP, BPF_F_XDP_HAS_FRAGS).load("load an XDP program with frags")?;
            Ok("loaded with BPF_F_XDP_HAS_FRAGS".into())
        })
    }

    /// Programs run on frames as a devmap transmits them.
    pub(crate) fn devmap_program(&self) -> Finding {
        self.map_program(bpf_map_type::BPF_MAP_TYPE_DEVMAP, bpf_attach_type::BPF_XDP_DEVMAP)
    }

    /// Programs run on frames that a cpumap brought to another CPU.
    pub(crate) fn cpumap_program(&self) -> Finding {
        self.map_program(bpf_map_type::BPF_MAP_TYPE_CPUMAP, bpf_attach_type::BPF_XDP_CPUMAP)
    }

    /// Kernels that do not know the attach type load the program all the same; the map with room for a program in its
    /// value (8 bytes instead of 4) tells them apart.
    fn map_program(&self, map_type: bpf_map_type, attach_type: bpf_attach_type) -> Finding {
        self.attempt(&XDP, || {
            bpf::create_map(map_type, 8, "make a map whose entries have a program")?;
            xdp(attach_type, 0).load("load the program of a map entry")?;
            Ok("map with programs made, program loaded".into())
        })
    }

    /// AF_XDP sockets.
    pub(crate) fn af_xdp(&self) -> Finding {
        self.attempt(&[Capability::NetRaw], || {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
            match socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None) {
                Ok(_socket) => Ok("socket opened".into()),
                Err(error) => {
                    let errno = Errno::from_raw(error.raw_os_error());
                    Err(Error::syscall("open an AF_XDP socket", "socket(AF_XDP)", errno))
                }
            }
        })
    }

    /// A throw-away veth pair between two network namespaces can be built, and its driver runs XDP programs.
    pub(crate) fn lab(&self) -> Finding {
        self.attempt(&[Capability::Bpf, Capability::NetAdmin, Capability::SysAdmin], || {
            let lab = Lab::build(&LabSpec::new(Placement::same()?))?;
            let program = xdp(bpf_attach_type::BPF_XDP, 0).load("load an XDP program")?;
            lab.dut.netns.run(|| {
                link::create_xdp(program.as_fd(), lab.dut.ifindex, XDP_FLAGS_DRV_MODE).map(drop).map_err(|errno| {
                    Error::syscall("attach a program to veth in native mode", "bpf(BPF_LINK_CREATE)", errno)
                })
            })?;
            Ok("built, a program attached, and removed".into())
        })
    }

    /// The kernel counts page_pool events, and tells them over netlink (Linux 6.8 and later).
    pub(crate) fn page_pool_stats() -> Finding {
        match Netdev::open().and_then(|mut netdev| netdev.page_pool_stats()) {
            Ok(pools) => Finding::yes(format!("{} page_pools in this network namespace", pools.len())),
            Err(error) => Finding { answer: refusal(&error), detail: error.to_string() },
        }
    }

    /// What trying with these capabilities tells. Without them a refusal would say nothing about the kernel.
    fn attempt(&self, needed: &[Capability], work: impl FnOnce() -> Result<String>) -> Finding {
        if let Err(error) = self.caps.require("try", needed) {
            return Finding::unknown(error.to_string());
        }
        work().map_or_else(|error| Finding { answer: refusal(&error), detail: error.to_string() }, Finding::yes)
    }
}

const XDP: [Capability; 2] = [Capability::Bpf, Capability::NetAdmin];

fn xdp(attach_type: bpf_attach_type, flags: u32) -> Program {
    Program { prog_type: bpf_prog_type::BPF_PROG_TYPE_XDP, attach_type, flags, attach_btf_id: 0, returns: XDP_DROP }
}

fn btf_trace(tracepoint: &str) -> String {
    format!("btf_trace_{tracepoint}")
}

/// A lack of memory or a signal says nothing about what the kernel can do.
fn refusal(error: &Error) -> Answer {
    match error.errno() {
        Some(Errno::ENOMEM | Errno::EAGAIN | Errno::EINTR | Errno::EMFILE | Errno::ENFILE) => Answer::Unknown,
        _ => Answer::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_capability_nothing_is_tried_and_the_answer_is_unknown() {
        let prober = Prober { caps: EffectiveCaps::none(), btf: Err("none".into()) };
        let findings = [prober.live_frames(), prober.frags(), prober.devmap_program(), prober.af_xdp()];
        for Finding { answer, detail } in findings {
            assert_eq!(answer, Answer::Unknown);
            assert!(detail.contains("this process lacks CAP_"), "{detail}");
        }
    }

    #[test]
    fn without_btf_a_tracepoint_is_unknown_instead_of_absent() {
        let prober = Prober { caps: EffectiveCaps::none(), btf: Err("gone".into()) };
        assert_eq!(prober.btf(), Finding::no("gone"));
        assert_eq!(prober.tracepoint("napi_poll"), Finding::unknown("needs BTF"));
        assert_eq!(prober.fentry().answer, Answer::Unknown);
    }

    #[test]
    fn a_lack_of_memory_is_no_answer_about_the_kernel() {
        let answer = |errno| refusal(&Error::syscall("load", "bpf(BPF_PROG_LOAD)", errno));
        assert_eq!(answer(Errno::ENOMEM), Answer::Unknown);
        assert_eq!(answer(Errno::EPERM), Answer::No);
        assert_eq!(answer(Errno::EINVAL), Answer::No);
    }
}
