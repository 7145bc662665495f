//! The scenarios that come with the project, in a short form: every case is carried out, and says what it is there to say.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use xdplab::device::{EgressAction, VariantSpec};
use xdplab::live::{Account, End};
use xdplab::netlink::Netdev;
use xdplab::observe::Pages;
use xdplab::rates::RatesCase;
use xdplab::reading::Reading;
use xdplab::record::Record;
use xdplab::run::FrameSource;
use xdplab::stream::Forwarding;

use crate::support::{BPF, NETNS, RETURNS_BY_OTHERS, SHELL, TWO_CPUS, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("scenarios::e1_drops_linear_and_multi_buffer_frames_and_leaks_no_page", &[&NETNS, &BPF], e1),
        test("scenarios::e2_redirects_in_bulks_by_every_egress_program", &[&NETNS, &BPF, &TWO_CPUS], e2),
        test(
            "scenarios::e3_accounts_for_packets_from_the_source_to_the_destination",
            &[&NETNS, &BPF, &TWO_CPUS, &RETURNS_BY_OTHERS],
            e3,
        ),
        test("scenarios::e4_streams_through_xdp_at_every_mtu", &[&NETNS, &BPF, &TWO_CPUS], e4),
        test("scenarios::the_template_is_one", &[&NETNS, &BPF, &TWO_CPUS, &SHELL], template),
    ]
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name)
}

/// Runs a scenario in its short form.
fn run(name: &str, seconds: &str) -> Record {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record.json");
    let output = Command::new(assert_cmd::cargo::cargo_bin!("xdplab"))
        .arg("run")
        .arg(path(name))
        .args(["--repeats", "1", "--seconds", seconds, "--record"])
        .arg(&record)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let record = Record::read(&record).unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.ends_with(&xdplab::report::scenario_text(&record)), "{stdout}");
    let run = record.scenario.as_ref().unwrap();
    assert_eq!(run.done.len(), run.scenario().unwrap().cases.len());
    record
}

/// Pages that all pools had still when the lab was gone; below 0 where a hold was not counted, as when two CPUs take the first
/// page of a pool at once.
fn leaked(record: &Record) -> Vec<i64> {
    let cases = record.cases.iter().map(|case| &case.observed.page_pools);
    let pools = cases.chain(record.rates.iter().map(|case| &case.page_pools)).map(|pools| pools.known().unwrap());
    let held = |pages: &Pages| pages.held.cast_signed() - pages.released.cast_signed();
    pools.map(|pools| held(&pools.device) + held(&pools.generator)).collect()
}

fn e1() {
    let record = run("e1-drop.toml", "0.5");
    assert_eq!(record.cases.len(), 5);
    assert!(leaked(&record).iter().all(|pages| *pages <= 0));
    for case in &record.cases {
        let pools = case.observed.page_pools.known().unwrap();
        let residuals = case.observed.ledger.residuals();
        assert!(residuals.iter().all(|(_, residual)| *residual == 0), "{residuals:?}");
        assert!(case.observed.ledger.received > 0);
        match case.plan.traffic {
            FrameSource::LiveFrames => assert!(pools.generator.held > 0 && pools.device.held == 0, "{pools:?}"),
            // Into pages of the driver's own pool, which veth has since Linux 6.4: a frame of 9018 bytes takes three at a time.
            FrameSource::Socket => {
                assert!(pools.device.held > 0 || Netdev::open().is_err(), "{pools:?}");
                assert!(pools.generator.held == 0, "{pools:?}");
            }
        }
    }
}

fn end(case: &RatesCase) -> &End {
    case.live.end.as_ref().unwrap()
}

/// An account of packets, which balances.
fn account<'a>(case: &'a RatesCase, of: &str) -> &'a Account {
    let accounts = end(case).ledger.iter().map(|account| account.known().unwrap());
    let account = accounts.into_iter().find(|account| account.of == of);
    let account = account.unwrap_or_else(|| panic!("no {of:?} in {:?}", end(case).ledger));
    assert_eq!(account.residual, 0, "{account:?}");
    account
}

fn e2() {
    let record = run("e2-redirect-map.toml", "0.5");
    assert_eq!((record.cases.len(), record.rates.len()), (1, 6));
    assert!(leaked(&record).iter().all(|pages| *pages <= 0));
    for case in &record.rates {
        let VariantSpec::Redirect(variant) = &case.plan.program else { panic!("{:?}", case.plan) };
        let xmit = end(case).total.xmit.clone().unwrap().into_result().unwrap().total;
        let dropped = variant.egress == Some(EgressAction::Drop);
        assert!(xmit.bulks > 0 && xmit.sent + xmit.drops > xmit.bulks, "more than one frame a bulk: {xmit:?}");
        assert_eq!((xmit.sent == 0, case.sink == Some(0)), (dropped, dropped), "{xmit:?}");
        account(case, "received");
        let held = case.page_pools.known().unwrap().generator.held;
        assert!(held > 0 && held < case.generated.iter().sum(), "recycled: {held}");
    }
}

fn e3() {
    let record = run("e3-cpumap.toml", "0.5");
    assert_eq!((record.cases.len(), record.rates.len()), (1, 12));
    assert!(leaked(&record).iter().all(|pages| *pages <= 0));
    for case in &record.rates {
        let total = &end(case).total;
        assert!(total.received.as_ref().unwrap().packets > 0);
        let Some(cpumap) = &total.cpumap else { continue };
        let enqueued = cpumap.enqueued.clone().into_result().unwrap().total();
        let taken = cpumap.kthreads.clone().into_result().unwrap().total().processed;
        assert!(enqueued.processed > 0 && taken > 0, "{enqueued:?} {taken}");
        let redirected = account(case, "redirected");
        assert_eq!(redirected.packets, account(case, "queued").packets + enqueue_drops(redirected));
    }
}

fn enqueue_drops(account: &Account) -> u64 {
    account.parts.iter().find(|part| part.to == "queue full").map_or(0, |part| part.packets)
}

fn e4() {
    let record = run("e4-stream.toml", "0.3");
    assert_eq!((record.streams.len(), record.pools.len()), (18, 2));
    for case in &record.streams {
        assert!(case.outcome.goodput_bps.known().is_some_and(|bps| *bps > 1e6), "{:?}", case.outcome);
        let tcp = case.outcome.sent.streams[0].tcp.unwrap();
        // Nothing merges segments on the way, so that none is longer than its MTU less the headers of IPv4 and TCP.
        assert!(
            tcp.snd_mss <= case.plan.mtu - 40 && tcp.snd_mss >= case.plan.mtu - 60,
            "{} at {}",
            tcp.snd_mss,
            case.plan.mtu
        );
        let by_xdp = case.forwarded.as_ref().map(|end| end.total.received.as_ref().unwrap().packets);
        match (case.plan.forwarding, by_xdp) {
            (Forwarding::Stack, None) => {}
            (Forwarding::Native | Forwarding::Skb, Some(packets)) => {
                assert!(packets >= u64::from(tcp.segments), "{packets} of {}", tcp.segments);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(case.outcome.received, Reading::Known(_)));
    }
}

fn template() {
    let record = run("template.toml", "0.3");
    assert_eq!(
        (record.cases.len(), record.settings.len(), record.rates.len(), record.streams.len(), record.pools.len()),
        (4, 1, 1, 1, 1)
    );
}
