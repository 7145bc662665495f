//! Developer tasks of the workspace: `cargo xtask bpf` builds the committed BPF objects anew.

mod bpf;

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
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Bpf { check: false } => bpf::build(),
        Task::Bpf { check: true } => bpf::check(),
    }
}
