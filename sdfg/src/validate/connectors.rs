//! Connectors of tasklets, library nodes and maps; boundaries of nested programs.

use super::{Kind, Report, validate_inside};
use crate::data::{Role, Storage};
use crate::graph::Sdfg;
use crate::library::operator::Field;
use crate::memlet::{Memlet, Range};
use crate::node::{Library, Loop, Nested, Node, NodeId, StateId, Tasklet};
use crate::scalar::Scalar;
use crate::state::State;
use crate::symbol::Expr;
use std::collections::BTreeSet;

pub(super) fn check(report: &mut Report, id: StateId, state: &State) {
    for (node, vertex) in state.nodes() {
        match &vertex.node {
            Node::Tasklet(tasklet) => check_tasklet(report, (id, state), node, tasklet),
            Node::Library(library) => check_library(report, (id, state), node, library),
            Node::MapEntry(_) | Node::MapExit { .. } => check_map(report, (id, state), node),
            Node::Nested(nested) => {
                let given = nested.symbols.keys().cloned().collect();
                let path = format!("{}/", report.path);
                report.found.extend(validate_inside(&nested.program, path, &given));
                match &nested.repeat {
                    Some(repeat) => check_loop(report, (id, state), node, nested, repeat),
                    None => check_exchange(report, (id, state), node, &nested.name, &nested.program),
                }
            }
            Node::Access(data) => {
                if !report.program.containers.contains_key(data) {
                    report.node(
                        Kind::Name,
                        (id, state),
                        node,
                        format!("the container `{data}` is not declared; declare it in the program"),
                    );
                }
            }
        }
    }
}

/// Compares what a node needs at its connectors with what its edges bring.
fn check_ends(report: &mut Report, at: (StateId, &State), node: NodeId, name: &str, needed: &BTreeSet<String>, inputs: bool) {
    let (side, ends): (_, Vec<_>) = if inputs {
        ("input", at.1.edges_in(node).into_iter().map(|(e, _, edge)| (e, edge.to.clone())).collect())
    } else {
        ("output", at.1.edges_out(node).into_iter().map(|(e, _, edge)| (e, edge.from.clone())).collect())
    };
    for connector in needed {
        match ends.iter().filter(|(_, c)| c == connector).count() {
            0 => report.node(Kind::Connector, at, node, format!("the {side} `{connector}` of `{name}` has no edge; connect it or drop it")),
            1 => {}
            many if inputs => {
                report.node(Kind::Connector, at, node, format!("the input `{connector}` of `{name}` has {many} edges; keep one"))
            }
            _ => {}
        }
    }
    for (edge, connector) in ends.iter().filter(|(_, c)| !needed.contains(c)) {
        report.edge(
            Kind::Connector,
            at,
            *edge,
            format!("`{name}` has no {side} `{connector}`; remove the edge or use one of: {}", list(needed)),
        );
    }
}

fn list(names: &BTreeSet<String>) -> String {
    if names.is_empty() { "(none)".into() } else { names.iter().cloned().collect::<Vec<_>>().join(", ") }
}

fn check_tasklet(report: &mut Report, at: (StateId, &State), node: NodeId, tasklet: &Tasklet) {
    let outputs: BTreeSet<String> = tasklet.code.iter().map(|(c, _)| c.clone()).collect();
    if outputs.len() < tasklet.code.len() {
        report.node(
            Kind::Connector,
            at,
            node,
            format!("`{}` computes one of its outputs twice; keep one expression for each", tasklet.name),
        );
    }
    let mut inputs: BTreeSet<String> = tasklet.code.iter().flat_map(|(_, code)| code.inputs()).collect();
    // What the subscripts of another input are is read, too.
    let edges = at.1.edges_in(node);
    let at_element = |memlet: &Memlet, data: &Memlet| {
        let element = data.point().map(|point| Expr::Element(data.data.clone(), point.into_iter().cloned().collect()));
        element.is_some_and(|element| memlet.subset.contains(&Range::At(element)))
    };
    let by_value = |data: &Memlet| edges.iter().any(|(_, _, edge)| at_element(&edge.memlet, data));
    inputs.extend(edges.iter().filter(|(_, _, edge)| by_value(&edge.memlet)).map(|(_, _, edge)| edge.to.clone()));
    check_ends(report, at, node, &tasklet.name, &inputs, true);
    check_ends(report, at, node, &tasklet.name, &outputs, false);
}

/// What enters a map entry under `IN_x` goes on inside under `OUT_x`, and the reverse at its exit.
fn check_map(report: &mut Report, at: (StateId, &State), node: NodeId) {
    let inside: BTreeSet<String> =
        at.1.edges_in(node).into_iter().filter_map(|(_, _, e)| e.to.strip_prefix("IN_").map(String::from)).collect();
    for (edge, _, out) in at.1.edges_out(node) {
        if let Some(data) = out.from.strip_prefix("OUT_")
            && !inside.contains(data)
        {
            report.edge(Kind::Connector, at, edge, format!("{node} hands on `{data}` but nothing brings it there; connect `IN_{data}`"));
        }
    }
}

