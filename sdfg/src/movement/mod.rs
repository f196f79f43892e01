//! What a program moves and computes, known without running it.
//!
//! A top-level unit is a kernel. It reads each distinct element of each heap container once and writes each once: that
//! is the least any implementation of the kernel can move, `Q`. A view counts as its own slice. What a unit writes
//! before it reads it is not read from memory; what it accumulates into is written only. A window counts the places that it reaches
//! inside of its container; a memlet that is no box counts as the smallest box around it.
//!
//! Flop of an operation follow its file in [`crate::library`] (the conventions of the paper's Table III). Flop of a
//! scope are counted from its code: every arithmetic operation once a point, and what each combine costs.

mod definitions;
mod groups;
mod places;

use crate::data::Storage;
use crate::graph::Sdfg;
use crate::library::{Class, arithmetic};
use crate::memlet::{Combine, Memlet, Range};
use crate::node::{Computation, Direction, Index, IndexKind, Nested, Operation};
use crate::propagate;
use crate::scalar::{Binary, Scalar};
use crate::scope::{Item, Scope, Unit};
use crate::symbol::{Bindings, SymbolError};
use indexmap::IndexMap;
use places::Places;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

pub use definitions::{Baselines, Definition, definitions};
pub use groups::{OperatorMovement, operators};

/// Distinct elements of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Traffic {
    pub data: String,
    pub elements: u64,
    pub bytes: u64,
}

/// One kernel: what it computes and the least it must move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Movement {
    pub name: String,
    /// Operations that the kernel is made of.
    pub operators: Vec<String>,
    pub pass: Direction,
    pub class: Class,
    pub flop: u64,
    pub reads: Vec<Traffic>,
    pub writes: Vec<Traffic>,
    /// Dropout masks that the kernel draws or draws a second time, one element of the tensor's type each. Their bytes move only in
    /// programs that store masks. A kernel that needs only the factor of kept elements counts too: a stored mask would be read for it.
    pub masks: Vec<Traffic>,
}

/// Sums over the kernels of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    pub kernels: u64,
    pub flop: u64,
    pub bytes: u64,
}

/// Why a program's movement has no number.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MovementError {
    #[error("in `{unit}`: {source}")]
    Symbol { unit: String, source: SymbolError },
    #[error("`{unit}` uses the container `{data}`, which the program does not declare")]
    UnknownContainer { unit: String, data: String },
}

impl Movement {
    pub fn input_elements(&self) -> u64 {
        self.reads.iter().map(|t| t.elements).sum()
    }

    pub fn output_elements(&self) -> u64 {
        self.writes.iter().map(|t| t.elements).sum()
    }

    /// Q: bytes that must come in and go out, masks not stored.
    pub fn bytes(&self) -> u64 {
        self.reads.iter().chain(&self.writes).map(|t| t.bytes).sum()
    }

    /// Bytes of masks, if they were stored: written in the forward pass, read in the backward pass.
    pub fn mask_bytes(&self) -> u64 {
        self.masks.iter().map(|t| t.bytes).sum()
    }

    /// Arithmetic intensity; 0 for a kernel that moves nothing.
    pub fn flop_per_byte(&self) -> f64 {
        if self.bytes() == 0 { 0.0 } else { self.flop as f64 / self.bytes() as f64 }
    }
}

/// Every kernel of a program in order. Nested programs count kernel by kernel, unless they are groups.
pub fn movement(program: &Sdfg) -> Result<Vec<Movement>, MovementError> {
    movement_under(program, &program.sizes)
}

fn movement_under(program: &Sdfg, symbols: &Bindings) -> Result<Vec<Movement>, MovementError> {
    let mut kernels = Vec::new();
    for (state, _, unit) in program.units() {
        let backward = program.state(state).is_some_and(|s| s.name == "backward");
        kernels.extend(unit_movement_under(program, symbols, &unit, if backward { Direction::Backward } else { Direction::Forward })?);
    }
    Ok(kernels)
}

