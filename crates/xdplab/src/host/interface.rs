//! What one interface can do, and whether it may be used: attaching an XDP program takes its traffic away.

use std::env;
use std::net::IpAddr;

use aya::programs::loaded_programs;
use nix::ifaddrs::getifaddrs;

use super::doctor::Line;
use super::probe::Finding;
use super::root::Root;
use crate::error::{Error, Result};
use crate::netlink::{Channels, Ethtool, LinkInfo, Netdev, NetdevXdp, Rtnl, XdpAttached, XdpFeature};
use crate::sys::ethtool::EthtoolIoctl;
use crate::topology::native_xdp_mtu_limit;

/// What the user would lose if the traffic of an interface were taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InUse {
    default_route: bool,
    /// The other end of the SSH session that comes in or goes out here.
    ssh_peer: Option<IpAddr>,
}

/// Succeeds if no default route and not this SSH session goes through the interface called `name`.
///
/// # Errors
/// One line that says what goes through it; or there is no such interface.
pub fn require_unused(name: &str) -> Result<()> {
    let mut rtnl = Rtnl::open()?;
    let link = rtnl.link_by_name(name)?;
    InUse::read(&mut rtnl, &link)?.refuse(&format!("use {name} (ifindex {}) for measurements", link.ifindex))
}

/// Examines the interface called `name` in the calling thread's network namespace, and changes nothing.
///
/// # Errors
/// If there is no such interface; what can't be read of it is `unknown` in its line.
pub fn examine_interface(name: &str) -> Result<Vec<Line>> {
    let mut rtnl = Rtnl::open()?;
    let link = rtnl.link_by_name(name)?;
    let in_use = InUse::read(&mut rtnl, &link);
    let mut lines = vec![up(&link), driver(&link), queues(&link), mtu(&mut rtnl, &link), no_program(&link)];
    lines.extend(features(&link));
    lines.extend(unused(in_use));
    Ok(lines)
}

fn up(link: &LinkInfo) -> Line {
    let state = match (link.up, link.oper_up) {
        (true, true) => Finding::yes("up, carrier"),
        // No carrier, or a driver that never tells.
        (true, false) => Finding::unknown("up, but it does not say that it carries frames"),
        (false, _) => Finding::no("down"),
    };
    Line::new("interface.up", "interface is up and has a carrier", state, "no packet passes without")
        .remedy(&format!("ip link set {} up; check the other end", link.name))
}

fn driver(link: &LinkInfo) -> Line {
    let finding = match EthtoolIoctl::open().and_then(|ioctl| ioctl.driver_info(&link.name)) {
        Ok(info) => {
            let firmware = match info.firmware_version.as_str() {
                "" => "no firmware".to_owned(),
                version => format!("firmware {version}"),
            };
            Finding::yes(format!("{} {}, {firmware}", info.driver, info.version))
        }
        Err(error) => Finding::unknown(error.to_string()),
    };
    Line::new("interface.driver", "driver is known", finding, "a result holds for this driver only")
}

fn queues(link: &LinkInfo) -> Line {
    let finding = match Ethtool::open().and_then(|mut ethtool| ethtool.channels(link.ifindex)) {
        Ok(channels) => judge_channels(channels),
        Err(error) => Finding::unknown(error.to_string()),
    };
    Line::new(
        "interface.one_rx_queue",
        "one RX queue",
        finding,
        "a cost per packet is that of one CPU; with more queues RSS spreads flows over CPUs",
    )
    .remedy(&format!("ethtool -L {} combined 1 (or rx 1), or send one flow", link.name))
}

fn judge_channels(Channels { rx, tx, combined, .. }: Channels) -> Finding {
    if (rx, combined) == (None, None) {
        return Finding::unknown("the driver names no RX channel");
    }
    let sum = |own: Option<u32>| own.unwrap_or(0) + combined.unwrap_or(0);
    Finding::whether(sum(rx) == 1, format!("{} RX, {} TX", sum(rx), sum(tx)))
}

