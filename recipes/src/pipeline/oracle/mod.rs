//! What a program computes: tensors it is given, the interpreter's results for them, and whether two programs agree.

pub mod counterexample;
pub mod equivalence;
pub mod operators;
pub mod overflow;
pub mod reference;
pub mod small_sizes;
pub mod tensor_types;
pub mod tensors;
pub mod value_fingerprint;
