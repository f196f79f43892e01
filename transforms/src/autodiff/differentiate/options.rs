//! What is differentiated, and what the step makes of the gradients.

use sdfg::{BuildError, Container, Operation, Role, Sdfg};

/// Which containers are differentiated, and by which.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The containers whose gradients come in from outside, as the inputs `d_<name>`.
    pub upstream: Vec<String>,
    /// The scalar container whose gradient is 1. Either this is given or some are `upstream`.
    pub loss: Option<String>,
    /// The containers whose gradients are handed back; by default every floating input and parameter with `grad`.
    pub wanted: Option<Vec<String>>,
    /// What the step makes of the gradients: the parameters' values in the next step.
    pub update: Update,
}

/// Operations that read gradients, in execution order, and the containers that they write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    pub containers: Vec<Container>,
    pub operations: Vec<Operation>,
}

impl Update {
    /// Appends the operations to a state. The gradient of a parameter that is replaced is handed back no longer.
    ///
    /// # Errors
    /// Operations that read what nothing declares.
    pub fn append(&self, program: &mut Sdfg, state: sdfg::StateId) -> Result<(), BuildError> {
        for container in &self.containers {
            program.add_container(container.clone());
        }
        for operation in &self.operations {
            program.insert_operation(state, operation)?;
        }
        for replaced in self.containers.iter().filter_map(|c| c.replaces.as_ref()) {
            if let Some(gradient) = program.containers.get_mut(&format!("d_{replaced}")).filter(|c| c.role == Role::Gradient) {
                gradient.role = Role::Transient;
            }
        }
        Ok(())
    }
}
