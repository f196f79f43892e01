//! The plan's kernels and the tensors between them, with the bytes that each moves (Figs. 1b and 2).

use super::Plan;
use bench::model::{DataflowGraph, GraphEdge, GraphNode};
use bench::unit::{Bytes, Flop, significant};
use indexmap::IndexMap;
use sdfg::movement::{Movement, Traffic};
use sdfg::{Role, Sdfg};
use std::collections::BTreeSet;

/// Kernels in execution order; tensors are nodes of their own only at the boundary of the program.
pub fn graph(plan: &Plan) -> DataflowGraph {
    let program = &plan.candidate.program;
    let mut graph = DataflowGraph::default();
    let mut boundary: BTreeSet<String> = BTreeSet::new();
    for (n, kernel) in plan.kernels.iter().enumerate() {
        graph.nodes.push(node(plan, kernel));
        for read in &kernel.reads {
            let makers = plan.kernels.iter().take(n).filter(|k| k.writes.iter().any(|w| overlap(program, &w.data, &read.data)));
            let mut sources: Vec<String> = makers.map(kernel_id).collect();
            if sources.is_empty() {
                boundary.insert(read.data.clone());
                sources.push(tensor_id(&read.data));
            }
            graph.edges.extend(sources.into_iter().map(|from| edge(program, from, kernel_id(kernel), read)));
        }
        for written in kernel.writes.iter().filter(|w| program.containers.get(&w.data).is_some_and(|c| c.role != Role::Transient)) {
            boundary.insert(written.data.clone());
            graph.edges.push(edge(program, kernel_id(kernel), tensor_id(&written.data), written));
        }
    }
    graph.nodes.extend(boundary.iter().map(|data| tensor(plan, data)));
    graph
}

fn kernel_id(kernel: &Movement) -> String {
    format!("kernel {}", kernel.name)
}

fn tensor_id(data: &str) -> String {
    format!("tensor {data}")
}

/// Whether two containers are the same, or one is a slice of the other.
fn overlap(program: &Sdfg, a: &str, b: &str) -> bool {
    let root = |data: &str| program.containers.get(data).and_then(|c| c.view.as_ref()).map(|v| v.of.clone());
    a == b || root(a).as_deref() == Some(b) || root(b).as_deref() == Some(a)
}

fn edge(program: &Sdfg, from: String, to: String, traffic: &Traffic) -> GraphEdge {
    let memlet = program.whole(&traffic.data).map(|m| m.to_string()).unwrap_or_default();
    GraphEdge { from, to, tensor: traffic.data.clone(), bytes: Bytes(traffic.bytes), memlet }
}

fn node(plan: &Plan, kernel: &Movement) -> GraphNode {
    let mut details = IndexMap::new();
    details.insert("operators".to_string(), kernel.operators.join(", "));
    details.insert("must move".to_string(), Bytes(kernel.bytes()).to_string());
    if let Some(ms) = plan.ours.iter().find(|l| l.kernel.name == kernel.name).and_then(|l| l.ms) {
        details.insert("time".to_string(), format!("{} ms, measured", significant(ms)));
    }
    if let Some(config) = plan.candidate.configuration.kernels.get(&kernel.name) {
        details.extend(config.layouts.iter().map(|(data, layout)| (format!("layout of {data}"), layout.to_string())));
        details.extend(config.knobs.0.iter().map(|(knob, value)| (knob.clone(), value.clone())));
    }
    GraphNode {
        id: kernel_id(kernel),
        label: kernel.name.clone(),
        class: Some(kernel.class),
        pass: Some(kernel.pass),
        kernel: None,
        flop: Flop(kernel.flop),
        details,
    }
}

fn tensor(plan: &Plan, data: &str) -> GraphNode {
    let program = &plan.candidate.program;
    let mut details = IndexMap::new();
    if let Some(container) = program.containers.get(data) {
        details.insert("dims".to_string(), container.dims.join(", "));
        details.insert("role".to_string(), format!("{:?}", container.role).to_lowercase());
        details.insert("size".to_string(), Bytes(program.bytes(data).unwrap_or(0)).to_string());
    }
    if let Some(layout) = plan.candidate.configuration.layouts.get(data) {
        details.insert("held in".to_string(), layout.to_string());
    }
    GraphNode { id: tensor_id(data), label: data.to_string(), class: None, pass: None, kernel: None, flop: Flop(0), details }
}
