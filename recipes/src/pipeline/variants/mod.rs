//! The programs that a recipe may become, each made by its own passes.

pub mod candidate_set;
pub mod checked_programs;
pub mod cover_plan;
pub mod execution_scores;
pub mod folder_name;
pub mod fusion_plan;
pub mod gemm_fusion;
pub mod merge_variants;
pub mod partial_fusion;
pub mod partial_fusion_log;
pub mod pattern_times;
pub mod planning;
pub mod programs;
pub mod rewrite_options;
pub mod rewriting;
pub mod stacking;
pub mod stitching;
pub mod table;
pub mod variant;

pub use checked_programs::{bar, wrong};
pub use fusion_plan::FusionPlan;
pub use gemm_fusion::GemmFusion;
pub use merge_variants::{KernelSource, merge_variants};
pub use partial_fusion::{FusionChange, FusionSet, KernelTime, Trial, TrialCost, best, mix};
pub use partial_fusion_log::PartialFusionLog;
pub use pattern_times::PatternTimes;
pub use planning::Planning;
pub use programs::Programs;
pub use rewrite_options::RewriteOptions;
pub use stacking::{stacked_name, stackings};
pub use table::{Contention, VariantId, VariantKey};
pub use variant::Variant;
