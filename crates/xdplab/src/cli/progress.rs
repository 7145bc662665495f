//! The progress line: on a terminal only, and gone when the run is over.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::run::Progress;

/// A line on standard error that says what the run is doing.
pub(crate) struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// A line that is drawn only if standard output is a terminal.
    pub(crate) fn new() -> Self {
        let target =
            if std::io::stdout().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(ProgressStyle::default_spinner());
        Self(bar)
    }
}

impl Progress for ProgressLine {
    fn stage(&mut self, name: &str) {
        self.0.set_message(name.to_owned());
        self.0.tick();
    }

    fn sampling(&mut self, seconds: f64, of: f64, slices: usize) {
        self.0.set_message(format!("measuring: {seconds:.1} of {of:.0} s, {slices} slices"));
        self.0.tick();
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
