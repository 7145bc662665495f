//! What `xdplab ab` says to arguments that do not fit; none of these needs rights.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use assert_cmd::Command;

/// The standard error of `xdplab ab` with these arguments, which must end it with status 2.
fn refused(arguments: &[&str]) -> String {
    let output = Command::cargo_bin("xdplab").unwrap().arg("ab").args(arguments).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "a refusal prints nothing");
    error
}

/// The arguments after a baseline and a candidate that are fine.
fn refused_after(arguments: &[&str]) -> String {
    refused(&[&["--baseline", "drop:no-touch", "--candidate", "drop:read-data"], arguments].concat())
}

#[test]
fn a_comparison_needs_both_sides() {
    assert!(refused(&["--baseline", "drop:no-touch"]).contains("--candidate <SPEC>"));
    assert!(refused(&["--candidate", "drop:no-touch"]).contains("--baseline <SPEC>"));
}

#[test]
fn a_wrong_specification_is_told_with_what_is_allowed() {
    let error = refused(&["--baseline", "drop:no-touch", "--candidate", "drop:frob"]);
    assert!(error.contains("there is no operation `frob`, only uncounted, no-touch, read-data, "), "{error}");
}

#[test]
fn a_redirect_in_the_lab_names_no_interface() {
    let error = refused_candidate("redirect-map:egress-frob", &[]);
    assert!(error.contains("`egress-frob` is none of its options, and the lab brings the interface"), "{error}");
}

#[test]
fn an_option_that_a_redirect_does_not_have_is_told_with_those_it_has() {
    for spec in ["redirect:egress-drop:x", "redirect-multi:a:b", "redirect-cpu:frob", "redirect-cpu:qsize=x"] {
        let error = refused(&["--baseline", spec, "--candidate", "redirect"]);
        assert!(error.contains("redirect-map[:egress-forward|:egress-drop]"), "{spec}: {error}");
    }
}

#[test]
fn an_option_that_a_socket_does_not_have_is_told_with_those_it_has() {
    for spec in ["xsk-drop:frob", "xsk-tx:batch=x", "xsk-drop:cpu=-1", "xsk-tx:eth1"] {
        let error = refused(&["--baseline", "drop:no-touch", "--candidate", spec]);
        assert!(error.contains("xsk-drop|xsk-tx[:cpu=N][:fifo=N][:queue=N][:batch=N]"), "{spec}: {error}");
    }
    let error = refused(&["--baseline", "drop:no-touch", "--candidate", "xsk-drop:busy-poll"]);
    assert!(error.contains("would do so in the slices of all programs; measure it by itself"), "{error}");
}

#[test]
fn sockets_that_can_not_share_a_queue_are_refused_before_anything_is_set_up() {
    let error = refused(&["--baseline", "xsk-drop", "--candidate", "xsk-tx:frame-size=2048"]);
    assert!(error.contains("their frame size differs") && error.contains("in a run of its own"), "{error}");
}

#[test]
fn lengths_and_widths_must_be_positive_numbers() {
    for (option, value) in
        [("--seconds", "0"), ("--seconds", "-1"), ("--resolve", "0ns"), ("--margin", "x"), ("--floor", "inf")]
    {
        let error = refused_after(&[&format!("{option}={value}")]);
        assert!(error.contains("not a positive number") && error.contains(option), "{error}");
    }
}

#[test]
fn a_length_and_a_resolution_exclude_each_other() {
    assert!(refused_after(&["--seconds", "5", "--resolve", "0.5ns"]).contains("cannot be used with"));
    assert!(refused_after(&["--max-seconds", "5"]).contains("--resolve <NS>"));
}

#[test]
fn a_frame_shorter_than_its_headers_is_refused_with_the_range() {
    let error = refused_after(&["--ipv6", "--size", "64"]);
    assert!(error.contains("66 to 65593 bytes on the wire (FCS counted) are allowed"), "{error}");
}

#[test]
fn more_copies_than_the_table_holds_are_refused_with_the_limit() {
    let error = refused_after(&["--copies", "40"]);
    assert!(error.contains("1 to 64 copies fit in all"), "{error}");
}

/// The committed object of `bpf/tests/NAME.bpf.c`.
fn object(name: &str) -> String {
    format!("{}/bpf/objects/tests-{name}.bpf.o", env!("CARGO_MANIFEST_DIR"))
}

