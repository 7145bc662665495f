//! The doctor says what an attempt of one's own shows.

use std::os::fd::AsFd as _;

use libtest_mimic::Trial;
use nix::errno::Errno;
use xdplab::host::{Answer, Line, examine, examine_interface, require_unused};
use xdplab::netlink::VethEnd;
use xdplab::packet::MacAddr;
use xdplab::topology::{Lab, LabSpec, NetNs, Placement, Port, native_xdp_mtu_limit};

use crate::support::xdp::{self, XDP_PASS};
use crate::support::{NETNS, XDP_FEATURES, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("doctor::a_fresh_lab_interface_is_fit_for_use", &[&NETNS, &XDP_FEATURES], fresh_interface),
        test("doctor::a_program_already_attached_is_named", &[&NETNS], program_attached),
        test("doctor::the_mtu_verdict_is_the_kernel_s", &[&NETNS], mtu_verdict),
        test("doctor::the_peer_s_mtu_is_judged_where_it_is_in_sight", &[&NETNS], peer_mtu),
        test("doctor::queues_are_counted", &[&NETNS], queue_count),
        test("doctor::frags_are_there_where_the_kernel_takes_them", &[&NETNS], frags),
    ]
}

fn lab(change: impl FnOnce(&mut LabSpec)) -> Lab {
    let mut spec = LabSpec::new(Placement::same().unwrap());
    change(&mut spec);
    Lab::build(&spec).unwrap()
}

fn lines_of(port: &Port) -> Vec<Line> {
    port.netns.run(|| examine_interface(&port.name)).unwrap()
}

fn line<'a>(lines: &'a [Line], id: &str) -> &'a Line {
    lines.iter().find(|line| line.id == id).unwrap_or_else(|| panic!("no line {id}"))
}

fn fresh_interface() {
    let lab = lab(|_| ());
    let lines = lines_of(&lab.dut);
    for id in ["up", "driver", "one_rx_queue", "mtu", "no_program", "xdp.basic", "no_default_route", "no_ssh"] {
        let line = line(&lines, &format!("interface.{id}"));
        assert_eq!(line.answer, Answer::Yes, "{line:?}");
    }
    assert!(line(&lines, "interface.driver").detail.starts_with("veth "));
    let xmit = line(&lines, "interface.xdp.ndo_xmit");
    assert_eq!(xmit.answer, Answer::No, "the peer has no NAPI: {xmit:?}");
    lab.dut.netns.run(|| require_unused(&lab.dut.name)).unwrap();
    let _link = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap().unwrap();
    let lines = lines_of(&lab.generator);
    assert_eq!(line(&lines, "interface.xdp.ndo_xmit").answer, Answer::Yes, "the peer has NAPI now");
}

fn program_attached() {
    let lab = lab(|_| ());
    let _link = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap().unwrap();
    let id = lab.dut.netns.rtnl().unwrap().link_by_index(lab.dut.ifindex).unwrap().xdp[0].prog_id;
    let lines = lines_of(&lab.dut);
    let line_of_program = line(&lines, "interface.no_program");
    assert_eq!(line_of_program.answer, Answer::No);
    assert!(line_of_program.detail.starts_with(&format!("native, id {id}, name ")), "{line_of_program:?}");
}

fn mtu_verdict() {
    let limit = native_xdp_mtu_limit(false).unwrap();
    for (mtu, answer, attached) in [(limit, Answer::Yes, Ok(())), (limit + 1, Answer::No, Err(Errno::ERANGE))] {
        let lab = lab(|spec| spec.mtu = mtu);
        let lines = lines_of(&lab.dut);
        assert_eq!(line(&lines, "interface.mtu").answer, answer, "MTU {mtu}");
        let attempt = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap();
        assert_eq!(attempt.map(|_link| ()), attached, "MTU {mtu}");
    }
}

fn peer_mtu() {
    let netns = NetNs::new().unwrap();
    let limit = native_xdp_mtu_limit(false).unwrap();
    let end = |name, last, mtu| {
        let mac = MacAddr([2, 0, 0, 0, 0, last]);
        VethEnd { name, netns: netns.as_fd(), mac, queues: 1, mtu }
    };
    netns.rtnl().unwrap().add_veth([end("narrow", 1, 1500), end("wide", 2, limit + 1)]).unwrap();
    for (name, answer, attached) in [("wide", Answer::Yes, Ok(())), ("narrow", Answer::No, Err(Errno::ERANGE))] {
        let lines = netns.run(|| examine_interface(name)).unwrap();
        assert_eq!(line(&lines, "interface.mtu").answer, answer, "{name}");
        let ifindex = netns.rtnl().unwrap().link_by_name(name).unwrap().ifindex;
        let attempt = netns.run(|| Ok(xdp::attach(ifindex, XDP_PASS, 0))).unwrap();
        assert_eq!(attempt.map(|_link| ()), attached, "{name}");
    }
}

fn queue_count() {
    let lab = lab(|spec| spec.queues = 2);
    let lines = lines_of(&lab.dut);
    let queues = line(&lines, "interface.one_rx_queue");
    assert_eq!((queues.answer, &*queues.detail), (Answer::No, "2 RX, 2 TX"));
}

fn frags() {
    let lab = lab(|_| ());
    let attempt = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, xdp::HAS_FRAGS))).unwrap();
    let lines = examine().unwrap();
    let expected = if attempt.is_ok() { Answer::Yes } else { Answer::No };
    assert_eq!(line(&lines, "frags").answer, expected);
    assert_eq!(line(&lines, "lab").answer, Answer::Yes);
}
