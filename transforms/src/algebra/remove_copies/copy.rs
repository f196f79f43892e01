//! Copies of shifted or strided elements, with or without a fill around them: their readers read where the elements lie.

use super::subscripts::{are_equal, composed, covers, difference, extent};
use super::{Changes, Operations, Placed, is_own, runs, takes_shifted};
use crate::patch::Patch;
use sdfg::affine::{Affine, never_negative};
use sdfg::{Expr, Op, Operand, Operation, Scalar, Sdfg};
use std::collections::BTreeMap;

/// Whether all that an operation does is to store a part of a container, or a container with a fill around it.
pub(super) fn is_copy(operation: &Operation, program: &Sdfg) -> bool {
    let Some((from, to)) = ends(operation) else { return false };
    let dtype = |operand: &Operand| program.containers.get(&operand.data).map(|c| c.dtype);
    let shifted = from.fill.is_some() || from.subscripts.iter().any(|e| e.as_sym().is_none());
    shifted && dtype(from) == dtype(to) && covers(operation, &to.subscripts, &to.data, program) && is_own(program, &to.data).is_ok()
}

/// What is copied, and where it is stored.
fn ends(operation: &Operation) -> Option<(&Operand, &Operand)> {
    let (Op::Elementwise { code: Scalar::Input(connector), .. }, [to]) = (&operation.op, operation.outputs.as_slice()) else { return None };
    Some((operation.input(connector)?, to))
}

/// Lets the readers of a copy read what it copies.
pub(super) fn plan(program: &Sdfg, all: &Operations, at: &Placed) -> Result<Patch, String> {
    let (from, to) = ends(&at.operation).ok_or("it computes more than a copy")?;
    let (from, to) = (from.clone(), to.clone());
    if all.writers(&to.data).count() != 1 {
        return Err(format!("`{}` is written by several operations", to.data));
    }
    let is_own_index = |name: &str| at.operation.indices.contains_key(name);
    if from.subscripts.iter().any(|e| Affine::of(e, &is_own_index).is_none()) {
        return Err(format!("`{}` is subscripted by no sum of indices", from.data));
    }
    let mut changes = Changes::default();
    *changes.at(at) = vec![];
    let mut count = 0;
    for reader in all.readers(&to.data) {
        if !takes_shifted(&reader.operation) {
            return Err(format!("`{}` reads `{}`, and a {} reads no slices", reader.operation.name, to.data, reader.operation.label()));
        }
        if reader.operation.outputs.iter().any(|o| o.data == from.data) {
            return Err(format!("`{}` writes to `{}`, of which it would read a part", reader.operation.name, from.data));
        }
        let mut made = reader.operation.clone();
        for input in made.inputs.iter_mut().filter(|i| i.data == to.data) {
            *input = through(program, &at.operation, (&from, &to), &reader.operation, input)?;
            count += 1;
        }
        *changes.at(reader) = vec![made];
    }
    if count == 0 {
        return Err(format!("nothing reads `{}`", to.data));
    }
    let patch = changes.patch(all, format!("read `{}` in the place of its copy `{}`", from.data, to.data), vec![to.data.clone()]);
    if !runs(program, &patch) {
        return Err("what is copied depends on what reads the copy".into());
    }
    Ok(patch)
}

/// An operand of a reader that finds in the original what it found in the copy.
fn through(
    program: &Sdfg,
    copy: &Operation,
    (from, to): (&Operand, &Operand),
    reader: &Operation,
    input: &Operand,
) -> Result<Operand, String> {
    let is_index = |name: &str| reader.indices.contains_key(name);
    let mut with = BTreeMap::new();
    for (e, index) in input.subscripts.iter().zip(&to.subscripts) {
        let index = index.as_sym().ok_or("its result is subscripted by no index")?;
        with.insert(index.to_string(), e.clone());
    }
    let subscripts: Option<Vec<Expr>> = from.subscripts.iter().map(|e| composed(e, &with, &is_index)).collect();
    let subscripts = subscripts.ok_or_else(|| format!("`{}` subscripts `{}` by no sum of indices", reader.name, input.data))?;
    let fill = match (from.fill, input.fill) {
        (fill, None) => fill,
        (own, Some(fill)) => {
            if own.is_some_and(|own| own != fill) {
                return Err(format!("`{}` reads another fill than `{}` has", reader.name, input.data));
            }
            for (d, e) in input.subscripts.iter().enumerate() {
                let index = to.subscripts[d].as_sym().ok_or("its result is subscripted by no index")?;
                let size = extent(copy, index, program).ok_or("an index has no size")?;
                let inside = e.as_sym().and_then(|i| extent(reader, i, program)).is_some_and(|own| are_equal(&own, &size));
                if !inside && !fills_beyond(program, copy, from, index, &size) {
                    return Err(format!("`{}` reads a fill beside `{}`, where `{}` goes on", reader.name, input.data, from.data));
                }
            }
            Some(fill)
        }
    };
    Ok(Operand { data: from.data.clone(), subscripts, fill, connector: input.connector.clone() })
}

/// Whether positions outside the copy along an index are positions outside the original, so that both read the same fill there.
fn fills_beyond(program: &Sdfg, copy: &Operation, from: &Operand, index: &str, size: &Expr) -> bool {
    let Some(container) = program.containers.get(&from.data) else { return false };
    let is_index = |name: &str| copy.indices.contains_key(name);
    let beyond = |(e, whole): (&Expr, Expr)| {
        let Some(form) = Affine::of(e, &is_index) else { return false };
        let alone = form.terms.as_slice() == [(index.to_string(), 1)];
        // First and last element of the copy lie at `offset` and `offset + size - 1`.
        let before = difference(&Expr::Int(0), &form.offset);
        let after = difference(&(form.offset.clone() + size.clone()), &whole);
        let sign = |e: &Expr| never_negative(e, &|_| None) || e.eval(&program.sizes).is_ok_and(|v| v >= 0) && e.as_int().is_some();
        alone && sign(&before) && sign(&after)
    };
    from.subscripts.iter().zip(program.shape(container)).any(beyond)
}
