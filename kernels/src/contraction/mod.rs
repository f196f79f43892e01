//! Contractions as matrix products: which indices go where, which library runs them, and how the cores share them.

mod error;
mod mapped_space;
mod mapping;
mod problem;
mod types;

pub use error::ContractionError;
pub use mapped_space::MappedSpace;
pub use mapping::{ContractionAxis, GemmNest, IndexGroup, Mapping, MappingError, StridedLoop, choices, is_feasible, mappings};
pub use problem::{ContractionProblem, ContractionTensor, is_windowed};
pub use types::Types;
