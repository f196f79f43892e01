//! Contractions by matrix products: the same meaning as the expansion, a few hundred times as fast.
//!
//! Indices fall into four groups: those of both factors and the result, those of the rows, of the columns, and those that are summed. Each
//! factor is gathered into a matrix, windows too, which is what a convolution by matrix products calls im2col.

use super::memory::{Memory, Slot};
use super::subscript::PointNames;
use super::tape::{Tape, Watched};
use super::{InterpretError, Run};
use crate::affine::{Affine, interval};
use crate::graph::Sdfg;
use crate::node::{Operand, Operation};
use crate::scalar::Scalar;
use crate::symbol::Bindings;
use ndarray::Array2;
use std::ops::Range;

/// Elements of a factor that are gathered at once.
const GATHERED: usize = 1 << 22;

/// Runs `out = scale · Σ a·b` if the factors are subscripted by affine expressions that stay inside or have a fill, the result by distinct
/// plain indices over its whole dims, and each index stands in two of the three operands or in all. `false` means that the expansion
/// must run.
pub fn run(
    program: &Sdfg,
    operation: &Operation,
    scale: &Scalar,
    symbols: &Bindings,
    run: &Run,
    memory: &mut Memory,
) -> Result<bool, InterpretError> {
    let Some(plan) = Plan::new(program, operation, symbols, memory) else { return Ok(false) };
    let names = PointNames { symbols, indices: vec![], elements: vec![] };
    let Ok(scale) = Tape::compile(&operation.name, scale, &[], &names, run) else { return Ok(false) };
    let mut watched = Watched::NOTHING;
    let Some(scale) = scale.eval(&[], &[], run.step, &mut Vec::new(), &mut watched) else { return Ok(false) };
    let [batch, m, n, k] = &plan.groups;
    let (rows, columns) = (block(m.points, k.points), block(n.points, k.points));
    for b in 0..batch.points {
        for is in blocks(m.points, rows) {
            let left = plan.factors[0].gather(memory, batch.of(0, b), (&m.parts[0], is.clone()), (&k.parts[0], 0..k.points));
            for js in blocks(n.points, columns) {
                let right = plan.factors[1].gather(memory, batch.of(1, b), (&k.parts[1], 0..k.points), (&n.parts[1], js.clone()));
                let product = left.dot(&right);
                let out = &mut memory.buffers[plan.out.buffer];
                let base = plan.out.base as i64 + batch.parts[2].offsets[b];
                for (i, row) in is.clone().zip(product.rows()) {
                    for (j, value) in js.clone().zip(row) {
                        let at = base + m.parts[2].offsets[i] + n.parts[2].offsets[j];
                        out[at as usize] = scale * value;
                    }
                }
            }
        }
    }
    Ok(true)
}

/// Points of a group that are gathered at once, beside all points of the sum.
fn block(points: usize, summed: usize) -> usize {
    (GATHERED / summed.max(1)).clamp(1, points.max(1))
}

fn blocks(points: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
    (0..points).step_by(block).map(move |first| first..points.min(first + block))
}

struct Plan {
    factors: [Factor; 2],
    out: Slot,
    /// The points of all three operands, of rows, of columns, and of the sum.
    groups: [Group; 4],
}

/// A factor, and its dims that a window may leave.
struct Factor {
    slot: Slot,
    /// The element under the first value of every index.
    base: i64,
    /// Per dim that may be left: its place under the first value of every index, and its size.
    left: Vec<(i64, i64)>,
    fill: f64,
}

/// All points of some indices.
struct Group {
    points: usize,
    /// For both factors and the result, see [`OperandOffsets`].
    parts: [OperandOffsets; 3],
}

/// What each point adds to an operand's address, and to its place in each dim that may be left.
struct OperandOffsets {
    offsets: Vec<i64>,
    places: Vec<i64>,
}

impl Group {
    fn of(&self, factor: usize, point: usize) -> (i64, &[i64]) {
        let part = &self.parts[factor];
        let width = part.places.len() / self.points.max(1);
        (part.offsets[point], &part.places[point * width..(point + 1) * width])
    }
}

impl Factor {
    /// The elements at all pairs of points, beside a point of the first group.
    fn gather(
        &self,
        memory: &Memory,
        (base, places): (i64, &[i64]),
        (first, is): (&OperandOffsets, Range<usize>),
        (second, js): (&OperandOffsets, Range<usize>),
    ) -> Array2<f64> {
        let buffer = &memory.buffers[self.slot.buffer];
        let (base, width) = (self.base + base, self.left.len());
        let inside = |i: usize, j: usize| {
            self.left.iter().enumerate().all(|(d, (place, size))| {
                let at = place + places[d] + first.places[i * width + d] + second.places[j * width + d];
                (0..*size).contains(&at)
            })
        };
        Array2::from_shape_fn((is.len(), js.len()), |(i, j)| {
            let (i, j) = (is.start + i, js.start + j);
            if width == 0 || inside(i, j) { buffer[(base + first.offsets[i] + second.offsets[j]) as usize] } else { self.fill }
        })
    }
}