/// A veth end takes a native program only if its peer's frames fit one page; other drivers' limits differ and show only
/// when a program is attached.
fn mtu(rtnl: &mut Rtnl, link: &LinkInfo) -> Line {
    let finding = if link.kind.as_deref() == Some("veth") {
        let peer = link.peer.filter(|peer| peer.netnsid.is_none());
        let peer = peer.and_then(|peer| rtnl.link_by_index(peer.ifindex).ok());
        native_xdp_mtu_limit(false)
            .and_then(|limit| Ok(judge_veth_mtu(link, peer.as_ref(), limit, native_xdp_mtu_limit(true)?)))
    } else {
        Ok(Finding::unknown(format!("MTU {}; this driver's limit shows when a program is attached", link.mtu)))
    };
    Line::new(
        "interface.mtu",
        "MTU leaves room for native XDP without frags",
        finding.unwrap_or_else(|error| Finding::unknown(error.to_string())),
        "above the driver's limit a native program without frags is refused with ERANGE or EINVAL",
    )
    .remedy("use programs with frags, or lower the MTU")
}

fn judge_veth_mtu(link: &LinkInfo, peer: Option<&LinkInfo>, limit: u32, with_frags: u32) -> Finding {
    let (mtu, whose) = match peer {
        Some(peer) => (peer.mtu, format!("MTU {} of the peer {}", peer.mtu, peer.name)),
        None => (link.mtu, format!("MTU {} (its own; the peer's counts, which is in another namespace)", link.mtu)),
    };
    Finding::whether(mtu <= limit, format!("{whose}; limit {limit}, with frags {with_frags}"))
}

fn no_program(link: &LinkInfo) -> Line {
    let list: Vec<_> = link.xdp.iter().map(|program| format!("{}, {}", program.mode, name_of(program))).collect();
    let finding = Finding::whether(list.is_empty(), if list.is_empty() { "none".into() } else { list.join(", ") });
    Line::new("interface.no_program", "no XDP program is attached", finding, "one that is there is never replaced")
        .remedy(&format!("have its owner detach it, or ip link set {} xdp off", link.name))
}

/// The program's id and name. A list that can't be read to its end (no `CAP_SYS_ADMIN`) leaves the id.
fn name_of(attached: &XdpAttached) -> String {
    let id = attached.prog_id;
    let program = loaded_programs().map_while(std::result::Result::ok).find(|program| program.id() == id);
    match program.as_ref().and_then(|program| program.name_as_str()) {
        Some(name) => format!("id {id}, name {name:?}"),
        None => format!("id {id}, name not available"),
    }
}

fn features(link: &LinkInfo) -> Vec<Line> {
    let read = Netdev::open().and_then(|mut netdev| netdev.xdp(link.ifindex)).map_err(|error| error.to_string());
    let has = |feature| match &read {
        Ok(NetdevXdp { features, .. }) => {
            let yes = features.contains(&feature);
            Finding::whether(yes, if yes { "the driver says so" } else { "the driver does not say so" })
        }
        Err(why) => Finding::unknown(why),
    };
    let name = &link.name;
    vec![
        Line::new(
            "interface.xdp.basic",
            "driver runs XDP programs (native mode)",
            has(XdpFeature::Basic),
            "generic mode (skb) works on an sk_buff that native mode avoids, and costs far more",
        )
        .remedy("use another interface, or ask for -m skb"),
        Line::new(
            "interface.xdp.redirect",
            "driver redirects frames",
            has(XdpFeature::Redirect),
            "the redirect variants need it",
        ),
        Line::new(
            "interface.xdp.ndo_xmit",
            "frames redirected to it are transmitted",
            has(XdpFeature::NdoXmit),
            "without it they vanish, on veth without any error counted",
        )
        .remedy(&format!(
            "veth: give the peer of {name} an XDP program or GRO; others: attach an XDP program to {name}"
        )),
        Line::new(
            "interface.xdp.rx_sg",
            "driver takes frames of several buffers",
            has(XdpFeature::RxSg),
            "a large MTU in native mode needs it",
        ),
        Line::new(
            "interface.xdp.xsk_zerocopy",
            "AF_XDP works without copying",
            has(XdpFeature::XskZerocopy),
            "with copies it is slower; results of the two do not compare",
        ),
    ]
}

