//! One top-level scope, resolved into loops over flat buffers, and run.

use super::memory::Memory;
use super::row::{self, Row};
use super::subscript::{ElementAccess, Integer, LocatedElement, PointNames};
use super::tape::{Tape, Watched};
use super::watch::Watch;
use super::{InterpretError, Run};
use crate::data::{Container, Origin, Storage};
use crate::graph::Sdfg;
use crate::memlet::Combine;
use crate::node::{Computation, Index, IndexKind};
use crate::scope::{Item, Scope};
use crate::symbol::{Bindings, Expr};
use std::collections::BTreeMap;

/// A map: its loops from outer to inner around a list of steps.
pub struct Nest {
    loops: Vec<Loop>,
    body: Vec<(Vec<Reset>, NestStep)>,
}

struct Loop {
    /// Which entry of the point this loop advances.
    index: usize,
    start: Integer,
    stop: Integer,
    step: Integer,
    name: String,
}

/// A local container starts its reduction anew in each iteration of the scope that holds it.
struct Reset {
    buffer: usize,
    value: f64,
}

enum NestStep {
    Nest(Nest),
    Compute(Compute),
}

struct Compute {
    user: String,
    /// The operation that it is of, and where that stands in the recipe.
    operator: String,
    origin: Option<Origin>,
    /// Names of the indices around, for errors.
    around: Vec<String>,
    reads: Vec<ElementAccess>,
    writes: Vec<Write>,
    /// Whether neighbouring points may be computed together: nothing that one writes another one reads.
    in_rows: bool,
}

/// One write, or the three of a tuple that are combined together.
struct Write {
    parts: Vec<(Tape, ElementAccess)>,
    combine: Option<Combine>,
}

/// What compiling a scope needs to know.
pub struct Surroundings<'a> {
    pub program: &'a Sdfg,
    /// Containers of expansions, which the program does not declare.
    pub extra: Vec<Container>,
    pub symbols: &'a Bindings,
    pub run: &'a Run,
}

impl Surroundings<'_> {
    pub fn container(&self, data: &str) -> Option<&Container> {
        self.extra.iter().find(|c| c.name == data).or_else(|| self.program.containers.get(data))
    }

    fn is_local(&self, data: &str) -> bool {
        self.container(data).is_some_and(|c| c.storage != Storage::Heap)
    }
}

/// The combine, and its identity at a write's place in the tuple, of every write of `computation` that has one.
pub fn identities(computation: &Computation) -> Vec<(&str, f64)> {
    let mut seen = 0;
    let mut found = Vec::new();
    for (_, memlet) in &computation.writes {
        if let Some(combine) = memlet.wcr {
            found.push((memlet.data.as_str(), combine.identity()[seen % combine.arity()]));
            seen += 1;
        }
    }
    found
}

/// The scope with operations on tiles replaced by their expansions, whose containers are local.
pub fn expanded(scope: &Scope, around: &mut Surroundings) -> Result<Scope, InterpretError> {
    let mut body = Vec::with_capacity(scope.body.len());
    for item in &scope.body {
        match item {
            Item::Scope(inner) => body.push(Item::Scope(expanded(inner, around)?)),
            Item::Tasklet(_) => body.push(item.clone()),
            Item::Operation(operation) => {
                let expansion = operation.expand(around.program)?;
                around.extra.extend(expansion.containers.into_iter().map(|c| Container { storage: Storage::Local, ..c }));
                body.extend(expansion.scopes.into_iter().map(Item::Scope));
            }
        }
    }
    Ok(Scope { map: scope.map.clone(), body })
}

/// Resolves a scope without operations. Its heap containers must have slots; its local ones get theirs here.
pub fn compile(scope: &Scope, around: &Surroundings, memory: &mut Memory) -> Result<Nest, InterpretError> {
    let mut holders = BTreeMap::new();
    find_holders(scope, &mut Vec::new(), around, &mut holders);
    for data in holders.keys() {
        if let Some(container) = around.container(data) {
            memory.declare(around.program, container, around.symbols)?;
        }
    }
    let mut names = PointNames { symbols: around.symbols, indices: Vec::new(), elements: Vec::new() };
    compile_scope(scope, &mut Vec::new(), around, &holders, memory, &mut names)
}

