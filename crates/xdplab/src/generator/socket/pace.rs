//! Sending no faster than asked: what is due is told from the start on, so that a late wakeup does not lower the rate.

use std::thread;
use std::time::{Duration, Instant};

/// Shorter waits are spent in a loop, since a sleeping thread wakes up later than that.
const SHORTEST_SLEEP: Duration = Duration::from_micros(80);
/// The longest sleep, after which the caller looks whether to end.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// How many units (bytes, datagrams) are due.
#[derive(Debug)]
pub(super) struct Pacer {
    begin: Instant,
    per_second: f64,
}

impl Pacer {
    pub(super) fn new(begin: Instant, per_second: f64) -> Self {
        Self { begin, per_second }
    }

    /// Units due at `now` of which `sent` are sent: at least one is due at the very beginning.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of units from 0 up")]
    fn due(&self, now: Instant, sent: u64) -> u64 {
        let elapsed = now.saturating_duration_since(self.begin).as_secs_f64();
        (1 + (elapsed * self.per_second) as u64).saturating_sub(sent)
    }

    /// When `units` of them are due.
    #[expect(clippy::cast_precision_loss, reason = "a moment among those of a run")]
    fn due_at(&self, units: u64) -> Instant {
        let seconds = units.saturating_sub(1) as f64 / self.per_second;
        Duration::try_from_secs_f64(seconds).ok().and_then(|wait| self.begin.checked_add(wait)).unwrap_or(self.begin)
    }

    /// Waits until `units` more than `sent` are due, but no longer than a short while, and returns how many are due then.
    pub(super) fn wait(&self, sent: u64, units: u64) -> u64 {
        let at = self.due_at(sent.saturating_add(units));
        let wait = at.saturating_duration_since(Instant::now());
        if wait >= SHORTEST_SLEEP {
            thread::sleep(wait.min(LONGEST_SLEEP));
        } else {
            while Instant::now() < at {
                std::hint::spin_loop();
            }
        }
        self.due(Instant::now(), sent)
    }

    /// How many units to send together: those of a millisecond, from 1 to `most`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limited by what follows")]
    pub(super) fn together(&self, most: u64) -> u64 {
        ((self.per_second / 1000.0) as u64).clamp(1, most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_follows_the_clock_and_not_what_was_sent() {
        let begin = Instant::now();
        let pacer = Pacer::new(begin, 1000.0);
        let after = |ms| begin + Duration::from_millis(ms);
        assert_eq!([0, 1, 500, 2000].map(|ms| pacer.due(after(ms), 0)), [1, 2, 501, 2001]);
        assert_eq!(pacer.due(after(500), 400), 101, "what is late is made up for");
        assert_eq!(pacer.due(after(500), 600), 0);
        assert_eq!(pacer.due_at(501), after(500));
    }

    #[test]
    fn the_achieved_rate_is_the_rate_asked_for() {
        for (rate, most) in [(500.0, 64), (200_000.0, 64)] {
            let begin = Instant::now();
            let pacer = Pacer::new(begin, rate);
            let mut sent = 0;
            while begin.elapsed() < Duration::from_millis(100) {
                let due = pacer.wait(sent, pacer.together(most));
                sent += due.min(most);
            }
            let most = 1.0 + begin.elapsed().as_secs_f64() * rate;
            assert!(sent as f64 <= most, "{sent} of {most}");
            assert!(sent as f64 > 0.3 * most, "{sent} of {most}");
        }
    }

    #[test]
    fn a_burst_is_a_millisecond_s_worth_within_its_bounds() {
        let together = |rate| Pacer::new(Instant::now(), rate).together(64);
        assert_eq!([0.5, 999.0, 10_000.0, 1e9].map(together), [1, 1, 10, 64]);
    }
}
