//! States, transitions and units: who runs when, and on which containers.

use super::memory::Memory;
use super::nest::{self, NestScratch, Surroundings};
use super::watch::Watch;
use super::{InterpretError, Run, Tensors, contraction, scatter};
use crate::data::{Container, Role, Storage};
use crate::graph::{Condition, Relation, Sdfg};
use crate::library::Op;
use crate::node::{Loop, Nested, NodeId, Operation, Slice, StateId};
use crate::scope::{Item, Scope, Unit};
use crate::symbol::{Bindings, Expr};
use std::collections::{BTreeMap, BTreeSet};

/// States that a run may take before it counts as endless.
pub const STEP_LIMIT: u64 = 1_000_000;

struct Machine<'a> {
    program: &'a Sdfg,
    run: &'a Run,
    symbols: Bindings,
    memory: Memory,
    /// Heap containers whose reductions have begun in this run.
    begun: BTreeSet<String>,
    watch: Watch,
}

pub(super) fn interpret(
    program: &Sdfg,
    symbols: &Bindings,
    inputs: &Tensors,
    run: &Run,
    watch: &mut Watch,
) -> Result<Tensors, InterpretError> {
    let own = std::mem::take(watch);
    let mut machine = Machine { program, run, symbols: symbols.clone(), memory: Memory::default(), begun: BTreeSet::new(), watch: own };
    for container in heap(program) {
        machine.memory.declare(program, container, &machine.symbols)?;
    }
    for data in inputs.keys() {
        if heap(program).all(|c| c.name != *data) {
            return Err(InterpretError::UnknownTensor { program: program.name.clone(), data: data.clone() });
        }
    }
    machine.require_inputs(inputs)?;
    machine.load(inputs)?;
    let ended = machine.states();
    *watch = std::mem::take(&mut machine.watch);
    ended?;
    Ok(heap(program).filter_map(|c| Some((c.name.clone(), machine.memory.read(&c.name)?))).collect())
}

pub(super) fn interpret_unit(
    program: &Sdfg,
    unit: &Unit,
    tensors: &mut Tensors,
    run: &Run,
    watch: &mut Watch,
) -> Result<(), InterpretError> {
    let touched = interpret_unit_on(program, unit, tensors, run, watch)?;
    tensors.extend(touched);
    Ok(())
}

/// Runs one top-level unit on tensors that stay as they are; returns those that it shares storage with, as it leaves them.
pub(super) fn interpret_unit_on(
    program: &Sdfg,
    unit: &Unit,
    tensors: &Tensors,
    run: &Run,
    watch: &mut Watch,
) -> Result<Tensors, InterpretError> {
    let (own, symbols) = (std::mem::take(watch), program.sizes.clone());
    let mut machine = Machine { program, run, symbols, memory: Memory::default(), begun: BTreeSet::new(), watch: own };
    let (reads, writes) = touched(program, unit);
    for data in reads.iter().chain(&writes) {
        let container = program
            .containers
            .get(data)
            .ok_or_else(|| InterpretError::UnknownContainer { user: unit.name().to_string(), data: data.clone() })?;
        machine.memory.declare(program, container, &machine.symbols)?;
    }
    // What shares storage with a touched container is loaded and stored with it.
    let own = |c: &&Container| c.view.is_none() && machine.memory.slots.contains_key(&c.name);
    let bases = reads.iter().chain(&writes).filter_map(|data| program.containers.get(data)).map(|c| base(program, c)).filter(own);
    let bases = bases.filter_map(|c| program.containers.get_index_of(&c.name));
    let is_near = |c: &&Container| machine.memory.slots.contains_key(&base(program, c).name);
    let views = program.containers.values().enumerate().filter(|(_, c)| c.view.is_some() && is_near(c)).map(|(n, _)| n);
    let near: BTreeSet<usize> = bases.chain(views).collect();
    let near: Vec<&Container> = near.into_iter().map(|n| &program.containers[n]).filter(|c| c.storage == Storage::Heap).collect();
    for container in &near {
        machine.memory.declare(program, container, &machine.symbols)?;
    }
    let given: Tensors = near.iter().filter_map(|c| Some((c.name.clone(), tensors.get(&c.name)?.clone()))).collect();
    for data in reads.difference(&writes) {
        let held = program.containers.get(data).is_some_and(|c| given.contains_key(&base(program, c).name));
        if !given.contains_key(data) && !held {
            return Err(InterpretError::Missing { program: unit.name().to_string(), data: data.clone() });
        }
    }
    machine.load(&given)?;
    let ended = machine.unit(None, unit);
    *watch = std::mem::take(&mut machine.watch);
    ended?;
    let left = near.iter().filter(|c| writes.contains(&c.name) || given.contains_key(&c.name));
    Ok(left.filter_map(|c| Some((c.name.clone(), machine.memory.read(&c.name)?))).collect())
}

