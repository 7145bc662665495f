//! Developer tasks of the workspace.
fn main() {}
