//! What a test needs of the machine, and what becomes of it otherwise.

use std::fs::{self, File};
use std::{env, io, thread};

use libtest_mimic::{Completion, Failed, Trial};
use xsk::{Config, Socket, TxMetadata, Umem, UmemConfig};

use crate::support::{Lab, netlink};

/// A need beyond root and AF_XDP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    MultiBuffer,
    TxMetadata,
    HugePages,
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
    huge_pages: Option<Lack>,
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
            huge_pages: lacks(missing_huge_pages),
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
            Need::HugePages => &self.huge_pages,
        };
        let trial = match lack.clone() {
            None => Trial::test(name, move || {
                test();
                Ok(())
            }),
            Some(Lack::Setup(reason)) if self.required => Trial::test(name, || Err(Failed::from(reason))),
            Some(Lack::Setup(reason) | Lack::Kernel(reason)) => {
                Trial::ignorable_test(name, || Ok(Completion::ignored_with(reason)))
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
    if let Err(error) = netlink::add_veth("near", "far", 1, 1500) {
        let lacks_veth = error.raw_os_error() == Some(libc::EOPNOTSUPP);
        return Some(if lacks_veth {
            Lack::Kernel("kernel without veth".into())
        } else {
            Lack::Setup(error.to_string())
        });
    }
    // Queue 0 of the loopback interface of the new namespace takes a socket in copy mode.
    lack(xsk::queue_is_free(1, 0), libc::EAFNOSUPPORT)
}

/// What is missing, if anything; `unknown` is the errno by which the kernel says that it does not know the feature.
fn lack<T>(result: xsk::Result<T>, unknown: i32) -> Option<Lack> {
    let error = result.err()?;
    let reason = error.to_string();
    Some(if error.errno() == Some(unknown) { Lack::Kernel(reason) } else { Lack::Setup(reason) })
}

fn missing_multi_buffer() -> Option<Lack> {
    let lab = Lab::new(1, 1500);
    let umem = Umem::new(UmemConfig { frames: 2, ..UmemConfig::default() }).unwrap();
    let config = Config { multi_buffer: true, ..Config::default() };
    lack(Socket::bind(&umem, lab.near, 0, &config), libc::EINVAL)
}

fn missing_tx_metadata() -> Option<Lack> {
    let lab = Lab::new(1, 1500);
    let layout = UmemConfig { frames: 2, tx_metadata: TxMetadata::Enabled, ..UmemConfig::default() };
    let umem = Umem::new(layout).unwrap();
    lack(Socket::bind(&umem, lab.near, 0, &Config::default()), libc::EINVAL)
}

fn missing_huge_pages() -> Option<Lack> {
    match HugePages::set_aside(4) {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Lack::Kernel("kernel without huge pages".into())),
        Err(error) => Some(Lack::Setup(format!("no huge pages: {error}"))),
    }
}

/// Huge pages of 2 MiB set aside for a test, and given back after it.
pub(crate) struct HugePages {
    before: String,
    // Locked, as the count is the machine's: one test at a time, also of those in other processes.
    _lock: File,
}

impl HugePages {
    const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    pub(crate) fn set_aside(count: u32) -> io::Result<Self> {
        let lock = File::open(Self::FILE)?;
        lock.lock()?;
        let before = fs::read_to_string(Self::FILE)?;
        let read = |text: &str| text.trim().parse::<u32>().map_err(io::Error::other);
        let wanted = read(&before)? + count;
        let pages = Self { before, _lock: lock };
        fs::write(Self::FILE, wanted.to_string())?;
        if read(&fs::read_to_string(Self::FILE)?)? < wanted {
            return Err(io::Error::other("memory too fragmented"));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        fs::write(Self::FILE, &self.before).unwrap();
    }
}
