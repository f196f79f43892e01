//! Rewriting a program into an equal one that moves less. Nothing here times anything.
//!
//! A [`Transform`] looks at a site and returns a [`Patch`] or a [`Refusal`]; one driver applies patches.

pub mod algebraic;
pub mod differentiate;
pub mod driver;
pub mod expand;
pub mod fusion;
pub mod iteration_space;
pub mod patch;
pub mod recompute;
pub mod transform;

pub use driver::{Options, Outcome, Step, Stop, fixpoint};
pub use expand::Expand;
pub use fusion::Fusion;
pub use patch::{Edit, Patch, PatchError};
pub use transform::{Reason, Refusal, Site, Transform};
