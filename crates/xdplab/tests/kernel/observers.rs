//! Observers: each counter shows what was planted for it, of its own interface and run alone.

use std::collections::BTreeMap;

use libtest_mimic::Trial;
use xdplab::device::{Action, Counts, DutProgram, LoadMode, Operation, ProgramSpec};
use xdplab::netlink::XdpMode;
use xdplab::observe::{Interface, NapiPolls, Observers, PagePools, Watch, Xmit};
use xdplab::packet::FlowSpec;
use xdplab::reading::Reading;
use xdplab::topology::{Lab, Port};

use crate::counts::{attach, frame, lab, send, settles_at};
use crate::support::{BPF, NETNS, eventually, refuses_redirects_to_deaf_peers, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("observers::each_aborted_packet_is_an_exception", &[&NETNS, &BPF], aborted),
        test("observers::transmitted_frames_polls_and_pages_add_up", &[&NETNS, &BPF], packets),
        test("observers::frames_to_a_peer_without_napi_are_transmitted_by_nobody", &[&NETNS, &BPF], vanished),
        test("observers::another_lab_s_traffic_is_not_counted", &[&NETNS, &BPF], others),
    ]
}

fn observers(lab: &Lab) -> Observers {
    let interface = |port: &Port| Interface { ifindex: port.ifindex, netns: port.netns.inode() };
    Observers::attach(Watch { device: interface(&lab.dut), xmit_to: interface(&lab.generator) }).unwrap()
}

fn aborted() {
    const COUNT: u64 = 61;
    let lab = lab(1);
    let too_short_for_ip = {
        let mut frame = frame(&lab, FlowSpec::lab_v4());
        frame.truncate(14 + 19);
        frame
    };
    let length_for_type = {
        let mut frame = frame(&lab, FlowSpec::lab_v4());
        frame[12..14].copy_from_slice(&46u16.to_be_bytes());
        frame
    };
    for (operation, frame) in [(Operation::ParseIp, too_short_for_ip), (Operation::ReadData, length_for_type)] {
        for load_mode in [LoadMode::Dpa, LoadMode::LoadBytes] {
            let spec = ProgramSpec { load_mode, ..ProgramSpec::new(Action::Drop, operation) };
            let program = DutProgram::load(spec, 1).unwrap();
            let _attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
            let observers = observers(&lab);
            assert_eq!(observers.exceptions(), Reading::Known(BTreeMap::new()));
            send(&lab, frame.clone(), &[0], COUNT);
            settles_at(&format!("{spec}: aborted"), COUNT, || program.total().unwrap().aborted);
            assert_eq!(program.total().unwrap(), Counts { packets: COUNT, aborted: COUNT });
            let exceptions = || observers.exceptions().into_result().unwrap();
            settles_at(&format!("{spec}: exceptions"), COUNT, || exceptions().values().sum());
            assert_eq!(exceptions(), BTreeMap::from([("XDP_ABORTED".to_owned(), COUNT)]));
            assert_eq!(observers.redirect_errors(), Reading::Known(BTreeMap::new()));
        }
    }
}

fn packets() {
    const COUNT: u64 = 20_011;
    let lab = lab(1);
    let program = DutProgram::load(ProgramSpec::new(Action::Drop, Operation::NoTouch), 1).unwrap();
    let attachment = attach(program.fd(), &lab.dut, XdpMode::Native);
    let observers = observers(&lab);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], COUNT);
    let Xmit { sent, drops, bulks, errors } = observers.xmit().into_result().unwrap();
    assert_eq!((sent + drops, errors), (COUNT, BTreeMap::new()));
    assert!(bulks >= COUNT.div_ceil(16), "{bulks} of up to 16 frames");
    settles_at("received", sent, || program.total().unwrap().packets);
    let napi = || observers.napi().into_result().unwrap();
    settles_at("NAPI's work", sent, || napi().work);
    assert!(napi().polls >= sent.div_ceil(64) && napi().full <= napi().polls, "{:?}", napi());
    let per_cpu = observers.napi_per_cpu().into_result().unwrap();
    assert_eq!(per_cpu.iter().map(|polls: &NapiPolls| polls.work).sum::<u64>(), sent);
    let softirqs = observers.softirqs_per_cpu().into_result().unwrap();
    assert!(softirqs.iter().any(|softirqs| softirqs.runs > 0 && softirqs.busy_ns > 0), "{softirqs:?}");
    assert!(softirqs.iter().all(|softirqs| softirqs.busy_ns >= softirqs.runs), "a run takes time: {softirqs:?}");

    drop(attachment);
    drop(lab);
    let pools = || observers.page_pools().into_result().unwrap();
    let balanced = |pools: &PagePools| {
        (pools.device.held, pools.generator.held) == (pools.device.released, pools.generator.released)
    };
    eventually("every page is back", 10, || balanced(&pools()));
    assert!(pools().generator.held > 0, "{:?}", pools());
}

fn vanished() {
    let lab = Lab::build(&xdplab::topology::LabSpec::new(xdplab::topology::Placement::Same { cpu: 0 })).unwrap();
    let observers = observers(&lab);
    send(&lab, frame(&lab, FlowSpec::lab_v4()), &[0], 100);
    if refuses_redirects_to_deaf_peers() {
        // The redirect itself, on the generator's side: nothing reaches a driver.
        assert_eq!(observers.xmit(), Reading::Known(Xmit::default()));
    } else {
        let Xmit { sent, drops, bulks, errors } = observers.xmit().into_result().unwrap();
        assert_eq!((sent, drops, errors), (0, 100, BTreeMap::from([("ENXIO".to_owned(), bulks)])));
    }
    assert_eq!(observers.napi(), Reading::Known(NapiPolls::default()));
}

fn others() {
    const COUNT: u64 = 101;
    let (watched, other) = (lab(1), lab(1));
    assert_eq!(watched.dut.ifindex, other.dut.ifindex, "only the namespace tells them apart");
    let observers = observers(&watched);
    let load = || DutProgram::load(ProgramSpec::new(Action::Drop, Operation::NoTouch), 1).unwrap();
    let (of_watched, of_other) = (load(), load());
    let _attachments =
        (attach(of_watched.fd(), &watched.dut, XdpMode::Native), attach(of_other.fd(), &other.dut, XdpMode::Native));
    send(&other, frame(&other, FlowSpec::lab_v4()), &[0], COUNT);
    settles_at("the other lab", COUNT, || of_other.total().unwrap().packets);
    assert_eq!(observers.xmit(), Reading::Known(Xmit::default()));
    assert_eq!(observers.napi(), Reading::Known(NapiPolls::default()));
    assert_eq!(observers.page_pools(), Reading::Known(PagePools::default()));
    send(&watched, frame(&watched, FlowSpec::lab_v4()), &[0], COUNT);
    settles_at("the watched lab", COUNT, || of_watched.total().unwrap().packets);
    settles_at("NAPI's work", COUNT, || observers.napi().into_result().unwrap().work);
    assert_eq!(observers.xmit().into_result().unwrap().sent, COUNT);
}
