//! xdplab: a laboratory for the Linux XDP data path.
//!
//! `docs/architecture.md` tells the run stage by stage and which module may know which.

pub mod across;
pub mod bpf;
pub mod calibrate;
pub mod cli;
pub mod device;
pub mod error;
pub mod explain;
pub mod generator;
pub mod guard;
pub mod help;
pub mod host;
pub mod import;
pub mod kernels;
pub mod live;
pub mod netlink;
pub mod observe;
pub mod observed;
pub mod packet;
pub mod pool;
pub mod published;

pub mod rates;
pub mod reading;
pub mod record;
pub mod reference;
pub mod remote;
pub mod report;
pub mod rerun;
pub mod rig;
pub mod run;
pub mod sample;
pub mod scenario;
pub mod settings;
pub mod stats;
pub mod stream;
pub mod sys;
pub mod testrun;
pub mod toml_file;
pub mod topology;
pub mod units;
pub mod verdict;

pub use error::{Error, ErrorKind, Result};
