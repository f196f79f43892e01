//! What parameters are before the first step of a training run.
//!
//! It is no part of the program: checks draw parameters that hide no fault, and a bias of zeros would.

use ndarray::{ArrayD, IxDyn};
use sdfg::philox;

/// The values that a parameter begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// This number everywhere.
    Constant(f64),
    /// Normally distributed around 0, with this standard deviation.
    Normal(f64),
    /// Evenly distributed from minus to plus this number.
    Uniform(f64),
}

impl Initial {
    /// The distributions, as a recipe names them.
    pub const NAMES: [&'static str; 2] = ["normal", "uniform"];

    /// The distribution of a name, whose one number is `of`.
    pub fn named(name: &str, of: f64) -> Option<Initial> {
        match name {
            "normal" => Some(Initial::Normal(of)),
            "uniform" => Some(Initial::Uniform(of)),
            _ => None,
        }
    }

    /// Values of a tensor, the same for the same seed and name.
    pub fn drawn(self, seed: u64, name: &str, shape: &[usize]) -> ArrayD<f64> {
        let elements: usize = shape.iter().product();
        // Another stream than that of tensors that checks draw.
        let key = philox::key(seed, &format!("initial {name}"));
        let random = |n: usize| philox::block([n as u32, (n as u64 >> 32) as u32, 0, 0], key);
        // Above 0 and at most 1, of 52 bits.
        let unit = |[low, high]: [u32; 2]| ((u64::from(high) << 32 | u64::from(low)) >> 12) as f64;
        let unit = |bits: [u32; 2]| (unit(bits) + 1.0) / 2f64.powi(52);
        let value = |n: usize| {
            let [a, b, c, d] = random(n);
            match self {
                Initial::Constant(value) => value,
                Initial::Uniform(bound) => bound * (2.0 * unit([a, b]) - 1.0),
                // Box and Muller.
                Initial::Normal(deviation) => deviation * (-2.0 * unit([a, b]).ln()).sqrt() * (std::f64::consts::TAU * unit([c, d])).cos(),
            }
        };
        ArrayD::from_shape_fn(IxDyn(&[elements]), |at| value(at[0]))
            .into_shape_with_order(IxDyn(shape))
            .unwrap_or_else(|_| ArrayD::zeros(IxDyn(shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_distributed_as_their_names_say() {
        let moments = |initial: Initial| {
            let values = initial.drawn(1, "w", &[300, 400]);
            let n = values.len() as f64;
            let mean = values.sum() / n;
            (mean, (values.mapv(|v| (v - mean) * (v - mean)).sum() / n).sqrt(), values.iter().fold(0.0f64, |m, v| m.max(v.abs())))
        };
        // 120,000 values: the mean is known to 0.003 deviations, and these to 0.2%.
        let (mean, deviation, largest) = moments(Initial::Normal(0.02));
        assert!(mean.abs() < 2e-4 && (deviation / 0.02 - 1.0).abs() < 0.01 && largest > 0.075, "{mean} {deviation} {largest}");
        let (mean, deviation, largest) = moments(Initial::Uniform(0.5));
        assert!(mean.abs() < 5e-3 && (deviation * 12f64.sqrt() - 1.0).abs() < 0.01, "{mean} {deviation}");
        assert!(largest <= 0.5 && largest > 0.4999, "{largest}");
        assert_eq!(moments(Initial::Constant(1.0)), (1.0, 0.0, 1.0));
    }

    #[test]
    fn a_seed_and_a_name_decide() {
        let drawn = |seed, name| Initial::Normal(1.0).drawn(seed, name, &[8]);
        assert_eq!(drawn(1, "w"), drawn(1, "w"));
        assert_ne!(drawn(1, "w"), drawn(2, "w"));
        assert_ne!(drawn(1, "w"), drawn(1, "v"));
        assert_eq!(Initial::Normal(1.0).drawn(1, "w", &[]).len(), 1);
    }
}
