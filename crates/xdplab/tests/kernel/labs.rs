//! `xdplab lab`: topologies that stay until they are taken down, whatever becomes of who made them.

use std::fs::{self, File};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use tempfile::TempDir;
use xdplab::device::RedirectBy;
use xdplab::live::{RedirectDevice, RedirectSpec};
use xdplab::netlink::{Ethtool, XdpMode};
use xdplab::topology::{NamedLabs, NetNs, Network, NetworkSpec};

use crate::support::child::{self, Actor, Part};
use crate::support::{BPF, NETNS, eventually, test};
use crate::topology::Tether;

pub(crate) const CHILDREN: &[Part] = &[
    ("list interfaces", || print!("{}", fs::read_to_string("/proc/net/dev").unwrap())),
    ("end with 7", || std::process::exit(7)),
    ("stay", || {
        loop {
            std::thread::park();
        }
    }),
];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("labs::every_topology_carries_datagrams_as_it_should", &[&NETNS], every_topology),
        test("labs::the_chain_forwards_by_its_stack_and_by_xdp", &[&NETNS, &BPF], chain_by_xdp),
        test("labs::a_lab_is_as_asked_for_and_ip_netns_finds_it", &[&NETNS], as_asked),
        test("labs::nothing_is_left_of_a_lab_that_was_taken_down", &[&NETNS], teardown),
        test("labs::what_a_killed_maker_left_is_found_and_removed", &[&NETNS], killed),
        test("labs::a_lab_that_can_t_be_made_leaves_nothing", &[&NETNS], refused),
        test("labs::what_is_somebody_else_s_is_left_alone", &[&NETNS], foreign),
        test("labs::a_command_runs_in_the_namespace_and_gives_its_exit_status", &[&NETNS], exec),
        test("labs::a_topology_file_is_made_or_refused_with_its_line", &[&NETNS], from_file),
    ]
}

/// The command line with a folder of its own for the files of labs, and names that no other test has.
struct Labs {
    folder: TempDir,
    prefix: String,
}

impl Labs {
    fn new(test: &str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), prefix: format!("t{}-{test}", std::process::id()) }
    }

    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xdplab"));
        command.arg("lab").args(args).env("XDPLAB_RUN_DIR", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What it printed.
    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line on standard error.
    fn refusal(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {output:?}");
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        line
    }

    fn listed(&self) -> Vec<Value> {
        let lines = self.done(&["list", "--json"]);
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["lab"].clone()).collect()
    }

    fn namespace(&self, lab: &str, namespace: &str) -> NetNs {
        NamedLabs::at(self.folder.path()).namespace(&self.name(lab), namespace).unwrap()
    }

    /// The files of this test's namespaces.
    fn netns_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir("/run/netns").into_iter().flatten().map(|entry| entry.unwrap());
        let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&self.prefix));
        ours.map(|entry| entry.path()).collect()
    }

    fn is_empty(&self) -> bool {
        self.netns_files().is_empty() && fs::read_dir(self.folder.path()).unwrap().next().is_none()
    }
}

/// A test that fails leaves no lab behind either.
impl Drop for Labs {
    fn drop(&mut self) {
        drop(self.run(&["down", "--all"]));
    }
}

fn socket(netns: &NetNs, address: &str) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let socket = netns.run(|| Ok(UdpSocket::bind((address, 0)).unwrap())).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// Whether a datagram arrives.
fn reaches(from: &UdpSocket, to: &UdpSocket) -> bool {
    let mut received = [0; 16];
    from.send_to(b"one datagram", to.local_addr().unwrap()).unwrap();
    to.recv_from(&mut received).is_ok_and(|(length, sender)| {
        (&received[..length], sender) == (&b"one datagram"[..], from.local_addr().unwrap())
    })
}

/// Whether datagrams arrive both ways.
fn exchange(network: &Network, ends: [(&str, &str); 2]) -> bool {
    let [a, b] = ends.map(|(namespace, address)| socket(network.namespace(namespace).unwrap(), address));
    reaches(&a, &b) && reaches(&b, &a)
}

