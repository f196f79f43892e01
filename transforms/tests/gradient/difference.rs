//! Central differences.
//!
//! With `L = Σ g·y` for a fixed random `g`, the derivative of `L` along a direction `v` is `D(h) = (L(x+hv) − L(x−hv))/2h`.
//!
//! *Truncation.* `D(h) = L′ + c·h² + O(h⁴)`, so `D(2h) − D(h) = 3c·h²` to leading order: its magnitude is three times the
//! truncation error of `D(h)`, and is allowed.
//!
//! *Rounding.* An operation that adds `n` terms makes a relative error of at most `(n + 16)·ε` in each element `z` of its
//! result (16 for the few operations of its code and the functions' last places), measured against the largest magnitude
//! `m` among its operands and results, since differences cancel. Its effect on `L` is `|∂L/∂z|` times that. So each of the
//! two values of `L` is off by at most `ε·R`, `R = Σ_operations (n + 16)·m·Σ|d_z|`, plus adding up `L` itself; `D(h)` by
//! `ε·R/h`. The gradients `d_z` of all intermediates come from the program under test: a wrong one changes a tolerance of
//! some 10⁻⁹ relative by its own relative error, no more.
//!
//! *Step.* The sum is least for `h` near ε^⅓ times the scale of `x`, which is 1 here.

use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Role, Sdfg, Unit};
use std::collections::BTreeMap;
use transforms::differentiate::{Options, differentiate};

pub const RUN: Run = Run { seed: 11, step: 3, dropout: true };

/// ε^⅓, rounded to a power of two so that `x ± h` is nearly exact.
const STEP: f64 = 1.0 / 131_072.0;

/// Elements of one tensor that are differenced one by one; every tensor is also differenced along two whole directions.
const SINGLE: usize = 16;

/// Random values in (−2, 2) for every input and parameter, none within 2⁻¹⁰ of 0, where rectifiers have their kink.
pub fn random_tensors(program: &Sdfg, seed: u64) -> Tensors {
    let given = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
    given.map(|c| (c.name.clone(), random_tensor(program, seed, &c.name))).collect()
}

pub fn random_tensor(program: &Sdfg, seed: u64, name: &str) -> ArrayD<f64> {
    random_like(&program.shape_of(name).unwrap(), seed, name)
}

fn random_like(shape: &[usize], seed: u64, name: &str) -> ArrayD<f64> {
    let values = sdfg::random::tensor(seed, name, shape.iter().product());
    let away = |v: f64| if v.abs() < 2f64.powi(-10) { v + 0.25f64.copysign(v) } else { v };
    ArrayD::from_shape_vec(IxDyn(shape), values.into_iter().map(away).collect()).unwrap()
}

fn dot(a: &ArrayD<f64>, b: &ArrayD<f64>) -> f64 {
    assert_eq!(a.shape(), b.shape());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn largest(tensor: &ArrayD<f64>) -> f64 {
    tensor.iter().fold(0.0, |m, v| m.max(v.abs()))
}

/// Differences and gradients of one program.
struct Check<'a> {
    program: &'a Sdfg,
    output: String,
    upstream: ArrayD<f64>,
    inputs: Tensors,
    /// Largest error ÷ tolerance seen.
    worst: f64,
}

/// Checks the gradients of all inputs and parameters by `output`, and prints the largest error ÷ tolerance.
pub fn check(program: &Sdfg, output: &str, seed: u64) {
    let (inputs, upstream) = (random_tensors(program, seed), random_tensor(program, seed, output));
    let options = Options { upstream: vec![output.into()], ..Options::default() };
    let differentiated = differentiate(program, &options).unwrap_or_else(|e| panic!("{}: {e}", program.name));
    let mut given = inputs.clone();
    given.insert(format!("d_{output}"), upstream.clone());
    let gradients = interpret(&differentiated, &given, &RUN).unwrap_or_else(|e| panic!("{}: {e}", program.name));
    compare(program, output, inputs, upstream, &gradients);
}

