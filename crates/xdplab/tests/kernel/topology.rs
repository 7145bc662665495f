//! The lab: it comes up as asked, carries frames, shows nothing of its own, and leaves nothing behind.

use std::fs::{self, File};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use xdplab::netlink::{Ethtool, Netdev, QueueKind, VethEnd, XdpFeature, XdpMode};
use xdplab::packet::MacAddr;
use xdplab::reading::Reading;
use xdplab::sys::ethtool::EthtoolIoctl;
use xdplab::topology::{Lab, LabSpec, NetNs, Placement, Port, native_xdp_mtu_limit};
use xdplab::{Error, ErrorKind};

use crate::support::child::{self, Part};
use crate::support::xdp::{self, XDP_DROP, XDP_PASS};
use crate::support::{NAPI_LIST, NETNS, TWO_CPUS, eventually, patience, test};

pub(crate) const CHILDREN: &[Part] = &[("hold a lab", hold_a_lab), ("fail half way", fail_half_way)];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("topology::a_lab_has_the_queues_and_the_mtu_asked_for", &[&NETNS, &NAPI_LIST], queues_and_mtu),
        test("topology::only_what_is_sent_arrives_and_without_address_resolution", &[&NETNS], only_what_is_sent),
        test("topology::the_first_datagram_of_each_lab_arrives", &[&NETNS], first_datagram),
        test("topology::two_labs_stand_side_by_side", &[&NETNS], two_labs),
        test("topology::offloads_are_off_or_as_asked", &[&NETNS], offloads),
        test("topology::an_offload_guard_puts_back_what_it_changed", &[&NETNS], offload_guard),
        test("topology::nothing_is_left_of_a_dropped_lab", &[&NETNS], teardown),
        test("topology::nothing_is_left_of_a_lab_that_failed_half_way", &[&NETNS], half_way),
        test("topology::nothing_is_left_after_sigkill", &[&NETNS], sigkill),
        test("topology::wrong_input_is_an_error_of_one_line", &[&NETNS], wrong_input),
        test("topology::the_kernel_s_own_words_are_in_the_error", &[&NETNS], extended_ack),
        test("topology::split_placement_pins_every_napi_thread", &[&NETNS, &TWO_CPUS], split_placement),
        test(
            "topology::after_another_attachment_napi_threads_are_pinned_anew",
            &[&NETNS, &TWO_CPUS, &NAPI_LIST],
            pinned_anew,
        ),
        test("topology::split_placement_without_napi_says_what_to_do", &[&NETNS, &TWO_CPUS], split_without_napi),
        test("topology::same_placement_leaves_napi_to_softirq", &[&NETNS, &NAPI_LIST], same_placement),
        test("topology::the_mtu_limit_is_the_kernel_s", &[&NETNS], mtu_limit),
        test("topology::features_and_attachment_are_read_back", &[&NETNS, &NAPI_LIST], features_and_attachment),
        test("topology::the_driver_s_counters_count_each_drop", &[&NETNS], driver_counters),
        test("topology::routes_lead_through_the_lab", &[&NETNS], routes),
        test("topology::what_veth_does_not_tell_is_refused_with_a_reason", &[&NETNS, &NAPI_LIST], not_told),
    ]
}

fn spec() -> LabSpec {
    LabSpec::new(Placement::same().unwrap())
}

fn lab() -> Lab {
    Lab::build(&spec()).unwrap()
}

fn attach(port: &Port, action: u32, prog_flags: u32) -> std::os::fd::OwnedFd {
    port.netns.run(|| Ok(xdp::attach(port.ifindex, action, prog_flags))).unwrap().unwrap()
}

/// A UDP socket bound to an address of the port, in its namespace.
fn udp(port: &Port, address: impl Into<IpAddr> + Send) -> UdpSocket {
    let socket = port.netns.run(|| Ok(UdpSocket::bind((address.into(), 0)).unwrap())).unwrap();
    socket.set_read_timeout(Some(patience(5))).unwrap();
    socket
}

