//! The command line of xdplab.

fn main() -> std::process::ExitCode {
    xdplab::cli::main()
}
