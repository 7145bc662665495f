//! The record: what is written is what is read, and what is not a record is an error of one line.

use std::fs;
use std::path::PathBuf;

use clap::ValueEnum as _;
use proptest::prelude::*;
use xdplab::device::Operation;
use xdplab::netlink::XdpMode;
use xdplab::reading::Reading;
use xdplab::record::Record;
use xdplab::report::{Format, Report};
use xdplab::run::{Case, Plan};
use xdplab::stats::Slice;
use xdplab::topology::Placement;

use crate::common::{FakeRig, Model, environment, plan, program};
use crate::measure;

/// A folder with a file to write records to.
struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("record.json")
    }

    /// What reading these bytes as a record gives: the record, or its error, which is one line.
    fn read(&self, bytes: &[u8]) -> Result<Record, String> {
        fs::write(self.path(), bytes).unwrap();
        Record::read(&self.path()).map_err(|error| {
            let text = error.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.starts_with("can't read the record "), "{text}");
            text
        })
    }
}

fn record(cases: Vec<Case>) -> Record {
    let mut record = Record::begin(environment(), vec!["xdplab".into(), "demo".into()]);
    cases.into_iter().for_each(|case| record.add(case));
    record
}

/// Runs that say different things.
fn cases() -> Vec<Case> {
    let candidates = || plan(vec![program(Operation::ReadData, 0), program(Operation::ParseIp, 8)]);
    let good = measure(&candidates(), FakeRig::new(Model::default()));
    let equivalent = Plan { margin_ns: Some(2.0), ..candidates() };
    let split = Placement::Split { generator_cpu: 0, dut_cpu: 1 };
    let split = Plan { placement: split, xdp_mode: XdpMode::Generic, queues: 4, ..candidates() };
    let blind = FakeRig {
        model: Model::default(),
        spoil: |observed| {
            let why = || "nobody counted".to_owned();
            observed.ledger.xmit = Reading::not_available(why());
            observed.ledger.interface_received = Reading::not_available(why());
            observed.exceptions = Reading::not_available(why());
            observed.redirect_errors = Reading::not_available(why());
            observed.napi = Reading::not_available(why());
            observed.softirqs = Reading::not_available(why());
            observed.page_pools = Reading::not_available(why());
            observed.cpu_shares = Reading::not_available(why());
            observed.xdp_mode = None;
        },
    };
    vec![
        good,
        measure(&equivalent, FakeRig::new(Model::default())),
        measure(&split, FakeRig::new(Model::default())),
        measure(&candidates(), blind),
        measure(&Plan { seconds: 0.0, ..candidates() }, FakeRig::new(Model::default())),
        measure(&Plan { copies: 1, ..candidates() }, FakeRig::new(Model::default())),
    ]
}

#[test]
fn a_record_comes_back_bit_for_bit() {
    let folder = Folder::new();
    let record = record(cases());
    record.write(&folder.path()).unwrap();
    let read = Record::read(&folder.path()).unwrap();
    for (read, written) in read.cases.iter().zip(&record.cases) {
        assert_eq!(read.observed, written.observed);
        assert_eq!(read, written);
    }
    assert_eq!(read, record);
    let files: Vec<_> = fs::read_dir(folder.folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["record.json"], "nothing else is left there");
}

#[test]
fn a_record_without_a_case_says_when_it_began_and_not_when_it_ended() {
    let folder = Folder::new();
    let record = record(vec![]);
    record.write(&folder.path()).unwrap();
    let read = Record::read(&folder.path()).unwrap();
    assert_eq!(read, record);
    assert_eq!(read.stopped, None);
}

#[test]
fn a_record_replaces_the_one_before_and_the_last_one_stays_where_writing_fails() {
    let folder = Folder::new();
    let (first, second) = (record(vec![]), record(cases()));
    first.write(&folder.path()).unwrap();
    second.write(&folder.path()).unwrap();
    assert_eq!(Record::read(&folder.path()).unwrap(), second);

    let nowhere = folder.folder.path().join("no such folder").join("record.json");
    let error = first.write(&nowhere).unwrap_err().to_string();
    assert!(error.contains("ENOENT") && error.contains("no such folder") && !error.contains('\n'), "{error}");
}

