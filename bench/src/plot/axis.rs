//! Axes: from values to pixels, with round ticks.

use super::PlotError;
use super::canvas::{Anchor, Canvas, GRID, INK, MUTED};
use crate::unit::significant;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear,
    Log,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Pixel of `low`, pixel of `high`.
    from: i32,
    to: i32,
}

impl Axis {
    /// From 0 to a little above the largest value.
    ///
    /// # Errors
    /// [`PlotError::OffScale`] for a value that is negative or not finite.
    pub fn linear(figure: &'static str, values: impl IntoIterator<Item = f64>, from: i32, to: i32) -> Result<Axis, PlotError> {
        let mut high = 0.0f64;
        for value in values {
            if !(value.is_finite() && value >= 0.0) {
                return Err(PlotError::OffScale { figure, value, scale: "linear" });
            }
            high = high.max(value);
        }
        let high = if high > 0.0 { high * 1.04 } else { 1.0 };
        Ok(Axis { scale: Scale::Linear, low: 0.0, high, from, to })
    }

    /// A little wider than the values, and at least a factor of two.
    ///
    /// # Errors
    /// [`PlotError::OffScale`] for a value that is not positive and finite; [`PlotError::Empty`] without values.
    pub fn log(figure: &'static str, values: impl IntoIterator<Item = f64>, from: i32, to: i32) -> Result<Axis, PlotError> {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values {
            if !(value.is_finite() && value > 0.0) {
                return Err(PlotError::OffScale { figure, value, scale: "logarithmic" });
            }
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            return Err(PlotError::Empty { figure });
        }
        let margin = (high / low).powf(0.05).max(1.1);
        let (mut low, mut high) = (low / margin, high * margin);
        if high / low < 2.0 {
            let middle = (low * high).sqrt();
            (low, high) = (middle / 1.5, middle * 1.5);
        }
        Ok(Axis { scale: Scale::Log, low, high, from, to })
    }

    /// The pixel of a value; values beyond the axis are held at its ends.
    pub fn at(&self, value: f64) -> i32 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        self.from + (f64::from(self.to - self.from) * part).round() as i32
    }

    pub fn low(&self) -> f64 {
        self.low
    }

    pub fn high(&self) -> f64 {
        self.high
    }

    /// Round values with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.high - self.low) / 5.0;
                let decade = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * decade).find(|s| *s >= rough).unwrap_or(rough);
                let decimals = (-step.log10().floor()).max(0.0) as usize;
                (0..=10).map(|n| f64::from(n) * step).filter(|v| *v <= self.high).map(|v| (v, format!("{v:.decimals$}"))).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10();
                let marks: &[f64] = match decades {
                    d if d < 0.7 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
                    d if d < 3.5 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                let every = ((last - first) / 10 + 1) as usize;
                (first..=last)
                    .step_by(every)
                    .flat_map(|d| marks.iter().map(move |m| m * 10f64.powi(d)))
                    .filter(|v| (self.low..=self.high).contains(v))
                    .map(|v| (v, plain(v)))
                    .collect()
            }
        }
    }

    /// Grid lines from `top` to `bottom`, tick labels and the title below.
    pub fn horizontal(&self, canvas: &Canvas<'_>, top: i32, bottom: i32, title: &str) -> Result<(), PlotError> {
        for (value, label) in self.ticks() {
            let x = self.at(value);
            canvas.line(&[(x, top), (x, bottom)], GRID, 1)?;
            canvas.text(x, bottom + 14, 11, MUTED, Anchor::Middle, &label)?;
        }
        canvas.text((self.from + self.to) / 2, bottom + 34, 12, INK, Anchor::Middle, title)
    }

    /// Grid lines from `left` to `right`, tick labels and the title to the left.
    pub fn vertical(&self, canvas: &Canvas<'_>, left: i32, right: i32, title: &str) -> Result<(), PlotError> {
        for (value, label) in self.ticks() {
            let y = self.at(value);
            canvas.line(&[(left, y), (right, y)], GRID, 1)?;
            canvas.text(left - 8, y, 11, MUTED, Anchor::Right, &label)?;
        }
        canvas.upright(left - 56, (self.from + self.to) / 2, 12, INK, title)
    }
}

/// Numbers as text; those outside the range that is easily read are written as powers of ten.
fn plain(value: f64) -> String {
    if (1e-3..1e5).contains(&value) {
        let text = significant(value);
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
    } else {
        format!("{value:.0e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_land_between_the_ends() {
        let axis = Axis::linear("test", [0.0, 10.0], 100, 204).unwrap();
        assert_eq!((axis.at(0.0), axis.at(5.0), axis.at(10.0)), (100, 150, 200));
        let axis = Axis::log("test", [1.0, 100.0], 0, 120).unwrap();
        assert_eq!(axis.at(10.0), 60);
    }

    #[test]
    fn no_values_and_zeros_still_make_an_axis() {
        assert_eq!(Axis::linear("test", [], 0, 100).unwrap().at(0.0), 0);
        assert!(!Axis::linear("test", [0.0], 0, 100).unwrap().ticks().is_empty());
        assert!(Axis::log("test", [3.0], 0, 100).unwrap().ticks().len() >= 2);
        assert!(matches!(Axis::log("test", [], 0, 100), Err(PlotError::Empty { .. })));
    }

    #[test]
    fn nan_zero_and_negative_are_refused_where_they_have_no_place() {
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(matches!(Axis::linear("test", [1.0, bad], 0, 100), Err(PlotError::OffScale { .. })));
        }
        assert!(matches!(Axis::log("test", [0.0], 0, 100), Err(PlotError::OffScale { .. })));
    }

    #[test]
    fn ticks_are_round_and_few() {
        for high in [1e-9, 0.37, 1.0, 283.0, 4.2e12] {
            let count = Axis::linear("test", [high], 0, 100).unwrap().ticks().len();
            assert!((3..=11).contains(&count), "{count} ticks up to {high}");
        }
        let labels: Vec<String> = Axis::log("test", [0.05, 30.0], 0, 100).unwrap().ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(labels, ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "20"]);
    }
}
