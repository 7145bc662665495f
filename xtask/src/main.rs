//! Developer tasks of the workspace: `cargo xtask bpf` builds the committed BPF objects anew, `guest` what
//! `xdplab kernels` boots, and `vm-test` runs the kernel tests in other kernels.

mod bpf;
mod guest;

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

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
        /// A kernel as `xdplab kernels` takes it; repeat it for several
        #[arg(long = "kernel", required = true)]
        kernels: Vec<String>,
        /// Arguments for the tests, such as names to filter by
        #[arg(last = true)]
        arguments: Vec<String>,
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
        Task::VmTest { kernels, arguments } => guest::test(&kernels, &arguments),
    }
}
