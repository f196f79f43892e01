//! Which operations depend on one another, and along which dim they do so at fixed distances.

use super::RecurrenceError;
use crate::affine::Affine;
use crate::graph::Sdfg;
use crate::node::{Operand, Operation};
use crate::symbol::Expr;
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Whether an operation reads what it writes.
pub(super) fn reads_itself(operation: &Operation) -> bool {
    operation.inputs.iter().any(|input| operation.outputs.iter().any(|output| output.data == input.data))
}

/// Groups of operations that depend on one another, by number, each in ascending order; a group comes after all that it reads, and else
/// the one with the least number first.
pub(super) fn components(operations: &[Operation]) -> Vec<Vec<usize>> {
    let reads = |n: usize| operations[n].inputs.iter().map(|i| i.data.as_str());
    groups(operations, &|n| reads(n).collect())
}

/// As [`components`], of the containers that each operation waits for.
fn groups<'a>(operations: &'a [Operation], reads: &dyn Fn(usize) -> Vec<&'a str>) -> Vec<Vec<usize>> {
    let mut writers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (n, operation) in operations.iter().enumerate() {
        operation.outputs.iter().for_each(|output| writers.entry(output.data.as_str()).or_default().push(n));
    }
    let mut graph: DiGraph<(), ()> = DiGraph::new();
    let nodes: Vec<NodeIndex> = operations.iter().map(|_| graph.add_node(())).collect();
    for n in 0..operations.len() {
        for writer in reads(n).into_iter().filter_map(|data| writers.get(data)).flatten() {
            graph.update_edge(nodes[*writer], nodes[n], ());
        }
    }
    let mut groups: Vec<Vec<usize>> = tarjan_scc(&graph).into_iter().map(|group| group.iter().map(|n| n.index()).collect()).collect();
    groups.iter_mut().for_each(|group| group.sort_unstable());
    let mut of = vec![0; operations.len()];
    groups.iter().enumerate().for_each(|(g, group)| group.iter().for_each(|n| of[*n] = g));
    let mut after: Vec<Vec<usize>> = vec![vec![]; groups.len()];
    let mut waiting = vec![0usize; groups.len()];
    for edge in graph.raw_edges() {
        let (from, to) = (of[edge.source().index()], of[edge.target().index()]);
        if from != to {
            after[from].push(to);
            waiting[to] += 1;
        }
    }
    let key = |g: usize| Reverse((groups[g][0], g));
    let mut ready: BinaryHeap<_> = (0..groups.len()).filter(|g| waiting[*g] == 0).map(key).collect();
    let mut order = Vec::new();
    while let Some(Reverse((_, g))) = ready.pop() {
        order.push(g);
        for next in &after[g] {
            waiting[*next] -= 1;
            if waiting[*next] == 0 {
                ready.push(key(*next));
            }
        }
    }
    order.into_iter().map(|g| groups[g].clone()).collect()
}

/// The dim that a component runs along.
pub(super) struct Time {
    pub dim: String,
    /// The index of each member over it.
    pub indices: Vec<String>,
    /// Whether members read later times.
    pub reversed: bool,
}

/// A read of a member's result at another time: the reader, the container, and the distance.
struct Carried<'a> {
    reader: &'a Operation,
    operand: &'a Operand,
    axis: usize,
    distance: i64,
}