/// Kernels that run as one: what several of them read moves once.
fn together(name: &str, pass: Direction, kernels: Vec<Movement>) -> Option<Movement> {
    let class = kernels.first()?.class;
    let mut whole =
        Movement { name: name.to_string(), operators: vec![], pass, class, flop: 0, reads: vec![], writes: vec![], masks: vec![] };
    for Movement { operators, flop, reads, writes, masks, .. } in kernels {
        whole.operators.extend(operators);
        whole.flop += flop;
        for (into, found) in [(&mut whole.reads, reads), (&mut whole.writes, writes), (&mut whole.masks, masks)] {
            for traffic in found {
                match into.iter_mut().find(|t| t.data == traffic.data) {
                    Some(known) if known.bytes < traffic.bytes => *known = traffic,
                    Some(_) => {}
                    None => into.push(traffic),
                }
            }
        }
    }
    Some(whole)
}

/// A kernel of a loop's body, run so many times on slices: what it touches bears the names of the outside.
fn repeated(kernel: &mut Movement, nested: &Nested, pass: Direction, trips: u64) {
    kernel.pass = pass;
    kernel.flop = kernel.flop.saturating_mul(trips);
    for traffic in kernel.reads.iter_mut().chain(&mut kernel.writes).chain(&mut kernel.masks) {
        traffic.data = nested.outer(&traffic.data).to_string();
        traffic.elements = traffic.elements.saturating_mul(trips);
        traffic.bytes = traffic.bytes.saturating_mul(trips);
    }
}

/// One unit: one kernel, or several if it is a nested program that is no group.
pub fn unit_movement(program: &Sdfg, unit: &Unit, pass: Direction) -> Result<Vec<Movement>, MovementError> {
    unit_movement_under(program, &program.sizes, unit, pass)
}

fn unit_movement_under(program: &Sdfg, symbols: &Bindings, unit: &Unit, pass: Direction) -> Result<Vec<Movement>, MovementError> {
    let mut count = Count { program, symbols, unit: unit.name(), reads: IndexMap::new(), writes: IndexMap::new(), masks: vec![], flop: 0 };
    let (class, pass, operators) = match unit {
        Unit::Operation(operation) => {
            count.operation(operation, &[])?;
            (operation.class(), operation.pass, vec![operation.name.clone()])
        }
        Unit::Scope(scope) => {
            count.scope(scope, &mut vec![])?;
            (class(scope), pass, scope.operators())
        }
        Unit::Nested(nested) => {
            let mut inner = nested.program.sizes.clone();
            for (name, value) in &nested.symbols {
                let value = value.eval(symbols).map_err(|source| MovementError::Symbol { unit: nested.name.clone(), source })?;
                inner.insert(name.clone(), value);
            }
            let mut kernels = movement_under(&nested.program, &inner)?;
            if let Some(repeat) = &nested.repeat {
                let trips = program.size_of(&repeat.dim).eval(symbols);
                let trips = trips.map_err(|source| MovementError::Symbol { unit: nested.name.clone(), source })?.max(0) as u64;
                kernels.iter_mut().for_each(|kernel| repeated(kernel, nested, pass, trips));
            }
            return Ok(if nested.is_group() { together(&nested.name, pass, kernels).into_iter().collect() } else { kernels });
        }
    };
    let Count { reads, writes, masks, flop, .. } = count;
    let traffic = |found: IndexMap<String, Region>| {
        found.into_iter().filter_map(|(data, region)| {
            let elements = region.iter().map(Places::count).product();
            let bytes = program.containers.get(&data)?.dtype.bytes(elements);
            Some(Traffic { data, elements, bytes })
        })
    };
    let (reads, writes) = (traffic(reads).collect(), traffic(writes).collect());
    Ok(vec![Movement { name: unit.name().to_string(), operators, pass, class, flop, reads, writes, masks }])
}

/// Sums by class.
pub fn totals(kernels: &[Movement]) -> BTreeMap<Class, Total> {
    let mut totals: BTreeMap<Class, Total> = BTreeMap::new();
    for kernel in kernels {
        let total = totals.entry(kernel.class).or_default();
        total.kernels += 1;
        total.flop += kernel.flop;
        total.bytes += kernel.bytes();
    }
    totals
}

/// A contraction if it holds one, a normalization if it reduces, else element-wise.
pub fn class(scope: &Scope) -> Class {
    let outer: Vec<&str> = scope.map.indices.iter().map(|i| i.name.as_str()).collect();
    let of = |computation: &Computation| match computation.combine() {
        Some(_) if contracts(computation, &outer) => Class::Contraction,
        Some(_) => Class::Normalization,
        None => Class::Elementwise,
    };
    let tasklets = scope.computations().into_iter().map(|(_, computation)| of(computation)).min();
    tasklets.into_iter().chain(operations(scope)).min().unwrap_or(Class::Elementwise)
}