/// For each local container the innermost scope (as a path of places in bodies) around everything that touches it.
fn find_holders(scope: &Scope, path: &mut Vec<usize>, around: &Surroundings, holders: &mut BTreeMap<String, Vec<usize>>) {
    for (place, item) in scope.body.iter().enumerate() {
        match item {
            Item::Scope(inner) => {
                path.push(place);
                find_holders(inner, path, around, holders);
                path.pop();
            }
            Item::Tasklet(computation) => {
                for (_, memlet) in computation.reads.iter().chain(&computation.writes) {
                    if around.is_local(&memlet.data) {
                        let holder = holders.entry(memlet.data.clone()).or_insert_with(|| path.clone());
                        let shared = holder.iter().zip(path.iter()).take_while(|(a, b)| a == b).count();
                        holder.truncate(shared);
                    }
                }
            }
            Item::Operation(_) => {}
        }
    }
}

fn compile_scope(
    scope: &Scope,
    path: &mut Vec<usize>,
    around: &Surroundings,
    holders: &BTreeMap<String, Vec<usize>>,
    memory: &Memory,
    names: &mut PointNames,
) -> Result<Nest, InterpretError> {
    let outer = names.indices.len();
    let label = &scope.map.label;
    let mut loops = Vec::with_capacity(scope.map.indices.len());
    for index in in_order(&scope.map.indices) {
        let integer = |e| Integer::compile(e, names).map_err(|source| InterpretError::Symbol { user: label.clone(), source });
        let (start, stop, step) = (integer(&index.start)?, integer(&index.stop)?, integer(&index.step)?);
        let hull = match (start.hull(names), stop.hull(names)) {
            (Some((low, _)), Some((_, high))) => Some((low, low.max(high - 1))),
            _ => None,
        };
        loops.push(Loop { index: names.indices.len(), start, stop, step, name: index.name.clone() });
        names.indices.push((index.name.clone(), hull));
    }
    let mut body = Vec::with_capacity(scope.body.len());
    let mut begun: Vec<String> = Vec::new();
    for (place, item) in scope.body.iter().enumerate() {
        let mut resets = Vec::new();
        for (data, value) in combined(item) {
            if holders.get(data).is_some_and(|holder| holder == path) && !begun.iter().any(|b| b == data) {
                begun.push(data.to_string());
                resets.extend(memory.slots.get(data).map(|slot| Reset { buffer: slot.buffer, value }));
            }
        }
        let step = match item {
            Item::Scope(inner) => {
                path.push(place);
                let nest = compile_scope(inner, path, around, holders, memory, names)?;
                path.pop();
                NestStep::Nest(nest)
            }
            Item::Tasklet(computation) => NestStep::Compute(compile_tasklet(computation, around, memory, names)?),
            Item::Operation(_) => continue,
        };
        body.push((resets, step));
    }
    names.indices.truncate(outer);
    Ok(Nest { loops, body })
}

/// Sequential indices first, so that a whole step is done before the next; unless their bounds need the others.
fn in_order(indices: &[Index]) -> Vec<&Index> {
    let (sequential, others): (Vec<&Index>, Vec<&Index>) = indices.iter().partition(|i| i.kind == IndexKind::Sequential);
    let bound = |i: &&Index| [&i.start, &i.stop, &i.step].into_iter().flat_map(|e| e.symbols()).collect::<Vec<_>>();
    if sequential.iter().flat_map(bound).any(|symbol| others.iter().any(|i| i.name == symbol)) {
        return indices.iter().collect();
    }
    sequential.into_iter().chain(others).collect()
}

/// Every combining write in an item, with the identity it starts from.
fn combined(item: &Item) -> Vec<(&str, f64)> {
    match item {
        Item::Tasklet(computation) => identities(computation),
        Item::Scope(scope) => scope.body.iter().flat_map(combined).collect(),
        Item::Operation(_) => vec![],
    }
}

