//! Importers against what each must read out of a text: `tests/fixtures/import/NAME.txt` gives `NAME.json`.
//!
//! After a change that is meant, `XDPLAB_BLESS=1 cargo test --test import` writes the expected files anew; read the
//! difference before you commit it.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use proptest::prelude::*;
use xdplab::import::{self, Format, Import, Imported, Metric, Options, Series};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import")
}

fn import_text(text: &[u8]) -> Import {
    let mut import = Import::default();
    import::read(text, "-", &Options::default(), &mut import).unwrap();
    import
}

fn import_fixture(name: &str) -> Import {
    import_text(&fs::read(folder().join(name)).unwrap())
}

fn series<'a>(block: &'a Imported, subject: &str, metric: Metric) -> &'a Series {
    let found = block.series.iter().find(|series| series.subject == subject && series.metric == metric);
    found.unwrap_or_else(|| panic!("no {subject} {metric} in {block:#?}"))
}

fn ns(block: &Imported, subject: &str, metric: Metric) -> String {
    format!("{:.2}", series(block, subject, metric).cost.unwrap().ns)
}

fn fixtures() -> Vec<PathBuf> {
    let mut texts: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    texts.sort();
    texts
}

#[test]
fn every_format_reads_as_its_golden_file_says() {
    let bless = std::env::var_os("XDPLAB_BLESS").is_some();
    let mut seen = Vec::new();
    for path in fixtures() {
        let import = import_text(&fs::read(&path).unwrap());
        seen.extend(import.blocks.iter().map(|block| block.format));
        let json = serde_json::to_string_pretty(&import).unwrap() + "\n";
        let golden = path.with_extension("json");
        if bless {
            fs::write(&golden, &json).unwrap();
        }
        assert_eq!(json, fs::read_to_string(&golden).unwrap(), "{}", golden.display());
    }
    let missing: Vec<_> = Format::ALL.iter().filter(|format| !seen.contains(format)).collect();
    assert!(missing.is_empty(), "no fixture for {missing:?}");
}

#[test]
fn the_six_published_drop_figures_come_out_to_the_printed_digit() {
    let import = import_fixture("e1-drop-summaries.txt");
    let figures: Vec<(String, String)> =
        import.blocks.iter().map(|block| (block.label.clone(), ns(block, "", Metric::Rx))).collect();
    let expected = [
        ("net-next (main) (drop, no touch)", "21.30"),
        ("net-next (main) (drop, read data)", "26.81"),
        ("net-next (main+v1) (drop, no touch)", "25.93"),
        ("net-next (main+v1) (drop, read data)", "27.11"),
        ("net-next (main+v2) (drop, no touch)", "19.60"),
        ("net-next (main+v2) (drop, read data)", "24.02"),
    ];
    assert_eq!(figures, expected.map(|(label, ns)| (label.to_owned(), ns.to_owned())));
    assert_eq!(import.not_understood.count, 0);
    assert!(import.blocks.iter().all(|block| block.notes.is_empty()), "counts, seconds and averages agree");
}

/// Imports a fixture into a record and returns its path.
fn record(fixture: &str, folder: &Path) -> PathBuf {
    let record = folder.join(fixture).with_extension("record.json");
    let text = self::folder().join(fixture);
    Command::cargo_bin("xdplab").unwrap().arg("import").arg(text).arg("--record").arg(&record).assert().success();
    record
}

fn compare(baseline: &Path, candidate: &Path, more: &[&str]) -> Vec<serde_json::Value> {
    let mut command = Command::cargo_bin("xdplab").unwrap();
    let output = command.arg("compare").arg(baseline).arg(candidate).arg("--json").args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    object["variants"].as_array().unwrap().clone()
}

fn deltas(rows: &[serde_json::Value]) -> Vec<String> {
    rows.iter().map(|row| format!("{:+.2}", row["delta_ns"].as_f64().unwrap())).collect()
}

#[test]
fn the_published_differences_come_out_to_the_printed_digit_and_conclude_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let drop = record("e1-drop-summaries.txt", folder.path());
    for (version, expected) in [("(main+v1)", ["+4.63", "+0.30"]), ("(main+v2)", ["-1.69", "-2.79"])] {
        let rows = compare(&drop, &drop, &["--baseline-match", "(main)", "--candidate-match", version]);
        assert_eq!(deltas(&rows), expected, "{version}");
        for row in &rows {
            assert_eq!(row["verdict"], "inconclusive");
            assert!(row["reasons"][0]["why"].as_str().unwrap().contains("spread unknown"), "{row}");
        }
    }
    let notes = record("notes.txt", folder.path());
    let rows = compare(&notes, &notes, &["--baseline-match", "before", "--candidate-match", "after"]);
    assert_eq!(deltas(&rows), ["+1.67"]);
}