impl Time {
    /// The first dim of the first result along which all members read one another at fixed distances.
    pub(super) fn of(program: &Sdfg, members: &[&Operation]) -> Result<Time, RecurrenceError> {
        let first = members[0].outputs.first().and_then(|o| program.containers.get(&o.data));
        let dims = first.map(|c| c.dims.clone()).unwrap_or_default();
        let mut refused = None;
        for dim in &dims {
            match along(program, members, dim) {
                Ok(Some(time)) => return Ok(time),
                Ok(None) => {}
                // The first dim that something is carried along tells what is wrong.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let names = names(members);
        let carried = dims.iter().find(|dim| shared(program, members, dim).is_some());
        Err(refused.unwrap_or_else(|| match carried {
            Some(_) => same_time(members, dims.first()),
            None => RecurrenceError::NoDim {
                name: names.first().cloned().unwrap_or_default(),
                names,
                at: members[0].origin.clone().map(Box::new),
            },
        }))
    }
}

/// The steps that the members are parts of: `h.dot` is one of `h`.
fn names(members: &[&Operation]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for member in members {
        let step = member.name.split('.').next().unwrap_or(&member.name).to_string();
        if !names.contains(&step) {
            names.push(step);
        }
    }
    names
}

/// Members that need each other at one time.
pub(super) fn same_time(members: &[&Operation], dim: Option<&String>) -> RecurrenceError {
    let names = names(members);
    let of = names.first().map_or("h", String::as_str);
    let dim = dim.map_or("t", String::as_str);
    RecurrenceError::SameTime { example: format!("{of}[{dim}-1, … else 0]"), names, at: members[0].origin.clone().map(Box::new) }
}

/// The index of each member over a dim, if every result has the dim under a plain index of its own.
fn shared(program: &Sdfg, members: &[&Operation], dim: &str) -> Option<Vec<String>> {
    members
        .iter()
        .map(|member| {
            let mut found: Option<&str> = None;
            for output in &member.outputs {
                let container = program.containers.get(&output.data)?;
                let axis = container.dims.iter().position(|d| d == dim)?;
                let index = output.subscripts.get(axis)?.as_sym()?;
                let whole = program.size_of(member.indices.get(index)?) == program.size_of(dim);
                let once = output.subscripts.iter().filter(|s| s.symbols().contains(index)).count() == 1;
                if !whole || !once || found.is_some_and(|known| known != index) {
                    return None;
                }
                found = Some(index);
            }
            found.map(String::from)
        })
        .collect()
}

/// The loop along a dim; `None` if nothing is carried along it.
fn along(program: &Sdfg, members: &[&Operation], dim: &str) -> Result<Option<Time>, RecurrenceError> {
    let Some(indices) = shared(program, members, dim) else { return Ok(None) };
    let mut carried: Vec<Carried> = Vec::new();
    let mut wrong = None;
    for (reader, index) in members.iter().zip(&indices) {
        for operand in reader.inputs.iter().filter(|i| members.iter().any(|m| m.outputs.iter().any(|o| o.data == i.data))) {
            let Some(container) = program.containers.get(&operand.data) else { continue };
            let Some(axis) = container.dims.iter().position(|d| d == dim) else { continue };
            let elsewhere = operand.subscripts.iter().enumerate().any(|(n, s)| n != axis && s.symbols().contains(index));
            match distance(reader, &operand.subscripts[axis], index).filter(|_| !elsewhere) {
                Some(0) => {}
                Some(distance) => carried.push(Carried { reader, operand, axis, distance }),
                None => {
                    let subscript = operand.subscripts[axis].to_string();
                    wrong = wrong.or(Some(RecurrenceError::Distance {
                        name: reader.name.clone(),
                        data: operand.data.clone(),
                        subscript,
                        dim: dim.to_string(),
                        at: reader.origin.clone().map(Box::new),
                    }));
                }
            }
        }
    }
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let Some(first) = carried.first() else { return Ok(None) };
    if let Some(other) = carried.iter().find(|c| c.distance.signum() != first.distance.signum()) {
        let at = |c: &Carried| c.operand.subscripts[c.axis].to_string();
        let origin = other.reader.origin.clone();
        return Err(RecurrenceError::BothWays {
            data: other.operand.data.clone(),
            first: at(first),
            second: at(other),
            at: origin.map(Box::new),
        });
    }
    Ok(Some(Time { dim: dim.to_string(), indices, reversed: first.distance > 0 }))
}

/// `k` of a subscript `index + k`.
fn distance(reader: &Operation, subscript: &Expr, index: &str) -> Option<i64> {
    let form = Affine::of(subscript, &|name| reader.indices.contains_key(name))?;
    let alone = form.terms.len() == 1 && form.coefficient(index) == 1;
    form.offset.as_int().filter(|_| alone)
}
