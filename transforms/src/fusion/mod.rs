//! Kernels: operations expanded into them, and several made one.

mod alignment;
pub mod composition;
pub mod cross_layer;
pub mod expand;
pub mod greedy;
pub mod grouped_gemm;
pub mod iteration_space;
mod local_copies;
mod once;
pub(crate) mod pairs;
mod single_point;