#[test]
fn intervals_of_one_run_are_shown_as_a_spread_and_not_taken_for_boots() {
    let folder = tempfile::tempdir().unwrap();
    let before = record("e2-redirect-before.txt", folder.path());
    let after = record("e2-redirect-after.txt", folder.path());
    let rows = compare(&before, &after, &[]);
    assert_eq!(rows.len(), 1, "packets dropped or in error are no cost: {rows:?}");
    assert_eq!(deltas(&rows), ["+0.19"]);
    assert_eq!(rows[0]["variant"], "eth2->eth3 rx");
    assert_eq!(rows[0]["verdict"], "inconclusive");
    let why = rows[0]["reasons"][0]["why"].as_str().unwrap();
    assert!(why.contains("61.90 to 61.91 ns over 3 intervals"), "{why}");
    assert!(why.contains("62.04 to 62.14 ns over 3 intervals"), "{why}");
}

#[test]
fn what_is_not_there_to_compare_is_one_line_and_exit_status_2() {
    let folder = tempfile::tempdir().unwrap();
    let drop = record("e1-drop-summaries.txt", folder.path());
    let mut command = Command::cargo_bin("xdplab").unwrap();
    let output = command.arg("compare").args([&drop, &drop]).args(["--baseline-match", "v9"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no variant and no label holds `v9`"));
}

#[test]
fn a_published_table_compares_before_with_after_as_it_does_itself() {
    let folder = tempfile::tempdir().unwrap();
    let table = record("org-table.txt", folder.path());
    let rows = compare(&table, &table, &["--baseline-match", "Before", "--candidate-match", "After"]);
    assert_eq!(deltas(&rows), ["+1.53", "+6.89"]);
    assert_eq!(rows[0]["variant"], "fast_path operation");
}

#[test]
fn several_files_are_told_apart_by_name_or_by_the_users_labels() {
    let fixtures = ["e2-redirect-before.txt", "e2-redirect-after.txt"].map(|name| folder().join(name));
    let import = |labels: &[&str]| {
        let mut command = Command::cargo_bin("xdplab").unwrap();
        command.arg("import").args(&fixtures).arg("--json");
        for label in labels {
            command.args(["--label", label]);
        }
        command.output().unwrap()
    };
    let labels = |output: &[u8]| -> Vec<String> {
        let lines = output.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let objects: Vec<serde_json::Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
        assert!(objects.iter().all(|object| object["schema"] == "xdplab.import/1"));
        assert_eq!(objects.last().unwrap()["not_understood"]["count"], 0);
        objects.iter().filter_map(|object| Some(object["result"]["label"].as_str()?.to_owned())).collect()
    };
    assert_eq!(labels(&import(&[]).stdout), fixtures.each_ref().map(|path| path.display().to_string()));
    assert_eq!(labels(&import(&["before", "after"]).stdout), ["before", "after"]);
    let refused = import(&["one"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("1 labels for 2 files"));
}

#[test]
fn a_text_without_a_result_is_exit_status_2_and_names_the_formats() {
    let mut command = Command::cargo_bin("xdplab").unwrap();
    let output = command.arg("import").write_stdin("nothing\nto see\n").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("none of the 2 lines") && error.contains("xdp-bench"), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_ramp_a_partial_line_and_waiting_for_traffic_are_left_out_and_said() {
    let import = import_fixture("xdp-bench-terse.txt");
    let rx = series(&import.blocks[0], "", Metric::Rx);
    let summary = rx.summary.unwrap();
    assert_eq!((summary.intervals, summary.left_out), (3, 4));
    assert_eq!(summary.mean, 20_000_000.0);
    assert_eq!(ns(&import.blocks[0], "", Metric::Rx), "50.00");
    let notes = import.blocks[0].notes.join("\n");
    for said in ["first interval left out: 39 %", "last interval left out: 15 %", "after the last: 2", "SIGQUIT"] {
        assert!(notes.contains(said), "{said}: {notes}");
    }
}

#[test]
fn separators_of_any_locale_give_the_same_figures() {
    let import = import_fixture("xdp-bench-locale.txt");
    let [plain, dots, _] = &import.blocks[..] else { panic!("{:#?}", import.blocks) };
    assert_eq!(plain.series, dots.series);
    assert_eq!(series(plain, "", Metric::Rx).values, [20_000_000.0, 20_000_400.0]);
}

#[test]
fn totals_that_do_not_fit_their_own_time_are_ambiguous() {
    let import = import_fixture("xdp-bench-half-totals.txt");
    let notes = |block: usize| import.blocks[block].notes.join("\n");
    assert!(notes(0).contains("ambiguous: 30,000,000 packets in 6.0 s are not the 10,000,000"), "{}", notes(0));
    assert!(notes(1).contains("the tool's own average 5,000,000 is 0.50 times"), "{}", notes(1));
}

#[test]
fn time_per_element_is_recomputed_from_interval_and_count() {
    let import = import_fixture("time_bench.txt");
    let all: Vec<&Series> = import.blocks.iter().flat_map(|block| &block.series).collect();
    let of = |subject: &str| -> Vec<f64> {
        all.iter().filter(|series| series.subject == subject).map(|series| series.values[0]).collect()
    };
    assert_eq!(of("tasklet_page_pool01_fast_path")[0], 5.39904228);
    assert_eq!(of("for_loop"), [0.27240766, 0.9806676], "ns and cycles; 0 cycles are printed");
    assert!(of("lost").is_empty());
    assert!(import.not_understood.first.iter().any(|line| line.text.starts_with("Type:lost")));
}

#[test]
fn the_cold_first_iteration_is_left_out_as_the_tool_itself_does() {
    let import = import_fixture("bpf-bench.txt");
    let hits = series(&import.blocks[0], "hits", Metric::Operation);
    let (summary, own) = (hits.summary.unwrap(), hits.own.unwrap());
    assert_eq!(summary.intervals, 6);
    assert!((summary.mean - own.mean.value).abs() < 1e3, "{summary:?} {own:?}");
    assert!((summary.sd.unwrap() - own.sd.unwrap().value).abs() < 1e3, "the tool's ± is a standard deviation");
}

#[test]
fn a_label_is_put_before_those_in_the_text_and_a_format_can_be_forced() {
    let text = "Summary  5,000,000 rx/s  0 err/s\nn=9 cur-pps:1 avg=1 max=1 min=1\n";
    let mut import = Import::default();
    let options = Options { format: Some(Format::XdpMonitor), label: "old kernel".into() };
    import::read(text.as_bytes(), "-", &options, &mut import).unwrap();
    let [block] = &import.blocks[..] else { panic!("{:#?}", import.blocks) };
    assert_eq!((block.format, block.label.as_str()), (Format::XdpMonitor, "old kernel"));
    assert_eq!(import.not_understood.count, 1);
}

#[test]
fn memory_is_bounded_and_the_statistics_are_of_all() {
    let mut text = "Summary  20,000,000 rx/s  0 err/s\nSummary  20,000,200 rx/s  0 err/s\n".repeat(5000);
    text += &(0..15_000).fold(String::new(), |text, index| text + &format!("label {index}:\n{index} pps\n"));
    let import = import_text(text.as_bytes());
    let rx = series(&import.blocks[0], "", Metric::Rx);
    assert_eq!(rx.values.len(), Series::MAX_VALUES);
    assert_eq!(rx.summary.unwrap().intervals, 10_000);
    assert_eq!(rx.summary.unwrap().mean, 20_000_100.0);
    assert!(import.blocks.len() <= 10_000);
    assert!(import.left_out > 0);
}

/// Pieces of every format, to be cut and mixed.
fn pieces() -> Vec<String> {
    fixtures()
        .iter()
        .flat_map(|path| fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        import_text(&bytes);
    }

    #[test]
    fn no_mixture_of_damaged_lines_makes_a_parser_panic_or_write_json_that_does_not_come_back(
        picks in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 0..60)
    ) {
        let pieces = pieces();
        let mut text = Vec::new();
        for (line, place, byte) in picks {
            let mut line = line.get(&pieces).clone().into_bytes();
            if byte % 3 == 0 && !line.is_empty() {
                let place = place.index(line.len());
                line[place] = byte;
            } else if byte % 7 == 0 {
                line.truncate(place.index(line.len() + 1));
            }
            text.extend(line);
            text.push(b'\n');
        }
        for block in import_text(&text).blocks {
            let json = serde_json::to_string(&block).unwrap();
            let back: Imported = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(back, block);
        }
    }
}
