//! Progress of training: a bar on a terminal, lines in a log.

use super::super::out::errln;
use crate::train::data::Data;
use bench::unit::significant;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Seconds between two lines of a log.
const PAUSE: u64 = 5;

/// How fast steps are.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The median of all steps of this command.
    pub step_ms: f64,
    pub samples_per_second: f64,
    pub tokens_per_second: Option<f64>,
    pub seconds_left: f64,
}

impl Pace {
    /// Adds its rates to a line of JSON.
    pub fn into_json(self, line: &mut serde_json::Value) {
        line["samples_per_second"] = self.samples_per_second.into();
        if let Some(tokens) = self.tokens_per_second {
            line["tokens_per_second"] = tokens.into();
        }
        line["seconds_left"] = self.seconds_left.into();
    }
}

pub struct TrainProgress {
    bar: ProgressBar,
    began: Instant,
    /// Steps that were done before this command, that there are in all, and milliseconds of those that it ran.
    before: u64,
    all: u64,
    ms: Vec<f64>,
    batch: usize,
    tokens: Option<usize>,
    /// When the next line of a log is due.
    due: Duration,
}

impl TrainProgress {
    pub fn new(before: u64, all: u64, data: &Data) -> Self {
        let bar = ProgressBar::new(all);
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos} of {len} steps: {msg}") {
            bar.set_style(style);
        }
        bar.set_position(before);
        let (batch, tokens) = (data.batch, data.tokens);
        TrainProgress { bar, began: Instant::now(), before, all, ms: vec![], batch, tokens, due: Duration::ZERO }
    }

    /// Steps of this command so far.
    pub fn steps(&self) -> u64 {
        self.ms.len() as u64
    }

    /// Shows a step that is done. With `quiet` there is a bar at most.
    pub fn told(&mut self, step: u64, loss: f64, ms: f64, quiet: bool) -> Pace {
        self.ms.push(ms);
        let pace = self.mean();
        let rate = match pace.tokens_per_second {
            Some(tokens) => format!("{} tokens/s", significant(tokens)),
            None => format!("{} samples/s", significant(pace.samples_per_second)),
        };
        let message = format!("loss {}, {rate}, {} left", significant(loss), left(pace.seconds_left));
        self.bar.set_position(step);
        let is_due = self.began.elapsed() >= self.due || step == self.all;
        if self.bar.is_hidden() && is_due && !quiet {
            self.due = self.began.elapsed() + Duration::from_secs(PAUSE);
            errln!("{:.0} s, step {step} of {}: {message}", self.began.elapsed().as_secs_f64(), self.all);
        }
        self.bar.set_message(message);
        pace
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// The pace by the time of all steps so far, checkpoints included.
    fn mean(&self) -> Pace {
        let step = self.began.elapsed().as_secs_f64() / self.ms.len().max(1) as f64;
        self.at(step, 1e3 * step)
    }

    /// The pace by the median of the steps.
    pub fn pace(&self) -> Pace {
        let step_ms = layouts::record::median(&self.ms).unwrap_or(f64::NAN);
        self.at(step_ms / 1e3, step_ms)
    }

    fn at(&self, seconds: f64, step_ms: f64) -> Pace {
        let left = self.all.saturating_sub(self.before + self.steps());
        Pace {
            step_ms,
            samples_per_second: self.batch as f64 / seconds,
            tokens_per_second: self.tokens.map(|tokens| tokens as f64 / seconds),
            seconds_left: left as f64 * seconds,
        }
    }
}

/// A duration in the unit that fits it.
fn left(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_has_a_unit_that_fits() {
        assert_eq!([3.2, 99.0, 600.0, 7200.0].map(left), ["3 s", "99 s", "10 min", "2.0 h"]);
    }
}