/// As [`check`], for gradients computed elsewhere.
pub fn compare(program: &Sdfg, output: &str, inputs: Tensors, upstream: ArrayD<f64>, gradients: &Tensors) {
    let mut check = Check { program, output: output.into(), upstream, inputs, worst: 0.0 };
    let rounding = check.rounding();
    for name in check.inputs.keys().cloned().collect::<Vec<_>>() {
        let gradient = gradients.get(&format!("d_{name}")).unwrap_or_else(|| panic!("{}: no d_{name}", program.name));
        let shape = check.inputs[&name].shape().to_vec();
        let mut directions = vec![random_like(&shape, 101, &name), random_like(&shape, 102, &name)];
        let elements = gradient.len();
        for n in 0..elements.min(SINGLE) {
            let mut unit = ArrayD::zeros(IxDyn(&shape));
            *unit.iter_mut().nth(n * elements / elements.min(SINGLE)).unwrap() = 1.0;
            directions.push(unit);
        }
        for direction in directions {
            check.along(&name, &direction, dot(gradient, &direction), rounding);
        }
    }
    println!("{}: largest error ÷ tolerance {:.3}", program.name, check.worst);
}

impl Check<'_> {
    fn value(&self, name: &str, direction: &ArrayD<f64>, step: f64) -> f64 {
        let mut inputs = self.inputs.clone();
        let moved = &inputs[name] + &(direction * step);
        inputs.insert(name.into(), moved);
        let results = interpret(self.program, &inputs, &RUN).unwrap_or_else(|e| panic!("{}: {e}", self.program.name));
        dot(&results[&self.output], &self.upstream)
    }

    fn along(&mut self, name: &str, direction: &ArrayD<f64>, claimed: f64, rounding: f64) {
        let central = |h: f64| (self.value(name, direction, h) - self.value(name, direction, -h)) / (2.0 * h);
        let (near, far) = (central(STEP), central(2.0 * STEP));
        let tolerance = (far - near).abs() + f64::EPSILON * rounding / STEP;
        let error = (claimed - near).abs();
        let place = direction.iter().position(|v| *v != 0.0);
        assert!(
            error <= tolerance,
            "{}: d_{name} at {place:?}: claimed {claimed}, differences {near} (step h) and {far} (2h), error {error:e} > {tolerance:e}",
            self.program.name
        );
        self.worst = self.worst.max(error / tolerance);
    }

    /// `R` of the module's documentation.
    fn rounding(&self) -> f64 {
        let operations: Vec<_> = self
            .program
            .units()
            .into_iter()
            .map(|(_, _, unit)| match unit {
                Unit::Operation(operation) => operation,
                other => panic!("{} is no operation", other.name()),
            })
            .collect();
        let results: Vec<String> = operations.iter().map(|o| o.output("out").unwrap().data.clone()).collect();
        let options = Options { upstream: vec![self.output.clone()], wanted: Some(results), ..Options::default() };
        let differentiated = differentiate(self.program, &options).unwrap();
        let mut given = self.inputs.clone();
        given.insert(format!("d_{}", self.output), self.upstream.clone());
        let values = interpret(&differentiated, &given, &RUN).unwrap();
        let magnitudes: BTreeMap<&str, f64> = values.iter().map(|(n, t)| (n.as_str(), largest(t))).collect();
        let summing = values[&self.output].len() as f64 * magnitudes[self.output.as_str()] * largest(&self.upstream);
        operations.iter().fold(summing, |sum, operation| {
            let out = &operation.output("out").unwrap().data;
            let points = operation.points(self.program).eval(&self.program.sizes).unwrap() as f64;
            let terms = match operation.class() {
                sdfg::Class::Elementwise => 1.0,
                sdfg::Class::Contraction => points / self.program.elements(out).unwrap() as f64,
                sdfg::Class::Normalization => points,
            };
            let operands = operation.inputs.iter().chain(&operation.outputs);
            let magnitude = operands.map(|o| magnitudes[o.data.as_str()]).fold(0.0, f64::max);
            sum + (terms + 16.0) * magnitude * values[&format!("d_{out}")].iter().map(|v| v.abs()).sum::<f64>()
        })
    }
}

/// Compares the gradients and outputs of two differentiated programs of `forward` whose result is `y`.
pub fn same_gradients(forward: &Sdfg, one: &Sdfg, other: &Sdfg, seeds: u64) {
    for seed in 0..seeds {
        let mut given = random_tensors(forward, seed);
        given.insert("d_y".into(), random_tensor(forward, seed, "y"));
        let (want, got) = (interpret(one, &given, &RUN).unwrap(), interpret(other, &given, &RUN).unwrap());
        for container in one.containers.values().filter(|c| matches!(c.role, Role::Gradient | Role::Output)) {
            for (got, want) in got[&container.name].iter().zip(&want[&container.name]) {
                assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "{}: {got} instead of {want}", container.name);
            }
        }
    }
}
