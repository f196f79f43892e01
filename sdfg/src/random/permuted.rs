//! Random programs that read one tensor at several index orders: transposed, along a diagonal, and through shared indices.
//!
//! ```text
//! t1[b,i,j] = tanh(t0[b,i,j] - t0[b,j,i])      t2[b,i] = mean over j of t1[b,i,j] * t1[b,i,i]
//! ```
//!
//! All of `i`, `j` and `k` have one size, so that any of them may subscript any dim of that size; `b` has a size of its own. A pass
//! that matches indices of producer and consumer by the first read alone gets such programs wrong.

use super::Draws;
use crate::data::{Container, Dtype, Role};
use crate::graph::{BuildError, Sdfg};
use crate::library::Op;
use crate::memlet::Combine;
use crate::node::{Direction, Operand, Operation, StateId};
use crate::scalar::{Scalar, Unary};
use crate::symbol::Expr;
use indexmap::IndexMap;

/// Dims of one size.
const SQUARE: [&str; 3] = ["i", "j", "k"];

/// A random program of 2 to 6 operations, the same for the same seed. Every value that no operation reads is an output.
///
/// `diagonals` says whether one read may use an index twice, as `x[i,i]`: such reads have no derivative.
pub fn permuted_program(seed: u64, diagonals: bool) -> Sdfg {
    let mut builder = Builder::new(seed, diagonals);
    let operations = 2 + builder.draws.below(5);
    for _ in 0..operations {
        // Every operand was declared a moment before: inserting cannot fail. Were it to, the program would be shorter.
        if builder.operation().is_err() {
            break;
        }
    }
    builder.finish()
}

struct Builder {
    draws: Draws,
    program: Sdfg,
    state: StateId,
    diagonals: bool,
    read: Vec<String>,
}

impl Builder {
    fn new(seed: u64, diagonals: bool) -> Self {
        let mut program = Sdfg::new(format!("permuted{seed}"));
        let mut draws = Draws::new(seed);
        for (dim, size) in [("b", "B"), ("i", "N"), ("j", "N"), ("k", "N")] {
            program.dims.insert(dim.into(), Expr::sym(size));
        }
        program.sizes.insert("B".into(), 1 + draws.below(3) as i64);
        program.sizes.insert("N".into(), 2 + draws.below(3) as i64);
        let state = program.add_state("forward");
        let mut builder = Builder { draws, program, state, diagonals, read: Vec::new() };
        let dims = builder.space(2);
        builder.declare("x", &dims, Role::Input);
        builder
    }

    fn finish(mut self) -> Sdfg {
        for (name, container) in &mut self.program.containers {
            if container.role == Role::Transient && !name.contains('.') && !self.read.contains(name) {
                container.role = Role::Output;
            }
        }
        self.program
    }

    /// Distinct dims in a random order, at least `square` of them of the shared size.
    fn space(&mut self, square: usize) -> Vec<String> {
        let names = SQUARE.iter().map(|d| d.to_string()).collect();
        let count = square.max(1 + self.draws.below(3));
        let mut dims: Vec<String> = self.draws.shuffled(names).into_iter().take(count).collect();
        if self.draws.chance(60) {
            dims.push("b".into());
        }
        self.draws.shuffled(dims)
    }

    fn declare(&mut self, stem: &str, dims: &[String], role: Role) -> String {
        let number = self.program.containers.keys().filter(|k| k.starts_with(stem) && !k.contains('.')).count();
        let name = format!("{stem}{number}");
        let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
        self.program.add_container(Container::new(name.as_str(), &dims, Dtype::F32, role));
        name
    }

    fn dims_of(&self, data: &str) -> Vec<String> {
        self.program.containers.get(data).map(|c| c.dims.clone()).unwrap_or_default()
    }

    /// A container that can be read under these indices; mostly one that an operation wrote.
    fn source(&mut self, indices: &[String]) -> String {
        let square = indices.iter().filter(|i| *i != "b").count();
        let fits = |dims: &[String]| {
            let needed = dims.iter().filter(|d| *d != "b").count();
            (needed <= square || self.diagonals && square > 0) && (indices.iter().any(|i| i == "b") || dims.iter().all(|d| d != "b"))
        };
        let named = |stem: &str| -> Vec<String> {
            let known = self.program.containers.values().filter(|c| c.name.starts_with(stem) && !c.name.contains('.') && fits(&c.dims));
            known.map(|c| c.name.clone()).collect()
        };
        let (made, given) = (named("t"), named("x"));
        let from = if !made.is_empty() && self.draws.chance(85) { made } else { given };
        match self.draws.pick(&from).cloned() {
            Some(data) if self.draws.chance(90) => data,
            _ => {
                let dims = self.draws.subset(indices);
                let dims = self.draws.shuffled(dims);
                self.declare("x", &dims, Role::Input)
            }
        }
    }