fn exchange(from: &UdpSocket, to: &UdpSocket) {
    let message = b"one datagram";
    assert_eq!(from.send_to(message, to.local_addr().unwrap()).unwrap(), message.len());
    let mut received = [0; 64];
    let (length, sender) = to.recv_from(&mut received).unwrap_or_else(|error| panic!("{from:?} to {to:?}: {error}"));
    assert_eq!((&received[..length], sender), (&message[..], from.local_addr().unwrap()));
}

/// One datagram each way over IPv4 and over IPv6.
fn both_ends_see_each_other(lab: &Lab) {
    let v4 = (udp(&lab.generator, lab.generator.ipv4), udp(&lab.dut, lab.dut.ipv4));
    let v6 = (udp(&lab.generator, lab.generator.ipv6), udp(&lab.dut, lab.dut.ipv6));
    for (generator, dut) in [v4, v6] {
        exchange(&generator, &dut);
        exchange(&dut, &generator);
    }
}

fn queues_and_mtu() {
    for (queues, mtu) in [(1, 1500), (2, 3000), (4, 9000)] {
        let lab = Lab::build(&LabSpec { queues, mtu, ..spec() }).unwrap();
        let described = lab.describe().unwrap();
        for port in [described.generator.as_ref().unwrap(), &described.dut] {
            assert_eq!((port.rx_queues, port.tx_queues), (Some(queues.into()), Some(queues.into())));
            assert_eq!(port.mtu, mtu);
            assert_eq!(port.driver.driver, "veth");
        }
        assert_ne!(described.generator.as_ref().unwrap().netns_inode, described.dut.netns_inode);
        for (port, peer) in [(&lab.generator, &lab.dut), (&lab.dut, &lab.generator)] {
            let link = port.netns.rtnl().unwrap().link_by_name(&port.name).unwrap();
            assert_eq!((link.ifindex, link.mac), (port.ifindex, Some(port.mac)));
            assert_eq!((link.rx_queues, link.tx_queues), (Some(queues.into()), Some(queues.into())));
            assert_eq!(link.kind.as_deref(), Some("veth"));
            assert_eq!(link.peer.unwrap().ifindex, peer.ifindex);
            assert!(link.peer.unwrap().netnsid.is_some());
            assert!(link.up && link.oper_up && link.no_arp);
            let queues_in_use = port.netns.run(Netdev::open).unwrap().queues(port.ifindex).unwrap();
            let receive = queues_in_use.iter().filter(|queue| queue.kind == QueueKind::Rx).count();
            assert_eq!((receive, queues_in_use.len()), (usize::from(queues), 2 * usize::from(queues)));
        }
        both_ends_see_each_other(&lab);
        let json = serde_json::to_string(&described).unwrap();
        assert_eq!(serde_json::from_str::<xdplab::topology::LabDescription>(&json).unwrap(), described);
    }
}

fn only_what_is_sent() {
    let lab = lab();
    both_ends_see_each_other(&lab);
    // Router solicitations, duplicate address detection and multicast reports would come within the first second.
    thread::sleep(Duration::from_millis(1500));
    for port in [&lab.generator, &lab.dut] {
        let stats = port.netns.rtnl().unwrap().link_by_index(port.ifindex).unwrap().stats.unwrap();
        assert_eq!((stats.rx_packets, stats.tx_packets), (2, 2), "{}: {stats:?}", port.name);
        assert_eq!((stats.rx_dropped, stats.tx_dropped, stats.rx_errors, stats.tx_errors), (0, 0, 0, 0));
        // Ethernet 14 + UDP 8 + 12 bytes, and 20 of IPv4 in one and 40 of IPv6 in the other.
        assert_eq!((stats.rx_bytes, stats.tx_bytes), (54 + 74, 54 + 74));
    }
}

