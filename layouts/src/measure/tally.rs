//! Counting what became of every configuration: a sweep never pretends.

use crate::measure::record::Outcome;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The parts add up to `enumerated`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Configurations of the space (of this shard).
    pub enumerated: u64,
    /// Same code and strides as another one, which was looked at.
    pub identical: u64,
    /// Never run: a lower bound of its time rules it out.
    pub bounded: u64,
    /// Given up while being timed, with the reason recorded.
    pub raced: u64,
    /// Timed in full.
    pub full: u64,
    /// Wrong result: never timed.
    pub mismatch: u64,
    /// Did not compile or run.
    pub failed: u64,
    pub not_reached: u64,
}

impl Tally {
    pub fn of(enumerated: u64) -> Self {
        Tally { enumerated, not_reached: enumerated, ..Tally::default() }
    }

    /// Counts one configuration that was not reached before.
    pub fn count(&mut self, outcome: &Outcome) {
        self.not_reached = self.not_reached.saturating_sub(1);
        match outcome {
            Outcome::Measured { .. } => self.full += 1,
            Outcome::Raced { .. } => self.raced += 1,
            Outcome::Bounded { .. } => self.bounded += 1,
            Outcome::Identical => self.identical += 1,
            Outcome::Mismatch => self.mismatch += 1,
            Outcome::Failed { .. } => self.failed += 1,
        }
    }

    pub fn adds_up(&self) -> bool {
        let parts = [self.identical, self.bounded, self.raced, self.full, self.mismatch, self.failed, self.not_reached];
        parts.iter().try_fold(0u64, |sum, part| sum.checked_add(*part)) == Some(self.enumerated)
    }
}

impl std::ops::AddAssign for Tally {
    /// Saturates: spaces of several kernels together may exceed 64 bits, and then the sum is a lower bound.
    fn add_assign(&mut self, other: Self) {
        self.enumerated = self.enumerated.saturating_add(other.enumerated);
        self.not_reached = self.not_reached.saturating_add(other.not_reached);
        self.identical += other.identical;
        self.bounded += other.bounded;
        self.raced += other.raced;
        self.full += other.full;
        self.mismatch += other.mismatch;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} enumerated = {} identical + {} bounded out + {} raced + {} full + {} mismatched + {} failed + {} not reached",
            self.enumerated, self.identical, self.bounded, self.raced, self.full, self.mismatch, self.failed, self.not_reached
        )
    }
}
