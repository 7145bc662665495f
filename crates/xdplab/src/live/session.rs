//! The loop of a live command: wait, read, tell, until something ends it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::counters::Counters;
use super::event::EndedBy;
use super::interval::{Interval, WallClock};
use crate::device::Counts;
use crate::error::{Error, Result};

/// How often a command with `--count` looks whether it has been reached.
const COUNT_POLL: Duration = Duration::from_millis(10);

/// When to tell, and when to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time from one line to the next.
    pub interval: Duration,
    /// Ends after this time.
    pub duration: Option<Duration>,
    /// Ends once at least this many packets were received.
    pub count: Option<u64>,
}

/// Where counters come from.
pub trait Source {
    /// Reads all of them.
    ///
    /// # Errors
    /// A map can't be read.
    fn read(&mut self) -> Result<Counters>;

    /// Succeeds as long as there is something to count.
    ///
    /// # Errors
    /// Why there is nothing any more, e.g. the interface is gone.
    fn check(&mut self) -> Result<()>;

    /// What has ended it by itself, such as that all packets have been sent.
    ///
    /// # Errors
    /// That can't be read.
    fn ended(&mut self) -> Result<Option<EndedBy>> {
        Ok(None)
    }

    /// Succeeds if what an interval counted makes sense.
    ///
    /// # Errors
    /// Why it does not, which ends the command.
    fn judge(&mut self, interval: &Interval) -> Result<()> {
        let _ = interval;
        Ok(())
    }

    /// Stops what is counted, before the last reading.
    ///
    /// # Errors
    /// What had gone wrong in it.
    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What ended a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The time has come.
    Deadline,
    /// The user wants to see more or less (SIGQUIT).
    Toggle,
    /// A signal that ends the command, by its name.
    End(&'static str),
}

/// Time and signals.
pub trait Clock {
    /// The monotonic time.
    fn now(&self) -> Instant;

