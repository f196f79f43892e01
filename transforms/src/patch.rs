//! A rewrite as a value: units out, units in, containers changed.

use sdfg::{BuildError, Container, Expr, Map, Nested, NodeId, Operation, Scope, Sdfg, StateId, Unit};

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
}

/// The units that a patch has removed from one state and inserted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub state: StateId,
    pub removed: Vec<NodeId>,
    pub inserted: Vec<NodeId>,
}

impl Patch {
    /// Applies the rewrite; outer memlets are propagated again from inside. Says what it has changed, in the order of its edits.
    pub fn apply(self, program: &mut Sdfg) -> Result<Vec<Change>, PatchError> {
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
        for container in self.containers {
            program.add_container(container);
        }
        let summary = self.summary;
        let build = |source| PatchError::Build { summary: summary.clone(), source };
        let mut changes = Vec::new();
        for edit in self.edits {
            let mut inserted = Vec::new();
            for unit in edit.insert {
                let name = fresh(program, unit.name());
                let node = match unit {
                    Unit::Operation(operation) => program.insert_operation(edit.state, &Operation { name, ..operation }),
                    Unit::Scope(Scope { map, body }) => program.insert_scope(edit.state, &Scope { map: Map { label: name, ..map }, body }),
                    Unit::Nested(nested) => program.insert_nested(edit.state, &Nested { name, ..nested }),
                };
                inserted.push(node.map_err(build)?);
            }
            changes.push(Change { state: edit.state, removed: edit.remove, inserted });
        }
        Ok(changes)
    }
}

/// A name that no unit has, starting from `wish`: kernels are known by their names. The sum of a softmax `y` and the `sum` that a
/// recipe takes within `y` would have the same.
fn fresh(program: &Sdfg, wish: &str) -> String {
    let taken = |wish: &String| program.states().any(|(_, state)| state.has_unit(wish));
    let numbered = (2..).map(|n| format!("{wish}.{n}"));
    std::iter::once(wish.to_string()).chain(numbered).find(|name| !taken(name)).unwrap_or_default()
}
