//! What a test needs of the machine, and what becomes of it otherwise.

use std::env;
use std::thread;

use libtest_mimic::{Failed, Trial};
use xsk::{Config, Socket, TxMetadata, Umem, UmemConfig};

use crate::support::Lab;

/// A need beyond root and AF_XDP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    MultiBuffer,
    TxMetadata,
}

/// Why a test cannot run.
#[derive(Clone)]
enum Lack {
    /// Missing from this process or machine setup: a failure where kernel tests are required.
    Setup(String),
    /// Missing from the kernel.
    Kernel(String),
}

pub(crate) struct Tests {
    base: Option<Lack>,
    multi_buffer: Option<Lack>,
    tx_metadata: Option<Lack>,
    required: bool,
    trials: Vec<Trial>,
}

impl Tests {
    pub(crate) fn new() -> Self {
        let base = thread::spawn(missing_base).join().unwrap();
        let lacks = |probe: fn() -> Option<Lack>| base.clone().or_else(|| thread::spawn(probe).join().unwrap());
        Self {
            multi_buffer: lacks(missing_multi_buffer),
            tx_metadata: lacks(missing_tx_metadata),
            base,
            required: env::var_os("XDPLAB_REQUIRE_KERNEL_TESTS").is_some_and(|value| value == "1"),
            trials: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, name: &str, need: Need, test: fn()) {
        let lack = match need {
            Need::Nothing => &self.base,
            Need::MultiBuffer => &self.multi_buffer,
            Need::TxMetadata => &self.tx_metadata,
        };
        let trial = match lack {
            None => Trial::test(name, move || {
                test();
                Ok(())
            }),
            Some(Lack::Setup(reason)) if self.required => {
                let reason = reason.clone();
                Trial::test(name, move || Err(Failed::from(reason)))
            }
            Some(Lack::Setup(reason) | Lack::Kernel(reason)) => {
                Trial::test(name, || Ok(())).with_kind(reason).with_ignored_flag(true)
            }
        };
        self.trials.push(trial);
    }

    pub(crate) fn into_trials(self) -> Vec<Trial> {
        self.trials
    }
}

fn missing_base() -> Option<Lack> {
    if !nix::unistd::geteuid().is_root() {
        return Some(Lack::Setup("needs root".into()));
    }
    if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
        return Some(Lack::Setup(format!("no network namespace: {error}")));
    }
    // Queue 0 of the loopback interface of the new namespace takes a socket in copy mode.
    match xsk::queue_is_free(1, 0) {
        Ok(_) => None,
        Err(error) if error.errno() == Some(libc::EAFNOSUPPORT) => Some(Lack::Kernel("kernel without AF_XDP".into())),
        Err(error) => Some(Lack::Setup(error.to_string())),
    }
}

fn missing_multi_buffer() -> Option<Lack> {
    let lab = Lab::new(1, 1500);
    let umem = Umem::new(UmemConfig { frames: 2, ..UmemConfig::default() }).unwrap();
    let config = Config { multi_buffer: true, ..Config::default() };
    Socket::bind(&umem, lab.near, 0, &config).err().map(|error| Lack::Kernel(error.to_string()))
}

fn missing_tx_metadata() -> Option<Lack> {
    let lab = Lab::new(1, 1500);
    let layout = UmemConfig { frames: 2, tx_metadata: TxMetadata::Enabled, ..UmemConfig::default() };
    let umem = Umem::new(layout).unwrap();
    Socket::bind(&umem, lab.near, 0, &Config::default()).err().map(|error| Lack::Kernel(error.to_string()))
}