fn operations(scope: &Scope) -> Option<Class> {
    let of = |item: &Item| match item {
        Item::Scope(inner) => operations(inner),
        Item::Operation(operation) => Some(operation.class()),
        Item::Tasklet(_) => None,
    };
    scope.body.iter().filter_map(of).min()
}

/// Whether a computation is a contraction written out: a plain sum of products of two operands, each with an index that
/// the other lacks, or that differ in the indices of inner loops (a local operand does not name the outer ones).
pub fn contracts(computation: &Computation, outer: &[&str]) -> bool {
    let product = |code: &Scalar| match code {
        Scalar::Binary(Binary::Mul, a, b) => matches!((&**a, &**b), (Scalar::Input(a), Scalar::Input(b)) if a != b),
        _ => false,
    };
    let [(_, a), (_, b)] = computation.reads.as_slice() else { return false };
    if computation.combine() != Some(Combine::Sum) || !computation.tasklet.code.iter().all(|(_, code)| product(code)) {
        return false;
    }
    let indices = |m: &Memlet| m.point().into_iter().flatten().flat_map(|e| e.symbols()).collect::<BTreeSet<String>>();
    let (a, b) = (indices(a), indices(b));
    let inner = |of: &BTreeSet<String>| of.iter().filter(|i| !outer.contains(&i.as_str())).cloned().collect::<BTreeSet<String>>();
    (!a.is_subset(&b) && !b.is_subset(&a)) || inner(&a) != inner(&b)
}

/// The places in each dimension.
type Region = Vec<Places>;

struct Count<'a> {
    program: &'a Sdfg,
    symbols: &'a Bindings,
    unit: &'a str,
    reads: IndexMap<String, Region>,
    writes: IndexMap<String, Region>,
    masks: Vec<Traffic>,
    flop: u64,
}

impl<'a> Count<'a> {
    fn scope(&mut self, scope: &'a Scope, around: &mut Vec<&'a Index>) -> Result<(), MovementError> {
        let depth = around.len();
        around.extend(&scope.map.indices);
        for item in &scope.body {
            match item {
                Item::Scope(inner) => self.scope(inner, around)?,
                Item::Operation(operation) => self.operation(operation, around)?,
                Item::Tasklet(computation) => {
                    let points = self.points(around)?;
                    for (_, memlet) in &computation.reads {
                        self.touch(memlet, around, false)?;
                    }
                    let mut each = 0;
                    for (connector, memlet) in &computation.writes {
                        self.touch(memlet, around, true)?;
                        let code = computation.tasklet.code.iter().find(|(c, _)| c == connector).map(|(_, code)| code);
                        if let Some(code) = code {
                            each += arithmetic(code) as u64;
                            self.mask(code, &memlet.data, points);
                        }
                    }
                    let combines = computation.writes.iter().filter_map(|(_, m)| m.wcr);
                    each += combines.enumerate().filter(|(n, c)| n % c.arity() == 0).map(|(_, c)| combine_flop(c)).sum::<u64>();
                    self.flop = self.flop.saturating_add(points.saturating_mul(each));
                }
            }
        }
        around.truncate(depth);
        Ok(())
    }

    fn operation(&mut self, operation: &Operation, around: &[&Index]) -> Result<(), MovementError> {
        let own = operation.indices.iter().map(|(n, dim)| Index::over(n, dim, self.program.size_of(dim), IndexKind::Independent));
        let own: Vec<Index> = own.collect();
        let all: Vec<&Index> = around.iter().copied().chain(&own).collect();
        for (operands, write) in [(&operation.inputs, false), (&operation.outputs, true)] {
            for operand in operands {
                self.touch(&operand.memlet(), &all, write)?;
            }
        }
        let flop = operation.flop(self.program).eval(self.symbols).map_err(|e| self.symbol(e))?.max(0) as u64;
        self.flop = self.flop.saturating_add(self.points(around)?.saturating_mul(flop));
        if let (crate::library::Op::Elementwise { code, .. }, Some(out)) = (&operation.op, operation.outputs.first()) {
            let points = self.points(&all)?;
            self.mask(code, &out.data, points);
        }
        Ok(())
    }

