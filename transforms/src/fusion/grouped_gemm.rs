//! Grouped GEMM: contractions of different shapes become one kernel.
//!
//! ```text
//! dw[k,j] = Σ x[i,k]·g[i,j]
//! dx[i,k] = Σ g[i,j]·w[k,j]      →      dw+dx: one launch for both
//! ```
//!
//! *Legal when* no unit of the program reads the results, as is so with gradients of weights, and no operand is a view.
//! *Faster because* each contraction alone has too few tiles for a large GPU; together they fill it. *Moves less because* operands that
//! several of them read are read once.
//! *Not handled*: contractions without rows, columns or a summed index; results that other units read.
//! *Source*: grouped GEMM of CUTLASS.

use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
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

/// Makes one kernel of the matrix products of a state whose results nothing reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupedGemm;

impl Pass for GroupedGemm {
    fn name(&self) -> &'static str {
        "grouped gemm"
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let groups = || program.states().map(|(state, _)| (state, sinks(program, state)));
        for (state, found) in groups().filter(|(_, found)| found.len() >= 2) {
            let patch = plan(program, state, &found)?;
            if !context.barred.has(&patch.summary) {
                return Ok(Rewritten::patch(patch));
            }
        }
        let alone: Vec<Found> = groups().flat_map(|(_, found)| found).collect();
        let refused = alone.iter().map(|(_, o)| (o, "no other matrix product of its state has a result that nothing reads".to_string()));
        Err(refused_at(self.name(), program, refused, "no matrix product has a result that nothing reads"))
    }

    fn repeats(&self) -> bool {
        true
    }
}

/// The patch that makes one kernel of these operations of a state.
fn plan(program: &Sdfg, state: StateId, found: &[Found]) -> Result<Patch, PatchError> {
    let names: Vec<&str> = found.iter().map(|(_, o)| o.name.as_str()).collect();
    let name = names.join("+");
    let mut inside = Sdfg::new(&name);
    (inside.dims, inside.sizes) = (program.dims.clone(), program.sizes.clone());
    let stage = inside.add_state("group");
    for (_, operation) in found {
        for (operands, role) in [(&operation.inputs, Role::Input), (&operation.outputs, Role::Output)] {
            for container in operands.iter().filter_map(|o| program.containers.get(&o.data)) {
                let mut container = container.clone();
                container.role = role;
                inside.add_container(container);
            }
        }
    }
    let summary = format!("`{name}` run as one kernel");
    for (_, operation) in found {
        inside.insert_operation(stage, operation).map_err(|source| PatchError::Build { summary: summary.clone(), source })?;
    }
    let symbols = inside.sizes.keys().map(|s| (s.clone(), sdfg::Expr::sym(s.as_str()))).collect();
    let unit = Unit::Nested(sdfg::Nested { name, program: Box::new(inside), symbols, repeat: None });
    let edit = Edit { state, remove: found.iter().map(|(node, _)| *node).collect(), insert: vec![unit] };
    Ok(Patch { summary, edits: vec![edit], containers: vec![], drop: vec![], dims: vec![] })
}
