//! A rewrite as a value: units out, units in, containers changed.

use sdfg::{BuildError, Container, Expr, NodeId, Sdfg, StateId, Unit};

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
        for (edit, unit) in self.edits.iter().flat_map(|e| e.insert.iter().map(move |u| (e, u))) {
            match unit {
                Unit::Operation(operation) => program.insert_operation(edit.state, operation).map_err(build)?,
                Unit::Scope(scope) => program.insert_scope(edit.state, scope).map_err(build)?,
                Unit::Nested(nested) => program.insert_nested(edit.state, nested).map_err(build)?,
                other => return Err(PatchError::Unit { summary: self.summary.clone(), unit: other.name().to_string() }),
            };
        }
        Ok(())
    }
}
