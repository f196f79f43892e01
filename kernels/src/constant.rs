//! What is the same in every step: of a program without a backward pass that replaces no parameter, its parameters and whatever is computed
//! of them alone.

use crate::unit_containers::touched;
use sdfg::{Op, Role, Sdfg, Storage, Unit};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// The kernels of a program that run once, and the containers whose values are the same in every step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepConstants {
    pub kernels: BTreeSet<String>,
    /// Parameters, and what kernels that run once write. A relayout of one of these runs once, too.
    pub containers: BTreeSet<String>,
}

impl StepConstants {
    /// Nothing for programs with a backward pass, or that write a parameter.
    pub fn of(program: &Sdfg) -> StepConstants {
        let units = program.units();
        if units.iter().any(|(state, ..)| program.state(*state).is_some_and(|s| s.name == "backward")) {
            return StepConstants::default();
        }
        let role = |data: &str| program.containers.get(data).map(|c| c.role);
        // In memory, with the storage of the container that a view is a part of.
        let stored = |names: Vec<String>| -> BTreeSet<String> {
            let on_heap = |data: &String| program.containers.get(data).is_some_and(|c| c.storage == Storage::Heap);
            names.into_iter().map(|data| root(program, data)).filter(on_heap).collect()
        };
        let mut found = StepConstants::of_parameters(program);
        // Containers that some kernel writes in every step.
        let mut changing: BTreeSet<String> = BTreeSet::new();
        for (_, _, unit) in &units {
            let (read, written) = touched(unit);
            let (mut read, written) = (stored(read), stored(written));
            read.retain(|data| !written.contains(data));
            if written.iter().any(|data| role(data) == Some(Role::Parameter)) {
                return StepConstants::default();
            }
            let constant = !read.is_empty()
                && read.iter().all(|data| found.containers.contains(data))
                && written.iter().all(|data| role(data) == Some(Role::Transient) && !changing.contains(data))
                && !draws(unit);
            if constant {
                found.containers.extend(written);
                found.kernels.insert(unit.name().to_string());
            } else {
                // What is written in parts, by kernels of both kinds, changes.
                if written.iter().any(|data| found.containers.contains(data)) {
                    return StepConstants::of_parameters(program);
                }
                changing.extend(written);
            }
        }
        found
    }

    /// The parameters alone, without those that the step replaces.
    fn of_parameters(program: &Sdfg) -> StepConstants {
        let replaced: BTreeSet<&String> = program.containers.values().filter_map(|c| c.replaces.as_ref()).collect();
        let is_constant = |c: &&sdfg::Container| c.role == Role::Parameter && c.view.is_none() && !replaced.contains(&c.name);
        let parameters = program.containers.values().filter(is_constant);
        StepConstants { kernels: BTreeSet::new(), containers: parameters.map(|c| c.name.clone()).collect() }
    }
}

/// The container that has the storage of `data`.
fn root(program: &Sdfg, data: String) -> String {
    let mut at = data;
    // A chain longer than there are containers would run in a circle.
    for _ in 0..program.containers.len() {
        match program.containers.get(&at).and_then(|c| c.view.as_ref()) {
            Some(view) => at = view.of.clone(),
            None => break,
        }
    }
    at
}

/// Whether a unit draws random numbers, which are others in each step.
fn draws(unit: &Unit) -> bool {
    match unit {
        Unit::Operation(operation) => matches!(&operation.op, Op::Elementwise { code, .. } if code.drops()),
        Unit::Scope(scope) => scope.computations().iter().any(|(_, c)| c.tasklet.code.iter().any(|(_, code)| code.drops())),
        _ => true,
    }
}

/// A number for values of parameters that no others have had in this process ([`crate::RunContext::parameters`]).
pub fn new_parameters() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
