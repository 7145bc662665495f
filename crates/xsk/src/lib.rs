//! AF_XDP sockets in pure Rust.
