//! Whether kernels and plans compute what the oracle computes.

pub mod accuracy;
pub mod each_kernel;
pub mod plan;
