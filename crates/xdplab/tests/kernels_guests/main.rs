//! `xdplab kernels` with a QEMU of our own: a script that takes QEMU's arguments and lets every guest do what is planned for its
//! kernel. So whatever a guest can do is seen from the command line, with known answers.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod build;
mod counts;
mod exec;
mod faults;
mod lab;
