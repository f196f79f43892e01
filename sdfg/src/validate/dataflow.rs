//! Who writes and reads what, and when.

use super::{Kind, Report};
use crate::data::{Role, Storage};
use crate::graph::Sdfg;
use crate::memlet::{Memlet, Range};
use crate::node::{Index, IndexKind, Node, NodeId, StateId};
use crate::propagate::propagate;
use crate::scope::{Item, Scope};
use crate::symbol::Expr;
use std::collections::{BTreeMap, BTreeSet};

/// The container that is stored: the one at the end of a chain of views.
fn stored<'a>(program: &'a Sdfg, data: &'a str) -> &'a str {
    let mut at = data;
    // A chain longer than there are containers is a ring, which is reported with the declarations.
    for _ in 0..program.containers.len() {
        match program.containers.get(at).and_then(|c| c.view.as_ref()) {
            Some(view) => at = &view.of,
            None => break,
        }
    }
    at
}

/// Whether two writes provably touch no common element: in some dimension one ends before the other begins.
fn apart(program: &Sdfg, a: &Memlet, b: &Memlet) -> bool {
    let value = |e: &Expr| e.eval(&program.sizes).ok();
    let ends = |range: &Range| match range {
        Range::At(at) => value(at).map(|at| (at, at + 1)),
        Range::Span { start, stop, .. } => Some((value(start)?, value(stop)?)),
    };
    let disjoint = |(a, b): (&Range, &Range)| match (ends(a), ends(b)) {
        (Some((a0, a1)), Some((b0, b1))) => a1 <= b0 || b1 <= a0,
        _ => false,
    };
    a.subset.iter().zip(&b.subset).any(disjoint)
}

/// The parts of a container that a unit writes, one for each write inside.
fn parts(program: &Sdfg, (state, node): (StateId, NodeId), whole: &Memlet) -> Vec<Memlet> {
    let Some(scope) = program.state(state).and_then(|state| state.scope(node)) else { return vec![whole.clone()] };
    let sizes = program.containers.get(&whole.data).map(|c| program.shape(c)).unwrap_or_default();
    let mut found = Vec::new();
    for (around, computation) in scope.computations() {
        // From the innermost index out.
        let indices: Vec<Index> = around.iter().rev().map(|index| (*index).clone()).collect();
        let writes = computation.writes.iter().filter(|(_, memlet)| memlet.data == whole.data);
        found.extend(writes.map(|(_, memlet)| propagate(memlet, &indices, &sizes)));
    }
    if found.is_empty() { vec![whole.clone()] } else { found }
}

pub(super) fn check(report: &mut Report) {
    let program = report.program;
    let given = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
    let mut written: BTreeSet<&str> = given.map(|c| c.name.as_str()).collect();
    let mut writers: BTreeMap<&str, Vec<(StateId, NodeId, &Memlet)>> = BTreeMap::new();
    let mut names: BTreeMap<&str, (StateId, NodeId)> = BTreeMap::new();
    for (id, state) in program.states() {
        let at = (id, state);
        for node in state.topological(None).unwrap_or_default() {
            let name = match state.node(node) {
                Some(Node::MapEntry(map)) => &map.label,
                Some(Node::Library(library)) => &library.name,
                Some(Node::Nested(nested)) => &nested.name,
                _ => continue,
            };
            if let Some((s, n)) = names.insert(name, (id, node)) {
                report.node(Kind::Name, at, node, format!("{s}, {n} is also called `{name}`; give each unit a name of its own"));
            }
            let (reads, writes) = state.boundary(node);
            for data in reads.iter().map(|m| m.data.as_str()).collect::<BTreeSet<_>>() {
                let known = written.contains(stored(program, data)) || written.contains(data);
                if program.containers.contains_key(data) && !known {
                    report.node(
                        Kind::Dataflow,
                        at,
                        node,
                        format!("`{name}` reads `{data}`, which nothing has written before; write it first or make it an input"),
                    );
                }
            }
            for data in writes.iter().map(|m| m.data.as_str()).collect::<BTreeSet<_>>() {
                let Some(container) = program.containers.get(data) else { continue };
                if matches!(container.role, Role::Input | Role::Parameter) {
                    report.node(
                        Kind::Dataflow,
                        at,
                        node,
                        format!("`{name}` writes `{data}`, which is given from outside; write to a container of another role"),
                    );
                }
                for memlet in writes.iter().filter(|m| m.data == data && container.storage == Storage::Heap) {
                    let others = writers.entry(data).or_default();
                    // Several parts of one unit may have parts of another between them.
                    let disjoint = |(s, n, other): &(StateId, NodeId, &Memlet)| {
                        let [own, theirs] = [((id, node), memlet), ((*s, *n), other)].map(|(at, whole)| parts(program, at, whole));
                        own.iter().all(|a| theirs.iter().all(|b| apart(program, a, b)))
                    };
                    let clash = |w: &&(StateId, NodeId, &Memlet)| w.1 != node && !apart(program, memlet, w.2) && !disjoint(w);
                    if let Some((s, n, _)) = others.iter().find(clash) {
                        report.node(
                            Kind::Dataflow,
                            at,
                            node,
                            format!("`{name}` writes `{data}`, which {s}, {n} writes too; write to two containers and add them up"),
                        );
                    }
                    others.push((id, node, memlet));
                }
                written.extend([data, stored(program, data)]);
            }
            if let Some(scope) = state.scope(node) {
                let mut inside = Inside { program, written: BTreeSet::new(), early: BTreeSet::new() };
                inside.walk(&scope);
                for data in inside.early {
                    report.node(
                        Kind::Dataflow,
                        at,
                        node,
                        format!("`{name}` reads `{data}`, which lives on chip and is not written before within it; write it first"),
                    );
                }
            }
        }
    }
}

/// Containers on chip within one scope.
struct Inside<'a> {
    program: &'a Sdfg,
    written: BTreeSet<String>,
    early: BTreeSet<String>,
}

impl Inside<'_> {
    fn walk(&mut self, scope: &Scope) {
        if scope.map.indices.iter().any(|i| i.kind == IndexKind::Sequential) {
            // An iteration may read what the one before wrote.
            self.written.extend(scope.writes().into_keys());
        }
        for item in &scope.body {
            let (reads, writes): (Vec<&String>, Vec<&String>) = match item {
                Item::Scope(inner) => {
                    self.walk(inner);
                    continue;
                }
                Item::Tasklet(c) => (c.reads.iter().map(|(_, m)| &m.data).collect(), c.writes.iter().map(|(_, m)| &m.data).collect()),
                Item::Operation(o) => (o.inputs.iter().map(|o| &o.data).collect(), o.outputs.iter().map(|o| &o.data).collect()),
            };
            for data in reads {
                let on_chip = self.program.containers.get(data).is_some_and(|c| c.storage != Storage::Heap);
                if on_chip && !self.written.contains(data) {
                    self.early.insert(data.clone());
                }
            }
            self.written.extend(writes.into_iter().cloned());
        }
    }
}
