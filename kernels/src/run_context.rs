//! What a run of a kernel depends on besides its arguments, and how it ends.

use crate::pool::Pool;
use std::time::Instant;

/// What a run depends on besides its arguments.
#[derive(Clone, Copy)]
pub struct RunContext<'a> {
    pub seed: u64,
    pub step: u64,
    pub dropout: bool,
    pub pool: &'a Pool,
    /// Asked between chunks of work.
    pub deadline: Option<Instant>,
    /// Which values parameters have: a number of [`crate::constant::new_parameters`] while they are the same, or 0 where that is unknown.
    pub parameters: u64,
}

impl RunContext<'_> {
    pub fn expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    Done,
    /// What was written is incomplete.
    DeadlineExceeded,
}
