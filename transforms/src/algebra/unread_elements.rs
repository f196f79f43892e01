//! Tensors of which some elements are never read, made without these.
//!
//! ```text
//! x[h] = relu(a[h] + b[h]);  y[p] = k · x[2·p]      →    x[p] = relu(a[2·p] + b[2·p]);  y[p] = k · x[p]
//! x[t] = relu(a[t]);         y = k · x[0]           →    x[o] = relu(a[o]), o < 1;       y = k · x[0]
//! ```
//!
//! A 1×1 convolution that moves by 2 reads a quarter of an image. What comes before it, as the last block of a stage of ResNet-50, is
//! computed at these places alone, and so is what is read by that alone in turn. A classifier that reads the first place of a sequence
//! leaves the others of the layer before it alone.
//!
//! *Legal when* one operation makes the tensor, element by element, by contraction or reduction, or row by row, as softmax and
//! normalization do whose statistics nobody else reads, and subscripts alone say what its elements depend on; all readers take it at one
//! common distance from a common first place, at the same shifted places, or at one place.
//! *Computes less because* an operation has as many points as elements that are read; it is done where at least half of a dim is unread.
//! *Not handled*: softmax and normalization along the dim, which make elements from one another; programs with loops.
//! Source: the places of a tensor that its readers need are memlet propagation as in "Deep Fusion" (Fig. 4), with strides kept. OpenVINO
//! moves strides of 1×1 convolutions up likewise.

use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
use sdfg::affine::Affine;
use sdfg::{Expr, Op, Operation, Role, Sdfg, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// Computes of every tensor what is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnreadElements;

impl Pass for UnreadElements {
    fn name(&self) -> &'static str {
        "unread elements"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let units: Vec<Unit> = program.units().into_iter().map(|(_, _, unit)| unit).collect();
        let mut operations: Vec<Operation> = Vec::new();
        for unit in units {
            let Unit::Operation(operation) = unit else { return Err(Stopped::at_program(self.name(), "it has units that are expanded")) };
            operations.push(operation);
        }
        let (mut result, mut made, mut refused) = (program.clone(), BTreeSet::new(), vec![]);
        // Readers come before what they read: they may have become fewer.
        for at in (0..operations.len()).rev() {
            for axis in 0..operations[at].outputs.first().map_or(0, |out| out.subscripts.len()) {
                match Part::of(at, axis, &operations, &result) {
                    Ok(Some(part)) => {
                        made.insert(format!("`{}`", operations[at].outputs[0].data));
                        part.take(&mut operations, &mut result);
                    }
                    Ok(None) => {}
                    Err(why) => refused.push((at, why)),
                }
            }
        }
        if made.is_empty() {
            let refused = refused.iter().map(|(at, why)| (&operations[*at], why.clone()));
            return Err(refused_at(self.name(), program, refused, "no half of a dim is unread"));
        }
        let mut changed: BTreeMap<String, Operation> = operations.into_iter().map(|o| (o.name.clone(), o)).collect();
        for (state, _) in program.states() {
            result.map_operations(state, |_, operation| vec![changed.remove(&operation.name).unwrap_or(operation)])?;
        }
        let made: Vec<String> = made.into_iter().collect();
        Ok(Rewritten::program(format!("what is read alone of {}", made.join(", ")), result))
    }
}

/// The places of one dim that are read: `step · m + first`, for every `m` of a dim.
struct Part {
    /// The operation that makes the tensor, by its number, and the dim's.
    at: usize,
    axis: usize,
    step: i64,
    first: Expr,
    /// The dim that stands for the whole one, and its size if it is new.
    dim: String,
    size: Option<Expr>,
}

/// A read of the dim: its subscript, and the operation whose indices that has.
struct Read<'a> {
    form: Affine,
    operation: &'a Operation,
    has_fill: bool,
}