fn compile_tasklet(
    computation: &Computation,
    around: &Surroundings,
    memory: &Memory,
    names: &mut PointNames,
) -> Result<Compute, InterpretError> {
    let user = &computation.tasklet.name;
    let element = |memlet: &crate::memlet::Memlet| Some(Expr::Element(memlet.data.clone(), memlet.point()?.into_iter().cloned().collect()));
    names.elements = computation.reads.iter().map(|(_, memlet)| element(memlet).unwrap_or(Expr::Int(0))).collect();
    let names = &*names;
    let access = |memlet: &crate::memlet::Memlet| match memory.slots.get(&memlet.data) {
        Some(slot) => ElementAccess::compile(user, memlet, slot, names),
        None => Err(InterpretError::UnknownContainer { user: user.clone(), data: memlet.data.clone() }),
    };
    let reads = computation.reads.iter().map(|(_, m)| access(m)).collect::<Result<Vec<_>, _>>()?;
    let connectors: Vec<&str> = computation.reads.iter().map(|(c, _)| c.as_str()).collect();
    let mut writes: Vec<Write> = Vec::new();
    for (connector, memlet) in &computation.writes {
        let code = computation.tasklet.code.iter().find(|(c, _)| c == connector).map(|(_, code)| code);
        let code = code.ok_or_else(|| InterpretError::UnboundConnector { user: user.clone(), connector: connector.clone() })?;
        let part = (Tape::compile(user, code, &connectors, names, around.run)?, access(memlet)?);
        match (memlet.wcr, writes.last_mut()) {
            (Some(combine), Some(last)) if last.combine == Some(combine) && last.parts.len() < combine.arity() => last.parts.push(part),
            (combine, _) => writes.push(Write { parts: vec![part], combine }),
        }
    }
    for write in &writes {
        if let Some(combine) = write.combine
            && write.parts.len() != combine.arity()
        {
            return Err(InterpretError::TupleCombine { user: user.clone(), combine, writes: write.parts.len() });
        }
    }
    let (operator, origin) = (computation.tasklet.operator.clone(), computation.tasklet.origin.clone());
    let in_rows = match writes.as_slice() {
        [Write { parts, .. }] if parts.len() == 1 => {
            let (_, target) = &parts[0];
            !target.follows_reads() && reads.iter().all(|read| !read.follows_reads() && read.buffer != target.buffer)
        }
        _ => false,
    };
    let around = names.indices.iter().map(|(n, _)| n.clone()).collect();
    Ok(Compute { user: user.clone(), operator, origin, around, reads, writes, in_rows })
}

/// What running needs besides the buffers, made once.
pub struct NestScratch {
    at: Vec<i64>,
    reads: Vec<f64>,
    stack: Vec<f64>,
    values: Vec<f64>,
    /// What a row of points reads, a column for each read.
    columns: Vec<f64>,
    step: u64,
    watched: Watched,
    pub watch: Watch,
}

impl NestScratch {
    pub fn new(run: &Run, watch: Watch) -> Self {
        let watched = Watched { limit: watch.limit, beyond: None };
        NestScratch { at: vec![], reads: vec![], stack: vec![], values: vec![], columns: vec![], step: run.step, watched, watch }
    }
}

impl Nest {
    pub fn run(&self, buffers: &mut [Vec<f64>], scratch: &mut NestScratch) -> Result<(), InterpretError> {
        self.run_from(0, buffers, scratch)
    }

    fn run_from(&self, level: usize, buffers: &mut [Vec<f64>], scratch: &mut NestScratch) -> Result<(), InterpretError> {
        let Some(this) = self.loops.get(level) else {
            for (resets, step) in &self.body {
                for reset in resets {
                    buffers[reset.buffer].fill(reset.value);
                }
                match step {
                    NestStep::Nest(nest) => nest.run(buffers, scratch)?,
                    NestStep::Compute(compute) => compute.run(buffers, scratch)?,
                }
            }
            return Ok(());
        };
        let bounds = (this.start.eval(&scratch.at), this.stop.eval(&scratch.at), this.step.eval(&scratch.at));
        let (Some(start), Some(stop), Some(step @ 1..)) = bounds else {
            return Err(InterpretError::Bounds { index: this.name.clone() });
        };
        scratch.at.truncate(this.index);
        scratch.at.push(start);
        let mut value = start;
        // Points before this one are computed one by one.
        let mut alone = start;
        let rows = match self.body.as_slice() {
            [(resets, NestStep::Compute(compute))] if level + 1 == self.loops.len() && resets.is_empty() && compute.in_rows => {
                Some(compute)
            }
            _ => None,
        };
        while value < stop {
            scratch.at[this.index] = value;
            if value >= alone
                && let Some(compute) = rows
                && let Some(left) = stop.checked_sub(value)
                && let count = (left as u64).div_ceil(step as u64).min(row::POINTS as u64) as usize
                && count >= row::LEAST
            {
                let row = Row { index: this.index, start: value, step, count };
                let behind = value.checked_add(step.saturating_mul(count as i64));
                if compute.run_row(&row, buffers, scratch) {
                    let Some(next) = behind else { break };
                    value = next;
                    continue;
                }
                alone = behind.unwrap_or(i64::MAX);
            }
            self.run_from(level + 1, buffers, scratch)?;
            let Some(next) = value.checked_add(step) else { break };
            value = next;
        }
        scratch.at.truncate(this.index);
        Ok(())
    }
}

