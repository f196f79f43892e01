//! A rewrite as a value: units out, units in, containers changed.

use sdfg::{BuildError, Container, NodeId, Sdfg, StateId, Unit};

#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// What it does, for the log: a sentence without its full stop.
    pub summary: String,
    pub state: StateId,
    pub remove: Vec<NodeId>,
    /// In execution order.
    pub insert: Vec<Unit>,
    /// Added, or replacing a container of the same name.
    pub containers: Vec<Container>,
    /// Names of containers that exist no longer.
    pub drop: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatchError {
    #[error("the patch `{summary}` does not fit the program: {source}")]
    Build { summary: String, source: BuildError },
    #[error("the patch `{summary}` names the state {state}, which the program does not have")]
    NoState { summary: String, state: StateId },
    #[error("the patch `{summary}` inserts `{unit}`, which is neither an operation nor a scope")]
    Unit { summary: String, unit: String },
}

impl Patch {
    /// Applies the rewrite; outer memlets are propagated again from inside.
    pub fn apply(&self, program: &mut Sdfg) -> Result<(), PatchError> {
        let state =
            program.state_mut(self.state).ok_or_else(|| PatchError::NoState { summary: self.summary.clone(), state: self.state })?;
        for node in &self.remove {
            state.remove_unit(*node);
        }
        for name in &self.drop {
            program.containers.shift_remove(name);
        }
        for container in &self.containers {
            program.add_container(container.clone());
        }
        let build = |source| PatchError::Build { summary: self.summary.clone(), source };
        for unit in &self.insert {
            match unit {
                Unit::Operation(operation) => program.insert_operation(self.state, operation).map_err(build)?,
                Unit::Scope(scope) => program.insert_scope(self.state, scope).map_err(build)?,
                other => return Err(PatchError::Unit { summary: self.summary.clone(), unit: other.name().to_string() }),
            };
        }
        Ok(())
    }
}
