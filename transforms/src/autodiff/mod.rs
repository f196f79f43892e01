//! Gradients: the backward state, and what it reads of the forward state, computes again, or takes from something smaller.

pub mod derivative_from_output;
pub mod differentiate;
pub mod recompute;
pub mod relu_bitmask;
pub mod relu_sign_from_output;
pub mod row_statistics;
pub mod save_local_derivative;
pub mod saved;
pub mod softmax_grad_row_dot;
mod softmax_shift_invariance;
pub mod sparse_update;
