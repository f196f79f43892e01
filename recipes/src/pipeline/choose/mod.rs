//! One plan of all that was measured: shares of the budget, selection, and races of whole plans.

pub mod mask_compatibility;
pub mod multi_device;
pub mod partial_fusion_search;
pub mod plan;
pub mod race_plans;
pub mod reselect_in_step;
pub mod solve;
pub mod sweep_all;
pub mod thread_count;
pub mod tune_in_step;
