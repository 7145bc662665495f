//! Where packets went: each stage of their way as an account that must balance.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::reading::Reading;

/// Two counters that differ by less agree: others may send through the interface too.
const AGREE_WITHIN: (u64, f64) = (64, 0.001);
/// Where nothing is missing, and nothing has come for so long, accounts are final: what is too much is what others sent.
const STILL_FOR: Duration = Duration::from_millis(40);

/// Packets that came to a stage, and what became of them there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// What came, e.g. `received`.
    pub of: String,
    /// How many.
    pub packets: u64,
    /// What became of them.
    pub parts: Vec<Part>,
    /// `packets` less all parts: packets that nothing accounts for, or below zero those that were counted twice.
    pub residual: i64,
}

/// A part of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What became of the packets, e.g. `dropped`.
    pub to: String,
    /// How many.
    pub packets: u64,
}

impl Account {
    /// An account with its residual; parts without packets are left out, except the first.
    #[must_use]
    pub fn new<'a>(of: &str, packets: u64, parts: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let parts = parts.into_iter().enumerate().filter(|(index, (_, packets))| *index == 0 || *packets > 0);
        let parts: Vec<Part> = parts.map(|(_, (to, packets))| Part { to: to.into(), packets }).collect();
        let sum: i128 = parts.iter().map(|part| i128::from(part.packets)).sum();
        let residual = (i128::from(packets) - sum).clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        Self { of: of.into(), packets, parts, residual }
    }

    /// Whether the two counters that it compares agree.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
    pub(super) fn agrees(&self) -> bool {
        let (packets, share) = AGREE_WITHIN;
        self.residual.unsigned_abs() <= packets.max((self.packets as f64 * share) as u64)
    }
}

/// Reads accounts until nothing is on its way any more, but no longer than `limit`.
pub(super) fn settled(
    limit: Duration,
    mut read: impl FnMut() -> Result<Vec<Reading<Account>>>,
) -> Result<Vec<Reading<Account>>> {
    let mut accounts = read()?;
    let (deadline, mut still_since) = (Instant::now() + limit, Instant::now());
    loop {
        let all = |holds: fn(&Account) -> bool| accounts.iter().filter_map(Reading::known).all(holds);
        let is_final = all(|account| account.residual == 0)
            || still_since.elapsed() >= STILL_FOR && all(|account| account.residual <= 0 && account.agrees())
            || Instant::now() >= deadline;
        if is_final {
            return Ok(accounts);
        }
        thread::sleep(Duration::from_millis(2));
        let now = read()?;
        if now != accounts {
            (accounts, still_since) = (now, Instant::now());
        }
    }
}

/// `1,000 redirected = 990 queued + 10 queue full, residual 0`
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, packets, parts, residual } = self;
        let part = |part: &Part| format!("{} {}", HumanCount(part.packets), part.to);
        let parts: Vec<String> = parts.iter().map(part).collect();
        write!(f, "{} {of} = {}, residual {residual}", HumanCount(*packets), parts.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_is_too_much_is_the_residual() {
        let account = |packets| Account::new("received", packets, [("redirected", 60), ("dropped", 0), ("passed", 3)]);
        assert_eq!(account(63).residual, 0);
        assert_eq!((account(64).residual, account(60).residual), (1, -3));
        let names: Vec<_> = account(63).parts.into_iter().map(|part| part.to).collect();
        assert_eq!(names, ["redirected", "passed"]);
    }

    #[test]
    fn accounts_are_read_until_nothing_is_missing_or_the_time_is_over() {
        let read_until = |limit_ms, received: fn(u64) -> u64| {
            let (mut reads, begin) = (0, Instant::now());
            let accounts = settled(Duration::from_millis(limit_ms), || {
                reads += 1;
                Ok(vec![Reading::Known(Account::new("sent", 1_000, [("received", received(reads))]))])
            });
            (accounts.unwrap()[0].known().unwrap().residual, begin.elapsed())
        };
        let (residual, took) = read_until(60_000, |reads| reads.min(10) * 100);
        assert!(residual == 0 && took < Duration::from_secs(30), "{residual} {took:?}");
        let (residual, took) = read_until(60_000, |_| 1_003);
        assert!(residual == -3 && (STILL_FOR..Duration::from_secs(30)).contains(&took), "{residual} {took:?}");
        for received in [|_| 999, |_| 1_065] {
            let (residual, took) = read_until(100, received);
            assert!(residual != 0 && took >= Duration::from_millis(100), "{residual} {took:?}");
        }
    }
}
