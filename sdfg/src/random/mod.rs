//! Small valid random programs and tensors: the material of property tests in every crate.
//!
//! A pure function of a seed: the same program on every machine and in every run. Programs are straight-line, of 3 to 10
//! operations over dims of sizes 1 to 5 (`a` … `d` with the symbols `A` … `D`; `m` is a second dim of size `A`), in the one state
//! `forward`. Values stay small: a product of large values is replaced by a bounded function, and normalizations have
//! a large `eps`, so that a comparison needs no allowance for ill-conditioned programs.

mod permuted;

use crate::data::{Container, Dtype, Role};
use crate::graph::{BuildError, Sdfg};
use crate::library::Op;
use crate::memlet::Combine;
use crate::node::{Direction, Operand, Operation, StateId};
use crate::philox;
use crate::scalar::{Binary, Scalar, Unary};
use crate::symbol::Expr;
use indexmap::IndexMap;
use std::collections::BTreeMap;

pub use permuted::permuted_program;

/// Largest magnitude that a value may be able to reach.
const LARGEST: f64 = 64.0;

/// A random program, the same for the same seed. Every value that no operation reads is an output.
pub fn program(seed: u64) -> Sdfg {
    let mut builder = Builder::new(seed);
    let operations = 3 + builder.draws.below(8);
    for _ in 0..operations {
        // Every operand was declared a moment before: inserting cannot fail. Were it to, the program would be shorter.
        if builder.operation().is_err() {
            break;
        }
    }
    builder.finish()
}

/// Values of a tensor, the same for the same seed and name: uniform in (−2, 2), exactly representable in f32.
pub fn tensor(seed: u64, name: &str, elements: usize) -> Vec<f64> {
    let key = philox::key(seed, name);
    let value = |bits: u32| (f64::from(bits >> 8) + 0.5) / 2f64.powi(22) - 2.0;
    let blocks = (0..elements.div_ceil(4) as u64).flat_map(|n| philox::block([n as u32, (n >> 32) as u32, 0, 0], key));
    blocks.take(elements).map(value).collect()
}

/// A stream of random choices.
struct Draws {
    key: [u32; 2],
    next: u32,
}

impl Draws {
    fn new(seed: u64) -> Self {
        Draws { key: philox::key(seed, "program"), next: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        let [bits, ..] = philox::block([self.next, 0, 0, 0], self.key);
        self.next += 1;
        bits as usize % bound.max(1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    fn shuffled(&mut self, mut items: Vec<String>) -> Vec<String> {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n + 1));
        }
        items
    }

    /// A nonempty subset, in order; of nothing, nothing.
    fn subset(&mut self, items: &[String]) -> Vec<String> {
        let sure = self.below(items.len());
        items.iter().enumerate().filter(|(n, _)| *n == sure || self.chance(40)).map(|(_, i)| i.clone()).collect()
    }
}

struct Builder {
    draws: Draws,
    program: Sdfg,
    state: StateId,
    /// A bound on the magnitude of each container that an operation may read.
    magnitude: IndexMap<String, f64>,
    read: Vec<String>,
}

impl Builder {
    fn new(seed: u64) -> Self {
        let mut program = Sdfg::new(format!("random{seed}"));
        let mut draws = Draws::new(seed);
        for dim in ["a", "b", "c", "d"] {
            // An index bears the name of its dim and would hide a size of the same name.
            let size = dim.to_uppercase();
            program.dims.insert(dim.into(), Expr::sym(size.as_str()));
            program.sizes.insert(size, 1 + draws.below(5) as i64);
        }
        program.dims.insert("m".into(), Expr::sym("A"));
        let state = program.add_state("forward");
        Builder { draws, program, state, magnitude: IndexMap::new(), read: Vec::new() }
    }

    fn finish(mut self) -> Sdfg {
        for (name, container) in &mut self.program.containers {
            if container.role == Role::Transient && self.magnitude.contains_key(name) && !self.read.contains(name) {
                container.role = Role::Output;
            }
        }
        self.program
    }

    fn dims_of(&self, data: &str) -> Vec<String> {
        self.program.containers.get(data).map(|c| c.dims.clone()).unwrap_or_default()
    }

    fn magnitude_of(&self, data: &str) -> f64 {
        self.magnitude.get(data).copied().unwrap_or(2.0)
    }

    fn declare(&mut self, stem: &str, dims: &[String], role: Role, magnitude: f64) -> String {
        let number = self.program.containers.keys().filter(|k| k.starts_with(stem) && !k.contains('.')).count();
        let name = format!("{stem}{number}");
        let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
        self.program.add_container(Container::new(name.as_str(), &dims, Dtype::F32, role));
        self.magnitude.insert(name.clone(), magnitude);
        name
    }

    /// A new input or parameter; its values are those of [`tensor`].
    fn given(&mut self, dims: &[String]) -> String {
        let dims = self.draws.shuffled(dims.to_vec());
        let (stem, role) = if self.draws.chance(50) { ("x", Role::Input) } else { ("w", Role::Parameter) };
        self.declare(stem, &dims, role, 2.0)
    }

