//! Any text, as a scenario and as a topology: what it means, or one line that says what is wrong, and no panic.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use xdplab::Error;
use xdplab::scenario::Scenario;
use xdplab::toml_file::TomlFile;
use xdplab::topology::NetworkSpec;

fuzz_target!(|text: &str| {
    let file = TomlFile::of("read the file", text);
    match Scenario::of(&file, Path::new("/nowhere")) {
        Ok(scenario) => assert!(scenario.steps(1).len() >= scenario.cases.len()),
        Err(error) => is_one_line(&error),
    }
    if let Err(error) = NetworkSpec::of(&file) {
        is_one_line(&error);
    }
});

fn is_one_line(error: &Error) {
    assert!(!error.to_string().contains('\n'));
}