/// An IPv6 address that was just added does not receive yet; of some ten labs that did not wait for it one lost a datagram.
fn first_datagram() {
    for _ in 0..20 {
        both_ends_see_each_other(&lab());
    }
}

fn two_labs() {
    let (first, second) = (lab(), lab());
    let inodes = [&first.generator, &first.dut, &second.generator, &second.dut].map(|port| port.netns.inode());
    for (at, inode) in inodes.iter().enumerate() {
        assert!(!inodes[..at].contains(inode), "{inodes:?}");
        assert_ne!(*inode, NetNs::current().unwrap().inode());
    }
    both_ends_see_each_other(&first);
    drop(first);
    both_ends_see_each_other(&second);
}

fn offloads() {
    let on = |lab: &Lab, name: &str| lab.describe().unwrap().dut.features_on.iter().any(|feature| feature == name);
    let names =
        ["rx-gro", "tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-checksum-ip-generic"];
    let plain = lab();
    for name in names {
        assert!(!on(&plain, name), "{name} is on");
    }
    let asked = ["gro", "gso", "tx", "tso"].map(|name| (name.to_owned(), true)).to_vec();
    let offloading = Lab::build(&LabSpec { offloads: asked, ..spec() }).unwrap();
    for name in names {
        assert!(on(&offloading, name), "{name} is off");
    }
}

fn offload_guard() {
    let lab = lab();
    let ethtool = || lab.dut.netns.run(Ethtool::open).unwrap();
    let before = ethtool().features(lab.dut.ifindex).unwrap();
    let guard = ethtool().set_offloads(lab.dut.ifindex, &[("rx-gro", true), ("tx", true)]).unwrap();
    assert_ne!(ethtool().features(lab.dut.ifindex).unwrap(), before);
    assert!(guard.before().contains(&("rx-gro".to_owned(), false)), "{:?}", guard.before());
    drop(guard);
    assert_eq!(ethtool().features(lab.dut.ifindex).unwrap(), before);
    let guard = ethtool().set_offloads(lab.dut.ifindex, &[("gro", true)]).unwrap();
    guard.restore().unwrap();
    assert_eq!(ethtool().features(lab.dut.ifindex).unwrap(), before);
    // Segmentation needs checksums, which are off here.
    for (offload, why) in [("warp", "no such offload"), ("tso", "it may depend on another one")] {
        let refused = ethtool().set_offloads(lab.dut.ifindex, &[("rx-gro", true), (offload, true)]).err().unwrap();
        assert!(one_line(&refused).contains(why), "{refused}");
        assert_eq!(ethtool().features(lab.dut.ifindex).unwrap(), before);
    }
}

/// A veth pair with one end in a watched namespace, which it does not hold: the other end goes when the namespace does.
pub(crate) struct Tether {
    watcher: NetNs,
}

impl Tether {
    pub(crate) fn to(watched: std::os::fd::BorrowedFd<'_>) -> Self {
        let watcher = NetNs::new().unwrap();
        let end =
            |name, netns, last| VethEnd { name, netns, mac: MacAddr([2, 0, 0, 0, 1, last]), queues: 1, mtu: 1500 };
        watcher.rtnl().unwrap().add_veth([end("tether", watcher.as_fd(), 1), end("tethered", watched, 2)]).unwrap();
        Self { watcher }
    }

    pub(crate) fn holds(&self) -> bool {
        self.watcher.rtnl().unwrap().links().unwrap().iter().any(|link| link.name == "tether")
    }
}

fn teardown() {
    let lab = lab();
    // A program that is still attached, and its link that is still open, hold neither the pair nor the namespace.
    let _link = attach(&lab.dut, XDP_PASS, 0);
    let tethers = [&lab.generator, &lab.dut].map(|port| Tether::to(port.netns.as_fd()));
    let mut rtnl = lab.generator.netns.rtnl().unwrap();
    let ifindex = lab.generator.ifindex;
    thread::sleep(Duration::from_millis(100));
    assert!(tethers.iter().all(Tether::holds));
    drop(lab);
    // The socket still holds the generator's namespace: the pair must be gone all the same.
    assert!(rtnl.link_by_index(ifindex).unwrap_err().to_string().contains("ENODEV"));
    drop(rtnl);
    eventually("both namespaces are gone", 20, || !tethers.iter().any(Tether::holds));
}