fn check_library(report: &mut Report, at: (StateId, &State), node: NodeId, library: &Library) {
    let name = &library.name;
    let connectors = [&library.inputs, &library.outputs].map(|ports| ports.iter().map(|p| p.connector.clone()).collect::<BTreeSet<_>>());
    let ports = library.op.ports();
    let (needed, optional) = ([ports.inputs, ports.outputs], [ports.optional_inputs, ports.optional_outputs]);
    for (side, own) in connectors.iter().enumerate() {
        check_ends(report, at, node, name, own, side == 0);
        for missing in needed[side].iter().filter(|c| !own.contains(**c)) {
            report.node(Kind::Connector, at, node, format!("`{name}` lacks the operand `{missing}`, which its operator needs; add it"));
        }
        let free = ports.free_inputs && side == 0;
        for extra in own.iter().filter(|c| !free && !needed[side].contains(&c.as_str()) && !optional[side].contains(&c.as_str())) {
            report.node(
                Kind::Connector,
                at,
                node,
                format!("`{name}` has the operand `{extra}`, which its operator does not know; remove it"),
            );
        }
    }
    let fields: Vec<Field> = library.op.fields().into_iter().map(|(_, field)| field).collect();
    let codes = fields.iter().filter_map(|field| if let Field::Code(code) = field { Some(code) } else { None });
    for input in codes.flat_map(Scalar::inputs).collect::<BTreeSet<_>>() {
        if !connectors[0].contains(&input) {
            report.node(
                Kind::Connector,
                at,
                node,
                format!("the code of `{name}` reads `{input}`, which is no operand of it; add the operand"),
            );
        }
    }
    for over in fields.iter().filter_map(|field| if let Field::Over(over) = field { Some(over) } else { None }) {
        for index in over.iter().filter(|i| !library.indices.contains_key(*i)) {
            report.node(Kind::Name, at, node, format!("`{name}` runs over `{index}`, which is no index of it; use one of its indices"));
        }
    }
    for (index, dim) in library.indices.iter().filter(|(_, dim)| !report.program.dims.contains_key(*dim)) {
        report.node(
            Kind::Name,
            at,
            node,
            format!("the index `{index}` of `{name}` runs along the dim `{dim}`, which is not declared; add it to the dims"),
        );
    }
    let subscripts = library.inputs.iter().chain(&library.outputs).flat_map(|p| &p.subscripts);
    for symbol in subscripts.flat_map(Expr::symbols).collect::<BTreeSet<_>>() {
        let is_index = library.indices.contains_key(&symbol)
            || super::memlets::indices(at.1, at.1.vertex(node).and_then(|v| v.scope)).iter().any(|i| i.name == symbol);
        if !is_index && !report.bound.contains(&symbol) {
            report.node(
                Kind::Name,
                at,
                node,
                format!("a subscript of `{name}` uses `{symbol}`, which is neither an index of it nor a symbol; add the index"),
            );
        }
    }
}

/// Whether the slices of a loop are what the body declares, and all that it makes goes to one.
fn check_loop(report: &mut Report, at: (StateId, &State), node: NodeId, nested: &Nested, repeat: &Loop) {
    let program = report.program;
    let mut wrong = |message: String| report.node(Kind::Boundary, at, node, message);
    if !program.dims.contains_key(&repeat.dim) {
        wrong(format!("the loop `{}` runs along the dim `{}`, which is not declared; add it to the dims", nested.name, repeat.dim));
    }
    for (inner, slice) in &repeat.slices {
        let (Some(inside), Some(outside)) = (nested.program.containers.get(inner), program.containers.get(&slice.data)) else {
            wrong(format!("`{inner}` is a slice of `{}`, and one of the two is not declared; declare both", slice.data));
            continue;
        };
        let mut dims = outside.dims.clone();
        if let Some((axis, _)) = &slice.at
            && *axis < dims.len()
        {
            dims.remove(*axis);
        }
        if dims != inside.dims || inside.dtype != outside.dtype {
            let (given, wanted) = (inside.dims.join(", "), dims.join(", "));
            wrong(format!("`{inner}` has the dims [{given}], but the slice of `{}` has [{wanted}]; declare it alike", slice.data));
        }
        let reads_own = nested.boundary().1.contains(&slice.data);
        if slice.at.is_none() && reads_own && !slice.is_state() {
            wrong(format!("the loop `{}` reads the whole of `{}`, which it makes step by step; read a slice", nested.name, slice.data));
        }
    }
    for inner in nested.program.containers.values().filter(|c| c.storage == Storage::Heap && c.role != Role::Transient) {
        let made = matches!(inner.role, Role::Output | Role::Gradient);
        match repeat.slices.get(&inner.name) {
            Some(slice) if made && slice.at != Some((slice.at.as_ref().map_or(0, |at| at.0), Expr::sym(repeat.index.as_str()))) => {
                wrong(format!("`{}` is written at another place than the loop's own; write at `{}`", inner.name, repeat.index));
            }
            None if made && !repeat.slices.values().any(|slice| slice.is_state() && slice.data == inner.name) => {
                wrong(format!("`{}` is made in each iteration but is no slice; say which one", inner.name))
            }
            None if program.containers.get(&inner.name).is_none_or(|outer| outer.dims != inner.dims) => {
                wrong(format!("`{}` is not declared alike outside of the loop `{}`; declare it alike in both", inner.name, nested.name));
            }
            _ => {}
        }
    }
}

fn check_exchange(report: &mut Report, at: (StateId, &State), node: NodeId, name: &str, program: &Sdfg) {
    let moved = at.1.edges_in(node).into_iter().chain(at.1.edges_out(node));
    for (edge, _, found) in moved {
        let data = &found.memlet.data;
        let ranks = (report.program.containers.get(data).map(|c| c.dims.len()), program.containers.get(data).map(|c| c.dims.len()));
        if ranks.0 != ranks.1 {
            report.edge(
                Kind::Boundary,
                at,
                edge,
                format!("`{data}` is not declared with equally many dims inside and outside of `{name}`; declare it alike in both"),
            );
        }
    }
}