fn build(name: &str) -> Network {
    Network::build(&NetworkSpec::builtin(name).unwrap()).unwrap()
}

fn every_topology() {
    assert!(exchange(&build("veth"), [("left", "198.18.0.1"), ("right", "198.18.0.2")]));
    assert!(exchange(&build("veth"), [("left", "2001:2::1"), ("right", "2001:2::2")]));
    let chain = build("chain");
    assert!(exchange(&chain, [("ns0", "198.18.0.1"), ("ns2", "198.18.1.2")]));
    assert!(exchange(&chain, [("ns0", "2001:2::1"), ("ns2", "2001:2:0:1::2")]));
    assert!(exchange(&build("bridge"), [("leaf0", "198.18.0.1"), ("leaf2", "198.18.0.3")]));
    assert!(!exchange(&build("star"), [("leaf0", "198.18.0.1"), ("leaf1", "198.18.0.2")]), "nothing forwards there");
}

fn forwarder(network: &Network, namespace: &str, interfaces: &[&str]) -> RedirectDevice {
    let interfaces: Vec<String> = interfaces.iter().map(|name| (*name).to_owned()).collect();
    let spec = RedirectSpec {
        by: RedirectBy::Broadcast,
        inputs: interfaces.clone(),
        targets: interfaces,
        egress: None,
        mode: XdpMode::Native,
        stats: false,
        force: false,
    };
    network.namespace(namespace).unwrap().run(|| RedirectDevice::attach(spec)).unwrap()
}

fn chain_by_xdp() {
    let chain = build("chain");
    let redirecting = forwarder(&chain, "ns1", &["v01", "v10"]);
    let ns1 = chain.namespace("ns1").unwrap();
    ns1.run(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        Ok(())
    })
    .unwrap();
    assert!(exchange(&chain, [("ns0", "198.18.0.1"), ("ns2", "198.18.1.2")]), "by XDP");
    drop(redirecting);
    assert!(!exchange(&chain, [("ns0", "198.18.0.1"), ("ns2", "198.18.1.2")]), "by nothing");

    let star = build("star");
    let _redirecting = forwarder(&star, "hub", &["p0", "p1", "p2"]);
    assert!(exchange(&star, [("leaf0", "198.18.0.1"), ("leaf2", "198.18.0.3")]));
    assert!(exchange(&star, [("leaf1", "2001:2::2"), ("leaf0", "2001:2::1")]));
}

fn as_asked() {
    let labs = Labs::new("asked");
    let name = labs.name("chain");
    let args = ["up", "chain", "--as", &name, "--queues", "2", "--mtu", "9000", "--offload", "gso=off"];
    let told = labs.done(&args);
    assert!(told.starts_with(&format!("{name} is up: ns0 v00 -- v01 ns1 v10 -- v11 ns2\n")), "{told}");
    for (namespace, interfaces) in [("ns0", &["v00"][..]), ("ns1", &["v01", "v10"]), ("ns2", &["v11"])] {
        let netns = labs.namespace("chain", namespace);
        for interface in interfaces {
            let link = netns.rtnl().unwrap().link_by_name(interface).unwrap();
            assert_eq!((link.rx_queues, link.tx_queues, link.mtu), (Some(2), Some(2), 9000), "{interface}");
            assert!(link.oper_up && link.no_arp);
            let features = netns.run(Ethtool::open).unwrap().features(link.ifindex).unwrap();
            let is_on = |name: &str| features.iter().find(|feature| feature.name == name).unwrap().on;
            assert_eq!(is_on("rx-gro"), *interface == "v00" || *interface == "v11", "{interface}");
            assert!(!is_on("tx-generic-segmentation"), "{interface}");
        }
    }
    let ends = [("ns0", "198.18.0.1"), ("ns2", "198.18.1.2")];
    let [a, b] = ends.map(|(namespace, address)| socket(&labs.namespace("chain", namespace), address));
    assert!(reaches(&a, &b));

    if let Ok(output) = Command::new("ip").args(["netns", "list"]).output() {
        let namespaces = String::from_utf8(output.stdout).unwrap();
        let expected = format!("{name}-ns1");
        assert!(namespaces.lines().any(|line| line.split(' ').next() == Some(&expected)), "{namespaces}");
    }
    let listed = labs.listed();
    assert_eq!((listed.len(), &listed[0]["name"], &listed[0]["status"]), (1, &Value::from(name.clone()), &"up".into()));
    assert!(labs.done(&["list"]).contains(&format!("{name}  up  ")));
    let again = labs.refusal(&["up", "chain", "--as", &name]);
    assert!(again.contains("there is a network namespace") && again.contains("give the lab another name"), "{again}");
}