impl Part {
    /// `None` where more than half of the dim is read.
    ///
    /// # Errors
    /// Why a tensor with unread elements must stay whole.
    fn of(at: usize, axis: usize, operations: &[Operation], program: &Sdfg) -> Result<Option<Part>, String> {
        let Some(out) = operations[at].outputs.first() else { return Ok(None) };
        let Some(container) = program.containers.get(&out.data).filter(|c| c.role == Role::Transient) else { return Ok(None) };
        let whole = program.size_of(&container.dims[axis]);
        let Ok(places) = whole.eval(&program.sizes) else { return Ok(None) };
        let mut reads = Vec::new();
        for operation in operations {
            for input in operation.inputs.iter().filter(|input| input.data == out.data) {
                let Some(form) = subscript(&input.subscripts[axis], operation, program) else { return Ok(None) };
                reads.push(Read { form, operation, has_fill: input.fill.is_some() });
            }
        }
        let Some((step, first, dim, size)) = read_places(&reads, &whole, program) else { return Ok(None) };
        let (new, size) = match (dim, size) {
            (Some(dim), _) if !container.dims.contains(&dim) => (dim, None),
            (Some(dim), _) => (new_dim(program, &out.data, &container.dims[axis]), Some(program.size_of(&dim))),
            (None, size) => (new_dim(program, &out.data, &container.dims[axis]), Some(size)),
        };
        let count = size.clone().unwrap_or_else(|| program.size_of(&new)).eval(&program.sizes).unwrap_or(places);
        if 2 * count > places {
            return Ok(None);
        }
        movable(&operations[at], axis, operations, program)
            .map_err(|why| format!("half of `{}` and more is unread along `{}`, but {why}", out.data, container.dims[axis]))?;
        Ok(Some(Part { at, axis, step, first, dim: new, size }))
    }

    /// The place within the part that a subscript of the whole dim names.
    fn within(&self, form: Affine) -> Affine {
        let offset = match (&form.offset, &self.first) {
            (offset, first) if offset == first => Expr::Int(0),
            (Expr::Int(offset), Expr::Int(first)) => Expr::Int((offset - first).div_euclid(self.step)),
            (offset, first) => offset.clone() - first.clone(),
        };
        Affine { terms: form.terms.into_iter().map(|(index, by)| (index, by / self.step)).collect(), offset }
    }

    /// Makes the operation compute, and its readers read, the part alone.
    fn take(self, operations: &mut [Operation], program: &mut Sdfg) {
        let data = operations[self.at].outputs[0].data.clone();
        for operation in operations.iter_mut() {
            let own = operation.clone();
            for input in operation.inputs.iter_mut().filter(|input| input.data == data) {
                // A window of one place keeps its index, which is 0.
                let of = |e: &Expr| Affine::of(e, &|name| own.indices.contains_key(name));
                let form = subscript(&input.subscripts[self.axis], &own, program).zip(of(&input.subscripts[self.axis]));
                if let Some((form, all)) = form {
                    let zero = all.terms.into_iter().filter(|(index, _)| form.coefficient(index) == 0).map(|(index, _)| (index, 1));
                    let zero = zero.collect();
                    let mut within = self.within(form);
                    within.terms.extend::<Vec<_>>(zero);
                    input.subscripts[self.axis] = within.expr();
                }
            }
        }
        let maker = &mut operations[self.at];
        let Some(index) = maker.outputs[0].subscripts[self.axis].as_sym().map(str::to_string) else { return };
        let place = Affine { terms: vec![(index.clone(), self.step)], offset: self.first }.expr();
        let with = BTreeMap::from([(index.clone(), place)]);
        for input in &mut maker.inputs {
            input.subscripts.iter_mut().for_each(|e| *e = e.substitute(&with));
        }
        match &mut maker.op {
            Op::Elementwise { code, .. } | Op::Reduce { code, .. } => *code = code.substitute(&with),
            _ => {}
        }
        // Statistics of rows have a place for each row.
        for out in &maker.outputs {
            let axis = out.subscripts.iter().position(|e| e.as_sym() == Some(&index));
            if let Some((axis, container)) = axis.zip(program.containers.get_mut(&out.data)) {
                container.dims[axis] = self.dim.clone();
            }
        }
        maker.indices.insert(index, self.dim.clone());
        program.dims.extend(self.size.map(|size| (self.dim, size)));
        // What runs along every dim lies inside; an index may also run beyond its dim, into the fill.
        let Some(dims) = program.containers.get(&data).map(|container| container.dims.clone()) else { return };
        for operation in operations.iter_mut() {
            let indices = operation.indices.clone();
            let runs_along = |(e, dim): (&Expr, &String)| {
                e.as_sym().and_then(|name| indices.get(name)).is_some_and(|own| program.size_of(own) == program.size_of(dim))
            };
            for input in operation.inputs.iter_mut().filter(|input| input.data == data) {
                let lies_inside = input.subscripts.iter().zip(&dims).all(runs_along);
                input.fill = input.fill.filter(|_| !lies_inside);
            }
        }
    }
}

