//! Gradients against central differences.
//!
//! With `L = Σ g·y` for the given gradients `g` of the seeds `y`, the derivative of `L` along a direction `v` is
//! `D(h) = (L(x+hv) − L(x−hv))/2h`.
//!
//! *Truncation.* `D(h) = L′ + c·h² + O(h⁴)`, so `D(2h) − D(h) = 3c·h²` to leading order: its magnitude is three times the
//! truncation error of `D(h)`, and is allowed.
//!
//! *Rounding.* An operation that adds `n` terms makes a relative error of at most `(n + 16)·ε` in each element `z` of its
//! result (16 for the few operations of its code and the functions' last places), measured against the largest magnitude
//! `m` among its operands and results, since differences cancel. Its effect on `L` is `|∂L/∂z|` times that. So each of the
//! two values of `L` is off by at most `ε·R`, `R = Σ_operations (n + 16)·m·Σ|d_z|`, plus adding up `L` itself; `D(h)` by
//! `ε·R/h`. The gradients `d_z` of all intermediates come from differentiation itself: a wrong one changes a tolerance of
//! some 10⁻⁹ relative by its own relative error, no more.
//!
//! *Step.* The sum is least for `h` near ε^⅓ times the scale of `x`, which is about 1.

use crate::autodiff::differentiate::{Options, Update, differentiate};
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::recurrence;
use sdfg::{Class, Operation, Role, Sdfg, Unit};
use std::collections::BTreeMap;

/// ε^⅓, rounded to a power of two so that `x ± h` is nearly exact.
const STEP: f64 = 1.0 / 131_072.0;

/// Along which directions the gradient of each tensor is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differences {
    /// Random directions, in which every element moves: a gradient that is wrong in one element is wrong along each of them.
    pub random: u64,
    /// Single elements, spread over the tensor.
    pub single: usize,
}

impl Default for Differences {
    fn default() -> Self {
        Differences { random: 2, single: 0 }
    }
}

/// Compares gradients with differences of the interpreted forward program: those of all inputs and parameters for which `gradients` has
/// a `d_<name>`. `given` are all inputs and parameters, with the gradients of the seeds. Returns the largest error ÷ tolerance.
///
/// # Errors
/// The first gradient that is off by more than its tolerance, or why a program cannot be interpreted.
pub fn check_gradients(
    forward: &Sdfg,
    options: &Options,
    given: &Tensors,
    gradients: &Tensors,
    differences: &Differences,
    run: &Run,
) -> Result<f64, String> {
    let inputs: Tensors =
        given.iter().filter(|(name, _)| forward.containers.contains_key(*name)).map(|(n, t)| (n.clone(), t.clone())).collect();
    // Differences go through what gradients do not.
    let stops = |unit: &Unit| matches!(unit, Unit::Operation(operation) if operation.stops_gradients() && !operation.is_shift());
    if forward.units().iter().any(|(_, _, unit)| stops(unit)) {
        return Ok(0.0);
    }
    let mut check = Check { forward, options, given, inputs, run, worst: 0.0 };
    let rounding = check.rounding()?;
    let named = forward.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
    for name in named.map(|c| c.name.as_str()) {
        let (Some(gradient), Some(at)) = (gradients.get(&format!("d_{name}")), check.inputs.get(name)) else { continue };
        let (shape, elements) = (at.shape().to_vec(), at.len());
        if gradient.shape() != shape {
            return Err(format!("`d_{name}` has the shape {:?} and not {shape:?}", gradient.shape()));
        }
        let mut directions = Vec::new();
        for seed in 0..differences.random {
            let values = sdfg::random::tensor(101 + seed, name, elements);
            directions.push(ArrayD::from_shape_vec(IxDyn(&shape), values).map_err(|e| e.to_string())?);
        }
        for n in 0..elements.min(differences.single) {
            let mut unit = ArrayD::zeros(IxDyn(&shape));
            if let Some(one) = unit.iter_mut().nth(n * elements / elements.min(differences.single)) {
                *one = 1.0;
            }
            directions.push(unit);
        }
        for direction in directions {
            check.along(name, &direction, dot(gradient, &direction), rounding)?;
        }
    }
    Ok(check.worst)
}

fn dot(a: &ArrayD<f64>, b: &ArrayD<f64>) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn largest(tensor: &ArrayD<f64>) -> f64 {
    tensor.iter().fold(0.0, |m, v| m.max(v.abs()))
}

/// Differences of one program at one point.
struct Check<'a> {
    forward: &'a Sdfg,
    options: &'a Options,
    given: &'a Tensors,
    /// What the forward program is given.
    inputs: Tensors,
    run: &'a Run,
    /// Largest error ÷ tolerance so far.
    worst: f64,
}

