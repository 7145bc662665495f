//! Tests against the running kernel, most of them as root. Each has network namespaces of its own, so that they can run
//! beside each other; none touches an interface of the machine.
//!
//! Where a test's needs are not met it is shown as ignored, with the reason. With `XDPLAB_REQUIRE_KERNEL_TESTS=1` it
//! fails instead, unless the kernel itself lacks what is needed.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and say what was ignored")]

mod ab;
mod ab_xsk;
mod attachment;
mod calibrate;
mod cli;
mod counts;
mod cpumap;
mod doctor;
mod early_signals;
mod generator;
mod labs;
mod live;
mod measurement;
mod no_arrival;
mod observers;
mod pktgen;
mod redirect;
mod rerun;
mod scenarios;
mod settings;
mod socket_cli;
mod sockets;
mod support;
mod tcp;
mod testrun;
mod topology;
mod trafficgen;
mod xsk;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    if let Some(code) = support::child::run_if_asked(&[
        attachment::CHILDREN,
        generator::CHILDREN,
        labs::CHILDREN,
        measurement::CHILDREN,
        topology::CHILDREN,
    ]) {
        return code;
    }
    let tests = [
        support::tests(),
        ab::tests(),
        ab_xsk::tests(),
        attachment::tests(),
        calibrate::tests(),
        cli::tests(),
        counts::tests(),
        cpumap::tests(),
        doctor::tests(),
        early_signals::tests(),
        generator::tests(),
        labs::tests(),
        live::tests(),
        measurement::tests(),
        no_arrival::tests(),
        observers::tests(),
        pktgen::tests(),
        redirect::tests(),
        rerun::tests(),
        scenarios::tests(),
        settings::tests(),
        socket_cli::tests(),
        sockets::tests(),
        tcp::tests(),
        testrun::tests(),
        topology::tests(),
        trafficgen::tests(),
        xsk::tests(),
    ];
    let tests = tests.into_iter().flatten().collect();
    support::run(&Arguments::from_args(), tests)
}
