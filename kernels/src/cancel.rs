//! When background work ends: at a deadline, or when the user interrupts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A deadline and an interrupt flag, each optional. Without both, background work goes on to its end.
#[derive(Clone, Copy, Default)]
pub struct CancelToken<'a> {
    pub time: Option<Instant>,
    pub interrupt: Option<&'a AtomicBool>,
}

impl CancelToken<'_> {
    /// Whether more may be begun.
    pub fn goes_on(&self) -> bool {
        self.time.is_none_or(|time| Instant::now() < time) && !self.interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed))
    }
}