fn half_way() {
    let (mut child, line) = child::start("fail half way");
    assert!(child.wait().unwrap().success());
    assert_eq!(line, "before 0, after 0");
}

/// Says how many network namespaces this process holds before and after labs that can't be built.
fn fail_half_way() {
    let held = || {
        let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("net:") || link.to_string_lossy().starts_with("socket:"))
            .count()
    };
    let before = held();
    let no_such_offload = LabSpec { offloads: vec![("warp".to_owned(), true)], ..spec() };
    for wrong in [no_such_offload, LabSpec { queues: 5000, ..spec() }, LabSpec { mtu: 1, ..spec() }] {
        assert!(Lab::build(&wrong).is_err(), "{wrong:?}");
    }
    println!("before {before}, after {}", held());
}

fn sigkill() {
    let (mut child, line) = child::start("hold a lab");
    let tethers: Vec<_> = line
        .split(' ')
        .map(|fd| Tether::to(File::open(format!("/proc/{}/fd/{fd}", child.id())).unwrap().as_fd()))
        .collect();
    assert_eq!(tethers.len(), 2);
    thread::sleep(Duration::from_millis(100));
    assert!(tethers.iter().all(Tether::holds));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("both namespaces are gone", 20, || !tethers.iter().any(Tether::holds));
}

/// Builds a lab, says by which file descriptors it holds the namespaces, and never ends on its own.
fn hold_a_lab() {
    use std::os::fd::AsRawFd as _;
    let lab = lab();
    println!("{} {}", lab.generator.netns.as_fd().as_raw_fd(), lab.dut.netns.as_fd().as_raw_fd());
    loop {
        thread::park();
    }
}

fn one_line(error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text:?}");
    text
}

fn wrong_input() {
    let lab = lab();
    let mut rtnl = lab.dut.netns.rtnl().unwrap();
    let error = rtnl.link_by_name("dut1").unwrap_err();
    assert_eq!(
        one_line(&error),
        "can't find interface \"dut1\": netlink(RTM_GETLINK): ENODEV (No such device); there are here: lo, dut0"
    );
    for name in ["", "a-name-too-long-for-an-interface", "dut0\0"] {
        let error = rtnl.link_by_name(name).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Usage(_)), "{error}");
        one_line(&error);
    }
    for ifindex in [0, 99_999, u32::MAX] {
        assert!(one_line(&rtnl.link_by_index(ifindex).unwrap_err()).contains("netlink(RTM_GETLINK)"));
        one_line(&rtnl.set_up(ifindex).unwrap_err());
        one_line(&rtnl.delete_link(ifindex).unwrap_err());
        one_line(&lab.dut.netns.run(Ethtool::open).unwrap().features(ifindex).unwrap_err());
    }
    one_line(&lab.dut.netns.run(EthtoolIoctl::open).unwrap().statistics("dut1").unwrap_err());
    one_line(&Lab::build(&LabSpec { queues: 0, ..spec() }).unwrap_err());
    one_line(&Lab::build(&LabSpec { placement: Placement::Same { cpu: 100_000 }, ..spec() }).unwrap_err());
}

