//! Contractions by the GEMM crates: which there are, how long they take, and the loops around their products.

mod bf16;
mod bf16_via_f32;
mod estimate;
mod executable;
mod library;
mod space;

pub use executable::{ContractionKernel, ContractionPlan};
pub use library::{GemmCall, GemmElement, GemmFactor, GemmLibrary, Multiply, Threads, count_cores};
pub use space::{ContractionConfig, ContractionSpace};