    /// A container to start an operation from, of one dim at least.
    fn any(&mut self) -> String {
        let known: Vec<String> = self.magnitude.keys().filter(|k| !self.dims_of(k).is_empty()).cloned().collect();
        match self.draws.chance(80).then(|| self.draws.pick(&known).cloned()).flatten() {
            Some(data) => data,
            None => {
                let all = self.program.dims.keys().cloned().collect();
                let dims: Vec<String> = self.draws.shuffled(all).into_iter().take(1 + self.draws.below(3)).collect();
                self.given(&dims)
            }
        }
    }

    /// A container whose dims all occur among `dims`, known or new.
    fn within(&mut self, dims: &[String]) -> String {
        let fits: Vec<String> = self.magnitude.keys().filter(|k| self.dims_of(k).iter().all(|d| dims.contains(d))).cloned().collect();
        match self.draws.chance(60).then(|| self.draws.pick(&fits).cloned()).flatten() {
            Some(data) => data,
            None => {
                let some = self.draws.subset(dims);
                self.given(&some)
            }
        }
    }

    fn reading(&mut self, connector: &str, data: &str) -> Operand {
        self.read.push(data.to_string());
        self.operand(connector, data)
    }

    /// Subscripted by its own dims: an index of a random program bears the name of its dim.
    fn operand(&self, connector: &str, data: &str) -> Operand {
        let dims = self.dims_of(data);
        Operand::new(connector, data, &dims.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn insert(&mut self, name: &str, op: Op, inputs: Vec<Operand>, outputs: Vec<Operand>) -> Result<(), BuildError> {
        let mut indices = IndexMap::new();
        for operand in outputs.iter().chain(&inputs) {
            for dim in self.dims_of(&operand.data) {
                indices.insert(dim.clone(), dim);
            }
        }
        let operation = Operation { name: name.to_string(), op, indices, inputs, outputs, pass: Direction::Forward, origin: None };
        self.program.insert_operation(self.state, &operation).map(|_| ())
    }

    fn operation(&mut self) -> Result<(), BuildError> {
        match self.draws.below(10) {
            0..=4 => self.elementwise(),
            5 => self.reduction(),
            6 => self.softmax(),
            7 | 8 => self.contraction(),
            _ => self.normalization(),
        }
    }

    fn elementwise(&mut self) -> Result<(), BuildError> {
        let x = self.any();
        let dims = self.draws.shuffled(self.dims_of(&x));
        let bound = self.magnitude_of(&x);
        let input = || Scalar::input("x");
        let (mut label, mut code, mut magnitude) = ("tanh", Scalar::unary(Unary::Tanh, input()), 1.0);
        let mut inputs = vec![];
        match self.draws.below(6) {
            0 => (label, code, magnitude) = ("relu", Scalar::binary(Binary::Max, input(), Scalar::Const(0.0)), bound),
            1 => (label, code) = ("sigmoid", Scalar::unary(Unary::Sigmoid, input())),
            kind @ (2 | 3) => {
                let y = self.within(&dims);
                let other = self.magnitude_of(&y);
                let (sum, product) = (bound + other, bound * other);
                if kind == 2 && sum <= LARGEST {
                    let known_as = if self.dims_of(&y).len() < dims.len() { "bias" } else { "residual" };
                    (label, code, magnitude) = (known_as, input() + Scalar::input("y"), sum);
                } else if kind == 3 && product <= LARGEST {
                    (label, code, magnitude) = ("mul", input() * Scalar::input("y"), product);
                } else {
                    (label, code, magnitude) = ("gate", code * Scalar::input("y"), other);
                }
                inputs.push(self.reading("y", &y));
            }
            4 if 2.0 * bound <= LARGEST => {
                (label, magnitude) = ("dropout", 2.0 * bound);
                let rate = *self.draws.pick(&[0.1, 0.25, 0.5]).unwrap_or(&0.5);
                let element = dims.iter().fold(Expr::Int(0), |e, d| e * self.program.size_of(d) + Expr::sym(d.as_str()));
                // The stream is the name that the output is about to get.
                let stream = format!("t{}", self.values());
                code = input() * Scalar::Keep { stream, element, rate };
            }
            _ => {}
        }
        inputs.insert(0, self.reading("x", &x));
        let out = self.value(&dims, magnitude);
        let outputs = vec![self.operand("out", &out)];
        self.insert(&out, Op::Elementwise { label: label.into(), code }, inputs, outputs)
    }

    fn values(&self) -> usize {
        self.program.containers.keys().filter(|k| k.starts_with('t') && !k.contains('.')).count()
    }

    fn value(&mut self, dims: &[String], magnitude: f64) -> String {
        self.declare("t", dims, Role::Transient, magnitude)
    }

    /// 1 / product of the sizes of `dims`.
    fn reciprocal(&self, dims: &[String]) -> Scalar {
        Scalar::Const(1.0) / Scalar::Index(Expr::product(dims.iter().map(|d| self.program.size_of(d))))
    }

    fn reduction(&mut self) -> Result<(), BuildError> {
        let x = self.any();
        let over = self.draws.subset(&self.dims_of(&x));
        let kept: Vec<String> = self.dims_of(&x).into_iter().filter(|d| !over.contains(d)).collect();
        let (label, combine, scale) = match self.draws.below(2) {
            0 => ("mean", Combine::Sum, self.reciprocal(&over)),
            _ => ("max", Combine::Max, Scalar::Const(1.0)),
        };
        let inputs = vec![self.reading("x", &x)];
        let out = self.value(&kept, self.magnitude_of(&x));
        let outputs = vec![self.operand("out", &out)];
        self.insert(&out, Op::Reduce { label: label.into(), combine, code: Scalar::input("x"), scale }, inputs, outputs)
    }

    fn softmax(&mut self) -> Result<(), BuildError> {
        let x = self.any();
        let dims = self.draws.shuffled(self.dims_of(&x));
        let over = self.draws.subset(&dims);
        let inputs = vec![self.reading("x", &x)];
        let out = self.value(&dims, 1.0);
        let outputs = vec![self.operand("out", &out)];
        self.insert(&out, Op::Softmax { over }, inputs, outputs)
    }

    /// Sums over dims that both operands have, and takes the mean, so that values stay small.
    fn contraction(&mut self) -> Result<(), BuildError> {
        let a = self.any();
        let shared = self.draws.subset(&self.dims_of(&a));
        let mut dims = shared.clone();
        if self.dims_of(&a).len() - shared.len() < 3 {
            dims.extend(self.program.dims.keys().filter(|d| !self.dims_of(&a).contains(d)).take(1).cloned());
        }
        let bound = 2.0 * self.magnitude_of(&a);
        if bound > LARGEST {
            return self.softmax();
        }
        let b = self.given(&dims);
        let over = self.draws.subset(&shared);
        let mut kept = self.dims_of(&a);
        kept.extend(dims.into_iter().filter(|d| !self.dims_of(&a).contains(d)));
        kept.retain(|d| !over.contains(d));
        let kept = self.draws.shuffled(kept);
        let scale = self.reciprocal(&over);
        let inputs = vec![self.reading("a", &a), self.reading("b", &b)];
        let out = self.value(&kept, bound);
        let outputs = vec![self.operand("out", &out)];
        self.insert(&out, Op::Contraction { scale }, inputs, outputs)
    }

    fn normalization(&mut self) -> Result<(), BuildError> {
        let x = self.any();
        let dims = self.dims_of(&x);
        let over = self.draws.subset(&dims);
        let kept: Vec<String> = dims.iter().filter(|d| !over.contains(d)).cloned().collect();
        let mut inputs = vec![self.reading("x", &x)];
        for connector in ["gamma", "beta"] {
            if self.draws.chance(60) {
                let given = self.given(&over);
                inputs.push(self.reading(connector, &given));
            }
        }
        // |x̂| ≤ √n ≤ √125 for n elements in a row.
        let out = self.value(&dims, 2.0 * 125f64.sqrt() + 2.0);
        let mut outputs = vec![self.operand("out", &out)];
        let kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        for statistic in ["mean", "rstd"] {
            let name = format!("{out}.{statistic}");
            self.program.add_container(Container::new(name.as_str(), &kept, Dtype::F32, Role::Transient));
            outputs.push(self.operand(statistic, &name));
        }
        self.insert(&out, Op::Normalize { over, eps: 0.1 }, inputs, outputs)
    }
}

/// The tensors that a random program is given, by name, in f64.
pub fn inputs(seed: u64, program: &Sdfg) -> BTreeMap<String, Vec<f64>> {
    let given = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
    given.map(|c| (c.name.clone(), tensor(seed, &c.name, program.elements(&c.name).unwrap_or(0) as usize))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_signed_and_centred_and_fit_f32() {
        let values = tensor(7, "x", 40_000);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        // The standard deviation of the mean of uniform values in (−2, 2) is 2/√(3n); six of them are allowed.
        assert!(mean.abs() < 6.0 * 2.0 / (3.0 * values.len() as f64).sqrt(), "{mean}");
        assert!(values.iter().all(|v| v.abs() < 2.0 && f64::from(*v as f32) == *v));
        assert_eq!(values[..5], tensor(7, "x", 5)[..]);
        assert_ne!(values[..5], tensor(7, "y", 5)[..]);
    }

    #[test]
    fn programs_cover_every_operator_and_are_reproducible() {
        let mut labels = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let program = program(seed);
            assert_eq!(program, super::program(seed));
            let units = program.units();
            assert!((3..=10).contains(&units.len()), "seed {seed}");
            assert!(program.containers.values().any(|c| c.role == Role::Output), "seed {seed}");
            for (_, _, unit) in units {
                if let crate::scope::Unit::Operation(operation) = unit {
                    labels.insert(operation.label().to_string());
                    assert!(!operation.expand(&program).unwrap().scopes.is_empty(), "seed {seed}");
                }
            }
        }
        let all =
            ["bias", "contraction", "dropout", "gate", "max", "mean", "mul", "norm", "relu", "residual", "sigmoid", "softmax", "tanh"];
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), all);
    }
}