/// A subscript without the indices that are 0, as those of a window of one place.
fn subscript(e: &Expr, operation: &Operation, program: &Sdfg) -> Option<Affine> {
    let mut form = Affine::of(e, &|name| operation.indices.contains_key(name))?;
    form.terms.retain(|(index, _)| operation.indices.get(index).is_none_or(|dim| program.size_of(dim).as_int() != Some(1)));
    Some(form)
}

/// Whether an operation can compute a part of its result along a dim.
///
/// # Errors
/// Why it cannot.
fn movable(operation: &Operation, axis: usize, operations: &[Operation], program: &Sdfg) -> Result<(), String> {
    let out = &operation.outputs[0];
    let index = out.subscripts[axis].as_sym().filter(|index| out.subscripts.iter().filter(|e| e.symbols().contains(*index)).count() == 1);
    let Some(index) = index.filter(|_| out.fill.is_none()) else { return Err("it is written at other places than plain indices".into()) };
    match &operation.op {
        Op::Elementwise { .. } | Op::Reduce { .. } | Op::Contraction { .. } => {}
        Op::Softmax { over } | Op::Normalize { over, .. } if !over.iter().any(|other| other == index) => {}
        _ => return Err(format!("`{}` makes elements from one another", operation.name)),
    }
    let is_used = |data: &str| {
        let is_read = operations.iter().any(|o| o.inputs.iter().any(|input| input.data == data));
        is_read || program.containers.get(data).is_none_or(|c| c.role != Role::Transient)
    };
    if let Some(other) = operation.outputs[1..].iter().find(|other| is_used(&other.data)) {
        return Err(format!("`{}`, which is made with it, is used", other.data));
    }
    let written = |o: &&Operation| o.outputs.iter().any(|other| other.data == out.data);
    if operations.iter().filter(written).count() > 1 {
        return Err("several operations make it".into());
    }
    let mut indexing = BTreeSet::new();
    let operands = operations.iter().flat_map(|o| o.inputs.iter().chain(&o.outputs));
    operands.flat_map(|operand| &operand.subscripts).for_each(|e| e.collect_indexing_containers(&mut indexing));
    if indexing.contains(&out.data) {
        return Err("its values say which rows are read".into());
    }
    Ok(())
}

/// The distance of the places that are read, the first one, and a dim or a size for their number. `None` where they are all or too
/// scattered.
fn read_places(reads: &[Read], whole: &Expr, program: &Sdfg) -> Option<(i64, Expr, Option<String>, Expr)> {
    let first = reads.first()?;
    let alike = |read: &Read| read.form.offset == first.form.offset && !read.has_fill;
    // One place.
    if reads.iter().all(|read| alike(read) && read.form.terms.is_empty()) {
        return Some((1, first.form.offset.clone(), None, Expr::Int(1)));
    }
    // The same places for the same number of values of an index: each lies inside, as there is no fill.
    if let [(index, step)] = first.form.terms.as_slice() {
        let dim = first.operation.indices.get(index)?;
        let same = |read: &Read| match read.form.terms.as_slice() {
            [(other, by)] => by == step && read.operation.indices.get(other).is_some_and(|d| program.size_of(d) == program.size_of(dim)),
            _ => false,
        };
        if *step > 0 && reads.iter().all(|read| alike(read) && same(read)) {
            return Some((*step, first.form.offset.clone(), Some(dim.clone()), program.size_of(dim)));
        }
    }
    // A common distance.
    let offsets: Option<Vec<i64>> = reads.iter().map(|read| read.form.offset.as_int()).collect();
    let offsets = offsets?;
    let apart = offsets.iter().map(|offset| offset.abs_diff(offsets[0]));
    let coefficients = reads.iter().flat_map(|read| &read.form.terms).map(|(_, by)| by.unsigned_abs());
    let step = i64::try_from(coefficients.chain(apart).fold(0, gcd)).ok().filter(|step| *step > 1)?;
    let first = offsets[0].rem_euclid(step);
    // A short dim that lies in fills whole would leave nothing.
    if first > 0 && reads.iter().any(|read| read.has_fill) {
        return None;
    }
    let count = (whole.clone() + Expr::Int(step - 1 - first)).floor_div(Expr::Int(step));
    Some((step, Expr::Int(first), None, count))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A name for the dim of which a tensor keeps a part.
fn new_dim(program: &Sdfg, data: &str, dim: &str) -> String {
    let names = std::iter::once(format!("{data}_{dim}_read")).chain((2..).map(|n| format!("{data}_{dim}_read{n}")));
    names.into_iter().find(|name| !program.dims.contains_key(name)).unwrap_or_default()
}
