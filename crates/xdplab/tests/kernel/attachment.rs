//! Attaching: as asked or not at all, never in place of another program, and gone with whoever attached.

use std::os::fd::AsFd as _;
use std::sync::atomic::AtomicBool;

use aya::maps::Map;
use libtest_mimic::Trial;
use xdplab::bpf;
use xdplab::device::{Action, Attachment, DutProgram, Operation, ProgramSpec};
use xdplab::netlink::{XdpAttached, XdpMode};
use xdplab::rig::LabRig;
use xdplab::run::{Plan, Progress, Rig as _};
use xdplab::topology::{Lab, LabSpec, Placement, Port, native_xdp_mtu_limit};

use crate::counts::attach;
use crate::support::child::{self, Part};
use crate::support::held::Held;
use crate::support::xdp::{self, XDP_PASS};
use crate::support::{BPF, NETNS, test};

pub(crate) const CHILDREN: &[Part] = &[("measure for ever", measure_for_ever)];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("attachment::a_size_given_for_a_map_of_one_object_is_not_the_next_one_s", &[&BPF], map_sizes),
        test("attachment::the_mode_is_as_asked_and_gone_when_dropped", &[&NETNS, &BPF], modes),
        test("attachment::a_program_already_there_is_named_and_left_alone", &[&NETNS, &BPF], occupied),
        test("attachment::a_mode_that_the_driver_lacks_is_no_other_mode", &[&NETNS, &BPF], lacking_mode),
        test("attachment::an_mtu_too_large_for_the_program_is_told_with_it", &[&NETNS, &BPF], mtu_too_large),
        test("attachment::nothing_is_left_of_a_measurement_after_sigkill", &[&NETNS, &BPF], sigkill),
    ]
}

fn lab(mtu: u32) -> Lab {
    Lab::build(&LabSpec { mtu, ..LabSpec::new(Placement::Same { cpu: 0 }) }).unwrap()
}

/// All objects are loaded by one loader, which keeps what it was told.
fn map_sizes() {
    let entries = |sizes: &[(&'static str, u32)]| {
        let asked = bpf::Object { map_entries: sizes.iter().copied().collect(), ..bpf::Object::default() };
        let object = bpf::load(bpf::DUT, &asked).unwrap();
        let Some(Map::Array(map)) = object.map("touched") else { panic!("another kind of map") };
        map.info().unwrap().max_entries()
    };
    let as_written = entries(&[]);
    assert!(as_written > 7);
    assert_eq!([entries(&[("touched", 7)]), entries(&[])], [7, as_written]);
}

fn program() -> DutProgram {
    DutProgram::load(ProgramSpec::new(Action::Pass, Operation::NoTouch), 1).unwrap()
}

fn attached(port: &Port) -> Vec<XdpAttached> {
    port.netns.rtnl().unwrap().link_by_index(port.ifindex).unwrap().xdp
}

/// The error of an attempt to attach, which leaves the interface as it is.
fn refused(program: std::os::fd::BorrowedFd<'_>, port: &Port, mode: XdpMode) -> String {
    let before = attached(port);
    let error = port.netns.run(|| Attachment::attach(program, port.ifindex, mode)).unwrap_err().to_string();
    assert_eq!(attached(port), before);
    assert!(!error.contains('\n'), "{error:?}");
    error
}

fn modes() {
    let lab = lab(1500);
    let program = program();
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let attachment = attach(program.fd(), &lab.dut, mode);
        assert_eq!(attachment.mode(), mode);
        let [there] = attached(&lab.dut)[..] else { panic!("one program is attached") };
        assert_eq!(there.mode, mode);
        drop(attachment);
        assert_eq!(attached(&lab.dut), []);
    }
}

fn occupied() {
    let lab = lab(1500);
    let (first, second) = (program(), program());
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let _attachment = attach(first.fd(), &lab.dut, mode);
        let id = attached(&lab.dut)[0].prog_id;
        for asked in [XdpMode::Native, XdpMode::Generic] {
            assert_eq!(
                refused(second.fd(), &lab.dut, asked),
                format!(
                    "can't attach an XDP program to dut0 (ifindex {}): a program is there already: id {id}, name \
                     `no_touch`, {mode} mode; it is left alone; detach it first, if it is yours",
                    lab.dut.ifindex
                )
            );
        }
    }
}

fn lacking_mode() {
    const LOOPBACK: u32 = 1;
    let lab = lab(1500);
    let program = program();
    let attempt = |mode| lab.dut.netns.run(|| Attachment::attach(program.fd(), LOOPBACK, mode));
    let error = attempt(XdpMode::Native).unwrap_err().to_string();
    assert!(error.starts_with("can't attach an XDP program to lo (ifindex 1) in native mode: bpf(BPF_LINK_CREATE): "));
    assert!(
        error.contains("EOPNOTSUPP") && error.ends_with("the driver has no native XDP; ask for skb mode"),
        "{error}"
    );
    assert_eq!(attempt(XdpMode::Generic).unwrap().mode(), XdpMode::Generic);
    assert!(refused(program.fd(), &lab.dut, XdpMode::Offload).contains("not offloaded to NICs by this tool"));
    let nobody = lab.dut.netns.run(|| Attachment::attach(program.fd(), 4711, XdpMode::Native)).unwrap_err().to_string();
    assert!(nobody.contains("4711") && nobody.contains("ENODEV"), "{nobody}");
}

fn mtu_too_large() {
    let limit = native_xdp_mtu_limit(false).unwrap();
    let lab = lab(limit + 1);
    let without_frags = xdp::load(XDP_PASS, 0).unwrap();
    let error = refused(without_frags.as_fd(), &lab.dut, XdpMode::Native);
    assert!(error.contains("in native mode: bpf(BPF_LINK_CREATE): ERANGE"), "{error}");
    assert!(error.contains(&format!("its MTU is {}", limit + 1)), "{error}");
    let _frags = attach(program().fd(), &lab.dut, XdpMode::Native);
}

/// Says when packets flow.
struct SaysWhenItSamples(bool);

impl Progress for SaysWhenItSamples {
    fn stage(&mut self, _name: &str) {}

    fn sampling(&mut self, _seconds: f64, _of: f64, slices: usize) {
        if slices > 0 && !std::mem::replace(&mut self.0, true) {
            println!("sampling");
        }
    }
}

fn measure_for_ever() {
    let drop = |operation| ProgramSpec::new(Action::Drop, operation);
    let tx = ProgramSpec::new(Action::Tx, Operation::SwapMacs);
    let plan = Plan::new("killed", drop(Operation::NoTouch).into(), vec![tx.into()], Placement::same().unwrap(), 1);
    let plan = Plan { seconds: 3600.0, ..plan };
    LabRig.measure(&plan, &mut SaysWhenItSamples(false), &AtomicBool::new(false)).unwrap();
}

fn sigkill() {
    let (mut child, line) = child::start("measure for ever");
    assert_eq!(line, "sampling");
    let held = Held::by(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    held.is_gone();
}
