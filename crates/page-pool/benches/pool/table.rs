//! Interleaved rounds and what is printed of them.

use std::fmt;

use page_pool::bench::Path;

/// The samples of all paths, in ns per operation, round by round.
pub(crate) struct Table {
    title: &'static str,
    rows: Vec<(&'static str, Vec<f64>)>,
}

impl Table {
    /// Runs the paths and prints them.
    pub(crate) fn measure(title: &'static str, mut paths: Vec<Path<'_>>, rounds: usize, operations: u64) -> Self {
        let mut rows: Vec<_> = paths.iter().map(|path| (path.name, Vec::with_capacity(rounds))).collect();
        for path in &mut paths {
            path.run(operations);
        }
        for round in 0..rounds {
            for i in 0..paths.len() {
                let path = (round + i) % paths.len();
                let (done, time) = paths[path].run(operations);
                rows[path].1.push(time.as_nanos() as f64 / done as f64);
            }
        }
        let table = Self { title, rows };
        println!("{table}");
        table
    }

    /// Samples of the path of this name, ns.
    fn samples(&self, name: &str) -> Option<&[f64]> {
        self.rows.iter().find_map(|(row, samples)| (*row == name).then_some(samples.as_slice()))
    }

    /// Median, ns.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        self.samples(name).map(|samples| percentile(samples, 50))
    }

    /// 10th percentile, ns.
    pub(crate) fn p10(&self, name: &str) -> Option<f64> {
        self.samples(name).map(|samples| percentile(samples, 10))
    }

    /// Median of the ratios `name / base` within each round.
    pub(crate) fn ratio(&self, name: &str, base: &str) -> Option<f64> {
        let ratios: Vec<_> = self.samples(name)?.iter().zip(self.samples(base)?).map(|(a, b)| a / b).collect();
        Some(percentile(&ratios, 50))
    }
}

fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * percent / 100]
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.rows[0].0;
        writeln!(f, "{}\n{:44} {:>9} {:>9} {:>7}", self.title, "", "median", "p10", "ratio")?;
        for (name, samples) in &self.rows {
            let (median, p10, ratio) = (percentile(samples, 50), percentile(samples, 10), self.ratio(name, base));
            writeln!(f, "{name:44} {median:9.2} {p10:9.2} {:7.2}", ratio.unwrap_or(f64::NAN))?;
        }
        Ok(())
    }
}
