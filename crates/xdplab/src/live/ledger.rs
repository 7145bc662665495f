//! Where packets went: each stage of their way as an account that must balance.

use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

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
}
