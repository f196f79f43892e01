//! Progress of a sweep: a bar on a terminal, nothing otherwise.

use indicatif::{ProgressBar, ProgressStyle};
use layouts::Progress;
use std::time::Duration;

pub struct SweepProgress {
    bar: ProgressBar,
    shown: u64,
    fresh: u64,
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
        SweepProgress { bar, shown: 0, fresh: 0 }
    }

    pub fn told(&mut self, program: &str, progress: &Progress) {
        self.shown += 1;
        self.fresh += u64::from(progress.fresh);
        self.bar.set_position(self.bar.elapsed().as_secs());
        let best = progress.best_ms.map(|ms| format!("best {} ms", bench::unit::significant(ms))).unwrap_or_default();
        let pace = self.fresh as f64 / self.bar.elapsed().as_secs_f64().max(1.0);
        let counted = format!("{} configurations, {pace:.1} new in a second", self.shown);
        self.bar.set_message(format!("{program}: {} {best} ({counted})", progress.kernel));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
