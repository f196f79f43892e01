//! Times as whole numbers of picoseconds, so that sums do not depend on their order and equal means equal.
//!
//! Everything the solver compares, proves and writes into certificates is of this kind; milliseconds are for people.
//! Clocks give nanoseconds, a median of two samples half of one: nothing is lost by rounding to a thousandth.

/// Picoseconds. Negative values occur only as parts of reparametrised costs.
pub type Cost = i64;

/// The cost of a forbidden choice. Larger than any total. A hundred of them can be added up; where there may be more, as in a kernel that
/// depends on what each of many steps of a recurrence does, sums saturate.
pub const FORBIDDEN: Cost = 1 << 56;

/// The longest time of one kernel or relayout: about 18 minutes.
pub const LONGEST: Cost = 1 << 50;

/// A time in milliseconds; `None` if it is not a number, negative or longer than [`LONGEST`].
pub fn picoseconds(ms: f64) -> Option<Cost> {
    let ps = (ms * 1e9).round();
    (0.0..=LONGEST as f64).contains(&ps).then_some(ps as Cost)
}

pub fn milliseconds(ps: Cost) -> f64 {
    ps as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_none_are_refused() {
        assert_eq!(picoseconds(1.5), Some(1_500_000_000));
        assert_eq!(picoseconds(0.0), Some(0));
        for ms in [f64::NAN, f64::INFINITY, -1e-3, 1e9] {
            assert_eq!(picoseconds(ms), None, "{ms}");
        }
        // A rounding of zero from below is zero.
        assert_eq!(picoseconds(-1e-12), Some(0));
    }
}
