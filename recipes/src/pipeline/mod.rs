//! From a recipe to a measured, verified, reported plan.
//!
//! Folders use one another one way: `report` → `choose` → `measure` → `check` → `variants` → `run` → `oracle`.

pub mod check;
pub mod choose;
mod error;
pub mod measure;
pub mod oracle;
pub(crate) mod parallel;
pub mod report;
pub mod run;
pub mod variants;

pub use error::PipelineError;
