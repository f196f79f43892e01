//! When more measuring promises too little: a search whose finds become rare ends before its budget does.
//!
//! The best times of all kernels are added up whenever one of them improves. Of a search that looks at the most promising first, what
//! it finds falls about with the logarithm of its time: each doubling finds about what the last one did, or less. So the gain of the
//! rest of the budget is at most the relative gain of the last doubling times the doublings that the budget still allows. Where that is
//! less than a goal, the sweep ends, if every kernel was looked at often enough for "nothing was found" to mean something.

use std::time::Duration;

/// Configurations of each kernel without which nothing is concluded.
const LOOKED_AT: u64 = 8;
/// The part of the budget without which nothing is concluded: what a search finds in its first moments says little.
const EARLIEST: f64 = 1.0 / 16.0;

/// The sums of best times of one sweep, each with the time when it was reached.
#[derive(Clone, Debug, Default)]
pub struct Settling {
    began: Duration,
    sums: Vec<(Duration, f64)>,
}

impl Settling {
    /// A sweep that begins at an instant of its clock.
    pub fn new(began: Duration) -> Self {
        Settling { began, sums: vec![] }
    }

    /// Takes the sum of the best times of all kernels.
    pub fn reached(&mut self, at: Duration, sum_ms: f64) {
        self.sums.push((at, sum_ms));
    }

    /// The relative gain that the rest of a budget promises; `None` where nothing can be said yet. `least` is how many configurations
    /// were looked at of the kernel that had the fewest.
    pub fn promised(&self, now: Duration, budget: Duration, least: u64) -> Option<f64> {
        let (passed, all) = (now.saturating_sub(self.began), budget.saturating_sub(self.began));
        let half = self.began + passed / 2;
        let before = self.sums.iter().rev().find(|(at, _)| *at <= half)?.1;
        let after = self.sums.last()?.1;
        if least < LOOKED_AT || passed < all.mul_f64(EARLIEST) || passed.is_zero() || after <= 0.0 {
            return None;
        }
        let doublings = (all.as_secs_f64() / passed.as_secs_f64()).log2().max(0.0);
        Some((before / after - 1.0).max(0.0) * doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_budget_promises_what_the_last_doubling_found() {
        let s = Duration::from_secs;
        let mut settling = Settling::new(s(10));
        settling.reached(s(11), 120.0);
        settling.reached(s(14), 110.0);
        settling.reached(s(18), 100.0);
        // From 4 s to 8 s the sum fell from 110 to 100; up to 64 s there are three doublings more.
        let promised = settling.promised(s(18), s(74), 8);
        assert!(promised.is_some_and(|gain| (gain - 0.3).abs() < 1e-9), "{promised:?}");
        // Nothing more was found for a while.
        assert_eq!(settling.promised(s(26), s(74), 8), Some(0.0));
        assert_eq!(settling.promised(s(26), s(74), 7), None, "a kernel was hardly looked at");
        assert_eq!(settling.promised(s(12), s(74), 8), None, "too early");
        assert_eq!(Settling::new(s(0)).promised(s(9), s(10), 8), None, "not every kernel has a time");
    }
}
