//! Sums over times of which one factor lies a step away: `Σₜ d[t] · h[t-1 else 0]` is `Σₛ d[s+1] · h[s]`, with one time less.
//!
//! The gradients of recurrent weights are such sums. Without a fill they are plain matrix products over parts of the tensors.

use crate::affine::Affine;
use crate::graph::Sdfg;
use crate::library::Op;
use crate::node::{Operand, Operation};
use crate::symbol::Expr;
use std::collections::BTreeMap;

/// The contraction over the times at which nothing lies outside, and the dim of these times with its size; `None` if it has no factor that
/// is shifted along a summed index and 0 outside.
pub(super) fn unshifted(program: &Sdfg, operation: &Operation) -> Option<(Operation, String, Expr)> {
    let (Op::Contraction { .. }, [out]) = (&operation.op, &operation.outputs[..]) else { return None };
    let is_index = |name: &str| operation.indices.contains_key(name);
    let summed = |index: &str| out.subscripts.iter().all(|s| !s.symbols().contains(index));
    let distance = |subscript: &Expr, index: &str| {
        let form = Affine::of(subscript, &is_index)?;
        form.offset.as_int().filter(|_| form.terms.len() == 1 && form.coefficient(index) == 1)
    };
    for (index, dim) in operation.indices.iter().filter(|(index, _)| summed(index)) {
        // Every occurrence: the operand, and how far away it reads.
        let mut found: Vec<(&Operand, i64)> = Vec::new();
        let mut sound = true;
        for operand in &operation.inputs {
            let container = program.containers.get(&operand.data)?;
            for (subscript, along) in operand.subscripts.iter().zip(&container.dims).filter(|(s, _)| s.symbols().contains(index)) {
                let same = program.size_of(along) == program.size_of(dim);
                match distance(subscript, index).filter(|_| same) {
                    Some(by) => found.push((operand, by)),
                    None => sound = false,
                }
            }
        }
        let shifted: Vec<i64> = found.iter().map(|(_, by)| *by).filter(|by| *by != 0).collect();
        // Factors at other distances may be anything where one is 0: all lie inside only if one distance is meant.
        let by = *shifted.first()?;
        let zero = |(operand, by): &(&Operand, i64)| *by == 0 || operand.fill.is_some_and(|fill| fill.0 == 0.0);
        let plain = |operand: &Operand| operand.subscripts.iter().all(|s| s.as_sym().is_some() || s.symbols().contains(index));
        let whole = found.iter().all(|(operand, _)| operand.fill.is_none() || plain(operand));
        if !sound || shifted.iter().any(|other| *other != by) || !found.iter().all(zero) || !whole {
            continue;
        }
        let size = program.size_of(dim) - Expr::Int(by.saturating_abs());
        if size.eval(&program.sizes).is_ok_and(|size| size < 1) {
            return None;
        }
        let less = format!("{dim}_{}", by.saturating_abs());
        if program.dims.get(&less).is_some_and(|known| *known != size) {
            return None;
        }
        // The first time at which nothing lies outside becomes 0.
        let first = Expr::sym(index.as_str()) + Expr::Int((-by).max(0));
        let with = BTreeMap::from([(index.clone(), first)]);
        let seen = |operand: &Operand| {
            let touched = operand.subscripts.iter().any(|s| s.symbols().contains(index));
            let canonical = |s: &Expr| Affine::of(&s.substitute(&with), &is_index).map_or_else(|| s.clone(), |form| form.expr());
            let subscripts = operand.subscripts.iter().map(canonical).collect();
            Operand { subscripts, fill: operand.fill.filter(|_| !touched), ..operand.clone() }
        };
        let mut indices = operation.indices.clone();
        indices.insert(index.clone(), less.clone());
        let inputs = operation.inputs.iter().map(seen).collect();
        return Some((Operation { indices, inputs, ..operation.clone() }, less, size));
    }
    None
}