    /// Reads a container under some of these indices, each dim by an index of its size.
    fn reading(&mut self, connector: &str, data: &str, indices: &[String]) -> Operand {
        self.read.push(data.to_string());
        let mut free: Vec<String> = indices.iter().filter(|i| *i != "b").cloned().collect();
        let mut subscripts = Vec::new();
        for dim in self.dims_of(data) {
            if dim == "b" {
                subscripts.push(dim);
                continue;
            }
            // Its own index is the likeliest, so that one read is straight and another one is not.
            let own = free.contains(&dim) && self.draws.chance(50);
            let index = if own { dim } else { self.draws.pick(&free).cloned().unwrap_or_default() };
            if !self.diagonals {
                free.retain(|i| *i != index);
            }
            subscripts.push(index);
        }
        Operand::new(connector, data, &subscripts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn insert(&mut self, op: Op, indices: &[String], inputs: Vec<Operand>, kept: &[String]) -> Result<(), BuildError> {
        let out = self.declare("t", kept, Role::Transient);
        let outputs = vec![Operand::new("out", &out, &kept.iter().map(String::as_str).collect::<Vec<_>>())];
        let indices: IndexMap<String, String> = indices.iter().map(|i| (i.clone(), i.clone())).collect();
        let operation = Operation { name: out, op, indices, inputs, outputs, pass: Direction::Forward, origin: None };
        self.program.insert_operation(self.state, &operation).map(|_| ())
    }

    fn operation(&mut self) -> Result<(), BuildError> {
        let kind = self.draws.below(10);
        // Rows of a softmax and factors of a contraction are read without diagonals.
        let diagonals = self.diagonals;
        self.diagonals = diagonals && kind < 7;
        let inserted = self.operation_of(kind);
        self.diagonals = diagonals;
        inserted
    }

    fn operation_of(&mut self, kind: usize) -> Result<(), BuildError> {
        let indices = self.space(2);
        let first = self.source(&indices);
        // The same tensor at other subscripts, or another one.
        let second = if self.draws.chance(60) { first.clone() } else { self.source(&indices) };
        match kind {
            0..=4 => {
                let third = if self.draws.chance(50) { first.clone() } else { self.source(&indices) };
                let inputs = [("x", &first), ("y", &second), ("z", &third)];
                let inputs: Vec<Operand> = inputs.into_iter().map(|(c, data)| self.reading(c, data, &indices)).collect();
                let [x, y, z] = ["x", "y", "z"].map(Scalar::input);
                let code = match self.draws.below(3) {
                    0 => Scalar::unary(Unary::Tanh, x - y * z),
                    1 => Scalar::unary(Unary::Sigmoid, x * y) * z,
                    _ => Scalar::unary(Unary::Tanh, x) + Scalar::Const(0.5) * y * Scalar::unary(Unary::Sigmoid, z),
                };
                self.insert(Op::Elementwise { label: "mix".into(), code }, &indices, inputs, &indices)
            }
            5 | 6 => {
                let (kept, scale) = self.kept(&indices);
                let inputs = vec![self.reading("x", &first, &indices), self.reading("y", &second, &indices)];
                let code = Scalar::unary(Unary::Tanh, Scalar::input("x") * Scalar::input("y"));
                let (label, combine, scale) = match self.draws.below(3) {
                    0 => ("max", Combine::Max, Scalar::Const(1.0)),
                    _ => ("mean", Combine::Sum, scale),
                };
                self.insert(Op::Reduce { label: label.into(), combine, code, scale }, &indices, inputs, &kept)
            }
            7 => {
                // Every element of what it reads is in one row: the indices are those of the container, in any order of equal sizes.
                let own = self.dims_of(&first);
                let inputs = vec![self.reading("x", &first, &own)];
                let indices = self.draws.shuffled(own);
                let over = self.draws.pick(&indices).cloned().into_iter().collect();
                self.insert(Op::Softmax { over }, &indices, inputs, &indices)
            }
            _ => {
                // Every index is in both factors, or in one and in the result; without one that both have there is nothing to sum.
                let inputs = vec![self.reading("a", &first, &indices), self.reading("b", &second, &indices)];
                let has = |n: usize, index: &String| inputs[n].index_names().is_some_and(|names| names.contains(&index.as_str()));
                let both: Vec<String> = indices.iter().filter(|i| has(0, i) && has(1, i)).cloned().collect();
                let indices: Vec<String> = indices.iter().filter(|i| has(0, i) || has(1, i)).cloned().collect();
                let over = self.draws.subset(&both);
                let kept: Vec<String> = indices.iter().filter(|i| !over.contains(i)).cloned().collect();
                let scale = self.reciprocal(&over);
                let kept = self.draws.shuffled(kept);
                self.insert(Op::Contraction { scale }, &indices, inputs, &kept)
            }
        }
    }

    /// Indices that a reduction keeps, and one over the number of elements that it adds up.
    fn kept(&mut self, indices: &[String]) -> (Vec<String>, Scalar) {
        let over = self.draws.subset(indices);
        let kept: Vec<String> = indices.iter().filter(|i| !over.contains(i)).cloned().collect();
        (self.draws.shuffled(kept), self.reciprocal(&over))
    }

    /// One over the product of the sizes of `dims`.
    fn reciprocal(&self, dims: &[String]) -> Scalar {
        Scalar::Const(1.0) / Scalar::Index(Expr::product(dims.iter().map(|d| self.program.size_of(d))))
    }
}
