//! Recurrence equations and loops over time: the two forms of a program whose results depend on themselves at another time.
//!
//! As *equations* each operation runs over all times at once, and some read what they themselves or later ones write:
//!
//! ```text
//! s[t,b,u] = Σ v[u,w] · h[t-1,b,w else 0]
//! h[t,b,u] = tanh(s[t,b,u] + p[t,b,u])
//! ```
//!
//! As a *loop* the operations that depend on one another are the body of a [`Loop`](crate::node::Loop) over `t`, in which `h[t-1]` is an
//! input and `h[t]` a result. [`extract`] makes loops of equations, [`equations`] takes a loop apart again. What depends on no other time
//! stays outside of the loop: the product `p` for all times is one contraction, and so is the gradient of `v`. Differentiation works on
//! equations: the gradient of `h[t]` gathers from readers at `t` and `t+1`, which is a recurrence that runs backwards.
//!
//! A strongly connected component of the graph of operations becomes one loop. It needs a dim that all its results have, along which
//! they read one another at fixed distances, all in one direction.

mod body;
mod component;
mod equations;
mod shift;

pub use equations::equations;

use crate::data::{Container, Origin, Role};
use crate::graph::{BuildError, Sdfg};
use crate::node::{Node, Operation, StateId};
use crate::scope::Unit;
use component::components;
use std::collections::BTreeSet;

/// Why operations that depend on one another are no loop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecurrenceError {
    #[error("{} need each other at one time: this is a cycle; let one of them read an earlier time, as in `{example}`", steps(.names))]
    SameTime { names: Vec<String>, example: String, at: Option<Box<Origin>> },
    #[error(
        "`{data}` is read at `{first}` and at `{second}`, so neither an earlier nor a later time can come first; read one direction alone"
    )]
    BothWays { data: String, first: String, second: String, at: Option<Box<Origin>> },
    #[error(
        "{} depend on themselves, but `{name}` has no dim that all of them run along; let each result have the dim of time", steps(.names)
    )]
    NoDim { names: Vec<String>, name: String, at: Option<Box<Origin>> },
    #[error("`{name}` reads `{data}` at `{subscript}` and makes it too; a loop reads its results at `{dim}` plus or minus a number")]
    Distance { name: String, data: String, subscript: String, dim: String, at: Option<Box<Origin>> },
    #[error(
        "`{name}` reads `{data}` at `{subscript}`, in a loop over `{dim}`; read one place along one axis there, or copy what is read in a step of its own"
    )]
    Window { name: String, data: String, subscript: String, dim: String, at: Option<Box<Origin>> },
    #[error("`{name}` uses the number `{number}` in a loop over `{dim}`; it must be a sum of multiples of indices, sizes and numbers")]
    Number { name: String, number: String, dim: String, at: Option<Box<Origin>> },
    #[error("`{name}` has a dropout in a loop over `{dim}`; apply it to what the loop is given or to what it makes")]
    Dropout { name: String, dim: String, at: Option<Box<Origin>> },
    #[error(transparent)]
    Build(#[from] BuildError),
}

fn steps(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

impl RecurrenceError {
    /// Where the recipe asked for it.
    pub fn origin(&self) -> Option<&Origin> {
        use RecurrenceError::{BothWays, Build, Distance, Dropout, NoDim, Number, SameTime, Window};
        match self {
            SameTime { at, .. } | BothWays { at, .. } | NoDim { at, .. } | Distance { at, .. } => at.as_deref(),
            Window { at, .. } | Number { at, .. } | Dropout { at, .. } => at.as_deref(),
            Build(_) => None,
        }
    }
}

/// The units that operations make, in an order in which they can run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extracted {
    pub units: Vec<Unit>,
    /// Containers that the loops need outside.
    pub containers: Vec<Container>,
    /// Containers of the equations that exist in the body of a loop alone.
    pub inner: BTreeSet<String>,
}

/// Makes loops of the operations that depend on themselves. `program` declares what they touch; `kept` says which transients something
/// else reads. The bodies have one state, of the name `stage`.
///
/// # Errors
/// Operations that depend on themselves and are no loop.
pub fn extract(program: &Sdfg, operations: Vec<Operation>, stage: &str, kept: &dyn Fn(&str) -> bool) -> Result<Extracted, RecurrenceError> {
    let mut made = Extracted::default();
    for members in components(&operations) {
        match &members[..] {
            [alone] if !component::reads_itself(&operations[*alone]) => made.units.push(Unit::Operation(operations[*alone].clone())),
            _ => body::close(program, &operations, &members, stage, kept, &mut made)?,
        }
    }
    Ok(made)
}

/// Adds operations to a state, as loops where they depend on themselves. Containers that only a body needs leave the program.
///
/// # Errors
/// As [`extract`]; containers that are not declared.
pub fn insert(program: &mut Sdfg, state: StateId, operations: Vec<Operation>, kept: &dyn Fn(&str) -> bool) -> Result<(), RecurrenceError> {
    let stage = program.state(state).map(|s| s.name.clone()).unwrap_or_default();
    let made = extract(program, operations, &stage, kept)?;
    for container in made.containers {
        program.add_container(container);
    }
    program.containers.retain(|name, container| container.role != Role::Transient || !made.inner.contains(name));
    for unit in &made.units {
        match unit {
            Unit::Operation(operation) => match shift::unshifted(program, operation) {
                Some((operation, dim, size)) => {
                    program.dims.insert(dim, size);
                    program.insert_operation(state, &operation)?
                }
                None => program.insert_operation(state, operation)?,
            },
            Unit::Nested(nested) => program.insert_nested(state, nested)?,
            Unit::Scope(scope) => program.insert_scope(state, scope)?,
        };
    }
    Ok(())
}

/// The same program, in which what only the bodies of loops had is handed back too, for all times.
///
/// # Errors
/// As [`insert`]. Bodies that hold more than operators stay as they are.
pub fn exposed(program: &Sdfg) -> Result<Sdfg, RecurrenceError> {
    let mut whole = program.without_states();
    for (_, state) in program.states() {
        let into = whole.add_state(state.name.clone());
        let mut operations = Vec::new();
        for (_, unit) in state.units() {
            match unit {
                Unit::Operation(operation) => operations.push(operation),
                Unit::Nested(nested) => {
                    let Some((containers, found)) = equations(program, &nested) else { return Ok(program.clone()) };
                    containers.into_iter().for_each(|container| whole.add_container(Container { role: Role::Output, ..container }));
                    operations.extend(found);
                }
                Unit::Scope(_) => return Ok(program.clone()),
            }
        }
        insert(&mut whole, into, operations, &|_| true)?;
    }
    program.transitions().for_each(|(from, to, transition)| whole.add_transition(from, to, transition.clone()));
    Ok(whole)
}

/// Whether a program has a loop.
pub fn has_loops(program: &Sdfg) -> bool {
    let is_loop = |node: &Node| matches!(node, Node::Nested(nested) if nested.repeat.is_some());
    program.states().any(|(_, state)| state.members(None).filter_map(|node| state.node(node)).any(is_loop))
}
