//! Memlets one by one: names, rank, bounds, conflicts.

use super::{Kind, Report, around, scope_after};
use crate::data::Storage;
use crate::memlet::{Memlet, Range};
use crate::node::{EdgeId, Index, IndexKind, Library, Node, NodeId, StateId};
use crate::propagate::propagate;
use crate::scalar::Scalar;
use crate::state::State;
use crate::symbol::Expr;
use std::collections::{BTreeMap, BTreeSet};

/// Indices of the maps around a point, from the innermost to the outermost.
pub(super) fn indices(state: &State, scope: Option<NodeId>) -> Vec<Index> {
    let entries = around(state, scope).into_iter();
    let of = |entry| if let Some(Node::MapEntry(map)) = state.node(entry) { map.indices.clone() } else { vec![] };
    entries.flat_map(of).collect()
}

pub(super) fn check(report: &mut Report, id: StateId, state: &State) {
    let at = (id, state);
    for (node, vertex) in state.nodes() {
        let outer = indices(state, vertex.scope);
        match &vertex.node {
            Node::MapEntry(map) => {
                for index in &map.indices {
                    if !report.program.dims.contains_key(&index.dim) {
                        report.node(
                            Kind::Name,
                            at,
                            node,
                            format!(
                                "the index `{}` runs along the dim `{}`, which is not declared; add it to the dims",
                                index.name, index.dim
                            ),
                        );
                    }
                    if index.step.as_int().is_some_and(|step| step <= 0) {
                        report.node(
                            Kind::Bounds,
                            at,
                            node,
                            format!("the index `{}` has the step {}; make it 1 or more", index.name, index.step),
                        );
                    }
                    let known = outer.iter().chain(&map.indices).map(|i| &i.name).collect();
                    for symbol in unbound(report, [&index.start, &index.stop, &index.step], &known) {
                        report.node(Kind::Name, at, node, format!("the range of the index `{}` uses `{symbol}`, which nothing binds; bind it in `sizes` or in a map around it", index.name));
                    }
                }
            }
            Node::Tasklet(tasklet) => {
                let known = outer.iter().map(|i| &i.name).collect();
                let mut used = Vec::new();
                for (_, code) in &tasklet.code {
                    code.walk(&mut |s| {
                        if let Scalar::Index(e) | Scalar::Keep { element: e, .. } = s {
                            used.push(e.clone());
                        }
                    });
                }
                for symbol in unbound(report, &used, &known) {
                    report.node(
                        Kind::Name,
                        at,
                        node,
                        format!(
                            "the code of `{}` uses `{symbol}`, which nothing binds; bind it in `sizes` or in a map around it",
                            tasklet.name
                        ),
                    );
                }
            }
            _ => {}
        }
    }
    let homes = homes(report, state);
    for (edge, from, to, found) in state.edges() {
        let memlet = &found.memlet;
        let Some(container) = report.program.containers.get(&memlet.data) else {
            report.edge(
                Kind::Name,
                at,
                edge,
                format!("the memlet moves `{}`, which is not declared; declare it in the program", memlet.data),
            );
            continue;
        };
        if memlet.subset.len() != container.dims.len() {
            let (given, wanted) = (memlet.subset.len(), container.dims.len());
            report.edge(
                Kind::Rank,
                at,
                edge,
                format!("the memlet subscripts {given} dims, but `{}` has {wanted}; give one range for each", memlet.data),
            );
            continue;
        }
        let scope = scope_after(state, from);
        let inside = indices(state, scope);
        let known: BTreeSet<&String> = inside.iter().map(|i| &i.name).collect();
        let used = memlet.subset.iter().flat_map(ends).chain([&memlet.volume]);
        for symbol in unbound(report, used, &known) {
            report.edge(
                Kind::Name,
                at,
                edge,
                format!("the memlet uses `{symbol}`, which nothing binds here; bind it in `sizes` or in a map around it"),
            );
        }
        if memlet.fill.is_none() {
            bounds(report, at, edge, memlet, &inside);
        }
        if memlet.wcr.is_none() && matches!(state.node(from), Some(Node::Tasklet(_))) {
            let home = homes.get(memlet.data.as_str()).copied().flatten();
            conflict(report, at, edge, memlet, from, home);
        }
        for (node, connector) in [(from, &found.from), (to, &found.to)] {
            if let Some(Node::Library(library)) = state.node(node) {
                operand(report, at, edge, library, connector, &inside);
            }
        }
    }
}

fn ends(range: &Range) -> Vec<&Expr> {
    match range {
        Range::At(at) => vec![at],
        Range::Span { start, stop, step } => vec![start, stop, step],
    }
}

fn unbound<'e>(report: &Report, used: impl IntoIterator<Item = &'e Expr>, known: &BTreeSet<&String>) -> BTreeSet<String> {
    used.into_iter().flat_map(Expr::symbols).filter(|s| !known.contains(s) && !report.bound.contains(s)).collect()
}

