//! The movement saved by fusion, under every definition of what the unfused program is.
//!
//! Reductions quoted in the literature differ because their baselines do. Each definition here is a sum of distinct
//! elements per kernel; a stored mask is one element of its tensor's type, written forward and read backward.

use super::groups::{OperatorMovement, grouped};
use super::{Movement, MovementError, movement, unit_movement};
use crate::data::Dtype;
use crate::graph::Sdfg;
use crate::library::{Class, Op};
use crate::node::Direction;
use crate::scalar::Scalar;
use crate::scope::Unit;
use serde::Serialize;
use std::collections::HashSet;

/// One definition, in bytes of a whole step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Definition {
    pub definition: String,
    pub unfused_bytes: u64,
    pub fused_bytes: u64,
    /// `1 − fused / unfused`.
    pub reduction: f64,
    /// The part of each that contractions move.
    pub unfused_contraction_bytes: u64,
    pub fused_contraction_bytes: u64,
    /// The reduction of everything else.
    pub reduction_without_contractions: f64,
}

/// Every definition, for a program and the same program fused.
///
/// `unfused` holds one operation for each operator, and its backward state reads every value from the forward state. Values that are
/// recomputed to save traffic occur in `fused` only.
pub fn definitions(unfused: &Sdfg, fused: &Sdfg) -> Result<Vec<Definition>, MovementError> {
    Baselines::of(unfused)?.definitions(fused)
}

/// What the unfused program moves under every definition of it.
pub struct Baselines {
    table: [Sum; 2],
    separate: Sum,
    single: Sum,
    folded: Sum,
    passes: Sum,
}

impl Baselines {
    /// # Errors
    /// Sizes without a value, and containers that are not declared.
    pub fn of(unfused: &Sdfg) -> Result<Self, MovementError> {
        let kernels = movement(unfused)?;
        let rows = |rows: Vec<OperatorMovement>| rows.into_iter().map(|r| r.movement).collect::<Vec<_>>();
        let table = rows(grouped(unfused, kernels.clone(), true));
        let mut separate = Sum::of(&rows(grouped(unfused, kernels.clone(), false)), false);
        let scaling = scaling_bytes(unfused)?;
        separate.total += scaling;
        let folded = Sum::of(&kernels, false);
        let single = Sum { total: folded.total + scaling, ..folded };
        let passes = Sum::of(&passes(unfused)?, false);
        let passes = Sum { total: passes.total + scaling, ..passes };
        Ok(Baselines { table: [Sum::of(&table, true), Sum::of(&table, false)], separate, single, folded, passes })
    }

    /// Every definition, for a program in which the unfused one is fused.
    ///
    /// # Errors
    /// As [`Baselines::of`].
    pub fn definitions(&self, fused: &Sdfg) -> Result<Vec<Definition>, MovementError> {
        let kernels = movement(fused)?;
        let (stored, recomputed) = (Sum::of(&kernels, true), Sum::of(&kernels, false));
        let [with_masks, without_masks] = self.table;
        Ok(vec![
            define("Table III's operators, masks stored in both", with_masks, stored),
            define("Table III's operators, masks stored in neither", without_masks, recomputed),
            define("Table III's operators, masks stored unfused and recomputed fused", with_masks, recomputed),
            define("softmax, scaling and dropout as separate operators, masks stored in neither", self.separate, recomputed),
            define("one operator per kernel throughout, masks stored in neither", self.single, recomputed),
            define("one operator per kernel, scaling within its contraction, masks stored in neither", self.folded, recomputed),
            define("one pass of an operator per kernel throughout, masks stored in neither", self.passes, recomputed),
        ])
    }
}

/// The kernels of a program in which each pass of an operator is one: the maximum, the exponentials, the sum and the
/// quotient of a softmax. Contractions are a single pass.
fn passes(program: &Sdfg) -> Result<Vec<Movement>, MovementError> {
    let mut kernels = Vec::new();
    // What an expansion declares stands beside the program's own containers while its kernels are counted.
    let mut around = program.without_states();
    for (_, _, unit) in program.units() {
        let expansion = match &unit {
            Unit::Operation(operation) if operation.class() != Class::Contraction => {
                operation.expand(program).ok().map(|e| (e, operation.pass))
            }
            _ => None,
        };
        let Some((expansion, pass)) = expansion else {
            kernels.extend(unit_movement(program, &unit, Direction::Forward)?);
            continue;
        };
        let declared: Vec<String> = expansion.containers.iter().map(|container| container.name.clone()).collect();
        for container in expansion.containers {
            around.add_container(container);
        }
        for scope in expansion.scopes {
            kernels.extend(unit_movement(&around, &Unit::Scope(scope), pass)?);
        }
        for name in declared.iter().rev() {
            match program.containers.get(name) {
                Some(own) => _ = around.containers.insert(name.clone(), own.clone()),
                // It was added last.
                None => _ = around.containers.pop(),
            }
        }
    }
    Ok(kernels)
}

#[derive(Clone, Copy)]
struct Sum {
    total: u64,
    contractions: u64,
}

impl Sum {
    fn of(kernels: &[Movement], masks: bool) -> Sum {
        let bytes = |k: &Movement| k.bytes() + if masks { k.mask_bytes() } else { 0 };
        let contractions = kernels.iter().filter(|k| k.class == Class::Contraction).map(bytes).sum();
        Sum { total: kernels.iter().map(bytes).sum(), contractions }
    }
}

fn define(definition: &str, unfused: Sum, fused: Sum) -> Definition {
    let reduction = |before: u64, after: u64| if before == 0 { 0.0 } else { 1.0 - after as f64 / before as f64 };
    Definition {
        definition: definition.to_string(),
        unfused_bytes: unfused.total,
        fused_bytes: fused.total,
        reduction: reduction(unfused.total, fused.total),
        unfused_contraction_bytes: unfused.contractions,
        fused_contraction_bytes: fused.contractions,
        reduction_without_contractions: reduction(unfused.total - unfused.contractions, fused.total - fused.contractions),
    }
}

/// What a scaling of its own before each softmax, and after each softmax gradient, would read and write, where a
/// contraction does it in passing.
fn scaling_bytes(program: &Sdfg) -> Result<u64, MovementError> {
    let units = program.units();
    let operations: Vec<_> = units.iter().filter_map(|(_, _, u)| if let Unit::Operation(o) = u { Some(o) } else { None }).collect();
    let scales = |op: &Op| matches!(op, Op::Contraction { scale } if *scale != Scalar::Const(1.0));
    let scaling = || operations.iter().filter(|o| scales(&o.op));
    let made: HashSet<&str> = scaling().flat_map(|o| &o.outputs).map(|out| out.data.as_str()).collect();
    let read: HashSet<&str> = scaling().flat_map(|o| &o.inputs).map(|input| input.data.as_str()).collect();
    let mut bytes = 0;
    for operation in &operations {
        let scaled = match &operation.op {
            Op::Softmax { .. } => operation.input("x").filter(|x| made.contains(x.data.as_str())),
            Op::SoftmaxGrad { .. } => operation.output("dx").filter(|dx| read.contains(dx.data.as_str())),
            _ => None,
        };
        if let Some(operand) = scaled {
            let symbol = |source| MovementError::Symbol { unit: operation.name.clone(), source };
            let elements = program.elements(&operand.data).map_err(symbol)?;
            let dtype = program.containers.get(&operand.data).map_or(Dtype::F32, |c| c.dtype);
            bytes += 2 * dtype.bytes(elements);
        }
    }
    Ok(bytes)
}
