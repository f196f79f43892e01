//! Rewriting a program into an equal one that moves less. Nothing here times anything.
//!
//! A [`Transform`] looks at a site and returns a [`Patch`] or a [`Refusal`]; one driver applies patches. Differentiation
//! and recomputation rewrite whole programs.

pub mod algebraic;
mod alignment;
mod boundary;
pub mod cast_bias;
pub mod compose;
pub mod differentiate;
pub mod driver;
pub mod expand;
pub mod fusion;
pub mod grouped_gemm;
pub mod iteration_space;
pub mod known;
pub mod patch;
pub mod recompute;
pub mod relu_bitmask;
mod relu_sign_from_output;
pub mod row_statistics;
pub mod save_local_derivative;
pub mod softmax_grad_row_dot;
mod softmax_shift_invariance;
pub mod transform;
mod units;

pub use compose::{Accept, Cluster, Composed, Composition, Form, Kind, Verdicts, Wanted, clusters, compose};
pub use differentiate::{DifferentiateError, differentiate};
pub use driver::{DriverError, Options, Outcome, Step, Stop, apply, fixpoint, moved_bytes};
pub use expand::Expand;
pub use fusion::Fusion;
pub use grouped_gemm::grouped;
pub use patch::{Change, Edit, Patch, PatchError};
pub use row_statistics::{Start, row_statistics};
pub use save_local_derivative::{Sloped, slopes};
pub use softmax_grad_row_dot::dots;
pub use transform::{Barred, Reason, Refusal, Site, Transform};
