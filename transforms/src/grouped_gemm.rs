//! Grouped GEMM, contractions of different shapes as one kernel: gradients of weights, whose results nobody waits for.
//!
//! Each of them alone has too few tiles for a large GPU; together they fill it, and are launched once.

use crate::patch::{Edit, Patch, PatchError};
use sdfg::{Class, NodeId, Operand, Operation, Role, Sdfg, StateId, Unit};
use std::collections::BTreeSet;

/// A contraction that stands alone, and where.
type Found = (NodeId, Operation);

/// Whether whole matrices are multiplied: there are rows, columns and steps, and no other index is summed.
fn multiplies_matrices(operation: &Operation) -> bool {
    let has = |operand: Option<&Operand>, index: &str| {
        operand.is_some_and(|operand| operand.subscripts.iter().any(|e| e.symbols().contains(index)))
    };
    let operands = [operation.input("a"), operation.input("b"), operation.output("out")];
    let kinds: BTreeSet<[bool; 3]> = operation.indices.keys().map(|index| operands.map(|operand| has(operand, index))).collect();
    let [rows, columns, steps] = [[true, false, true], [false, true, true], [true, true, false]];
    [rows, columns, steps].iter().all(|kind| kinds.contains(kind)) && kinds.iter().all(|[a, b, out]| *out || *a && *b)
}

/// The matrix products of a state whose results nothing in the program reads, in execution order; those that read or write views stay
/// apart.
fn sinks(program: &Sdfg, state: StateId) -> Vec<Found> {
    let units = program.state(state).map(|s| s.units()).unwrap_or_default();
    let plain = |data: &str| program.containers.get(data).is_some_and(|c| c.view.is_none());
    let viewed = |data: &str| program.containers.values().any(|c| c.view.as_ref().is_some_and(|v| v.of == data));
    let read = |data: &str| {
        program.states().any(|(_, s)| {
            s.nodes()
                .filter(|(_, v)| v.scope.is_none())
                .any(|(node, _)| s.boundary(node).0.iter().any(|m| m.data == data && reads(s, node)))
        })
    };
    let is_sink = |operation: &Operation| {
        let given = |data: &str| program.containers.get(data).is_some_and(|c| c.role != Role::Transient);
        operation.class() == Class::Contraction
            && multiplies_matrices(operation)
            && operation.outputs.iter().all(|o| given(&o.data) && !read(&o.data) && !viewed(&o.data))
            && operation.inputs.iter().chain(&operation.outputs).all(|o| plain(&o.data))
    };
    let operation = |(node, unit)| match unit {
        Unit::Operation(operation) if is_sink(&operation) => Some((node, operation)),
        _ => None,
    };
    units.into_iter().filter_map(operation).collect()
}

/// Whether a node is a unit, which reads what its edges bring.
fn reads(state: &sdfg::State, node: NodeId) -> bool {
    !matches!(state.node(node), Some(sdfg::Node::Access(_)))
}

/// The program with the gradients of its weights in one kernel; `None` if it has not two of them in one state.
///
/// # Errors
/// Nothing that a valid program would cause.
pub fn grouped(program: &Sdfg) -> Result<Option<Sdfg>, PatchError> {
    let mut changed = program.clone();
    let states: Vec<StateId> = program.states().map(|(id, _)| id).collect();
    let mut any = false;
    for state in states {
        let found = sinks(&changed, state);
        if found.len() < 2 {
            continue;
        }
        let names: Vec<&str> = found.iter().map(|(_, o)| o.name.as_str()).collect();
        let name = names.join("+");
        let mut inside = Sdfg::new(&name);
        (inside.dims, inside.sizes) = (changed.dims.clone(), changed.sizes.clone());
        let stage = inside.add_state("group");
        for (_, operation) in &found {
            for (operands, role) in [(&operation.inputs, Role::Input), (&operation.outputs, Role::Output)] {
                for container in operands.iter().filter_map(|o| changed.containers.get(&o.data)) {
                    let mut container = container.clone();
                    container.role = role;
                    inside.add_container(container);
                }
            }
        }
        let summary = format!("`{name}` run as one kernel");
        for (_, operation) in &found {
            inside.insert_operation(stage, operation).map_err(|source| PatchError::Build { summary: summary.clone(), source })?;
        }
        let symbols = inside.sizes.keys().map(|s| (s.clone(), sdfg::Expr::sym(s.as_str()))).collect();
        let unit = Unit::Nested(sdfg::Nested { name, program: Box::new(inside), symbols });
        let edit = Edit { state, remove: found.iter().map(|(node, _)| *node).collect(), insert: vec![unit] };
        Patch { summary, edits: vec![edit], containers: vec![], drop: vec![], dims: vec![] }.apply(&mut changed)?;
        any = true;
    }
    Ok(any.then_some(changed))
}