fn heap(program: &Sdfg) -> impl Iterator<Item = &Container> {
    program.containers.values().filter(|c| c.storage == Storage::Heap)
}

/// The container that holds a container's storage: itself, unless it is a view.
fn base<'a>(program: &'a Sdfg, container: &'a Container) -> &'a Container {
    let mut at = container;
    for _ in 0..program.containers.len() {
        match at.view.as_ref().and_then(|v| program.containers.get(&v.of)) {
            Some(of) => at = of,
            None => break,
        }
    }
    at
}

/// Heap containers that a unit reads and writes.
fn touched(program: &Sdfg, unit: &Unit) -> (BTreeSet<String>, BTreeSet<String>) {
    let is_heap = |data: &String| program.containers.get(data).is_none_or(|c| c.storage == Storage::Heap);
    match unit {
        Unit::Operation(operation) => {
            (operation.inputs.iter().map(|o| o.data.clone()).collect(), operation.outputs.iter().map(|o| o.data.clone()).collect())
        }
        Unit::Scope(scope) => {
            let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
            operands(scope, &mut reads, &mut writes);
            (reads.into_iter().filter(is_heap).collect(), writes.into_iter().filter(is_heap).collect())
        }
        Unit::Nested(nested) if nested.repeat.is_some() => {
            let (given, made) = nested.boundary();
            (given.into_iter().collect(), made.into_iter().collect())
        }
        Unit::Nested(nested) => shared_names(program, &nested.program),
    }
}

/// Names of everything that a scope reads and writes.
fn operands(scope: &Scope, reads: &mut BTreeSet<String>, writes: &mut BTreeSet<String>) {
    for item in &scope.body {
        match item {
            Item::Scope(inner) => operands(inner, reads, writes),
            Item::Tasklet(computation) => {
                reads.extend(computation.reads.iter().map(|(_, m)| m.data.clone()));
                writes.extend(computation.writes.iter().map(|(_, m)| m.data.clone()));
            }
            Item::Operation(operation) => {
                reads.extend(operation.inputs.iter().map(|o| o.data.clone()));
                writes.extend(operation.outputs.iter().map(|o| o.data.clone()));
            }
        }
    }
}

/// Boundary of a nested program: heap containers that the outside has too, as inputs and as results.
fn shared_names(outside: &Sdfg, inside: &Sdfg) -> (BTreeSet<String>, BTreeSet<String>) {
    let shared: BTreeSet<String> =
        heap(inside).map(|c| &c.name).filter(|n| outside.containers.get(*n).is_some_and(|c| c.storage == Storage::Heap)).cloned().collect();
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
    for (_, _, unit) in inside.units() {
        let (r, w) = touched(inside, &unit);
        reads.extend(r.intersection(&shared).filter(|d| !writes.contains(*d)).cloned().collect::<Vec<_>>());
        writes.extend(w.intersection(&shared).cloned());
    }
    (reads, writes)
}

