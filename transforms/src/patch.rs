//! A rewrite as a value: units out, units in, containers changed.

use sdfg::{BuildError, Container, Expr, Map, Nested, Node, NodeId, Operation, Scope, Sdfg, State, StateId, Unit};
use std::collections::BTreeSet;

/// The part of a rewrite that falls into one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    pub state: StateId,
    pub remove: Vec<NodeId>,
    /// In execution order.
    pub insert: Vec<Unit>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// What it does, for the log: a sentence without its full stop.
    pub summary: String,
    pub edits: Vec<Edit>,
    /// Added, or replacing a container of the same name.
    pub containers: Vec<Container>,
    /// Names of containers that exist no longer.
    pub drop: Vec<String>,
    /// Dims that the new containers need: name and size.
    pub dims: Vec<(String, Expr)>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatchError {
    #[error("the patch `{summary}` does not fit the program: {source}")]
    Build { summary: String, source: BuildError },
    #[error("the patch `{summary}` names the state {state}, which the program does not have")]
    NoState { summary: String, state: StateId },
    #[error("the patch `{summary}` inserts `{unit}`, which is neither an operation, a scope nor a program")]
    Unit { summary: String, unit: String },
}

impl Patch {
    /// Applies the rewrite; outer memlets are propagated again from inside.
    pub fn apply(&self, program: &mut Sdfg) -> Result<(), PatchError> {
        for edit in &self.edits {
            let missing = || PatchError::NoState { summary: self.summary.clone(), state: edit.state };
            let state = program.state_mut(edit.state).ok_or_else(missing)?;
            for node in &edit.remove {
                state.remove_unit(*node);
            }
        }
        for name in &self.drop {
            program.containers.shift_remove(name);
        }
        for (dim, size) in &self.dims {
            program.dims.insert(dim.clone(), size.clone());
        }
        for container in &self.containers {
            program.add_container(container.clone());
        }
        let build = |source| PatchError::Build { summary: self.summary.clone(), source };
        let mut taken: BTreeSet<String> = program.states().flat_map(|(_, state)| names(state)).map(str::to_string).collect();
        for (edit, unit) in self.edits.iter().flat_map(|e| e.insert.iter().map(move |u| (e, u))) {
            let name = fresh(&taken, unit.name());
            match unit {
                Unit::Operation(operation) => program.insert_operation(edit.state, &Operation { name: name.clone(), ..operation.clone() }),
                Unit::Scope(scope) => {
                    let map = Map { label: name.clone(), ..scope.map.clone() };
                    program.insert_scope(edit.state, &Scope { map, ..scope.clone() })
                }
                Unit::Nested(nested) => program.insert_nested(edit.state, &Nested { name: name.clone(), ..nested.clone() }),
                other => return Err(PatchError::Unit { summary: self.summary.clone(), unit: other.name().to_string() }),
            }
            .map_err(build)?;
            taken.insert(name);
        }
        Ok(())
    }
}

/// Names of the units of a state.
fn names(state: &State) -> impl Iterator<Item = &str> {
    let outermost = state.nodes().filter(|(_, vertex)| vertex.scope.is_none());
    outermost.filter_map(|(_, vertex)| match &vertex.node {
        Node::MapEntry(map) => Some(map.label.as_str()),
        Node::Library(library) => Some(library.name.as_str()),
        Node::Nested(nested) => Some(nested.name.as_str()),
        Node::Alternatives(alternatives) => Some(alternatives.name.as_str()),
        Node::Access(_) | Node::Tasklet(_) | Node::MapExit { .. } => None,
    })
}

/// A name that no unit has, starting from `wish`: kernels are known by their names. The sum of a softmax `y` and the `sum` that a
/// recipe takes within `y` would have the same.
fn fresh(taken: &BTreeSet<String>, wish: &str) -> String {
    let numbered = (2..).map(|n| format!("{wish}.{n}"));
    std::iter::once(wish.to_string()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default()
}
