//! Where each CPU spent its time, from `/proc/stat` (proc_stat(5)).

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::reading::Reading;

const STAT: &str = "/proc/stat";
/// user, nice, system, idle, iowait, irq, softirq, steal; guest time, which follows, is part of user.
const FIELDS: usize = 8;

/// The CPU time counters of every online CPU at one moment.
#[derive(Clone, Debug)]
pub struct CpuTimes {
    at: Instant,
    ticks: BTreeMap<u32, [u64; FIELDS]>,
}

/// How one CPU spent the time between two readings, as shares of the time the kernel accounted for: each 0 to 1, in sum
/// 1. The kernel counts in ticks (usually 10 ms), so over 200 ms a share is no finer than 0.05.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuShares {
    /// User space, niced or not, guests included.
    pub user: f64,
    /// Kernel, interrupts left out.
    pub system: f64,
    /// Idle, waiting for I/O included.
    pub idle: f64,
    /// Hard interrupts.
    pub irq: f64,
    /// Softirqs, where NAPI polls run unless they are threaded.
    pub softirq: f64,
    /// Taken by the hypervisor while this CPU had work (Linux guests only; 0 on bare metal).
    pub steal: f64,
}

impl CpuTimes {
    /// Reads the counters now.
    ///
    /// # Errors
    /// `/proc/stat` can't be read, or what was read is incomplete.
    pub fn read() -> Result<Self> {
        let at = Instant::now();
        let what = format!("read {STAT}");
        let text = fs::read_to_string(STAT).map_err(|error| Error::io(&what, "read", &error))?;
        let ticks = parse(&text).map_err(|why| Error::invalid(&what, why))?;
        Ok(Self { at, ticks })
    }

    /// The time from `earlier` to this reading, by the monotonic clock.
    #[must_use]
    pub fn period_since(&self, earlier: &Self) -> Duration {
        self.at.saturating_duration_since(earlier.at)
    }

    /// How every CPU that was online in either reading spent the time since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> BTreeMap<u32, Reading<CpuShares>> {
        let cpus = self.ticks.keys().chain(earlier.ticks.keys());
        cpus.map(|&cpu| (cpu, shares(earlier.ticks.get(&cpu), self.ticks.get(&cpu)))).collect()
    }
}

fn shares(before: Option<&[u64; FIELDS]>, after: Option<&[u64; FIELDS]>) -> Reading<CpuShares> {
    let (Some(before), Some(after)) = (before, after) else {
        return Reading::not_available("the CPU was offline at one of the two readings");
    };
    // idle and iowait may run backwards (proc_stat(5)).
    let ticks: [u64; FIELDS] = std::array::from_fn(|field| after[field].saturating_sub(before[field]));
    let total: u64 = ticks.iter().sum();
    if total == 0 {
        return Reading::not_available("less than a tick between the two readings");
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
    let share = |ticks: u64| ticks as f64 / total as f64;
    Reading::Known(CpuShares {
        user: share(user + nice),
        system: share(system),
        idle: share(idle + iowait),
        irq: share(irq),
        softirq: share(softirq),
        steal: share(steal),
    })
}

/// The counters of every `cpuN` line. A text cut short is refused: a number that lost its last digits looks like any.
fn parse(text: &str) -> Result<BTreeMap<u32, [u64; FIELDS]>, String> {
    if !text.ends_with('\n') {
        return Err("it ends within a line".into());
    }
    let mut cpus = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("cpu")).filter(|line| !line.starts_with(' ')) {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let cpu = numbers.next().and_then(|number| u32::try_from(number.ok()?).ok());
        let times: Option<Vec<u64>> = numbers.take(FIELDS).map(std::result::Result::ok).collect();
        let times: Option<[u64; FIELDS]> = times.and_then(|times| times.try_into().ok());
        let (Some(cpu), Some(times)) = (cpu, times) else {
            return Err(format!("unexpected line `cpu{line}`"));
        };
        cpus.insert(cpu, times);
    }
    if cpus.is_empty() { Err("it has no line for any CPU".into()) } else { Ok(cpus) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str) -> CpuTimes {
        CpuTimes { at: Instant::now(), ticks: parse(text).unwrap() }
    }

    fn why(reading: &Reading<CpuShares>) -> String {
        reading.clone().into_result().unwrap_err()
    }

    #[test]
    fn shares_are_the_difference_of_two_readings() {
        let earlier = times("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 50 1000 5 1 20 7 3 0\nintr 5\n");
        let later = times("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 110 20 80 1025 10 6 30 12 9 0\nintr 9\n");
        let shares = *later.since(&earlier)[&0].known().unwrap();
        let expected = CpuShares { user: 0.20, system: 0.30, idle: 0.30, irq: 0.05, softirq: 0.10, steal: 0.05 };
        assert_eq!(shares, expected);
    }

    #[test]
    fn a_counter_that_ran_backwards_counts_as_no_time() {
        let shares = times("cpu0 5 0 5 90 10 0 0 0\n").since(&times("cpu0 0 0 0 90 12 0 0 0\n"));
        assert_eq!(shares[&0].known().unwrap().idle, 0.0);
        assert_eq!(shares[&0].known().unwrap().user, 0.5);
    }

    #[test]
    fn a_cpu_that_went_offline_is_not_available_instead_of_idle() {
        let shares = times("cpu0 1 0 0 0 0 0 0 0\n").since(&times("cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n"));
        assert!(shares[&0].known().is_some());
        assert!(why(&shares[&1]).contains("offline"));
    }

    #[test]
    fn two_readings_within_one_tick_give_no_share() {
        let reading = times("cpu0 1 2 3 4 5 6 7 8\n");
        assert!(why(&reading.since(&reading)[&0]).contains("tick"));
    }

    #[test]
    fn a_text_cut_short_is_refused() {
        let whole = "cpu  4 4 4 4 4 4 4 4\ncpu0 11 22 33 44 55 66 77 88 0 0\ncpu1 11 22 33 44 55 66 77 88 0 0\n";
        assert_eq!(parse(whole).unwrap().len(), 2);
        for length in 0..whole.len() {
            let cut = &whole[..length];
            // At the end of a line a cut can't be told from a machine with fewer CPUs; `since` says so of the CPU.
            assert_eq!(parse(cut).is_ok(), cut.ends_with('\n') && cut.contains("cpu0"), "{cut:?}");
        }
        for bad in ["cpu0 1 2 3\n", "cpu0 1 2 3 4 5 6 7 x\n", "cpux 1 2 3 4 5 6 7 8\n"] {
            assert!(parse(bad).unwrap_err().contains("unexpected line"), "{bad}");
        }
    }

    #[test]
    fn this_machine_accounts_for_its_time() {
        let earlier = CpuTimes::read().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let later = CpuTimes::read().unwrap();
        assert!(later.period_since(&earlier) >= Duration::from_millis(50));
        for shares in later.since(&earlier).into_values().filter_map(|shares| shares.into_result().ok()) {
            let CpuShares { user, system, idle, irq, softirq, steal } = shares;
            let sum = user + system + idle + irq + softirq + steal;
            assert!((sum - 1.0).abs() < 1e-9, "{shares:?}");
        }
    }
}
