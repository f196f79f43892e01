//! The programs that a recipe may become, each made by other rewrites.

pub mod checked_programs;
pub mod folder_name;
pub mod merge_variants;
pub mod partial_fusion;
pub mod partial_fusion_log;
pub mod programs;
pub mod rewrite_options;
pub mod stacking;
