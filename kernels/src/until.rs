//! Until when code is made that nobody waits for yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Always, up to a time, and as long as nobody interrupts.
#[derive(Clone, Copy, Default)]
pub struct Until<'a> {
    pub time: Option<Instant>,
    pub interrupt: Option<&'a AtomicBool>,
}

impl Until<'_> {
    /// Whether more may be begun.
    pub fn goes_on(&self) -> bool {
        self.time.is_none_or(|time| Instant::now() < time) && !self.interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed))
    }
}