impl Check<'_> {
    /// `L` at the point moved along a direction of one tensor.
    fn loss(&self, name: &str, direction: &ArrayD<f64>, step: f64) -> Result<f64, String> {
        let mut inputs = self.inputs.clone();
        if let Some(tensor) = inputs.get_mut(name) {
            *tensor += &(direction * step);
        }
        let results = interpret(self.forward, &inputs, self.run).map_err(|e| e.to_string())?;
        self.seeds()
            .map(|(seed, upstream)| {
                let value = results.get(seed).ok_or_else(|| format!("`{seed}` is not computed"))?;
                Ok(upstream.map_or_else(|| value.sum(), |upstream| dot(value, upstream)))
            })
            .sum()
    }

    /// The seeds with their given gradients; none is that of a loss, which is 1.
    fn seeds(&self) -> impl Iterator<Item = (&str, Option<&ArrayD<f64>>)> {
        let mut names: Vec<&String> = self.options.upstream.iter().collect();
        names.sort();
        names.dedup();
        let upstream = names.into_iter().map(|seed| (seed.as_str(), self.given.get(&format!("d_{seed}"))));
        upstream.chain(self.options.loss.as_deref().map(|loss| (loss, None)))
    }

    fn along(&mut self, name: &str, direction: &ArrayD<f64>, claimed: f64, rounding: f64) -> Result<(), String> {
        let central =
            |h: f64| -> Result<f64, String> { Ok((self.loss(name, direction, h)? - self.loss(name, direction, -h)?) / (2.0 * h)) };
        let (near, far) = (central(STEP)?, central(2.0 * STEP)?);
        // Where the program itself computes NaN, there is nothing to compare with.
        if !near.is_finite() || !far.is_finite() {
            return Ok(());
        }
        let tolerance = (far - near).abs() + f64::EPSILON * rounding / STEP;
        let error = (claimed - near).abs();
        if error.is_nan() || error > tolerance {
            return Err(format!(
                "`d_{name}` says {claimed} along a direction where differences are {near} (off by {error:e}, allowed {tolerance:e})"
            ));
        }
        self.worst = self.worst.max(if error == 0.0 { 0.0 } else { error / tolerance });
        Ok(())
    }

    /// `R` of the module's documentation.
    fn rounding(&self) -> Result<f64, String> {
        // Results within loops have a rounding of their own, so they are handed back here.
        let forward = recurrence::exposed(self.forward).map_err(|e| e.to_string())?;
        let mut operations: Vec<Operation> = Vec::new();
        for (_, _, unit) in forward.units() {
            match unit {
                Unit::Operation(operation) => operations.push(operation),
                Unit::Nested(nested) => {
                    let found = recurrence::equations(&forward, &nested);
                    operations.extend(found.ok_or_else(|| format!("the body of `{}` holds more than operators", nested.name))?.1);
                }
                other => return Err(format!("`{}` is no operator", other.name())),
            }
        }
        let results = operations.iter().filter_map(|o| o.output("out")).map(|o| o.data.clone());
        let floating = |name: &String| forward.containers.get(name).is_some_and(|c| c.dtype.roundoff() > 0.0);
        let wanted = Some(results.filter(floating).collect());
        let all =
            differentiate(&forward, &Options { wanted, update: Update::default(), ..self.options.clone() }).map_err(|e| e.to_string())?;
        let values = interpret(&all, self.given, self.run).map_err(|e| e.to_string())?;
        let magnitudes: BTreeMap<&str, f64> = values.iter().map(|(name, tensor)| (name.as_str(), largest(tensor))).collect();
        let magnitude = |name: &str| magnitudes.get(name).copied().unwrap_or(0.0);
        let length = |name: &str| values.get(name).map_or(0.0, |tensor| tensor.len() as f64);
        let summing = self.seeds().map(|(seed, upstream)| length(seed) * magnitude(seed) * upstream.map_or(1.0, largest)).sum();
        let size = |count: Result<u64, sdfg::SymbolError>| count.map(|n| n as f64).map_err(|e| e.to_string());
        operations.iter().try_fold(summing, |sum: f64, operation| {
            let Some(out) = operation.output("out").map(|o| o.data.as_str()) else { return Ok(sum) };
            let points = operation.points(&forward).eval(&forward.sizes).map_err(|e| e.to_string())? as f64;
            let terms = match operation.class() {
                Class::Elementwise => 1.0,
                Class::Contraction => points / size(forward.elements(out))?,
                Class::Normalization => points,
            };
            let largest = operation.inputs.iter().chain(&operation.outputs).map(|o| magnitude(&o.data)).fold(0.0, f64::max);
            // The whole gradient of a seed that other seeds are made of has a name of its own.
            let names = [format!("d_{out}"), format!("d_{out}.all")];
            let gradient: f64 = names.iter().filter_map(|name| values.get(name)).flatten().map(|v| v.abs()).sum();
            let gradient = if self.options.loss.as_deref() == Some(out) { gradient.max(1.0) } else { gradient };
            Ok(sum + (terms + 16.0) * largest * gradient)
        })
    }
}
