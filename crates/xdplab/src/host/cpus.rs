//! Which CPUs the machine has (Documentation/admin-guide/cputopology.rst).

use std::collections::BTreeSet;

use super::root::Root;
use crate::error::{Error, Result};

/// Checks that every CPU of `cpus` is there and online.
///
/// # Errors
/// One is not, by its number and with those that are.
pub fn require_online(cpus: &[u32]) -> Result<()> {
    check(&Root::system(), cpus)
}

fn check(root: &Root, cpus: &[u32]) -> Result<()> {
    let present = list(root, "present")?;
    let online = list(root, "online")?;
    for cpu in cpus {
        let refused = |why: &str| Error::usage(format!("use CPU {cpu}"), format!("it is {why}"));
        if !present.cpus.contains(cpu) {
            return Err(refused("not present").remedy(format!("choose from those present: {}", present.text)));
        }
        if !online.cpus.contains(cpu) {
            let remedy = format!(
                "choose from those online: {}; or bring it up (/sys/devices/system/cpu/cpu{cpu}/online)",
                online.text
            );
            return Err(refused("offline").remedy(remedy));
        }
    }
    Ok(())
}

struct Cpus {
    text: String,
    cpus: BTreeSet<u32>,
}

fn list(root: &Root, name: &str) -> Result<Cpus> {
    let path = format!("/sys/devices/system/cpu/{name}");
    let invalid = |why: String| Error::invalid(format!("read {path}"), why);
    let text = root.text(&path).into_result().map_err(invalid)?;
    let cpus = parse(&text).ok_or_else(|| invalid(format!("unexpected {text:?}")))?;
    Ok(Cpus { text, cpus })
}

/// A list such as `0-3,8`.
fn parse(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read_and_others_refused() {
        assert_eq!(parse("0-3,8"), Some([0, 1, 2, 3, 8].into()));
        assert_eq!(parse("0"), Some([0].into()));
        for bad in ["", "0-", "a", "0-1;3"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cpu_that_is_absent_or_offline_is_refused_with_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = folder.path().join("sys/devices/system/cpu");
        fs::create_dir_all(&cpu).unwrap();
        fs::write(cpu.join("present"), "0-3\n").unwrap();
        fs::write(cpu.join("online"), "0-1,3\n").unwrap();
        let root = Root::at(folder.path());
        check(&root, &[0, 3, 3]).unwrap();
        assert_eq!(
            check(&root, &[0, 4]).unwrap_err().to_string(),
            "can't use CPU 4: it is not present; choose from those present: 0-3"
        );
        assert_eq!(
            check(&root, &[2]).unwrap_err().to_string(),
            "can't use CPU 2: it is offline; choose from those online: 0-1,3; or bring it up \
             (/sys/devices/system/cpu/cpu2/online)"
        );
    }
}