fn unused(in_use: Result<InUse>) -> [Line; 2] {
    let (route, session) = match in_use {
        Ok(InUse { default_route, ssh_peer }) => (
            Finding::whether(!default_route, if default_route { "it carries one" } else { "none" }),
            match ssh_peer {
                Some(peer) => Finding::no(format!("the session from {peer}")),
                None => Finding::yes("none"),
            },
        ),
        Err(error) => (Finding::unknown(error.to_string()), Finding::unknown(error.to_string())),
    };
    let why = "an XDP program takes the traffic away; xdplab refuses the interface without --force";
    let remedy = "use another interface";
    [
        Line::new("interface.no_default_route", "carries no default route", route, why).remedy(remedy),
        Line::new("interface.no_ssh", "carries no SSH session of yours", session, why).remedy(remedy),
    ]
}

impl InUse {
    fn read(rtnl: &mut Rtnl, link: &LinkInfo) -> Result<Self> {
        let default_route = rtnl.default_route_ifindexes()?.contains(&link.ifindex);
        let ssh_peer = match ssh_session(&Root::system()) {
            Some(session) if session.passes(rtnl, link) => Some(session.client),
            _ => None,
        };
        Ok(Self { default_route, ssh_peer })
    }

    fn refuse(&self, what: &str) -> Result<()> {
        let why = match self {
            Self { ssh_peer: Some(peer), .. } => format!("it carries this SSH session (from {peer})"),
            Self { default_route: true, .. } => "it carries the default route".into(),
            Self { default_route: false, ssh_peer: None } => return Ok(()),
        };
        Err(Error::invalid(what, why).remedy("take another interface, or give --force"))
    }
}

/// The ends of an SSH connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SshSession {
    client: IpAddr,
    server: IpAddr,
}

impl SshSession {
    /// Whether it leaves through the interface, or comes in to an address of it.
    fn passes(&self, rtnl: &mut Rtnl, link: &LinkInfo) -> bool {
        let leaves = rtnl.route_to(self.client).is_ok_and(|ifindex| ifindex == link.ifindex);
        let addresses = getifaddrs().into_iter().flatten().filter(|entry| entry.interface_name == link.name);
        let mut addresses = addresses.filter_map(|entry| {
            let address = entry.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
        });
        leaves || addresses.any(|address| address == self.server)
    }

    /// Of `SSH_CONNECTION` (ssh(1)): client address, client port, server address, server port.
    fn parse(text: &str) -> Option<Self> {
        let address = |word: &str| word.split('%').next()?.parse().ok();
        let mut words = text.split(' ');
        let client = address(words.next()?)?;
        Some(Self { client, server: address(words.nth(1)?)? })
    }
}

/// The session this process runs in: by its own environment, else by that of an ancestor, because sudo drops the variable.
fn ssh_session(root: &Root) -> Option<SshSession> {
    let own = env::var("SSH_CONNECTION").ok().and_then(|text| SshSession::parse(&text));
    own.or_else(|| ancestor_session(root, std::process::id()))
}

fn ancestor_session(root: &Root, mut pid: u32) -> Option<SshSession> {
    loop {
        pid = parent(root, pid)?;
        let environment = root.bytes(&format!("/proc/{pid}/environ"));
        let mut variables = environment.known().into_iter().flat_map(|bytes| bytes.split(|&byte| byte == 0));
        let found = variables.find_map(|variable| {
            SshSession::parse(std::str::from_utf8(variable).ok()?.strip_prefix("SSH_CONNECTION=")?)
        });
        if found.is_some() {
            return found;
        }
    }
}

