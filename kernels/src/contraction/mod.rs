//! Contractions as matrix products: which indices go where, which library runs them, and how the cores share them.

mod bf16;
mod bf16_via_f32;
pub mod cublaslt;
mod estimate;
mod executable;
mod library;
mod mapping;
mod problem;
mod space;
mod types;

pub use executable::{ContractionKernel, ContractionPlan};
pub use library::{GemmCall, GemmElement, GemmFactor, GemmLibrary, Multiply, Threads, count_cores};
pub use mapping::{ContractionAxis, GemmNest, IndexGroup, Mapping, MappingError, StridedLoop, choices, is_feasible, mappings};
pub use problem::{ContractionError, ContractionProblem, ContractionTensor};
pub use space::{ContractionConfig, ContractionSpace};
pub use types::Types;
