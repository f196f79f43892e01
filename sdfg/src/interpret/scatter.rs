//! Scatters, row by row: their expansion would visit every row of the table at every point.

use super::memory::Memory;
use super::subscript::PointNames;
use super::tape::{Tape, Watched};
use super::{InterpretError, Run};
use crate::graph::Sdfg;
use crate::library::scatter::parts;
use crate::node::{Operand, Operation};
use crate::scalar::Scalar;
use crate::symbol::Bindings;

/// What is done at a point, where an index has a value.
type Visit<'v> = &'v mut dyn FnMut(&dyn Fn(&String) -> usize) -> Result<(), InterpretError>;

/// Runs a scatter if all its operands are subscripted by plain indices. `false` means that the expansion must run.
///
/// # Errors
/// A row that the table does not have, with the place of its number.
pub fn run(
    program: &Sdfg,
    operation: &Operation,
    (over, code): (&[String], &Scalar),
    symbols: &Bindings,
    run: &Run,
    memory: &mut Memory,
) -> Result<bool, InterpretError> {
    let (Some(out), [row]) = (operation.output("out"), over) else { return Ok(false) };
    let plain = |operand: &Operand| operand.index_names().map(|names| names.into_iter().map(str::to_string).collect::<Vec<_>>());
    let (Some(of_out), Some(all)) = (plain(out), operation.inputs.iter().map(plain).collect::<Option<Vec<_>>>()) else { return Ok(false) };
    let size = |index: &String| operation.indices.get(index).and_then(|dim| program.size_of(dim).eval(symbols).ok()).map(|n| n as usize);
    let offset = |memory: &Memory, data: &str, names: &[String], at: &dyn Fn(&String) -> usize| -> Option<(usize, usize)> {
        let slot = memory.slots.get(data)?;
        let steps = names.iter().zip(&slot.strides).map(|(name, stride)| at(name) * stride).sum::<usize>();
        Some((slot.buffer, slot.base + steps))
    };
    // The code is a multiple of `x`: what it makes of 1 is the factor.
    let numbers: Vec<&Operand> = operation.inputs.iter().filter(|o| code.inputs().contains(&o.connector) && o.connector != "x").collect();
    let mut connectors: Vec<&str> = vec!["x"];
    let mut values = vec![1.0];
    for number in numbers {
        let Some((buffer, position)) = offset(memory, &number.data, &[], &|_| 0) else { return Ok(false) };
        connectors.push(&number.connector);
        values.push(memory.buffers[buffer][position]);
    }
    let names = PointNames { symbols, indices: vec![], elements: vec![] };
    let tape = Tape::compile(&operation.name, code, &connectors, &names, run)?;
    let mut watched = Watched::NOTHING;
    let Some(factor) = tape.eval(&values, &[], run.step, &mut Vec::new(), &mut watched) else { return Ok(false) };
    let visit = |indices: &[String], each: Visit<'_>| -> Result<bool, InterpretError> {
        let Some(sizes) = indices.iter().map(size).collect::<Option<Vec<usize>>>() else { return Ok(false) };
        for point in 0..sizes.iter().product::<usize>() {
            let mut rest = point;
            let mut places = vec![0; sizes.len()];
            for (place, size) in places.iter_mut().zip(&sizes).rev() {
                *place = rest % size;
                rest /= size;
            }
            each(&|name| indices.iter().position(|index| index == name).map_or(0, |n| places[n]))?;
        }
        Ok(true)
    };
    let base = operation.inputs.iter().position(|o| o.connector == "base");
    let done = visit(&of_out, &mut |at| {
        let value = base.and_then(|n| offset(memory, &operation.inputs[n].data, &all[n], at)).map_or(0.0, |(b, p)| memory.buffers[b][p]);
        if let Some((buffer, position)) = offset(memory, &out.data, &of_out, at) {
            memory.buffers[buffer][position] = value;
        }
        Ok(())
    })?;
    if !done {
        return Ok(false);
    }
    let rows = size(row).unwrap_or(0);
    for part in parts(operation) {
        let (Some(of_x), Some(of_at)) = (plain(part.x), plain(part.at)) else { return Ok(false) };
        let indices: Vec<String> = part.indices(operation).into_iter().cloned().collect();
        visit(&indices, &mut |at| {
            let (Some((x, from)), Some((number, place))) =
                (offset(memory, &part.x.data, &of_x, at), offset(memory, &part.at.data, &of_at, at))
            else {
                return Ok(());
            };
            let number = memory.buffers[number][place];
            if !(number >= 0.0 && number < rows as f64 && number.fract() == 0.0) {
                let point: Vec<String> = of_at.iter().map(|index| format!("{index}={}", at(index))).collect();
                let memlet = format!("{} at the row {number} of {}", part.at.data, out.data);
                return Err(InterpretError::OutOfRange { user: operation.name.clone(), memlet, point: point.join(", ") });
            }
            let target = offset(memory, &out.data, &of_out, &|index| if index == row { number as usize } else { at(index) });
            if let Some((buffer, position)) = target {
                let value = factor * memory.buffers[x][from];
                memory.buffers[buffer][position] += value;
            }
            Ok(())
        })?;
    }
    Ok(true)
}