/// What the candidate is refused for, in one line.
fn refused_candidate(spec: &str, arguments: &[&str]) -> String {
    let error = refused(&[&["--baseline", "drop:no-touch", "--candidate", spec], arguments].concat());
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn a_file_that_is_no_bpf_object_is_refused_for_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let written = |name: &str, bytes: &[u8]| {
        std::fs::write(path(name), bytes).unwrap();
        refused_candidate(&path(name), &[])
    };
    let whole = std::fs::read(object("user")).unwrap();
    assert!(written("empty.o", b"").contains("it is empty"));
    assert!(written("text.o", b"int main;").contains("it is no ELF file; compile the program with clang -target bpf"));
    assert!(written("header.o", &whole[..40]).contains("it is damaged: "));
    assert!(written("truncated.o", &whole[..whole.len() / 2]).contains("it is damaged: "));
    assert!(refused_candidate("/bin/sh", &[]).contains("it is an ELF file for machine "));
    assert!(refused_candidate(&path("missing.o"), &[]).contains("ENOENT"));
    assert!(refused_candidate(&format!("{}/", folder.path().display()), &[]).contains("it is no file"));
    assert!(refused_candidate("/dev/zero", &[]).contains("it is no file"));
    std::fs::File::create(path("huge.o")).unwrap().set_len(1 << 32).unwrap();
    assert!(refused_candidate(&path("huge.o"), &[]).contains("it is longer than 64 MiB"));
}

#[test]
fn a_program_that_can_not_be_measured_is_refused_with_those_that_can() {
    let refuse = |name: &str| refused_candidate(name, &[]);
    let error = refuse(&object("user"));
    assert!(error.contains("it has 4 XDP programs: work, count_down, sized, pinned; name one of them"), "{error}");
    let error = refuse(&format!("{}:wrok", object("user")));
    assert!(error.contains("no program `wrok`; its XDP programs are work, count_down, sized, pinned"), "{error}");
    let error = refuse(&object("other"));
    assert!(error.contains("`filter` is no XDP program: its section is `socket`"), "{error}");
    let error = refuse(&format!("{}:trace", object("user")));
    assert!(error.contains("its section is `tp_btf/no_such_tracepoint`"), "{error}");
    let error = refuse(&format!("{}:behind_cpumap", object("user")));
    assert!(error.contains("runs behind a cpumap"), "{error}");
    let error = refuse(&format!("{}:tail_call_nowhere", object("plain")));
    assert!(error.contains("tail-calls out of empty, which the object leaves empty"), "{error}");
    let error = refuse(&format!("{}:sized", object("user")));
    assert!(error.contains("to its loader: left_to_loader; give it: --map-entries left_to_loader=N"), "{error}");
}

#[test]
fn a_setting_that_does_not_fit_the_object_is_refused_with_what_does() {
    let work = format!("{}:work", object("user"));
    let refuse = |setting: &[&str]| refused_candidate(&work, setting);
    let error = refuse(&["--global", "vrdict=1"]);
    assert!(error.contains("no such global variable, only multiplications, result, seed, table, verdict"), "{error}");
    let error = refuse(&["--global", "candidate:verdict=256"]);
    assert!(error.contains("256 does not fit into its 1 bytes"), "{error}");
    assert!(refuse(&["--global", "table=1"]).contains("it has 12 bytes, so it is no integer"));
    assert!(refuse(&["--global", "baseline:verdict=1"]).contains("no object file is among drop:no-touch"));
    assert!(refuse(&["--global", "candidate2:verdict=1"]).contains("there is no candidate2, only 1 candidate"));
    let error = refuse(&["--map-entries", "flows=1"]);
    assert!(error.contains("no such map, only left_to_loader, xdplab_test_pinned"), "{error}");
    assert!(refuse(&["--map-entries", "left_to_loader=0"]).contains("a map has at least one entry"));
    assert!(
        refused_after(&["--global", "verdict=1"]).contains("no object file is among drop:no-touch, drop:read-data")
    );
    assert!(refused_after(&["--global", "verdict"]).contains("it has no `=`"));
}

#[test]
fn programs_with_and_without_frags_are_refused_together() {
    let error = refused(&[
        "--baseline",
        &format!("{}:work", object("user")),
        "--candidate",
        &format!("{}:last", object("plain")),
    ]);
    assert!(error.contains("one dispatcher can't call both; give both the same section"), "{error}");
}

#[test]
fn an_interface_that_is_not_there_is_refused_and_so_are_options_of_the_lab() {
    let error = refused_after(&["--on", "nosuch0"]);
    assert!(error.contains("ENODEV") && error.lines().count() == 1, "{error}");
    for option in ["--size=64", "--ipv6", "--flows=2", "--queues=2", "--placement=split"] {
        let error = refused_after(&["--on", "lo", option]);
        assert!(error.contains("cannot be used with"), "{option}: {error}");
    }
    assert!(refused_after(&["--force"]).contains("--on <IFACE>"));
}
