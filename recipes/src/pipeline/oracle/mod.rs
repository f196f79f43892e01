//! Reference results: drawn tensors, the interpreter's results for them, and whether two programs agree.

pub mod counterexample;
pub mod equivalence;
pub mod largest_finite;
pub mod mask_compatibility;
pub mod operators;
pub mod overflow;
pub mod reference;
pub mod small_sizes;
pub mod tensor_types;
pub mod tensors;
pub mod threshold_jumps;
pub mod value_fingerprint;

pub use equivalence::{Expectation, difference};
pub use operators::{differentiated, operators};
pub use overflow::overflow_on;
pub use reference::{RUN, Reference, ReferenceCache, SEED};
pub use small_sizes::{common_sizes, small_sizes_of_all, with_sizes, with_small_sizes, with_small_sizes_for};
pub use threshold_jumps::{compares_values, distance, kink_bound, within_jumps};
