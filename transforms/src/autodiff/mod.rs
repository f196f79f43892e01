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

use crate::pass_row::{PassRow, Takes};

/// The passes of this folder, in an order in which they can run one after the other.
pub(crate) const PASSES: &[PassRow] = &[
    PassRow::new("differentiate", Takes::Forward, "append a state that computes gradients", |_, options| {
        Box::new(differentiate::Differentiate { options })
    }),
    PassRow::new("softmax gradient row dot", Takes::Operators, "take row sums of softmax gradients from results", |_, _| {
        Box::new(softmax_grad_row_dot::SoftmaxGradRowDot)
    }),
    PassRow::new("row statistics", Takes::Operators, "recompute rows in backward from their saved statistics", |_, _| {
        Box::new(row_statistics::RowStatistics { start: row_statistics::RecomputeFrom::Contraction })
    }),
    PassRow::new(
        "save local derivative",
        Takes::Operators,
        "save local derivatives in place of the tensors that they follow from",
        |_, _| Box::new(save_local_derivative::SaveLocalDerivative),
    ),
    PassRow::new("relu sign from output", Takes::Operators, "read the sign of a rectifier's argument from a result in memory", |_, _| {
        Box::new(relu_sign_from_output::ReluSignFromOutput)
    }),
    PassRow::new("recompute", Takes::Operators, "recompute in backward what is cheaper to compute than to read", |_, _| {
        Box::new(recompute::Recompute { products: recompute::Products::InMemory })
    }),
    PassRow::new("relu bitmask", Takes::Operators, "save a bit for each sign of a rectifier", |_, _| {
        Box::new(relu_bitmask::ReluBitmask::default())
    }),
];