/// The parent of a process (proc_pid_stat(5): the second field after the name, which may itself hold parentheses).
fn parent(root: &Root, pid: u32) -> Option<u32> {
    let stat = root.text(&format!("/proc/{pid}/stat")).into_result().ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok().filter(|&pid| pid != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::super::probe::Answer;
    use super::*;

    fn link(mtu: u32) -> LinkInfo {
        let mut link = Rtnl::open().unwrap().link_by_name("lo").unwrap();
        link.mtu = mtu;
        link.name = "veth1".into();
        link
    }

    #[test]
    fn the_peer_s_mtu_is_what_counts_on_veth() {
        let finding = judge_veth_mtu(&link(1500), Some(&link(9000)), 3506, 73_138);
        assert_eq!(finding, Finding::no("MTU 9000 of the peer veth1; limit 3506, with frags 73138"));
        assert_eq!(judge_veth_mtu(&link(9000), Some(&link(3506)), 3506, 73_138).answer, Answer::Yes);
        let finding = judge_veth_mtu(&link(3507), None, 3506, 73_138);
        assert_eq!(finding.answer, Answer::No);
        assert!(finding.detail.contains("in another namespace"), "{finding:?}");
    }

    #[test]
    fn combined_channels_count_for_both_directions() {
        let channels = |rx, combined| Channels { rx, tx: None, other: Some(1), combined };
        assert_eq!(judge_channels(channels(None, Some(1))), Finding::yes("1 RX, 1 TX"));
        assert_eq!(judge_channels(channels(Some(0), Some(4))), Finding::no("4 RX, 4 TX"));
        assert_eq!(judge_channels(channels(Some(1), None)), Finding::yes("1 RX, 0 TX"));
        assert_eq!(judge_channels(channels(None, None)).answer, Answer::Unknown);
    }

    #[test]
    fn an_interface_in_use_is_refused_with_what_goes_through_it() {
        let refused = |default_route, ssh_peer| {
            InUse { default_route, ssh_peer }.refuse("use eth7").map_err(|error| error.to_string())
        };
        assert_eq!(refused(false, None), Ok(()));
        assert_eq!(
            refused(true, None).unwrap_err(),
            "can't use eth7: it carries the default route; take another interface, or give --force"
        );
        let error = refused(true, "192.0.2.7".parse().ok()).unwrap_err();
        assert!(error.contains("it carries this SSH session (from 192.0.2.7)"), "{error}");
    }

    #[test]
    fn an_ssh_session_is_found_in_the_environment_of_an_ancestor() {
        let dir = TempDir::new().unwrap();
        for (pid, stat, environ) in [
            (30, "30 (xdplab) S 20 30 1 0", "PATH=/bin\0"),
            (20, "20 (a (b) c) S 10 20 1 0", "HOME=/root\0"),
            (10, "10 (bash) S 1 10 1 0", "A=1\0SSH_CONNECTION=192.0.2.7 50000 192.0.2.1 22\0Z=2\0"),
            (1, "1 (init) S 0 1 1 0", ""),
        ] {
            let process = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("stat"), stat).unwrap();
            fs::write(process.join("environ"), environ).unwrap();
        }
        let root = Root::at(dir.path());
        let session = SshSession { client: "192.0.2.7".parse().unwrap(), server: "192.0.2.1".parse().unwrap() };
        assert_eq!(ancestor_session(&root, 30), Some(session));
        assert_eq!(ancestor_session(&root, 10), None, "only ancestors are asked");
        assert_eq!(ancestor_session(&root, 77), None);
    }

    #[test]
    fn the_zone_of_a_link_local_address_is_no_part_of_it() {
        let session = SshSession::parse("fe80::7%eth1 50000 fe80::1%eth1 22").unwrap();
        assert_eq!((session.client, session.server), ("fe80::7".parse().unwrap(), "fe80::1".parse().unwrap()));
        for bad in ["", "x 1 y 2", "192.0.2.7", "192.0.2.7 1"] {
            assert_eq!(SshSession::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_session_to_an_address_of_the_interface_passes_it() {
        let mut rtnl = Rtnl::open().unwrap();
        let lo = rtnl.link_by_name("lo").unwrap();
        let session =
            |server: &str| SshSession { client: "192.0.2.7".parse().unwrap(), server: server.parse().unwrap() };
        assert!(session("127.0.0.1").passes(&mut rtnl, &lo));
        assert!(!session("192.0.2.1").passes(&mut rtnl, &lo));
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error_that_names_those_there_are() {
        for error in [examine_interface("nosuch0").unwrap_err(), require_unused("nosuch0").unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains("ENODEV") && text.contains("there are here: lo"), "{text}");
        }
    }
}
