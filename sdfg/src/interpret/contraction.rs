//! Contractions by matrix products: the same meaning as the expansion, a few hundred times as fast.

use super::memory::{Memory, Slot};
use super::subscript::Names;
use super::tape::{Tape, Watched};
use super::{InterpretError, Run};
use crate::graph::Sdfg;
use crate::node::{Operand, Operation};
use crate::scalar::Scalar;
use crate::symbol::Bindings;
use ndarray::Array2;

/// Runs `out = scale · Σ a·b` if each operand is subscripted by distinct plain indices over its whole dims, and each index
/// stands in two of the three operands or in all. `false` means that the expansion must run.
pub fn run(
    program: &Sdfg,
    operation: &Operation,
    scale: &Scalar,
    symbols: &Bindings,
    run: &Run,
    memory: &mut Memory,
) -> Result<bool, InterpretError> {
    let Some(plan) = Plan::new(program, operation, symbols, memory) else { return Ok(false) };
    let names = Names { symbols, indices: vec![] };
    let Ok(scale) = Tape::compile(&operation.name, scale, &[], &names, run) else { return Ok(false) };
    let mut watched = Watched::NOTHING;
    let Some(scale) = scale.eval(&[], &[], run.step, &mut Vec::new(), &mut watched) else { return Ok(false) };
    let (rows, columns, inner) = (plan.m.len(), plan.n.len(), plan.k.len());
    for batch in &plan.batch {
        let gather = |buffer: usize, base: usize, first: &[[usize; 3]], second: &[[usize; 3]], operand: usize| {
            Array2::from_shape_fn((first.len(), second.len()), |(i, j)| {
                memory.buffers[buffer][base + batch[operand] + first[i][operand] + second[j][operand]]
            })
        };
        let a = gather(plan.a.buffer, plan.a.base, &plan.m, &plan.k, 0);
        let b = gather(plan.b.buffer, plan.b.base, &plan.k, &plan.n, 1);
        debug_assert_eq!((a.dim(), b.dim()), ((rows, inner), (inner, columns)));
        let product = a.dot(&b);
        let out = &mut memory.buffers[plan.out.buffer];
        for (i, m) in plan.m.iter().enumerate() {
            for (j, n) in plan.n.iter().enumerate() {
                out[plan.out.base + batch[2] + m[2] + n[2]] = scale * product[[i, j]];
            }
        }
    }
    Ok(true)
}

/// Offsets in (a, b, out) of every point of each group of indices.
struct Plan {
    a: Slot,
    b: Slot,
    out: Slot,
    batch: Vec<[usize; 3]>,
    m: Vec<[usize; 3]>,
    n: Vec<[usize; 3]>,
    k: Vec<[usize; 3]>,
}

impl Plan {
    fn new(program: &Sdfg, operation: &Operation, symbols: &Bindings, memory: &Memory) -> Option<Plan> {
        let operands = [operation.input("a")?, operation.input("b")?, operation.output("out")?];
        let slots = operands.map(|o| memory.slots.get(&o.data));
        let (a, b, out) = (slots[0]?, slots[1]?, slots[2]?);
        if out.buffer == a.buffer || out.buffer == b.buffer {
            return None;
        }
        let mut groups: [Vec<[usize; 3]>; 4] = std::array::from_fn(|_| vec![[0; 3]]);
        let mut placed = [0; 3];
        for (index, dim) in &operation.indices {
            let size = usize::try_from(program.size_of(dim).eval(symbols).ok()?).ok()?;
            let mut strides = [0; 3];
            let mut within = [false; 3];
            for (n, (operand, slot)) in operands.iter().zip([a, b, out]).enumerate() {
                if let Some(position) = position(operand, index)? {
                    if *slot.shape.get(position)? != size {
                        return None;
                    }
                    (within[n], strides[n]) = (true, slot.strides[position]);
                    placed[n] += 1;
                }
            }
            let group = match within {
                [true, true, true] => &mut groups[0],
                [true, false, true] => &mut groups[1],
                [false, true, true] => &mut groups[2],
                [true, true, false] => &mut groups[3],
                _ => return None,
            };
            *group = group.iter().flat_map(|at| (0..size).map(move |i| std::array::from_fn(|n| at[n] + i * strides[n]))).collect();
        }
        let [batch, m, n, k] = groups;
        let complete = operands.iter().zip(placed).all(|(o, count)| o.subscripts.len() == count);
        complete.then(|| Plan { a: a.clone(), b: b.clone(), out: out.clone(), batch, m, n, k })
    }
}

/// The one place where an index subscripts an operand; `None` if an index occurs in it twice or in an expression.
fn position(operand: &Operand, index: &str) -> Option<Option<usize>> {
    let names = operand.index_names()?;
    let mut places = names.iter().enumerate().filter(|(_, name)| **name == index).map(|(n, _)| n);
    let first = places.next();
    if places.next().is_some() { None } else { Some(first) }
}
