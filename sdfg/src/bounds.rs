//! What values a tensor may be given: from one bound to another, which may depend on sizes.

use crate::evaluate::NotConstant;
use crate::scalar::Scalar;
use crate::symbol::Bindings;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bounds of the values that a program is given in a container. They read numbers and sizes only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    pub low: Scalar,
    pub high: Scalar,
    /// Whether the bounds themselves are left out.
    pub open: [bool; 2],
}

// Bounds are no NaN: whoever makes them has worked them out.
impl Eq for Bounds {}

/// Bounds under sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueInterval {
    pub low: f64,
    pub high: f64,
    pub open: [bool; 2],
}

impl Bounds {
    /// The interval under sizes.
    ///
    /// # Errors
    /// What a bound reads besides numbers and sizes; a size without a value.
    pub fn under(&self, sizes: &Bindings) -> Result<ValueInterval, NotConstant> {
        Ok(ValueInterval { low: self.low.constant(sizes)?, high: self.high.constant(sizes)?, open: self.open })
    }
}

impl ValueInterval {
    /// Whether a value lies within. NaN does not.
    pub fn contains(&self, value: f64) -> bool {
        let above = if self.open[0] { value > self.low } else { value >= self.low };
        let below = if self.open[1] { value < self.high } else { value <= self.high };
        above && below
    }

    /// The least and the greatest whole number within, as far as numbers of 64 bits go; `None` if there is none.
    pub fn whole_numbers(&self) -> Option<(f64, f64)> {
        let (low, high) = (self.low.ceil(), self.high.floor());
        let low = if self.open[0] && low == self.low { low + 1.0 } else { low };
        let high = if self.open[1] && high == self.high { high - 1.0 } else { high };
        (low <= high).then_some((low, high))
    }

    /// Whether nothing lies within; `whole` asks for whole numbers.
    pub fn is_empty(&self, whole: bool) -> bool {
        let some = self.low < self.high || (self.low == self.high && self.open == [false; 2]);
        !some || (whole && self.whole_numbers().is_none())
    }

    /// A value within the interval, made of a value from −2 to 2. Between two bounds the values are spread evenly; with a single bound
    /// a value is as far from the bound as the given one is from 0. An empty interval gives its lower bound.
    pub fn drawn(&self, from: f64, whole: bool) -> f64 {
        let share = (from + 2.0) / 4.0;
        if whole {
            let (low, high) = self.whole_numbers().unwrap_or((self.low, self.low));
            return match (low.is_finite(), high.is_finite()) {
                (true, true) => (low + (share * (high - low + 1.0)).floor()).min(high),
                (true, false) => low + (share * 4.0).floor(),
                (false, true) => high - (share * 4.0).floor(),
                (false, false) => from.floor(),
            };
        }
        match (self.low.is_finite(), self.high.is_finite()) {
            (true, true) => self.low + share * (self.high - self.low),
            (true, false) => self.low + from.abs(),
            (false, true) => self.high - from.abs(),
            (false, false) => from,
        }
    }

    /// A value where what was drawn, and rounded, lies outside: in the middle, or one from the only bound.
    pub fn inner(&self) -> f64 {
        match (self.low.is_finite(), self.high.is_finite()) {
            (true, true) => self.low + (self.high - self.low) / 2.0,
            (true, false) => self.low + 1.0,
            (false, true) => self.high - 1.0,
            (false, false) => 0.0,
        }
    }
}

impl fmt::Display for ValueInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (opens, closes) = (if self.open[0] { '(' } else { '[' }, if self.open[1] { ')' } else { ']' });
        write!(f, "{opens}{}, {}{closes}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_lies_within() {
        let inf = f64::INFINITY;
        for (low, high, open) in [
            (0.0, 1.0, [false, false]),
            (0.0, 10.0, [false, true]),
            (-3.5, 3.5, [true, true]),
            (1.0, inf, [false, true]),
            (-inf, 0.0, [true, false]),
            (4.0, 5.0, [false, true]),
        ] {
            let interval = ValueInterval { low, high, open };
            for n in 0..400 {
                let from = -2.0 + f64::from(n) / 100.0;
                let (real, whole) = (interval.drawn(from, false), interval.drawn(from, true));
                assert!(interval.contains(real) || real == low && open[0], "{interval}: {real}");
                assert!(interval.contains(whole) && whole.fract() == 0.0, "{interval}: {whole}");
            }
        }
    }

    #[test]
    fn bounds_are_left_out_where_they_are_open() {
        let labels = ValueInterval { low: 0.0, high: 10.0, open: [false, true] };
        assert_eq!(labels.to_string(), "[0, 10)");
        assert!([0.0, 9.0, 9.5].iter().all(|v| labels.contains(*v)) && [-0.5, 10.0, f64::NAN].iter().all(|v| !labels.contains(*v)));
        assert_eq!(labels.whole_numbers(), Some((0.0, 9.0)));
        let few = ValueInterval { low: 0.25, high: 0.75, open: [false, false] };
        assert!(few.is_empty(true) && !few.is_empty(false));
        assert!(ValueInterval { low: 1.0, high: 1.0, open: [true, false] }.is_empty(false));
    }
}
