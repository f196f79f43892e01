//! A map scope as a tree: the view in which scopes are built, fused and lowered.
//!
//! The graph is the truth; [`crate::state::State::scope`] reads a tree from it and [`crate::graph::Sdfg::insert_scope`]
//! writes one into it, adding access nodes and propagated memlets.

use crate::graph::Sdfg;
use crate::memlet::Memlet;
use crate::node::{Computation, Index, Map, Operation};
use crate::symbol::Expr;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// A map and what it holds, in an order that respects data dependence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scope {
    pub map: Map,
    pub body: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
// Trees are small and short-lived; boxing would cost every pattern more than it saves.
#[allow(clippy::large_enum_variant)]
pub enum Item {
    Scope(Scope),
    Tasklet(Computation),
    /// A contraction or convolution on tile memlets (tile scopes).
    Operation(Operation),
}

/// What stands at the top level of a state: one kernel, once everything is expanded.
// As for `Item`.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    Operation(Operation),
    Scope(Scope),
    Nested(crate::node::Nested),
}

impl Scope {
    pub fn new(label: impl Into<String>, indices: Vec<Index>, body: Vec<Item>) -> Self {
        Scope { map: Map { label: label.into(), indices }, body }
    }

    /// Every computation, in order, with the indices of the maps around it from outer to inner.
    pub fn computations(&self) -> Vec<(Vec<&Index>, &Computation)> {
        let mut found = Vec::new();
        self.collect(&mut Vec::new(), &mut found);
        found
    }

    fn collect<'a>(&'a self, around: &mut Vec<&'a Index>, found: &mut Vec<(Vec<&'a Index>, &'a Computation)>) {
        let depth = around.len();
        around.extend(&self.map.indices);
        for item in &self.body {
            match item {
                Item::Scope(inner) => inner.collect(around, found),
                Item::Tasklet(computation) => found.push((around.clone(), computation)),
                Item::Operation(_) => {}
            }
        }
        around.truncate(depth);
    }

    /// Names of the operators held, in order of first appearance.
    pub fn operators(&self) -> Vec<String> {
        let mut names: IndexMap<String, ()> = IndexMap::new();
        for (_, computation) in self.computations() {
            names.insert(computation.tasklet.operator.clone(), ());
        }
        names.into_keys().collect()
    }

    /// Containers read anywhere in the scope, with every memlet, in order of first appearance.
    pub fn reads(&self) -> IndexMap<String, Vec<&Memlet>> {
        let mut found: IndexMap<String, Vec<&Memlet>> = IndexMap::new();
        for (_, computation) in self.computations() {
            for (_, memlet) in &computation.reads {
                found.entry(memlet.data.clone()).or_default().push(memlet);
            }
        }
        found
    }

    /// Containers written anywhere in the scope, with every memlet, in order of first appearance.
    pub fn writes(&self) -> IndexMap<String, Vec<&Memlet>> {
        let mut found: IndexMap<String, Vec<&Memlet>> = IndexMap::new();
        for (_, computation) in self.computations() {
            for (_, memlet) in &computation.writes {
                found.entry(memlet.data.clone()).or_default().push(memlet);
            }
        }
        found
    }

    /// Whether the elements of a container that the maps write, each by indices of its own, are fewer than it has.
    pub fn writes_part(&self, program: &Sdfg, data: &str) -> bool {
        let mut written = 0i64;
        for (around, computation) in self.computations() {
            for (_, memlet) in computation.writes.iter().filter(|(_, m)| m.data == data) {
                let along = |e: &Expr| {
                    let symbols = e.symbols();
                    let indices: Vec<_> = around.iter().filter(|i| symbols.contains(&i.name)).collect();
                    match indices[..] {
                        [] => Some(1),
                        [index] => index.count().eval(&program.sizes).ok(),
                        _ => None,
                    }
                };
                let elements = memlet.point().and_then(|point| point.into_iter().map(along).product::<Option<i64>>());
                let Some(elements) = elements else { return false };
                written = written.saturating_add(elements);
            }
        }
        let all = program.shape_of(data).map_or(0, |shape| shape.iter().product::<usize>() as i64);
        written > 0 && written < all
    }
}

impl Unit {
    pub fn name(&self) -> &str {
        match self {
            Unit::Operation(operation) => &operation.name,
            Unit::Scope(scope) => &scope.map.label,
            Unit::Nested(nested) => &nested.name,
        }
    }

    /// Whether an operation or a scope writes only a slice of a container.
    pub fn writes_part(&self, program: &Sdfg, data: &str) -> bool {
        let operation = match self {
            Unit::Operation(operation) => operation,
            Unit::Scope(scope) => return scope.writes_part(program, data),
            _ => return false,
        };
        let Some(container) = program.containers.get(data) else { return false };
        let size = |index: &str| operation.indices.get(index).map(|dim| program.size_of(dim));
        let whole = |subscript: &Expr, dim: &String| subscript.as_sym().and_then(size) == Some(program.size_of(dim));
        let outputs = operation.outputs.iter().filter(|o| o.data == data);
        outputs.into_iter().any(|o| !o.subscripts.iter().zip(&container.dims).all(|(s, dim)| whole(s, dim)))
    }
}
