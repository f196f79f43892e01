//! Where transients live off chip: an interval of kernels for each, and an offset in one arena.
//!
//! A transient lives from the kernel that first writes it to the last that touches it, both included, so that no kernel
//! writes over what it reads. A view keeps what it is a view of alive. Two transients share bytes only if their
//! intervals do not meet.

use crate::data::{Role, Storage};
use crate::graph::Sdfg;
use crate::scope::{Item, Scope, Unit};
use crate::symbol::SymbolError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Every offset is a multiple of this: a cache line, and the widest vector of current CPUs.
pub const ALIGNMENT: u64 = 64;

/// The life of one transient, in kernels from the first of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub data: String,
    pub bytes: u64,
    /// First and last kernel that touches it.
    pub first: usize,
    pub last: usize,
}

/// A place for every transient in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaPlan {
    /// Byte offset of each transient.
    pub offsets: BTreeMap<String, u64>,
    /// Size of the arena.
    pub peak_bytes: u64,
    /// The most bytes alive at once, each rounded up to the alignment: no plan is smaller.
    pub lower_bound: u64,
}

impl Interval {
    pub fn meets(&self, other: &Interval) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn room(&self) -> u64 {
        self.bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
    }
}

/// The lives of a program's heap transients, in order of first use. Programs whose states loop need no other rule: what
/// is carried around a loop is no transient.
pub fn intervals(program: &Sdfg) -> Result<Vec<Interval>, SymbolError> {
    let mut found: Vec<Interval> = Vec::new();
    for (kernel, (_, _, unit)) in program.units().iter().enumerate() {
        let mut names = Vec::new();
        touched(unit, &mut names);
        for name in names {
            let Some(data) = held_in(program, &name) else { continue };
            match found.iter_mut().find(|i| i.data == data) {
                Some(interval) => interval.last = kernel,
                None => found.push(Interval { bytes: program.bytes(&data)?, data, first: kernel, last: kernel }),
            }
        }
    }
    Ok(found)
}

/// The transient on the heap that holds a container's elements, if that is one.
fn held_in(program: &Sdfg, name: &str) -> Option<String> {
    let mut container = program.containers.get(name)?;
    for _ in 0..program.containers.len() {
        let Some(view) = &container.view else { break };
        container = program.containers.get(&view.of)?;
    }
    (container.role == Role::Transient && container.storage == Storage::Heap).then(|| container.name.clone())
}

/// Containers that a unit reads or writes. Those inside nested programs bear the names of the outside.
fn touched(unit: &Unit, into: &mut Vec<String>) {
    match unit {
        Unit::Operation(operation) => into.extend(operation.inputs.iter().chain(&operation.outputs).map(|o| o.data.clone())),
        Unit::Scope(scope) => touched_in(scope, into),
        Unit::Nested(nested) => nested.program.units().iter().for_each(|(_, _, unit)| touched(unit, into)),
        Unit::Alternatives(alternatives) => {
            for (_, variant) in &alternatives.variants {
                variant.units().iter().for_each(|(_, _, unit)| touched(unit, into));
            }
        }
    }
}

fn touched_in(scope: &Scope, into: &mut Vec<String>) {
    for item in &scope.body {
        match item {
            Item::Scope(inner) => touched_in(inner, into),
            Item::Tasklet(c) => into.extend(c.reads.iter().chain(&c.writes).map(|(_, m)| m.data.clone())),
            Item::Operation(o) => into.extend(o.inputs.iter().chain(&o.outputs).map(|o| o.data.clone())),
        }
    }
}

/// Assigns offsets: the largest first, ties by name, each to the lowest gap that is free throughout its life.
pub fn plan(intervals: &[Interval]) -> ArenaPlan {
    let mut order: Vec<&Interval> = intervals.iter().collect();
    order.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.data.cmp(&b.data)));
    let mut placed: Vec<(&Interval, u64)> = Vec::new();
    let mut plan = ArenaPlan::default();
    for interval in order {
        let mut taken: Vec<(u64, u64)> = placed.iter().filter(|(p, _)| p.meets(interval)).map(|(p, at)| (*at, at + p.room())).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + interval.room() <= start {
                break;
            }
            offset = offset.max(end);
        }
        placed.push((interval, offset));
        plan.peak_bytes = plan.peak_bytes.max(offset + interval.room());
        plan.offsets.insert(interval.data.clone(), offset);
    }
    // The load changes only where a life begins.
    let load = |kernel: usize| intervals.iter().filter(|i| (i.first..=i.last).contains(&kernel)).map(Interval::room).sum();
    plan.lower_bound = intervals.iter().map(|i| load(i.first)).max().unwrap_or(0);
    plan
}
