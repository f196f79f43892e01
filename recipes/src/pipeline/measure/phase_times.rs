//! How long each phase of a sweep takes: compiling, checking, timing, planning.

use serde::Serialize;
use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// Seconds that a bench has spent. The rest of a sweep's time goes to the search and to making programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTimes {
    /// Compiling ahead, and waiting for background compilations and for a library's list of algorithms.
    pub making: f64,
    pub checking: f64,
    /// Of `checking`: the interpreter, which computes the reference results.
    pub expecting: f64,
    pub timing: f64,
    /// Of `timing`: compiling and allocating a kernel's operands; recording its runs; running, by the device's clock.
    pub loading: f64,
    pub recording: f64,
    pub running: f64,
    /// Timings that other processes disturbed and that were repeated; and how many stayed disturbed.
    /// Configurations that ran on the device to be timed.
    pub measured: u64,
    pub disturbed: u64,
    pub unsettled: u64,
}

impl PhaseTimes {
    /// Adds the time since `began` to a phase.
    pub fn since(part: &mut f64, began: Instant) {
        PhaseTimes::without(part, began, Duration::ZERO);
    }

    /// Adds the time since `began` to a phase, less the time that `others` took of it.
    pub fn without(part: &mut f64, began: Instant, others: Duration) {
        *part += began.elapsed().saturating_sub(others).as_secs_f64();
    }
}

impl AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: Self) {
        self.making += other.making;
        self.checking += other.checking;
        self.expecting += other.expecting;
        self.timing += other.timing;
        self.loading += other.loading;
        self.recording += other.recording;
        self.running += other.running;
        self.measured += other.measured;
        self.disturbed += other.disturbed;
        self.unsettled += other.unsettled;
    }
}

impl fmt::Display for PhaseTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PhaseTimes { making, checking, expecting, timing, loading, recording, running, disturbed, unsettled, measured: _ } = self;
        write!(f, "{making:.1} s making code, {checking:.1} s checking (interpreter {expecting:.1}), ")?;
        write!(f, "{timing:.1} s timing (loading {loading:.1}, recording {recording:.1}, running {running:.1})")?;
        if *disturbed > 0 {
            write!(f, ", {disturbed} times disturbed by others and taken again")?;
        }
        if *unsettled > 0 {
            write!(f, ", {unsettled} of them disturbed to the last")?;
        }
        Ok(())
    }
}
