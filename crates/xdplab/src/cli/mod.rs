//! The command line: arguments as typed, one file for each command.

mod ab;
mod basic;
mod calibrate;
mod compare;
mod cpumap;
mod demo;
mod doctor;
mod explain;
mod help;
mod import;
mod kernels;
mod lab;
mod live;
mod monitor;
mod pool;
mod progress;
mod redirect;
mod report;
mod rerun;
mod run;
mod shell;
mod signals;
mod trafficgen;
mod variants;
mod xsk;

use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};

use crate::device::{Action, XskAction};
use crate::error::Result;

/// Measures the Linux XDP data path in nanoseconds per packet, with an interval and a verdict.
///
/// Without a command: the demo, which compares four packet operations of XDP_DROP on a throw-away veth lab.
#[derive(Parser)]
#[command(
    name = "xdplab",
    version,
    propagate_version = true,
    infer_long_args = true,
    infer_subcommands = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Pages about what the figures mean: xdplab help method|verdicts|guards|placement|variants|records"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where the verifier refuses a program, print everything that it says; live commands say more about what is set up
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Say by how many ns per packet a candidate differs from the baseline, slice by slice in turn
    Ab(Box<ab::Options>),
    /// Compare four packet operations of XDP_DROP on a throw-away veth lab
    Demo(demo::Options),
    /// Say what can be measured here, and why not
    Doctor(doctor::Options),
    /// Make topologies that stay, show them, run commands in them and take them down
    Lab(lab::Options),
    /// Carry out a scenario: a file that says what to measure, case by case
    Run(run::Options),
    /// Measure the page-pool crate in this process
    Pool(pool::Options),
    /// Compare records of runs that could not interleave, such as two kernels, boot by boot
    Compare(compare::Options),
    /// Compare kernels by the guest instructions that a packet takes, counted exactly in QEMU; needs no privileges
    Kernels(Box<kernels::Options>),
    /// Test the instrument: compare programs whose difference is known, many times, and say how often it is right
    Calibrate(calibrate::Options),
    /// Drop all packets of an interface and count them
    Drop(basic::Options),
    /// Pass all packets of an interface to the network stack and count them
    Pass(basic::Options),
    /// Send all packets of an interface back out of it (XDP_TX) and count them
    Tx(basic::Options),
    /// Give packets of an interface to other CPUs (cpumap) and count them
    RedirectCpu(cpumap::Options),
    /// Give packets of a queue to AF_XDP sockets, drop and count them
    XskDrop(Box<xsk::Options>),
    /// Give packets of a queue to AF_XDP sockets, send them back and count them
    XskTx(Box<xsk::Options>),
    /// Read what other tools printed, also where it was pasted into mail
    Import(import::Options),
    /// Redirect all packets of an interface to another by bpf_redirect()
    Redirect(redirect::Redirect),
    /// Redirect all packets of an interface to another by a devmap
    RedirectMap(redirect::RedirectMap),
    /// Redirect all packets of each interface to all others, by broadcast over a devmap
    RedirectMulti(redirect::RedirectMulti),
    /// Generate packets
    Trafficgen {
        #[command(subcommand)]
        command: trafficgen::Command,
    },
    /// Watch redirects, their errors and exceptions of XDP on all interfaces
    Monitor(monitor::Options),
    /// Tell records again: for a terminal, a mail, a web page or a program
    Report(report::Options),
    /// Repeat the run of a record, and say whether it finds the same and what differs around it
    Rerun(rerun::Options),
    /// Print the completions for a shell
    Completions(shell::Completions),
    /// Print the manual page, or write one for each command
    Man(shell::Man),
    /// Print the help of a command, or a page about what the figures mean
    Help(help::Options),
    /// Be the first process of a guest of `xdplab kernels`
    #[command(hide = true)]
    Guest {
        /// Boot parameters that the kernel passes on
        passed_on: Vec<String>,
    },
}

/// How a command ended, other than by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Done.
    Done,
    /// A candidate is slower (or takes more instructions), and `--fail-on` asked to fail.
    Slower,
    /// A comparison is inconclusive, and `--fail-on inconclusive` was given.
    Inconclusive,
    /// Something that was probed for is not there.
    Lacking,
    /// Another program's exit status.
    Status(u8),
}

/// Parses the process's arguments and carries them out.
///
/// Exit status: 0 done; 1 a regression where `--fail-on` asked to fail, or a probe that found something lacking; 2 usage or environment; 3 inconclusive where
/// `--fail-on` asked.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let verbose = arguments.verbose;
    match run(arguments) {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::Slower | Ending::Lacking) => ExitCode::from(1),
        Ok(Ending::Inconclusive) => ExitCode::from(3),
        Ok(Ending::Status(status)) => ExitCode::from(status),
        Err(error) => {
            if verbose > 0 {
                output::log(&error);
            }
            output::error(&error);
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> Result<Ending> {
    match arguments.command.unwrap_or(Command::Demo(demo::Options::default())) {
        Command::Ab(options) => ab::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Lab(options) => lab::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Pool(options) => pool::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Kernels(options) => kernels::run(&options),
        Command::Calibrate(options) => calibrate::run(&options),
        Command::Drop(options) => basic::run(Action::Drop, &options),
        Command::Pass(options) => basic::run(Action::Pass, &options),
        Command::Tx(options) => basic::run(Action::Tx, &options),
        Command::RedirectCpu(options) => cpumap::run(&options),
        Command::XskDrop(options) => xsk::run(XskAction::Drop, &options),
        Command::XskTx(options) => xsk::run(XskAction::Tx, &options),
        Command::Import(options) => import::run(&options),
        Command::Redirect(options) => options.run(),
        Command::RedirectMap(options) => options.run(),
        Command::RedirectMulti(options) => options.run(),
        Command::Trafficgen { command } => trafficgen::run(&command),
        Command::Monitor(options) => monitor::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Rerun(options) => rerun::run(&options),
        Command::Completions(options) => shell::completions(&options),
        Command::Man(options) => shell::man(&options),
        Command::Help(options) => help::run(&options),
        Command::Guest { .. } => kernels::guest(),
    }
}

/// The one place that prints.
pub(crate) mod output {
    use std::io::{self, Write};
    use std::ops::ControlFlow;

    use crate::error::{Error, Result};

    /// Writes to standard output and flushes; a reader that has gone away ends the output without an error.
    pub(crate) fn text(text: &str) -> Result<()> {
        tell(text).map(|_| ())
    }

    /// The same, and `Break` if the reader has gone away.
    pub(crate) fn tell(text: &str) -> Result<ControlFlow<()>> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(ControlFlow::Continue(())),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
            Err(error) => Err(Error::io("write to standard output", "write", &error)),
        }
    }

    /// One line on standard error about what goes on. There is nobody to tell when that fails.
    pub(crate) fn note(line: &str) {
        writeln!(io::stderr().lock(), "{line}").unwrap_or_default();
    }

    /// Everything the verifier said, on standard error.
    pub(crate) fn log(error: &Error) {
        let Some(log) = error.log() else { return };
        let clean = log.replace(|c: char| c.is_control() && c != '\n' && c != '\t', " ");
        writeln!(io::stderr().lock(), "{}", clean.trim_end()).unwrap_or_default();
    }

    /// One line on standard error. There is nobody to tell when that fails.
    pub(crate) fn error(error: &Error) {
        writeln!(io::stderr().lock(), "xdplab: {error}").unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_of_every_command_fit_together() {
        Arguments::command().debug_assert();
    }
}
