//! The units of a program as a graph of operators: one graph for each state.

use super::classes::AccessClass;
use super::graph::{GraphError, GraphOperator, GraphTensor, OperatorGraph};
use crate::unit_graph::{Boundary, Kind, UnitGraph};
use sdfg::{Computation, Expr, IndexKind, NodeId, Sdfg, StateId, Storage, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// The graph of a state's units, in execution order, and the node of each.
pub struct StateGraph {
    pub state: StateId,
    pub graph: OperatorGraph,
    pub nodes: Vec<NodeId>,
    pub names: Vec<String>,
}

/// The graphs of all states of a program whose operations are expanded but for contractions.
///
/// # Errors
/// Units that cannot run one after the other.
pub fn graphs(program: &Sdfg) -> Result<Vec<StateGraph>, GraphError> {
    program.states().map(|(id, state)| graph(program, &UnitGraph::new(program, (id, state)))).collect()
}

fn graph(program: &Sdfg, units: &UnitGraph) -> Result<StateGraph, GraphError> {
    let mut tensors: Vec<GraphTensor> = Vec::new();
    let mut number: BTreeMap<usize, u32> = BTreeMap::new();
    let mut operators = Vec::new();
    for (at, boundary) in units.all.iter().enumerate() {
        let moved = units.moved(at);
        let mut numbered = |data: &[usize]| -> Vec<(u32, u64)> {
            data.iter()
                .map(|data| {
                    let tensor = *number.entry(*data).or_insert_with(|| {
                        let heap = program.containers.get(units.name(*data)).filter(|c| c.storage == Storage::Heap);
                        let bytes = heap.and_then(|_| program.bytes(units.name(*data)).ok()).unwrap_or(0);
                        tensors.push(GraphTensor { bytes, leaves: units.leaves(*data) });
                        tensors.len() as u32 - 1
                    });
                    (tensor, moved.get(data).copied().unwrap_or(0))
                })
                .collect()
        };
        let (reads, writes) = (numbered(units.reads(at)), numbered(units.writes(at)));
        let (class, on_chip, kind) = describe(program, units, at, boundary);
        operators.push(GraphOperator { name: boundary.name.clone(), class, kind, reads, writes, on_chip });
    }
    let nodes = units.all.iter().map(|unit| unit.node).collect();
    let names = units.all.iter().map(|unit| unit.name.clone()).collect();
    Ok(StateGraph { state: units.id, graph: OperatorGraph::new(operators, tensors)?, nodes, names })
}

/// The class of a unit, the bytes that its readers wait for, and its kind.
fn describe(program: &Sdfg, units: &UnitGraph, at: usize, boundary: &Boundary) -> (AccessClass, u64, String) {
    let size = |dim: &str| program.size_of(dim).eval(&program.sizes).ok().and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
    if boundary.kind == Kind::Contraction
        && let Some(operation) = units.state.operation(boundary.node)
    {
        let has = |o: &sdfg::Operand, index: &str| o.subscripts.iter().any(|e| e.symbols().iter().any(|s| s == index));
        let everywhere = |index: &str| operation.inputs.iter().chain(&operation.outputs).all(|o| has(o, index));
        let batched = operation.inputs.len() > 1 && operation.indices.keys().any(|index| everywhere(index));
        let sizes: Vec<String> = operation.indices.values().map(|dim| size(dim).to_string()).collect();
        return (if batched { AccessClass::BatchedGemm } else { AccessClass::Gemm }, 0, format!("contraction[{}]", sizes.join(",")));
    }
    let Some(scope) = units.state.scope(boundary.node) else { return (AccessClass::Opaque, 0, format!("unit `{}`", boundary.name)) };
    let mut reduced: BTreeSet<String> = BTreeSet::new();
    let mut kept: BTreeSet<String> = BTreeSet::new();
    let mut kind = String::new();
    let mut rows = 0;
    for (around, computation) in scope.computations() {
        let indices: Vec<&sdfg::Index> = around;
        kind.push_str(&nameless(&indices, computation));
        let leaves = computation.writes.iter().filter(|(_, m)| boundary.writes.contains(&m.data));
        let combines = computation.writes.iter().any(|(_, m)| m.wcr.is_some());
        if combines {
            let over = indices.iter().filter(|i| i.kind == IndexKind::Reduction);
            reduced.extend(over.map(|i| i.dim.clone()));
        }
        for (_, memlet) in leaves {
            let symbols: BTreeSet<String> = memlet.point().into_iter().flatten().flat_map(|e| e.symbols()).collect();
            kept.extend(indices.iter().filter(|i| symbols.contains(&i.name)).map(|i| i.dim.clone()));
        }
        let extents: Vec<String> = indices.iter().map(|i| size(&i.dim).to_string()).collect();
        kind.push_str(&format!("[{}]", extents.join(",")));
    }
    if reduced.is_empty() {
        return (AccessClass::Elementwise, 0, kind);
    }
    reduced.iter().for_each(|dim| rows = if rows == 0 { size(dim) } else { rows.saturating_mul(size(dim)) });
    let own: u64 = kept.difference(&reduced).map(|dim| size(dim)).product();
    let readers = units.writes(at).iter().flat_map(|data| units.readers(*data)).copied();
    let mut again = readers.filter_map(|reader| units.state.scope(units.all[reader].node)).map(|scope| {
        let dims: BTreeSet<String> =
            scope.computations().iter().flat_map(|(around, _)| around.iter().map(|i| i.dim.clone()).collect::<Vec<_>>()).collect();
        reduced.is_subset(&dims)
    });
    // A unit that reduces and goes over its rows again by itself, as softmax does, is one of rows.
    let inside = !kept.is_disjoint(&reduced);
    let class = match own {
        0 | 1 if !inside => AccessClass::ScalarReduction,
        _ if inside || again.any(|again| again) => AccessClass::RowReduction,
        _ => AccessClass::ColumnReduction,
    };
    (class, rows.saturating_mul(4), kind)
}

/// What a computation does, with connectors and indices by their numbers.
fn nameless(indices: &[&sdfg::Index], computation: &Computation) -> String {
    let numbered = indices.iter().enumerate().map(|(n, index)| (index.name.clone(), Expr::sym(format!("i{n}")))).collect();
    let memlets = || computation.reads.iter().chain(&computation.writes);
    let connectors: BTreeMap<String, String> =
        memlets().enumerate().map(|(n, (connector, _))| (connector.clone(), format!("c{n}"))).collect();
    let mut text = String::new();
    for (connector, memlet) in memlets() {
        let subset = memlet.substitute(&numbered).subset;
        text.push_str(&format!("{}={:?}{subset:?};", connectors[connector], memlet.wcr));
    }
    for (connector, code) in &computation.tasklet.code {
        let code = code.rename_inputs(&connectors).substitute(&numbered);
        text.push_str(&format!("{}={code:?};", connectors.get(connector).unwrap_or(connector)));
    }
    text
}

/// The unit of a program at a node.
pub fn unit(program: &Sdfg, state: StateId, node: NodeId) -> Option<Unit> {
    let state = program.state(state)?;
    state.operation(node).map(Unit::Operation).or_else(|| state.scope(node).map(Unit::Scope))
}