impl Plan {
    fn new(program: &Sdfg, operation: &Operation, symbols: &Bindings, memory: &Memory) -> Option<Plan> {
        let operands = [operation.input("a")?, operation.input("b")?, operation.output("out")?];
        let slots = operands.map(|o| memory.slots.get(&o.data));
        let slots = [slots[0]?, slots[1]?, slots[2]?];
        if slots[2].buffer == slots[0].buffer || slots[2].buffer == slots[1].buffer {
            return None;
        }
        let mut sizes = Vec::new();
        for (index, dim) in &operation.indices {
            sizes.push((index.as_str(), usize::try_from(program.size_of(dim).eval(symbols).ok()?).ok()?));
        }
        whole(operands[2], slots[2], &sizes)?;
        let ranges = |name: &str| {
            let index = sizes.iter().find(|(index, _)| *index == name);
            index.map_or_else(|| symbols.get(name).map(|value| (*value, *value)), |(_, size)| Some((0, *size as i64 - 1)))
        };
        let is_index = |name: &str| operation.indices.contains_key(name);
        let mut subscripts: [Vec<Affine>; 3] = [vec![], vec![], vec![]];
        let mut factors = Vec::new();
        // Dims that each operand may leave.
        let mut left: [Vec<usize>; 3] = [vec![], vec![], vec![]];
        for (n, (operand, slot)) in operands.iter().zip(slots).enumerate() {
            let (mut base, mut bounds) = (slot.base as i64, Vec::new());
            for (d, e) in operand.subscripts.iter().enumerate() {
                let form = Affine::of(e, &is_index)?;
                let (first, size) = (form.offset.eval(symbols).ok()?, *slot.shape.get(d)? as i64);
                base += first * *slot.strides.get(d)? as i64;
                let (least, most) = interval(e, &ranges)?;
                if least < 0 || most >= size {
                    left[n].push(d);
                    bounds.push((first, size));
                }
                subscripts[n].push(form);
            }
            if !bounds.is_empty() && operand.fill.is_none() {
                return None;
            }
            factors.push(Factor { slot: slot.clone(), base, left: bounds, fill: operand.fill.map_or(0.0, |fill| fill.0) });
        }
        let mut groups: [Vec<(&str, usize)>; 4] = std::array::from_fn(|_| vec![]);
        for (index, size) in &sizes {
            let within = [0, 1, 2].map(|n: usize| subscripts[n].iter().any(|form| form.coefficient(index) != 0));
            let group = match within {
                [true, true, true] => 0,
                [true, false, true] => 1,
                [false, true, true] => 2,
                [true, true, false] => 3,
                _ => return None,
            };
            groups[group].push((index, *size));
        }
        let part = |group: &[(&str, usize)], n: usize| {
            let mut part = OperandOffsets { offsets: vec![0], places: vec![0; left[n].len()] };
            for (index, size) in group {
                let stride = |d: usize| subscripts[n][d].coefficient(index);
                let along: i64 = (0..subscripts[n].len()).map(|d| stride(d) * slots[n].strides[d] as i64).sum();
                let steps: Vec<i64> = left[n].iter().map(|d| stride(*d)).collect();
                part = OperandOffsets {
                    offsets: part.offsets.iter().flat_map(|at| (0..*size as i64).map(move |i| at + i * along)).collect(),
                    places: match steps.is_empty() {
                        true => vec![],
                        false => part
                            .places
                            .chunks(steps.len())
                            .flat_map(|at| (0..*size as i64).flat_map(|i| at.iter().zip(&steps).map(move |(at, step)| at + i * step)))
                            .collect(),
                    },
                };
            }
            part
        };
        let groups = groups.map(|group| Group {
            points: group.iter().map(|(_, size)| size).product(),
            parts: [part(&group, 0), part(&group, 1), part(&group, 2)],
        });
        let mut factors = factors.into_iter();
        Some(Plan { factors: [factors.next()?, factors.next()?], out: slots[2].clone(), groups })
    }
}

/// Whether each dim of the result is subscripted by an index of its own that runs over all of it.
fn whole(out: &Operand, slot: &Slot, sizes: &[(&str, usize)]) -> Option<()> {
    let names = out.index_names()?;
    let distinct = names.iter().enumerate().all(|(n, name)| !names[..n].contains(name));
    let full = |(name, size): (&&str, &usize)| sizes.iter().any(|(index, all)| index == name && all == size);
    (distinct && names.len() == slot.shape.len() && names.iter().zip(&slot.shape).all(full)).then_some(())
}
