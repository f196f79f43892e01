//! Kernels in order, and the memory that each of them touches.

use super::{Handover, LiveInterval, room};
use crate::data::{Container, Role, Storage};
use crate::graph::Sdfg;
use crate::scope::{Item, Scope, Unit};
use crate::symbol::SymbolError;
use std::collections::BTreeSet;

/// Memory that a step writes: of a container, or of a copy of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    pub name: String,
    pub bytes: u64,
    /// Whether it is asked for after the last kernel: a result.
    pub kept: bool,
}

/// One kernel, or several that stay together. Buffers are numbers in the schedule's list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScheduleStep {
    pub name: String,
    /// Steps of one stage come before those of the next: forward, backward.
    pub stage: usize,
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    /// (read, written): the written buffer may take the place of the read one, if no later kernel reads that.
    pub in_place: Vec<(usize, usize)>,
}

/// All that a step writes, and who touches it when. What a step is given is not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Schedule {
    pub buffers: Vec<Buffer>,
    pub steps: Vec<ScheduleStep>,
}

impl ScheduleStep {
    pub(super) fn touches(&self, buffer: usize) -> bool {
        self.reads.contains(&buffer) || self.writes.contains(&buffer)
    }
}

impl Schedule {
    /// A program's kernels in their order, each container in one buffer. Kernels write nothing in place: whether they can
    /// is known where they are made.
    ///
    /// # Errors
    /// Sizes without a value.
    pub fn of(program: &Sdfg) -> Result<Schedule, SymbolError> {
        let mut schedule = Schedule::default();
        let stages: Vec<_> = program.states().map(|(id, _)| id).collect();
        for (state, _, unit) in program.units() {
            let stage = stages.iter().position(|s| *s == state).unwrap_or_default();
            let mut step = ScheduleStep { name: unit.name().to_string(), stage, ..ScheduleStep::default() };
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            touched(&unit, &mut reads, &mut writes);
            for (names, numbers) in [(reads, &mut step.reads), (writes, &mut step.writes)] {
                for container in names.iter().filter_map(|name| written_by_steps(program, name)) {
                    let buffer = schedule.buffer(&container.name, program.bytes(&container.name)?, container.role != Role::Transient);
                    if !numbers.contains(&buffer) {
                        numbers.push(buffer);
                    }
                }
            }
            schedule.steps.push(step);
        }
        Ok(schedule)
    }

    /// The number of a buffer, added if it is new.
    pub fn buffer(&mut self, name: &str, bytes: u64, kept: bool) -> usize {
        self.buffers.iter().position(|b| b.name == name).unwrap_or_else(|| {
            self.buffers.push(Buffer { name: name.to_string(), bytes, kept });
            self.buffers.len() - 1
        })
    }

    /// The lives of all buffers that are needed, in order of first use.
    pub fn intervals(&self) -> Vec<LiveInterval> {
        let mut found: Vec<(usize, LiveInterval)> = Vec::new();
        for (n, buffer) in self.buffers.iter().enumerate() {
            let mut uses = self.steps.iter().enumerate().filter(|(_, s)| s.touches(n)).map(|(at, _)| at);
            // A result that no kernel writes has a buffer, too.
            let Some(first) = uses.next().or(buffer.kept.then_some(0)) else { continue };
            let last = if buffer.kept { self.steps.len().saturating_sub(1) } else { uses.next_back().unwrap_or(first) };
            found.push((n, LiveInterval { data: buffer.name.clone(), bytes: buffer.bytes, first, last }));
        }
        found.sort_by_key(|(n, i)| (i.first, *n));
        found.into_iter().map(|(_, interval)| interval).collect()
    }

    /// The handovers that this order allows: of each buffer to at most one, and from at most one.
    pub fn handovers(&self) -> Vec<Handover> {
        let mut found = Vec::new();
        let (mut given, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for (at, step) in self.steps.iter().enumerate() {
            let before = |buffer: usize| self.steps[..at].iter().any(|s| s.touches(buffer));
            let after = |buffer: usize| self.buffers[buffer].kept || self.steps[at + 1..].iter().any(|s| s.touches(buffer));
            for (from, to) in &step.in_place {
                let ends_here = !after(*from) && !before(*to) && room(self.buffers[*from].bytes) == room(self.buffers[*to].bytes);
                if ends_here && !given.contains(from) && !taken.contains(to) {
                    given.insert(*from);
                    taken.insert(*to);
                    found.push(Handover { from: self.buffers[*from].name.clone(), to: self.buffers[*to].name.clone() });
                }
            }
        }
        found
    }

    /// The same steps in another order.
    pub fn reordered(&self, order: &[usize]) -> Schedule {
        Schedule { buffers: self.buffers.clone(), steps: order.iter().filter_map(|n| self.steps.get(*n)).cloned().collect() }
    }
}

/// The heap container that holds a container's elements, if a step writes it.
fn written_by_steps<'a>(program: &'a Sdfg, name: &str) -> Option<&'a Container> {
    let mut container = program.containers.get(name)?;
    for _ in 0..program.containers.len() {
        let Some(view) = &container.view else { break };
        container = program.containers.get(&view.of)?;
    }
    (!matches!(container.role, Role::Input | Role::Parameter) && container.storage == Storage::Heap).then_some(container)
}

/// Containers that a unit reads and writes. Those inside nested programs bear the names of the outside.
fn touched(unit: &Unit, reads: &mut Vec<String>, writes: &mut Vec<String>) {
    match unit {
        Unit::Operation(operation) => {
            reads.extend(operation.inputs.iter().map(|o| o.data.clone()));
            writes.extend(operation.outputs.iter().map(|o| o.data.clone()));
        }
        Unit::Scope(scope) => touched_in(scope, reads, writes),
        Unit::Nested(nested) if nested.repeat.is_some() => {
            let (given, made) = nested.boundary();
            reads.extend(given);
            writes.extend(made);
        }
        Unit::Nested(nested) => nested.program.units().iter().for_each(|(_, _, unit)| touched(unit, reads, writes)),
    }
}

fn touched_in(scope: &Scope, reads: &mut Vec<String>, writes: &mut Vec<String>) {
    for item in &scope.body {
        match item {
            Item::Scope(inner) => touched_in(inner, reads, writes),
            Item::Tasklet(c) => {
                reads.extend(c.reads.iter().map(|(_, m)| m.data.clone()));
                writes.extend(c.writes.iter().map(|(_, m)| m.data.clone()));
            }
            Item::Operation(o) => {
                reads.extend(o.inputs.iter().map(|o| o.data.clone()));
                writes.extend(o.outputs.iter().map(|o| o.data.clone()));
            }
        }
    }
}