    /// Waits until `deadline` or a signal.
    ///
    /// # Errors
    /// The wait failed.
    fn wait(&mut self, deadline: Instant) -> Result<Woken>;
}

/// Something to tell.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// An interval is over, and another follows.
    Interval(&'a Interval),
    /// The last interval is over, before its time (it is a partial one then) or at it.
    Last(&'a Interval),
    /// The user toggled the mode.
    Toggle,
    /// A signal came that ends the command; its last interval follows.
    Signal,
}

/// Who is told.
pub trait View {
    /// Tells; `Break` if nobody listens any more.
    ///
    /// # Errors
    /// It could not be told.
    fn tell(&mut self, told: Told<'_>) -> Result<ControlFlow<()>>;
}

/// A live command from its first reading on.
#[derive(Debug)]
pub struct Session {
    limits: Limits,
    wall: WallClock,
    first: Counters,
    shown: Counters,
    /// When the interval is over that goes on.
    due: Instant,
}

impl Session {
    /// Begins with the first reading: all that is told from now on is the difference to it.
    ///
    /// # Errors
    /// The interval is zero, or lies beyond the end of time.
    pub fn begin(first: Counters, limits: Limits) -> Result<Self> {
        let due = first.at.checked_add(limits.interval).filter(|_| !limits.interval.is_zero());
        let due = due.ok_or_else(|| Error::usage("tell what is counted", "the interval is zero or too long"))?;
        Ok(Self { limits, wall: WallClock::start(first.at), shown: first.clone(), first, due })
    }

    /// Wall clock of the first reading.
    #[must_use]
    pub fn started(&self) -> String {
        self.wall.at(self.first.at)
    }

    /// Nothing but the total so far, for a command that ends at once.
    ///
    /// # Errors
    /// The counters can't be read.
    pub fn total_now(&self, source: &mut dyn Source) -> Result<Interval> {
        Ok(self.total(&source.read()?))
    }

    /// Runs until something ends it, and returns the total and what ended it. The last interval is told whatever ended
    /// it, as a partial one unless its time was over.
    ///
    /// # Errors
    /// The counters can't be read, the wait failed or nothing can be told: then there is no total to trust.
    pub fn run(
        mut self,
        source: &mut dyn Source,
        clock: &mut dyn Clock,
        view: &mut dyn View,
    ) -> Result<(Interval, EndedBy)> {
        loop {
            let mut ended = match clock.wait(self.next_wake(clock.now()))? {
                Woken::Deadline => None,
                Woken::Toggle if view.tell(Told::Toggle)?.is_continue() => continue,
                Woken::End(signal) if view.tell(Told::Signal)?.is_continue() => Some(EndedBy::Signal(signal.into())),
                Woken::Toggle | Woken::End(_) => Some(EndedBy::OutputClosed),
            };
            let mut now = source.read()?;
            let partial = now.at < self.due;
            let failed = |error: Error| EndedBy::Failed(error.to_string());
            ended = ended.or_else(|| self.reached(&now));
            if ended.is_none() {
                ended = source.ended()?;
            }
            ended = ended.or_else(|| source.check().err().map(failed));
            if ended.is_some() {
                let stopped = source.stop();
                ended = stopped.err().map(failed).or(ended);
                now = source.read()?;
            }
            if ended.is_some() || !partial {
                let interval = self.next_interval(&now, partial);
                let told = if ended.is_some() { Told::Last(&interval) } else { Told::Interval(&interval) };
                if interval.period_s > 0.0 && view.tell(told)?.is_break() {
                    ended = ended.or(Some(EndedBy::OutputClosed));
                }
                ended = ended.or_else(|| source.judge(&interval).err().map(failed));
            }
            if let Some(ended) = ended {
                return Ok((self.total(&now), ended));
            }
        }
    }

    fn next_wake(&self, now: Instant) -> Instant {
        let end = self.limits.duration.and_then(|duration| self.first.at.checked_add(duration));
        let count = self.limits.count.map(|_| now + COUNT_POLL);
        [Some(self.due), end, count].into_iter().flatten().min().unwrap_or(self.due)
    }

    fn reached(&self, now: &Counters) -> Option<EndedBy> {
        if self.limits.duration.is_some_and(|duration| now.at.saturating_duration_since(self.first.at) >= duration) {
            return Some(EndedBy::Duration);
        }
        let received = |counters: &Counters| {
            let rows = counters.received.iter().flat_map(|group| group.rows.values());
            rows.map(|Counts { packets, .. }| packets).sum::<u64>()
        };
        let count = self.limits.count?;
        (received(now) - received(&self.first) >= count).then_some(EndedBy::Count)
    }

    /// The interval that ends with `now`; the next begins, on the grid of intervals from the first reading on.
    fn next_interval(&mut self, now: &Counters, partial: bool) -> Interval {
        let interval = Interval::between(&self.shown, now, partial, &self.wall);
        self.shown = now.clone();
        while self.due <= now.at {
            self.due += self.limits.interval;
        }
        interval
    }

    fn total(&self, now: &Counters) -> Interval {
        Interval::between(&self.first, now, false, &self.wall)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::interval::tests::counters;
    use super::*;

    /// A device that receives at a steady rate, a clock whose waits end late and cost no time, and a list of what was told.
    struct Bench {
        now: Instant,
        begin: Instant,
        pps: f64,
        late: Duration,
        /// What ends a wait before its deadline, at seconds from the beginning.
        signals: Vec<(f64, Woken)>,
        gone_after: Option<f64>,
    }

    #[derive(Default)]
    struct Told {
        intervals: Vec<Interval>,
        toggles: usize,
        last: Option<usize>,
        closes_after: Option<usize>,
    }

    impl Bench {
        fn new(pps: f64, signals: &[(f64, Woken)]) -> Self {
            let now = Instant::now();
            Self { now, begin: now, pps, late: Duration::ZERO, signals: signals.to_vec(), gone_after: None }
        }

        fn seconds(&self) -> f64 {
            (self.now - self.begin).as_secs_f64()
        }

        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a planted number of packets")]
        fn counters(&self) -> Counters {
            counters(self.begin, self.seconds(), &[(0, 0, 1_000 + (self.seconds() * self.pps) as u64, 0)], &[])
        }

        fn run(self, limits: Limits) -> (Told, Interval, EndedBy) {
            self.run_with(limits, Told::default())
        }

        fn run_with(self, limits: Limits, mut told: Told) -> (Told, Interval, EndedBy) {
            let bench = std::cell::RefCell::new(self);
            let session = Session::begin(bench.borrow().counters(), limits).unwrap();
            let (total, ended_by) = session.run(&mut &bench, &mut &bench, &mut told).unwrap();
            (told, total, ended_by)
        }
    }

    impl Source for &std::cell::RefCell<Bench> {
        fn read(&mut self) -> Result<Counters> {
            Ok(self.borrow().counters())
        }

        fn check(&mut self) -> Result<()> {
            let bench = self.borrow();
            match bench.gone_after {
                Some(seconds) if bench.seconds() > seconds => {
                    Err(Error::invalid("count packets of dut0", "it is gone"))
                }
                _ => Ok(()),
            }
        }
    }

    impl Clock for &std::cell::RefCell<Bench> {
        fn now(&self) -> Instant {
            self.borrow().now
        }

        fn wait(&mut self, deadline: Instant) -> Result<Woken> {
            let mut bench = self.borrow_mut();
            if let Some((seconds, woken)) = bench.signals.first().cloned() {
                let at = bench.begin + Duration::from_secs_f64(seconds);
                if at < deadline {
                    bench.signals.remove(0);
                    bench.now = bench.now.max(at);
                    return Ok(woken);
                }
            }
            bench.now = bench.now.max(deadline) + bench.late;
            Ok(Woken::Deadline)
        }
    }

    impl View for Told {
        fn tell(&mut self, told: super::Told<'_>) -> Result<ControlFlow<()>> {
            match told {
                super::Told::Interval(interval) => self.intervals.push(interval.clone()),
                super::Told::Last(interval) => {
                    self.last = Some(self.intervals.len());
                    self.intervals.push(interval.clone());
                }
                super::Told::Toggle => self.toggles += 1,
                super::Told::Signal => {}
            }
            Ok(match self.closes_after {
                Some(lines) if self.intervals.len() >= lines => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        }
    }

    fn limits(interval: f64) -> Limits {
        Limits { interval: Duration::from_secs_f64(interval), duration: None, count: None }
    }

    fn packets(interval: &Interval) -> u64 {
        interval.received.as_ref().unwrap().packets
    }

    #[test]
    fn the_rate_does_not_depend_on_the_interval_and_the_total_is_the_difference_of_the_counters() {
        for seconds in [0.5, 1.0, 2.0, 7.0] {
            let limits = Limits { duration: Some(Duration::from_secs(14)), ..limits(seconds) };
            let (told, total, ended_by) = Bench::new(1e6, &[]).run(limits);
            assert_eq!(ended_by, EndedBy::Duration);
            assert_eq!(packets(&total), 14_000_000, "and not the 1,000 that were there before");
            assert_eq!(told.intervals.len() as f64, 14.0 / seconds);
            assert_eq!(
                told.last,
                Some(told.intervals.len() - 1),
                "the last is told as such although its time was over"
            );
            for interval in &told.intervals {
                assert_eq!(interval.received.as_ref().unwrap().pps.unwrap().0.round(), 1e6);
                assert!(!interval.partial);
            }
        }
    }

    proptest! {
        #[test]
        fn rate_times_real_period_adds_up_to_the_total(
            interval in prop::sample::select(vec![0.5, 1.0, 2.0, 7.0]),
            pps in 1.0..2e7f64,
            late_ms in 0u64..900,
            ends in 0.001..40.0f64,
        ) {
            let mut bench = Bench::new(pps, &[(ends, Woken::End("SIGINT"))]);
            bench.late = Duration::from_millis(late_ms);
            let (told, total, ended_by) = bench.run(limits(interval));
            prop_assert_eq!(ended_by, EndedBy::Signal("SIGINT".into()));
            let received = told.intervals.iter().map(|interval| interval.received.as_ref().unwrap());
            let sum: u64 = received.clone().map(|received| received.packets).sum();
            prop_assert_eq!(sum, packets(&total));
            let by_rate: f64 = received.map(|received| received.pps.unwrap().0 * received.period_s).sum();
            prop_assert!((by_rate - sum as f64).abs() < 1e-3 * (1.0 + sum as f64 / 1e9));
            let whole: f64 = told.intervals.iter().map(|interval| interval.period_s).sum();
            prop_assert!((whole - total.period_s).abs() < 1e-6);
        }
    }

    #[test]
    fn intervals_stay_on_their_grid_and_missed_ones_are_not_made_up_for() {
        let mut bench = Bench::new(1e6, &[]);
        bench.late = Duration::from_millis(2_400);
        let limits = Limits { duration: Some(Duration::from_secs(9)), ..limits(1.0) };
        let (told, total, _) = bench.run(limits);
        let periods: Vec<f64> = told.intervals.iter().map(|interval| interval.period_s).collect();
        // Due at 1, told at 3.4; due next at 4, told at 6.4; due next at 7, told at 9.4, which is the end.
        assert_eq!(periods, [3.4, 3.0, 3.0]);
        assert_eq!(packets(&total), 9_400_000);
    }

    #[test]
    fn the_interval_cut_short_by_a_signal_is_told_as_partial() {
        for signal in ["SIGINT", "SIGTERM", "SIGHUP"] {
            let (told, total, ended_by) = Bench::new(1_000.0, &[(2.5, Woken::End(signal))]).run(limits(1.0));
            assert_eq!(ended_by, EndedBy::Signal(signal.into()));
            let partial: Vec<bool> = told.intervals.iter().map(|interval| interval.partial).collect();
            assert_eq!(partial, [false, false, true]);
            assert_eq!((told.intervals[2].period_s, packets(&told.intervals[2])), (0.5, 500));
            assert_eq!(packets(&total), 2_500);
        }
    }

    #[test]
    fn toggling_neither_ends_nor_cuts_an_interval() {
        let signals = [(0.5, Woken::Toggle), (1.5, Woken::Toggle), (2.0, Woken::End("SIGINT"))];
        let (told, ..) = Bench::new(1_000.0, &signals).run(limits(1.0));
        assert_eq!(told.toggles, 2);
        let periods: Vec<f64> = told.intervals.iter().map(|interval| interval.period_s).collect();
        assert_eq!(periods, [1.0, 1.0]);
    }

    #[test]
    fn a_count_ends_at_least_at_it_and_soon_after() {
        let limits = Limits { count: Some(1_234_567), ..limits(1.0) };
        let (told, total, ended_by) = Bench::new(1e6, &[]).run(limits);
        assert_eq!(ended_by, EndedBy::Count);
        assert!((1_234_567..1_254_567).contains(&packets(&total)), "{}", packets(&total));
        assert!(told.intervals[1].partial);
    }

    #[test]
    fn it_ends_when_the_interface_is_gone_or_nobody_reads() {
        let mut bench = Bench::new(1e6, &[]);
        bench.gone_after = Some(1.5);
        let (told, total, ended_by) = bench.run(limits(1.0));
        assert_eq!(ended_by, EndedBy::Failed("can't count packets of dut0: it is gone".into()));
        assert_eq!((told.intervals.len(), packets(&total)), (2, 2_000_000));
        let closed = Told { closes_after: Some(3), ..Told::default() };
        let (told, _, ended_by) = Bench::new(1e6, &[]).run_with(limits(1.0), closed);
        assert_eq!((told.intervals.len(), ended_by), (3, EndedBy::OutputClosed));
    }

    #[test]
    fn an_interval_of_no_time_or_of_too_much_is_refused() {
        let first = || counters(Instant::now(), 0.0, &[], &[]);
        for interval in [Duration::ZERO, Duration::MAX] {
            assert!(Session::begin(first(), Limits { interval, duration: None, count: None }).is_err());
        }
        let forever = Limits { duration: Some(Duration::MAX), ..limits(1.0) };
        assert!(
            Session::begin(first(), forever).unwrap().next_wake(Instant::now())
                <= Instant::now() + Duration::from_secs(1)
        );
    }
}