fn teardown() {
    let labs = Labs::new("down");
    for topology in ["veth", "bridge"] {
        labs.done(&["up", topology, "--as", &labs.name(topology)]);
    }
    let tethers: Vec<Tether> =
        labs.netns_files().iter().map(|path| Tether::to(File::open(path).unwrap().as_fd())).collect();
    assert_eq!(tethers.len(), 2 + 4);
    let told = labs.done(&["down", &labs.name("veth")]);
    assert_eq!(told, format!("{} is down\n", labs.name("veth")));
    assert_eq!(labs.listed().len(), 1);
    labs.done(&["down", "--all"]);
    assert!(labs.is_empty());
    eventually("every namespace is gone", 20, || !tethers.iter().any(Tether::holds));
    let none = labs.refusal(&["down", &labs.name("veth")]);
    assert!(none.contains(&format!("no lab is called {}; there is none", labs.name("veth"))), "{none}");
    assert_eq!(labs.done(&["list"]), "no labs\n");
}

/// A topology that takes long to make.
fn large(folder: &Path) -> PathBuf {
    let mut text = String::new();
    for index in 0..40 {
        text += &format!("[namespace.n{index}]\n[[link]]\n");
        for (key, interface) in [("a", "v0"), ("b", "v1")] {
            text += &format!("{key} = {{ namespace = \"n{index}\", interface = \"{interface}\" }}\n");
        }
    }
    let path = folder.join("large.toml");
    fs::write(&path, text).unwrap();
    path
}

fn killed() {
    let labs = Labs::new("killed");
    let files = tempfile::tempdir().unwrap();
    let large = large(files.path());
    let name = labs.name("large");
    let making = labs.command(&["up", large.to_str().unwrap(), "--as", &name]).spawn().unwrap();
    let mut making = Actor(making);
    eventually("a namespace is there", 20, || !labs.netns_files().is_empty());
    assert_eq!(labs.listed()[0]["status"], "changing");
    let changing = labs.refusal(&["down", &name]);
    assert!(changing.contains("another process is making it or taking it down; try again"), "{changing}");
    making.kill().unwrap();
    making.wait().unwrap();
    assert!(!labs.netns_files().is_empty());
    assert_eq!(labs.listed()[0]["status"]["stale"], "the process that made it was killed");
    let tethers: Vec<Tether> = labs
        .netns_files()
        .iter()
        .filter_map(|path| labs.namespace("large", path.to_str()?.rsplit('-').next()?).try_clone().ok())
        .map(|netns| Tether::to(netns.as_fd()))
        .collect();

    let output = labs.run(&["up", "veth", "--as", &labs.name("veth")]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, format!("removed what was left of the lab {name}\n"));
    assert_eq!((labs.listed().len(), labs.netns_files().len()), (1, 2));
    eventually("its namespaces are gone", 20, || !tethers.iter().any(Tether::holds));

    // A maker that was killed before it had written a line.
    fs::write(labs.folder.path().join(format!("{}.json", labs.name("empty"))), "").unwrap();
    assert_eq!(labs.listed()[0]["status"]["stale"], "the process that made it was killed");
    labs.done(&["down", &labs.name("veth")]);
    labs.done(&["down", "--all"]);
    assert!(labs.is_empty());
}

