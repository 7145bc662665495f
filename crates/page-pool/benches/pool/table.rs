//! Interleaved rounds and what is printed of them.

use std::fmt;

/// One thing to measure.
pub(crate) struct Case<'a> {
    name: String,
    /// Runs it once; ns per operation.
    round: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Case<'a> {
    /// Timed by the thread's CPU time.
    pub(crate) fn cpu(name: String, operations: u64, mut run: impl FnMut(u64) + 'a) -> Self {
        Self::new(name, move || {
            let start = thread_cpu_ns();
            run(operations);
            (thread_cpu_ns() - start) as f64 / operations as f64
        })
    }

    /// Timed by itself.
    pub(crate) fn new(name: String, round: impl FnMut() -> f64 + 'a) -> Self {
        Self { name, round: Box::new(round) }
    }
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` only. It can't fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The samples of all cases, round by round.
pub(crate) struct Table {
    title: &'static str,
    rows: Vec<(String, Vec<f64>)>,
}

impl Table {
    /// Warms every case up once, runs the rounds and prints the table.
    pub(crate) fn print(title: &'static str, mut cases: Vec<Case<'_>>, rounds: usize) -> Self {
        let mut rows: Vec<_> = cases.iter().map(|case| (case.name.clone(), Vec::with_capacity(rounds))).collect();
        for case in &mut cases {
            (case.round)();
        }
        for round in 0..rounds {
            for i in 0..cases.len() {
                let case = (round + i) % cases.len();
                rows[case].1.push((cases[case].round)());
            }
        }
        let table = Self { title, rows };
        println!("{table}");
        table
    }

    /// Samples of the case of this name, ns.
    fn samples(&self, name: &str) -> &[f64] {
        let row = self.rows.iter().find(|(row, _)| row == name);
        &row.unwrap_or_else(|| panic!("no case {name:?} in {:?}", self.title)).1
    }

    /// Median, ns.
    pub(crate) fn median(&self, name: &str) -> f64 {
        percentile(self.samples(name), 50)
    }

    /// 10th percentile, ns.
    pub(crate) fn p10(&self, name: &str) -> f64 {
        percentile(self.samples(name), 10)
    }

    /// Median of the ratios `name / base` within each round.
    pub(crate) fn ratio(&self, name: &str, base: &str) -> f64 {
        let ratios: Vec<_> = self.samples(name).iter().zip(self.samples(base)).map(|(a, b)| a / b).collect();
        percentile(&ratios, 50)
    }
}

fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * percent / 100]
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = &self.rows[0].0;
        writeln!(f, "{}\n{:44} {:>9} {:>9} {:>7}", self.title, "", "median", "p10", "ratio")?;
        for (name, _) in &self.rows {
            let (median, p10, ratio) = (self.median(name), self.p10(name), self.ratio(name, base));
            writeln!(f, "{name:44} {median:9.2} {p10:9.2} {ratio:7.2}")?;
        }
        Ok(())
    }
}