#[test]
fn numbers_in_the_record_are_numbers() {
    let json = serde_json::to_value(record(cases())).unwrap();
    let mut nulls = Vec::new();
    find_nulls(&json, "", &mut nulls);
    // What there is not; a float that is no number would be written as null too.
    let allowed = ["plan.margin_ns", "control", "adjusted_p_value", "needs_seconds", "observed.xdp_mode", "returned"];
    let allowed = |path: &String| {
        allowed.iter().any(|end| path.ends_with(end))
            || path.ends_with("estimate.between_copies_sd_ns")
            || path.ends_with("control.between_copies_sd_ns")
    };
    let wrong: Vec<_> = nulls.into_iter().filter(|path| !allowed(path)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

fn find_nulls(json: &serde_json::Value, path: &str, nulls: &mut Vec<String>) {
    match json {
        serde_json::Value::Null => nulls.push(path.to_owned()),
        serde_json::Value::Array(values) => values.iter().for_each(|value| find_nulls(value, path, nulls)),
        serde_json::Value::Object(map) => {
            map.iter().for_each(|(name, value)| find_nulls(value, &format!("{path}.{name}"), nulls));
        }
        _ => {}
    }
}

/// A record of one short run: every kind of field, few slices.
fn small() -> Vec<u8> {
    let short = Plan { seconds: 0.0005, ..plan(vec![program(Operation::ParseIp, 1)]) };
    serde_json::to_vec(&record(vec![measure(&short, FakeRig::new(Model::default()))])).unwrap()
}

#[test]
fn a_record_cut_short_anywhere_is_an_error_of_one_line() {
    let folder = Folder::new();
    let whole = small();
    assert!(folder.read(&whole).is_ok());
    for length in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        assert!(folder.read(&whole[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn what_is_no_record_is_an_error_that_says_what_it_is() {
    let folder = Folder::new();
    let text = String::from_utf8(small()).unwrap();
    let error = |text: &str| folder.read(text.as_bytes()).unwrap_err();
    for other in ["xdplab.record/2", "", "a\nb\u{1b}[2J"] {
        let schema = serde_json::to_string(other).unwrap();
        let error = error(&text.replace("\"xdplab.record/1\"", &schema));
        assert!(error.contains("its schema is `") && error.contains("reads xdplab.record/1"), "{error}");
    }
    assert!(error("").contains("EOF"));
    assert!(error("[]").contains("invalid"));
    assert!(error("null").contains("invalid"));
    assert!(error("{}").contains("missing field `schema`"));
    assert!(error(r#"{"schema": 1}"#).contains("invalid type"));
    assert!(error(r#"{"schema": "xdplab.record/1"}"#).contains("missing field"));
    assert!(error(&text.replace("\"native\"", "\"warp\\n\"")).contains("unknown variant"));
    assert!(error(&text.replace("\"seconds\":0.0005", "\"seconds\":1e999")).contains("out of range"));
    assert!(error(&text.replace("\"seconds\":0.0005", "\"seconds\":NaN")).contains("expected value"));
    assert!(error(&text.replace("\"level\":0.95", "\"level\":1.5")).contains("above 0.5 and below 1"));
    assert!(error(&text.replace("\"copies\":4", "\"copies\":65536")).contains("invalid value"));
    assert!(folder.read(b"\xff\xfe").is_err());
    assert!(error(&"[".repeat(100_000)).contains("recursion") || error(&"[".repeat(100_000)).contains("invalid"));
}

#[test]
fn runs_that_claim_more_slices_than_there_are_take_no_memory() {
    let folder = Folder::new();
    let mut json: serde_json::Value = serde_json::from_slice(&small()).unwrap();
    let runs = json.pointer_mut("/cases/0/observed/slices/packets_runs").unwrap();
    *runs = serde_json::json!([[1024, u32::MAX], [1024, u32::MAX], [1024, u32::MAX]]);
    let error = folder.read(&serde_json::to_vec(&json).unwrap()).unwrap_err();
    assert!(error.contains("another length"), "{error}");
}

#[test]
fn rounds_that_do_not_add_up_to_the_slices_are_refused() {
    let folder = Folder::new();
    let json: serde_json::Value = serde_json::from_slice(&small()).unwrap();
    for rounds in [serde_json::json!([]), serde_json::json!([1]), serde_json::json!([u64::MAX, u64::MAX])] {
        let mut json = json.clone();
        *json.pointer_mut("/cases/0/observed/rounds").unwrap() = rounds;
        let error = folder.read(&serde_json::to_vec(&json).unwrap()).unwrap_err();
        assert!(error.contains("do not add up"), "{error}");
    }
}

#[test]
fn a_file_that_is_not_there_is_an_error_that_names_it() {
    let folder = Folder::new();
    let error = Record::read(&folder.path()).unwrap_err().to_string();
    assert!(error.contains("record.json") && error.contains("ENOENT"), "{error}");
    let error = Record::read(folder.folder.path()).unwrap_err().to_string();
    assert!(error.contains("EISDIR"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever bytes are in the file: an error of one line, or a record that can be printed.
    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        thread_local!(static WHOLE: (Folder, Vec<u8>) = (Folder::new(), small()));
        WHOLE.with(|(folder, whole)| {
            let mut bytes = whole.clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            print_if_readable(folder, &bytes);
        });
    }

    /// The same with digits put for digits, which nearly always gives a record.
    #[test]
    fn changed_digits_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 1..20)) {
        thread_local!(static WHOLE: (Folder, Vec<u8>, Vec<usize>) = {
            let whole = small();
            let digits = (0..whole.len()).filter(|at| whole[*at].is_ascii_digit()).collect();
            (Folder::new(), whole, digits)
        });
        WHOLE.with(|(folder, whole, digits)| {
            let mut bytes = whole.clone();
            for (at, digit) in changes {
                bytes[digits[at.index(digits.len())]] = digit;
            }
            print_if_readable(folder, &bytes);
        });
    }

    #[test]
    fn a_record_of_any_slices_comes_back(slices in prop::collection::vec(any_slice(), 0..40)) {
        thread_local!(static SHORT: (Folder, Record) = (Folder::new(), {
            let short = Plan { seconds: 0.0, ..plan(vec![program(Operation::ParseIp, 1)]) };
            record(vec![measure(&short, FakeRig::new(Model::default()))])
        }));
        SHORT.with(|(folder, record)| {
            let mut record = record.clone();
            record.cases[0] = xdplab::run::analyse(record.cases[0].plan.clone(), {
                let mut observed = record.cases[0].observed.clone();
                observed.rounds = vec![slices.len()];
                observed.slices = slices;
                observed
            });
            record.write(&folder.path()).unwrap();
            assert_eq!(Record::read(&folder.path()).unwrap(), record);
        });
    }
}

fn print_if_readable(folder: &Folder, bytes: &[u8]) {
    if let Ok(record) = folder.read(bytes) {
        let report = Report::of(&[("record.json".into(), record)]);
        // Another format for other bytes: all of them for each would take long.
        let formats = Format::value_variants();
        let format = formats[bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % formats.len()];
        assert!(!report.write(format).unwrap().is_empty());
    }
}

fn any_slice() -> impl Strategy<Value = Slice> {
    (any::<u64>(), any::<u64>(), any::<u32>(), 0u16..3, any::<[u16; 3]>(), any::<u32>()).prop_map(
        |(start_ns, stop_ns, packets, variant, [cpu, copy, slot], block)| Slice {
            start_ns,
            stop_ns,
            packets,
            cpu,
            variant,
            copy,
            slot,
            block,
        },
    )
}
