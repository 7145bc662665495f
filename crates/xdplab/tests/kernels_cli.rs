//! `xdplab kernels`: what is refused before anything boots, and, where QEMU and kernels are there, what it counts.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;

use assert_cmd::Command;

fn refused(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xdplab")).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: ") || error.lines().count() == 1, "{error}");
    error
}

#[test]
fn a_dynamic_xdplab_is_no_guest() {
    let error = refused(&["kernels", "--baseline", "a", "--candidate", "b"]);
    assert!(error.contains("linked dynamically") && error.contains("cargo xtask guest"), "{error}");
}

#[test]
fn arguments_that_make_no_comparison_are_refused() {
    assert!(refused(&["kernels"]).contains("--baseline"));
    assert!(refused(&["kernels", "--baseline", "a"]).contains("--candidate"));
    assert!(refused(&["kernels", "--baseline", "a", "--candidate", "b", "--boots", "1"]).contains("2..=100"));
    assert!(refused(&["kernels", "--baseline", "a", "--candidate", "b", "--case", "x"]).contains("live-drop"));
    assert!(refused(&["kernels", "exec", "k"]).contains("COMMAND"));
    assert!(refused(&["kernels", "exec", "k", "--file", "x", "--", "/init"]).contains("HERE:THERE"));
}

#[test]
fn a_folder_without_source_is_not_built() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let error = Command::new(env!("CARGO_BIN_EXE_xdplab"))
        .args(["kernels", "build", "--source"])
        .arg(folder.path())
        .arg("--output")
        .arg(&output)
        .output()
        .unwrap();
    assert_eq!(error.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&error.stderr).contains("no kernel source"), "{error:?}");
    assert!(fs::metadata(output).is_err());
}

#[test]
fn the_first_process_of_a_guest_is_nothing_else() {
    let error = refused(&["guest"]);
    assert!(error.contains("this is not the first process of a machine"), "{error}");
}
