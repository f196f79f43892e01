//! Why a program has no gradient, with the place in the recipe where one is known.

use sdfg::library::OperatorError;
use sdfg::recurrence::RecurrenceError;
use sdfg::{BuildError, Origin};

/// Why a program could not be differentiated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DifferentiateError {
    #[error("`{program}` needs a seed: write either `train: {{upstream: NAME}}` or `train: {{loss: NAME}}`; outputs are {outputs}")]
    Seed { program: String, outputs: String },
    #[error("`{program}` has no container `{name}` to differentiate; declare it or correct the name")]
    Unknown { program: String, name: String },
    #[error("{}nothing computes `{name}`, so nothing can be differentiated from it; name an output", place(.at))]
    NotComputed { name: String, at: Option<Origin> },
    #[error("{}the loss `{name}` has the dims [{dims}] but must be a scalar; reduce it, or use `train: {{upstream: {name}}}`", place(.at))]
    NotScalar { name: String, dims: String, at: Option<Origin> },
    #[error("{}`{name}` stores {dtype}, which has no gradient; set `grad: false` on it", place(.at))]
    NotFloating { name: String, dtype: String, at: Option<Origin> },
    #[error("the name `{name}` is taken, but the gradient of `{of}` needs it; rename it (`d_` is reserved)")]
    NameTaken { name: String, of: String },
    #[error("`{program}` has {count} states; differentiate a program once, before anything else is added to it")]
    States { program: String, count: usize },
    #[error("`{unit}` is no operator any more; differentiate the program before expanding or fusing it")]
    Expanded { unit: String },
    #[error("{}`{name}` is a view or is viewed; gradients through views are not supported, copy the slice into a tensor of its own", place(.at))]
    View { name: String, at: Option<Origin> },
    #[error("{}`{name}`, a statistic of `{operation}`, influences a seed; only the result of a normalization can be differentiated", place(.at))]
    Statistic { name: String, operation: String, at: Option<Origin> },
    #[error("{}{error}", place(.at))]
    Operator { error: OperatorError, at: Option<Origin> },
    #[error("{}the gradient of a loop is no loop: {error}", place(.at))]
    Recurrence { error: Box<RecurrenceError>, at: Option<Origin> },
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl From<RecurrenceError> for DifferentiateError {
    fn from(error: RecurrenceError) -> Self {
        let at = error.origin().cloned();
        DifferentiateError::Recurrence { error: Box::new(error), at }
    }
}

fn place(at: &Option<Origin>) -> String {
    at.as_ref().map(|o| format!("{o}: ")).unwrap_or_default()
}
