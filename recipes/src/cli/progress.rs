//! Progress of a sweep, and of a check: a bar on a terminal, lines in a log.

use super::out::errln;
use crate::pipeline::beside;
use crate::pipeline::sweep::Told;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Seconds between two lines of a log.
const PAUSE: u64 = 15;
/// Seconds until the first.
const FIRST: u64 = 4;

pub struct SweepProgress {
    bar: ProgressBar,
    shown: u64,
    fresh: u64,
    /// Seconds after which a log is told next.
    due: u64,
}

impl SweepProgress {
    pub fn new(budget: Option<Duration>) -> Self {
        // indicatif draws nothing when standard error is no terminal.
        let bar = match budget {
            Some(budget) => ProgressBar::new(budget.as_secs().max(1)),
            None => ProgressBar::no_length(),
        };
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {msg}") {
            bar.set_style(style);
        }
        SweepProgress { bar, shown: 0, fresh: 0, due: FIRST }
    }

    pub fn told(&mut self, told: Told) {
        let seconds = self.bar.elapsed().as_secs();
        self.bar.set_position(seconds);
        let (program, progress) = match told {
            Told::Measured(program, progress) => (program, progress),
            Told::Thinking(what) => {
                if self.bar.is_hidden() {
                    errln!("{seconds} s: {what}");
                }
                return self.bar.set_message(what);
            }
        };
        self.shown += 1;
        self.fresh += u64::from(progress.fresh);
        let logged = self.bar.is_hidden() && seconds >= self.due;
        if self.bar.is_hidden() && !logged {
            return;
        }
        let best = progress.best_ms.map(|ms| format!("best {} ms", bench::unit::significant(ms))).unwrap_or_default();
        let pace = self.fresh as f64 / self.bar.elapsed().as_secs_f64().max(1.0);
        let counted = format!("{} configurations, {pace:.1} new in a second", self.shown);
        let message = format!("{program}: {} {best} ({counted})", progress.kernel);
        if logged {
            self.due = seconds + PAUSE;
            errln!("{seconds} s: {message}");
        }
        self.bar.set_message(message);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Kernels beside those of the cores: a log has a line for each, so that what was found stays known if time is up.
pub struct CheckProgress {
    bar: ProgressBar,
}

impl CheckProgress {
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos} of {len} kernels: {msg}") {
            bar.set_style(style);
        }
        CheckProgress { bar }
    }

    pub fn told(&self, progress: &beside::Progress) {
        let worst = progress.compared.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio));
        let message = worst.map_or_else(String::new, |w| format!("`{}` of `{}` at {:.3} of its tolerance", w.data, w.kernel, w.ratio));
        self.bar.set_length(progress.all as u64);
        self.bar.set_position(progress.done as u64);
        if self.bar.is_hidden() {
            errln!("{:.1} s, {} of {} kernels: {message}", self.bar.elapsed().as_secs_f64(), progress.done, progress.all);
        }
        self.bar.set_message(message);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
