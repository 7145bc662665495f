//! `xdplab kernels build`, with a `make` of our own: from a patch to its cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::{CONFIG, Kernel, Lab, ended};

/// Takes `-C SOURCE O=OUTPUT TARGET`. The image is one or the other by what is in the source.
const MAKE: &str = r#"#!/bin/sh
source=$2 output=${3#O=} target=$4 lab=${0%/*}
echo "$target" >> "$lab/made"
case $target in
    tinyconfig) cp "$lab/config" "$output/.config";;
    -j*)
        kernel=plain
        grep -q nop "$source/drivers/net/veth.c" && kernel=patched
        grep -q wrong "$source/drivers/net/veth.c" && {
            echo "drivers/net/veth.c:2:1: error: 'wrong' undeclared"
            echo "make[1]: *** [scripts/Makefile.build:229: drivers/net/veth.o] Error 1"
            exit 2
        }
        mkdir -p "$output/arch/x86/boot"
        cp "$lab/$kernel.image" "$output/arch/x86/boot/bzImage";;
esac
"#;
const VETH: &str = "one\ntwo\nthree\n";

fn patch(line: &str) -> String {
    format!("--- a/drivers/net/veth.c\n+++ b/drivers/net/veth.c\n@@ -1,3 +1,4 @@\n one\n two\n+{line}\n three\n")
}

struct Tree {
    lab: Lab,
    source: PathBuf,
    patch: PathBuf,
}

impl Tree {
    fn new(line: &str) -> (Self, [Kernel; 2]) {
        let lab = Lab::new();
        lab.script("make", MAKE);
        for tool in ["gcc", "ld", "flex", "bison", "bc", "perl"] {
            lab.script(tool, "#!/bin/sh\n");
        }
        fs::write(lab.path("config"), CONFIG).unwrap();
        let kernels = ["plain", "patched"].map(|kernel| lab.guests_of(kernel));
        kernels[1].counts(103);
        let (source, patch_file) = (lab.path("linux"), lab.path("my.patch"));
        for (file, text) in [("arch/x86/Kconfig", ""), ("drivers/net/veth.c", VETH)] {
            fs::create_dir_all(source.join(file).parent().unwrap()).unwrap();
            fs::write(source.join(file), text).unwrap();
        }
        fs::write(&patch_file, patch(line)).unwrap();
        (Self { lab, source, patch: patch_file }, kernels)
    }

    fn build(&self) -> Command {
        self.build_with_guest(&self.lab.path("guest"))
    }

    fn build_with_guest(&self, guest: &Path) -> Command {
        let mut build = self.lab.xdplab(&["build", "--source"]);
        build.arg(&self.source).arg("--patch").arg(&self.patch).args(["--case", "live-drop", "--jobs", "1"]);
        build.arg("--guest").arg(guest).arg("--record").arg(self.lab.path("record.json"));
        build
    }

    fn made(&self) -> String {
        fs::read_to_string(self.lab.path("made")).unwrap_or_default()
    }

    fn is_as_before(&self) -> bool {
        let folder = fs::read_dir(self.source.join("drivers/net")).unwrap();
        folder.count() == 1 && fs::read_to_string(self.source.join("drivers/net/veth.c")).unwrap() == VETH
    }
}

#[test]
fn one_command_leads_from_a_patch_to_its_cost_and_leaves_the_tree_as_it_was() {
    let (tree, kernels) = Tree::new("nop");
    let (text, notes) = ended(&tree.build().output().unwrap(), 0);
    let row = text.lines().find(|line| line.trim_start().starts_with("live-drop")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words, ["live-drop", "100.00", "103.00", "+3.00", "0.00", "more"], "{text}");
    assert!(text.contains(" baseline ") && text.contains(" candidate "), "both have one release: {text}");
    assert!(notes.contains("built the baseline in ") && notes.contains("built the candidate in "), "{notes}");
    assert_eq!(tree.made(), "tinyconfig\nolddefconfig\n-j1\n-j1\n");
    assert_eq!(kernels.map(|kernel| kernel.boots()), [2, 2]);
    assert!(tree.is_as_before());
    let config = fs::read_to_string(tree.lab.path("linux-xdplab/baseline/.config")).unwrap();
    assert!(config.starts_with(CONFIG) && config.contains("CONFIG_XDP_SOCKETS=y"), "{config}");
    ended(&tree.build().arg("--fail-on").arg("more").output().unwrap(), 1);
    assert_eq!(tree.made(), "tinyconfig\nolddefconfig\n-j1\n-j1\n-j1\n-j1\n", "the configuration is kept");
}

#[test]
fn a_build_that_fails_tells_the_compiler_s_first_error_and_takes_the_patch_back() {
    let (tree, kernels) = Tree::new("wrong");
    let (_, error) = ended(&tree.build().output().unwrap(), 2);
    let last = error.lines().last().unwrap();
    assert!(last.contains("drivers/net/veth.c:2:1: error: 'wrong' undeclared; all of it is in "), "{error}");
    assert!(tree.is_as_before());
    assert_eq!(kernels.map(|kernel| kernel.boots()), [0, 0]);
}

#[test]
fn what_is_missing_is_told_before_anything_is_built() {
    let (tree, _) = Tree::new("nop");
    let refused = |command: &mut Command| {
        let (_, error) = ended(&command.output().unwrap(), 2);
        assert_eq!((error.lines().count(), tree.made().as_str()), (1, ""), "{error}");
        error
    };
    let error = refused(tree.build().env("PATH", "/nonexistent"));
    assert!(error.contains("make, gcc, ld, flex, bison, bc, perl, patch, gelf.h missing"), "{error}");
    let packages = "on Debian: apt-get install make gcc binutils flex bison bc perl patch libelf-dev";
    assert!(error.contains(packages), "{error}");
    tree.lab.script("gcc", "#!/bin/sh\nexit 1\n");
    assert!(refused(&mut tree.build()).contains(": gelf.h missing; on Debian: apt-get install libelf-dev"));
    tree.lab.script("gcc", "#!/bin/sh\n");
    assert!(refused(&mut tree.build_with_guest("/bin/sh".as_ref())).contains("linked dynamically"));
    assert!(refused(tree.build().args(["--profile", "/nonexistent"])).contains("find the profiling plugin"));
    fs::write(&tree.patch, patch("nop").replace(" two", " other")).unwrap();
    assert!(refused(&mut tree.build()).contains("apply the patch"));
    fs::write(&tree.patch, patch("nop")).unwrap();
    fs::write(tree.source.join("drivers/net/veth.c"), "one\ntwo\nnop\nthree\n").unwrap();
    assert!(refused(&mut tree.build()).contains("previously applied"));
}