fn extended_ack() {
    let lab = lab();
    let error = lab.dut.netns.rtnl().unwrap().set_mtu(lab.dut.ifindex, 100_000).unwrap_err();
    let ErrorKind::Syscall { kernel_says, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(kernel_says.as_deref(), Some("mtu greater than device maximum"));
    let error = Lab::build(&LabSpec { queues: 5000, ..spec() }).unwrap_err();
    assert!(error.to_string().contains("kernel says: Invalid number of transmit queues"), "{error}");
}

fn split_placement() {
    let placement = Placement::split().unwrap();
    let lab = Lab::build(&LabSpec { queues: 2, placement, ..spec() }).unwrap();
    let _link = attach(&lab.dut, XDP_PASS, 0);
    let state = lab.apply_placement().unwrap();
    assert_eq!(state.threads.len(), 2);
    for thread in &state.threads {
        assert_eq!(thread.cpus, [placement.dut_cpu().unwrap()]);
        let status = fs::read_to_string(format!("/proc/{}/status", thread.pid)).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), placement.dut_cpu().unwrap().to_string());
    }
    both_ends_see_each_other(&lab);
}

/// A program attached anew comes with new threads.
fn pinned_anew() {
    let lab = Lab::build(&LabSpec { queues: 2, placement: Placement::split().unwrap(), ..spec() }).unwrap();
    let pids = || {
        let _link = attach(&lab.dut, XDP_PASS, 0);
        lab.apply_placement().unwrap().threads.iter().map(|thread| thread.pid).collect::<Vec<_>>()
    };
    let [first, second] = [pids(), pids()];
    assert_eq!((first.len(), second.len()), (2, 2));
    assert!(second.iter().all(|pid| !first.contains(pid)), "{first:?} {second:?}");
}

fn split_without_napi() {
    let lab = Lab::build(&LabSpec { placement: Placement::split().unwrap(), ..spec() }).unwrap();
    let error = lab.apply_placement().unwrap_err();
    assert!(one_line(&error).ends_with("attach first"), "{error}");
}

fn same_placement() {
    let lab = lab();
    assert_eq!(lab.apply_placement().unwrap().napi_ids, Reading::Known(vec![]));
    let _link = attach(&lab.dut, XDP_PASS, 0);
    lab.dut.netns.sysfs().unwrap().write("class/net/dut0/threaded", "1").unwrap();
    let state = lab.apply_placement().unwrap();
    assert_eq!((state.napi_ids.known().unwrap().len(), state.threads.len()), (1, 0));
    assert_eq!(lab.dut.netns.sysfs().unwrap().read("class/net/dut0/threaded").unwrap(), "0");
    both_ends_see_each_other(&lab);
}

fn mtu_limit() {
    for (frags, flags) in [(false, 0), (true, xdp::HAS_FRAGS)] {
        let lab = lab();
        let limit = native_xdp_mtu_limit(frags).unwrap();
        let _link = attach(&lab.dut, XDP_PASS, flags);
        let mut rtnl = lab.generator.netns.rtnl().unwrap();
        let max_mtu = rtnl.link_by_index(lab.generator.ifindex).unwrap().max_mtu.unwrap();
        assert_eq!(max_mtu, limit, "frags: {frags}");
        rtnl.set_mtu(lab.generator.ifindex, max_mtu).unwrap();
        assert!(rtnl.set_mtu(lab.generator.ifindex, max_mtu + 1).is_err());
    }
    let limit = native_xdp_mtu_limit(false).unwrap();
    let lab = Lab::build(&LabSpec { mtu: limit + 1, ..spec() }).unwrap();
    let refused = lab.dut.netns.run(|| Ok(xdp::attach(lab.dut.ifindex, XDP_PASS, 0))).unwrap();
    assert_eq!(refused.err(), Some(nix::errno::Errno::ERANGE));
}

