//! Developer tasks of the workspace: `cargo xtask bpf` builds the committed BPF objects anew, `guest` what
//! `xdplab kernels` boots, and `vm-test` runs the kernel tests in other kernels.

mod bpf;
mod guest;
mod vm_test;

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use vm_test::VmTest;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer tasks of the xdplab workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the BPF objects and their manifest with clang-19
    Bpf {
        /// Build into a temporary folder and fail on any byte that differs from what is committed
        #[arg(long)]
        check: bool,
    },
    /// Build the static xdplab for guests and its profiling plugin, and print where it is
    Guest,
    /// Count known differences between two kernels in guests, twice each
    CheckCounts {
        /// Linux 6.1, as `xdplab kernels` takes it
        older: String,
        /// Linux 6.12
        newer: String,
    },
    /// Run the kernel tests inside guests, without counting
    VmTest {
        /// Kernels as `xdplab kernels` takes them
        #[arg(value_name = "KERNEL", required = true)]
        kernels: Vec<String>,
        /// Run only the tests of this package
        #[arg(long, value_name = "NAME", value_parser = vm_test::PACKAGES)]
        package: Option<String>,
        /// Run only tests whose names have this in them
        #[arg(long, value_name = "FILTER")]
        test_filter: Option<String>,
        /// Leave out tests whose names have this in them; repeat it for several
        #[arg(long, value_name = "NAME")]
        skip: Vec<String>,
        /// Wall-clock seconds after which a guest is stopped; each kernel has one for the tests of xdplab and one for those of xsk
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        timeout: u64,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Bpf { check: false } => bpf::build(),
        Task::Bpf { check: true } => bpf::check(),
        Task::Guest => {
            let path = guest::build()?;
            writeln!(std::io::stdout().lock(), "{}", path.display()).context("can't print")
        }
        Task::CheckCounts { older, newer } => guest::check_counts(&older, &newer),
        Task::VmTest { kernels, package, test_filter, skip, timeout } => {
            let (package, filter) = (package.as_deref(), test_filter.as_deref());
            vm_test::run(&VmTest { kernels: &kernels, package, filter, skip: &skip, timeout })
        }
    }
}