fn refused() {
    let labs = Labs::new("refused");
    let name = labs.name("lab");
    for (args, words) in [
        (&["--offload", "warp=on"][..], "the kernel knows no such offload"),
        (&["--queues", "5000"], "5000 is not from 1 to 4096 queues"),
        (&["--mtu", "1"], "1 is not from 68 to 65535 bytes of MTU"),
    ] {
        let refusal = labs.refusal(&[&["up", "chain", "--as", &name], args].concat());
        assert!(refusal.contains(words), "{refusal}");
        assert!(labs.is_empty(), "{args:?}");
    }
    let unknown = labs.refusal(&["up", "ring"]);
    assert!(unknown.contains("there is only veth, chain, star, bridge"), "{unknown}");
    let wrong_name = labs.refusal(&["up", "veth", "--as", "../evil"]);
    assert!(wrong_name.contains("`../evil` is no name"), "{wrong_name}");
    assert!(labs.refusal(&["down", "../evil"]).contains("is no name"));
}

fn foreign() {
    let labs = Labs::new("foreign");
    let name = labs.name("veth");
    labs.done(&["up", "veth", "--as", &name]);
    // Somebody took one namespace away, and put another one in its place.
    let path = PathBuf::from(format!("/run/netns/{name}-right"));
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    let theirs = NetNs::new().unwrap();
    use std::os::fd::AsRawFd as _;
    rustix::mount::mount_bind(format!("/proc/self/fd/{}", theirs.as_raw_fd()), &path).unwrap();
    assert_eq!(labs.listed()[0]["status"]["stale"], format!("its namespace {name}-right is gone"));
    let output = labs.run(&["down", &name]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, format!("{name}: the namespace {name}-right is not of this lab and was left alone\n"));
    assert_eq!(labs.netns_files(), std::slice::from_ref(&path));
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::remove_file(path).unwrap();
}

fn exec() {
    let labs = Labs::new("exec");
    let name = labs.name("veth");
    labs.done(&["up", "veth", "--as", &name]);
    let this = std::env::current_exe().unwrap();
    let exec = |namespace: &str, part: &str| {
        let mut command = labs.command(&["exec", &name, namespace, this.to_str().unwrap()]);
        command.env(child::PART, part);
        command
    };
    let links = String::from_utf8(exec("left", "list interfaces").output().unwrap().stdout).unwrap();
    assert!(links.contains("v0:") && !links.contains("v1:"), "{links}");
    assert_eq!(exec("right", "end with 7").status().unwrap().code(), Some(7));
    let no_command = labs.refusal(&["exec", &name, "left", "/no/such/command"]);
    assert!(no_command.contains("ENOENT"), "{no_command}");
    let no_namespace = labs.refusal(&["exec", &name, "middle", "command"]);
    assert!(no_namespace.contains("it has only left, right"), "{no_namespace}");

    // Who is still in it is told.
    let mut inside = Actor(exec("left", "stay").spawn().unwrap());
    let net = format!("/proc/{}/ns/net", inside.id());
    let of_left = fs::metadata(format!("/run/netns/{name}-left")).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    eventually("it is inside", 20, || fs::metadata(&net).is_ok_and(|net| net.ino() == of_left.ino()));
    let output = labs.run(&["down", &name]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.trim_end().ends_with(&format!(": {}", inside.id())), "{told}");
    assert!(labs.is_empty());
    inside.kill().unwrap();
}

fn from_file() {
    let labs = Labs::new("file");
    let path = labs.folder.path().join("two.toml");
    let text = "queues = 2\n[namespace.a]\n[namespace.b]\n[[link]]\na = { namespace = \"a\", interface = \"x\" }\n\
                b = { namespace = \"b\", interface = \"y\" }\nmtu = 3000\n";
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    labs.done(&["up", path, "--as", &labs.name("two"), "--queues", "3", "--mtu", "1400"]);
    let link = labs.namespace("two", "b").rtnl().unwrap().link_by_name("y").unwrap();
    assert_eq!((link.rx_queues, link.mtu), (Some(3), 3000), "the link has an MTU of its own");
    fs::write(path, text.replace("namespace = \"b\"", "namespace = \"c\"")).unwrap();
    let refusal = labs.refusal(&["up", path]);
    assert!(
        refusal.contains("two.toml: line 6, key `link[0].b.namespace`: there is no namespace `c`, only a, b"),
        "{refusal}"
    );
}
