//! The command line of xdplab.
fn main() {}
