//! Chooses one plan from all measurements: shares of the budget, selection, and races of whole plans.

pub mod multi_device;
pub mod partial_fusion_search;
pub mod plan;
pub mod reselect_in_step;
pub mod solve;
pub mod sweep_all;

pub use sweep_all::{Choices, SweptPrograms};