impl Machine<'_> {
    /// Every input and parameter must be given, itself, as its base, or as views that cover it.
    fn require_inputs(&self, inputs: &Tensors) -> Result<(), InterpretError> {
        let program = self.program;
        for container in heap(program).filter(|c| matches!(c.role, Role::Input | Role::Parameter)) {
            let data = &container.name;
            if inputs.contains_key(data) || inputs.contains_key(&base(program, container).name) {
                continue;
            }
            let parts = heap(program).filter(|c| c.name != *data && base(program, c).name == *data && inputs.contains_key(&c.name));
            let elements = |name: &str| self.memory.slots.get(name).map_or(0, |s| s.elements());
            let covered: usize = parts.map(|c| elements(&c.name)).sum();
            if covered < elements(data) || container.view.is_some() {
                return Err(InterpretError::Missing { program: program.name.clone(), data: data.clone() });
            }
        }
        Ok(())
    }

    /// Bases first, then views, so that a given part overrides a given whole.
    fn load(&mut self, tensors: &Tensors) -> Result<(), InterpretError> {
        for views in [false, true] {
            for container in heap(self.program).filter(|c| c.view.is_some() == views) {
                if let Some(tensor) = tensors.get(&container.name) {
                    self.memory.load(container, tensor)?;
                }
            }
        }
        Ok(())
    }

    fn states(&mut self) -> Result<(), InterpretError> {
        let program = self.program;
        let Some((mut current, _)) = program.states().next() else { return Ok(()) };
        for _ in 0..STEP_LIMIT {
            self.state(current)?;
            let Some(next) = self.transition(current)? else { return Ok(()) };
            current = next;
        }
        Err(InterpretError::StepLimit { program: program.name.clone(), limit: STEP_LIMIT })
    }

    fn state(&mut self, id: StateId) -> Result<(), InterpretError> {
        let Some(state) = self.program.state(id) else { return Ok(()) };
        if state.topological(None).is_none() {
            return Err(InterpretError::Cycle { program: self.program.name.clone(), state: state.name.clone() });
        }
        for (node, unit) in state.units() {
            self.unit(Some((id, node)), &unit)?;
        }
        Ok(())
    }

    /// The first transition whose condition holds, its assignments made at once.
    fn transition(&mut self, from: StateId) -> Result<Option<StateId>, InterpretError> {
        let at = |source| InterpretError::Symbol { user: format!("the transition from {from}"), source };
        for (source, target, transition) in self.program.transitions() {
            if source != from || !transition.condition.as_ref().map_or(Ok(true), |c| holds(c, &self.symbols)).map_err(at)? {
                continue;
            }
            let values = transition.assignments.iter().map(|(name, value)| Ok((name.clone(), value.eval(&self.symbols)?)));
            let values = values.collect::<Result<Vec<_>, _>>().map_err(at)?;
            self.symbols.extend(values);
            return Ok(Some(target));
        }
        Ok(None)
    }

    fn unit(&mut self, place: Option<(StateId, NodeId)>, unit: &Unit) -> Result<(), InterpretError> {
        match unit {
            Unit::Scope(scope) => self.scope(scope, vec![]),
            Unit::Operation(operation) => self.operation(operation),
            Unit::Nested(nested) => {
                let mut symbols = nested.program.sizes.clone();
                for (name, value) in &nested.symbols {
                    let value = value.eval(&self.symbols).map_err(|source| InterpretError::Symbol { user: nested.name.clone(), source })?;
                    symbols.insert(name.clone(), value);
                }
                match &nested.repeat {
                    Some(repeat) => self.repeated(nested, repeat, symbols),
                    None => self.nested(place, &nested.program, symbols),
                }
            }
        }
    }

    /// Runs a program inside this one. They share the containers at the node's boundary, or without a node those of the
    /// same name.
    fn nested(&mut self, place: Option<(StateId, NodeId)>, inside: &Sdfg, symbols: Bindings) -> Result<(), InterpretError> {
        let boundary = place.and_then(|(state, node)| Some(self.program.state(state)?.boundary(node)));
        let (reads, writes): (BTreeSet<String>, BTreeSet<String>) = match boundary {
            Some((reads, writes)) => {
                let names = |memlets: Vec<&crate::memlet::Memlet>| memlets.into_iter().map(|m| m.data.clone()).collect();
                (names(reads), names(writes))
            }
            None => shared_names(self.program, inside),
        };
        let inputs = reads.iter().chain(&writes).filter(|n| inside.containers.contains_key(*n));
        let inputs = inputs.filter_map(|n| Some((n.clone(), self.memory.read(n)?))).collect();
        let results = interpret(inside, &symbols, &inputs, self.run, &mut self.watch)?;
        for data in &writes {
            if let (Some(container), Some(tensor)) = (self.program.containers.get(data), results.get(data)) {
                self.memory.load(container, tensor)?;
            }
        }
        Ok(())
    }

    /// Runs the body of a loop once for each value of its index, on slices of this program's containers.
    fn repeated(&mut self, nested: &Nested, repeat: &Loop, symbols: Bindings) -> Result<(), InterpretError> {
        let at = |source| InterpretError::Symbol { user: nested.name.clone(), source };
        let trips = self.program.size_of(&repeat.dim).eval(&self.symbols).map_err(at)?;
        let inside = &nested.program;
        let made = |c: &Container| matches!(c.role, Role::Output | Role::Gradient);
        for n in 0..trips {
            let now = if repeat.reversed { trips - 1 - n } else { n };
            let place = |slice: &Slice| match &slice.at {
                Some((axis, at)) => at
                    .eval_with(&|name| if name == repeat.index { Some(now) } else { symbols.get(name).copied() })
                    .map(|at| Some((*axis, at))),
                None => Ok(None),
            };
            let mut inputs = Tensors::new();
            for container in heap(inside).filter(|c| c.role != Role::Transient && !made(c)) {
                let found = match repeat.slices.get(&container.name) {
                    Some(Slice { data, fill: Some(fill), at: None }) if n == 0 => {
                        self.memory.read(data).map(|state| state.mapv(|_| fill.0))
                    }
                    Some(slice) => self.memory.read_slice(&slice.data, place(slice).map_err(at)?, slice.fill.map(|fill| fill.0)),
                    None => self.memory.read(&container.name),
                };
                let missing = || InterpretError::Missing { program: nested.name.clone(), data: nested.outer(&container.name).to_string() };
                inputs.insert(container.name.clone(), found.ok_or_else(missing)?);
            }
            let results = interpret(inside, &symbols, &inputs, self.run, &mut self.watch)?;
            for container in heap(inside).filter(|c| made(c)) {
                let Some(tensor) = results.get(&container.name) else { continue };
                match repeat.slices.get(&container.name) {
                    Some(slice) => self.memory.load_slice(&slice.data, place(slice).map_err(at)?, tensor),
                    None => self.memory.load_slice(&container.name, None, tensor),
                }
            }
        }
        Ok(())
    }

    fn operation(&mut self, operation: &Operation) -> Result<(), InterpretError> {
        for operand in operation.inputs.iter().chain(&operation.outputs) {
            if !self.memory.slots.contains_key(&operand.data) {
                return Err(InterpretError::UnknownContainer { user: operation.name.clone(), data: operand.data.clone() });
            }
        }
        if let Op::Contraction { scale } = &operation.op
            && contraction::run(self.program, operation, scale, &self.symbols, self.run, &mut self.memory)?
        {
            if self.watch.limit.is_finite()
                && let Some(out) = operation.output("out").and_then(|out| self.memory.read(&out.data))
            {
                let beyond = out.iter().find(|v| self.watch.sees(**v));
                beyond.into_iter().for_each(|v| self.watch.keep(*v, &operation.name, &operation.origin));
            }
            return Ok(());
        }
        if let Op::Scatter { over, code, .. } = &operation.op
            && scatter::run(self.program, operation, (over, code), &self.symbols, self.run, &mut self.memory)?
        {
            return Ok(());
        }
        let expansion = operation.expand(self.program)?;
        let mark = self.memory.buffers.len();
        for container in &expansion.containers {
            self.memory.declare(self.program, container, &self.symbols)?;
        }
        let parts = self.parts(operation)?;
        for operand in &operation.outputs {
            if !parts.contains_key(&operand.data) {
                self.begun.remove(&operand.data);
            }
        }
        for (_, computation) in expansion.scopes.iter().flat_map(Scope::computations) {
            for (data, identity) in nest::identities(computation) {
                if let Some(part) = parts.get(data) {
                    self.memory.fill_part(data, part, identity);
                    self.begun.insert(data.to_string());
                }
            }
        }
        for scope in &expansion.scopes {
            self.scope(scope, expansion.containers.clone())?;
        }
        for container in &expansion.containers {
            self.begun.remove(&container.name);
        }
        self.release(mark);
        Ok(())
    }

    /// Outputs of which an operation writes only a part, with the part: (first, one past the last) in each dimension.
    /// Another operation may write the rest, so nothing but the part may start anew.
    fn parts(&self, operation: &Operation) -> Result<BTreeMap<String, Vec<(usize, usize)>>, InterpretError> {
        let value = |e: &Expr| e.eval(&self.symbols).map_err(|source| InterpretError::Symbol { user: operation.name.clone(), source });
        let mut found = BTreeMap::new();
        for operand in &operation.outputs {
            let shape = self.memory.slots.get(&operand.data).map(|s| s.shape.clone()).unwrap_or_default();
            let mut part = Vec::new();
            for (subscript, size) in operand.subscripts.iter().zip(&shape) {
                match subscript.as_shifted_index(|i| operation.indices.contains_key(i)) {
                    Some((index, offset)) => {
                        let first = value(&offset)?.max(0) as usize;
                        let length = value(&self.program.size_of(&operation.indices[index]))?.max(0) as usize;
                        part.push((first.min(*size), (first + length).min(*size)));
                    }
                    // A constant place.
                    None if !subscript.symbols().iter().any(|symbol| operation.indices.contains_key(symbol)) => {
                        let first = (value(subscript)?.max(0) as usize).min(*size);
                        part.push((first, (first + 1).min(*size)));
                    }
                    None => part.push((0, *size)),
                }
            }
            if part.iter().zip(&shape).any(|((first, last), size)| last - first < *size) {
                found.insert(operand.data.clone(), part);
            }
        }
        Ok(found)
    }

    fn scope(&mut self, scope: &Scope, extra: Vec<Container>) -> Result<(), InterpretError> {
        let mut around = Surroundings { program: self.program, extra, symbols: &self.symbols, run: self.run };
        let scope = nest::expanded(scope, &mut around)?;
        for (_, computation) in scope.computations() {
            for (data, identity) in nest::identities(computation) {
                let on_heap = around.container(data).is_some_and(|c| c.storage == Storage::Heap);
                if on_heap && self.begun.insert(data.to_string()) {
                    self.memory.fill(data, identity);
                }
            }
        }
        let mark = self.memory.buffers.len();
        let nest = nest::compile(&scope, &around, &mut self.memory)?;
        let mut scratch = NestScratch::new(self.run, std::mem::take(&mut self.watch));
        let result = nest.run(&mut self.memory.buffers, &mut scratch);
        self.watch = scratch.watch;
        self.release(mark);
        result
    }

    /// Gives back the buffers made since `mark`.
    fn release(&mut self, mark: usize) {
        self.memory.buffers.truncate(mark);
        self.memory.slots.retain(|_, slot| slot.buffer < mark);
    }
}

fn holds(condition: &Condition, symbols: &Bindings) -> Result<bool, crate::symbol::SymbolError> {
    let (left, right) = (condition.left.eval(symbols)?, condition.right.eval(symbols)?);
    Ok(match condition.relation {
        Relation::Lt => left < right,
        Relation::Le => left <= right,
        Relation::Eq => left == right,
        Relation::Ne => left != right,
        Relation::Ge => left >= right,
        Relation::Gt => left > right,
    })
}
