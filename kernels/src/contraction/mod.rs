//! Contractions as matrix products: which indices go where, which library runs them, and how the cores share them.

pub mod cublaslt;
mod estimate;
mod executable;
mod library;
mod mapping;
mod narrow;
mod problem;
mod space;
mod types;
mod widened;

pub use executable::{ContractionKernel, Plan};
pub use library::{Element, Factor, Library, Multiply, Product, Threads, count_cores};
pub use mapping::{Axis, Call, Group, Loop, Mapping, MappingError, choices, is_feasible, mappings};
pub use problem::{ContractionError, Problem, Tensor};
pub use space::{Choice, ContractionSpace};
pub use types::Types;