/// The hull over all iterations must lie inside the container. Where propagation cannot say, nothing is wrong.
fn bounds(report: &mut Report, at: (StateId, &State), edge: EdgeId, memlet: &Memlet, inside: &[Index]) {
    let program = report.program;
    let value = |e: &Expr| e.eval(&program.sizes).ok();
    if inside.iter().any(|i| value(&i.count()).is_some_and(|n| n <= 0)) {
        return;
    }
    let Some(container) = program.containers.get(&memlet.data) else { return };
    let sizes = program.shape(container);
    let whole = propagate(memlet, inside, &sizes);
    for ((range, size), dim) in whole.subset.iter().zip(&sizes).zip(&container.dims) {
        let (first, stop) = match range {
            Range::At(e) => (value(e), value(e).and_then(|v| v.checked_add(1))),
            Range::Span { start, stop, .. } => (value(start), value(stop)),
        };
        if let (Some(first), Some(stop), Some(size)) = (first, stop, value(size))
            && first < stop
            && (first < 0 || stop > size)
        {
            report.edge(
                Kind::Bounds,
                at,
                edge,
                format!("elements {first} to {} of dim `{dim}` are touched, which has {size}; shrink the range or give a fill", stop - 1),
            );
        }
    }
}

/// The subscripts of an operand, like a memlet inside the operator's own iteration space.
fn operand(report: &mut Report, at: (StateId, &State), edge: EdgeId, library: &Library, connector: &str, inside: &[Index]) {
    let Some(memlet) = at.1.edges().find(|(e, ..)| *e == edge).map(|(.., found)| &found.memlet) else { return };
    let Some(port) = library.inputs.iter().chain(&library.outputs).find(|p| p.connector == connector) else { return };
    let (given, wanted) = (port.subscripts.len(), memlet.subset.len());
    if given != wanted {
        let message = format!(
            "`{}` subscripts `{connector}` by {given} indices, but `{}` has {wanted} dims; give one for each",
            library.name, memlet.data
        );
        return report.edge(Kind::Rank, at, edge, message);
    }
    let own = library.indices.iter().map(|(name, dim)| Index::over(name, dim, report.program.size_of(dim), IndexKind::Independent));
    let around: Vec<Index> = own.chain(inside.iter().cloned()).collect();
    if port.fill.is_none() {
        bounds(report, at, edge, &Memlet::at(&memlet.data, port.subscripts.clone()), &around);
    }
}

/// Where each container on chip exists once per iteration: the innermost scope around all its uses.
fn homes<'s>(report: &Report, state: &'s State) -> BTreeMap<&'s str, Option<NodeId>> {
    let mut chains: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
    for (_, from, to, edge) in state.edges() {
        let data = edge.memlet.data.as_str();
        let on_chip = report.program.containers.get(data).is_some_and(|c| c.storage != Storage::Heap);
        for node in [from, to].into_iter().filter(|n| on_chip && matches!(state.node(*n), Some(Node::Tasklet(_) | Node::Library(_)))) {
            let mut chain = around(state, state.vertex(node).and_then(|v| v.scope));
            chain.reverse();
            chains
                .entry(data)
                .and_modify(|shared| shared.truncate(shared.iter().zip(&chain).take_while(|(a, b)| a == b).count()))
                .or_insert(chain);
        }
    }
    chains.into_iter().map(|(data, chain)| (data, chain.last().copied())).collect()
}

/// Iterations that differ in an index which the write does not mention write one element together.
fn conflict(report: &mut Report, at: (StateId, &State), edge: EdgeId, memlet: &Memlet, writer: NodeId, home: Option<NodeId>) {
    let scopes = around(at.1, at.1.vertex(writer).and_then(|v| v.scope));
    let inner = scopes.into_iter().take_while(|s| Some(*s) != home);
    let free: Vec<Index> =
        inner.flat_map(|s| if let Some(Node::MapEntry(map)) = at.1.node(s) { map.indices.clone() } else { vec![] }).collect();
    let mut mentioned: BTreeSet<String> = memlet.subset.iter().flat_map(ends).flat_map(Expr::symbols).collect();
    // A range that begins at `8*t` mentions `t`. Inner indices come first, so one pass is enough but for a map's own.
    for _ in 0..2 {
        for index in &free {
            if mentioned.contains(&index.name) {
                mentioned.extend([&index.start, &index.stop].into_iter().flat_map(Expr::symbols));
            }
        }
    }
    for index in free.iter().filter(|i| i.kind != IndexKind::Sequential && !mentioned.contains(&i.name)) {
        report.edge(
            Kind::Conflict,
            at,
            edge,
            format!("all iterations of `{}` write the same element; subscript by it or give the write a combine (wcr)", index.name),
        );
    }
}
