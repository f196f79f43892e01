//! Programs as SDFGs of DaCe (Ben-Nun et al., "Stateful Dataflow Multigraphs", SC 2019), the JSON of `.sdfg` files: DaCe 1.0.2 and 2.x
//! load, validate and run them.
//!
//! Each unit of a program becomes a state, in order; a loop over time becomes a loop of states. What DaCe's graphs lack is spelled out: a
//! reduction begins with a map that writes its neutral value, and elements that lie outside of a container, or in a row that an element
//! names, are picked by the code of a tasklet that is given the whole container.

mod code;
mod loops;
mod names;
mod read;
mod scopes;
mod write;

pub use read::read;
pub use write::write;

use sdfg::library::OperatorError;
use sdfg::{BuildError, SymbolError};

/// Why a program cannot be written as DaCe's.
#[derive(Debug, thiserror::Error)]
pub enum DaceError {
    #[error("`{name}` is stored in {dtype}, which DaCe does not have; write the program with --dtype f32")]
    Dtype { name: String, dtype: sdfg::Dtype },
    #[error("`{name}` draws a dropout's mask, which DaCe cannot; write the program with --no-dropout")]
    Dropout { name: String },
    #[error("`{name}` cannot be written for DaCe: {what}")]
    Unsupported { name: String, what: String },
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Size(#[from] SymbolError),
}
