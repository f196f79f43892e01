//! Rewriting a program into an equal one that moves less. Nothing here times anything.
//!
//! A [`Transform`] looks at a site and returns a [`Patch`] or a [`Refusal`]; one driver applies patches. Differentiation
//! and recomputation rewrite whole programs.

pub mod algebraic;
mod alignment;
pub mod bias;
mod boundary;
pub mod compose;
pub mod differentiate;
pub mod dots;
pub mod driver;
pub mod expand;
pub mod fusion;
pub mod group;
pub mod iteration_space;
pub mod known;
mod neutral;
pub mod patch;
pub mod recompute;
mod rectifier;
pub mod row_statistics;
pub mod signs;
pub mod slope;
pub mod transform;
mod units;

pub use compose::{Accept, Cluster, Composed, Composition, Form, Kind, Verdicts, Wanted, clusters, compose};
pub use differentiate::{DifferentiateError, differentiate};
pub use dots::dots;
pub use driver::{DriverError, Options, Outcome, Step, Stop, apply, fixpoint, moved_bytes};
pub use expand::Expand;
pub use fusion::Fusion;
pub use group::grouped;
pub use patch::{Change, Edit, Patch, PatchError};
pub use row_statistics::{Start, row_statistics};
pub use slope::{Sloped, slopes};
pub use transform::{Barred, Reason, Refusal, Site, Transform};