fn features_and_attachment() {
    let lab = lab();
    let features = || lab.generator.netns.run(Netdev::open).unwrap().xdp(lab.generator.ifindex).unwrap().features;
    let link = |port: &Port| port.netns.rtnl().unwrap().link_by_index(port.ifindex).unwrap();
    for ifindex in [0, 99_999, u32::MAX] {
        one_line(&lab.dut.netns.run(Netdev::open).unwrap().xdp(ifindex).unwrap_err());
    }
    assert_eq!(features(), [XdpFeature::Basic, XdpFeature::Redirect, XdpFeature::RxSg]);
    assert_eq!(link(&lab.dut).xdp, []);
    let attached = attach(&lab.dut, XDP_PASS, 0);
    assert!(features().contains(&XdpFeature::NdoXmit), "the peer has NAPI now");
    let [program] = link(&lab.dut).xdp[..] else { panic!("one program is attached") };
    assert_eq!(program.mode, XdpMode::Native);
    assert!(program.prog_id > 0);
    let napis = lab.dut.netns.run(Netdev::open).unwrap().napis(lab.dut.ifindex).unwrap();
    assert_eq!(napis.len(), 1);
    assert_eq!((napis[0].pid, napis[0].irq), (None, None));
    drop(attached);
    assert_eq!(link(&lab.dut).xdp, []);
    assert!(!features().contains(&XdpFeature::NdoXmit));
}

fn driver_counters() {
    const DATAGRAMS: u64 = 37;
    let lab = lab();
    let _link = attach(&lab.dut, XDP_DROP, 0);
    let generator = udp(&lab.generator, lab.generator.ipv4);
    for _ in 0..DATAGRAMS {
        generator.send_to(b"dropped", (lab.dut.ipv4, 9)).unwrap();
    }
    let ioctl = lab.dut.netns.run(EthtoolIoctl::open).unwrap();
    let counter = |name: &str| {
        let statistics = ioctl.statistics("dut0").unwrap();
        statistics.iter().find(|statistic| statistic.name == name).unwrap_or_else(|| panic!("{statistics:?}")).value
    };
    eventually("every datagram was dropped", 5, || counter("rx_queue_0_xdp_drops") >= DATAGRAMS);
    assert_eq!(counter("rx_queue_0_xdp_drops"), DATAGRAMS);
    assert_eq!(counter("rx_queue_0_xdp_packets"), DATAGRAMS);
    assert_eq!(counter("peer_ifindex"), u64::from(lab.generator.ifindex));
}

fn routes() {
    let lab = lab();
    let dut_is_up = || lab.dut.netns.rtnl().unwrap().link_by_index(lab.dut.ifindex).unwrap().oper_up;
    let mut rtnl = lab.generator.netns.rtnl().unwrap();
    assert_eq!(rtnl.route_to(lab.dut.ipv4.into()).unwrap(), lab.generator.ifindex);
    assert_eq!(rtnl.route_to(lab.dut.ipv6.into()).unwrap(), lab.generator.ifindex);
    assert!(one_line(&rtnl.route_to([203, 0, 113, 1].into()).unwrap_err()).contains("ENETUNREACH"));
    assert!(rtnl.is_local(lab.generator.ipv6.into()).unwrap() && !rtnl.is_local(lab.dut.ipv6.into()).unwrap());
    assert!(rtnl.default_route_ifindexes().unwrap().is_empty());
    rtnl.set_down(lab.generator.ifindex).unwrap();
    eventually("the peer has lost its carrier", 5, || !dut_is_up());
    assert!(one_line(&rtnl.route_to(lab.dut.ipv4.into()).unwrap_err()).contains("ENETUNREACH"));
}

fn not_told() {
    let lab = lab();
    let _link = attach(&lab.dut, XDP_PASS, 0);
    let mut netdev = lab.dut.netns.run(Netdev::open).unwrap();
    assert!(
        one_line(&lab.dut.netns.run(Ethtool::open).unwrap().rings(lab.dut.ifindex).unwrap_err()).contains("EOPNOTSUPP")
    );
    // veth's page_pools name no interface, so none of this namespace is listed.
    assert_eq!(netdev.page_pools().unwrap(), []);
    match netdev.page_pool_stats() {
        Ok(stats) => assert_eq!(stats, []),
        Err(error) => assert!(one_line(&error).contains("EOPNOTSUPP"), "{error}"),
    }
}
