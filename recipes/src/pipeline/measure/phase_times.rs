//! How long each phase of a sweep takes: making code, checking, timing, planning.

use serde::Serialize;
use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// Seconds that a bench has spent; what is left of a sweep's time is the search, and programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTimes {
    /// Making code ahead, and waiting for code and for what a library offers where others ask for them meanwhile.
    pub making: f64,
    pub checking: f64,
    /// Of these, what was expected: kernels in the interpreter.
    pub expecting: f64,
    pub timing: f64,
    /// Of these, until a kernel was there with its memory; until its runs were recorded; and by the device's clock.
    pub loading: f64,
    pub recording: f64,
    pub running: f64,
    /// Times that others disturbed, which were taken again, and those of them that were disturbed to the last.
    pub disturbed: u64,
    pub unsettled: u64,
}

impl PhaseTimes {
    /// Adds the time since then to one of them.
    pub fn since(part: &mut f64, began: Instant) {
        PhaseTimes::without(part, began, Duration::ZERO);
    }

    /// Adds to one of them the time since then without what others have taken of it.
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
        self.disturbed += other.disturbed;
        self.unsettled += other.unsettled;
    }
}

impl fmt::Display for PhaseTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PhaseTimes { making, checking, expecting, timing, loading, recording, running, disturbed, unsettled } = self;
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
