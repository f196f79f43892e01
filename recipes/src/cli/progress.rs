//! Progress of a sweep: a bar on a terminal, a line now and then in a log.

use indicatif::{ProgressBar, ProgressStyle};
use layouts::Progress;
use std::time::Duration;

/// Seconds between two lines of a log.
const PAUSE: u64 = 15;

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
        SweepProgress { bar, shown: 0, fresh: 0, due: PAUSE }
    }

    pub fn told(&mut self, program: &str, progress: &Progress) {
        self.shown += 1;
        self.fresh += u64::from(progress.fresh);
        let seconds = self.bar.elapsed().as_secs();
        self.bar.set_position(seconds);
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
            eprintln!("{seconds} s: {message}");
        }
        self.bar.set_message(message);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