impl Compute {
    fn run(&self, buffers: &mut [Vec<f64>], scratch: &mut NestScratch) -> Result<(), InterpretError> {
        let NestScratch { at, reads, stack, values, step, watched, watch, .. } = scratch;
        reads.clear();
        for access in &self.reads {
            let value = match access.locate(at, reads) {
                LocatedElement::At(position) => buffers[access.buffer][position],
                LocatedElement::Fill(value) => value,
                LocatedElement::Outside => return Err(self.outside(access, at, reads)),
            };
            reads.push(value);
        }
        values.clear();
        for (tape, access) in self.writes.iter().flat_map(|w| &w.parts) {
            values.push(tape.eval(reads, at, *step, stack, watched).ok_or_else(|| self.outside(access, at, &[]))?);
        }
        let mut done = 0;
        for write in &self.writes {
            let new = &values[done..done + write.parts.len()];
            done += write.parts.len();
            match (write.combine, write.parts.as_slice()) {
                (Some(combine), [_, _, _]) => {
                    let mut places = [(0, 0); 3];
                    for (place, (_, access)) in places.iter_mut().zip(&write.parts) {
                        *place = (access.buffer, self.target(access, at)?);
                    }
                    let mut held = places.map(|(buffer, position)| buffers[buffer][position]);
                    combine.apply(&mut held, new);
                    for ((buffer, position), value) in places.into_iter().zip(held) {
                        buffers[buffer][position] = value;
                    }
                }
                (combine, parts) => {
                    for ((_, access), value) in parts.iter().zip(new) {
                        let position = self.target(access, at)?;
                        let held = &mut buffers[access.buffer][position];
                        match combine {
                            Some(combine) => {
                                combine.apply(std::slice::from_mut(held), std::slice::from_ref(value));
                                if watch.sees(*held) {
                                    watched.beyond = Some(*held);
                                }
                            }
                            None => *held = *value,
                        }
                    }
                }
            }
        }
        if let Some(value) = watched.beyond.take() {
            watch.keep(value, &self.operator, &self.origin);
        }
        Ok(())
    }

    /// Computes the points of a row together; `false` if they must be computed one by one, before anything is written.
    fn run_row(&self, row: &Row, buffers: &mut [Vec<f64>], scratch: &mut NestScratch) -> bool {
        let NestScratch { at, stack, columns, step, watch, .. } = scratch;
        let [Write { parts, combine }] = self.writes.as_slice() else { return false };
        let [(tape, target)] = parts.as_slice() else { return false };
        if !row.is_inside(target, at) {
            return false;
        }
        columns.resize(self.reads.len() * row.count, 0.0);
        for (access, to) in self.reads.iter().zip(columns.chunks_exact_mut(row.count)) {
            if !row.read(access, at, &buffers[access.buffer], to) {
                return false;
            }
        }
        if !tape.eval_row(row, columns, at, *step, stack, watch.limit) {
            return false;
        }
        if let Some(value) = row.write(target, *combine, at, &mut buffers[target.buffer], stack, watch) {
            watch.keep(value, &self.operator, &self.origin);
        }
        true
    }

    fn target(&self, access: &ElementAccess, at: &[i64]) -> Result<usize, InterpretError> {
        match access.locate(at, &[]) {
            LocatedElement::At(position) => Ok(position),
            LocatedElement::Fill(_) | LocatedElement::Outside => Err(self.outside(access, at, &[])),
        }
    }

    fn outside(&self, access: &ElementAccess, at: &[i64], reads: &[f64]) -> InterpretError {
        let mut point: Vec<String> = self.around.iter().zip(at).map(|(name, value)| format!("{name}={value}")).collect();
        point.extend(access.elements().filter_map(|n| Some(format!("{} is {}", self.reads.get(n)?.memlet, reads.get(n)?))));
        InterpretError::OutOfRange { user: self.user.clone(), memlet: access.memlet.clone(), point: point.join(", ") }
    }
}
