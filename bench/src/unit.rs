//! Units and origins as types: bytes are not flop, and a predicted time is not a measured one.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// Bytes; prefixes in print are decimal (1 MB = 10⁶ bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// Floating-point operations; prefixes in print are decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Flop(pub u64);

/// Milliseconds of wall-clock time.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Milliseconds(pub f64);

/// A value from a model, not from a clock or a counter.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Predicted<T>(pub T);

/// A value from a clock or a counter on the machine of the report.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Measured<T>(pub T);

/// A value whose origin is only known at run time. In JSON: `{"measured": 1.5}` or `{"predicted": 1.5}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity<T> {
    Predicted(T),
    Measured(T),
}

impl<T: Copy> Quantity<T> {
    pub fn value(&self) -> T {
        match self {
            Quantity::Predicted(value) | Quantity::Measured(value) => *value,
        }
    }
}

impl<T> Quantity<T> {
    pub fn is_measured(&self) -> bool {
        matches!(self, Quantity::Measured(_))
    }

    /// The word that labels the value in tables and plots.
    pub fn origin(&self) -> &'static str {
        if self.is_measured() { "measured" } else { "predicted" }
    }
}

impl<T> From<Predicted<T>> for Quantity<T> {
    fn from(value: Predicted<T>) -> Self {
        Quantity::Predicted(value.0)
    }
}

impl<T> From<Measured<T>> for Quantity<T> {
    fn from(value: Measured<T>) -> Self {
        Quantity::Measured(value.0)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(values: I) -> Bytes {
        values.fold(Bytes(0), Add::add)
    }
}

impl Add for Flop {
    type Output = Flop;
    fn add(self, other: Flop) -> Flop {
        Flop(self.0.saturating_add(other.0))
    }
}

impl Sum for Flop {
    fn sum<I: Iterator<Item = Flop>>(values: I) -> Flop {
        values.fold(Flop(0), Add::add)
    }
}

impl Add for Milliseconds {
    type Output = Milliseconds;
    fn add(self, other: Milliseconds) -> Milliseconds {
        Milliseconds(self.0 + other.0)
    }
}

impl Sum for Milliseconds {
    fn sum<I: Iterator<Item = Milliseconds>>(values: I) -> Milliseconds {
        values.fold(Milliseconds(0.0), Add::add)
    }
}

/// Three significant digits: `0.0123`, `1.23`, `12.3`, `123`, `12345`.
pub fn significant(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 || !magnitude.is_finite() {
        return format!("{}", value + 0.0);
    }
    let digits = (2 - magnitude.log10().floor() as i32).clamp(0, 9) as usize;
    format!("{value:.digits$}")
}

/// Three significant digits with a decimal prefix: `12.6 M`, `999 `.
pub fn prefixed(value: u64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 5] = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let value = value as f64;
    match PREFIXES.iter().find(|(scale, _)| value >= *scale) {
        Some((scale, prefix)) => format!("{} {prefix}{unit}", significant(value / scale)),
        None => format!("{value} {unit}"),
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&prefixed(self.0, "B"))
    }
}

impl fmt::Display for Flop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&prefixed(self.0, "flop"))
    }
}

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} ms", significant(self.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn print_keeps_three_digits_and_the_unit() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(999).to_string(), "999 B");
        assert_eq!(Bytes(12_582_912).to_string(), "12.6 MB");
        assert_eq!(Flop(25_769_803_776).to_string(), "25.8 Gflop");
        assert_eq!(Milliseconds(0.01234).to_string(), "0.0123 ms");
        assert_eq!(Milliseconds(283.04).to_string(), "283 ms");
    }

    #[test]
    fn origin_survives_json() {
        let time: Quantity<Milliseconds> = Predicted(Milliseconds(1.5)).into();
        let text = serde_json::to_string(&time).unwrap();
        assert_eq!(text, r#"{"predicted":1.5}"#);
        assert_eq!(serde_json::from_str::<Quantity<Milliseconds>>(&text).unwrap(), time);
    }
}