    fn symbol(&self, source: SymbolError) -> MovementError {
        MovementError::Symbol { unit: self.unit.to_string(), source }
    }

    /// Records one mask for each stream; `out` gives the type of a stream whose container is gone.
    fn mask(&mut self, code: &Scalar, out: &str, points: u64) {
        let program = self.program;
        code.walk(&mut |node| {
            if let Scalar::Keep { stream, .. } | Scalar::Kept { stream, .. } = node
                && !self.masks.iter().any(|m| m.data == *stream)
                && let Some(container) = program.containers.get(stream).or_else(|| program.containers.get(out))
            {
                self.masks.push(Traffic { data: stream.clone(), elements: points, bytes: container.dtype.bytes(points) });
            }
        });
    }

    /// Iterations of nested loops, outer to inner; a loop is walked only where the bounds of an inner one need it.
    fn points(&self, around: &[&Index]) -> Result<u64, MovementError> {
        points(around, self.symbols).map_err(|e| self.symbol(e))
    }

    fn touch(&mut self, memlet: &Memlet, around: &[&Index], write: bool) -> Result<(), MovementError> {
        let missing = || MovementError::UnknownContainer { unit: self.unit.to_string(), data: memlet.data.clone() };
        let container = self.program.containers.get(&memlet.data).ok_or_else(missing)?;
        if container.storage != Storage::Heap || (!write && self.writes.contains_key(&memlet.data)) {
            return Ok(());
        }
        let sizes = self.program.shape(container);
        let inner_first: Vec<Index> = around.iter().rev().map(|i| (*i).clone()).collect();
        let whole = propagate::propagate(memlet, &inner_first, &sizes);
        let mut region = Region::with_capacity(sizes.len());
        for ((own, range), size) in memlet.subset.iter().zip(&whole.subset).zip(&sizes) {
            let size = size.eval(self.symbols).map_err(|e| self.symbol(e))?;
            let reached = if let Range::At(at) = own { Places::of(at, around, self.symbols, size) } else { None };
            if let Some(reached) = reached {
                region.push(reached);
                continue;
            }
            let ends = match range {
                Range::At(at) => at.eval(self.symbols).map(|at| (at, at.saturating_add(1), 1)),
                Range::Span { start, stop, step } => {
                    start.eval(self.symbols).and_then(|start| Ok((start, stop.eval(self.symbols)?, step.eval(self.symbols)?)))
                }
            };
            // Bounds that still hold an index, as of a triangle seen from outside, mean the whole dimension.
            let (start, stop, step) = ends.unwrap_or((0, size, 1));
            region.push(Places::regular(start, stop, step, size));
        }
        let known = if write { &mut self.writes } else { &mut self.reads };
        match known.get_mut(&memlet.data) {
            None => {
                known.insert(memlet.data.clone(), region);
            }
            Some(held) => {
                for (held, new) in held.iter_mut().zip(region) {
                    *held = held.hull(&new);
                }
            }
        }
        Ok(())
    }
}

fn points(around: &[&Index], symbols: &Bindings) -> Result<u64, SymbolError> {
    let Some((first, rest)) = around.split_first() else { return Ok(1) };
    let needed = |e: &crate::symbol::Expr| e.symbols().contains(&first.name);
    if !rest.iter().any(|i| needed(&i.start) || needed(&i.stop) || needed(&i.step)) {
        let count = first.count().eval(symbols)?.max(0) as u64;
        return Ok(if count == 0 { 0 } else { count.saturating_mul(points(rest, symbols)?) });
    }
    let (start, stop, step) = (first.start.eval(symbols)?, first.stop.eval(symbols)?, first.step.eval(symbols)?);
    let (mut inner, mut total) = (symbols.clone(), 0u64);
    let mut value = start;
    while value < stop {
        inner.insert(first.name.clone(), value);
        total = total.saturating_add(points(rest, &inner)?);
        value = value.saturating_add(step.max(1));
    }
    Ok(total)
}

/// Arithmetic operations of one combine, counted as in [`Combine::apply`].
fn combine_flop(combine: Combine) -> u64 {
    match combine {
        Combine::Sum | Combine::Product | Combine::Max | Combine::Min => 1,
        // Two differences, two exponentials, and for each of the two sums two products and an addition.
        Combine::OnlineSoftmax => 10,
        // The count, the difference, five for the squares with their term, and three for the mean.
        Combine::Moments => 11,
    }
}
