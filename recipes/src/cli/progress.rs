//! Progress of a sweep, and of a check: a bar on a terminal, lines in a log.

use super::out::errln;
use crate::pipeline::check::each_kernel;
use crate::pipeline::measure::sweep::SweepEvent;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Seconds between two lines of a log.
const PAUSE: u64 = 15;
/// Seconds until the first line.
const FIRST: u64 = 4;

/// The largest part of a bar that is shown while work goes on, even if it takes longer than expected.
const ALMOST: f64 = 0.99;

/// When a command began, and its expected duration, including checks and timing.
#[derive(Clone, Copy)]
pub struct RunClock {
    pub began: Instant,
    pub expected: Option<Duration>,
}

impl RunClock {
    /// The position of the bar, in tenths of a second.
    fn position(&self) -> u64 {
        let most = self.expected.map_or(f64::INFINITY, |all| ALMOST * tenths(all));
        tenths(self.began.elapsed()).min(most) as u64
    }

    fn bar(&self) -> ProgressBar {
        // indicatif draws nothing when standard error is no terminal.
        let bar = match self.expected {
            Some(all) => ProgressBar::new(tenths(all) as u64),
            None => ProgressBar::no_length(),
        };
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {msg}") {
            bar.set_style(style);
        }
        let bar = bar.with_elapsed(self.began.elapsed());
        bar.set_position(self.position());
        bar
    }
}

fn tenths(time: Duration) -> f64 {
    (10.0 * time.as_secs_f64()).max(10.0)
}

/// A stage of a command after measuring; its bar is cleared when it is dropped.
pub struct Stage(ProgressBar);

impl Stage {
    pub fn new(whole: &RunClock, doing: &str) -> Self {
        let bar = whole.bar();
        bar.set_message(doing.to_string());
        bar.enable_steady_tick(Duration::from_millis(200));
        Stage(bar)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub struct SweepProgress {
    whole: RunClock,
    bar: ProgressBar,
    shown: u64,
    fresh: u64,
    /// Seconds after which the next line of the log is due.
    due: u64,
}

impl SweepProgress {
    pub fn new(whole: RunClock) -> Self {
        SweepProgress { whole, bar: whole.bar(), shown: 0, fresh: 0, due: FIRST }
    }

    pub fn told(&mut self, told: SweepEvent) {
        let seconds = self.bar.elapsed().as_secs();
        self.bar.set_position(self.whole.position());
        let (program, progress) = match told {
            SweepEvent::Measured(program, progress) => (program, progress),
            SweepEvent::Planning(what) => {
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

/// Progress of comparing kernels with a reference: a log has a line for each, so that results stay known if the command is cut off.
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

    pub fn told(&self, progress: &each_kernel::KernelCheckProgress) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_only_in_the_end() {
        let began = Instant::now();
        let late =
            RunClock { began: began.checked_sub(Duration::from_secs(3600)).unwrap_or(began), expected: Some(Duration::from_secs(30)) };
        assert_eq!(late.position(), 297, "tenths of seconds of 300");
        assert!(RunClock { began, expected: Some(Duration::from_secs(30)) }.position() < 100);
    }
}
