//! `xdplab kernels exec`: a program in a guest, such as `doctor`.

use serde_json::json;

use crate::lab::{Lab, ended, lines};

fn exec(lab: &Lab, release: &str) -> std::process::Output {
    let mut exec = lab.xdplab(&["exec", "--timeout", "20", "--guest"]);
    exec.arg(lab.path("guest")).arg(lab.path(release)).args(["--", "/init", "doctor"]).output().unwrap()
}

#[test]
fn the_program_s_output_and_exit_status_become_those_of_the_command() {
    let lab = Lab::new();
    let kernel = lab.kernel("6.1.0");
    for status in [0, 7] {
        let exited = json!({"exited": {"Ok": status}});
        kernel
            .does("checks", lines(&[json!({"output": "kernel 6.1.0"}), json!({"output": ""}), exited, json!("done")]));
        assert_eq!(ended(&exec(&lab, "6.1.0"), status), ("kernel 6.1.0\n\n".to_owned(), String::new()));
    }
}

#[test]
fn a_program_or_a_guest_that_does_not_end_well_is_an_error_with_all_that_was_said() {
    let lab = Lab::new();
    let kernel = lab.kernel("6.1.0");
    let said = json!({"output": "so far"});
    kernel.does("checks", lines(&[said.clone(), json!({"exited": {"Err": "signal: 11"}}), json!("done")]));
    let (_, error) = ended(&exec(&lab, "6.1.0"), 2);
    assert!(error.contains("run /init doctor in 6.1.0: signal: 11"), "{error}");
    kernel.does("checks", lines(&[said])).does("exit", "0").does("console", "Kernel panic - not syncing\n");
    let (output, error) = ended(&exec(&lab, "6.1.0"), 2);
    assert_eq!(output, "so far\n");
    assert!(error.starts_with("Kernel panic - not syncing\n"), "{error}");
    assert!(error.contains("run /init doctor in 6.1.0: the kernel crashed"), "{error}");
}
